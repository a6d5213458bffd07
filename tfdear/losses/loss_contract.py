# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How the losses, gradients and logs of a step are combined over the ranks.

[Note: One process is the reference]
A step that Keras calls (`fit`, `evaluate`, the `*_on_batch` methods) is written for one process: it
takes the mean over the rows that it gets, by a loss object, a loss function or by hand. Each rank's
loss is an estimate of the global batch's from the rank's rows, and their mean, weighted by the
rows, is the loss of the global batch. So nothing is scaled in the step: gradients are weighted
where they are reduced, by the rank's share of the step's examples, and so are the scalars that the
step returns or hands to a `Mean`. What is not an estimate of a mean is made one: a loss with
`reduction="sum"` is divided by the share.

In `strategy.run` the contract of `tf.distribute` holds: the step scales its loss to its share of
the global batch's (Keras's loss objects do, and `tf.nn.compute_average_loss`), and gradients are
summed. A step that Keras calls and that scales by itself keeps this contract too. That shows only
while it is traced; if a loss was already left unscaled, the step is traced again.
"""

import contextlib
import enum
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from tfdear.data import call_time, iterators, own_rows, step_data
from tfdear.data import examples as examples_module
from tfdear.losses import row_sums

_Structure = TypeVar("_Structure")
_state = threading.local()


class Contract(enum.Enum):
    """How the gradients of the ranks are combined."""

    # By their mean, weighted by the ranks' examples.
    MEAN = "mean"
    # By their sum: each rank scaled its loss.
    SUM = "sum"


class _OwnScaling(BaseException):
    """Ends the trace of a step that scales its loss after another one was left unscaled.

    Not an `Exception`, which a step may catch.
    """


class KerasStep:
    """A training or test function that Keras made, which remembers the contract of its step.

    `is_own`: whether the model's class has its own step or its own way to take the loss.
    """

    def __init__(self, function: Callable[[Iterator[object]], object], is_own: bool = False):
        self._function = function
        self.is_own = is_own
        self.contract = Contract.MEAN

    def __call__(self, iterator: Iterator[object]) -> object:
        # The row on which a rank without rows computes is known only after that.
        iterators.compare_first_batch(iterator)
        batches = list(iterator) if isinstance(iterator, types.GeneratorType) else None
        try:
            return self._call(iterator if batches is None else iter(batches))
        except _OwnScaling:
            self.contract = Contract.SUM
            return self._call(iterator if batches is None else iter(batches))

    def _call(self, iterator: Iterator[object]) -> object:
        previous = current_step()
        _state.step = self
        try:
            return self._function(iterator)
        finally:
            _state.step = previous


def current_step() -> KerasStep | None:
    """Keras's function that is being called or traced in this thread, or None."""
    return getattr(_state, "step", None)


def current_losses() -> "Losses | None":
    """The losses of the step that is being traced or run, or None."""
    return getattr(tf.distribute.get_replica_context(), "losses", None)


class StepContext(Protocol):
    """What the losses of a step need of its replica context: a `DearReplicaContext`."""

    examples: examples_module.Examples
    graph: tf.Graph | None  # That the step is traced into; None: it is run eagerly.
    # Operations that yield a value of this rank's own.
    own_reads: set[tf.Operation]


class Extended(Protocol):
    """What the losses of a step need of its strategy: a `DearExtended`."""

    elements: examples_module.Elements
    reducer: examples_module.Reducer
    weighs_examples: bool

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def warn_once(self, message: str) -> None:
        """Logs a warning on rank 0, the first time it is given."""


