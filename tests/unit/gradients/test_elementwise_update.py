# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which updates are translated, and that a program does what the traced update does."""

import numpy as np
import pytest
import tensorflow as tf

from tfdear.gradients import elementwise_update

_SHAPE = (3, 5)


def _unite(x, y):
    x, y = np.broadcast_arrays(np.float32(x), np.float32(y))
    return (x.copy().view(np.uint32) | y.copy().view(np.uint32)).view(np.float32)


_OPERATIONS = [
    lambda x, y: x,
    lambda x, y: -x,
    lambda x, y: np.sqrt(x),
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x / y,
    lambda x, y: np.maximum(x, y),
    lambda x, y: np.minimum(x, y),
    lambda x, y: np.abs(x),
    lambda x, y: np.sign(x),
    lambda x, y: np.power(x, y),
    lambda x, y: np.float32(x > y),
    lambda x, y: np.float32(x >= y),
    lambda x, y: np.float32(x == y),
    lambda x, y: np.float32(x == 0),
    lambda x, y: np.where(x != 0, y, np.float32(0)),
    lambda x, y: np.where(x != 0, np.float32(0), y),
    _unite,
]


def _variables(count, seed=0):
    random = np.random.RandomState(seed)
    # Positive: square roots are taken of some.
    return [tf.Variable(random.rand(*_SHAPE).astype("float32")) for _ in range(count)]


def _translate(update, variables, shape=_SHAPE, **options):
    """Traces `update(gradient, rate)`; returns what runs the program in NumPy and compares."""
    rate = tf.constant(0.25)
    outer = {}

    @tf.function
    def caller(gradient):
        by_value = rate * 2.0  # Of the calling graph, as a learning rate is.
        function = tf.function(
            lambda gradient: update(gradient, by_value), autograph=False
        ).get_concrete_function(tf.TensorSpec(shape, tf.float32))
        program = elementwise_update.translate(function, tf.TensorShape(shape), **options)
        if program is None:
            return []
        outer["program"] = program
        handles = [function.captured_inputs[index] for index in program.variables]
        outer["variables"] = [
            next(v for v in variables if v.handle is handle) for handle in handles
        ]
        return program.scalars

    gradient = np.array(np.random.RandomState(1).random_sample(shape), "float32")
    scalars = [scalar.numpy() for scalar in caller(tf.constant(gradient))]
    if "program" not in outer:
        return None
    program, used = outer["program"], outer["variables"]

    def run():
        registers = [gradient, *(v.numpy() for v in used), *scalars]
        code = program.code
        for operation, target, left, right in zip(
            code[::4], code[1::4], code[2::4], code[3::4], strict=True
        ):
            value = _OPERATIONS[operation](registers[left], registers[right])
            if target == len(registers):
                registers.append(value)
            else:
                assert 1 <= target <= len(used)
                registers[target] = value
        update(tf.constant(gradient), rate * 2.0)
        for variable, value in zip(used, registers[1:], strict=False):
            value = np.broadcast_to(value, shape)  # Numbers fill arrays.
            if options.get("exact_bits", True):
                np.testing.assert_array_equal(variable.numpy(), value)
            else:
                np.testing.assert_array_max_ulp(variable.numpy(), value, 4)
        return program

    return run


def test_momentum():
    weight, momentum = _variables(2)

    def update(gradient, rate):
        momentum.assign(momentum * 0.9 - gradient * rate)
        weight.assign_add(momentum)

    program = _translate(update, [weight, momentum])()
    # The new momentum is made where it stays: no copy, four instructions.
    assert len(program.code) == 4 * 4
    assert len(program.scalars) == 2


def test_adam():
    weight, mean, square = _variables(3)

    def update(gradient, rate):
        # Of numbers alone: for the calling graph, powers and casts included.
        count = tf.cast(tf.constant(4, tf.int64), tf.float32)
        alpha = rate * tf.sqrt(1 - tf.pow(0.999, count)) / (1 - tf.pow(0.9, count))
        mean.assign_add((gradient - mean) * 0.1)
        square.assign_add((tf.square(gradient) - square) * 0.001)
        weight.assign_sub(mean * alpha / (tf.sqrt(square) + 1e-7))

    program = _translate(update, [weight, mean, square])()
    assert len(program.scalars) == 4


def test_a_value_that_is_used_again_is_copied():
    weight, momentum = _variables(2)

    def update(gradient, rate):
        step = gradient * rate
        momentum.assign(step)
        weight.assign_sub(step * 2.0)

    _translate(update, [weight, momentum])()


