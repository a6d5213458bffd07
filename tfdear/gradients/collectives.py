# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Single collectives as functions of tensors, in program order with everything else."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tfdear.base import names
from tfdear.data import step_data
from tfdear.engine import library
from tfdear.gradients import order
from tfdear.gradients import reducer as reducer_module

# The lanes of the collectives that scripts call, by the name of the process group. Not that of a
# step's counts and metrics, which would wait behind what a script exchanges.
LANES_OF_GROUPS = {
    "world": names.Lane.EXCHANGES,
    "intra_node": names.Lane.INTRA_NODE,
    "inter_node": names.Lane.INTER_NODE,
}
# Of collectives that no script called.
_OWN = names.Lane.CONTROL


_TensorLike: TypeAlias = tf.types.experimental.TensorLike


def lane_of(group: str) -> names.Lane:
    """The lane of a script's collectives in a process group, by the group's name."""
    if group not in LANES_OF_GROUPS:
        groups = tuple(LANES_OF_GROUPS)
        raise ValueError(f"`group` must be one of {groups}. Received: group={group!r}")
    return LANES_OF_GROUPS[group]


class Collectives:
    """All-gather, reduce-scatter, all-to-all, broadcast and barrier, in the reducer's order.

    They are in order with others in their `lane`, and wait for none in another. Small ones of
    tfdear's own go into the control lane.
    """

    def __init__(self, reducer: reducer_module.Reducer):
        self._reducer = reducer

    def open(self, lane: names.Lane) -> tf.Tensor:
        """Takes the next place in a lane for a collective, in program order."""
        reducer_module.check_not_xla()
        with tf.device(self._reducer.device), step_data.read(), order.in_program_order():
            return library.load().dear_open_collective(self._reducer.order, lane=int(lane))

    def _call(
        self,
        function: Callable[..., Any],
        lane: names.Lane,
        *inputs: tf.Tensor,
        **attributes: object,
    ) -> Any:
        ticket = self.open(lane)
        with tf.device(self._reducer.device):
            return function(ticket, *inputs, **attributes)

    def all_gather(self, value: _TensorLike, lane: names.Lane = _OWN) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        if value.dtype == tf.string:
            raise TypeError(
                "Strings cannot be gathered over ranks: they have no fixed size. Gather their "
                f"numbers, or use `tf.io.decode_raw` on padded strings. Received: {value}"
            )
        return self._call(library.load().dear_all_gather, lane, value)

    def reduce_scatter(self, value: _TensorLike, lane: names.Lane = _OWN) -> tf.Tensor:
        value = reducer_module.check_type(tf.convert_to_tensor(value))
        return self._call(library.load().dear_reduce_scatter, lane, value)

    def all_to_all(
        self, value: _TensorLike, splits: _TensorLike, lane: names.Lane = _OWN
    ) -> tuple[tf.Tensor, tf.Tensor]:
        splits = tf.convert_to_tensor(splits, tf.int64)
        return self._call(library.load().dear_all_to_all, lane, tf.convert_to_tensor(value), splits)

    def broadcast(
        self, value: _TensorLike, root: int = 0, lane: names.Lane = _OWN, name: str = ""
    ) -> tf.Tensor:
        """`name`: what the value is, for error messages; the same on all ranks."""
        value = tf.convert_to_tensor(value)
        return self._call(library.load().dear_broadcast, lane, value, root=root, label=name)

    def barrier(self, lane: names.Lane = _OWN) -> tf.Operation | None:
        return self._call(library.load().dear_barrier, lane)
