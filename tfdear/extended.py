# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`strategy.extended`: what Keras and `tf.distribute` call while a model is built and trained."""

import tensorflow as tf

from tfdear import _tf_private, data, empty_batch, reductions, replica_context, sparse_rows
from tfdear import collectives as collectives_module
from tfdear import variable as variable_module

_Reconciliation = variable_module.Reconciliation

# Keeps the seeds of two ranks apart for longer than any training counts.
_SEED_STRIDE = 1_000_003


class DearExtended(_tf_private.distribute_lib.StrategyExtendedV1):
    """One process, one replica, one device; the other ranks are other processes.

    Args:
        strategy: The `DearStrategy`.
        job: The `tfdear.job.Job` of this process.
        device: Full name of the local device.
    """

    def __init__(self, strategy, job, device):
        super().__init__(strategy)
        self._job = job
        self._device = device
        self._cluster_resolver = job.cluster_resolver
        self._task_type = "worker"
        self._task_id = job.rank
        self._is_chief = job.rank == 0
        self._num_workers = job.world_size
        self.weighs_examples = job.options.weighting == "examples"
        if job.world_size > 1:
            self.reducer = reductions.Reducer(job.engine, device, job.tuner)
            self.collectives = collectives_module.Collectives(self.reducer)

    # What Keras's functions ask (`keras_seams`), where isinstance would import in a circle.
    is_dear = True

    @property
    def is_distributed_dear(self) -> bool:
        """Whether this strategy has other ranks to talk to."""
        return self._job.world_size > 1

    # Variables.

    def _create_variable(self, next_creator, **kwargs):
        owner = kwargs.pop("colocate_with", None)
        with tf.device(self._device):
            if not self.is_distributed_dear:
                return next_creator(**kwargs)
            owner = owner if isinstance(owner, variable_module.DearVariable) else None
            kept = (
                "trainable",
                "name",
                "dtype",
                "shape",
                "synchronization",
                "aggregation",
                "validate_shape",
                "constraint",
                "caching_device",
                "experimental_enable_variable_lifting",
            )
            arguments = {name: kwargs[name] for name in kept if kwargs.get(name) is not None}
            initial_value = self._initial_value(
                kwargs.get("initial_value"), kwargs.get("dtype"), kwargs.get("name")
            )
            return variable_module.DearVariable(
                initial_value,
                number=self._job.engine.create_variable(),
                owner=owner,
                # An optimizer's slots are written by updates, alike on all ranks.
                reconciliation=(
                    _Reconciliation.NONE
                    if owner is not None
                    else _reconciliation(arguments, initial_value)
                ),
                distribute_strategy=self._container_strategy(),
                **arguments,
            )

    def _initial_value(self, initial_value, dtype, name):
        """Rank 0's initial value, so that ranks need not draw the same random numbers."""
        if isinstance(initial_value, _tf_private.trackable.CheckpointInitialValueCallable):
            return initial_value  # Every rank reads the same checkpoint.
        with tf.init_scope():
            value = initial_value() if callable(initial_value) else initial_value
            if value is None or isinstance(value, _tf_private.trackable.CheckpointInitialValue):
                return value
            value = tf.convert_to_tensor(value, dtype)
            if value.dtype in (tf.string, tf.variant, tf.resource):
                return value
            value = self.collectives.broadcast(value)
            if name and "seed_generator_state" in name and not self._job.options.shared_seeds:
                # Ranks that started from the same seed would all draw the same dropout masks.
                stride = tf.constant([_SEED_STRIDE * self._job.rank, 0], tf.int64)
                value = tf.cast(tf.cast(value, tf.int64) + stride, value.dtype)
            return value

    def _validate_colocate_with_variable(self, colocate_with_variable):
        if not isinstance(colocate_with_variable, tf.Variable):
            raise ValueError(
                "`colocate_vars_with` takes a variable of this strategy. Received: "
                f"{colocate_with_variable!r}"
            )

    def read_var(self, replica_local_var):
        return tf.identity(replica_local_var)

    def value_container(self, value):
        return value

    # Data.

    def _experimental_distribute_dataset(self, dataset, options):
        self._reject_per_replica(options)
        if not self.is_distributed_dear:
            return dataset
        return data.distribute(dataset, self._job.rank, self._job.world_size)

    def _distribute_datasets_from_function(self, dataset_fn, options):
        self._reject_per_replica(options)
        context = _tf_private.distribute_lib.InputContext(
            self._job.world_size, self._job.rank, self._job.world_size
        )
        dataset = dataset_fn(context)
        if not self.is_distributed_dear:
            return dataset
        return data.mark_distributed(data.same_length(dataset, self._job.exchange_integers))

    def _experimental_distribute_values_from_function(self, value_fn):
        context = _tf_private.distribute_lib.ValueContext(self._job.rank, self._job.world_size)
        return value_fn(context)

    def _reject_per_replica(self, options):
        modes = _tf_private.distribute_lib.InputReplicationMode
        if options and options.experimental_replication_mode == modes.PER_REPLICA:
            raise ValueError(
                "InputReplicationMode.PER_REPLICA is not supported by DearStrategy: a process has "
                "one replica, so PER_WORKER (the default) is the same"
            )

    # Steps.

    def _call_for_each_replica(self, fn, args, kwargs):
        reductions.check_not_xla()
        strategy = self._container_strategy()
        with tf.device(self._device):
            if not self.is_distributed_dear:
                with _LocalReplicaContext(strategy, 0):
                    return fn(*args, **kwargs)
            examples = number_of_examples((args, kwargs))
            context = replica_context.DearReplicaContext(strategy, self._job.rank, examples)
            if examples is not None:
                args, kwargs = empty_batch.fill((args, kwargs), examples)
            given = tf.nest.flatten((args, kwargs))
            context.data = next((value for value in given if isinstance(value, tf.Tensor)), None)
            with context:
                outputs = fn(*args, **kwargs)
                context.finish()
            return outputs if examples is None else empty_batch.cut(outputs, examples)

    def _use_merge_call(self):
        return False

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        del options  # Hints for TensorFlow's own collectives.
        reductions.check_not_xla()
        if not self.is_distributed_dear:
            return value
        context = tf.distribute.get_replica_context()
        active = getattr(context, "has_examples", None)
        return self._reduce_flat(reduce_op, value, active)

    def _reduce_flat(self, reduce_op, value, active=None):
        flat = tf.nest.flatten(value)
        if reduce_op != _tf_private.reduce_util.ReduceOp.MEAN:
            sums = self.reducer.all_reduce(flat, name="all_reduce", active=active)
        elif active is None:
            sums = self.reducer.all_reduce(flat, name="all_reduce")
            sums = [_divide(total, self._job.world_size) for total in sums]
        else:  # The mean over the ranks that have examples.
            flat = [*flat, tf.cast(active, tf.int32)]
            *sums, count = self.reducer.all_reduce(flat, name="all_reduce", active=active)
            sums = [_divide(total, count) for total in sums]
        return tf.nest.pack_sequence_as(value, sums)

    def _replica_ctx_update(self, var, fn, args, kwargs, group):
        return self._update(var, fn, args, kwargs, group)

    def _update(self, var, fn, args, kwargs, group):
        if self._can_defer(var, args):

            def update(variable, gradient):
                with _tf_private.distribute_lib.UpdateContext(self._device):
                    fn(variable, gradient, *args[1:], **kwargs)

            with tf.device(self._device):
                if self.reducer.defer(var, update, args[0]):
                    return tf.no_op() if group else None
        if self.is_distributed_dear and args and isinstance(args[0], tf.IndexedSlices):
            args = (sparse_rows.sum_duplicates(args[0]), *args[1:])
        return self._update_non_slot(var, fn, (var,) + tuple(args), kwargs, group)

    def _can_defer(self, var, args):
        return (
            self.is_distributed_dear
            and isinstance(var, variable_module.DearVariable)
            and bool(args)
            and isinstance(args[0], (tf.Tensor, tf.IndexedSlices))
            and not tf.executing_eagerly()
        )

    def _update_non_slot(self, colocate_with, fn, args, kwargs, group):
        del colocate_with
        context = tf.distribute.get_replica_context()
        updating = getattr(context, "updating", None)
        with tf.device(self._device), _tf_private.distribute_lib.UpdateContext(self._device):
            if updating is not None:
                with updating():
                    result = fn(*args, **kwargs)
            else:
                result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    # Values of all ranks, outside of `run`.

    def _reduce_to(self, reduce_op, value, destinations, options):
        del destinations, options
        if not self.is_distributed_dear:
            return value
        value = tf.nest.map_structure(tf.convert_to_tensor, value)
        return self._reduce_flat(reduce_op, value, empty_batch.counts(value))

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        values = [value for value, _ in value_destination_pairs]
        return self._reduce_to(reduce_op, values, None, options)

    def _gather_to_implementation(self, value, destinations, axis, options):
        del destinations, options
        return self._gather(value, axis)

    def _replica_ctx_all_gather(self, value, axis, options):
        del options
        return tf.nest.map_structure(lambda rows: self._gather(rows, axis), value)

    def _gather(self, value, axis):
        if not self.is_distributed_dear:
            return value
        if isinstance(value, tf.RaggedTensor):
            lengths = self.collectives.all_gather(value.row_lengths())
            return tf.RaggedTensor.from_row_lengths(self._gather(value.values, 0), lengths)
        value = tf.convert_to_tensor(value)
        if value.shape.rank == 0:
            return self.collectives.all_gather(value[tf.newaxis])
        if value.shape.rank is not None and not -value.shape.rank <= axis < value.shape.rank:
            raise ValueError(
                f"`axis` must be a dimension of the tensor. Received: axis={axis}, {value.shape}"
            )
        if axis == 0:
            return self.collectives.all_gather(value)
        return tf.experimental.numpy.swapaxes(
            self.collectives.all_gather(tf.experimental.numpy.swapaxes(value, 0, axis)), 0, axis
        )

    def _broadcast_to(self, tensor, destinations):
        del destinations
        return tensor

    def _local_results(self, value):
        return (value,)

    # Facts.

    def _in_multi_worker_mode(self):
        # True would make Keras 3 take paths that work for TensorFlow's own strategies only.
        return False

    def _get_local_replica_id(self, replica_id_in_sync_group):
        return 0

    def _get_replica_id_in_sync_group(self, local_replica_id):
        return self._job.rank

    @property
    def _num_replicas_in_sync(self):
        return self._job.world_size

    @property
    def worker_devices(self):
        return (self._device,)

    @property
    def parameter_devices(self):
        return (self._device,)

    def non_slot_devices(self, var_list):
        return (self._device,)

    @property
    def experimental_should_init(self):
        return True

    @property
    def experimental_between_graph(self):
        return False

    @property
    def should_checkpoint(self):
        return self._is_chief

    @property
    def should_save_summary(self):
        return self._is_chief

    @property
    def _global_batch_size(self):
        return True

    @property
    def _support_per_replica_values(self):
        return False


