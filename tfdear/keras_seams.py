# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The few places where Keras 3 decides by TensorFlow's own strategy classes.

Keras meets a strategy through `tf.distribute`'s interface but for these functions, which know only
the strategies that TensorFlow ships. Each is wrapped once, and behaves as before under any other
strategy.
"""

import functools

import keras
import tensorflow as tf

from tfdear import data
from tfdear import variable as variable_module

_installed = False


def _dear_strategy(strategy=None):
    """The given or current strategy if it is a distributed `DearStrategy`, else None."""
    strategy = strategy or tf.distribute.get_strategy()
    extended = getattr(strategy, "extended", None)
    return strategy if getattr(extended, "is_distributed_dear", False) else None


def _wrap(owner, name):
    """Replaces `owner.name` by the decorated function, which gets the original first."""

    def decorate(function):
        original = getattr(owner, name, None)
        if original is None:
            raise ImportError(
                f"Keras {keras.__version__} has no `{getattr(owner, '__name__', owner)}.{name}`, "
                "which tfdear builds on. Install a Keras version that tfdear supports: "
                "pip install 'keras>=3.10,<3.16'"
            )
        setattr(owner, name, functools.wraps(original)(functools.partial(function, original)))

    return decorate


def _wrap_method(owner, name):
    """As `_wrap`, for methods."""

    def decorate(function):
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(self, *args, **kwargs):
            return function(original, self, *args, **kwargs)

        setattr(owner, name, method)

    return decorate


def install() -> None:
    """Wraps Keras's functions. Does nothing when called again."""
    global _installed
    if _installed or keras.backend.backend() != "tensorflow":
        return
    _installed = True
    _build_from_specification()
    _weigh_losses()
    _share_batches()
    _read_generators_in_step()
    _agree_on_overflow()
    _accumulate_all_gradients()
    _compile_in_scope()
    _require_variables_of_the_scope()
    _note_variables_without_waiting()
    _trust_counters()


def _build_from_specification() -> None:
    # Under a strategy Keras builds a model from a first batch that it then throws away. That runs
    # the input pipeline once more and moves the state of every shuffle, so that the epochs differ
    # from those of a run without a strategy. Shapes and types are all that building needs.
    from keras.src.backend.tensorflow import trainer

    @_wrap_method(trainer.TensorFlowTrainer, "_maybe_symbolic_build")
    def maybe_symbolic_build(original, model, iterator=None, data_batch=None):
        strategy = model._distribute_strategy
        if not getattr(getattr(strategy, "extended", None), "is_dear", False):
            return original(model, iterator=iterator, data_batch=data_batch)
        if type(model).call is keras.Model.call:
            # A model that only has a `train_step`, such as a GAN: its parts are built already, and
            # its optimizers make their variables when the step is traced, as without a strategy.
            return None
        if iterator is None:
            return original(model, data_batch=data_batch)
        specification = iterator._distributed_dataset.element_spec
        flat = tf.nest.flatten(specification)
        if not all(
            isinstance(spec, tf.TensorSpec)
            and spec.shape.rank
            and spec.shape[1:].is_fully_defined()
            for spec in flat
        ):
            return original(model, iterator=iterator, data_batch=data_batch)
        batch = [tf.TensorSpec([spec.shape[0] or 1, *spec.shape[1:]], spec.dtype) for spec in flat]
        return original(model, data_batch=tf.nest.pack_sequence_as(specification, batch))


