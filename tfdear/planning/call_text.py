# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Objects written as text, as they are in Python: "FixedSize(4 << 20)". Nothing is evaluated."""

import ast
from collections.abc import Mapping
from typing import Any


def parse(text: str, classes: Mapping[str, type], what: str) -> Any:
    """Makes an object from the text of a constructor call: a class, perhaps with arguments.

    These are literals, whole numbers with a shift or a product, or such calls. `what` the classes
    make, such as "a planner", is for the message of the ValueError.
    """
    try:
        return _make(ast.parse(text.strip(), mode="eval").body, classes)
    except (SyntaxError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} is not {what}: {error}") from error


def _make(call: ast.expr, classes: Mapping[str, type]) -> Any:
    name = call.func if isinstance(call, ast.Call) else call
    if not isinstance(name, ast.Name) or name.id not in classes:
        raise ValueError(f"expected one of {', '.join(classes)}")

    def argument(node: ast.expr) -> object:
        return _make(node, classes) if isinstance(node, ast.Call) else _value(node)

    positional = [argument(node) for node in getattr(call, "args", [])]
    named = {str(word.arg): argument(word.value) for word in getattr(call, "keywords", [])}
    return classes[name.id](*positional, **named)


def _value(node: ast.expr) -> object:
    """The value of a literal, or of whole numbers with a shift or a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.Mult):
        left, right = _value(node.left), _value(node.right)
        if isinstance(left, int) and isinstance(right, int) and 0 <= right < 1 << 40:
            if isinstance(node.op, ast.Mult):
                return left * right
            if right < 64:
                return left << right
        raise ValueError("only small whole numbers can be multiplied or shifted")
    return ast.literal_eval(node)
