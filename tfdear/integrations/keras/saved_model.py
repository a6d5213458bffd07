# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Removes awaits and marks from SavedModels, which must load where tfdear is not installed."""

from collections.abc import Iterator, MutableSequence
from typing import Any

import tensorflow as tf

from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private

_OPS = ("DearAwait", "DearForwardMark", "DearSettleTable")
SEAMS = seams.Seams()


def remove_awaits(nodes: MutableSequence[tf.compat.v1.NodeDef]) -> None:
    """Removes awaits and marks from a graph; what ran after them runs after their predecessors."""
    # By name, as a control input.
    predecessors = {
        f"^{node.name}": [name for name in node.input if name.startswith("^")]
        for node in nodes
        if node.op in _OPS
    }
    if not predecessors:
        return

    def kept_predecessors(name: str, seen: set[str]) -> Iterator[str]:
        # Awaits may be chained to each other: follow them to what is kept.
        for predecessor in predecessors[name]:
            if predecessor in seen:
                continue
            seen.add(predecessor)
            if predecessor in predecessors:
                yield from kept_predecessors(predecessor, seen)
            else:
                yield predecessor

    kept = []
    for node in nodes:
        if f"^{node.name}" in predecessors:
            continue
        inputs = [name for name in node.input if name not in predecessors]
        seen = set(inputs)
        for name in node.input:
            if name in predecessors:
                inputs.extend(kept_predecessors(name, seen))
        del node.input[:]
        node.input.extend(inputs)
        kept.append(type(node).FromString(node.SerializeToString()))
    del nodes[:]
    nodes.extend(kept)


def _clean(meta_graph: tf.compat.v1.MetaGraphDef) -> None:
    remove_awaits(meta_graph.graph_def.node)
    for function in meta_graph.graph_def.library.function:
        names = {node.name for node in function.node_def if node.op in _OPS}
        remove_awaits(function.node_def)
        for output in [key for key, value in function.control_ret.items() if value in names]:
            del function.control_ret[output]
    operations = meta_graph.meta_info_def.stripped_op_list.op
    kept = [operation for operation in operations if operation.name not in _OPS]
    del operations[:]
    operations.extend(kept)


@SEAMS.wrap(_tf_private.BUILD_META_GRAPH)
def _build_clean_meta_graph(
    original: seams.Original,
    obj: object,
    signatures: object,
    options: tf.saved_model.SaveOptions,
    meta_graph_def: tf.compat.v1.MetaGraphDef | None = None,
) -> tuple[Any, ...]:
    result = original(obj, signatures, options, meta_graph_def)
    for part in result:
        if hasattr(part, "meta_info_def"):
            _clean(part)
    return result
