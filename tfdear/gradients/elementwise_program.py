# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Programs of element-wise operations, as the engine takes them.

Registers: 0 is the gradient, then come the variables, the scalars, and what instructions yield
(`custom_ops/engine/updates/elementwise_program.h`).
"""

import dataclasses
import enum
from collections.abc import Sequence

import tensorflow as tf

GRADIENT = 0


# Numbers of the operations, the same as in `elementwise_operation.h`.
class Number(enum.IntEnum):
    """An operation of the engine."""

    COPY = 0
    NEGATE = 1
    SQUARE_ROOT = 2
    ADD = 3
    SUBTRACT = 4
    MULTIPLY = 5
    DIVIDE = 6
    MAXIMUM = 7
    MINIMUM = 8
    ABSOLUTE = 9
    SIGN = 10
    POWER = 11
    GREATER = 12
    GREATER_EQUAL = 13
    EQUAL = 14
    NOT = 15
    WHERE = 16
    UNLESS = 17
    UNITE = 18


# Of TensorFlow's operations.
UNARY = {
    "Neg": Number.NEGATE,
    "Sqrt": Number.SQUARE_ROOT,
    "Abs": Number.ABSOLUTE,
    "Sign": Number.SIGN,
    "LogicalNot": Number.NOT,
}
BINARY = {
    "Add": Number.ADD,
    "AddV2": Number.ADD,
    "Sub": Number.SUBTRACT,
    "Mul": Number.MULTIPLY,
    "RealDiv": Number.DIVIDE,
    "Maximum": Number.MAXIMUM,
    "Minimum": Number.MINIMUM,
    "Pow": Number.POWER,
    "Greater": Number.GREATER,
    "GreaterEqual": Number.GREATER_EQUAL,
    "Equal": Number.EQUAL,
    # Conditions are 0 or 1.
    "LogicalAnd": Number.MULTIPLY,
    "LogicalOr": Number.MAXIMUM,
}
# The same of the operands the other way round.
SWAPPED = {"Less": Number.GREATER, "LessEqual": Number.GREATER_EQUAL}
ASSIGN = {
    "AssignVariableOp": None,
    "AssignAddVariableOp": Number.ADD,
    "AssignSubVariableOp": Number.SUBTRACT,
}
_UNARY_NUMBERS = frozenset((*UNARY.values(), Number.COPY))


@dataclasses.dataclass(frozen=True)
class Program:
    """An update for the engine, or what yields arrays for it."""

    code: list[int]  # Four numbers per instruction: operation, target, left, right.
    variables: list[int]  # Which captured tensors of the update are the handles of the variables.
    scalars: list[tf.Tensor]  # Tensors of the calling graph.


def output(number: int) -> int:
    """The target of an instruction that yields an array for whoever runs the program."""
    return -1 - number


def encode(
    instructions: Sequence[Sequence[int]], variables: int, scalars: int, outputs: int = 0
) -> list[int]:
    """The code of a program, without instructions whose results nobody needs.

    Args:
        instructions: Operation, target, left and right of each. A scalar is -1, -2, ... as an
            operand, an output -1, -2, ... as a target; results follow the variables.
        variables: How many there are.
        scalars: How many there are.
        outputs: How many arrays the program yields: more variables, which it only writes. One that
            has some changes nothing else.
    """
    kept = []
    needed = set() if outputs else set(range(1, 1 + variables))
    for instruction in reversed(instructions):
        operation, target, left, right = instruction
        if target >= 0 and target not in needed:
            continue
        needed.discard(target)
        needed.update((left,) if operation in _UNARY_NUMBERS else (left, right))
        kept.append(instruction)
    kept.reverse()

    first_scalar = 1 + variables + outputs
    places: dict[int, int] = {}

    def operand(register: int) -> int:
        if register < 0:
            return first_scalar - 1 - register
        return register if register <= variables else places[register]

    code: list[int] = []
    for operation, target, left, right in kept:
        operands = (operand(left), operand(right))
        if target < 0:
            target = variables - target
        elif target > variables:
            target = places.setdefault(target, first_scalar + scalars + len(places))
        code += (operation, target, *operands)
    return code