class Losses:
    """The losses and gradients of one call of a step, with these arguments, on this rank."""

    def __init__(self, context: StepContext, extended: Extended, arguments: object):
        self._context = context
        self._extended = extended
        self._step = current_step()
        self._left_unscaled = False
        self._scaled = False
        self._takes_single_values = False
        # Whether the values that are being summed are an optimizer's gradients.
        self.is_reducing = False
        self._weighted = False
        given = tf.nest.flatten(arguments)
        self.row_sums = row_sums.RowSums([each for each in given if isinstance(each, tf.Tensor)])

    @property
    def called_by_keras(self) -> bool:
        """Whether the step belongs to `fit`, `evaluate` or a method for one batch."""
        return self._step is not None

    @property
    def are_means(self) -> bool:
        """Whether every rank's loss is an estimate of the global batch's."""
        return self._step is not None and self._step.contract is Contract.MEAN

    def weight(self) -> tf.Tensor:
        """How much of the global batch this rank's rows are: scalar float64, 0 without examples."""
        if self._extended.weighs_examples:
            share = self._context.examples.share()
            if share is not None:
                return share
        equal = tf.constant(1.0 / self._extended.world_size, tf.float64)
        present = self._context.examples.present
        return equal if present is None else tf.where(present, equal, tf.zeros_like(equal))

    # Called where Keras scales for `tf.distribute`.

    def scale(self, value: tf.Tensor) -> tf.Tensor:
        """A mean over this rank's rows, as the step's contract wants it."""
        if (factor := self._factor_at_call("scale")) is not None:
            return value * tf.cast(factor, value.dtype)
        if self.are_means:
            self._left_unscaled = True
            return value
        self._scaled = True
        return value * tf.cast(self.weight(), value.dtype)

    def unscale(self, value: tf.Tensor) -> tf.Tensor:
        """The inverse of `scale`."""
        if (factor := self._factor_at_call("unscale")) is not None:
            return value * tf.cast(factor, value.dtype)
        if self.are_means:
            return value
        return tf.math.divide_no_nan(value, tf.cast(self.weight(), value.dtype))

    def scale_sum(self, value: tf.Tensor) -> tf.Tensor:
        """A sum over this rank's rows, as the step's contract wants it."""
        if (factor := self._factor_at_call("scale_sum")) is not None:
            return value * tf.cast(factor, value.dtype)
        if not self.are_means:
            self._scaled = True
            return value
        self._left_unscaled = True
        return tf.math.divide_no_nan(value, tf.cast(self.weight(), value.dtype))

    def _factor_at_call(self, name: str) -> tf.Tensor | None:
        """What a method makes of 1 in a step that calls the function that is traced; else None.

        A function that a step calls is traced once, for steps of either contract.
        """
        function = call_time.function_of(step_data.current_graph())
        if function is None or function is call_time.function_of(self._context.graph):
            return None
        scalar = tf.TensorSpec((), tf.float64)
        at_call = functools.partial(_factor_in_step, name)
        return call_time.value(function, f"tfdear_{name}", scalar, at_call)

    def weigh_part(self, value: tf.Tensor, rows: tf.Tensor | int) -> tf.Tensor:
        """A mean over this many rows, which may be of a part of the batch with its own share.

        What is returned will be multiplied by `weight()`.
        """
        if not self._extended.weighs_examples or not self._extended.elements.are_uneven:
            return value
        share = self._context.examples.share_of_part(rows)
        if share is None:
            return value
        return value * tf.cast(tf.math.divide_no_nan(share, self.weight()), value.dtype)

    def note_single_value(self) -> None:
        """Call it with a loss that Keras gets as one value for all rows."""
        self._takes_single_values = True

    def note_gradients(self, target: object, gradients: object) -> None:
        """Call it with the target of a gradient tape and the gradients that it returned."""
        if self._step is None or not self.are_means:
            return
        if not tf.executing_eagerly():
            self.row_sums.note_gradients(target, gradients)
        elif self._takes_single_values or self._step.is_own:
            self._extended.warn_once(row_sums.EAGER_WARNING)

    def note_scaling(self) -> None:
        """Call it where the step scales its loss, or asks for the factor."""
        self._scaled = True
        if self._step is None or not self.are_means:
            return
        if not self._left_unscaled:
            self._step.contract = Contract.SUM
        elif not tf.executing_eagerly():
            raise _OwnScaling
        else:
            raise ValueError(
                "This step scales its loss by itself (`tf.nn.compute_average_loss`, "
                "`tf.nn.scale_regularization_loss` or `num_replicas_in_sync`) after it has used a "
                "Keras loss as one process does. Compile the model without `run_eagerly=True`, or "
                "leave all scaling to Keras."
            )

    # Called where a step exchanges values with other ranks.

    def across_ranks(self, collective: Callable[[Any], Any], values: Any) -> Any:
        """Calls a collective through which gradients may flow from other ranks' losses.

        What flows back from a rank's loss weighs as much as the loss, on whichever rank it arrives;
        and all gradients that this rank computes are multiplied by its own weight in the end. The
        collective must be linear in the structure of values.
        """
        if not self.are_means or self.is_reducing:
            return collective(values)
        self._left_unscaled = True
        weight = self.weight()

        def scaling_gradient(scale: Callable[..., tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
            @tf.custom_gradient
            def identity(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
                return tf.identity(value), lambda dy: scale(dy, tf.cast(weight, dy.dtype))

            return identity

        results = collective(_map_floating(scaling_gradient(tf.math.divide_no_nan), values))
        return _map_floating(scaling_gradient(tf.math.multiply_no_nan), results)

    # Called where gradients are reduced.

    @contextlib.contextmanager
    def reducing_gradients(self) -> Iterator[None]:
        """Within it, the values that are summed over the ranks are an optimizer's gradients."""
        self.is_reducing = True
        try:
            yield
        finally:
            self.is_reducing = False

    @contextlib.contextmanager
    def weighted_gradients(self) -> Iterator[None]:
        """Within it, gradients have been multiplied by `weight_before_reduction()` already."""
        self._weighted = True
        try:
            yield
        finally:
            self._weighted = False

    def weight_before_reduction(self) -> tf.Tensor | None:
        """The factor of gradients that are added up over several steps before they are reduced.

        It is 1 where all ranks have as many rows, so that what is clipped is what a rank computed.
        """
        weight = self.gradient_weight()
        return None if weight is None else weight * self._extended.world_size

    def gradient_weight(self) -> tf.Tensor | None:
        """The factor of this rank's gradients in the sum, or None for a plain sum."""
        if self.are_means:
            self._left_unscaled = True
            equal = tf.constant(1.0 / self._extended.world_size, tf.float64)
            return equal if self._weighted else self.weight()
        if self._weighted:
            return None
        if not self._scaled and not self.called_by_keras:
            self._extended.warn_once(
                "Gradients are reduced in `strategy.run`, but the step scaled no loss: gradients "
                "are summed over the ranks, so those of a mean over a rank's rows come out "
                f"{self._extended.world_size} times too large. Use a loss object of "
                "`keras.losses`, or `tf.nn.compute_average_loss`, or divide the loss by "
                "`strategy.num_replicas_in_sync` inside the step; `model.fit` needs none of this. "
                "If the loss was divided by the global batch size already, all is well."
            )
        return None

    # Called where a step ends.

    def make_global(self, outputs: _Structure) -> _Structure:
        """Replaces scalars that a step computed from its rows by those of all ranks.

        That is the mean, and of whole numbers the sum.
        """
        if self.are_means and self.row_sums.are_applied:
            self._extended.warn_once(row_sums.WARNING)
        if not self.called_by_keras:
            return outputs
        flat = tf.nest.flatten(outputs)
        if tf.executing_eagerly():  # Keras takes numbers of Python and numpy, too.
            flat = [tf.constant(each) if _is_floating_number(each) else each for each in flat]
        own = self._context.own_reads
        local = [index for index, value in enumerate(flat) if _is_local_scalar(value, own)]
        means = [index for index in local if flat[index].dtype.is_floating]
        sums = [index for index in local if not flat[index].dtype.is_floating]
        reduce = functools.partial(self._extended.reducer.all_reduce, name="logs")
        for indices, how in (
            (means, {"weight": self.weight()}),
            (sums, {"active": self._context.examples.present}),
        ):
            if indices:
                values = reduce([flat[index] for index in indices], **how)
                for index, value in zip(indices, values, strict=True):
                    flat[index] = value
        return tf.nest.pack_sequence_as(outputs, flat)


def _factor_in_step(name: str) -> tf.Tensor:
    """What a method of the losses of the step that is being traced or run makes of 1."""
    one, losses = tf.constant(1.0, tf.float64), current_losses()
    return one if losses is None else getattr(losses, name)(one)


def _map_floating(function: Callable[[tf.Tensor], tf.Tensor], structure: _Structure) -> _Structure:
    """Applies a function to the floating tensors of a structure."""

    def apply(value: object) -> object:
        is_floating = isinstance(value, tf.Tensor) and value.dtype.is_floating
        return function(value) if is_floating else value

    return tf.nest.map_structure(apply, structure)


def _is_floating_number(value: object) -> bool:
    return isinstance(value, (float, np.floating)) or (
        isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind == "f"
    )


def _is_local_scalar(value: object, own_reads: set[tf.Operation]) -> bool:
    """Whether a value is a scalar number that may differ between ranks."""
    if not isinstance(value, tf.Tensor) or value.shape.rank != 0:
        return False
    if tf.executing_eagerly():
        # Where whole numbers are from is not known: they may be the same everywhere.
        return value.dtype.is_floating
    if not value.dtype.is_floating and value.dtype not in (tf.int32, tf.int64):
        return False
    return own_rows.are_in(value, own_reads)


def average_outside_of_run(
    extended: Extended, gradients: list[tf.Tensor | tf.IndexedSlices]
) -> list[tf.Tensor | tf.IndexedSlices]:
    """The means over the ranks of gradients that no `strategy.run` computed.

    There every rank iterates over data of its own choice, all of it or a part of its own: the mean
    is right for both.
    """
    extended.warn_once(
        "An optimizer is applied outside of `strategy.run`: every rank computes on whatever data "
        "it iterates over, and gradients are averaged over the ranks. To share the work of a "
        "global batch, iterate over `strategy.experimental_distribute_dataset(dataset)` and call "
        "the step by `strategy.run`."
    )
    weight = tf.constant(1.0 / extended.world_size, tf.float64)
    return extended.reducer.all_reduce(gradients, name="gradients", weight=weight)
