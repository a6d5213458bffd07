# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Translates a traced optimizer update into a program that the engine runs tile by tile.

An update is a chain of passes over memory: momentum makes four, Adam a dozen. Where all of it is
element-wise, the engine does the whole chain on one tile after another
(`custom_ops/engine/updates/elementwise_program.h`). That is decided by the operations of the traced
graph, whatever the optimizer is called. Only operations that are exact, or that IEEE 754 rounds
correctly, are taken, so that the weights do not depend, not by a bit, on whether an update is
translated (TensorFlow's maximum of zeros of both signs is either of them, from element to element;
a program takes the one that it mostly is). An update that is always a program has no other bits to
be compared with: for it, powers are taken too.

What an update computes from scalars alone, as Adam does from the step, is computed in the calling
graph.

[Note: Updates that need sums]
Some updates need numbers of the whole variable: LAMB divides by norms. In a graph a norm is a sum
over all elements of an array, and what follows from it is computed from scalars. So an update is
cut where the first of these is used: a program of its own yields the arrays whose sums are known to
be needed by then, changes nothing, and runs beforehand; the sums are scalars of the calling graph;
and the update is element-wise again. What needs sums of what sums were needed for is cut again.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.gradients import elementwise_program
from tfdear.gradients.elementwise_program import Number, Program

_INEXACT = {"Pow", "Rsqrt", "Reciprocal", "Inv"}
_GRADIENT = elementwise_program.GRADIENT

# Yields the sums of this many outputs of a program over all elements of a variable, which the
# calling graph has as scalars.
TakeSums: TypeAlias = Callable[[Program, int], Sequence[tf.Tensor]]


