# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Refuses what has no gradient through a loop of TensorFlow."""

from tfdear._private import tensorflow as _tf_private
from tfdear.data import step_data


def check_not_within() -> None:
    """Raises if the gradient of a lookup is being made inside of the gradient of a loop.

    There it begins as zeros, which have no rows: see [Note: Tables that a branch does not use],
    `sharded_variable.py`.
    """
    graph = step_data.current_graph()
    while graph is not None:
        if isinstance(graph, _tf_private.WHILE_GRADIENT.get()):
            raise ValueError(
                "A ShardedEmbedding was called inside of a `tf.while_loop` through which a "
                "gradient goes, which is not supported. Call it before the loop, on the ids of all "
                "of its turns, and take the vectors of one turn in the loop."
            )
        graph = getattr(graph, "outer_graph", None)
