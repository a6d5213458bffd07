# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""LARS and LAMB: optimizers for large batches, which scale the step of every layer by its norms.

[Note: What a layer is]
The papers say layer and mean one tensor of weights: a kernel, a bias, a scale of a normalization.
So norms are taken of whole variables, and every variable has a trust ratio of its own.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras import ops

from tfdear.base.checks import is_number
from tfdear.gradients import norms
from tfdear.gradients.sparse_rows import Gradient

__all__ = ["LAMB", "LARS"]

_LearningRate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule


class _LayerAdaptive(keras.optimizers.Optimizer):
    """What LARS and LAMB share: weight decay inside the update, and variables left out by name."""

    def __init__(
        self,
        learning_rate: _LearningRate,
        *,
        weight_decay: float,
        epsilon: float,
        exclude_from_weight_decay: Sequence[str],
        exclude_from_layer_adaptation: Sequence[str],
        parallel: bool,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, weight_decay=weight_decay, **kwargs)
        _check_number("weight_decay", weight_decay, at_least=0.0)
        _check_number("epsilon", epsilon, at_least=0.0)
        self.epsilon = epsilon
        self._without_decay = _patterns("exclude_from_weight_decay", exclude_from_weight_decay)
        self._without_adaptation = _patterns(
            "exclude_from_layer_adaptation", exclude_from_layer_adaptation
        )
        self.parallel = parallel

    def _apply_weight_decay(self, variables: Iterable[keras.Variable]) -> None:
        # Keras would shrink the weights by `learning_rate * weight_decay` on its own, outside of
        # the trust ratio. Here weight decay belongs to the update, as in the papers.
        del variables

    def _use_weight_decay(self, variable: keras.Variable) -> bool:
        return super()._use_weight_decay(variable) and not self._is_named(
            variable, self._without_decay
        )

    def _weight_decay_of(self, variable: keras.Variable) -> float:
        return self.weight_decay if self._use_weight_decay(variable) else 0.0

    def _adapts(self, variable: keras.Variable) -> bool:
        return not self._is_named(variable, self._without_adaptation)

    def _is_named(self, variable: keras.Variable, patterns: Iterable[str]) -> bool:
        known = self._trainable_variables[self._get_variable_index(variable)]
        path = getattr(known, "path", known.name)
        return any(re.search(pattern, path) for pattern in patterns)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": list(self._without_decay),
            "exclude_from_layer_adaptation": list(self._without_adaptation),
            "parallel": self.parallel,
        }


