# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`strategy.extended`: what Keras and `tf.distribute` call while a model is built and trained."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tfdear._private import tensorflow as _tf_private
from tfdear.base.names import Lane
from tfdear.data import empty_batch, look_ahead
from tfdear.data import examples as examples_module
from tfdear.gradients import collectives as collectives_module
from tfdear.gradients import consistency, reducer, row_travel, sparse_rows
from tfdear.gradients import variable as variable_module
from tfdear.gradients.sparse_rows import Gradient
from tfdear.job import job as job_module
from tfdear.losses import loss_contract
from tfdear.strategy import (
    data_sets,
    hyperparameter_search,
    ignored_options,
    replica_context,
    step_collectives,
    step_seeds,
    table_creation,
    table_steps,
    variable_creation,
)
from tfdear.strategy import table_service as table_service_module
from tfdear.strategy.ignored_options import Options


class DearExtended(_tf_private.distribute_lib.StrategyExtendedV1):
    """One process, one replica, one device; the other ranks are other processes."""

    def __init__(self, strategy: tf.distribute.Strategy, job: job_module.Job, device: str):
        super().__init__(strategy)
        self._job = job
        self._device = device
        self._task_type = "worker"
        self._task_id = job.rank
        self._is_chief = job.rank == 0
        self._num_workers = job.world_size
        self.elements = examples_module.Elements()
        self.look_ahead = look_ahead.LookAhead(lambda: "table_service" in vars(self))
        self._data_sets = data_sets.DataSets(
            job,
            self.gather_lists,
            functools.partial(self.gather_lists, lane=Lane.LENGTHS),
            self.elements,
            self.look_ahead,
        )
        self._warnings: set[str] = set()
        self.embedding_schedule = job.options.embedding_schedule
        self.embeddings = job.options.embeddings  # Of layers that leave it to the strategy.
        self.weighs_examples = job.options.weighting == "examples"
        if job.world_size > 1:
            on_layout = None if job.tuner is None else job.tuner.add_layout
            travel = row_travel.RowTravel(job.engine, job.table_choice, self.embeddings)
            self.reducer = reducer.Reducer(job.engine, device, job.first_plan, on_layout, travel)
            self.collectives = collectives_module.Collectives(self.reducer)
            self.lookup_groups = self.reducer.lookups
            self._variable_creator = variable_creation.VariableCreator(
                job.engine, self.collectives, None if job.options.shared_seeds else job.rank
            )
            self.variables = self._variable_creator.variables
            self.consistency = consistency.Consistency(
                self.collectives, self.variables, job.rank, job.options.check_every
            )
            ranks_in_groups = {
                "world": job.rank,
                "intra_node": job.node.local_rank,
                "inter_node": job.node.node_rank,
            }
            self.step_collectives = step_collectives.StepCollectives(
                self.reducer, self.collectives, ranks_in_groups
            )

    # Lets `integrations` recognize the strategy without importing this module.
    is_dear = True
    # TensorFlow looks for it here.
    _cluster_resolver = property(lambda self: self._job.cluster_resolver)

    @property
    def world_size(self) -> int:
        """Number of ranks; unlike `num_replicas_in_sync`, a step may read it without effect."""
        return self._job.world_size

    @functools.cached_property
    def table_service(self) -> table_service_module.TableService:
        """Hands out rows of sharded tables; first used when all ranks create one."""
        return table_service_module.TableService(self._job)

    @property
    def rank(self) -> int:
        """This process among the ranks."""
        return self._job.rank

    def broadcast_value(self, value: tf.Tensor) -> tf.Tensor:
        """Rank 0's value of a tensor that all ranks have."""
        return self.collectives.broadcast(value) if self.is_distributed_dear else value

    def warn_once(self, message: str) -> None:
        """Logs a warning on rank 0, the first time it is given."""
        if message not in self._warnings:
            self._warnings.add(message)
            if self._is_chief:
                logging.warning("tfdear: %s", message)

    @property
    def corrects_momentum(self) -> bool:
        """Whether the compression of gradients corrects for an optimizer's momentum."""
        compression = self._job.options.compression
        return self._job.compresses and compression is not None and compression.corrects_momentum

    @property
    def is_distributed_dear(self) -> bool:
        """Whether this strategy has several ranks."""
        return self._job.world_size > 1

    # Variables.

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> tf.Variable:
        self._job.check_open()
        owner = kwargs.pop("colocate_with", None)
        with tf.device(self._device):
            strategy = self._container_strategy()
            placement = table_creation.placement_of(kwargs, owner)
            if placement is not None:
                table = table_creation.create(self._job.engine, kwargs, owner, placement, strategy)
                if table is not None:
                    return table
            if not self.is_distributed_dear:
                return next_creator(**kwargs)
            hyperparameter_search.refuse(self._job.rank, self._job.world_size)
            return self._variable_creator.create(kwargs, owner, strategy)

    def _validate_colocate_with_variable(self, colocate_with_variable: object) -> None:
        if not isinstance(colocate_with_variable, tf.Variable):
            raise ValueError(
                "`colocate_vars_with` must be a variable of this strategy. Received: "
                f"colocate_vars_with={colocate_with_variable!r}"
            )

    def read_var(self, replica_local_var: tf.Variable) -> tf.Tensor:
        return tf.identity(replica_local_var)

    def value_container(self, value: object) -> object:
        return value

    # Data.

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None
    ) -> object:
        self._job.check_open()
        self._check_input_options(options)
        return self._data_sets.distribute(dataset)

    def gather_lists(self, integers: list[int], lane: Lane = Lane.CONTROL) -> list[list[int]]:
        """Gathers lists of integers, which may have different lengths, from all ranks."""
        with tf.init_scope():
            own = tf.constant([len(integers), *integers], tf.int64)
            flat = self.collectives.all_gather(own, lane).numpy().tolist()
        lists: list[list[int]] = []
        while flat:
            lists.append(flat[1 : flat[0] + 1])
            flat = flat[flat[0] + 1 :]
        return lists

    def _distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None,
    ) -> object:
        self._job.check_open()
        self._check_input_options(options)
        context = _tf_private.distribute_lib.InputContext(
            self._job.world_size, self._job.rank, self._job.world_size
        )
        return self._data_sets.distribute_own(dataset_fn(context))

    def _experimental_distribute_values_from_function(
        self, value_fn: Callable[[tf.distribute.experimental.ValueContext], object]
    ) -> object:
        context = _tf_private.distribute_lib.ValueContext(self._job.rank, self._job.world_size)
        return value_fn(context)

    def _check_input_options(self, options: tf.distribute.InputOptions | None) -> None:
        modes = _tf_private.distribute_lib.InputReplicationMode
        if options and options.experimental_replication_mode == modes.PER_REPLICA:
            raise ValueError(
                "InputReplicationMode.PER_REPLICA is not supported by DearStrategy: a process has "
                "one replica, so PER_WORKER (the default) is the same."
            )
        ignored_options.warn(options)

    # Steps.

    def _call_for_each_replica(
        self, fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        self._job.check_open()
        strategy = self._container_strategy()
        with tf.device(self._device):
            if not self.is_distributed_dear:
                with _LocalReplicaContext(strategy, 0):
                    return fn(*args, **kwargs)
            reducer.check_not_xla()
            count = self.number_of_examples((args, kwargs))
            examples = examples_module.Examples(count, self.reducer)
            args, kwargs = empty_batch.fill((args, kwargs), count, self.elements)
            context = replica_context.DearReplicaContext(
                strategy, self._job.rank, examples, (args, kwargs)
            )
            with context, step_seeds.of_rank(self._job):
                outputs = context.losses.make_global(fn(*args, **kwargs))
                context.finish()
            return empty_batch.cut(outputs, count, context.own_reads)

    def number_of_examples(self, arguments: object) -> tf.Tensor | None:
        """This rank's number of examples in a step's arguments, or None if it is not known."""
        return examples_module.count(arguments, self.elements)

    def _use_merge_call(self) -> bool:
        return False

    def _replica_ctx_all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: object, options: Options | None = None
    ) -> object:
        ignored_options.warn(options)  # Hints for TensorFlow's own collectives.
        if not self.is_distributed_dear:
            return value
        reducer.check_not_xla()
        losses = loss_contract.current_losses()
        weight = losses.gradient_weight() if losses is not None and losses.is_reducing else None
        if weight is not None:
            flat = tf.nest.flatten(value)
            means = self.reducer.all_reduce(flat, name="all_reduce", weight=weight)
            return tf.nest.pack_sequence_as(value, means)
        examples = examples_module.current()
        return self._reduce_flat(reduce_op, value, None if examples is None else examples.present)

    def _reduce_flat(
        self, reduce_op: tf.distribute.ReduceOp, value: object, active: tf.Tensor | None = None
    ) -> object:
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

    def _update(
        self,
        var: tf.Variable,
        fn: Callable[..., object],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        group: bool,
    ) -> object:
        if self.is_distributed_dear:
            self.lookup_groups.close()
        if table_steps.update(self, self._device, var, fn, args, kwargs):
            return tf.no_op() if group else None
        can_defer = (
            self.is_distributed_dear
            and isinstance(var, variable_module.DearVariable)
            and args
            and isinstance(args[0], (tf.Tensor, tf.IndexedSlices))
            and not tf.executing_eagerly()
        )
        if can_defer:

            def update(variable: tf.Variable, gradient: Gradient) -> None:
                with _tf_private.distribute_lib.UpdateContext(self._device):
                    fn(variable, gradient, *args[1:], **kwargs)

            with tf.device(self._device):
                if self.reducer.defer(var, update, args[0]):
                    return tf.no_op() if group else None
        # With one rank too, so that results do not depend on the number of ranks.
        if args and isinstance(args[0], tf.IndexedSlices):
            args = (sparse_rows.sum_duplicates(args[0]), *args[1:])
        return self._update_non_slot(var, fn, (var,) + tuple(args), kwargs, group)

    # Called inside of `run`.
    _replica_ctx_update = _update

    def _update_non_slot(
        self,
        colocate_with: object,
        fn: Callable[..., object],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        group: bool,
    ) -> object:
        context = tf.distribute.get_replica_context()
        updating = getattr(context, "updating", contextlib.nullcontext)
        with tf.device(self._device), _tf_private.distribute_lib.UpdateContext(self._device):
            with updating(), step_seeds.of_all(self._job):
                result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    # Values of all ranks, outside of `run`.

    def _reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value: object,
        destinations: object,
        options: Options | None,
    ) -> object:
        self._job.check_open()
        ignored_options.warn(options)
        if not self.is_distributed_dear:
            return value
        value = tf.nest.map_structure(tf.convert_to_tensor, value)
        return self._reduce_flat(reduce_op, value, empty_batch.counts(value))

    def _batch_reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value_destination_pairs: Sequence[tuple[object, object]],
        options: Options | None,
    ) -> object:
        values = [value for value, _ in value_destination_pairs]
        return self._reduce_to(reduce_op, values, None, options)

    def _gather_to_implementation(
        self, value: object, destinations: object, axis: int, options: Options | None
    ) -> object:
        ignored_options.warn(options)
        return self.step_collectives.gather(value, axis) if self.is_distributed_dear else value

    def _broadcast_to(self, tensor: tf.Tensor, destinations: object) -> tf.Tensor:
        return tensor

    def _local_results(self, value: object) -> tuple[object, ...]:
        return (value,)

    # Properties that TensorFlow and Keras ask for.

    def _in_multi_worker_mode(self) -> bool:
        # True would make Keras 3 take paths that work for TensorFlow's own strategies only.
        return False

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return 0

    def _get_replica_id_in_sync_group(self, local_replica_id: int) -> int:
        return self._job.rank

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._job.world_size

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return (self._device,)

    parameter_devices = worker_devices

    def non_slot_devices(self, var_list: Sequence[tf.Variable]) -> tuple[str, ...]:
        return (self._device,)

    experimental_should_init = True
    experimental_between_graph = False
    _global_batch_size = True

    @property
    def should_checkpoint(self) -> bool:
        return self._is_chief

    should_save_summary = should_checkpoint


class _LocalReplicaContext(_tf_private.distribute_lib.ReplicaContext):
    @property
    def devices(self) -> tuple[str, ...]:
        return self._strategy.extended.worker_devices


def _divide(total: Gradient, count: int | tf.Tensor) -> Gradient:
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(_divide(total.values, count), total.indices, total.dense_shape)
    if total.dtype.is_integer:
        return total // tf.cast(count, total.dtype)
    return total / tf.cast(count, total.dtype)
