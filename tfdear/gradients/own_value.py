# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank's own value of a variable that is the sum over the ranks, such as a metric's.

[Note: Own values]
Inside `strategy.run` a rank reads and writes its own value, as a replica of TensorFlow's strategies
does: `m.assign(0.9 * m + 0.1 * x)` concerns this rank's part, and what `m` is afterwards is the sum
of all parts. The variable itself holds that sum, on all ranks, from the end of the step or from
the first result of a metric that asks for it. A value assigned outside of a step is the sum, of
which every rank gets a part.
"""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import step_data

_state = threading.local()


@contextlib.contextmanager
def reading_sums() -> Iterator[None]:
    """Within it, reads inside a step yield the sum over the ranks, not this rank's own value."""
    previous = is_reading_sums()
    _state.sums = True
    try:
        yield
    finally:
        _state.sums = previous


def is_reading_sums() -> bool:
    """Whether the caller is within `reading_sums`."""
    return getattr(_state, "sums", False)


class OwnValue:
    """This rank's part of one variable, at first of the value `total`."""

    def __init__(self, total: tf.Tensor, rank: int, world_size: int):
        self._rank = rank
        self._world_size = world_size
        # A plain variable: no update is ever in flight on it.
        self._variable = _tf_private.resource_variable_ops.ResourceVariable(
            self._part(total), trainable=False, name="own_value"
        )

    @property
    def handle(self) -> tf.Tensor:
        """The handle of the variable that holds it."""
        return self._variable.handle

    def read(self) -> tf.Tensor:
        return self._variable.read_value()

    def write(self, value: tf.Tensor) -> None:
        with step_data.required():
            self._variable.assign(value, read_value=False)

    def add(self, value: tf.Tensor) -> None:
        with step_data.required():
            self._variable.assign_add(value, read_value=False)

    def take_part_of(self, total: tf.Tensor) -> None:
        """Call it on all ranks when a new sum was written."""
        self.write(self._part(total))

    def _part(self, total: tf.Tensor) -> tf.Tensor:
        if total.dtype.is_integer:
            # The parts of whole numbers are whole, and add up to the sum.
            size = tf.constant(self._world_size, total.dtype)
            rest = tf.math.floormod(total, size)
            more = tf.cast(tf.constant(self._rank, total.dtype) < rest, total.dtype)
            return tf.math.floordiv(total, size) + more
        if total.dtype.is_floating or total.dtype.is_complex:
            return total / tf.cast(self._world_size, total.dtype)
        return total
