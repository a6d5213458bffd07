# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The ids of the next batch are made by the ops that made those of this one, or not at all."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdear.data import iterators, look_ahead
from tfdear.gradients import next_ids

_WORDS = np.arange(1, 19).reshape(6, 3)


@pytest.fixture
def distribute(monkeypatch):
    """Hands out datasets whose iterators look ahead."""
    ahead = look_ahead.LookAhead(lambda: True)
    extended = tf.distribute.get_strategy().extended
    monkeypatch.setattr(extended, "look_ahead", ahead, raising=False)
    return lambda dataset: iterators.hand_out(dataset, ahead.iterate)


def _batches(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(2)


def _read_in_graph(dataset, compute):
    """The ids of each step, and what was expected: the batch is read in the graph."""

    @tf.function(autograph=False)
    def step(iterator):
        ids = compute(iterator.get_next())
        expected = next_ids.next_of(ids)
        return (ids,) if expected is None else (ids, expected.ids, expected.present)

    return _run(step, dataset, iter)


def _given_as_argument(dataset, compute):
    """As `_read_in_graph`: the batch is read in one function and given to another."""

    @tf.function(autograph=False)
    def inner(batch):
        ids = compute(batch)
        expected = next_ids.next_of(ids)
        return (ids,) if expected is None else (ids, expected.ids, expected.present)

    @tf.function(autograph=False)
    def step(iterator):
        return inner(iterator.get_next())

    return _run(step, dataset, iter)


def _read_outside(dataset, compute):
    """As `_read_in_graph`: the batch is given to the function of the step."""

    @tf.function(autograph=False)
    def step(batch):
        ids = compute(batch)
        expected = next_ids.next_of(ids)
        return (ids,) if expected is None else (ids, expected.ids, expected.present)

    seen = []
    for batch in dataset:
        seen.append(_values(step(batch)))
    return seen


def _run(step, dataset, make_iterator):
    iterator = make_iterator(dataset)
    seen = []
    while True:
        try:
            seen.append(_values(step(iterator)))
        except tf.errors.OutOfRangeError:
            return seen


def _values(outputs):
    ids, *expected = (output.numpy() for output in outputs)
    if not expected:
        return ids.tolist(), None
    following, present = expected
    assert following.dtype == ids.dtype
    return ids.tolist(), following.tolist() if present else []


_WAYS = (_read_in_graph, _given_as_argument, _read_outside)
_LOOKUP = keras.layers.StringLookup(vocabulary=["1", "5", "9"])
_TEXT = keras.layers.TextVectorization(vocabulary=["1", "5", "9"], output_sequence_length=4)


def _in_function(words):
    return tf.function(lambda: words * 2, autograph=False)()


def _in_branch(words):
    return tf.cond(tf.reduce_sum(words) > 30, lambda: words + 1, lambda: words)


def _in_loop(words):
    return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2), (0, words))[1]