def _weigh_losses() -> None:
    # A mean loss is scaled by 1 / replicas before the sum over replicas. Weighing by the share of
    # the examples instead makes it the mean over the global batch when ranks hold different
    # numbers of examples. Losses with reduction="sum" are not scaled, and are right as they are.
    from keras.src.losses import loss as loss_module

    def share():
        context = tf.distribute.get_replica_context()
        strategy = _dear_strategy()
        if context is None or strategy is None or not strategy.extended.weighs_examples:
            return None
        return context.share_of_examples()

    @_wrap(loss_module, "scale_loss_for_distribution")
    def scale(original, value):
        weight = share()
        return original(value) if weight is None else value * tf.cast(weight, value.dtype)

    @_wrap(loss_module, "unscale_loss_for_distribution")
    def unscale(original, value):
        weight = share()
        if weight is None:
            return original(value)
        return tf.math.divide_no_nan(value, tf.cast(weight, value.dtype))

    # The loss of each output is logged by a tracker for which every call counts alike: one per step
    # in one process. The ranks' parts of a step must count as one together.
    from keras.src.trainers import compile_utils

    @_wrap_method(compile_utils.CompileLoss, "build")
    def build(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        for tracker in filter(None, self.metrics):
            tracker.update_state = functools.partial(update_tracker, tracker.update_state)

    def update_tracker(update_state, values, sample_weight=None):
        return update_state(values, share() if sample_weight is None else sample_weight)


def _share_batches() -> None:
    # `predict` puts the replicas' rows together only for strategies that Keras knows, and the
    # `*_on_batch` methods hand the batch to `strategy.run` without distributing it.
    from keras.src.backend.tensorflow import trainer

    @_wrap(trainer, "reduce_per_replica")
    def reduce_per_replica(original, values, strategy, reduction):
        dear = _dear_strategy(strategy)
        if dear is None or reduction != "concat":
            return original(values, strategy, reduction)
        return tf.nest.map_structure(lambda rows: dear.gather(rows, axis=0), values)

    def on_batch(original, model, x, *args, **kwargs):
        strategy = _dear_strategy(model.distribute_strategy)
        if strategy is None:
            return original(model, x, *args, **kwargs)

        def mine(structure):
            return data.slice_rows(structure, strategy.rank, strategy.world_size)

        rows = {"y", "sample_weight"}
        args = [mine(arg) if place < 2 else arg for place, arg in enumerate(args)]
        kwargs = {name: mine(value) if name in rows else value for name, value in kwargs.items()}
        return original(model, mine(x), *args, **kwargs)

    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        _wrap_method(trainer.TensorFlowTrainer, name)(on_batch)


def _read_generators_in_step() -> None:
    # Keras reads a generator ahead of the training, and goes on with it in the next call.
    from keras.src.backend.tensorflow import trainer
    from keras.src.trainers.data_adapters import generator_data_adapter

    @_wrap_method(trainer.TFEpochIterator, "__init__")
    def init(original, iterator, distribute_strategy=None, *args, **kwargs):
        original(iterator, distribute_strategy, *args, **kwargs)
        adapter = iterator.data_adapter
        generator = isinstance(adapter, generator_data_adapter.GeneratorDataAdapter)
        if generator and _dear_strategy(distribute_strategy) is not None:
            (source,) = adapter.get_tf_dataset()._inputs()  # Without the prefetch.
            iterator._distributed_dataset = distribute_strategy.experimental_distribute_dataset(
                data.read_in_step(source)
            )


def _agree_on_overflow() -> None:
    # The loss scale optimizer looks for overflows in this replica's gradients, before the
    # reduction. With an overflow on one rank only, ranks would take different branches, one of
    # which holds the reduction.
    from keras.src.optimizers import loss_scale_optimizer

    @_wrap_method(loss_scale_optimizer.LossScaleOptimizer, "check_finite")
    def check_finite(original, self, grads):
        finite = original(self, grads)
        strategy = _dear_strategy()
        context = tf.distribute.get_replica_context()
        if strategy is None or context is None:
            return finite
        overflows = tf.cast(tf.logical_not(finite), tf.int32)
        total = strategy.extended.reducer.all_reduce(
            [overflows], name="overflow flag", active=context.has_examples
        )
        return total[0] < 1

    # The scale is the same on all ranks: not a value to average.
    for name in ("_stateful_handle_finite_grads", "_stateful_handle_non_finite_grads"):
        _wrap_method(loss_scale_optimizer.LossScaleOptimizer, name)(_as_update)


def _as_update(original, optimizer, *args, **kwargs):
    context = tf.distribute.get_replica_context()
    if _dear_strategy() is None or context is None:
        return original(optimizer, *args, **kwargs)
    with context.updating():
        return original(optimizer, *args, **kwargs)


def _accumulate_all_gradients() -> None:
    # With gradient accumulation the reduction moves sums over several batches: a rank without
    # examples in the last one still has those of the others. What a batch without examples adds is
    # taken out where it comes in.
    from keras.src.optimizers import base_optimizer

    @_wrap_method(base_optimizer.BaseOptimizer, "apply")
    def apply(original, optimizer, grads, trainable_variables=None):
        context = tf.distribute.get_replica_context()
        if (
            _dear_strategy() is None
            or not optimizer.gradient_accumulation_steps
            or not getattr(context, "reconciles", False)
        ):
            return original(optimizer, grads, trainable_variables)
        grads = [context.gate_gradient(gradient) for gradient in grads]
        with context.contributing():
            return original(optimizer, grads, trainable_variables)


def _compile_in_scope() -> None:
    # A model made in the scope belongs to its strategy; so do the metrics and the optimizer that
    # `compile` makes, wherever it is called.
    from keras.src.trainers import trainer

    @_wrap_method(trainer.Trainer, "compile")
    def compile_model(original, model, *args, **kwargs):
        strategy = _dear_strategy(getattr(model, "_distribute_strategy", None))
        if strategy is None or tf.distribute.in_cross_replica_context():
            return original(model, *args, **kwargs)
        with strategy.scope():
            return original(model, *args, **kwargs)


def _require_variables_of_the_scope() -> None:
    # A variable from outside the scope would stay this rank's own: ranks would drift apart, and
    # callbacks that look at a metric would decide differently on each.
    from keras.src.backend.tensorflow import trainer

    def check(original, model, *args, **kwargs):
        if _dear_strategy(model.distribute_strategy) is not None:
            optimizer = getattr(model, "optimizer", None)
            # What training writes. Constants, such as what `Normalization.adapt` found, may be from
            # anywhere.
            variables = [*model.trainable_variables, *model.metrics_variables]
            variables += optimizer.variables if optimizer is not None else []
            for variable in variables:
                value = getattr(variable, "value", variable)
                if isinstance(value, tf.Variable) and not isinstance(
                    value, variable_module.DearVariable
                ):
                    raise ValueError(
                        f"The variable `{variable.path}` of model `{model.name}` was created "
                        "outside `strategy.scope()`, so it would have another value on every rank. "
                        "Create the model, its metrics, losses and optimizer inside the scope."
                    )
        return original(model, *args, **kwargs)

    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        _wrap_method(trainer.TensorFlowTrainer, name)(check)


def _note_variables_without_waiting() -> None:
    # A function that calls another one, as Keras's loop over batches calls the step, notes the
    # variables of the inner one and asks for their handles to do so. An await op for each of them
    # would make the whole call wait for all updates, and the forward pass would overlap nothing.
    @_wrap_method(tf.__internal__.FuncGraph, "watch_variable")
    def watch_variable(original, graph, variable):
        with variable_module.raw_handles():
            return original(graph, variable)


def _trust_counters() -> None:
    # The variables that Keras makes with aggregation "only_first_replica", such as the number of
    # iterations, are written in every step, alike on all ranks: a collective for each would only
    # cost time. Those of a script get what it asked for.
    from keras.src.backend.tensorflow import core

    @_wrap_method(core.Variable, "_initialize")
    def initialize(original, variable, value):
        with variable_module.written_alike():
            return original(variable, value)
