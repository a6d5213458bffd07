# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`strategy.extended`: what Keras and `tf.distribute` call while a model is built and trained."""

import tensorflow as tf
from absl import logging

from tfdear._private import tensorflow as _tf_private
from tfdear.data import empty_batch, first_batch, global_batches, iterators
from tfdear.data import examples as examples_module
from tfdear.gradients import collectives as collectives_module
from tfdear.gradients import consistency, reducer, sparse_rows
from tfdear.gradients import variable as variable_module
from tfdear.losses import loss_contract
from tfdear.strategy import (
    hyperparameter_search,
    ignored_options,
    replica_context,
    step_collectives,
    variable_creation,
)


class DearExtended(_tf_private.distribute_lib.StrategyExtendedV1):
    """One process, one replica, one device; the other ranks are other processes.

    Args:
        strategy: The `DearStrategy`.
        job: The `tfdear.job.job.Job` of this process.
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
        self.elements = examples_module.Elements()
        self._warnings: set[str] = set()
        self.weighs_examples = job.options.weighting == "examples"
        if job.world_size > 1:
            self.reducer = reducer.Reducer(
                job.engine, device, None if job.tuner is None else job.tuner.add_layout
            )
            self.collectives = collectives_module.Collectives(self.reducer)
            self._variable_creator = variable_creation.VariableCreator(
                job.engine, self.collectives, None if job.options.shared_seeds else job.rank
            )
            self.consistency = consistency.Consistency(self, job.rank, job.options.check_every)
            self.step_collectives = step_collectives.StepCollectives(
                self.reducer,
                self.collectives,
                {
                    "world": job.rank,
                    "intra_node": job.node.local_rank,
                    "inter_node": job.node.node_rank,
                },
            )

    # Lets `integrations` recognize the strategy without importing this module.
    is_dear = True

    @property
    def world_size(self) -> int:
        """Number of ranks; reading it says nothing about a step, as `num_replicas_in_sync` does."""
        return self._job.world_size

    def warn_once(self, message: str) -> None:
        """Logs a warning in the name of the package, on rank 0, the first time it is given."""
        if message not in self._warnings:
            self._warnings.add(message)
            if self._job.rank == 0:
                logging.warning("tfdear: %s", message)

    @property
    def corrects_momentum(self) -> bool:
        """Whether gradients are compressed in a way that allows for an optimizer's momentum."""
        return self._job.compresses and self._job.options.compression.corrects_momentum

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
            hyperparameter_search.refuse(self._job.rank, self._job.world_size)
            return self._variable_creator.create(kwargs, owner, self._container_strategy())

    def variables(self) -> list[variable_module.DearVariable]:
        """The variables of this strategy that are still in use, in the order of their making."""
        return self._variable_creator.variables()

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
        self._check_input_options(options)
        if self.is_distributed_dear:
            dataset = global_batches.distribute(
                dataset, self._job.rank, self._job.world_size, self._gather_lists
            )
            comparison = getattr(dataset, first_batch.COMPARISON, None)
            self.elements.add(dataset.element_spec, comparison)
        return iterators.hand_out(dataset)

    def _gather_lists(self, integers: list[int]) -> list[list[int]]:
        """Every rank's integers, of which ranks may have different numbers."""
        own = tf.constant([len(integers), *integers], tf.int64)
        flat = self.collectives.all_gather(own).numpy().tolist()
        lists = []
        while flat:
            lists.append(flat[1 : flat[0] + 1])
            flat = flat[flat[0] + 1 :]
        return lists

    def _distribute_datasets_from_function(self, dataset_fn, options):
        self._check_input_options(options)
        context = _tf_private.distribute_lib.InputContext(
            self._job.world_size, self._job.rank, self._job.world_size
        )
        dataset = dataset_fn(context)
        if self.is_distributed_dear:
            self.elements.add(dataset.element_spec)
            dataset = global_batches.same_length(dataset, self._job.exchange_integers)
            dataset = global_batches.mark_distributed(dataset)
        return iterators.hand_out(dataset)

    def _experimental_distribute_values_from_function(self, value_fn):
        context = _tf_private.distribute_lib.ValueContext(self._job.rank, self._job.world_size)
        return value_fn(context)

    def _check_input_options(self, options):
        modes = _tf_private.distribute_lib.InputReplicationMode
        if options and options.experimental_replication_mode == modes.PER_REPLICA:
            raise ValueError(
                "InputReplicationMode.PER_REPLICA is not supported by DearStrategy: a process has "
                "one replica, so PER_WORKER (the default) is the same"
            )
        ignored_options.warn(options)

    # Steps.

    def _call_for_each_replica(self, fn, args, kwargs):
        strategy = self._container_strategy()
        with tf.device(self._device):
            if not self.is_distributed_dear:
                with _LocalReplicaContext(strategy, 0):
                    return fn(*args, **kwargs)
            reducer.check_not_xla()
            count = self.number_of_examples((args, kwargs))
            examples = examples_module.Examples(count, self.reducer)
            if count is not None:
                args, kwargs = empty_batch.fill((args, kwargs), count, self.elements)
            context = replica_context.DearReplicaContext(
                strategy, self._job.rank, examples, (args, kwargs)
            )
            with context:
                outputs = context.losses.make_global(fn(*args, **kwargs))
                context.finish()
            return outputs if count is None else empty_batch.cut(outputs, count)

    def number_of_examples(self, arguments):
        """This rank's number of examples in a step's arguments, or None if it is not known."""
        return examples_module.count(arguments, self.elements)

    def _use_merge_call(self):
        return False

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        ignored_options.warn(options)  # Hints for TensorFlow's own collectives.
        if not self.is_distributed_dear:
            return value
        reducer.check_not_xla()
        context = tf.distribute.get_replica_context()
        losses = loss_contract.current_losses()
        weight = losses.gradient_weight() if losses is not None and losses.are_reduced else None
        if weight is not None:
            flat = tf.nest.flatten(value)
            means = self.reducer.all_reduce(flat, name="all_reduce", weight=weight)
            return tf.nest.pack_sequence_as(value, means)
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
        # For a rank alone too, so that results do not depend on the number of ranks.
        if args and isinstance(args[0], tf.IndexedSlices):
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
        del destinations
        ignored_options.warn(options)
        if not self.is_distributed_dear:
            return value
        value = tf.nest.map_structure(tf.convert_to_tensor, value)
        return self._reduce_flat(reduce_op, value, empty_batch.counts(value))

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        values = [value for value, _ in value_destination_pairs]
        return self._reduce_to(reduce_op, values, None, options)

    def _gather_to_implementation(self, value, destinations, axis, options):
        del destinations
        ignored_options.warn(options)
        return self.gather(value, axis)

    def gather(self, value, axis):
        """Concatenates along an axis the values of the ranks that have examples."""
        if not self.is_distributed_dear:
            return value
        if isinstance(value, tf.RaggedTensor):
            lengths = self.step_collectives.all_gather(value.row_lengths())
            return tf.RaggedTensor.from_row_lengths(self.gather(value.values, 0), lengths)
        value = tf.convert_to_tensor(value)
        if value.shape.rank == 0:
            return self.step_collectives.all_gather(value[tf.newaxis])
        if value.shape.rank is not None and not -value.shape.rank <= axis < value.shape.rank:
            raise ValueError(
                f"`axis` must be a dimension of the tensor. Received: axis={axis}, {value.shape}"
            )
        if axis == 0:
            return self.step_collectives.all_gather(value)
        return tf.experimental.numpy.swapaxes(
            self.step_collectives.all_gather(tf.experimental.numpy.swapaxes(value, 0, axis)),
            0,
            axis,
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


class _LocalReplicaContext(_tf_private.distribute_lib.ReplicaContext):
    @property
    def devices(self):
        return self._strategy.extended.worker_devices


def _divide(total, count):
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(_divide(total.values, count), total.indices, total.dense_shape)
    if total.dtype.is_integer:
        return total // tf.cast(count, total.dtype)
    return total / tf.cast(count, total.dtype)
