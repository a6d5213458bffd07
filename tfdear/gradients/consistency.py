# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Compares variables over the ranks, which must hold the same values, and makes them the same.

No collective fails if ranks train different weights, as after `load_weights` on one rank only: the
sums of their gradients are the same, and the difference stays in the model for good. So digests are
compared at points that all ranks reach: when `fit` and `evaluate` start, at the first step of a
loop, and every few steps by option.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tfdear import errors
from tfdear.gradients import collectives as collectives_module
from tfdear.gradients import variable as variable_module
from tfdear.gradients.sharded_variable import ShardedVariable

_Variable: TypeAlias = tf.Variable | keras.Variable

# Variables that differ by design: seeds of dropout, and gradients that were not sent yet.
_DIFFERENT_BY_DESIGN = ("seed_generator_state", "gradient_accumulator")


class Consistency:
    """Compares and broadcasts the variables of one strategy.

    It compares again after `every` steps; 0: only when training starts. `variables` returns those
    that are still in use.
    """

    def __init__(
        self,
        collectives: collectives_module.Collectives,
        variables: Callable[[], list[variable_module.DearVariable]],
        rank: int,
        every: int,
    ):
        self.every = every
        self._collectives = collectives
        self._variables = variables
        self._rank = rank
        self._loop_started = False
        self._steps_of_loops = 0

    def check_model(self, model: keras.Model) -> None:
        """Raises on all ranks if a variable of a model or its optimizer differs on some rank."""
        self._loop_started = True
        self.check(_shared_variables(model))

    def check_step(self) -> None:
        """Compares the trained variables of all models before a script's step, if that is due.

        It is due before the first step and, by option, before every few steps that are called from
        Python; steps in a loop inside a `tf.function` are not seen here.
        """
        due = not self._loop_started
        if self.every and tf.executing_eagerly():
            due = due or self._steps_of_loops % self.every == 0
            self._steps_of_loops += 1
        self._loop_started = True
        if due:
            trained = [v for v in self._variables() if v.trainable or v.owner is not None]
            self.check([variable for variable in trained if not _is_own(variable)])

    def check(self, variables: Sequence[_Variable]) -> None:
        """Raises on all ranks if a variable differs on some rank; all have them in one order."""
        with tf.init_scope():
            names = [_name(variable) for variable in variables]
            # Not the names: they have numbers that depend on what a script created before.
            kinds = [(str(v.shape), tf.as_dtype(v.dtype).name) for v in variables]
            digests = [_digest(variable) for variable in variables]
            # One small exchange is enough if everything is the same, as nearly always.
            summary = [_hash(repr(kinds)), _hash(repr(digests)), len(names)]
            gathered = self._gather(summary)
            if (gathered == gathered[0]).all():
                return
            if len(set(gathered[:, 0])) > 1 or len(set(gathered[:, 2])) > 1:
                raise errors.TfdearError(
                    "The ranks do not have the same variables. How many they have, by rank: "
                    f"{gathered[:, 2].tolist()}. Rank {self._rank} has {names[:3]} and so on, of "
                    f"{kinds[:3]}. Build the same model and optimizer on all ranks."
                )
            gathered = self._gather(digests)
        different = np.flatnonzero((gathered != gathered[0]).any(axis=0))
        first = different[0]
        groups: dict[int, list[int]] = {}
        for rank, digest in enumerate(gathered[:, first].tolist()):
            groups.setdefault(digest, []).append(rank)
        raise errors.TfdearError(
            f"The ranks hold different values of the variable `{names[first]}`; {len(different)} "
            f"of {len(names)} variables differ. Ranks with the same value of it: "
            f"{list(groups.values())}. Most likely only some ranks have loaded or assigned "
            "weights, as in `if strategy.is_chief: model.load_weights(...)`, or they have loaded "
            "different files. Load on all ranks, or call `strategy.broadcast_variables(model)` on "
            "all ranks afterwards, which gives them the values of rank 0."
        )

    def broadcast(self, model_or_variables: object, root: int) -> None:
        """Gives all ranks the values that rank `root` has of a model's or a structure's."""
        with tf.init_scope():
            if hasattr(model_or_variables, "trainable_variables"):
                variables = _shared_variables(model_or_variables)
            else:
                variables = tf.nest.flatten(model_or_variables)
            for variable in map(_tensor_variable, variables):
                if variable.dtype not in (tf.string, tf.variant, tf.resource):
                    value = self._collectives.broadcast(variable.read_value(), root)
                    variable.assign(value)

    def _gather(self, numbers: Sequence[int]) -> np.ndarray:
        return self._collectives.all_gather(tf.constant([numbers], tf.int64)).numpy()


def _shared_variables(model: keras.Model) -> list[_Variable]:
    """Variables of a Keras model and its optimizer that are the same on all ranks between steps."""
    metrics = {id(variable) for variable in getattr(model, "metrics_variables", ())}
    variables = [v for v in model.variables if id(v) not in metrics]
    optimizer = getattr(model, "optimizer", None)
    variables += optimizer.variables if optimizer is not None else []
    return [variable for variable in variables if not _is_own(variable)]


def _is_own(variable: _Variable) -> bool:
    # Of a sharded table every rank has a part of its own.
    return isinstance(_tensor_variable(variable), ShardedVariable) or any(
        own in _name(variable) for own in _DIFFERENT_BY_DESIGN
    )


def _name(variable: _Variable) -> str:
    return getattr(variable, "path", None) or variable.name


def _tensor_variable(variable: _Variable) -> tf.Variable:
    """TensorFlow's variable in one of Keras's."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def _digest(variable: _Variable) -> int:
    value = _tensor_variable(variable)
    value = value.read_value() if isinstance(value, tf.Variable) else tf.convert_to_tensor(value)
    if value.dtype == tf.string:
        return _hash(repr(value.numpy().tolist()))
    if tf.size(value) == 0:
        return 0
    fingerprint = tf.fingerprint(tf.reshape(value, [1, -1])).numpy().tobytes()
    return int.from_bytes(fingerprint, "little", signed=True)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
