# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains random models; the cases are their numbers.

With TFDEAR_TEST_ROUNDING=1 all weights differ in the last bit or two at the begin.
"""

import functools
import os

import case_table
import numpy as np
import random_models
import tensorflow as tf


def train(context, seed):
    setting = random_models.draw(seed)
    print(setting, flush=True)
    with context.scope():
        model = random_models.build(setting, plain=context.strategy is None)
    if os.environ.get("TFDEAR_TEST_ROUNDING") == "1":
        for variable in model.trainable_variables:
            variable.assign(variable * np.float32(1.0 + 2.0**-22))
    x, y = random_models.data(setting, setting.rows)
    given = (tuple(x), tuple(y))
    if setting.weighted:
        given += (np.linspace(0.2, 1.8, setting.rows).astype("float32"),)
    arguments = {}
    if setting.validated:
        arguments["validation_data"] = tf.data.Dataset.from_tensor_slices(given).batch(4)
    dataset = tf.data.Dataset.from_tensor_slices(given)
    if setting.dataset:
        dataset = dataset.shuffle(100, seed=seed)
    dataset = dataset.batch(setting.batch)
    results = case_table.fit(model, dataset, epochs=setting.epochs, **arguments)
    return {**results, "tolerance": setting.tolerance}


class Trainings(dict):
    """As a table of cases: any number is one."""

    def __missing__(self, name):
        return functools.partial(train, seed=int(name))


if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    case_table.main(Trainings())
