# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Translates a traced optimizer update into a program that the engine runs tile by tile.

An update is a chain of passes over memory: momentum makes four, Adam a dozen. Where all of it is
element-wise, the engine does the whole chain on one tile after another
(`custom_ops/engine/updates/elementwise_program.h`). That is decided by the operations of the traced
graph, whatever the optimizer is called. Only operations that IEEE 754 rounds correctly are taken,
so that the weights do not depend, not by a bit, on whether an update is translated.

What an update computes from scalars alone, as Adam does from the step, is computed in the calling
graph.
"""

import dataclasses

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private

# Numbers of the operations, the same as in `elementwise_program.h`.
_COPY, _NEGATE, _SQUARE_ROOT, _ADD, _SUBTRACT, _MULTIPLY, _DIVIDE = range(7)
_BINARY = {"AddV2": _ADD, "Sub": _SUBTRACT, "Mul": _MULTIPLY, "RealDiv": _DIVIDE}
_UNARY = {"Neg": _NEGATE, "Sqrt": _SQUARE_ROOT}
_ASSIGN = {
    "AssignVariableOp": None,
    "AssignAddVariableOp": _ADD,
    "AssignSubVariableOp": _SUBTRACT,
}
_GRADIENT = 0


@dataclasses.dataclass(frozen=True)
class Program:
    """An update for the engine."""

    code: list[int]  # Four numbers per instruction: operation, target, left, right.
    variables: list[int]  # Which captured tensors of the update are the handles of the variables.
    scalars: list[tf.Tensor]  # Tensors of the calling graph.


class _Untranslatable(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class _Array:
    """An operand with as many elements as the variable: a register, or a variable that was read."""

    register: int
    variable: int | None = None
    version: int = 0


def translate(
    function: tf.types.experimental.ConcreteFunction, shape: tf.TensorShape
) -> Program | None:
    """Translates an update of a dense gradient; None where an operation cannot be translated.

    Call it in the graph that calls the update. `shape` is that of the variable, which all arrays of
    the update must have.
    """
    if not shape.is_fully_defined():
        return None
    try:
        return _Translation(function, shape).program()
    except _Untranslatable:
        return None


class _Translation:
    def __init__(self, function: tf.types.experimental.ConcreteFunction, shape: tf.TensorShape):
        self._shape = shape
        graph = function.graph
        self._operations = graph.get_operations()
        inner = [tensor for _, tensor in graph.captures]
        # By id, as tensors compare element by element.
        self._captured = {id(tensor): index for index, tensor in enumerate(inner)}
        self._outer = list(function.captured_inputs)
        handles = [index for index, tensor in enumerate(inner) if tensor.dtype == tf.resource]
        self._variables = {handle: number for number, handle in enumerate(handles)}
        self._versions = [0] * len(handles)
        self._arrays: dict[int, _Array] = {}
        self._define(graph.inputs[0], _Array(_GRADIENT))
        self._lifted: dict[int, tf.Tensor] = {}
        self._scalars: list[tf.Tensor] = []
        # Scalars have negative registers until their number is known.
        self._instructions: list[list[int]] = []
        self._first_result = 1 + len(handles)
        self._results = 0

    def program(self) -> Program:
        for operation in self._operations:
            self._visit(operation)
        if 0 in self._versions:
            raise _Untranslatable  # A variable that is only read: updates of it are not awaited.
        code = [
            number
            for operation, *registers in self._instructions
            for number in (operation, *map(self._final, registers))
        ]
        return Program(code, list(self._variables), self._scalars)

    def _final(self, register: int) -> int:
        if register < 0:
            return self._first_result - register - 1
        return register + len(self._scalars) if register >= self._first_result else register

    def _visit(self, operation: tf.Operation) -> None:
        kind = operation.type
        if kind in ("Placeholder", "NoOp", "Const"):
            return
        if kind in _ASSIGN:
            self._assign(operation)
            return
        if kind == "ReadVariableOp":
            variable = self._variable(operation.inputs[0])
            array = _Array(1 + variable, variable, self._versions[variable])
        elif operation.op_def.is_stateful:
            raise _Untranslatable  # It draws, prints or writes something else.
        elif not any(id(value) in self._arrays for value in operation.inputs):
            return  # Of scalars: lifted when an array meets it.
        elif kind == "Identity":
            array = self._arrays[id(operation.inputs[0])]
        elif kind == "Square":
            operand = self._operand(operation.inputs[0])
            array = self._emit(_MULTIPLY, operand, operand)
        elif kind in _UNARY:
            array = self._emit(_UNARY[kind], self._operand(operation.inputs[0]), _GRADIENT)
        elif kind in _BINARY:
            array = self._emit(_BINARY[kind], *map(self._operand, operation.inputs))
        else:
            raise _Untranslatable
        self._define(operation.outputs[0], array)

    def _define(self, value: tf.Tensor, array: _Array) -> None:
        if value.dtype != tf.float32 or value.shape != self._shape:
            raise _Untranslatable
        self._arrays[id(value)] = array

    def _assign(self, operation: tf.Operation) -> None:
        handle, value = operation.inputs
        variable = self._variable(handle)
        target = 1 + variable
        array = self._arrays.get(id(value))
        if array is None:
            raise _Untranslatable
        register = self._operand(value)
        combine = _ASSIGN[operation.type]
        if combine is not None:
            self._instructions.append([combine, target, target, register])
        elif self._is_last_result(register) and len(value.consumers()) == 1:
            # Only computed for the variable: it can be written there directly.
            self._instructions[-1][1] = target
            self._results -= 1
        else:
            self._instructions.append([_COPY, target, register, _GRADIENT])
        self._versions[variable] += 1

    def _is_last_result(self, register: int) -> bool:
        newest = self._first_result + self._results - 1
        return self._results > 0 and register == newest == self._instructions[-1][1]

    def _emit(self, operation: int, left: int, right: int) -> _Array:
        target = self._first_result + self._results
        self._results += 1
        self._instructions.append([operation, target, left, right])
        return _Array(target)

    def _variable(self, handle: tf.Tensor) -> int:
        index = self._captured.get(id(handle))
        if index is None:
            raise _Untranslatable
        return self._variables[index]

    def _operand(self, value: tf.Tensor) -> int:
        array = self._arrays.get(id(value))
        if array is None:
            return self._scalar(value)
        if array.variable is not None and array.version != self._versions[array.variable]:
            raise _Untranslatable  # The value that was read is overwritten by now.
        return array.register

    def _scalar(self, value: tf.Tensor) -> int:
        if value.dtype != tf.float32 or value.shape.rank != 0:
            raise _Untranslatable
        lifted = self._lift(value)
        for number, known in enumerate(self._scalars):
            if known is lifted:
                return -1 - number
        self._scalars.append(lifted)
        return -len(self._scalars)

    def _lift(self, value: tf.Tensor) -> tf.Tensor:
        """The same value, computed in the calling graph."""
        if id(value) not in self._lifted:
            self._lifted[id(value)] = self._lift_new(value)
        return self._lifted[id(value)]

    def _lift_new(self, value: tf.Tensor) -> tf.Tensor:
        if id(value) in self._captured:
            return tf.convert_to_tensor(self._outer[self._captured[id(value)]])
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