@keras.saving.register_keras_serializable(package="tfdear")
class LARS(_LayerAdaptive):
    """SGD with momentum whose learning rate is scaled, layer by layer, by a ratio of norms.

    Use it for convolutional networks with batches of thousands of examples, where one learning rate
    is too large for some layers and too small for others. For a variable `w` with gradient `g`:

    ```
    trust_ratio = trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon)
    momentum_buffer = momentum * momentum_buffer
                      + learning_rate * trust_ratio * (g + weight_decay * w)
    w = w - momentum_buffer
    ```

    With `nesterov`, `w` moves by `momentum * momentum_buffer + learning_rate * trust_ratio * (g +
    weight_decay * w)` instead. The trust ratio is 1 where `|w|` or `|g|` is zero, and for excluded
    variables, which get plain SGD with momentum. Norms are Euclidean, over the whole variable.
    Sparse gradients (`tf.IndexedSlices`) count as dense ones with zeros everywhere else: rows that
    occur twice are added up, and weight decay and momentum move every row.

    Args:
        learning_rate: A float or a `keras.optimizers.schedules.LearningRateSchedule`. Defaults to
            0.1. Gradients count about `trust_coefficient` times as much as in SGD.
        momentum: In [0, 1). Defaults to 0.9.
        nesterov: Whether to use Nesterov's momentum. Defaults to False.
        trust_coefficient: How far a layer may move in a step, as a fraction of its norm, at a
            learning rate of 1. Defaults to 0.001.
        weight_decay: Factor of the weights that is added to the gradient. Defaults to 0.
        epsilon: Added to the denominator of the trust ratio. Defaults to 0, as in the paper.
        exclude_from_weight_decay: Regular expressions; a variable whose path (such as
            `"dense/bias"`) one of them is found in has no weight decay. Defaults to none.
        exclude_from_layer_adaptation: Likewise; these have a trust ratio of 1. Defaults to none.
        parallel: Whether the ranks of a `DearStrategy` share the work of taking norms: each takes
            those of its shard of the summed gradients, and all get the rest from the others with
            the collective that the update waits for anyway. Results are the same to rounding.
            False: every rank takes all norms, two per variable. Defaults to True.
        **kwargs: `name`, `clipnorm`, `clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`, `loss_scale_factor` and `gradient_accumulation_steps` of
            `keras.optimizers.Optimizer`.

    Raises:
        ValueError: An argument is out of its range, or no regular expression.

    Reference: You, Gitman and Ginsburg, *Large Batch Training of Convolutional Networks*, 2017,
    Algorithm 1.

    Example:

    >>> import keras, tfdear
    >>> optimizer = tfdear.optimizers.LARS(
    ...     1.0, weight_decay=1e-4, exclude_from_layer_adaptation=["bias", "gamma", "beta"]
    ... )
    >>> w = keras.Variable([3.0, 4.0])
    >>> optimizer.apply([keras.ops.ones(2) * 5.0], [w])
    """

    def __init__(
        self,
        learning_rate: _LearningRate = 0.1,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        trust_coefficient: float = 0.001,
        weight_decay: float = 0.0,
        epsilon: float = 0.0,
        exclude_from_weight_decay: Sequence[str] = (),
        exclude_from_layer_adaptation: Sequence[str] = (),
        parallel: bool = True,
        name: str = "lars",
        **kwargs: Any,
    ):
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            epsilon=epsilon,
            exclude_from_weight_decay=exclude_from_weight_decay,
            exclude_from_layer_adaptation=exclude_from_layer_adaptation,
            parallel=parallel,
            name=name,
            **kwargs,
        )
        _check_number("momentum", momentum, at_least=0.0, below=1.0)
        _check_number("trust_coefficient", trust_coefficient, above=0.0)
        if nesterov and momentum == 0.0:
            raise ValueError(
                "`momentum` must be > 0 with `nesterov`. Received: momentum=0, nesterov=True"
            )
        self.momentum = momentum
        self.nesterov = nesterov
        self.trust_coefficient = trust_coefficient

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._momentums = []
        if self.momentum > 0.0:
            (self._momentums,) = self.add_optimizer_variables(variables, ["momentum"])

    def update_step(
        self, gradient: Gradient, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        gradient = _dense(gradient, variable)
        layer_norms = None
        if self._adapts(variable) and self.parallel:
            layer_norms = norms.take("lars", gradient, variable)
        decay = self._weight_decay_of(variable)
        direction = gradient if decay == 0.0 else gradient + decay * variable
        step = ops.cast(learning_rate, variable.dtype) * direction
        if self._adapts(variable):
            weight_norm, gradient_norm = layer_norms or (_norm(variable), _norm(gradient))
            ratio = self.trust_coefficient * weight_norm
            ratio = ratio / (gradient_norm + decay * weight_norm + self.epsilon)
            step = step * _trust_ratio(ratio, weight_norm, gradient_norm, variable.dtype)
        if self._momentums:
            buffer = self._momentums[self._get_variable_index(variable)]
            moved = self.momentum * ops.convert_to_tensor(buffer) + step
            self.assign(buffer, moved)
            step = self.momentum * moved + step if self.nesterov else moved
        self.assign_sub(variable, step)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "trust_coefficient": self.trust_coefficient,
        }


