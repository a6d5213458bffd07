# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A parameter server of rows: row_server.py ADDRESS PORT RANKS NUMBER SERVERS SHAPE...

Holds the rows of every table, with shapes such as 1000x64, whose id is its number, modulo the
number of servers. A rank asks for vectors of ids, and sends gradients of rows, over a connection
for each table. Steps are synchronous: vectors are those after the gradients of all ranks, summed,
of the step before. Needs NumPy.
"""

import sys
import threading

import messages  # type: ignore[import-not-found]
import numpy as np

PULL, PUSH = 0, 1
LEARNING_RATE = np.float32(0.5)


class Table:
    """A server's rows of one table."""

    def __init__(self, ranks, rows, columns):
        self._ranks = ranks
        self._values = np.zeros([rows, columns], np.float32)
        self._changed = threading.Condition()
        self._updates = 0
        self._pushed = {}

    def pull(self, step, rows):
        """Vectors, once as many updates are made as steps came before."""
        with self._changed:
            self._changed.wait_for(lambda: self._updates >= step)
        return self._values[rows]

    def push(self, step, rank, rows, gradients):
        """Takes a rank's rows, which are different ones; updates once all ranks' are there."""
        with self._changed:
            pushed = self._pushed.setdefault(step, {})
            pushed[rank] = rows, gradients
            if len(pushed) < self._ranks:
                return
            del self._pushed[step]
            for number in sorted(pushed):
                rows, gradients = pushed[number]
                self._values[rows] -= LEARNING_RATE * gradients
            self._updates += 1
            self._changed.notify_all()


def serve(connection, tables, servers):
    """Answers one rank about one table until it ends."""
    numbers, _ = messages.receive(connection)
    rank, table = numbers[0], tables[numbers[1]]
    while True:
        try:
            (kind, step, count, columns), payload = messages.receive(connection)
        except EOFError:
            return
        rows = payload[: 4 * count].view(np.int32) // servers
        if kind == PULL:
            messages.send(connection, arrays=[table.pull(step, rows)])
        else:
            gradients = payload[4 * count :].view(np.float32).reshape(count, columns)
            table.push(step, rank, rows, gradients)


def main():
    """Serves until the input ends, which is when the rank that started it does."""
    address, *shapes = sys.argv[1], *sys.argv[6:]
    port, ranks, number, servers = map(int, sys.argv[2:6])
    tables = []
    for text in shapes:
        rows, columns = map(int, text.split("x"))
        tables.append(Table(ranks, len(range(number, rows, servers)), columns))
    listener = messages.listen(address, port)
    for _ in range(ranks * len(tables)):
        arguments = (messages.accept(listener), tables, servers)
        threading.Thread(target=serve, args=arguments, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
