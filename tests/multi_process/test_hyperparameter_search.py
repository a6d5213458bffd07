# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""keras-tuner on one rank, and its refusal on several."""

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.multi_process

SEARCH = """
import sys

import keras
import keras_tuner
import numpy as np
import tfdear

strategy = tfdear.DearStrategy()


def build(choices):
    layers = [keras.layers.Input((3,)), keras.layers.Dense(choices.Int("units", 1, 9))]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


tuner = keras_tuner.RandomSearch(
    build,
    "val_loss",
    max_trials=2,
    distribution_strategy=strategy,
    directory=f"{sys.argv[1]}/{strategy.rank}",
)
x, y = np.ones((8, 3)), np.ones((8, 1))
tuner.search(x, y, epochs=1, validation_data=(x, y), verbose=0)
print("found", len(tuner.oracle.trials))
"""


def test_one_rank_searches(tmp_path):
    ((code, output),) = run_ranks(1, SEARCH, arguments=(str(tmp_path),))
    assert code == 0 and "found 2" in output, output


def test_several_ranks_are_refused(tmp_path):
    for code, output in run_ranks(2, SEARCH, arguments=(str(tmp_path),)):
        assert code != 0, output
        assert "every rank would try hyperparameters of its own" in output
        assert "Search with one rank" in output
