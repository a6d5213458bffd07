# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tensor operators of tfdear, as functions."""

from __future__ import annotations

from typing import TypeAlias

import tensorflow as tf

from tfdear.base.checks import is_whole
from tfdear.engine import library
from tfdear.parallel_tensor_operator import parallel_tensor_operator

__all__ = ["mstopk", "mstopk_with_feedback", "parallel_tensor_operator"]

_TensorLike: TypeAlias = tf.types.experimental.TensorLike


def mstopk(
    x: _TensorLike,
    k: _TensorLike,
    *,
    samplings: int | None = None,
    seed: int = 0,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Selects the k elements of a tensor that are largest by magnitude.

    Use it to compress gradients: exactly `k` elements come back, in about one pass over memory. The
    result depends on `x` alone, not on threads or earlier calls. NaNs come first, then infinities,
    then the others in the order of the bits of |x|, so outliers and denormals are exact too; of
    equal magnitudes the lowest index comes first.

    Args:
        x: Tensor of float32, float16 or bfloat16, of any shape and less than 2**31 elements.
        k: Number of elements to select, from 0 to that of `x`: an int or a scalar integer tensor.
        samplings: None selects exactly. A number runs the published algorithm instead, with that
            many counting passes (the paper has 30), for comparison. Its threshold bisects values
            between mean and maximum, and what that cannot tell apart is selected at random: with
            one outlier, infinity or NaN that is almost everything.
        seed: Int; where the published algorithm takes its random elements. Defaults to 0.
        name: A name for the operation.

    Returns:
        `values` and `indices`, vectors of `k` elements. The values are the selected elements, in
        the type of `x`; the indices (int32) are their positions in `tf.reshape(x, [-1])`, in
        ascending order, all different.

    Raises:
        ValueError: `samplings` is not positive, or `k` is out of range when a graph is made.
        TypeError: `k` is not an integer, or `x` is of another type.
        tf.errors.InvalidArgumentError: `k` is out of range when the operation runs.

    Reference: "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters"
    (Shi et al., MLSys 2021), section 3.1 and Algorithm 1.

    Example:

    >>> values, indices = tfdear.ops.mstopk(tf.constant([0.1, -3.0, 2.0, 0.5]), 2)
    >>> values.numpy(), indices.numpy()
    (array([-3.,  2.], dtype=float32), array([1, 2], dtype=int32))
    """
    if samplings is not None and (not isinstance(samplings, int) or samplings < 1):
        raise ValueError(
            "`samplings` must be None, for the exact selection, or a positive number of counting "
            f"passes. Received: samplings={samplings!r}"
        )
    x, k = _vector_and_k(x, k)
    values, indices = library.load().dear_ms_top_k(
        x, k, samplings=samplings or 0, seed=int(seed), name=name
    )
    return values, indices


def mstopk_with_feedback(
    x: _TensorLike, residual: _TensorLike, k: _TensorLike, *, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Selects the k largest elements of `x + residual`, and keeps the rest as the new residual.

    Use it for error feedback: what is not sent in one step is added to the next. It reads both
    tensors and writes the residual in one pass.

    Args:
        x: Tensor of float32, of any shape and less than 2**31 elements.
        residual: Tensor of float32, of the shape of `x`: what is left of earlier steps.
        k: Number of elements to select, from 0 to that of `x`: an int or a scalar integer tensor.
        name: A name for the operation.

    Returns:
        `values` and `indices`, as of `mstopk`, and `new_residual`, which is `x + residual` with 0
        where an element was selected. NaNs and infinities are selected first, and so do not stay in
        it.

    Raises:
        ValueError: `k` is out of range when a graph is made.
        TypeError: `k` is not an integer, or a tensor is not of float32.
        tf.errors.InvalidArgumentError: `k` is out of range, or the shapes differ.

    Reference: "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (Karimireddy et
    al., ICML 2019), Algorithm 2.

    Example:

    >>> values, indices, residual = tfdear.ops.mstopk_with_feedback(
    ...     tf.constant([1.0, 2.0]), tf.constant([5.0, 0.0]), 1
    ... )
    >>> values.numpy(), residual.numpy()
    (array([6.], dtype=float32), array([0., 2.], dtype=float32))
    """
    x, k = _vector_and_k(x, k)
    residual = tf.convert_to_tensor(residual)
    for argument, tensor in (("x", x), ("residual", residual)):
        if tensor.dtype != tf.float32:
            raise TypeError(f"`{argument}` must be of float32. Received: {tensor.dtype.name}")
    values, indices, new_residual = library.load().dear_ms_top_k_with_feedback(
        x, residual, k, name=name
    )
    return values, indices, new_residual


def _vector_and_k(x: _TensorLike, k: _TensorLike) -> tuple[tf.Tensor, tf.Tensor]:
    x = tf.convert_to_tensor(x)
    if x.dtype not in (tf.float32, tf.float16, tf.bfloat16):
        raise TypeError(f"`x` must be of float32, float16 or bfloat16. Received: {x.dtype.name}")
    if is_whole(k):
        return x, tf.constant(k, tf.int64)
    k = tf.convert_to_tensor(k)
    if not k.dtype.is_integer:
        raise TypeError(f"`k` must be an integer. Received: k of {k.dtype.name}")
    return x, tf.cast(k, tf.int64)