class _Untranslatable(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class _Array:
    """An operand with as many elements as the variable: a register, or a variable that was read.

    Of numbers, or of conditions, which are numbers in the program.
    """

    register: int
    variable: int | None = None
    version: int = 0


def translate(
    function: tf.types.experimental.ConcreteFunction,
    shape: tf.TensorShape,
    *,
    exact_bits: bool = True,
    may_only_read: bool = False,
    foreign: Collection[int] = (),
    take_sums: TakeSums | None = None,
) -> Program | None:
    """Translates an update of a dense gradient; None where an operation cannot be translated.

    Call it in the graph that calls the update.

    Args:
      function: The update. Its argument is the gradient; it may have none.
      shape: That of the variable, which all arrays of the update must have.
      exact_bits: Take only what leaves the bits that TensorFlow's kernels leave.
      may_only_read: Take an update that does not write all of its variables. Who runs the program
        then makes sure that earlier updates of these were made.
      foreign: Which captured tensors are variables that are read in the calling graph.
      take_sums: Runs programs whose outputs' sums the update needs, before it. None: an update that
        needs sums is not translated.
    """
    if not shape.is_fully_defined():
        return None
    try:
        return _Translation(
            function, shape, exact_bits, may_only_read, foreign, take_sums
        ).program()
    except _Untranslatable:
        return None


class _Translation:
    def __init__(
        self,
        function: tf.types.experimental.ConcreteFunction,
        shape: tf.TensorShape,
        exact_bits: bool,
        may_only_read: bool,
        foreign: Collection[int],
        take_sums: TakeSums | None,
    ):
        self._shape = shape
        self._exact_bits = exact_bits
        self._may_only_read = may_only_read
        self._foreign = foreign
        self._take_sums = take_sums
        graph = function.graph
        self._operations = graph.get_operations()
        inner = [tensor for _, tensor in graph.captures]
        # By id, as tensors compare element by element.
        self._captured = {id(tensor): index for index, tensor in enumerate(inner)}
        self._outer = list(function.captured_inputs)
        handles = [
            index
            for index, tensor in enumerate(inner)
            if tensor.dtype == tf.resource and index not in foreign
        ]
        self._variables = {handle: number for number, handle in enumerate(handles)}
        self._versions = [0] * len(handles)
        self._arrays: dict[int, _Array] = {}
        for argument in graph.inputs:
            if id(argument) not in self._captured:
                self._define(argument, _Array(_GRADIENT))
        self._lifted: dict[int, tf.Tensor] = {}
        self._scalars: list[tf.Tensor] = []
        self._constants: dict[float, tf.Tensor] = {}
        # Scalars have negative registers until their number is known.
        self._instructions: list[list[int]] = []
        self._first_result = 1 + len(handles)
        self._results = 0
        # Sums that were not taken yet: what the graph has, after which instruction, of which
        # register. And those that were, by id.
        self._wanted: list[tuple[tf.Tensor, int, int]] = []
        self._sums: dict[int, tf.Tensor] = {}

    def program(self) -> Program:
        for operation in self._operations:
            self._visit(operation)
        if 0 in self._versions and not self._may_only_read:
            raise _Untranslatable  # A variable that is only read: updates of it are not awaited.
        return self._program(self._instructions)

    def _program(self, instructions: Sequence[Sequence[int]], outputs: int = 0) -> Program:
        code = elementwise_program.encode(
            instructions, len(self._variables), len(self._scalars), outputs
        )
        return Program(code, list(self._variables), list(self._scalars))

    def _visit(self, operation: tf.Operation) -> None:
        kind = operation.type
        if kind in ("Placeholder", "NoOp", "Const"):
            return
        if kind in elementwise_program.ASSIGN:
            self._assign(operation)
            return
        if kind == "ReadVariableOp":
            if self._captured.get(id(operation.inputs[0])) in self._foreign:
                return  # A scalar, lifted when an array meets it.
            variable = self._variable(operation.inputs[0])
            array = _Array(1 + variable, variable, self._versions[variable])
        elif operation.op_def.is_stateful:
            raise _Untranslatable  # It draws, prints or writes something else.
        elif not any(id(value) in self._arrays for value in operation.inputs):
            return  # Of scalars: lifted when an array meets it.
        elif self._exact_bits and kind in _INEXACT:
            raise _Untranslatable
        elif kind == "Sum":
            self._want_sum(operation)
            return
        else:
            array = self._translate(operation)
        self._define(operation.outputs[0], array)

    def _translate(self, operation: tf.Operation) -> _Array:
        kind = operation.type
        if kind == "Identity":
            return self._arrays[id(operation.inputs[0])]
        if kind == "Cast" and operation.inputs[0].dtype == tf.bool:
            return self._arrays[id(operation.inputs[0])]
        if kind in ("ZerosLike", "OnesLike"):
            return _Array(self._constant(0.0 if kind == "ZerosLike" else 1.0))
        if kind == "Pow" and tf.get_static_value(operation.inputs[1]) == 2:
            base = self._operand(operation.inputs[0])
            return self._emit(Number.MULTIPLY, base, base)
        operands = [self._operand(value) for value in operation.inputs]
        if kind in elementwise_program.UNARY:
            return self._emit(elementwise_program.UNARY[kind], *operands)
        if kind in elementwise_program.BINARY:
            return self._emit(elementwise_program.BINARY[kind], *operands)
        if kind in elementwise_program.SWAPPED:
            return self._emit(elementwise_program.SWAPPED[kind], *reversed(operands))
        return self._translate_compound(kind, operands)

    def _translate_compound(self, kind: str, operands: list[int]) -> _Array:
        emit = self._emit
        if kind == "Square":
            return emit(Number.MULTIPLY, operands[0], operands[0])
        if kind == "SquaredDifference":
            difference = emit(Number.SUBTRACT, *operands).register
            return emit(Number.MULTIPLY, difference, difference)
        if kind in ("Rsqrt", "Reciprocal", "Inv"):
            divisor = operands[0]
            if kind == "Rsqrt":
                divisor = emit(Number.SQUARE_ROOT, divisor).register
            return emit(Number.DIVIDE, self._constant(1.0), divisor)
        if kind == "NotEqual":
            return emit(Number.NOT, emit(Number.EQUAL, *operands).register)
        if kind == "DivNoNan":
            quotient = emit(Number.DIVIDE, *operands).register
            return emit(Number.WHERE, operands[1], quotient)
        if kind in ("Select", "SelectV2"):
            condition, where, unless = operands
            chosen = emit(Number.WHERE, condition, where).register
            others = emit(Number.UNLESS, condition, unless).register
            return emit(Number.UNITE, chosen, others)
        raise _Untranslatable

    def _define(self, value: tf.Tensor, array: _Array) -> None:
        if value.dtype not in (tf.float32, tf.bool) or value.shape != self._shape:
            raise _Untranslatable
        self._arrays[id(value)] = array

    def _assign(self, operation: tf.Operation) -> None:
        handle, value = operation.inputs
        variable = self._variable(handle)
        target = 1 + variable
        if value.shape != self._shape:
            raise _Untranslatable
        register = self._operand(value)
        combine = elementwise_program.ASSIGN[operation.type]
        if combine is not None:
            self._instructions.append([combine, target, target, register])
        elif self._is_only_for(register, value):
            # It can be written there directly.
            self._instructions[-1][1] = target
            self._results -= 1
        else:
            self._instructions.append([Number.COPY, target, register, _GRADIENT])
        self._versions[variable] += 1

    def _is_only_for(self, register: int, value: tf.Tensor) -> bool:
        """Whether the last result was computed for this one use of a value."""
        # Others may be the same array: what an identity was made of.
        tensors = sum(array.register == register for array in self._arrays.values())
        return self._is_last_result(register) and len(value.consumers()) == 1 and tensors == 1

    def _is_last_result(self, register: int) -> bool:
        newest = self._first_result + self._results - 1
        if any(register == summed for _, _, summed in self._wanted):
            return False  # It is read before the variable is written.
        return self._results > 0 and register == newest == self._instructions[-1][1]

    def _emit(self, operation: int, left: int, right: int = _GRADIENT) -> _Array:
        target = self._first_result + self._results
        self._results += 1
        self._instructions.append([operation, target, left, right])
        return _Array(target)

    def _want_sum(self, operation: tf.Operation) -> None:
        array, axes = operation.inputs
        axes = tf.get_static_value(axes)
        rank = self._shape.rank
        if self._take_sums is None or axes is None or array.dtype != tf.float32:
            raise _Untranslatable
        if {int(axis) % rank for axis in np.ravel(axes)} != set(range(rank)):
            raise _Untranslatable  # Of rows or columns alone: an array of another shape.
        place = len(self._instructions)
        self._wanted.append((operation.outputs[0], place, self._operand(array)))

    def _take_wanted_sums(self) -> None:
        wanted, self._wanted = self._wanted, []
        instructions: list[list[int]] = []
        begin = 0
        for number, (_, end, register) in enumerate(wanted):
            output = elementwise_program.output(number)
            instructions += self._instructions[begin:end]
            instructions.append([Number.COPY, output, register, _GRADIENT])
            begin = end
        program = self._program(instructions, len(wanted))
        assert self._take_sums is not None  # Else no sum is wanted.
        sums = self._take_sums(program, len(wanted))
        for (value, _, _), total in zip(wanted, sums, strict=True):
            self._sums[id(value)] = tf.reshape(total, value.shape)

    def _variable(self, handle: tf.Tensor) -> int:
        index = self._captured.get(id(handle))
        if index not in self._variables:
            raise _Untranslatable  # Computed in the update, or of somebody else.
        return self._variables[index]

    def _operand(self, value: tf.Tensor) -> int:
        array = self._arrays.get(id(value))
        if array is None:
            return self._scalar(value)
        if array.variable is not None and array.version != self._versions[array.variable]:
            raise _Untranslatable  # The value that was read is overwritten by now.
        return array.register

    def _scalar(self, value: tf.Tensor) -> int:
        if value.dtype != tf.float32:
            raise _Untranslatable
        number = self._number_of(value)
        if isinstance(number, float):
            return self._constant(number)
        return self._register_of(self._lift_number(number))

    def _register_of(self, lifted: tf.Tensor) -> int:
        for number, known in enumerate(self._scalars):
            if known is lifted:
                return -1 - number
        self._scalars.append(lifted)
        return -len(self._scalars)

    def _constant(self, number: float) -> int:
        if number not in self._constants:
            self._constants[number] = tf.constant(number, tf.float32)
        return self._register_of(self._constants[number])

    def _number_of(self, value: tf.Tensor) -> tf.Tensor | float:
        """What all elements of a value are."""
        operation = value.op
        if value.shape.rank == 0:
            return value
        if operation.type == "Const":
            elements = tf.get_static_value(value).ravel()
            # Bit by bit: zeros have signs.
            if elements.size == 0:
                return 0.0
            if np.all(elements.view(np.uint32) == elements.view(np.uint32)[0]):
                return float(elements[0])
        elif operation.type in ("Identity", "BroadcastTo"):
            return self._number_of(operation.inputs[0])
        elif operation.type == "Fill":
            return operation.inputs[1]
        elif operation.type in ("ZerosLike", "OnesLike"):
            return 0.0 if operation.type == "ZerosLike" else 1.0
        if value.shape.num_elements() == 1:
            return value  # Such as a sum that keeps its dimensions.
        raise _Untranslatable

    def _lift_number(self, value: tf.Tensor) -> tf.Tensor:
        lifted = self._lift(value)
        if lifted.shape.rank != 0:
            lifted = self._lifted[id(value)] = tf.reshape(lifted, [])
        return lifted

    def _lift(self, value: tf.Tensor) -> tf.Tensor:
        """The same value, computed in the calling graph."""
        if id(value) not in self._lifted:
            self._lifted[id(value)] = self._lift_new(value)
        return self._lifted[id(value)]

    def _lift_new(self, value: tf.Tensor) -> tf.Tensor:
        if id(value) in self._captured:
            return tf.convert_to_tensor(self._outer[self._captured[id(value)]])
        if any(value is wanted for wanted, _, _ in self._wanted):
            self._take_wanted_sums()
        if id(value) in self._sums:
            return self._sums[id(value)]
        operation = value.op
        attributes = operation.node_def.attr
        if (
            id(value) in self._arrays
            or operation.type == "Placeholder"
            or any(attribute.HasField("func") for attribute in attributes.values())
        ):
            raise _Untranslatable
        inputs = [self._lift(operand) for operand in operation.inputs]
        outer = _tf_private.ops.get_default_graph()
        copy = outer.create_op(
            operation.type,
            inputs,
            [output.dtype for output in operation.outputs],
            name="tfdear_update_scalar",
            attrs={name: attributes[name] for name in attributes if not name.startswith("_")},
            op_def=operation.op_def,
        )
        return copy.outputs[value.value_index]
