# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Collectives that a script calls: gradients flow through them, and made-up rows do not.

Inside a step, a rank without examples computes on a made-up row (`empty_batch`). It takes part in
every collective, and contributes nothing: no rows to what is gathered, zeros to what is summed, in
the backward pass too.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdear.data import empty_batch
from tfdear.data import examples as examples_module
from tfdear.gradients import collectives as collectives_module
from tfdear.gradients import reducer as reducer_module
from tfdear.gradients.sparse_rows import Gradient
from tfdear.losses import loss_contract

_TensorLike: TypeAlias = tf.types.experimental.TensorLike


class StepCollectives:
    """The collectives of one strategy as its users see them, inside and outside of steps.

    `group_ranks` has this rank's number in each process group, by the group's name.
    """

    def __init__(
        self,
        reducer: reducer_module.Reducer,
        collectives: collectives_module.Collectives,
        group_ranks: dict[str, int],
    ):
        self._reducer = reducer
        self._collectives = collectives
        self._group_ranks = group_ranks

    def all_reduce(
        self, values: Sequence[_TensorLike | tf.IndexedSlices], group: str = "world"
    ) -> list[Gradient]:
        """The sums of tensors or `tf.IndexedSlices` over a group's ranks."""
        examples = _Contribution()
        if any(isinstance(value, tf.IndexedSlices) for value in values):
            return self._sum(values, group, examples)

        @tf.custom_gradient
        def reduce(*values: tf.Tensor) -> tuple[list[Gradient], Callable[..., Any]]:
            @examples_module.for_backward_pass
            def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
                return self._sum_of_gradients(upstream, group, examples)

            return self._sum(values, group, examples), gradient

        tensors = [reducer_module.check_type(value) for value in values]
        return list(_across_ranks(lambda tensors: reduce(*tensors), tensors))

    def all_gather(self, value: _TensorLike, group: str = "world") -> tf.Tensor:
        """The rows of all ranks of a group, in the order of the ranks."""
        examples = _Contribution()
        lane = collectives_module.lane_of(group)

        @tf.custom_gradient
        def gather(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            @examples_module.for_backward_pass
            def gradient(upstream: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
                (total,) = self._sum_of_gradients([_dense(upstream)], group, examples)
                count = tf.shape(rows, tf.int64)[0]
                counts = self._collectives.all_gather(count[tf.newaxis], lane)
                start = tf.reduce_sum(counts[: self._group_ranks[group]])
                return total[start : start + count]

            return self._collectives.all_gather(rows, lane), gradient

        gathered = _across_ranks(gather, examples.rows(tf.convert_to_tensor(value)))
        return empty_batch.note_of_all_ranks(gathered)

    def gather(
        self, value: _TensorLike | tf.RaggedTensor, axis: int
    ) -> tf.Tensor | tf.RaggedTensor:
        """The values of the ranks that have examples, concatenated along an axis."""
        if isinstance(value, tf.RaggedTensor):
            lengths = self.all_gather(value.row_lengths())
            return tf.RaggedTensor.from_row_lengths(self.gather(value.values, 0), lengths)
        value = tf.convert_to_tensor(value)
        if value.shape.rank == 0:
            return self.all_gather(value[tf.newaxis])
        if value.shape.rank is not None and not -value.shape.rank <= axis < value.shape.rank:
            raise ValueError(
                "`axis` must be a dimension of the tensor. Received: "
                f"axis={axis}, shape={value.shape}"
            )
        if axis == 0:
            return self.all_gather(value)
        swapaxes = tf.experimental.numpy.swapaxes
        gathered = swapaxes(self.all_gather(swapaxes(value, 0, axis)), 0, axis)
        return empty_batch.note_of_all_ranks(gathered)

    def reduce_scatter(self, value: _TensorLike, group: str = "world") -> tf.Tensor:
        """This rank's rows of the sum over a group's ranks."""
        examples = _Contribution()
        lane = collectives_module.lane_of(group)

        @tf.custom_gradient
        def scatter(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            @examples_module.for_backward_pass
            def gradient(upstream: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
                return self._collectives.all_gather(examples.gate(_dense(upstream)), lane)

            return self._collectives.reduce_scatter(value, lane), gradient

        return _across_ranks(scatter, examples.gate(reducer_module.check_type(value)))

    def all_to_all(
        self, value: _TensorLike, splits: _TensorLike, group: str = "world"
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows that a group's ranks have for this one, and how many came from each."""
        examples = _Contribution()
        lane = collectives_module.lane_of(group)
        splits = examples.gate(tf.cast(splits, tf.int64))

        @tf.custom_gradient
        def exchange(rows: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., Any]]:
            received, counts = self._collectives.all_to_all(rows, splits, lane)

            @examples_module.for_backward_pass
            def gradient(upstream: tf.Tensor | tf.IndexedSlices, _: tf.Tensor) -> tf.Tensor:
                upstream = examples.gate(_dense(upstream))
                return self._collectives.all_to_all(upstream, counts, lane)[0]

            return (received, counts), gradient

        return _across_ranks(exchange, examples.rows(tf.convert_to_tensor(value)))

    def broadcast(self, value: _TensorLike, root: int = 0, group: str = "world") -> tf.Tensor:
        """The value of one rank of a group, from it whether or not it has examples."""
        examples = _Contribution()
        lane = collectives_module.lane_of(group)

        @tf.custom_gradient
        def send(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            @examples_module.for_backward_pass
            def gradient(upstream: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
                (total,) = self._sum_of_gradients([_dense(upstream)], group, examples)
                return total if self._group_ranks[group] == root else tf.zeros_like(total)

            return self._collectives.broadcast(value, root, lane), gradient

        return empty_batch.note_of_all_ranks(_across_ranks(send, tf.convert_to_tensor(value)))

    def _sum(
        self,
        values: Sequence[_TensorLike | tf.IndexedSlices],
        group: str,
        examples: "_Contribution",
    ) -> list[Gradient]:
        return self._reducer.all_reduce(
            values,
            name=f"all_reduce in {group}",
            lane=collectives_module.lane_of(group),
            active=examples.present,
        )

    def _sum_of_gradients(
        self, upstream: Sequence[tf.Tensor], group: str, examples: "_Contribution"
    ) -> list[tf.Tensor]:
        return [examples.gate(total) for total in self._sum(upstream, group, examples)]


def _across_ranks(collective: Callable[[Any], Any], values: Any) -> Any:
    losses = loss_contract.current_losses()
    return collective(values) if losses is None else losses.across_ranks(collective, values)


def _dense(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    # That of a result of which a step gathers rows is sparse.
    return tf.convert_to_tensor(gradient)


class _Contribution:
    """What this rank contributes to a collective: its values or, without examples, nothing."""

    def __init__(self) -> None:
        self._examples = examples_module.current()

    @property
    def present(self) -> tf.Tensor | None:
        return None if self._examples is None else self._examples.present

    def gate(self, value: tf.Tensor) -> tf.Tensor:
        return value if self._examples is None else self._examples.gate(value)

    def rows(self, value: tf.Tensor) -> tf.Tensor:
        if self.present is None or not value.shape.rank:
            return value
        return value[: tf.where(self.present, tf.shape(value)[0], 0)]
