# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Checks that ids which all ranks are to look up alike are the same on all of them."""

from collections.abc import Callable

import tensorflow as tf


def check(all_ids: tf.Tensor, counts: tf.Tensor, common: int, label: str) -> tf.Tensor:
    """The ids of all ranks, after a check; where ranks differ, it fails on all of them.

    Args:
        all_ids: The different ids of every rank, one rank after the other, each in its own order.
        counts: How many are of each rank; a rank with none is not compared.
        common: How many at the beginning of a rank's ids must be those of the other ranks.
        label: The layer and its table.
    """
    begins = tf.cumsum(counts, exclusive=True)
    present = tf.where(counts > 0)[:, 0]
    places = tf.gather(begins, present)[:, tf.newaxis] + tf.range(common, dtype=begins.dtype)
    # Those of a rank that has fewer end in those of the next one, which begin alike.
    drawn = tf.gather(all_ids, tf.minimum(places, tf.size(all_ids, begins.dtype) - 1))
    differs = tf.reduce_any(drawn != drawn[:1], 1) | (tf.gather(counts, present) < common)
    agreed = tf.debugging.Assert(
        tf.logical_not(tf.reduce_any(differs)),
        [
            f"{label}: ranks drew different candidates for the sampled softmax, which must be the "
            "same on all ranks. Call the loss equally often on all ranks, and create it on all of "
            "them with the same `samples`, in the strategy's scope. Ranks that differ from rank",
            present[0],
            tf.boolean_mask(present, differs),
            "candidates of those that have examples, rank by rank:",
            drawn,
        ],
        summarize=8,
    )
    with tf.control_dependencies([] if agreed is None else [agreed]):
        return tf.identity(all_ids)


def check_own(
    ids: tf.Tensor, all_gather: Callable[[tf.Tensor], tf.Tensor], common: int, label: str
) -> tf.Tensor:
    """This rank's ids, after a check with those of the others, which are gathered for it."""
    own = ids[:common]
    gathered = all_gather(own), all_gather(tf.size(own, tf.int64)[tf.newaxis])
    with tf.control_dependencies([check(*gathered, common, label)]):
        return tf.identity(ids)
