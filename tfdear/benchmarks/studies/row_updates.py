# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The time of row updates, in processor time of one thread.

First: Adam's update per element, as one loop, operation by operation, and written by hand, on
arrays that stay in the nearest cache and on arrays that stay in none. Then: what it takes to make
up for the updates that rows have missed.
"""

import ctypes

from tfdear.benchmarks import engine_parts

_WAYS = ("one loop", "operation by operation", "by hand")
_ELEMENTS = 1 << 25  # Of each pass over arrays, in all.
_ROWS, _WIDTH = 2560, 64


def adam_nanoseconds(library: ctypes.CDLL, way: int, count: int) -> float:
    """Of one element."""
    times = max(1, _ELEMENTS // count)
    seconds = library.tfdear_adam_seconds(way, count, times)
    if seconds < 0:
        raise RuntimeError(f"Adam cannot be run {_WAYS[way]}: its program is another one")
    return seconds / times / count * 1e9


def main() -> None:
    """Measures and prints."""
    library = engine_parts.library()
    print("ns per element".ljust(16), *(way.rjust(24) for way in _WAYS))
    for count, where in ((1024, "in cache"), (1 << 23, "in memory")):
        times = [adam_nanoseconds(library, way, count) for way in range(len(_WAYS))]
        print(where.ljust(16), *(f"{time:24.2f}" for time in times))
    print(f"{_ROWS} rows of {_WIDTH}: updates missed, ms, ns per element and update")
    for missed in (10, 100, 1000, 10_000):
        seconds = library.tfdear_make_up_seconds(_ROWS, _WIDTH, missed)
        each = seconds / missed / _ROWS / _WIDTH * 1e9
        print(f"{missed:16} {seconds * 1e3:12.1f} {each:12.3f}")


if __name__ == "__main__":
    main()
