# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains tables of embeddings with every optimizer, sharded or, as the reference, whole.

The reference takes the gradient of the whole table, in which the rows of a word are summed. The
loss is nearly linear in the vectors, and the gradients of one element in one step have one sign.
So rounding is not amplified, neither by division by a gradient that is nearly nothing nor by the
sign of one (Lion), and whatever differs by more than rounding is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from unittest import mock

import case_table
import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.integrations.keras import embeddings
from tfdear.planning import table_choice

ROWS, STEPS, BATCH, WORDS = 40, 60, 12, 5
# Words of the first and the last steps only, and one that never occurs.
RARE, UNSEEN = (31, 32, 33), 39
WIDTHS = (1, 2, 3, 16, 100, 512)
_CURVATURE = 0.125

# By name: the widths, partitions and exchanges of the tables of a model.
TABLES = {
    "few": ((2, "column", "all_to_all"), (3, "row", "all_to_all"), (16, "column", "all_gather")),
    "all": tuple(
        (width, partition, exchange)
        for width in WIDTHS
        for partition in ("column", "row")
        for exchange in ("all_to_all", "all_gather")
    ),
    # The same tables, held and exchanged in different ways.
    "column": ((3, "column", "all_to_all"), (16, "column", "all_to_all")),
    "row": ((3, "row", "all_to_all"), (16, "row", "all_to_all")),
    "gathered": ((3, "auto", "all_gather"), (16, "auto", "all_gather")),
    "summed": ((3, "auto", "all_reduce"), (16, "auto", "all_reduce")),
    # Those of keras.layers.Embedding.
    "plain": ((3, "", ""), (16, "", "")),
    # The same, and updated by rows as large ones are; and exchanged in some steps in another way.
    "by_rows": ((3, "", ""), (16, "", "")),
    "switching": ((3, "", ""), (16, "", "")),
    # Of which only touched rows are updated.
    "touched": ((3, "column", "all_to_all", "touched"), (16, "row", "all_to_all", "touched")),
}

