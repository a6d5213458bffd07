# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Every private name of TensorFlow that tfdear uses, each with its reason; see [Note: Seams].

A strategy cannot be written on TensorFlow's public API alone: the base classes that `tf.distribute`
itself builds on are private. This file lists everything that has to be checked for a new release of
TensorFlow.
"""

# isort: off
# ruff: noqa: F401, I001

# A data set that keeps its elements in a file.
from tensorflow.python.data.ops import cache_op

# Base class of the strategy's iterators, which Keras and `tf.function` take for tf.data's own.
from tensorflow.python.data.ops import iterator_ops

# Base class of the optional batches that such iterators give out.
from tensorflow.python.data.ops import optional_ops

# Base class of `strategy.extended`, replica contexts and update scopes: the strategy contract.
from tensorflow.python.distribute import distribute_lib

# The reduction that `all_reduce` is asked for (SUM or MEAN).
from tensorflow.python.distribute import reduce_util

# TensorFlow's state in this process: the seed of the program.
from tensorflow.python.eager import context

# Tells whether a gradient is being recorded.
from tensorflow.python.eager import record

# Tells the function of a `tf.function` from a branch or a loop in it.
from tensorflow.python.framework import func_graph

# The graph that ops are added to while a function is traced.
from tensorflow.python.framework import ops

# Tells a branch from the body of a loop, which may run several times.
from tensorflow.python.ops import control_flow_v2_func_graphs

# Tells whether ops are being built for XLA, which cannot compile collectives of this package.
from tensorflow.python.ops import control_flow_util

# Base class of the variables that reads wait on.
from tensorflow.python.ops import resource_variable_ops

# Tells whether TensorFlow is building the graph of a SavedModel.
from tensorflow.python.saved_model import save_context

# Initial values that come out of a checkpoint, which must not be broadcast.
from tensorflow.python.trackable import base as trackable

# isort: on

from tfdear._private import seams

REGISTRY = seams.Registry("TensorFlow", "tensorflow>=2.20,<2.22", tested=("2.20.0", "2.21.0"))

_CONTEXT = "tensorflow.python.eager.context"
_DATASETS = "tensorflow.python.data.ops"
_DISTRIBUTE = "tensorflow.python.distribute.distribute_lib"
_OPS = "tensorflow.python.framework.ops"
_VARIABLES = "tensorflow.python.ops.resource_variable_ops"

# Notes which variables the functions use that a function calls.
WATCH_VARIABLE = REGISTRY.name(
    "tensorflow.python.framework.func_graph", "FuncGraph.watch_variable", "(self, v)"
)

# Writes a SavedModel's graph, where await ops are taken out.
BUILD_META_GRAPH = REGISTRY.name(
    "tensorflow.python.saved_model.save",
    "_build_meta_graph",
    "(obj, signatures, options, meta_graph_def=None)",
)

# Scales a loss by the size of the global batch. Public, but wrapped.
COMPUTE_AVERAGE_LOSS = REGISTRY.name("tensorflow", "nn.compute_average_loss")

# Asked for the gradients of a loss. Public, but wrapped.
GRADIENT = REGISTRY.name(
    "tensorflow",
    "GradientTape.gradient",
    "(self, target, sources, output_gradients=None, "
    "unconnected_gradients=<UnconnectedGradients.NONE: 'none'>)",
)

REGISTRY.name(_CONTEXT, "context", "()")

# Batches with the next one: what an iterator gives out, and how a `tf.function` gets it.
_ITERATORS = _DATASETS + ".iterator_ops"
REGISTRY.name(_ITERATORS, "OwnedIterator._next_internal", "(self)")
REGISTRY.name(_ITERATORS, "OwnedIterator.get_next_as_optional", "(self)")
REGISTRY.name(_ITERATORS, "OwnedIterator._restore_from_tensors", "(self, restored_tensors)")
REGISTRY.name(_ITERATORS, "IteratorSpec._from_components", "(self, components)")
REGISTRY.name(_ITERATORS, "IteratorSpec.__init__", "(self, element_spec)", sets="_element_spec")
for _class in ("_OptionalImpl", "OptionalSpec"):
    REGISTRY.name(_DATASETS + ".optional_ops", f"{_class}.__init__", sets="_element_spec")
REGISTRY.name(_DATASETS + ".optional_ops", "_OptionalImpl.get_value", "(self, name=None)")

# What a function is given besides its arguments, and what is asked for when it is called.
_FUNC_GRAPH = "tensorflow.python.framework.func_graph"
for _property in (
    "captures",
    "internal_captures",
    "deferred_internal_captures",
    "function_captures",
    "outer_graph",
):
    REGISTRY.name(_FUNC_GRAPH, f"FuncGraph.{_property}")
REGISTRY.name("tensorflow.python.ops.control_flow_v2_func_graphs", "CondBranchFuncGraph")
REGISTRY.name(
    "tensorflow.core.function.capture.capture_container",
    "FunctionCaptures.add_or_replace",
    "(self, key, external, internal, tracetype=None, is_by_ref=False)",
)
REGISTRY.name(
    "tensorflow.core.function.capture.capture_container", "FunctionCaptures.by_ref_internal"
)

# With which the names of functions begin that yield another one's gradients.
GRADIENTS_PREFIX = REGISTRY.name(
    "tensorflow.python.eager.polymorphic_function.concrete_function", "_BACKWARD_PREFIX"
)

# The seed of the whole program, to give all ranks the same one.
REGISTRY.name(_CONTEXT, "global_seed", "()")
# To give each rank another one in a step.
REGISTRY.name(_CONTEXT, "Context.__init__", sets="_seed")

# The order in which operations were added to a graph, and edges between them.
REGISTRY.name(_OPS, "Operation._id")
REGISTRY.name(_OPS, "Operation._add_control_input")
REGISTRY.name(_OPS, "get_default_graph", "()")

# What a function does that an operation of a graph calls.
REGISTRY.name(_OPS, "Graph._get_function", "(self, name)")
REGISTRY.name(
    "tensorflow.python.eager.polymorphic_function.atomic_function", "AtomicFunction.graph"
)

# Functions of gradients, which stay registered for ever.
REGISTRY.name(_OPS, "gradient_registry")
REGISTRY.name("tensorflow.python.framework.registry", "Registry.list", "(self)")
REGISTRY.name(
    "tensorflow.python.framework.registry", "Registry.__init__", "(self, name)", sets="_registry"
)

# Lets contributions of gradients run in any order, though they have side effects.
REGISTRY.name(_OPS, "Graph.__init__", sets="experimental_acd_manager")
REGISTRY.name(
    "tensorflow.python.framework.auto_control_deps",
    "AutomaticControlDependencies.run_independently",
    "(self, op)",
)

# The variable that a handle belongs to.
REGISTRY.name(_VARIABLES, "ResourceVariable._init_from_args", sets="_parent_trackable")

# Inputs of a dataset, the seeds of a shuffle, the parts of a shard, and what reads ahead.
REGISTRY.name(_DATASETS + ".dataset_ops", "DatasetV2._inputs", "(self)")
REGISTRY.name(_DATASETS + ".shuffle_op", "_ShuffleDataset.__init__", sets="_seed")
REGISTRY.name(_DATASETS + ".shuffle_op", "_ShuffleDataset.__init__", sets="_seed2")
REGISTRY.name(_DATASETS + ".cache_op", "CacheDataset.__init__", sets="_filename")
REGISTRY.name(_DATASETS + ".shard_op", "_ShardDataset.__init__", sets="_num_shards")
REGISTRY.name(_DATASETS + ".shard_op", "_ShardDataset.__init__", sets="_index")
REGISTRY.name(_DATASETS + ".repeat_op", "_RepeatDataset.__init__", sets="_count")
PREFETCH_DATASET = REGISTRY.name(_DATASETS + ".prefetch_op", "_PrefetchDataset")

# What a dataset is to the C++ runtime, and what its functions were made of.
REGISTRY.name(_DATASETS + ".dataset_ops", "DatasetV2._variant_tensor")
REGISTRY.name(_DATASETS + ".dataset_ops", "DatasetV2._flat_structure")
REGISTRY.name(_DATASETS + ".dataset_ops", "DatasetSpec._to_components", "(self, value)")
REGISTRY.name(_DATASETS + ".dataset_ops", "DatasetV2._functions", "(self)")
REGISTRY.name(_DATASETS + ".map_op", "_MapDataset.__init__", sets="_map_func")
REGISTRY.name(_DATASETS + ".map_op", "_MapDataset.__init__", sets="_force_synchronous")
REGISTRY.name(
    _DATASETS + ".structured_function", "StructuredFunctionWrapper.__init__", sets="_func"
)
for _interleave in ("_ParallelInterleaveDataset", "_InterleaveDataset"):
    REGISTRY.name(_DATASETS + ".interleave_op", f"{_interleave}.__init__", sets="_cycle_length")

# Divides a pipeline's files, or what its hint says, between ranks.
AUTO_SHARD_DATASET = REGISTRY.name(
    "tensorflow.python.data.experimental.ops.distribute",
    "_AutoShardDataset",
    "(input_dataset, num_workers, index, num_replicas=None)",
)

# The graph that the gradient of a loop's body is made in.
WHILE_GRADIENT = REGISTRY.name("tensorflow.python.ops.while_v2", "_WhileBodyGradFuncGraph")

# Functions of the modules above.
REGISTRY.name("tensorflow.python.ops.control_flow_util", "GraphOrParentsInXlaContext", "(graph)")
REGISTRY.name("tensorflow.python.saved_model.save_context", "in_save_context", "()")
REGISTRY.name(
    "tensorflow.python.framework.errors_impl", "exception_type_from_error_code", "(error_code)"
)

# What `tf.distribute` calls on a strategy's `extended`, and what is called there.
for _hook, _signature in {
    "StrategyExtendedV2._batch_reduce_to": "(self, reduce_op, value_destination_pairs, options)",
    "StrategyExtendedV1._broadcast_to": "(self, tensor, destinations)",
    "StrategyExtendedV1._call_for_each_replica": "(self, fn, args, kwargs)",
    "StrategyExtendedV2._container_strategy": "(self)",
    "StrategyExtendedV2._create_variable": "(self, next_creator, **kwargs)",
    "StrategyExtendedV2._distribute_datasets_from_function": "(self, dataset_fn, options)",
    "StrategyExtendedV2._experimental_distribute_dataset": "(self, dataset, options)",
    "StrategyExtendedV2._experimental_distribute_values_from_function": "(self, value_fn)",
    "StrategyExtendedV2._gather_to_implementation": "(self, value, destinations, axis, options)",
    "StrategyExtendedV2._in_multi_worker_mode": "(self)",
    "StrategyExtendedV2._local_results": "(self, val)",
    "StrategyExtendedV2._reduce_to": "(self, reduce_op, value, destinations, options)",
    "StrategyExtendedV2._replica_ctx_all_reduce": "(self, reduce_op, value, options=None)",
    "StrategyExtendedV2._replica_ctx_update": ("(self, var, fn, args=(), kwargs=None, group=True)"),
    "StrategyExtendedV2._update": "(self, var, fn, args, kwargs, group)",
    "StrategyExtendedV1._update_non_slot": "(self, colocate_with, fn, args, kwargs, group)",
    "StrategyExtendedV1._use_merge_call": "(self)",
    "StrategyExtendedV2._validate_colocate_with_variable": "(self, colocate_with_variable)",
}.items():
    REGISTRY.name(_DISTRIBUTE, _hook, _signature)

# The strategy of a replica context.
REGISTRY.name(_DISTRIBUTE, "ReplicaContextBase.__init__", sets="_strategy")

# What variables do when they are read, written in part, or restored; and their handle.
REGISTRY.name(_VARIABLES, "BaseResourceVariable.__init__", sets="_handle")
REGISTRY.name(_VARIABLES, "BaseResourceVariable._read_variable_op", "(self, no_copy=False)")
REGISTRY.name(_VARIABLES, "BaseResourceVariable._restore_from_tensors", "(self, restored_tensors)")
REGISTRY.name(
    _VARIABLES,
    "BaseResourceVariable._strided_slice_assign",
    "(self, begin, end, strides, value, name, begin_mask, end_mask, ellipsis_mask, "
    "new_axis_mask, shrink_axis_mask)",
)

# Tells tapes that a variable was used.
REGISTRY.name(_VARIABLES, "variable_accessed", "(variable)")

# Modules whose functions write checkpoints.
WRITERS = ("tensorflow.python.checkpoint", "tensorflow.python.saved_model")
for _package, _, _module in (writer.rpartition(".") for writer in WRITERS):
    REGISTRY.name(_package, _module)

# Whether a tape is open, by which a loss knows training from evaluation.
REGISTRY.name("tensorflow.python.eager.record", "could_possibly_record", "()")
