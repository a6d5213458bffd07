# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds losses that a step in `fit` adds up over its rows by hand, or says that it cannot see.

Gradients of a step that Keras calls are weighed as those of means ([Note: One process is the
reference]); a loss object with `reduction="sum"` says what it is, a `tf.reduce_sum` does not. In a
compiled step it can be seen: the graph is walked from the loss to the sum and on to the batch. In
doubt there is no warning, as a false one is worse than none.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

WARNING = (
    "The loss of this step is a sum over the rows of the batch, made by hand (`tf.reduce_sum`, "
    "`keras.ops.sum`, or a loss of several values). In `fit`, gradients are combined over the "
    "ranks as those of means, so the gradients of this sum come out too small, about by the number "
    'of ranks. Use a loss object of `keras.losses` with `reduction="sum"`, take the mean instead '
    "(`keras.ops.mean`), or divide by the number of rows."
)

EAGER_WARNING = (
    "With `run_eagerly=True` it cannot be seen whether a loss that is made by hand is a mean over "
    "the rows of the batch or a sum. In `fit` it is taken for a mean: the gradients of a sum "
    "(`tf.reduce_sum`, `keras.ops.sum`) come out too small, about by the number of ranks. Use a "
    'loss object of `keras.losses` with `reduction="sum"` for those. Without `run_eagerly=True` '
    "each such sum is looked for, and warned of."
)

# Ops that pass on a factor or a term; in a product or quotient, one side must be constant.
_TERMS = {"Add", "AddV2", "AddN", "Sub", "Neg", "Identity", "Cast", "Squeeze"}
_PRODUCTS = {"Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan"}
_ARITHMETIC = {
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
}
_CONSTANTS = {"Const", "ReadVariableOp", "VarHandleOp"}

# Reductions, and ops that may put something other than the batch into the first dimension.
_REDUCTIONS = {"Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm"}
_UNCERTAIN = {
    "Transpose",
    "Einsum",
    "Unpack",
    "GatherV2",
    "GatherNd",
    "Where",
    "While",
    "StatelessWhile",
    "If",
    "StatelessIf",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "TensorListStack",
    "Range",
    "SparseTensorDenseMatMul",
}