def test_a_value_that_is_used_again_by_another_name_is_copied():
    weight, momentum = _variables(2)

    def identity(gradient, rate):
        moved = 0.9 * momentum + gradient
        momentum.assign(tf.identity(moved))
        half = 0.5 * gradient
        weight.assign_sub(half + moved)

    def identity_once(gradient, rate):
        moved = 0.9 * momentum + gradient
        momentum.assign(tf.identity(moved))
        weight.assign_sub(0.1 * moved)

    def mask(gradient, rate):
        is_positive = gradient > 0.5
        momentum.assign(tf.cast(is_positive, tf.float32))
        weight.assign_sub(rate * tf.where(is_positive, gradient, 0.1 * gradient))

    for update in (identity, identity_once, mask):
        _translate(update, [weight, momentum])()


def test_identity_and_negation():
    (weight,) = _variables(1)
    _translate(lambda gradient, rate: weight.assign_add(-tf.identity(gradient)), [weight])()


_EXACT = {
    "sign": lambda x: tf.sign(x - 0.5),
    "absolute": lambda x: tf.abs(x - 0.5),
    "clip": lambda x: tf.clip_by_value(x, 0.25, 0.5),
    "square": tf.square,
    "difference": lambda x: tf.math.squared_difference(x, 0.5),
    "where": lambda x: tf.where(x > 0.5, x, np.inf),
    "less": lambda x: tf.where(x < 0.5, -1.0, x),
    "unequal": lambda x: tf.where(tf.not_equal(x, tf.maximum(x, 0.5)), 1.0, x),
    "between": lambda x: tf.where(tf.logical_and(x >= 0.25, x <= 0.5), x, 0.0),
    "outside": lambda x: tf.where(tf.logical_or(x < 0.25, x > 0.5), x, 0.0),
    "not": lambda x: tf.where(tf.logical_not(x > 0.5), x, 0.0),
    "mask": lambda x: tf.cast(tf.equal(x, tf.maximum(x, 0.5)), tf.float32),
    "no_nan": lambda x: tf.math.divide_no_nan(x, tf.maximum(x - 0.5, 0.0)),
    "zeros": lambda x: tf.zeros_like(x) - x,
    "ones": lambda x: x * tf.ones_like(x),
    "constant": lambda x: x + tf.constant(2.0, shape=_SHAPE),
    "fill": lambda x: x + tf.fill(_SHAPE, 2.0),
    "one_element": lambda x: x + tf.constant([[2.0]]),
}
_INEXACT = {
    "power": lambda x: tf.pow(x, 0.3),
    "reciprocal": tf.math.reciprocal,
    "reciprocal_root": tf.math.rsqrt,
}


@pytest.mark.parametrize("name", _EXACT)
def test_exact_operations(name):
    (weight,) = _variables(1)
    run = _translate(lambda gradient, rate: weight.assign_sub(_EXACT[name](gradient)), [weight])
    assert run is not None
    run()


@pytest.mark.parametrize("name", _INEXACT)
def test_operations_that_are_rounded_in_no_prescribed_way(name):
    (weight,) = _variables(1)

    def update(gradient, rate):
        weight.assign(_INEXACT[name](gradient))

    assert _translate(update, [weight]) is None
    _translate(update, [weight], exact_bits=False)()


@pytest.mark.parametrize("name", ["exponential", "sum", "array", "other_type"])
def test_other_operations_are_not_translated(name):
    (weight,) = _variables(1)
    make = {
        "exponential": tf.exp,
        "sum": lambda x: x / tf.reduce_sum(x),
        "array": lambda x: x * tf.constant(np.random.rand(*_SHAPE), tf.float32),
        "other_type": lambda x: tf.cast(tf.cast(x, tf.float16), tf.float32),
    }[name]

    def update(gradient, rate):
        weight.assign_sub(make(gradient))

    assert _translate(update, [weight], exact_bits=False) is None


def test_a_variable_is_filled_with_a_number():
    (weight,) = _variables(1)
    _translate(lambda gradient, rate: weight.assign(tf.zeros_like(weight)), [weight])()
    _translate(lambda gradient, rate: weight.assign(tf.fill(_SHAPE, rate)), [weight])()


def test_a_variable_that_is_only_read():
    weight, average = _variables(2)

    def update(gradient, rate):
        average.assign(average * 0.9 + weight * 0.1)

    assert _translate(update, [weight, average]) is None
    program = _translate(update, [weight, average], may_only_read=True)()
    assert len(program.variables) == 2


def test_an_update_without_a_gradient():
    weight, average = _variables(2)

    @tf.function
    def caller(rate):
        for update in (
            lambda: weight.assign_sub(weight * 0.1 * rate),
            lambda: average.assign(weight),
        ):
            function = tf.function(update, autograph=False).get_concrete_function()
            program = elementwise_update.translate(function, weight.shape, may_only_read=True)
            codes.append(np.reshape(program.code, [-1, 4]))
        return tf.constant(0)

    codes = []
    caller(tf.constant(0.5))
    decay, overwrite = codes
    # No instruction has the gradient as an operand, but the unused one of a copy.
    assert (decay[:, 2:] > 0).all()
    assert len(overwrite) == 1 and overwrite[0][2] > 0


