# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Collectives that a script calls: gradients flow through them, and made-up rows do not.

Inside a step, a rank without examples computes on a made-up row (`empty_batch`). It takes part in
every collective, and contributes nothing: no rows to what is gathered, zeros to what is summed, in
the backward pass too.
"""

import tensorflow as tf

from tfdear.data import examples as examples_module
from tfdear.gradients import collectives as collectives_module
from tfdear.gradients import reducer as reducer_module
from tfdear.losses import loss_contract


class StepCollectives:
    """The collectives of one strategy as its users see them, inside and outside of steps.

    Args:
        reducer: Sums tensors over the ranks.
        collectives: Moves them.
        places: This rank's number in each process group, by the group's name.
    """

    def __init__(
        self,
        reducer: reducer_module.Reducer,
        collectives: collectives_module.Collectives,
        places: dict[str, int],
    ):
        self._reducer = reducer
        self._collectives = collectives
        self._places = places

    def all_reduce(self, values: list, group: str = "world") -> list:
        """The sums of tensors or `tf.IndexedSlices` over a group's ranks."""
        examples = _Contribution()
        if any(isinstance(value, tf.IndexedSlices) for value in values):
            return self._sum(values, group, examples)

        @tf.custom_gradient
        def reduce(*values):
            def gradient(*upstream):
                return self._sum_of_gradients(upstream, group, examples)

            return self._sum(values, group, examples), gradient

        values = [reducer_module.check_type(value) for value in values]
        return list(_across_ranks(lambda values: reduce(*values), values))

    def all_gather(self, value: tf.Tensor, group: str = "world") -> tf.Tensor:
        """The rows of all ranks of a group, in the order of the ranks."""
        examples = _Contribution()

        @tf.custom_gradient
        def gather(rows):
            def gradient(upstream):
                (total,) = self._sum_of_gradients([upstream], group, examples)
                mine = tf.shape(rows, tf.int64)[0]
                numbers = self._collectives.all_gather(mine[tf.newaxis], group)
                begin = tf.reduce_sum(numbers[: self._places[group]])
                return total[begin : begin + mine]

            return self._collectives.all_gather(rows, group), gradient

        return _across_ranks(gather, examples.rows(tf.convert_to_tensor(value)))

    def reduce_scatter(self, value: tf.Tensor, group: str = "world") -> tf.Tensor:
        """This rank's rows of the sum over a group's ranks."""
        examples = _Contribution()

        @tf.custom_gradient
        def scatter(value):
            def gradient(upstream):
                return self._collectives.all_gather(examples.gate(upstream), group)

            return self._collectives.reduce_scatter(value, group), gradient

        return _across_ranks(scatter, examples.gate(reducer_module.check_type(value)))

    def all_to_all(self, value: tf.Tensor, splits, group: str = "world"):
        """The rows that a group's ranks have for this one, and how many came from each."""
        examples = _Contribution()
        splits = examples.gate(tf.cast(splits, tf.int64))

        @tf.custom_gradient
        def exchange(rows):
            received, counts = self._collectives.all_to_all(rows, splits, group)

            def gradient(upstream, _):
                return self._collectives.all_to_all(examples.gate(upstream), counts, group)[0]

            return (received, counts), gradient

        return _across_ranks(exchange, examples.rows(tf.convert_to_tensor(value)))

    def _sum(self, values, group, examples):
        return self._reducer.all_reduce(
            values,
            name=f"all_reduce in {group}",
            lane=collectives_module.lane(group),
            active=examples.present,
        )

    def _sum_of_gradients(self, upstream, group, examples):
        return [examples.gate(total) for total in self._sum(upstream, group, examples)]


def _across_ranks(collective, values):
    losses = loss_contract.current_losses()
    return collective(values) if losses is None else losses.across_ranks(collective, values)


class _Contribution:
    """What this rank has to contribute where a collective is called: its values, or nothing."""

    def __init__(self):
        self._examples = examples_module.current()

    @property
    def present(self):
        return None if self._examples is None else self._examples.present

    def gate(self, value):
        return value if self._examples is None else self._examples.gate(value)

    def rows(self, value):
        if self.present is None or not value.shape.rank:
            return value
        return value[: tf.where(self.present, tf.shape(value)[0], 0)]
