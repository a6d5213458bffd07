# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A table whose gradient is summed in blocks, those of zeros left out: OmniReduce-like.

Every rank sums a range of the rows. A rank sends it those of its blocks that are not all zero, 64
to a message, and gets the sums of all ranks' blocks. There are no round trips between messages, of
which the real one has some; so this one is faster. Every rank has the whole table.

Reference: Fei et al., "Efficient Sparse Collective Communication and its Application to Accelerate
Distributed Deep Learning".
"""

import concurrent.futures
import time

import keras
import messages  # type: ignore[import-not-found]
import numpy as np
import tensorflow as tf

_PORT = 7360
_BLOCK_VALUES = 256
_BLOCKS_OF_A_MESSAGE = 64
_LEARNING_RATE = np.float32(0.5)


class BlockSums:
    """The connections of this rank with all others."""

    def __init__(self, rank, addresses):
        self.rank, self.ranks = rank, len(addresses)
        listener = messages.listen(addresses[rank], _PORT)
        self._to = {}
        for other, address in enumerate(addresses):
            if other != rank:
                self._to[other] = messages.connect(address, _PORT)
                messages.send(self._to[other], rank)
        self._from = {}
        for _ in self._to:
            connection = messages.accept(listener)
            (other, *_), _ = messages.receive(connection)
            self._from[other] = connection
        self._threads = concurrent.futures.ThreadPoolExecutor(2 * self.ranks)

    def exchange(self, to_others):
        """Sends blocks and their numbers to each other rank; returns those that came, by rank."""
        sending = [
            self._threads.submit(self._send, other, *blocks) for other, blocks in to_others.items()
        ]
        receiving = {other: self._threads.submit(self._receive, other) for other in self._from}
        received = {other: future.result() for other, future in receiving.items()}
        for future in sending:
            future.result()
        return received

    def _send(self, other, numbers, blocks):
        messages.send(self._to[other], len(numbers), blocks.shape[1])
        for begin in range(0, len(numbers), _BLOCKS_OF_A_MESSAGE):
            part = slice(begin, begin + _BLOCKS_OF_A_MESSAGE)
            messages.send(self._to[other], len(numbers[part]), arrays=[numbers[part], blocks[part]])

    def _receive(self, other):
        (count, width, *_), _ = messages.receive(self._from[other])
        numbers, blocks = np.empty(count, np.int32), np.empty([count, width], np.float32)
        for begin in range(0, count, _BLOCKS_OF_A_MESSAGE):
            (part, *_), payload = messages.receive(self._from[other])
            numbers[begin : begin + part] = payload[: 4 * part].view(np.int32)
            blocks[begin : begin + part] = payload[4 * part :].view(np.float32).reshape(part, width)
        return numbers, blocks


class SummedTable(keras.layers.Layer):
    """Turns ids into vectors; sums the blocks of its gradient over the ranks."""

    def __init__(self, sums, rows, columns):
        super().__init__()
        self._sums, self._columns = sums, columns
        width = _BLOCK_VALUES if columns % _BLOCK_VALUES == 0 else columns
        self._blocks_of_row = columns // width
        # As many blocks for each rank, so that all ranges are as long.
        self._own = -(-rows // sums.ranks) * self._blocks_of_row
        self._weights = np.zeros([self._own * sums.ranks, width], np.float32)
        self._total = np.zeros([self._own, width], np.float32)
        self._seconds = []
        self._anchor = self.add_weight(shape=(1,), initializer="zeros", name="anchor")
        self.built = True

    def call(self, ids):
        return self._look_up(tf.convert_to_tensor(self._anchor), ids)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self._columns)

    @property
    def _look_up(self):
        @tf.custom_gradient
        def look_up(anchor, ids):
            shape = tf.concat([tf.shape(ids), [self._columns]], 0)
            result = tf.reshape(tf.numpy_function(self._read, [ids], tf.float32), shape)

            def gradient(upstream):
                unique, positions = tf.unique(tf.reshape(ids, [-1]))
                rows = tf.reshape(upstream, [-1, self._columns])
                rows = tf.math.unsorted_segment_sum(rows, positions, tf.shape(unique)[0])
                # Later steps read what is summed here: the optimizer waits for it.
                done = tf.numpy_function(self._sum, [unique, rows], tf.float32)
                return tf.ensure_shape(done, [1]), None

            return result, gradient

        return look_up

    def _read(self, ids):
        return self._weights.reshape(-1, self._columns)[ids.ravel()]

    def _sum(self, ids, rows):
        begin = time.monotonic()
        sums, own, total = self._sums, self._own, self._total
        parts = self._blocks_of_row
        numbers = (ids[:, None] * parts + np.arange(parts, dtype=np.int32)).ravel()
        blocks = rows.reshape(len(numbers), -1)
        places = {rank: np.flatnonzero(numbers // own == rank) for rank in range(sums.ranks)}
        others = {rank: p for rank, p in places.items() if rank != sums.rank}
        received = sums.exchange({rank: (numbers[p], blocks[p]) for rank, p in others.items()})
        received[sums.rank] = numbers[places[sums.rank]], blocks[places[sums.rank]]
        for rank in sorted(received):
            of_rank, values = received[rank]
            total[of_rank - sums.rank * own] += values
        touched = np.unique(np.concatenate([of_rank for of_rank, _ in received.values()]))
        values = total[touched - sums.rank * own]
        total[touched - sums.rank * own] = 0
        summed = sums.exchange({rank: (touched, values) for rank in others})
        summed[sums.rank] = touched, values
        for of_rank, values in summed.values():
            self._weights[of_rank] -= _LEARNING_RATE * values
        self._seconds.append(time.monotonic() - begin)
        return np.zeros([1], np.float32)

    def finish(self):
        """Returns the seconds of what was exchanged since the last call."""
        seconds, self._seconds = self._seconds, []
        return {"blocks": seconds}
