# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""AutoShardPolicy.FILE and HINT: TensorFlow's rewrite of a pipeline into that of one rank.

FILE divides the files from which a pipeline reads, HINT what `dataset.shard(SHARD_HINT,
SHARD_HINT)` stands behind. Either must be the same on all ranks. TensorFlow sees to neither, and
finds too few files when a rank has read its own; so what the rewrite divides is taken out of the
rewritten pipeline, counted, and files' names are compared, before a step is made.
"""

import hashlib
import itertools

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import first_batch, pipeline_order

_REMEDIES = (
    "Use AutoShardPolicy.DATA, with which every rank runs the whole pipeline and cuts its rows out "
    "of the batches, or build each rank's data set in "
    "`strategy.distribute_datasets_from_function`."
)


def shard(
    dataset: tf.data.Dataset, rank: int, world_size: int, gather: first_batch.Gather
) -> tf.data.Dataset:
    """What a rank has of a data set of global batches with policy FILE or HINT.

    All ranks must call it. Raises a ValueError if there are fewer files than ranks, if the ranks
    have different files, or if there is nothing that could be divided.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    by_files = policy == tf.data.experimental.AutoShardPolicy.FILE
    if not by_files:
        # What stands before the hint must come in the same order on all ranks.
        dataset, _ = pipeline_order.make_deterministic(dataset)
    try:
        own = _tf_private.AUTO_SHARD_DATASET.get()(dataset, world_size, rank, world_size)
        divided = _divided(own)
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"AutoShardPolicy.{policy.name}: TensorFlow finds no files in this data set that it "
            f"could divide among the ranks; they must be read by `tf.data.TFRecordDataset` or "
            f"another reader of files. {_REMEDIES} TensorFlow's reason: {_first_line(error)}"
        ) from None
    if not divided:
        raise ValueError(
            f"AutoShardPolicy.{policy.name} has nothing to divide in this data set, and every rank "
            "would train on all of it. Put `.shard(tf.data.experimental.SHARD_HINT, "
            "tf.data.experimental.SHARD_HINT)` into the pipeline where its elements are to be "
            f"divided, before `batch`. {_REMEDIES}"
        )
    most = None if by_files else world_size
    parts = [list(itertools.islice(place, most)) for place in divided]
    digest = _digest(parts) if by_files else 0
    counts, digests = zip(*gather([min(map(len, parts)), digest]), strict=True)
    word = "files" if by_files else "elements before its hint"
    if min(counts) < world_size:
        fewest = counts.index(min(counts))
        where = f" at one of {len(parts)} places" if len(parts) > 1 else ""
        raise ValueError(
            f"AutoShardPolicy.{policy.name} needs at least one of the {word} for each rank: the "
            f"data set of rank {fewest} has {counts[fewest]} {word}{where}, and there are "
            f"{world_size} ranks. Divide the data into more files, or use fewer ranks. {_REMEDIES}"
        )
    if len(set(digests)) > 1 or len(set(counts)) > 1:
        groups: dict[tuple[int, int], list[int]] = {}
        for number, found in enumerate(zip(counts, digests, strict=True)):
            groups.setdefault(found, []).append(number)
        raise ValueError(
            f"Rank {rank}: AutoShardPolicy.{policy.name} divides the same {word} among the ranks, "
            "but these do not have the same ones. Groups of ranks that have: "
            f"{list(groups.values())}; how many, by rank: {list(counts)}. If every rank is to "
            "train on its own files, use AutoShardPolicy.OFF."
        )
    return own


def of_one_rank(dataset: object) -> object:
    """What a rank alone has of a data set: all of it, also where its pipeline has a hint."""
    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    policy = dataset.options().experimental_distribute.auto_shard_policy
    hinted = policy == tf.data.experimental.AutoShardPolicy.HINT
    return _tf_private.AUTO_SHARD_DATASET.get()(dataset, 1, 0, 1) if hinted else dataset


def _divided(own: tf.data.Dataset) -> list[tf.data.Dataset]:
    """What a rewritten pipeline divides among the ranks, at each place where it does."""
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(own),
        external_state_policy=1,  # Any state is accepted.
        strip_device_assignment=True,
    )
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    # The rewrite marks the step that it adds, unlike those of scripts.
    added = [
        node
        for node in graph.node
        if node.op == "ShardDataset" and node.attr["require_non_empty"].b
    ]
    return [_input_of(shard_step, graph) for shard_step in added]


def _input_of(shard_step: tf.compat.v1.NodeDef, graph: tf.compat.v1.GraphDef) -> tf.data.Dataset:
    types = shard_step.attr["output_types"].list.type
    shapes = shard_step.attr["output_shapes"].list.shape
    spec = tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(number))
        for number, shape in zip(types, shapes, strict=True)
    )
    source = shard_step.input[0].split(":")[0]
    graph = _part_of(graph, source)
    function = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, return_elements=[f"{source}:0"], name=""), []
    )
    (variant,) = function()
    found = tf.data.experimental.from_variant(variant, spec)
    found._source = function  # Its functions must stay.
    return found


def _part_of(graph: tf.compat.v1.GraphDef, output: str) -> tf.compat.v1.GraphDef:
    """What a node is computed from, with functions of its own."""
    part = tf.compat.v1.graph_util.extract_sub_graph(graph, [output])
    # TensorFlow changes functions under the names that they have, and takes no second one.
    names = {
        f.signature.name: f"tfdear_{id(part)}_{f.signature.name}" for f in graph.library.function
    }
    for function in part.library.function:
        function.signature.name = names[function.signature.name]
    nodes = [*part.node, *(node for f in part.library.function for node in f.node_def)]
    for node in nodes:
        for attribute in node.attr.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name in names:
                    called.name = names[called.name]
    return part


def _digest(parts: list[list[tuple[tf.Tensor, ...]]]) -> int:
    content = hashlib.blake2b(digest_size=8)
    for elements in parts:
        content.update(f"{len(elements)} ".encode())
        for element in elements:
            for component in element:
                content.update(repr(component.numpy()).encode())
    return int.from_bytes(content.digest(), "little", signed=True)


def _first_line(error: tf.errors.OpError) -> str:
    return error.message.splitlines()[0]
