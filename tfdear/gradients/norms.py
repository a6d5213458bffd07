# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Norms of a layer for LARS and LAMB: in parallel over the ranks where the engine sums gradients.

Where an update is deferred, the engine takes the norms, every rank those of its shard ([Note:
Parallel norms] in `custom_ops/engine/norms/layer_norms.h`). Elsewhere one op takes them, in one
pass.
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdear.engine import library
from tfdear.gradients import deferred_update, reducer


@dataclasses.dataclass(frozen=True)
class Request:
    """Norms that a deferred update wants with its gradient."""

    kind: str  # "lars" or "lamb".
    variables: tuple[tf.Variable, ...]  # The weights; for LAMB, mean and square of gradients, too.
    step: tuple[tf.Tensor, ...]  # For LAMB, the six numbers of Adam's step.
    result: tf.Tensor  # Stands for the norms in the calling graph; the update captures it.


def take(
    kind: str,
    gradient: tf.Tensor,
    weight: tf.Variable,
    moments: Sequence[tf.Variable] = (),
    make_step: Callable[[], tf.Tensor] | None = None,
) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Takes the norms of one layer. Call it before the moments are updated.

    Args:
        kind: "lars" (weights and gradient) or "lamb" (weights and Adam's step).
        gradient: The gradient as the optimizer was given it.
        weight: The variable.
        moments: For LAMB, the mean and the square of the gradients.
        make_step: For LAMB, returns the six numbers of `AdamStep`, `sum_of_squares.h`, as float32.

    Returns:
        The two norms, scalars of float32; None where there is no op for them. Of a sharded table
        they are sums that the optimizer takes itself ([Note: Updates that need sums]).
    """
    if (
        any(value.dtype != tf.float32 for value in (gradient, weight, *moments))
        or "GPU" in (weight.device or "").upper()
        or reducer.is_for_xla()
    ):
        return None
    trace = deferred_update.current_trace()
    if trace is not None and trace.is_of_table:
        return None
    if trace is not None and trace.gradient is gradient and trace.request is None:
        step = () if make_step is None else (trace.read_by_value(make_step),)
        result = trace.read_by_value(lambda: tf.zeros([2]))
        trace.request = Request(kind, (weight, *moments), step, result)
        norms = tf.identity(result)
    else:
        norms = library.load().dear_layer_norms(
            gradient,
            tf.convert_to_tensor(weight),
            [tf.convert_to_tensor(moment) for moment in moments],
            [] if make_step is None else [make_step()],
            kind=kind,
        )
    return norms[0], norms[1]