def test_what_prints_draws_or_counts_is_not_translated():
    (weight,) = _variables(1)
    count = tf.Variable(0.0)

    def draws(gradient, rate):
        weight.assign_sub(gradient * tf.random.uniform(()))

    def prints(gradient, rate):
        tf.print(rate)
        weight.assign_sub(gradient * rate)

    def counts(gradient, rate):
        count.assign_add(1.0)
        weight.assign_sub(gradient * rate)

    for update in (draws, prints, counts):
        assert _translate(update, [weight, count]) is None


def test_other_types_are_not_translated():
    weight = tf.Variable(np.ones(_SHAPE))
    traced = tf.function(lambda gradient: weight.assign_sub(gradient), autograph=False)
    function = traced.get_concrete_function(tf.TensorSpec(_SHAPE, tf.float64))
    assert elementwise_update.translate(function, weight.shape) is None


def test_a_value_from_before_it_was_written_is_not_translated():
    weight, momentum = _variables(2)

    def update(gradient, rate):
        old = momentum.read_value()
        momentum.assign(gradient)
        weight.assign_sub(old * rate)

    assert _translate(update, [weight, momentum]) is None


def test_a_variable_of_another_shape_is_not_translated():
    (weight,) = _variables(1)
    scale = tf.Variable(2.0)

    def update(gradient, rate):
        scale.assign(scale * 0.5)
        weight.assign_sub(gradient * scale)

    assert _translate(update, [weight, scale]) is None


def test_a_row_that_is_repeated_is_not_translated():
    (weight,) = _variables(1)
    row = tf.range(_SHAPE[1], dtype=tf.float32)
    assert _translate(lambda gradient, rate: weight.assign_sub(gradient * row), [weight]) is None


def test_a_scalar_variable_is_an_array_of_one():
    weight = tf.Variable(3.0)
    run = _translate(lambda gradient, rate: weight.assign_sub(gradient * rate), [weight], ())
    assert run is not None
    run()


def _with_sums(update, variables):
    """As `_translate`, of an update that needs sums; the programs that sums were taken of, too."""
    summed = []

    def take_sums(program, count):
        summed.append((len(program.code) // 4, count))
        # Scalars of the calling graph, as many as there are outputs.
        return [tf.constant(float(number + 2)) for number in range(count)]

    return _translate(update, variables, take_sums=take_sums, exact_bits=False), summed


def test_sums_that_are_needed_together_are_taken_by_one_program():
    weight, mean = _variables(2)

    def update(gradient, rate):
        mean.assign_add((gradient - mean) * 0.1)
        step = mean * rate
        norms = [tf.sqrt(tf.reduce_sum(tf.pow(value, 2))) for value in (weight, step)]
        weight.assign_sub(step * (norms[0] / norms[1]))

    run, summed = _with_sums(update, [weight, mean])
    # The program that yields both squares: three of the mean, the step, two squares, two outputs.
    assert run is not None and summed == [(8, 2)]


def test_the_program_after_sums_does_not_repeat_what_only_they_needed():
    (weight,) = _variables(1)
    programs = []

    def take_sums(program, count):
        programs.append(program)
        return [tf.constant(1.0)] * count

    def update(gradient, rate):
        norm = tf.reduce_sum(tf.square(weight * 2.0), keepdims=True)
        weight.assign_sub(gradient / norm)

    function = tf.function(lambda gradient: update(gradient, None), autograph=False)
    traced = function.get_concrete_function(tf.TensorSpec(_SHAPE, tf.float32))
    with tf.Graph().as_default():
        program = elementwise_update.translate(
            traced, tf.TensorShape(_SHAPE), exact_bits=False, take_sums=take_sums
        )
    assert len(program.code) == 2 * 4 and len(programs) == 1


def test_a_sum_that_depends_on_another_is_taken_after_it():
    (weight,) = _variables(1)

    def update(gradient, rate):
        norm = tf.reduce_sum(tf.abs(weight))
        share = tf.reduce_sum(tf.abs(gradient / norm))
        weight.assign_sub(gradient * share)

    run, summed = _with_sums(update, [weight])
    assert run is not None and [count for _, count in summed] == [1, 1]


def test_sums_of_rows_and_of_overwritten_values():
    weight, mean = _variables(2)

    def of_rows(gradient, rate):
        weight.assign_sub(gradient / tf.reduce_sum(weight, 1, keepdims=True))

    def of_old_values(gradient, rate):
        norm = tf.reduce_sum(mean)  # Before the mean is another.
        mean.assign(gradient)
        weight.assign_sub(mean / norm)

    assert _with_sums(of_rows, [weight, mean])[0] is None
    run, summed = _with_sums(of_old_values, [weight, mean])
    assert run is not None and summed == [(1, 1)]
    assert _translate(of_old_values, [weight, mean]) is None  # Nobody takes sums.
