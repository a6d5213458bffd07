# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The autotuner stays where a step of the pipeline is AUTOTUNE, however deep, and only there."""

import pytest
import tensorflow as tf

from tfdear.data import autotuning, iterators

AUTOTUNE = tf.data.AUTOTUNE
NUMBERS = tf.data.Dataset.range(10)


def with_options(dataset, **autotune):
    options = tf.data.Options()
    for name, value in autotune.items():
        setattr(options.autotune, name, value)
    return dataset.with_options(options)


def draw(_):
    return tf.random.uniform([])


@tf.function
def tuned_in_a_function(count):
    return tf.data.Dataset.range(count).map(tf.identity, num_parallel_calls=AUTOTUNE)


TUNED = {
    "prefetch": lambda: NUMBERS.prefetch(AUTOTUNE),
    "deep": lambda: NUMBERS.prefetch(AUTOTUNE).batch(2).repeat(2),
    "map": lambda: NUMBERS.map(draw, num_parallel_calls=AUTOTUNE),
    # TensorFlow gives a function without state as many calls as it tunes.
    "plain map": lambda: NUMBERS.map(lambda x: x + 1),
    "batch": lambda: NUMBERS.batch(2, num_parallel_calls=AUTOTUNE),
    "interleave": lambda: NUMBERS.interleave(
        tf.data.Dataset.range, num_parallel_calls=AUTOTUNE, deterministic=True
    ),
    "inside of interleave": lambda: NUMBERS.interleave(
        lambda count: tf.data.Dataset.range(count).prefetch(AUTOTUNE)
    ),
    "two levels down": lambda: NUMBERS.flat_map(
        lambda x: tf.data.Dataset.range(x).flat_map(
            lambda y: tf.data.Dataset.range(y).prefetch(AUTOTUNE)
        )
    ),
    "in a function": lambda: NUMBERS.flat_map(tuned_in_a_function),
    "second of a zip": lambda: tf.data.Dataset.zip(NUMBERS, NUMBERS.prefetch(AUTOTUNE)),
    "files": lambda: tf.data.TFRecordDataset(["a", "b"], num_parallel_reads=AUTOTUNE),
    "unseen": lambda: tf.data.experimental.from_variant(
        tf.data.experimental.to_variant(NUMBERS), NUMBERS.element_spec
    ),
    "budget of the script": lambda: with_options(NUMBERS, ram_budget=2**30),
    "on by the script": lambda: with_options(NUMBERS, enabled=True),
}
UNTUNED = {
    "batch": lambda: NUMBERS.batch(2),
    "all numbers that are -1": lambda: NUMBERS.repeat(-1).take(-1).skip(0),
    "prefetch": lambda: NUMBERS.prefetch(2),
    "map": lambda: NUMBERS.map(lambda x: x + 1, num_parallel_calls=2),
    "map with state": lambda: NUMBERS.map(draw),
    "interleave": lambda: NUMBERS.interleave(tf.data.Dataset.range, num_parallel_calls=2),
    "sample": lambda: tf.data.Dataset.sample_from_datasets([NUMBERS, NUMBERS], seed=1),
    "files": lambda: tf.data.TFRecordDataset(["a", "b"], num_parallel_reads=2),
    "shuffle": lambda: NUMBERS.shuffle(10, seed=1).batch(2),
    "generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter([1.0]), output_signature=tf.TensorSpec([])
    ),
}


@pytest.mark.parametrize("name", TUNED)
def test_stays_with_a_cause(name):
    dataset = TUNED[name]()
    assert autotuning.switch_off_unused(dataset) is dataset


@pytest.mark.parametrize("name", UNTUNED)
def test_off_without_a_cause(name):
    dataset = autotuning.switch_off_unused(UNTUNED[name]())
    assert dataset.options().autotune.enabled is False
    # Once is enough: what was set now counts as what a script has set.
    assert autotuning.switch_off_unused(dataset) is dataset


def test_off_by_the_script_stays():
    dataset = with_options(NUMBERS.map(draw, num_parallel_calls=AUTOTUNE), enabled=False)
    assert autotuning.switch_off_unused(dataset) is dataset


def test_elements_are_the_same():
    dataset = iterators.hand_out(NUMBERS.batch(4))
    assert [batch.tolist() for batch in dataset.as_numpy_iterator()] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert dataset.element_spec == NUMBERS.batch(4).element_spec


def test_what_is_handed_out_goes_into_functions():
    dataset = iterators.hand_out(NUMBERS)

    @tf.function
    def first(iterator):
        return next(iterator)

    @tf.function
    def total(numbers):
        result = tf.constant(0, tf.int64)
        for number in numbers:
            result += number
        return result

    iterator = iter(dataset)
    assert [int(first(iterator)), int(first(iterator)), int(next(iterator))] == [0, 1, 2]
    assert int(iterator.get_next_as_optional().get_value()) == 3
    assert int(total(dataset)) == 45
    assert first.experimental_get_tracing_count() == 1
