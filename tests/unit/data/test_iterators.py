# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterators that another thread destroys."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tfdear.data import iterators


@pytest.mark.parametrize("nested", [False, True])
def test_the_next_iterator_waits_for_the_lock_of_a_cache(tmp_path, nested):
    def slowly(x):
        time.sleep(0.5)
        return x

    cached = tf.data.Dataset.from_tensor_slices(np.ones([6, 3], "float32"))
    cached = cached.map(
        lambda x: tf.ensure_shape(tf.numpy_function(slowly, [x], tf.float32), [3])
    ).cache(str(tmp_path / "cache"))
    if nested:
        cached = tf.data.Dataset.zip((cached.prefetch(2), tf.data.Dataset.range(6)))
    handed_out = iterators.hand_out(cached.prefetch(2))
    iterator = iter(handed_out)
    next(iterator)
    del iterator  # Its next element is being made.
    for _ in range(2):
        assert len(list(handed_out)) == 6


def test_a_cache_in_memory_is_no_reason_to_wait():
    assert not iterators._locks_files(tf.data.Dataset.range(3).cache().batch(2))
    assert iterators._locks_files(tf.data.Dataset.range(3).cache("/tmp/none").batch(2))