class RowSums:
    """The gradients of such losses in one step, which was given these tensors as arguments."""

    def __init__(self, arguments: Sequence[tf.Tensor]):
        self._arguments = {id(value) for value in arguments}
        # Numbers of rows, None where it is known only when the step runs.
        self._rows = {value.shape[0] for value in arguments if value.shape.rank}
        self._alive = list(arguments)
        self._gradients: list[tf.Tensor | tf.IndexedSlices] = []
        self.are_applied = False

    def note_gradients(self, target: object, gradients: object) -> None:
        """Call it with the target of a gradient tape and the gradients that it returned."""
        losses = [loss for loss in tf.nest.flatten(target) if isinstance(loss, tf.Tensor)]
        if any(hasattr(loss, "op") and self._is_row_sum(loss) for loss in losses):
            self._gradients += [g for g in tf.nest.flatten(gradients) if g is not None]

    def note_applied(self, gradients: Iterable[tf.Tensor | tf.IndexedSlices | None]) -> None:
        """Call it with the gradients that an optimizer gets."""
        # By identity: a step that divides them first may well make them those of a mean.
        given = {id(gradient) for gradient in gradients}
        self.are_applied |= any(id(gradient) in given for gradient in self._gradients)

    def _is_row_sum(self, loss: tf.Tensor) -> bool:
        if loss.shape.rank is None or loss.shape.rank > 0:
            # A tape adds up a target of several values.
            return self._has_rows_of_the_batch(loss)
        waiting, seen = [loss], set()
        while waiting:
            tensor = waiting.pop()
            op = tensor.op
            if op in seen:
                continue
            seen.add(op)
            if op.type in ("Sum", "L2Loss"):
                if tensor.shape.rank == 0 and self._has_rows_of_the_batch(op.inputs[0]):
                    return True
                waiting.extend(_summed_scalars(op))
            elif op.type in _TERMS:
                waiting.extend(op.inputs)
            elif op.type in _PRODUCTS:
                constants = [factor for factor in _factors(op) if _is_constant(factor[0])]
                if not any(self._may_divide_by_count(*factor) for factor in constants):
                    waiting.extend(_variable_factors(op))
        return False

    def _has_rows_of_the_batch(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor's first dimension is certain to be the batch's."""
        waiting, seen, from_batch = [tensor], set(), False
        while waiting:
            tensor = waiting.pop()
            if tensor.shape.rank is None:
                return False
            if tensor.shape.rank == 0 or tensor.shape[0] not in self._rows:
                continue  # It is combined with rows, and has none.
            if id(tensor) in self._arguments:
                from_batch = True
                continue
            op = tensor.op
            if op in seen:
                continue
            seen.add(op)
            if op.type in _CONSTANTS:
                continue
            if not op.inputs or op.type.startswith("Dear") or not _keeps_rows(op):
                return False
            if op.type in _PRODUCTS and any(
                self._may_divide_by_count(*factor) for factor in _factors(op)
            ):
                return False  # It may be a count, or a sum of weights.
            waiting.extend(op.inputs)
        return from_batch

    def _may_divide_by_count(self, factor: tf.Tensor, is_divisor: bool) -> bool:
        if factor.shape.num_elements() != 1:
            return False
        if not _is_constant(factor):
            return True
        known = [rows for rows in self._rows if rows]
        value = _constant_value(factor) if known else 1.0
        if value is None or not float(value):
            return True
        divisor = abs(float(value) if is_divisor else 1.0 / float(value))
        return any(_is_multiple(divisor, rows) for rows in known)


def _summed_scalars(op: tf.Operation) -> list[tf.Tensor]:
    """The scalars that an op adds up, as Keras does with losses; none, if they are no scalars."""
    (summed, *_) = op.inputs
    terms = list(summed.op.inputs) if summed.op.type == "Pack" else [summed]
    is_sum = op.type == "Sum" and all(term.shape.rank == 0 for term in terms)
    return terms if is_sum else []


def _is_multiple(value: float, rows: int) -> bool:
    times = value / rows
    return times > 0.5 and abs(times - round(times)) < 1e-5


def _factors(op: tf.Operation) -> list[tuple[tf.Tensor, bool]]:
    """The factors of a product or quotient, and whether it is divided by them."""
    first, second = op.inputs
    return [(first, False), (second, "Div" in op.type)]


def _variable_factors(op: tf.Operation) -> list[tf.Tensor]:
    """The factors that are no constants, if there is at most one and nothing is divided by it."""
    first, second = op.inputs
    if _is_constant(second):
        return [first]
    return [second] if op.type == "Mul" and _is_constant(first) else []


def _is_constant(tensor: tf.Tensor) -> bool:
    """Whether a value is made of constants and variables only."""
    waiting, seen = [tensor.op], set()
    while waiting:
        op = waiting.pop()
        if op in seen or op.type in _CONSTANTS:
            continue
        if not op.inputs or op.type.startswith("Dear"):
            return False
        seen.add(op)
        waiting.extend(value.op for value in op.inputs)
    return True


def _constant_value(tensor: tf.Tensor) -> np.ndarray | float | None:
    """The value of constants, also of sums and products of them; None if it is not known.

    A variable counts as 1: it may be a weight or a scale of the loss, but is no number of rows.
    """
    if tensor.op.type == "ReadVariableOp":
        return 1.0
    value = tf.get_static_value(tensor)
    calculate = _ARITHMETIC.get(tensor.op.type)
    if value is not None or calculate is None:
        return value
    values = [_constant_value(each) for each in tensor.op.inputs]
    if any(each is None for each in values):
        return None
    with np.errstate(all="ignore"):
        return calculate(*values)


def _keeps_rows(op: tf.Operation) -> bool:
    if op.type in _REDUCTIONS:
        axes = tf.get_static_value(op.inputs[1])
        rank = op.inputs[0].shape.rank
        return axes is not None and rank is not None and 0 not in {int(a) % rank for a in axes.flat}
    if op.type == "MatMul":
        return not op.get_attr("transpose_a")
    if op.type == "StridedSlice":
        return not op.get_attr("shrink_axis_mask") & 1
    return op.type not in _UNCERTAIN