_COMPUTED = {
    "identity": lambda words: words,
    "cast": lambda words: tf.cast(words, tf.int32),
    "part": lambda words: words[:, :-1],
    "where": lambda words: tf.where(words > 5, words, 0),
    "captured": lambda words: words + tf.constant(np.arange(6).reshape(2, 3)),
    "strings": lambda words: _LOOKUP(tf.strings.as_string(words)),
    "text": lambda words: _TEXT(tf.strings.reduce_join(tf.strings.as_string(words), -1)),
    "function": lambda words: tf.function(lambda x: x * 2, autograph=False)(words),
    "captured_by_function": _in_function,
    "branch": _in_branch,
    "loop": _in_loop,
    "constant": lambda words: tf.range(3),
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("name", _COMPUTED)
def test_expected_is_what_comes_next(distribute, way, name):
    seen = way(distribute(_batches(_WORDS)), _COMPUTED[name])
    assert len(seen) == 3
    for (_, expected), (ids, _) in zip(seen, seen[1:], strict=False):
        assert expected == ids
    assert seen[-1][1] == ([0, 1, 2] if name == "constant" else [])


_VARIABLE = tf.Variable(1, dtype=tf.int64, trainable=False)
_REFUSED = {
    "variable": lambda words: words + _VARIABLE,
    "random": lambda words: words + tf.random.uniform([], 0, 2, tf.int64),
    "python": lambda words: tf.ensure_shape(tf.numpy_function(abs, [words], tf.int64), [None, 3]),
    "asserted_in_branch": lambda words: tf.cond(
        tf.reduce_sum(words) > 30,
        lambda: tf.numpy_function(abs, [words], tf.int64),
        lambda: words,
    ),
    "variable_alone": lambda words: _VARIABLE[tf.newaxis],
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("name", _REFUSED)
def test_no_hint_where_state_is_involved(distribute, way, name):
    seen = way(distribute(_batches(_WORDS)), _REFUSED[name])
    assert len(seen) == 3
    assert all(expected is None for _, expected in seen)


@pytest.mark.parametrize("way", _WAYS)
def test_ragged_in_dictionaries(distribute, way):
    words = tf.RaggedTensor.from_tensor(_WORDS)
    words = tf.ragged.boolean_mask(words, _WORDS % 4 > 0)
    dataset = tf.data.Dataset.from_tensor_slices({"words": words, "a": _WORDS}).batch(2)
    seen = way(distribute(dataset), lambda batch: batch["words"].flat_values)
    for (_, expected), (ids, _) in zip(seen, seen[1:], strict=False):
        assert expected == ids
    assert seen[-1][1] == []


def test_where_the_ids_are_used_in_a_branch(distribute):
    @tf.function(autograph=False)
    def step(iterator):
        words = iterator.get_next()
        doubled = words * 2

        def branch():
            expected = next_ids.next_of(doubled + 1)
            return expected.ids, expected.present

        return tf.cond(tf.size(words) > 0, branch, lambda: (words, tf.constant(False)))

    iterator = iter(distribute(_batches(_WORDS)))
    for start in (2, 4):
        ids, present = step(iterator)
        assert present
        assert ids.numpy().tolist() == (_WORDS[start : start + 2] * 2 + 1).tolist()
    assert not step(iterator)[1]


def test_two_lookups_share_what_was_added(distribute):
    counts = []

    @tf.function(autograph=False)
    def step(iterator):
        words = iterator.get_next() * 2
        for ids in (words + 1, words + 2, words + 1):
            next_ids.next_of(ids)
        types = [op.type for op in words.graph.get_operations() if "next" in op.name]
        counts.append(types.count("Mul"))

    step(iter(distribute(_batches(_WORDS))))
    assert counts == [1]


def test_a_function_that_is_called_with_something_else(distribute):
    @tf.function(reduce_retracing=True, autograph=False)
    def step(words):
        # Out of range, but for words that were changed before the call.
        ids = tf.gather(tf.range(20), words)
        expected = next_ids.next_of(ids)
        return ids, expected.ids, expected.present

    for words in distribute(_batches(_WORDS)):
        step(words)
    for words in distribute(_batches(_WORDS + 100)):
        ids, following, present = step(words - 100)
        assert not present
        assert following.numpy().tolist() == ids.numpy().tolist()
    assert not step(tf.constant(_WORDS[:2]))[2]
    assert step.experimental_get_tracing_count() == 1


def test_a_function_that_is_traced_for_something_else(distribute):
    expected = []

    def step(words):
        expected.append(next_ids.next_of(words))

    for _ in distribute(_batches(_WORDS)):
        pass
    tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([None, 3], tf.int64))
    tf.function(step, autograph=False)(tf.constant(_WORDS[:2]))
    assert expected == [None, None]


@pytest.mark.parametrize("unrolled", [1, 2])
def test_steps_per_execution(distribute, monkeypatch, unrolled):
    seen = []

    def note(ids, expected, present):
        seen.append((ids.tolist(), expected.tolist() if present else []))
        return np.int64(0)

    class Words(keras.layers.Layer):
        def call(self, words):
            expected = next_ids.next_of(words)
            tf.numpy_function(note, [words, expected.ids, expected.present], tf.int64)
            return tf.cast(words, tf.float32)

        def compute_output_spec(self, words):
            return keras.KerasTensor(words.shape, "float32")

    strategy = tf.distribute.get_strategy()
    monkeypatch.setattr(strategy, "experimental_distribute_dataset", distribute, raising=False)
    model = keras.Sequential([keras.Input((3,), dtype="int64"), Words(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    model.unrolled_steps_per_execution = unrolled
    model.fit(_batches(_WORDS, np.ones([6, 1])), epochs=2, verbose=0)
    rows = [_WORDS[start : start + 2].tolist() for start in (0, 2, 4)]
    assert seen == 2 * list(zip(rows, [*rows[1:], []], strict=True))


def test_gradients_outside_of_the_function(distribute):
    weight = tf.Variable([1.0, 2.0, 3.0])

    @tf.function(autograph=False)
    def step(words):
        expected = next_ids.next_of(words)
        rows = tf.cast(words, tf.float32) * weight
        return tf.reduce_sum(rows), expected.ids, expected.present

    for start, words in zip((0, 2, 4), distribute(_batches(_WORDS)), strict=True):
        with tf.GradientTape() as tape:
            loss, ids, present = step(words)
        gradient = tape.gradient(loss, weight).numpy()
        assert gradient.tolist() == _WORDS[start : start + 2].sum(0).tolist()
        assert bool(present) == (start < 4)
        if present:
            assert ids.numpy().tolist() == _WORDS[start + 2 : start + 4].tolist()


def test_a_function_with_hints_is_saved(distribute, tmp_path):
    module = tf.Module()

    @tf.function(autograph=False)
    def step(words):
        next_ids.next_of(words)
        return words + 1

    module.step = step
    for words in distribute(_batches(_WORDS)):
        module.step(words)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.step(tf.constant(_WORDS[:2])).numpy().tolist() == (_WORDS[:2] + 1).tolist()


def test_graphs_are_freed(distribute):
    graphs = []

    @tf.function(autograph=False)
    def step(iterator):
        words = iterator.get_next()
        next_ids.next_of(words + 1)
        graphs.append(weakref.ref(words.graph))

    step(iter(distribute(_batches(_WORDS))))
    del step
    gc.collect()
    assert graphs[0]() is None