class _LocalReplicaContext(_tf_private.distribute_lib.ReplicaContext):
    @property
    def devices(self):
        return self._strategy.extended.worker_devices


def _reconciliation(arguments, initial_value):
    synchronization = arguments.get("synchronization")
    aggregation = arguments.get("aggregation", tf.VariableAggregation.NONE)
    if aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        alike = variable_module.is_written_alike()
        return _Reconciliation.NONE if alike else _Reconciliation.FIRST
    if synchronization == tf.VariableSynchronization.ON_READ:
        mean = aggregation == tf.VariableAggregation.MEAN
        return _Reconciliation.MEAN if mean else _Reconciliation.SUM
    if aggregation == tf.VariableAggregation.SUM:
        return _Reconciliation.SUM_OF_WRITES
    dtype = arguments.get("dtype") or getattr(initial_value, "dtype", tf.float32)
    averaged = aggregation in (tf.VariableAggregation.NONE, tf.VariableAggregation.MEAN)
    if arguments.get("trainable") is False and tf.as_dtype(dtype).is_floating and averaged:
        return _Reconciliation.MEAN
    return _Reconciliation.NONE


def number_of_examples(arguments):
    """Rows of the first batched tensor among a step's arguments, or None if there is none."""
    for value in tf.nest.flatten(arguments):
        if isinstance(value, tf.RaggedTensor):
            return tf.cast(value.nrows(), tf.int64)
        if isinstance(value, tf.SparseTensor):
            return value.dense_shape[0]
        shape = getattr(value, "shape", None)
        if shape is None or isinstance(value, tf.Variable):
            continue
        if isinstance(shape, tf.TensorShape):
            if shape.rank is not None and shape.rank > 0:
                known = shape[0]
                return (
                    tf.shape(value, tf.int64)[0] if known is None else tf.constant(known, "int64")
                )
        elif len(shape) > 0:
            return tf.constant(shape[0], tf.int64)
    return None


def _divide(total, count):
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(_divide(total.values, count), total.indices, total.dense_shape)
    if total.dtype.is_integer:
        return total // tf.cast(count, total.dtype)
    return total / tf.cast(count, total.dtype)
