# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Layers that sleep, whose gradients go to servers in slices by priority: BytePS-like.

Every rank's node has a server. A rank sends one slice at a time, of those that are there the one of
the earliest layer; slices take turns among the servers. A layer's forward pass waits for its sums.
Gradients are ones, and sums are applied to one slice of memory, over and over.

Reference: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in
Heterogeneous GPU/CPU Clusters"; Peng et al., "A Generic Communication Scheduler for Distributed DNN
Training Acceleration".
"""

import pathlib
import queue
import subprocess
import sys
import threading
import time

import keras
import messages  # type: ignore[import-not-found]
import numpy as np
import sleeping_model  # type: ignore[import-not-found]
import tensorflow as tf

_PROGRAM = pathlib.Path(__file__).with_name("slice_server.py")
_PORT = 7350
_SLICE = (4 << 20) // 4
_WAIT_SECONDS = 600.0
_LEARNING_RATE = np.float32(0.5)


class Slices:
    """This rank's connections to all servers, and its own server."""

    def __init__(self, rank, addresses):
        place = addresses[rank], _PORT, len(addresses)
        command = [sys.executable, str(_PROGRAM), *map(str, place)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._servers = [messages.connect(address, _PORT) for address in addresses]
        self._ranks = len(addresses)
        self._ready: queue.PriorityQueue = queue.PriorityQueue()
        self._changed = threading.Condition()
        self._left = {}  # Slices of each layer whose sums are not there.
        self._seconds, self._began = [], 0.0
        self._failed = None
        self._gradient = np.ones(_SLICE, np.float32)
        self._weights = np.zeros(_SLICE, np.float32)
        self._start(self._send)
        for server in self._servers:
            self._start(self._receive, server)

    def _start(self, function, *arguments):
        def run():
            try:
                function(*arguments)
            except Exception as error:
                with self._changed:
                    self._failed = error
                    self._changed.notify_all()

        threading.Thread(target=run, daemon=True).start()

    def push(self, layer, elements):
        """A layer's gradient is there."""
        begins = range(0, elements, _SLICE)
        with self._changed:
            if not any(self._left.values()):
                self._began = time.monotonic()
            self._left[layer] = len(begins)
        for number, begin in enumerate(begins):
            self._ready.put((layer, number, min(_SLICE, elements - begin)))

    def wait(self, layer):
        """Waits for the layer's sums."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._failed or not self._left.get(layer), _WAIT_SECONDS
            )
            if self._failed or not done:
                raise RuntimeError(f"the sums of layer {layer} did not come: {self._failed}")

    def close(self):
        """Ends this rank's server."""
        self._process.kill()
        self._process.communicate()

    def finish(self):
        """Waits for all sums; returns the times in which some were on their way."""
        for layer in list(self._left):
            self.wait(layer)
        seconds, self._seconds = self._seconds, []
        return {"slices": seconds}

    def _send(self):
        while True:
            layer, number, elements = self._ready.get()
            server = self._servers[(layer + number) % len(self._servers)]
            messages.send(server, layer, number, arrays=[self._gradient[:elements]])

    def _receive(self, server):
        total = np.empty(_SLICE, np.float32)
        while True:
            (layer, *_), payload = messages.receive(server, total)
            values = payload.view(np.float32)
            if values[0] != self._ranks or values[-1] != self._ranks:
                raise RuntimeError(f"the sum of layer {layer} over the ranks is wrong")
            self._weights[: len(values)] -= _LEARNING_RATE * values
            with self._changed:
                self._left[layer] -= 1
                if not any(self._left.values()):
                    self._seconds.append(time.monotonic() - self._began)
                self._changed.notify_all()


class SlicedLayer(keras.layers.Layer):
    """A sleeping layer whose gradient of `elements` goes to the servers."""

    def __init__(self, slices, number, forward, backward, elements):
        super().__init__()
        self._slices, self._number, self._elements = slices, number, elements
        self._seconds = forward, backward
        self._anchor = self.add_weight(shape=(1,), initializer="zeros", name="anchor")
        self.built = True

    def call(self, state, needed=()):
        del needed
        return self._pass_on(state, tf.convert_to_tensor(self._anchor))

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def _pass_on(self):
        def wait(value):
            self._slices.wait(self._number)
            return value

        def push(value):
            if self._elements:
                self._slices.push(self._number, self._elements)
            return value

        @tf.custom_gradient
        def pass_on(state, anchor):
            waited = tf.numpy_function(wait, [state], state.dtype)
            result = sleeping_model.spend(tf.ensure_shape(waited, state.shape), self._seconds[0])

            def gradient(upstream):
                spent = sleeping_model.spend(upstream, self._seconds[1])
                passed = tf.numpy_function(push, [spent], spent.dtype)
                return tf.ensure_shape(passed, spent.shape), tf.zeros_like(anchor)

            return result, gradient

        return pass_on