_optimizers = keras.optimizers
_schedules = keras.optimizers.schedules
OPTIMIZERS = {
    "sgd": lambda: _optimizers.SGD(0.05),
    "sgd_decay": lambda: _optimizers.SGD(0.05, weight_decay=0.01),
    "momentum": lambda: _optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: _optimizers.SGD(
        _schedules.PiecewiseConstantDecay([20, 40], [0.05, 0.02, 0.01]),
        momentum=0.9,
        nesterov=True,
        weight_decay=0.01,
    ),
    "adam": lambda: _optimizers.Adam(0.01),
    "adam_schedule": lambda: _optimizers.Adam(
        _schedules.ExponentialDecay(0.02, 10, 0.9), weight_decay=0.02
    ),
    "amsgrad": lambda: _optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: _optimizers.AdamW(_schedules.CosineDecay(0.02, 50), weight_decay=0.02),
    "nadam": lambda: _optimizers.Nadam(0.01),
    "nadam_decay": lambda: _optimizers.Nadam(0.01, weight_decay=0.02),
    "adamax": lambda: _optimizers.Adamax(0.01),
    "adamax_decay": lambda: _optimizers.Adamax(0.01, weight_decay=0.02),
    "adagrad": lambda: _optimizers.Adagrad(0.05),
    "adagrad_decay": lambda: _optimizers.Adagrad(0.05, weight_decay=0.02),
    "rmsprop": lambda: _optimizers.RMSprop(0.005),
    "rmsprop_momentum": lambda: _optimizers.RMSprop(0.005, momentum=0.8, weight_decay=0.02),
    "rmsprop_centered": lambda: _optimizers.RMSprop(0.005, momentum=0.8, centered=True),
    "adadelta": lambda: _optimizers.Adadelta(0.5),
    "adadelta_decay": lambda: _optimizers.Adadelta(0.5, weight_decay=0.02),
    "ftrl": lambda: _optimizers.Ftrl(0.02),
    "ftrl_shrinkage": lambda: _optimizers.Ftrl(
        0.02,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.01,
        l2_shrinkage_regularization_strength=0.01,
        weight_decay=0.02,
    ),
    "lion": lambda: _optimizers.Lion(0.005),
    "lion_decay": lambda: _optimizers.Lion(0.005, weight_decay=0.02),
    "average": lambda: _optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "average_overwrite": lambda: _optimizers.SGD(
        0.05, momentum=0.9, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7
    ),
}
# 60 steps are eight of 7 and a part of one more. Some of these clip, and some do not.
OPTIMIZERS.update(
    {
        "accumulated_norm": lambda: _optimizers.SGD(
            0.05, momentum=0.9, clipnorm=1.2, gradient_accumulation_steps=7
        ),
        "accumulated_global_norm": lambda: _optimizers.Adam(
            0.01, weight_decay=0.02, global_clipnorm=3.0, gradient_accumulation_steps=7
        ),
        "accumulated_value": lambda: _optimizers.SGD(
            0.05, momentum=0.9, clipvalue=0.1, gradient_accumulation_steps=7
        ),
        "accumulated_average": lambda: _optimizers.AdamW(
            _schedules.CosineDecay(0.02, 50),
            weight_decay=0.02,
            global_clipnorm=2.0,
            gradient_accumulation_steps=3,
            use_ema=True,
            ema_momentum=0.9,
            ema_overwrite_frequency=8,
        ),
    }
)
# Those that need norms of the whole table.
OPTIMIZERS.update(
    {
        "lamb": lambda: _optimizers.Lamb(0.01),
        "lamb_decay": lambda: _optimizers.Lamb(
            _schedules.ExponentialDecay(0.02, 10, 0.9), weight_decay=0.02
        ),
        "tfdear_lamb": lambda: tfdear.optimizers.LAMB(0.01, weight_decay=0.02, parallel=False),
        "tfdear_lars": lambda: tfdear.optimizers.LARS(
            0.1, trust_coefficient=0.02, weight_decay=0.02, nesterov=True
        ),
    }
)
if hasattr(_optimizers, "ScheduleFreeAdamW"):  # Not in older versions of Keras.
    OPTIMIZERS["schedule_free"] = lambda: _optimizers.ScheduleFreeAdamW(0.01, warmup_steps=10)
    OPTIMIZERS["schedule_free_decay"] = lambda: _optimizers.ScheduleFreeAdamW(
        0.01, weight_decay=0.02
    )


