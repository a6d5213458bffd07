# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Operations of a model, of which a trace with estimated times is made. No TensorFlow."""

import dataclasses
from collections.abc import Sequence

from tfdear.planning.table import Table
from tfdear.planning.trace import Layer, Trace

BYTES_PER_VALUE = 4


@dataclasses.dataclass
class Operation:
    """One operation: its trainable tensors, and what it does for one example."""

    name: str
    tensors: list[tuple[str, int]]  # Name and number of values, in the order of the layer.
    multiply_adds: float
    values_moved: float  # Read and written.


def to_trace(
    name: str,
    operations: list[Operation],
    batch_size: int,
    flops: float,
    bandwidth: float,
    tables: Sequence[Table] = (),
) -> Trace:
    """Assigns the time of every operation to the last tensor of the layer that it belongs to.

    So the forward pass waits for all tensors of a layer before the layer starts, and all its
    gradients are ready when its backward pass ends. An operation without tensors (a pooling)
    belongs to the layer before it.
    """
    layers: list[Layer] = []
    early = 0.0  # Of operations before the first tensor.
    for operation in operations:
        seconds = batch_size * max(
            2 * operation.multiply_adds / flops,
            BYTES_PER_VALUE * operation.values_moved / bandwidth,
        )
        for tensor, values in operation.tensors:
            layers.append(Layer(tensor, BYTES_PER_VALUE * values, 0.0, 0.0))
        if not layers:
            early += seconds
            continue
        last = layers[-1]
        forward = last.forward + seconds + early
        early = 0.0
        layers[-1] = dataclasses.replace(last, forward=forward, backward=2 * forward)
    return Trace(name, tuple(layers), tuple(tables))
