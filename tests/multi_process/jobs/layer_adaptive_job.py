# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Steps of LARS and LAMB with gradients that are known beforehand, and trainings with them.

A case `lars` or `lamb` has layers of every size; every rank contributes its share of the gradients,
so that their sum is the same for any number of ranks.
"""

import functools

import case_table
import keras
import numpy as np
import tensorflow as tf

from tfdear import ops, optimizers

STEPS = 5
SHAPES = {
    "none": (0, 3),
    "one": (1,),
    "odd": (7, 11),
    "zero": (5,),
    "still": (4,),
    "huge": (150001,),
    "many": (130, 401),
    "dense_bias": (9,),
    "gamma": (6,),
}
EXCLUDED = {
    "exclude_from_weight_decay": ["bias", "gamma$"],
    "exclude_from_layer_adaptation": ["bias"],
}
LARS = {"learning_rate": 2.0, "trust_coefficient": 0.02, "epsilon": 1e-3, "weight_decay": 0.01}
LAMB = {"learning_rate": 0.01, "epsilon": 1e-6, "weight_decay": 0.01}


def weights():
    random = np.random.RandomState(0)
    made = [random.randn(*shape).astype("float32") for shape in SHAPES.values()]
    made[list(SHAPES).index("zero")][:] = 0.0
    return made


def gradients(step):
    """Of all ranks together; multiples of 1/1024, so that sums of shares are exact."""
    random = np.random.RandomState(100 + step)
    made = [
        (random.randint(-512, 513, shape) / 1024).astype("float32") for shape in SHAPES.values()
    ]
    made[list(SHAPES).index("still")][:] = 0.0
    return made


class Layers(keras.layers.Layer):
    """Holds the weights; nothing is ever computed with them."""

    def __init__(self):
        super().__init__()
        self.all = [
            self.add_weight(shape=shape, name=name, initializer="zeros")
            for name, shape in SHAPES.items()
        ]


def steps(context, make_optimizer):
    with context.scope():
        layers = Layers()
        optimizer = make_optimizer()
        optimizer.build(layers.trainable_variables)
    for variable, value in zip(layers.all, weights(), strict=True):
        variable.assign(value)

    @tf.function
    def step(*shares):
        # Not as arguments of the replica: they are no examples.
        context.run(lambda: optimizer.apply(list(shares), layers.trainable_variables))

    for number in range(STEPS):
        # Rank 0 has the whole of it less what the others have: one eighth each.
        whole = gradients(number)
        eighth = [gradient / 8 for gradient in whole]
        mine = whole if context.rank == 0 else eighth
        if context.rank == 0:
            mine = [w - (context.world_size - 1) * e for w, e in zip(whole, eighth, strict=True)]
        step(*[tf.constant(share) for share in mine])
    results = case_table.weights(layers)
    results["digests"] = [case_table.digest([*layers.all, *optimizer.variables])]
    if context.strategy is not None and context.world_size > 1:
        context.strategy.synchronize()
        norms = [event for event in context.strategy.events() if event.kind == "norms"]
        results["own/norms"] = len(norms)
        results["own/norm_bytes"] = sum(event.detail for event in norms)
    return results


def model(optimizer, **arguments):
    made = keras.Sequential(
        [
            keras.layers.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, jit_compile=False, **arguments)
    return made


def fit(context, make_optimizer, *, epochs=3, **arguments):
    with context.scope():
        made = model(make_optimizer(), **arguments)
    return case_table.fit(made, case_table.batches(*case_table.images()), epochs=epochs)


def restored(context, make_optimizer):
    """One epoch, saved and loaded again, another one, and one with an optimizer without norms."""
    path = context.directory / f"{context.rank}.keras"
    with context.scope():
        made = model(make_optimizer())
    made.fit(case_table.batches(*case_table.images(), shuffled=False), epochs=1, verbose=0)
    made.save(path)
    with context.scope():
        made = keras.models.load_model(path)
    made.fit(case_table.batches(*case_table.images(), shuffled=False), epochs=1, verbose=0)
    with context.scope():
        made.compile(keras.optimizers.SGD(0.01), made.loss, jit_compile=False)
    return case_table.fit(made, case_table.batches(*case_table.images(), shuffled=False), epochs=1)


def embedding(context, make_optimizer):
    words = np.random.RandomState(2).randint(0, 30, (81, 5))
    with context.scope():
        made = keras.Sequential(
            [
                keras.layers.Input((5,), dtype="int32"),
                keras.layers.Embedding(40, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        made.compile(make_optimizer(), "mse")
    return case_table.fit(
        made, case_table.batches(words, (words.sum(1) % 7).astype("float32")), epochs=2
    )


def operator(context):
    """The parallel tensor operator on rows and on lists, beside the function itself."""
    random = np.random.RandomState(4)
    rows = tf.constant(random.randn(11, 3).astype("float32"))
    tensors = [tf.constant(value) for value in weights()] + [tf.zeros([40007])] * 3
    share = functools.partial(ops.parallel_tensor_operator, strategy=context.strategy)

    def norms(some):
        sizes.append(len(some))
        return tf.stack([tf.reduce_sum(tensor**2) for tensor in some])

    sizes = []
    results = {
        "rows": share(tf.square, rows),
        "one_row": share(tf.square, rows[:1]),
        "norms": share(norms, tensors),
        "few": share(norms, tensors[4:6]),
    }
    results["graph"] = tf.function(lambda value: share(tf.abs, value))(rows)
    results["own/most"] = max(sizes[:1])
    expected = {
        "rows": tf.square(rows),
        "one_row": tf.square(rows[:1]),
        "norms": norms(tensors),
        "few": norms(tensors[4:6]),
        "graph": tf.abs(rows),
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value, err_msg=name)
    return {name: np.asarray(value) for name, value in results.items()}


def scaled(make_optimizer):
    return keras.optimizers.LossScaleOptimizer(make_optimizer(), initial_scale=1024.0)


CASES = {"operator": operator}
for _name, _make, _arguments in (
    ("lars", optimizers.LARS, LARS),
    ("lamb", optimizers.LAMB, LAMB),
):
    for _suffix, _parallel in (("", True), ("_alone", False)):
        make = functools.partial(_make, **_arguments, parallel=_parallel)
        CASES[_name + _suffix] = functools.partial(steps, make_optimizer=make)
        CASES[f"{_name}_excluded{_suffix}"] = functools.partial(
            steps, make_optimizer=functools.partial(make, **EXCLUDED)
        )
        gentle = functools.partial(make, learning_rate=0.01)
        CASES[f"{_name}_fit{_suffix}"] = functools.partial(
            fit, make_optimizer=gentle, steps_per_execution=2
        )
        CASES[f"{_name}_scaled{_suffix}"] = functools.partial(
            fit, make_optimizer=functools.partial(scaled, gentle), epochs=2
        )
        CASES[f"{_name}_accumulated{_suffix}"] = functools.partial(
            fit,
            make_optimizer=functools.partial(gentle, gradient_accumulation_steps=2),
            epochs=2,
        )
        CASES[f"{_name}_eager{_suffix}"] = functools.partial(
            fit, make_optimizer=gentle, epochs=1, run_eagerly=True
        )
        CASES[f"{_name}_restored{_suffix}"] = functools.partial(restored, make_optimizer=gentle)
        CASES[f"{_name}_embedding{_suffix}"] = functools.partial(embedding, make_optimizer=gentle)

if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    case_table.main(CASES)
