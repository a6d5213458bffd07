# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A server that sums slices of gradients: slice_server.py ADDRESS PORT RANKS.

Every rank sends it the same slices, in any order, and gets each sum once all ranks' are there.
Needs NumPy.
"""

import queue
import sys
import threading

import messages  # type: ignore[import-not-found]
import numpy as np


class Sums:
    """Sums that are not complete, and who waits for them."""

    def __init__(self, ranks):
        self._ranks = ranks
        self._lock = threading.Lock()
        self._sums = {}
        self._answers = []

    def serve(self, connection):
        """Takes the slices of one rank until it ends."""
        answers: queue.SimpleQueue = queue.SimpleQueue()
        with self._lock:
            self._answers.append(answers)
        threading.Thread(target=_answer, args=(connection, answers), daemon=True).start()
        while True:
            try:
                numbers, payload = messages.receive(connection)
            except EOFError:
                return
            self._add(tuple(numbers), payload.view(np.float32))

    def _add(self, key, values):
        with self._lock:
            total, count = self._sums.pop(key, (None, 0))
            if total is None:
                total = values
            else:
                total += values
            if count + 1 < self._ranks:
                self._sums[key] = total, count + 1
                return
            for answers in self._answers:
                answers.put((key, total))


def _answer(connection, answers):
    while True:
        key, total = answers.get()
        messages.send(connection, *key, arrays=[total])


def main():
    """Serves until the input ends, which is when the rank that started it does."""
    address, port, ranks = sys.argv[1], *map(int, sys.argv[2:])
    sums = Sums(ranks)
    listener = messages.listen(address, port)
    for _ in range(ranks):
        connection = messages.accept(listener)
        threading.Thread(target=sums.serve, args=(connection,), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
