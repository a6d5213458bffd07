# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks that `multiprocessing` has forked, whose processes end without exit handlers."""

import re

import pytest
from ports import free_port
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

_PARENT = """
import multiprocessing, os, sys, time
import keras
import numpy as np
import tfdear

FAILS = sys.argv[2] == "fails"

def work(rank):
    os.environ.update(TFDEAR_RANK=str(rank), TFDEAR_WORLD_SIZE="2", TFDEAR_COORDINATOR=sys.argv[1])
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    inputs = np.ones([12, 3], "float32")
    model.fit(inputs, inputs[:, :1], batch_size=6, epochs=2, verbose=0)
    if rank == 1:
        if FAILS:
            raise ValueError("the data set is empty")
        return
    if FAILS:
        strategy.barrier()
    time.sleep(2)  # Rank 1 has ended by then.
    print("healthy:", strategy._job.monitor.healthy, model.count_params(), flush=True)

context = multiprocessing.get_context("fork")
children = [context.Process(target=work, args=(rank,)) for rank in range(2)]
for child in children:
    child.start()
for child in children:
    child.join()
print("codes:", [child.exitcode for child in children], flush=True)
"""


@pytest.mark.parametrize("how", ["ends", "fails"])
def test_the_end_of_a_child_is_told_to_the_others(how):
    arguments = (f"127.0.0.1:{free_port()}", how)
    with Ranks(1, _PARENT, arguments=arguments, launcher=False) as parent:
        assert parent.wait(timeout=120) == [0], parent.output(0)
        output = parent.output(0)
    if how == "ends":
        assert "healthy: True 11" in output and "codes: [0, 0]" in output, output
        assert "lost" not in output, output
    else:
        assert "codes: [1, 1]" in output, output
        assert re.search(r"rank 1 \(host .* failed: ValueError: the data set is empty", output), (
            output
        )
