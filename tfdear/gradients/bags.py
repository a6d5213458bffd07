# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sums of vectors, bag by bag, made by the ranks that hold them or by the rank that uses them.

Whoever adds up does so with the same op, in the order of a bag's tokens and in the type in which
vectors travel: no bit depends on where that is. [Note: pooled vectors],
`custom_ops/engine/schedule/table_lookup.h`.
"""

import dataclasses

import tensorflow as tf

from tfdear.engine import library
from tfdear.gradients import differentiated_loop, order

tf.no_gradient("DearGatheredBags")


@tf.RegisterGradient("DearPooledOutput")
def _gradient_of_output(op: tf.Operation, upstream: tf.Tensor) -> list[tf.IndexedSlices | None]:
    differentiated_loop.check_not_within()
    shape = tf.TensorShape(op.get_attr("shape"))
    _, _, bags, ids, _ = op.inputs
    # What is in no bag takes the row of zeros in front.
    of_bags = tf.pad(tf.cast(tf.convert_to_tensor(upstream), tf.float32), [[1, 0], [0, 0]])
    rows = tf.gather(of_bags, tf.maximum(bags, -1) + 1)
    slices = tf.IndexedSlices(rows, tf.cast(ids, tf.int64), tf.constant(shape.as_list()))
    return [slices, None, None, None, None]


@dataclasses.dataclass(frozen=True, eq=False)
class Bags:
    """Which of a rank's vectors are added up, of integers of 32 bits."""

    bag_of: tf.Tensor  # Of each token; in none if that is negative.
    count: tf.Tensor  # How many bags there are.


@dataclasses.dataclass(frozen=True, eq=False)
class Pooling:
    """A lookup whose vectors the holders of the table's columns may pool."""

    bags: Bags
    positions: tf.Tensor  # Of the id of each token among the rank's different ones.

    def cut(self, present: tf.Tensor) -> "Pooling":
        """No bags, and no tokens, where a rank has no examples."""
        tokens = tf.where(present, tf.size(self.bags.bag_of), 0)
        bags = Bags(self.bags.bag_of[:tokens], tf.where(present, self.bags.count, 0))
        return Pooling(bags, self.positions[:tokens])

    def contribute(self, ticket: tf.Tensor, index: int) -> None:
        """Gives the ticket of a lookup this rank's bags."""
        order.run_when_ready(
            library.load().dear_contribute_bags(
                ticket, self.positions, self.bags.bag_of, self.bags.count, index=index
            )
        )

    def held_of_bags(
        self, held: tf.Tensor, ticket: tf.Tensor, index: int, ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What a rank sends of the vectors it holds, those of all ranks' ids; and if it is sums."""
        positions, bag_of, count, pooled = library.load().dear_gathered_bags(
            ticket, ids, index=index
        )
        sent = tf.cond(pooled, lambda: add_up(held, positions, bag_of, count), lambda: held)
        return sent, pooled

    def sums(self, vectors: tf.Tensor, pooled: tf.Tensor) -> tf.Tensor:
        """The sums of this rank's bags, from what came."""
        return tf.cond(
            pooled,
            lambda: vectors,
            lambda: add_up(vectors, self.positions, self.bags.bag_of, self.bags.count),
        )


def add_up(
    vectors: tf.Tensor, positions: tf.Tensor, bag_of: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
    """The sums of vectors at `positions`, of each bag in the order of its tokens."""
    return tf.math.unsorted_segment_sum(tf.gather(vectors, positions), bag_of, count)
