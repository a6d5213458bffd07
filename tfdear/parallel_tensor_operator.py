# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The parallel tensor operator: ranks that hold the same tensors share the work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdear.base import names

__all__ = ["consecutive_parts", "parallel_tensor_operator", "seconds_saved"]

if TYPE_CHECKING:
    from tfdear.planning.cost_model import LinearCost


def parallel_tensor_operator(
    fn: Callable[[Any], tf.Tensor],
    tensors: tf.Tensor | Sequence[tf.Tensor],
    *,
    strategy: tf.distribute.Strategy | None = None,
) -> tf.Tensor:
    """Applies `fn` to tensors that all ranks hold, every rank to its part of them.

    Use it where all ranks would compute the same from the same tensors, as after a reduction. Each
    of P ranks applies `fn` to one P-th, and the results are gathered:
    `all_gather(fn(part of rank p))`. `fn` must treat rows (or tensors of the list) independently,
    so that the concatenated results of the parts are the result of the whole. All ranks must call
    it, in the same order as their other collectives.

    It pays where the computation saved is more than the gathering costs: with an operator that
    takes `t` seconds on one rank, `t * (1 - 1 / P) > a + b * bytes` for results of that many bytes;
    `seconds_saved` computes the difference. Norms of layers are such a case (megabytes become a few
    bytes), a cast of them all is not.

    Args:
        fn: A function of a tensor or of a list of tensors, as `tensors` is. It returns one tensor
            with a first dimension: of a tensor, the results for its rows; of a list, the results
            for its tensors.
        tensors: A tensor, which is divided by rows (rank r of P gets rows `r * n // P` to
            `(r + 1) * n // P`), or a list, of which each rank gets consecutive tensors with about
            the same number of bytes; the shapes in a list must be known. The same on all ranks.
        strategy: The strategy whose ranks share the work. Defaults to None: the current one. With
            anything but a distributed `DearStrategy`, `fn(tensors)` is returned.

    Returns:
        The tensor `fn(tensors)`, the same bits on all ranks.

    Raises:
        ValueError: `tensors` is an empty list, has no rows, or has shapes that are not known; or
            `fn` returns something without a first dimension.

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", section 4.2, equations 12 to 14.

    Example:

    >>> import tensorflow as tf, tfdear
    >>> weights = [tf.ones([3, 3]), tf.ones([4]), tf.ones([16])]
    >>> norms = tfdear.ops.parallel_tensor_operator(
    ...     lambda some: tf.stack([tf.norm(tensor) for tensor in some]), weights
    ... )
    >>> norms.numpy()
    array([3., 2., 4.], dtype=float32)
    """
    listed = isinstance(tensors, (list, tuple))
    tensors = _checked_list(tensors) if listed else _checked_tensor(tensors)
    strategy = strategy or tf.distribute.get_strategy()
    if not getattr(strategy.extended, "is_distributed_dear", False):
        return _checked(fn(tensors))
    part = _part_of_list if listed else _part_of_tensor
    own_part, smallest = part(tensors, strategy.rank, strategy.world_size)
    # A rank without a part applies `fn` to as little as possible, for the shape of the result.
    result = _checked(fn(smallest))[:0] if own_part is None else _checked(fn(own_part))
    # A rank's result counts, whether or not it has examples in this step.
    return strategy.extended.collectives.all_gather(result, names.Lane.EXCHANGES)


def seconds_saved(
    compute_seconds: float, result_bytes: float, world_size: int, all_gather: LinearCost
) -> float:
    """How much sooner a parallel tensor operator is done than the operator on every rank.

    Use it to decide about `parallel_tensor_operator`; it pays where the result is positive.

    Args:
        compute_seconds: Time of the operator on one rank, in seconds.
        result_bytes: Bytes of its whole result.
        world_size: Number of ranks.
        all_gather: Cost of an all-gather. `tfdear.cost_model.LinearCost(
            **strategy.statistics()["costs"]["all_gather"])` is that of the links at hand.

    Returns:
        Seconds; negative where gathering costs more than is saved.

    Example:

    >>> from tfdear import cost_model, parallel_tensor_operator
    >>> costs = cost_model.LinearCost(a=1e-3, b=1e-9)
    >>> round(parallel_tensor_operator.seconds_saved(0.03, 1000, 4, costs), 6)
    0.021499
    """
    if world_size == 1:
        return 0.0
    return compute_seconds * (1 - 1 / world_size) - all_gather.seconds(result_bytes)


def consecutive_parts(sizes: Sequence[int], world_size: int) -> list[tuple[int, int]]:
    """Cuts a list into consecutive parts of about equal size, one per rank.

    Every item goes to the rank in whose share of the total its middle lies.

    Args:
        sizes: Sizes of the items, in any unit.
        world_size: Number of parts.

    Returns:
        The start and the end of each part; some may be empty.
    """
    total = max(sum(sizes), 1)
    owners = []
    offset = 0
    for size in sizes:
        owners.append(min((2 * offset + size) * world_size // (2 * total), world_size - 1))
        offset += size
    starts = [sum(owner < rank for owner in owners) for rank in range(world_size + 1)]
    return list(zip(starts[:-1], starts[1:], strict=True))


def _checked_list(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    if not tensors:
        raise ValueError("`tensors` must have at least one tensor. Received: tensors=[]")
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def _checked_tensor(tensor: tf.Tensor) -> tf.Tensor:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ValueError(f"`tensors` must not be a scalar. Received: tensors={tensor}")
    return tensor


def _part_of_list(
    tensors: list[tf.Tensor], rank: int, world_size: int
) -> tuple[list[tf.Tensor] | None, list[tf.Tensor]]:
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        raise ValueError(
            "`tensors` must have known shapes: a list is divided by the bytes of its tensors. "
            f"Received: shapes {[str(tensor.shape) for tensor in tensors]}"
        )
    sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors]
    start, end = consecutive_parts(sizes, world_size)[rank]
    smallest = min(range(len(tensors)), key=sizes.__getitem__)
    return tensors[start:end] or None, [tensors[smallest]]


def _part_of_tensor(
    tensor: tf.Tensor, rank: int, world_size: int
) -> tuple[tf.Tensor | None, tf.Tensor]:
    rows = tensor.shape[0]
    if rows is None:
        rows = tf.shape(tensor, tf.int64)[0]
    elif rows == 0:
        raise ValueError(f"`tensors` must have rows. Received: tensors={tensor}")
    start, end = rank * rows // world_size, (rank + 1) * rows // world_size
    empty = not tf.is_tensor(rows) and start == end
    return None if empty else tensor[start:end], tensor[:1]


def _checked(result: tf.Tensor) -> tf.Tensor:
    result = tf.convert_to_tensor(result)
    if result.shape.rank == 0:
        raise ValueError(
            "`fn` must return a tensor with a first dimension, along which the ranks' results are "
            f"concatenated, such as one row per row or tensor. Received: {result}"
        )
    return result
