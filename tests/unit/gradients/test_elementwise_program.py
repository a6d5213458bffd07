# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Codes of programs: what is left out of them, and that those of Keras's optimizers are fused."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdear.gradients import elementwise_program, elementwise_update
from tfdear.gradients.elementwise_program import Number

_FUSED = pathlib.Path(__file__).parents[3] / "custom_ops/engine/updates/fused_programs.cc"
_NAMES = {
    "kAdd": Number.ADD,
    "kSubtract": Number.SUBTRACT,
    "kMultiply": Number.MULTIPLY,
    "kDivide": Number.DIVIDE,
    "kRoot": Number.SQUARE_ROOT,
}


def test_what_nobody_needs_is_left_out():
    # Of one variable (1), results from 2 on.
    instructions = [
        [Number.ADD, 2, 0, 1],
        [Number.NEGATE, 3, 2, 0],
        [Number.MULTIPLY, 4, 3, -1],
        [Number.SUBTRACT, 1, 1, 2],
    ]
    code = elementwise_program.encode(instructions, variables=1, scalars=1)
    assert code == [Number.ADD, 3, 0, 1, Number.SUBTRACT, 1, 1, 3]


def test_a_program_with_outputs_changes_nothing_else():
    instructions = [
        [Number.ADD, 1, 1, 0],
        [Number.MULTIPLY, 2, 1, 1],
        [Number.ADD, 1, 1, -1],
        [Number.COPY, elementwise_program.output(0), 2, 0],
    ]
    code = elementwise_program.encode(instructions, variables=1, scalars=1, outputs=1)
    # Register 2 is the output, 3 the scalar, and what the output needs of the variable is computed.
    assert code == [Number.ADD, 1, 1, 0, Number.MULTIPLY, 4, 1, 1, Number.COPY, 2, 4, 0]


def _fused():
    """The programs of `fused_programs.cc`: their codes, numbers of variables and of scalars."""
    programs = {}
    for text in re.findall(r"^TFDEAR_FUSED\((.*?)\)", _FUSED.read_text(), re.M | re.S):
        name, variables, scalars, *code = (word.strip() for word in text.split(","))
        numbers = [_NAMES[word] if word in _NAMES else int(word) for word in code]
        programs[name] = (numbers, int(variables), int(scalars))
    return programs


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: keras.optimizers.SGD(0.1), "Sgd"),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "Momentum"),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), "Nesterov"),
        (keras.optimizers.Adam, "Adam"),
        (keras.optimizers.AdamW, "Adam"),
        (keras.optimizers.Adagrad, "Adagrad"),
        (keras.optimizers.RMSprop, "RmsProp"),
        (lambda: keras.optimizers.RMSprop(momentum=0.9), "RmsPropMomentum"),
    ],
)
def test_programs_of_keras_are_fused(make, name):
    variable = keras.Variable(np.ones((4, 3), "float32"))
    optimizer = make()
    optimizer.build([variable])
    programs = []

    @tf.function
    def caller():
        rate = tf.constant(0.1) * 2.0
        traced = tf.function(
            lambda gradient: optimizer.update_step(gradient, variable, rate), autograph=False
        ).get_concrete_function(tf.TensorSpec((4, 3), tf.float32))
        used = {id(variable.value.handle) for variable in (*optimizer.variables[2:], variable)}
        foreign = [
            place
            for place, captured in enumerate(traced.captured_inputs)
            if captured.dtype == tf.resource and id(captured) not in used
        ]
        shape = tf.TensorShape((4, 3))
        programs.append(
            elementwise_update.translate(
                traced, shape, exact_bits=False, may_only_read=True, foreign=foreign
            )
        )
        return rate

    caller()
    (program,) = programs
    assert (program.code, len(program.variables), len(program.scalars)) == _fused()[name]
