# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Whether an input pipeline yields the same elements in the same order on every rank.

TensorFlow describes a pipeline in three ways: the Python objects that made it, the graphs of their
functions, and, for what the objects do not store, the graph of the dataset itself. All of them are
inspected, with the datasets that are created inside of functions.
"""

import dataclasses
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

# Largest tensors of a pipeline, in bytes, that are written into a graph to inspect it.
_LARGEST_SOURCE = 1 << 26

# The index of the first of two seeds among an op's inputs.
_SEEDS = {
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
    "ShuffleAndRepeatDataset": 2,
    "ShuffleAndRepeatDatasetV2": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
    "SamplingDataset": 2,
}

# The index of the cycle length among an op's inputs, from the end.
_CYCLE_LENGTH = {
    "InterleaveDataset": -2,
    "ParallelInterleaveDatasetV2": -3,
    "ParallelInterleaveDatasetV3": -3,
    "ParallelInterleaveDatasetV4": -5,
}

_PYTHON_CALLS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclasses.dataclass
class Order:
    """What was found in a pipeline."""

    # Names of transformations that may yield their elements in another order each time, of those
    # that draw another order each time, and of sources that divide elements between their readers.
    unordered: set[str] = dataclasses.field(default_factory=set)
    unseeded: set[str] = dataclasses.field(default_factory=set)
    unshared: set[str] = dataclasses.field(default_factory=set)
    # Whether the contents of elements may be random: a function calls Python, or draws numbers
    # without a seed or in calls that run in parallel.
    draws: bool = False
    generated: bool = False  # Whether elements come from a Python generator.
    counts_cores: bool = False  # Whether the order depends on the number of cores.


def make_deterministic(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, Order]:
    """Makes a pipeline yield its elements in the same order on every rank.

    Also returns what was found in it. Raises a ValueError if the order is random and not seeded, or
    is decided outside of the pipeline.
    """
    order = inspect(dataset)
    if order.unseeded:
        raise ValueError(
            "This dataset draws random numbers for the order of its elements without a seed "
            f"({', '.join(sorted(order.unseeded))}), because it was made before the DearStrategy. "
            "Every rank would draw another order, and examples would be lost or repeated. Create "
            "the strategy before the dataset, or pass a seed: `dataset.shuffle(n, seed=1)`."
        )
    if order.unshared:
        raise ValueError(
            "The elements of this dataset are divided between its readers "
            f"({', '.join(sorted(order.unshared))}), so that the ranks would not see the same "
            "global batches. If every rank is to train on what it gets, set AutoShardPolicy.OFF "
            "in the dataset's options."
        )
    by_option = dataset.options().deterministic is False
    if not by_option and not order.unordered:
        return dataset, order
    found = sorted(order.unordered) + ["`options.deterministic = False`"] * by_option
    warnings.warn(
        f"tfdear: this dataset may yield its elements in any order ({', '.join(found)}). Every "
        "rank cuts its rows out of the same global batches, so it is put into one order. That may "
        "cost time: leave `deterministic=False` out, or give every rank its own files with "
        "`strategy.distribute_datasets_from_function`.",
        stacklevel=2,
    )
    options = tf.data.Options()
    options.deterministic = True
    if order.unordered:
        # The attribute of an op takes precedence over the option.
        variant = tf.raw_ops.OptimizeDatasetV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            optimizations_enabled=["make_deterministic"],
            optimizations_disabled=tf.constant([], tf.string),
            optimizations_default=tf.constant([], tf.string),
            output_types=[tf.variant],
            output_shapes=[[]],
        )
        ordered = tf.data.experimental.from_variant(variant, dataset.element_spec)
        # What Python keeps alive for the pipeline, such as its functions, must stay.
        ordered._source = dataset
        dataset = ordered.with_options(dataset.options())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns that an option changes its value.
        return dataset.with_options(options), order


def inspect(dataset: tf.data.Dataset, drawn: int | None = None) -> Order:
    """Inspects a pipeline and everything that it calls.

    `drawn`: a global seed that counts as none.
    """
    order = Order()
    waiting = [dataset]
    seen = set()
    maps, parallel_interleave = _kinds()
    while waiting:
        current = waiting.pop()
        # A reader of several files at a time wraps the dataset that reads them.
        parts = [current, *filter(None, [getattr(current, "_impl", None)])]
        for part in parts:
            if id(part) in seen:
                continue
            seen.add(id(part))
            name = type(part).__name__.strip("_")
            if _is_unseeded(part, drawn):
                order.unseeded.add(name)
            if getattr(part, "_deterministic", None) == "false":
                order.unordered.add(name)
            if getattr(part, "_cycle_length", None) is not None:
                order.counts_cores |= tf.get_static_value(part._cycle_length) == tf.data.AUTOTUNE
            if "DataService" in name:
                order.unshared.add(name)
            if type(part) is parallel_interleave:
                _inspect_variant(part, order)
            for function in part._functions():
                graph = function.function.graph.as_graph_def()
                _inspect_graph(graph, order, type(part) not in maps, "Parallel" in name)
            waiting.extend(part._inputs())
    return order


def _is_unseeded(dataset: tf.data.Dataset, drawn: int | None) -> bool:
    seeds = [getattr(dataset, attribute, None) for attribute in ("_seed", "_seed2")]
    if any(seed is None for seed in seeds):
        return False
    of_all, own = map(tf.get_static_value, seeds)
    return of_all == own == 0 or (drawn is not None and of_all == drawn)


@functools.cache
def _kinds() -> tuple[list[type[tf.data.Dataset]], type[tf.data.Dataset]]:
    """The classes of datasets that map, and the class of those that interleave in parallel."""
    few = tf.data.Dataset.range(1)
    maps = [type(few.map(tf.identity, num_parallel_calls=calls)) for calls in (None, 2)]
    return maps, type(few.interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2))


def _inspect_variant(dataset: tf.data.Dataset, order: Order) -> None:
    """Inspects the graph of a dataset whose Python object does not tell whether it keeps order."""
    try:
        if _source_bytes(dataset) > _LARGEST_SOURCE:
            raise ValueError("too large")
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # Any state is accepted: the graph is not run.
            strip_device_assignment=True,
        )
    except (ValueError, tf.errors.OpError):
        # Unknown, so it is made to keep order.
        order.unordered.add(type(dataset).__name__.strip("_"))
        return
    _inspect_graph(tf.compat.v1.GraphDef.FromString(graph.numpy()), order, True, False)


def _source_bytes(dataset: tf.data.Dataset) -> int:
    tensors = getattr(dataset, "_tensors", [])
    own = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
    return own + sum(_source_bytes(source) for source in dataset._inputs())


def _inspect_graph(
    graph: tf.compat.v1.GraphDef, order: Order, decides: bool, parallel: bool
) -> None:
    """Inspects the ops of a function, and adds to `order` what it finds.

    `decides`: whether the function decides which elements there are, unlike that of a map;
    `parallel`: whether several calls of it run at a time.
    """
    library = {function.signature.name: function for function in graph.library.function}
    called = set()

    def visit(nodes: Sequence[tf.compat.v1.NodeDef], decides: bool, parallel: bool) -> None:
        constants = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}
        for node in nodes:
            _inspect_node(node, constants, order, decides, parallel)
            if node.op == "GeneratorDataset":
                continue
            inside = (
                decides and node.op not in ("MapDataset", "ParallelMapDatasetV2"),
                parallel or node.op.startswith("Parallel"),
            )
            for name in _functions(node):
                if name in library and (name, *inside) not in called:
                    called.add((name, *inside))
                    visit(library[name].node_def, *inside)

    visit(graph.node, decides, parallel)


def _functions(node: tf.compat.v1.NodeDef) -> Iterator[str]:
    for attribute in node.attr.values():
        if attribute.func.name:
            yield attribute.func.name
        yield from (function.name for function in attribute.list.func)


def _inspect_node(
    node: tf.compat.v1.NodeDef,
    constants: Mapping[str, object],
    order: Order,
    decides: bool,
    parallel: bool,
) -> None:
    inputs = [source.split(":")[0] for source in node.input if not source.startswith("^")]
    attributes = dict(node.attr)

    def constant(index: int) -> object:
        tensor = constants.get(inputs[index])
        return None if tensor is None else tf.make_ndarray(tensor).item()

    if "deterministic" in attributes and attributes["deterministic"].s == b"false":
        order.unordered.add(node.op)
    if "sloppy" in attributes and attributes["sloppy"].b:
        order.unordered.add(node.op)
    if node.op in _CYCLE_LENGTH:
        order.counts_cores |= constant(_CYCLE_LENGTH[node.op]) == tf.data.AUTOTUNE
    if node.op.startswith("DataServiceDataset"):
        order.unshared.add(node.op)
    order.generated |= node.op == "GeneratorDataset"
    seeds = _SEEDS.get(node.op)
    if seeds is not None and constant(seeds) == 0 and constant(seeds + 1) == 0:
        order.unseeded.add(node.op)
    if "seed2" in attributes:  # An op that draws numbers.
        unseeded = attributes["seed"].i == 0 and attributes["seed2"].i == 0
        if unseeded and decides:
            order.unseeded.add(node.op)
        order.draws |= unseeded or parallel
    # Keras's layers and `tf.random.Generator` keep their state in a variable.
    order.draws |= node.op.startswith(("Rng", "StatefulUniform", "StatefulStandard", "AssignVar"))
    order.draws |= node.op in _PYTHON_CALLS
