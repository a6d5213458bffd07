# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Random lookups in sharded tables, and their gradients, beside NumPy in float64.

Prints one line of JSON for every case: what it was, and how far values and gradients are apart.

sharded_lookups_job.py FIRST COUNT
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

FIRST, COUNT = map(int, sys.argv[1:])
IDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
strategy = tfdear.DearStrategy(timeout=30.0)


class Table:
    """A layer, the value of its table, and ids of this rank for it."""

    def __init__(self, shared, own):
        rows = int(shared.choice([1, 2, 3, 17, 100, 1000]))
        self.width = int(shared.choice([1, 2, 3, 5, 16, 33]))
        self.value = shared.normal(size=(rows, self.width)).astype("float32")
        self.combiner = [None, "sum", "mean", "sqrtn"][shared.integers(4)]
        kinds = ["dense", "ragged"] + ["sparse"] * (self.combiner is not None)
        self.kind = kinds[shared.integers(len(kinds))]
        self.has_weights = self.combiner is not None and bool(shared.integers(2))
        self.mask_zero = bool(shared.integers(2))
        self.partition = ["row", "column", "auto"][shared.integers(3)]
        self.exchange = ["all_to_all", "all_gather", "auto"][shared.integers(3)]
        dtypes = [name for name in IDS if np.iinfo(name).max >= rows - 1]
        self.dtype = dtypes[shared.integers(len(dtypes))]
        dimensions = int(shared.integers(1, 4))
        # The ids of a bag, one bag after another, and the bags' lengths.
        bags = int(own.choice([0, 1, 2, 5, 7]))
        length = int(own.integers(0, 5))
        self.shape = (bags, length) if dimensions < 3 else (bags, 2, length)
        if self.kind != "dense":
            self.shape = None
            self.lengths = own.integers(0, 4, bags)
        else:
            self.lengths = np.full(int(np.prod(self.shape[:-1])), length)
        count = int(self.lengths.sum())
        self.ids = (own.zipf(1.2, count) - 1) % rows
        self.weights = own.choice([0.0, 0.5, 1.0, 2.0], count).astype("float32")
        name = f"table_{shared.integers(1 << 30)}"
        with strategy.scope():
            self.layer = tfdear.layers.ShardedEmbedding(
                rows,
                self.width,
                embeddings_initializer=lambda shape, dtype=None: tf.constant(self.value),
                combiner=self.combiner,
                partition=self.partition,
                exchange=self.exchange,
                mask_zero=self.mask_zero,
                name=name,
            )
            self.layer.build(None)

    def __str__(self):
        return (
            f"{self.value.shape} {self.kind} {self.dtype} {self.combiner} {self.partition} "
            f"{self.exchange} weights={self.has_weights} mask={self.mask_zero} {self.lengths}"
        )

    def inputs(self):
        given = [self.ids.astype(self.dtype)] + [self.weights] * self.has_weights
        if self.kind == "ragged":
            return [tf.RaggedTensor.from_row_lengths(values, self.lengths) for values in given]
        if self.kind == "sparse":
            rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
            places = [np.arange(length) for length in self.lengths]
            places = np.concatenate([*places, np.zeros(0, int)])
            shape = (len(self.lengths), max([*self.lengths, 1]))
            indices = np.stack([rows, places], 1).astype("int64")
            return [tf.SparseTensor(indices, values, shape) for values in given]
        return [tf.constant(values.reshape(self.shape)) for values in given]

    def flat(self, output):
        output = output.flat_values if isinstance(output, tf.RaggedTensor) else output
        return tf.reshape(output, [-1, self.width])

    def factors(self):
        """What each id's vector is multiplied by, and the bag that it is in."""
        bags = np.repeat(np.arange(len(self.lengths)), self.lengths)
        factors = np.ones(len(self.ids))
        if self.combiner is None:
            return factors, np.arange(len(self.ids)), len(self.ids)
        if self.has_weights:
            factors = self.weights.astype("float64")
        if self.mask_zero:
            factors = factors * (self.ids != 0)
        if self.combiner != "sum":
            sums = np.zeros(len(self.lengths))
            np.add.at(sums, bags, factors if self.combiner == "mean" else factors**2)
            sums = np.sqrt(sums) if self.combiner == "sqrtn" else sums
            factors = np.divide(factors, sums[bags], where=sums[bags] != 0, out=0 * factors)
        return factors, bags, len(self.lengths)

    def expected(self, value):
        factors, bags, count = self.factors()
        result = np.zeros((count, self.width))
        np.add.at(result, bags, value.astype("float64")[self.ids] * factors[:, None])
        return result

    def expected_gradient(self, upstream):
        factors, bags, _ = self.factors()
        result = np.zeros(self.value.shape)
        np.add.at(result, self.ids, upstream.astype("float64")[bags] * factors[:, None])
        return result


def difference(value, expected, terms):
    """Relative to the largest sum of the terms' magnitudes."""
    value = np.asarray(value)
    if value.shape != expected.shape:
        return f"shape {value.shape} and not {expected.shape}"
    return float(np.max(np.abs(value - expected), initial=0) / max(terms.max(initial=0), 1))


def run(case):
    shared = np.random.default_rng([case, 1 << 20])
    own = np.random.default_rng([case, strategy.rank])
    tables = [Table(shared, own) for _ in range(shared.integers(1, 4))]
    upstream = [
        own.normal(size=table.expected(table.value).shape).astype("float32") for table in tables
    ]
    with tf.GradientTape() as tape:
        outputs = [table.layer(*table.inputs()) for table in tables]
        flat = [table.flat(output) for table, output in zip(tables, outputs, strict=True)]
        total = sum(tf.reduce_sum(a * b) for a, b in zip(flat, upstream, strict=True))
    variables = [table.layer.embeddings.value for table in tables]
    gradients = tape.gradient(total, variables)
    for table, output, output_flat, gradient, weight in zip(
        tables, outputs, flat, gradients, upstream, strict=True
    ):
        shape_is_right = True
        if table.kind == "dense":
            kept = table.shape[:-1] if table.combiner else table.shape
            shape_is_right = tuple(output.shape) == (*kept, table.width)
        if table.mask_zero and table.combiner is None and table.kind == "dense":
            mask = np.asarray(table.layer.compute_mask(table.inputs()[0]))
            shape_is_right &= np.array_equal(mask, table.ids.reshape(table.shape) != 0)
        report = {
            "case": case,
            "what": str(table),
            "shape": bool(shape_is_right),
            "value": difference(
                output_flat, table.expected(table.value), table.expected(np.abs(table.value))
            ),
            "gradient": difference(
                tf.convert_to_tensor(gradient),
                table.expected_gradient(weight),
                table.expected_gradient(np.abs(weight)),
            ),
        }
        print(json.dumps(report), flush=True)


for number in range(FIRST, FIRST + COUNT):
    run(number)
    keras.backend.clear_session()
strategy.barrier()