@keras.saving.register_keras_serializable(package="tfdear")
class LAMB(_LayerAdaptive):
    """Adam whose step is scaled, layer by layer, by a ratio of norms.

    Use it for Transformers with large batches. For a variable `w` with gradient `g`, in step t:

    ```
    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * g**2
    u = m / (1 - beta_1**t) / (sqrt(v / (1 - beta_2**t)) + epsilon) + weight_decay * w
    w = w - learning_rate * |w| / |u| * u
    ```

    The ratio `|w| / |u|` is 1 where one of the norms is zero, and for excluded variables, which get
    AdamW. Without weight decay this is `keras.optimizers.Lamb`. With it, it is the paper's
    algorithm, where weight decay is inside `u`; Keras subtracts `learning_rate * weight_decay * w`
    on its own. Norms are Euclidean, over the whole variable. Sparse gradients (`tf.IndexedSlices`)
    count as dense ones with zeros everywhere else; rows that occur twice are added up.

    Args:
        learning_rate: A float or a `keras.optimizers.schedules.LearningRateSchedule`. Defaults to
            0.001.
        beta_1: Decay of the mean of the gradients, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the mean of their squares, in [0, 1). Defaults to 0.999.
        epsilon: Added to the square root. Defaults to 1e-7.
        weight_decay: Factor of the weights that is added to Adam's step. Defaults to 0.
        exclude_from_weight_decay: Regular expressions; a variable whose path (such as
            `"dense/bias"`) one of them is found in has no weight decay. Defaults to none.
        exclude_from_layer_adaptation: Likewise; these have a ratio of 1. Defaults to none.
        parallel: As for `LARS`. Defaults to True.
        **kwargs: `name`, `clipnorm`, `clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`, `loss_scale_factor` and `gradient_accumulation_steps` of
            `keras.optimizers.Optimizer`.

    Raises:
        ValueError: An argument is out of its range, or no regular expression.

    Reference: You et al., *Large Batch Optimization for Deep Learning: Training BERT in 76
    minutes*, ICLR 2020, Algorithm 2 with the identity as scaling function.

    Example:

    >>> import keras, tfdear
    >>> optimizer = tfdear.optimizers.LAMB(1e-3, weight_decay=0.01)
    >>> w = keras.Variable([3.0, 4.0])
    >>> optimizer.apply([keras.ops.ones(2)], [w])
    """

    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        exclude_from_weight_decay: Sequence[str] = (),
        exclude_from_layer_adaptation: Sequence[str] = (),
        parallel: bool = True,
        name: str = "lamb",
        **kwargs: Any,
    ):
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            epsilon=epsilon,
            exclude_from_weight_decay=exclude_from_weight_decay,
            exclude_from_layer_adaptation=exclude_from_layer_adaptation,
            parallel=parallel,
            name=name,
            **kwargs,
        )
        _check_number("beta_1", beta_1, at_least=0.0, below=1.0)
        _check_number("beta_2", beta_2, at_least=0.0, below=1.0)
        self.beta_1 = beta_1
        self.beta_2 = beta_2

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def update_step(
        self, gradient: Gradient, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        gradient = _dense(gradient, variable)
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        decay = self._weight_decay_of(variable)
        dtype = variable.dtype
        layer_norms = None
        if self._adapts(variable) and self.parallel:

            def make_step() -> tf.Tensor:
                rates = [1 - self.beta_1, 1 - self.beta_2]
                return tf.stack([*rates, *self._corrections(dtype), self.epsilon, decay])

            layer_norms = norms.take("lamb", gradient, variable, (m.value, v.value), make_step)
        first, second = self._corrections(dtype)
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - self.beta_2))
        update = (m / first) / (ops.sqrt(v / second) + self.epsilon)
        if decay != 0.0:
            update = update + decay * variable
        scale = ops.cast(learning_rate, dtype)
        if self._adapts(variable):
            weight_norm, update_norm = layer_norms or (_norm(variable), _norm(update))
            scale = _trust_ratio(weight_norm / update_norm, weight_norm, update_norm, dtype) * scale
        self.assign_sub(variable, scale * update)

    def _corrections(self, dtype: str) -> tuple[tf.Tensor, tf.Tensor]:
        """The divisors that correct the moments for their start at zero."""
        step = ops.cast(self.iterations + 1, dtype)
        first, second = (
            1.0 - ops.power(ops.cast(beta, dtype), step) for beta in (self.beta_1, self.beta_2)
        )
        return first, second

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2}


def _norm(tensor: tf.Tensor) -> tf.Tensor:
    return ops.sqrt(ops.sum(ops.square(ops.cast(tensor, "float32"))))


def _trust_ratio(
    ratio: tf.Tensor, numerator: tf.Tensor, denominator: tf.Tensor, dtype: str
) -> tf.Tensor:
    """The given ratio of two norms; 1 where one of them is zero."""
    defined = ops.logical_and(numerator > 0, denominator > 0)
    return ops.cast(ops.where(defined, ratio, 1.0), dtype)


def _dense(gradient: Gradient, variable: keras.Variable) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.math.unsorted_segment_sum(
            gradient.values, gradient.indices, variable.shape[0]
        )
    # The same tensor where nothing is to be done: the engine knows its norms.
    return gradient if gradient.dtype == variable.dtype else ops.cast(gradient, variable.dtype)


def _check_number(
    name: str,
    value: float,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    number = is_number(value)
    good = (
        number
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (below is None or value < below)
        and value != float("inf")
    )
    if not good:
        limits = ((">=", at_least), (">", above), ("<", below))
        range_ = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        raise ValueError(f"`{name}` must be a finite number {range_}. Received: {name}={value!r}")


def _patterns(name: str, value: Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    for pattern in value:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"`{name}` must be regular expressions, which are searched for in the paths of "
                'variables, such as "bias" or "normalization.*/gamma". Received: '
                f"{name}={value!r} ({error})"
            ) from None
    return tuple(value)