def data():
    """Words, which mostly are the same few, and a factor for every word."""
    random = np.random.default_rng(5)
    words = (random.zipf(1.3, (STEPS, BATCH, WORDS)) - 1) % RARE[0]
    for step in (1, 2, STEPS - 2):
        words[step, :: BATCH - 1, 0] = RARE[:2]
    words[3, 0, 0] = RARE[2]  # It is not seen again.
    sign = 1 - 2 * ((words + np.arange(STEPS)[:, None, None] // 20) % 2)
    factors = sign * random.integers(4, 9, words.shape) / 8
    return words.reshape(-1, WORDS).astype("int32"), factors.reshape(-1, WORDS).astype("float32")


class DenseTable(keras.layers.Layer):
    """An embedding whose gradient is a dense tensor, summed in float32."""

    def __init__(
        self,
        rows,
        width,
        embeddings_initializer,
        embeddings_regularizer=None,
        embeddings_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.shape = (rows, width)
        self.initializer = embeddings_initializer
        self.given = {"regularizer": embeddings_regularizer, "constraint": embeddings_constraint}

    def build(self, input_shape):
        del input_shape
        self.table = self.add_weight(
            shape=self.shape,
            initializer=self.initializer,
            name="table",
            autocast=False,
            **self.given,
        )

    def call(self, words):
        words = keras.ops.one_hot(words, self.shape[0], dtype="float32")
        return keras.ops.cast(keras.ops.matmul(words, self.table), self.compute_dtype)


class Score(keras.layers.Layer):
    """A number for every example: nearly linear in its vectors."""

    def call(self, vectors, factors):
        width = vectors.shape[-1]
        slope = factors[..., None] * columns_of(width)
        terms = slope * vectors + _CURVATURE / 2 * keras.ops.square(vectors)
        return keras.ops.sum(terms, axis=(1, 2))


def build(strategy, tables, seed=0):
    words = keras.Input((WORDS,), dtype="int32")
    factors = keras.Input((WORDS,))
    scores = []
    for number, (width, partition, exchange, *updates) in enumerate(tables):
        initializer = keras.initializers.RandomUniform(-0.05, 0.05, seed=seed + number)
        given = {"embeddings_initializer": initializer, "name": f"table_{number}"}
        if strategy is None:
            layer = DenseTable(ROWS, width, **given)
        elif not partition:
            layer = keras.layers.Embedding(ROWS, width, **given)
        else:
            layer = tfdear.layers.ShardedEmbedding(
                ROWS,
                width,
                partition=partition,
                exchange=exchange,
                updates=updates[0] if updates else "exact",
                **given,
            )
        scores.append(Score()(layer(words), factors))
    return keras.Model([words, factors], keras.ops.stack(scores, -1))


def columns_of(width):
    """What the columns of a table are multiplied by."""
    columns = np.arange(width)
    return (np.where(columns % 3 == 1, -1, 1) * (1 + columns % 4) / 4).astype("float32")


def score(_, scores):
    return keras.ops.sum(scores, -1)


# Words of all ranks together, by the number of ranks, that half of the steps have more of.
_SUMMED_ABOVE = {1: 22, 2: 30, 3: 35, 4: 38}


@contextlib.contextmanager
def rows_of_plain_tables(tables):
    """Within it, small tables are updated by rows, too, if that is wanted."""
    with contextlib.ExitStack() as changes:
        if tables in ("by_rows", "switching"):
            changes.enter_context(mock.patch.object(embeddings, "_LEAST_BYTES", 0))
        if tables == "switching":
            choice = table_choice.TableChoice
            summed_above = mock.patch.object(
                choice, "most_gathered", lambda choice, *_: _SUMMED_ABOVE[choice.ranks]
            )
            changes.enter_context(summed_above)
        yield


def train(context, name, tables):
    with rows_of_plain_tables(tables):
        return _train(context, name, tables)


def _train(context, name, tables):
    words, factors = data()
    with context.scope():
        model = build(context.strategy, TABLES[tables])
        model.compile(OPTIMIZERS[name](), score)
        # Within the first step plain Keras would copy weights into slots in every step.
        model.optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices(((words, factors), words[:, :1])).batch(BATCH)
    history = model.fit(dataset, verbose=0)
    results = {"history": history.history["loss"], **case_table.weights(model)}
    for place, variable in enumerate(model.optimizer.variables):
        results[f"slot/{place}"] = keras.ops.convert_to_numpy(variable)
    seen = {} if context.strategy is None else context.strategy.statistics()["embeddings"]
    results["summed_steps"] = [table["summed_steps"] for table in seen.values()]
    context.wait_for_ranks()
    return results


def update_touched(name, step, count, values, gradients):
    """One update of some rows of a table and its slots, in place; the first has the count 0."""
    table, *slots = values
    if OPTIMIZERS_OF_TOUCHED[name].adam:
        rate = 0.02 * 0.5 * (1 + np.cos(np.pi * min(step, 50) / 50))
        mean, variance = slots
        table -= table * 0.02 * rate
        mean += (gradients - mean) * 0.1
        variance += (gradients**2 - variance) * 0.001
        rate *= np.sqrt(1 - 0.999 ** (count + 1)) / (1 - 0.9 ** (count + 1))
        table -= mean * rate / (np.sqrt(variance) + 1e-7)
    else:
        (velocity,) = slots
        velocity[:] = 0.9 * velocity - 0.05 * gradients
        table += velocity


def clip(given, gradients):
    """Gradients as an optimizer clips them."""
    norms = [np.sqrt(np.sum(gradient**2)) for gradient in gradients]
    if given.get("global_clipnorm"):
        norms = [np.sqrt(np.sum(np.square(norms)))] * len(gradients)
    most = given.get("clipnorm") or given.get("global_clipnorm") or np.inf
    return [
        gradient * min(1, most / norm) if norm else gradient
        for gradient, norm in zip(gradients, norms, strict=True)
    ]


def model_of_touched(name):
    """What training with `updates="touched"` leaves, in NumPy."""
    words, factors = data()
    given = OPTIMIZERS[name]().get_config()
    slots = 2 if OPTIMIZERS_OF_TOUCHED[name].adam else 1
    every = given["gradient_accumulation_steps"] or 1
    tables = []
    for number, (width, *_) in enumerate(TABLES["touched"]):
        initializer = keras.initializers.RandomUniform(-0.05, 0.05, seed=number)
        tables.append([np.array(initializer((ROWS, width)), "float64")])
        tables[-1] += [np.zeros_like(tables[-1][0]) for _ in range(slots)]
    averages, sums = ([np.zeros_like(table[0]) for table in tables] for _ in range(2))
    seen = np.zeros(0, "int64")  # The rows that steps have touched since the last update.
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        ids = words[part].ravel()
        seen = np.union1d(seen, ids)
        for total, (values, *_) in zip(sums, tables, strict=True):
            columns = columns_of(values.shape[1]).astype("float64")
            slopes = factors[part].ravel()[:, None] * columns
            np.add.at(total, ids, (slopes + _CURVATURE * values[ids]) / BATCH)
        if (step + 1) % every == 0:
            means = clip(given, [total / every for total in sums])
            for values, mean, total in zip(tables, means, sums, strict=True):
                touched = [value[seen] for value in values]
                update_touched(name, step, step // every, touched, mean[seen])
                for value, changed in zip(values, touched, strict=True):
                    value[seen] = changed
                total[:] = 0
            seen = seen[:0]
        momentum = given["ema_momentum"] if step // every else 0
        frequency = given["ema_overwrite_frequency"] if given["use_ema"] else None
        for average, (values, *_) in zip(averages, tables, strict=True):
            # Of all rows.
            average[:] = momentum * average + (1 - momentum) * values
            if frequency and (step // every + 1) % frequency == 0:
                values[:] = average
    results = {}
    slot = OPTIMIZERS_OF_TOUCHED[name].scalars
    for wanted, arrays in ((given["use_ema"], averages), (every > 1, sums)):
        if wanted:
            results.update({f"slot/{slot + place}": array for place, array in enumerate(arrays)})
            slot += len(arrays)
    for number, (table, *others) in enumerate(tables):
        results[f"weight/{number}"] = averages[number] if given["use_ema"] else table
        for place, value in enumerate(others):
            results[f"slot/{slot + number * slots + place}"] = value
    return results


@dataclasses.dataclass(frozen=True)
class Touched:
    """An optimizer that the model knows: momentum, or Adam."""

    scalars: int  # That it has before its slots.
    adam: bool = False


OPTIMIZERS_OF_TOUCHED = {
    "momentum": Touched(2),
    "adamw": Touched(1, adam=True),
    "average_overwrite": Touched(2),
    "accumulated_norm": Touched(2),
    "accumulated_average": Touched(1, adam=True),
}


def touched(context, name):
    if context.strategy is not None:
        return train(context, name, "touched")
    return model_of_touched(name)


CASES = {
    f"{name}:{tables}": functools.partial(train, name=name, tables=tables)
    for tables in TABLES
    for name in OPTIMIZERS
}

CASES.update(
    {f"{name}:touched": functools.partial(touched, name=name) for name in OPTIMIZERS_OF_TOUCHED}
)

if __name__ == "__main__":
    case_table.main(CASES)
