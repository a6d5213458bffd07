# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""LARS and LAMB in one process: against NumPy, against Keras, and as Keras optimizers."""

import json

import keras
import layer_adaptive_reference as reference
import numpy as np
import pytest
import tensorflow as tf

from tfdear import optimizers

STEPS = 5


def variables_and_gradients(seed=0):
    """Weights of every kind: none, one, odd, many, zero; the last but one is named a bias."""
    random = np.random.RandomState(seed)
    shapes = {"none": (0, 3), "one": (1,), "odd": (7, 11), "many": (300, 401), "zero": (5,)}
    shapes |= {"still": (4,), "dense_bias": (9,), "gamma": (6,)}
    weights = {name: random.randn(*shape).astype("float32") for name, shape in shapes.items()}
    weights["zero"][:] = 0.0
    gradients = [
        [0.1 * random.randn(*shape).astype("float32") for shape in shapes.values()]
        for _ in range(STEPS)
    ]
    for step in gradients:
        step[list(shapes).index("still")][:] = 0.0
    return weights, gradients


def run(optimizer, weights, gradients):
    variables = [keras.Variable(w, name=name) for name, w in weights.items()]
    for step in gradients:
        optimizer.apply([tf.constant(g) for g in step], variables)
    return [variable.numpy() for variable in variables]


def check(actual, expected):
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        np.testing.assert_allclose(a, e, rtol=1e-6, atol=1e-6, err_msg=f"variable {index}")


EXCLUDED = {
    "exclude_from_weight_decay": ["bias", "^gamma$"],
    "exclude_from_layer_adaptation": "bias",
}


@pytest.mark.parametrize("parallel", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("excluded", [{}, EXCLUDED], ids=["all", "excluded"])
def test_lars_against_numpy(nesterov, excluded, parallel):
    weights, gradients = variables_and_gradients()
    arguments = {"learning_rate": 2.0, "nesterov": nesterov, "trust_coefficient": 0.02}
    actual = run(
        optimizers.LARS(
            **arguments, weight_decay=0.01, epsilon=1e-3, parallel=parallel, **excluded
        ),
        weights,
        gradients,
    )
    without = ("dense_bias", "gamma") if excluded else ()
    decays = [0.0 if name in without else 0.01 for name in weights]
    adapts = [not excluded or name != "dense_bias" for name in weights]
    expected = reference.lars(
        list(weights.values()), gradients, **arguments, decays=decays, epsilon=1e-3, adapts=adapts
    )
    check(actual, expected)


@pytest.mark.parametrize("parallel", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("excluded", [{}, EXCLUDED], ids=["all", "excluded"])
def test_lamb_against_numpy(excluded, parallel):
    weights, gradients = variables_and_gradients()
    actual = run(
        optimizers.LAMB(0.01, weight_decay=0.01, epsilon=1e-6, parallel=parallel, **excluded),
        weights,
        gradients,
    )
    without = ("dense_bias", "gamma") if excluded else ()
    decays = [0.0 if name in without else 0.01 for name in weights]
    adapts = [not excluded or name != "dense_bias" for name in weights]
    expected = reference.lamb(
        list(weights.values()),
        gradients,
        learning_rate=0.01,
        epsilon=1e-6,
        decays=decays,
        adapts=adapts,
    )
    check(actual, expected)


def test_lamb_is_that_of_keras_without_weight_decay():
    weights, gradients = variables_and_gradients()
    ours = run(optimizers.LAMB(0.01), weights, gradients)
    theirs = run(keras.optimizers.Lamb(0.01), weights, gradients)
    check(ours, theirs)


def test_lars_without_adaptation_is_sgd_with_momentum():
    weights, gradients = variables_and_gradients()
    ours = run(
        optimizers.LARS(0.1, nesterov=True, exclude_from_layer_adaptation="."), weights, gradients
    )
    theirs = run(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), weights, gradients)
    check(ours, theirs)


@pytest.mark.parametrize("make", [optimizers.LARS, optimizers.LAMB])
def test_sparse_gradients_count_as_dense_ones(make):
    table = np.random.RandomState(1).randn(6, 3).astype("float32")
    rows = tf.constant([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [1.0, 0.0, 0.0]])
    slices = tf.IndexedSlices(rows, tf.constant([4, 2, 4]), tf.constant([6, 3]))
    results = []
    for gradient in (slices, tf.convert_to_tensor(slices)):
        variable = keras.Variable(table)
        optimizer = make(0.1, weight_decay=0.1)
        for _ in range(3):
            optimizer.apply([gradient], [variable])
        results.append(variable.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.LARS(
            keras.optimizers.schedules.CosineDecay(0.3, 10),
            momentum=0.8,
            nesterov=True,
            trust_coefficient=0.01,
            weight_decay=1e-4,
            epsilon=1e-9,
            clipnorm=1.0,
            **EXCLUDED,
        ),
        optimizers.LAMB(0.2, beta_1=0.8, beta_2=0.9, weight_decay=1e-4, use_ema=True, **EXCLUDED),
    ],
    ids=["lars", "lamb"],
)
def test_configuration_survives_a_round_trip(optimizer):
    config = optimizer.get_config()
    json.dumps(config)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == config
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer) and again.get_config() == config


@pytest.mark.parametrize("make", [optimizers.LARS, optimizers.LAMB])
def test_training_continues_from_a_saved_model(make, tmp_path):
    random = np.random.RandomState(3)
    x, y = random.randn(32, 4).astype("float32"), random.randn(32, 1).astype("float32")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(1)])
    model.compile(make(0.05, weight_decay=0.01, exclude_from_weight_decay=["bias"]), "mse")
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        (optimizers.LARS, {"momentum": 1.0}, "momentum=1.0"),
        (optimizers.LARS, {"momentum": 0.0, "nesterov": True}, "nesterov=True"),
        (optimizers.LARS, {"trust_coefficient": 0}, "trust_coefficient=0"),
        (optimizers.LARS, {"weight_decay": -1.0}, "weight_decay=-1.0"),
        (optimizers.LARS, {"weight_decay": None}, "weight_decay=None"),
        (optimizers.LARS, {"epsilon": float("nan")}, "epsilon=nan"),
        (optimizers.LAMB, {"beta_1": 1.0}, "beta_1=1.0"),
        (optimizers.LAMB, {"beta_2": "0.9"}, "beta_2='0.9'"),
        (
            optimizers.LAMB,
            {"exclude_from_weight_decay": ["("]},
            r"Received: exclude_from_weight_decay=\['\('\]",
        ),
        (
            optimizers.LAMB,
            {"exclude_from_layer_adaptation": [3]},
            r"exclude_from_layer_adaptation=\[3\]",
        ),
    ],
)
def test_bad_arguments_are_named(make, arguments, named):
    with pytest.raises(ValueError, match=named):
        make(**arguments)
