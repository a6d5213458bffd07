# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The few places where Keras 3 decides by TensorFlow's own strategy classes.

Keras meets a strategy through `tf.distribute`'s interface but for these functions, which know only
the strategies that TensorFlow ships. Each is wrapped in a job of several ranks ([Note: Seams]), and
behaves as before under any other strategy. A process alone wraps only how models are built.
"""

import weakref

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private
from tfdear.data import global_batches as data
from tfdear.gradients import own_value
from tfdear.gradients import reducer as reductions
from tfdear.gradients import variable as variable_module
from tfdear.losses import loss_contract

BUILDING = seams.Seams()
SEAMS = seams.Seams()


def _dear_strategy(strategy=None):
    """The given or current strategy if it is a distributed `DearStrategy`, else None."""
    strategy = strategy or tf.distribute.get_strategy()
    extended = getattr(strategy, "extended", None)
    return strategy if getattr(extended, "is_distributed_dear", False) else None


# Building from a specification.
#
# Under a strategy Keras builds a model from a first batch that it then throws away. That runs the
# input pipeline once more and moves the state of every shuffle, so that the epochs differ from
# those of a run without a strategy; and it fails for a model without `call`. Shapes and types are
# all that building needs, with one process too.


@BUILDING.wrap(_keras_private.MAYBE_SYMBOLIC_BUILD)
def _build_from_specification(original, model, iterator=None, data_batch=None):
    strategy = model._distribute_strategy
    if not getattr(getattr(strategy, "extended", None), "is_dear", False):
        return original(model, iterator=iterator, data_batch=data_batch)
    made_by = getattr(model.optimizer, "_distribution_strategy", strategy)
    if made_by is not strategy and not strategy.extended.is_distributed_dear:
        # Compiled with an optimizer from outside of the scope, which works under no strategy. One
        # process needs none.
        model._distribute_strategy = None
        return None
    if type(model).call is keras.Model.call:
        # A model that only has a `train_step`, such as a GAN: its parts are built already, and
        # its optimizers make their variables when the step is traced, as without a strategy.
        return None
    if iterator is None:
        return original(model, data_batch=data_batch)
    specification = iterator._distributed_dataset.element_spec
    flat = tf.nest.flatten(specification)
    if not all(
        isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[1:].is_fully_defined()
        for spec in flat
    ):
        return original(model, iterator=iterator, data_batch=data_batch)
    batch = [tf.TensorSpec([spec.shape[0] or 1, *spec.shape[1:]], spec.dtype) for spec in flat]
    return original(model, data_batch=tf.nest.pack_sequence_as(specification, batch))


# Losses and gradients: see [Note: One process is the reference].


@SEAMS.wrap(_keras_private.SCALE_LOSS)
def _scale_loss(original, value):
    # Keras scales a mean loss by 1 / replicas for the sum over replicas.
    losses = loss_contract.current_losses()
    if losses is not None:
        return losses.scale(value)
    # Outside of `run` gradients are averaged.
    return value if _dear_strategy() else original(value)


@SEAMS.wrap(_keras_private.UNSCALE_LOSS)
def _unscale_loss(original, value):
    losses = loss_contract.current_losses()
    if losses is not None:
        return losses.unscale(value)
    return value if _dear_strategy() else original(value)


@SEAMS.wrap(_keras_private.REDUCE_VALUES)
def _reduce_values(original, values, sample_weight=None, reduction="sum_over_batch_size"):
    losses = loss_contract.current_losses()
    loss = original(values, sample_weight, reduction)
    if losses is None:
        return loss
    if len(values.shape) == 0:
        losses.note_single_value()
    elif reduction == "sum":
        return losses.scale_sum(loss)
    elif reduction not in (None, "none"):
        return losses.weigh_part(loss, keras.ops.shape(values)[0])
    return loss


@SEAMS.wrap(_keras_private.AGGREGATE_ADDITIONAL_LOSS)
def _aggregate_additional_loss(original, model, loss):
    losses = loss_contract.current_losses()
    if losses is None or len(loss.shape) == 0:
        if losses is not None and _adds_single_values(model):
            losses.note_single_value()
        return original(model, loss)
    # One value for each row, which Keras adds up.
    return losses.scale_sum(losses.unscale(original(model, loss)))


@SEAMS.wrap(_keras_private.UPDATE_MEAN)
def _update_mean(original, metric, values, sample_weight=None):
    # A loss that was averaged by hand comes to a metric as one value for all rows of the rank.
    losses = loss_contract.current_losses()
    one_value = sample_weight is None and keras.ops.ndim(values) == 0
    if losses is not None and one_value:
        sample_weight = tf.cast(losses.weight(), tf.float32)
    return original(metric, values, sample_weight)


def _adds_single_values(model) -> bool:
    # A regularizer's loss is a single value, too, but has nothing to do with rows.
    single = sum(len(loss.shape) == 0 for loss in model.losses)
    return single > sum(variable.regularizer is not None for variable in model.trainable_variables)


# Metrics: what they write in a step is a rank's own, and their results are those of all ranks; see
# [Note: Own values].


@SEAMS.wrap(_keras_private.METRIC_INIT)
def _take_results_of_sums(original, metric, *args, **kwargs):
    original(metric, *args, **kwargs)
    for kind in type(metric).__mro__:
        if issubclass(kind, keras.metrics.Metric) and callable(vars(kind).get("result")):
            seams.replace(kind, "result", _result_of_sums)


def _result_of_sums(original, *args, **kwargs):
    with own_value.sums_are_read():
        return original(*args, **kwargs)


# Keras's methods that make the functions of a step, and where they leave them.
_FUNCTIONS = {"make_train_function": "train_function", "make_test_function": "test_function"}


@SEAMS.wrap(_keras_private.MAKE_TRAIN_FUNCTION, _keras_private.MAKE_TEST_FUNCTION)
def _make_step(original, model, *args, **kwargs):
    result = original(model, *args, **kwargs)
    function = getattr(model, attribute := _FUNCTIONS[original.__name__])
    if _dear_strategy(model.distribute_strategy) is not None and not isinstance(
        function, loss_contract.KerasStep
    ):
        setattr(model, attribute, loss_contract.KerasStep(function, _is_own_step(model)))
    return result


def _is_own_step(model) -> bool:
    kind = type(model)
    return (
        kind.train_step is not keras.Model.train_step
        or kind.compute_loss is not keras.Model.compute_loss
    )


@SEAMS.wrap(_keras_private.ALL_REDUCE_SUM_GRADIENTS)
def _all_reduce(original, optimizer, grads_and_vars):
    losses = loss_contract.current_losses()
    if losses is not None:
        grads_and_vars = list(grads_and_vars)
        _complete_shapes(grads_and_vars)
        _warn_of_compression(optimizer, grads_and_vars)
        with losses.reducing_gradients(), reductions.for_optimizer(_momentum_of(optimizer)):
            return original(optimizer, grads_and_vars)
    pairs = original(optimizer, grads_and_vars)
    extended = next(filter(None, (_extended_of(variable) for _, variable in pairs)), None)
    if extended is None:
        return pairs
    given = [gradient for gradient, _ in pairs if gradient is not None]
    means = iter(loss_contract.average_outside_of_run(extended, given))
    return [
        (gradient if gradient is None else next(means), variable) for gradient, variable in pairs
    ]


def _complete_shapes(grads_and_vars) -> None:
    # Of a kernel that is applied to more than two dimensions TensorFlow does not know the shape of
    # the gradient. Tensors of unknown size travel alone, and are not compressed.
    for gradient, variable in grads_and_vars:
        if isinstance(gradient, tf.Tensor) and not gradient.shape.is_fully_defined():
            gradient.set_shape(variable.shape)


def _momentum_of(optimizer) -> float:
    """The factor `u` of an optimizer that computes `velocity = u * velocity + sum`, else 0."""
    return float(optimizer.momentum) if _is_plain_sgd(optimizer) and optimizer.momentum < 1 else 0.0


def _is_plain_sgd(optimizer) -> bool:
    # A subclass may do something else.
    return type(optimizer) is keras.optimizers.SGD and not optimizer.nesterov


def _warn_of_compression(optimizer, grads_and_vars) -> None:
    extended = next(filter(None, (_extended_of(variable) for _, variable in grads_and_vars)), None)
    if extended is None or not extended.corrects_momentum or _is_plain_sgd(optimizer):
        return
    extended.warn_once(
        f"the gradients of {type(optimizer).__name__} are compressed without momentum correction, "
        "which is for keras.optimizers.SGD without `nesterov`. Other optimizers learn worse from "
        "gradients that come late: take that one, or compare with a training without compression."
    )


def _extended_of(variable):
    """The extended strategy of a variable of a distributed `DearStrategy`, else None."""
    if not isinstance(variable, variable_module.DearVariable):
        return None
    return variable.strategy.extended


@SEAMS.wrap(_tf_private.COMPUTE_AVERAGE_LOSS)
def _compute_average_loss(original, *args, **kwargs):
    # It need not ask for the number of replicas if it is told the size of the global batch.
    losses = loss_contract.current_losses()
    if losses is not None:
        losses.note_scaling()
    return original(*args, **kwargs)


@SEAMS.wrap(_tf_private.GRADIENT)
def _look_for_sums(original, tape, target, sources, output_gradients=None, *args, **kwargs):
    gradients = original(tape, target, sources, output_gradients, *args, **kwargs)
    losses = loss_contract.current_losses()
    if losses is not None and output_gradients is None:
        losses.note_gradients(target, gradients)
    return gradients


# Batches.
#
# `predict` puts the replicas' rows together only for strategies that Keras knows, and the
# `*_on_batch` methods hand the batch to `strategy.run` without distributing it.


@SEAMS.wrap(_keras_private.REDUCE_PER_REPLICA)
def _reduce_per_replica(original, values, strategy, reduction):
    dear = _dear_strategy(strategy)
    if dear is None or reduction != "concat":
        return original(values, strategy, reduction)
    return tf.nest.map_structure(lambda rows: dear.gather(rows, axis=0), values)


@SEAMS.wrap(
    _keras_private.TRAIN_ON_BATCH, _keras_private.TEST_ON_BATCH, _keras_private.PREDICT_ON_BATCH
)
def _on_batch(original, model, x, *args, **kwargs):
    strategy = _dear_strategy(model.distribute_strategy)
    if strategy is None:
        return original(model, x, *args, **kwargs)

    def mine(structure):
        return data.slice_rows(structure, strategy.rank, strategy.world_size)

    rows = {"y", "sample_weight"}
    args = [mine(arg) if place < 2 else arg for place, arg in enumerate(args)]
    kwargs = {name: mine(value) if name in rows else value for name, value in kwargs.items()}
    return original(model, mine(x), *args, **kwargs)


@SEAMS.wrap(_keras_private.EPOCH_ITERATOR_INIT)
def _read_as_distributed(original, iterator, distribute_strategy=None, *args, **kwargs):
    # Keras reads a generator ahead of the training, and goes on with it in the next call. And it
    # counts the batches of the data set that it was given, where a rank's own data may have more.
    original(iterator, distribute_strategy, *args, **kwargs)
    if _dear_strategy(distribute_strategy) is None:
        return
    adapter = iterator.data_adapter
    if isinstance(adapter, _keras_private.GENERATOR_DATA_ADAPTER.get()):
        source = adapter.get_tf_dataset()
        if isinstance(source, _tf_private.PREFETCH_DATASET.get()):
            (source,) = source._inputs()
        iterator._distributed_dataset = distribute_strategy.experimental_distribute_dataset(
            data.read_in_step(source)
        )
    elif isinstance(adapter, _keras_private.TF_DATASET_ADAPTER.get()):
        adapter._dataset = iterator._distributed_dataset
        iterator._num_batches = adapter.num_batches


# Optimizers.


@SEAMS.wrap(_keras_private.CHECK_FINITE)
def _agree_on_overflow(original, optimizer, grads):
    # The loss scale optimizer looks for overflows in this replica's gradients, before the
    # reduction. With an overflow on one rank only, ranks would take different branches, one of
    # which holds the reduction.
    finite = original(optimizer, grads)
    if (losses := loss_contract.current_losses()) is not None:
        losses.row_sums.note_applied(grads)  # Divided by the scale, they are other tensors.
    strategy = _dear_strategy()
    context = tf.distribute.get_replica_context()
    if strategy is None or context is None:
        return finite
    overflows = tf.cast(tf.logical_not(finite), tf.int32)
    total = strategy.extended.reducer.all_reduce(
        [overflows], name="overflow flag", active=context.examples.present
    )
    return total[0] < 1


@SEAMS.wrap(_keras_private.HANDLE_FINITE_GRADS, _keras_private.HANDLE_NON_FINITE_GRADS)
def _change_loss_scale(original, optimizer, *args, **kwargs):
    # The scale is the same on all ranks: not a value to average.
    context = tf.distribute.get_replica_context()
    if _dear_strategy() is None or context is None:
        return original(optimizer, *args, **kwargs)
    with context.updating():
        return original(optimizer, *args, **kwargs)


@SEAMS.wrap(_keras_private.APPLY)
def _accumulate_all_gradients(original, optimizer, grads, trainable_variables=None):
    # With gradient accumulation the reduction moves sums over several batches: a rank without
    # examples in the last one still has those of the others. What a batch without examples adds is
    # taken out where it comes in.
    losses = loss_contract.current_losses()
    if losses is None:
        return original(optimizer, grads, trainable_variables)
    grads = list(grads)
    losses.row_sums.note_applied(grads)
    if not optimizer.gradient_accumulation_steps:
        return original(optimizer, grads, trainable_variables)
    examples = tf.distribute.get_replica_context().examples
    weight = losses.gradient_weight()
    grads = [
        gradient if gradient is None else examples.gate(_scaled(gradient, weight))
        for gradient in grads
    ]
    with examples.disregarded(), losses.gradients_are_weighted():
        return original(optimizer, grads, trainable_variables)


def _scaled(gradient, weight):
    if weight is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = _scaled(gradient.values, weight)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(weight, gradient.dtype)


# The scope, and the variables made in it.


@SEAMS.wrap(_keras_private.COMPILE)
def _compile_in_scope(original, model, *args, **kwargs):
    # A model made in the scope belongs to its strategy; so do the metrics and the optimizer that
    # `compile` makes, wherever it is called.
    strategy = _dear_strategy(getattr(model, "_distribute_strategy", None))
    if strategy is None or tf.distribute.in_cross_replica_context():
        return original(model, *args, **kwargs)
    with strategy.scope():
        return original(model, *args, **kwargs)


@SEAMS.wrap(
    _keras_private.MAKE_TRAIN_FUNCTION,
    _keras_private.MAKE_TEST_FUNCTION,
    _keras_private.MAKE_PREDICT_FUNCTION,
)
def _require_variables_of_the_scope(original, model, *args, **kwargs):
    # A variable from outside the scope would stay this rank's own: ranks would drift apart, and
    # callbacks that look at a metric would decide differently on each.
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


# Comparing variables over the ranks: after the callbacks had their turn, as some load weights.

# Lists of callbacks whose `fit` is running, and the number of steps at the last comparison.
_fitting: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _consistency_of(callbacks):
    strategy = _dear_strategy(getattr(callbacks.model, "distribute_strategy", None))
    return None if strategy is None else strategy.extended.consistency


@SEAMS.wrap(_keras_private.ON_TRAIN_BEGIN)
def _compare_at_begin_of_fit(original, callbacks, logs=None):
    original(callbacks, logs)
    consistency = _consistency_of(callbacks)
    if consistency is not None:
        _fitting[callbacks] = 0
        consistency.check_model(callbacks.model)


@SEAMS.wrap(_keras_private.ON_TRAIN_BATCH_END)
def _compare_every_few_steps(original, callbacks, batch, logs=None):
    original(callbacks, batch, logs)
    consistency = _consistency_of(callbacks)
    if consistency is not None and consistency.every:
        before = _fitting.get(callbacks, 0)
        _fitting[callbacks] = batch + 1
        if (batch + 1) // consistency.every != before // consistency.every:
            consistency.check_model(callbacks.model)


@SEAMS.wrap(_keras_private.ON_TRAIN_END)
def _end_of_fit(original, callbacks, logs=None):
    _fitting.pop(callbacks, None)
    original(callbacks, logs)


@SEAMS.wrap(_keras_private.ON_TEST_BEGIN)
def _compare_at_begin_of_evaluate(original, callbacks, logs=None):
    original(callbacks, logs)
    consistency = _consistency_of(callbacks)
    # What `fit` validates was compared when it began.
    if consistency is not None and callbacks not in _fitting:
        consistency.check_model(callbacks.model)


# Variables in functions, and those that Keras counts with.


@SEAMS.wrap(_tf_private.WATCH_VARIABLE)
def _watch_without_waiting(original, graph, variable):
    # A function that calls another one, as Keras's loop over batches calls the step, notes the
    # variables of the inner one and asks for their handles to do so. An await op for each of them
    # would make the whole call wait for all updates, and the forward pass would overlap nothing.
    with variable_module.raw_handles():
        return original(graph, variable)


@SEAMS.wrap(_keras_private.INITIALIZE_VARIABLE)
def _trust_counters(original, variable, value):
    # The variables that Keras makes with aggregation "only_first_replica", such as the number of
    # iterations, are written in every step, alike on all ranks: a collective for each would only
    # cost time. Those of a script get what it asked for.
    with variable_module.written_alike():
        return original(variable, value)
