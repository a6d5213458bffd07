# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are on parameter servers, for Keras models: Parallax-like.

A layer asks the servers for vectors when its forward pass begins, and sends the gradients of its
different rows when they are there, in the background.

Reference: Kim et al., "Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks".
"""

import concurrent.futures
import pathlib
import subprocess
import sys
import time

import keras
import messages  # type: ignore[import-not-found]
import numpy as np
import row_server  # type: ignore[import-not-found]
import tensorflow as tf

_PROGRAM = pathlib.Path(__file__).with_name("row_server.py")


class Servers:
    """The servers of some tables, the first ones of the job's nodes; started by their ranks.

    They all listen on one port, each on its own node.
    """

    def __init__(self, rank, addresses, servers, port, tables):
        self._port = port
        self._rank, self._addresses, self._tables = rank, addresses[:servers], tables
        self._process = None
        if rank < servers:
            shapes = [f"{rows}x{columns}" for rows, columns in tables]
            place = (addresses[rank], self._port, len(addresses), rank, servers)
            command = [sys.executable, str(_PROGRAM), *map(str, place), *shapes]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def close(self):
        """Ends this rank's server."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def table(self, number):
        """A layer for one of the tables."""
        connections = [messages.connect(address, self._port) for address in self._addresses]
        for connection in connections:
            messages.send(connection, self._rank, number)
        return ServedTable(connections, self._tables[number][1])


class ServedTable(keras.layers.Layer):
    """Turns ids into vectors from servers."""

    def __init__(self, connections, columns):
        super().__init__()
        self._connections, self._columns = connections, columns
        # What is asked of a server is asked in order; servers are asked at the same time.
        self._threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in connections]
        self._pushing = []
        self._steps = 0
        self._seconds = self._no_seconds()
        # A gradient is asked for only of what is trained.
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
            unique, positions = tf.unique(tf.reshape(ids, [-1]))
            held = tf.numpy_function(self._pull, [unique], tf.float32)
            vectors = tf.gather(tf.reshape(held, [-1, self._columns]), positions)
            result = tf.reshape(vectors, tf.concat([tf.shape(ids), [self._columns]], 0))

            def gradient(upstream):
                rows = tf.reshape(upstream, [-1, self._columns])
                rows = tf.math.unsorted_segment_sum(rows, positions, tf.shape(unique)[0])
                taken = tf.numpy_function(self._push, [unique, rows], tf.float32)
                return tf.ensure_shape(taken, [1]), None

            return result, gradient

        return look_up

    def _of_server(self, ids):
        return [np.flatnonzero(ids % len(self._threads) == s) for s in range(len(self._threads))]

    def _pull(self, ids):
        vectors = np.empty([len(ids), self._columns], np.float32)

        def pull(server, places):
            begin = time.monotonic()
            connection = self._connections[server]
            message = row_server.PULL, self._steps, len(places), self._columns
            messages.send(connection, *message, arrays=[ids[places]])
            _, payload = messages.receive(connection)
            vectors[places] = payload.view(np.float32).reshape(len(places), self._columns)
            self._seconds["pull"][server].append(time.monotonic() - begin)

        self._await_pushes()
        for pulling in self._start(pull, ids):
            pulling.result()
        return vectors

    def _push(self, ids, rows):
        # TensorFlow takes its memory back.
        ids, rows, step = ids.copy(), rows.copy(), self._steps
        self._steps += 1

        def push(server, places):
            begin = time.monotonic()
            message = row_server.PUSH, step, len(places), self._columns
            messages.send(self._connections[server], *message, arrays=[ids[places], rows[places]])
            self._seconds["push"][server].append(time.monotonic() - begin)

        self._pushing = self._start(push, ids)
        return np.zeros([1], np.float32)

    def _start(self, function, ids):
        return [
            thread.submit(function, server, places)
            for server, (thread, places) in enumerate(
                zip(self._threads, self._of_server(ids), strict=True)
            )
        ]

    def finish(self):
        """Waits until all gradients are sent; returns the seconds of the slowest server's part."""
        self._await_pushes()
        seconds, self._seconds = self._seconds, self._no_seconds()
        return {
            kind: [max(step) for step in zip(*of_servers, strict=True)]
            for kind, of_servers in seconds.items()
        }

    def _no_seconds(self):
        return {kind: [[] for _ in self._connections] for kind in ("pull", "push")}

    def _await_pushes(self):
        for pushing in self._pushing:
            pushing.result()
        self._pushing = []
