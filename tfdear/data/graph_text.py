# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a function computes, as text that is the same in every process that traces it.

TensorFlow counts the functions of a process in their names, Keras the layers in the names of nodes,
and scripts may have made others before. So both have the numbers of the order in which they come.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Attributes that name what only this process has, and decide nothing about the result.
_NAMES_OF_PROCESS = frozenset(
    ("config", "config_proto", "container", "debug_name", "shared_name", "token")
)


def text_of(function: Any) -> str:
    """The operations of a concrete function and of all that it calls.

    What it captured is named by place and type alone: see `captured_values`.
    """
    definition = function.graph.as_graph_def()
    library = {part.signature.name: part for part in definition.library.function}
    numbers: dict[str, int] = {}

    def called(name: str) -> str:
        return f"function {numbers.setdefault(name, len(numbers))}" if name in library else name

    inputs = [tensor.op.name for tensor in function.inputs]
    outputs = [tensor.name for tensor in function.outputs]
    texts = [_text_of(inputs, definition.node, outputs, called)]
    done = 0
    while done < len(numbers):  # In the order in which they are called.
        part = library[list(numbers)[done]]
        arguments = [argument.name for argument in part.signature.input_arg]
        results = [part.ret[result.name] for result in part.signature.output_arg]
        texts.append(_text_of(arguments, part.node_def, results, called))
        done += 1
    return "\n\n".join(texts)


def captured_values(function: Any) -> list[bytes]:
    """The values of the tensors and variables that a concrete function captured."""
    values = []
    for tensor in function.captured_inputs:
        if tensor.dtype == tf.resource:
            known = [v for v in function.variables if v.handle is tensor]
            values += [tf.io.serialize_tensor(v.read_value()).numpy() for v in known]
        elif tensor.dtype != tf.variant:
            values.append(tf.io.serialize_tensor(tensor).numpy())
    return values


def _text_of(
    arguments: Sequence[str],
    nodes: Sequence[Any],
    results: Iterable[str],
    called: Callable[[str], str],
) -> str:
    names = {name: f"argument {place}" for place, name in enumerate(arguments)}
    for place, node in enumerate(nodes):
        names.setdefault(node.name, f"node {place}")
    lines = [_line_of(node, names, called) for node in nodes]
    return "\n".join([*lines, *(_renamed(result, names) for result in results)])


def _line_of(node: Any, names: Mapping[str, str], called: Callable[[str], str]) -> str:
    attributes = []
    for name in sorted(node.attr):
        if name.startswith("_") or name in _NAMES_OF_PROCESS:
            continue
        value = node.attr[name]
        functions = [value.func] if value.HasField("func") else list(value.list.func)
        for function in functions:
            function.name = called(function.name)
        attributes.append(f"{name}={value}")
    # An operation that is a function is called by its name.
    inputs = [_renamed(source, names) for source in node.input]
    return f"{called(node.op)} {inputs} {attributes}"


def _renamed(output: str, names: Mapping[str, str]) -> str:
    """The output of a node, such as `^name` or `name:0`, of a node by its number."""
    control = "^" * output.startswith("^")
    name, *place = output.lstrip("^").split(":")
    return control + ":".join([names.get(name, name), *place])
