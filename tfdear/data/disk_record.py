# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A raw record as a `tf.train.Example`: its number, and a feature of bytes for each tensor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_NUMBER = "number"
# What `tf.io.decode_raw` does not know, and what has the same bits.
_DECODED_AS = {tf.uint32: tf.int32, tf.uint64: tf.int64}


def check(specs: Sequence[tf.TensorSpec]) -> None:
    """Refuses tensors that cannot be kept.

    Raises:
        ValueError: There is one.
    """
    for spec in specs:
        try:
            _decoded(tf.constant([b""]), tf.TensorSpec([0], spec.dtype))
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                "`directory` keeps tensors of numbers and strings whose bytes TensorFlow decodes. "
                f"Received records with a tensor of {spec.dtype.name}; give it another type in the "
                "source, or leave `directory` out."
            ) from error


def encode(number: int, arrays: Sequence[Any]) -> bytes:
    """A record's number and its tensors: arrays of NumPy, or bytes for a scalar string."""
    features = {_NUMBER: tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
    for place, array in enumerate(arrays):
        if isinstance(array, bytes):
            contents = [array]
        elif array.dtype == object:  # Strings: their bytes, not the array's, which are pointers.
            contents = array.ravel().tolist()
        else:
            contents = [array.tobytes()]
        features[_name(place)] = tf.train.Feature(bytes_list=tf.train.BytesList(value=contents))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def decode(
    records: tf.Tensor, specs: Sequence[tf.TensorSpec]
) -> tuple[np.ndarray, list[tf.Tensor]]:
    """The numbers and the tensors of records; numbers are -1 if they are records of others."""
    features: dict[str, tf.io.FixedLenFeature] = {_NUMBER: tf.io.FixedLenFeature([], tf.int64)}
    for place, spec in enumerate(specs):
        shape = spec.shape if spec.dtype == tf.string else []
        features[_name(place)] = tf.io.FixedLenFeature(shape, tf.string)
    try:
        parsed = tf.io.parse_example(records, features)
        tensors = [_decoded(parsed[_name(place)], spec) for place, spec in enumerate(specs)]
        return parsed[_NUMBER].numpy(), tensors
    except tf.errors.InvalidArgumentError:
        none = np.full(len(records), -1, np.int64)
        return none, [tf.zeros([len(records), *spec.shape], spec.dtype) for spec in specs]


def _name(tensor: int) -> str:
    return f"tensor_{tensor}"


def _decoded(contents: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    if spec.dtype == tf.string:
        return contents
    kind = _DECODED_AS.get(spec.dtype, spec.dtype)
    tensor = tf.reshape(tf.io.decode_raw(contents, kind), [len(contents), *spec.shape])
    return tensor if kind == spec.dtype else tf.bitcast(tensor, spec.dtype)
