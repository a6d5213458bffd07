# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Records as they are on a disk."""

import numpy as np
import pytest
import tensorflow as tf

from tfdear.data import disk_record


def test_records_of_others_have_no_number():
    specs = [tf.TensorSpec([2], tf.uint64), tf.TensorSpec([1, 2], tf.string)]
    numbers, texts = np.array([1, 1 << 63], np.uint64), np.array([[b"", b"a\0"]], object)
    record = disk_record.encode(7, [numbers, texts])
    found, tensors = disk_record.decode(tf.constant([record, record]), specs)
    assert found.tolist() == [7, 7]
    np.testing.assert_array_equal(tensors[0], [numbers, numbers])
    np.testing.assert_array_equal(tensors[1], [texts, texts])
    for other in (b"text", disk_record.encode(7, [numbers]), disk_record.encode(7, [texts, texts])):
        found, tensors = disk_record.decode(tf.constant([other]), specs)
        assert found.tolist() == [-1]
        assert [tensor.shape.as_list() for tensor in tensors] == [[1, 2], [1, 1, 2]]


def test_types_that_cannot_be_decoded_are_refused():
    with pytest.raises(ValueError, match="`directory` keeps .* Received .* a tensor of qint8"):
        disk_record.check([tf.TensorSpec([2], tf.float32), tf.TensorSpec([2], tf.qint8)])
