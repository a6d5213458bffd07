# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""One clock for all ranks: how far this rank's steady clock is behind rank 0's. No TensorFlow.

[Note: Bounds on a clock's offset]
In every round all ranks read their clock, gather what all of them read, and read it again. Nobody
has the gathered values before everybody has given theirs, so, with both clocks read in rank 0's
time, rank 0's first reading is before this rank's second one, and this rank's first before rank 0's
second. Each round bounds the offset from both sides; the tightest bounds of all rounds are kept.
Nothing is assumed about the network, not even that it is as fast in both directions.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence

_ROUNDS = 32


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """What to add to this rank's clock to get rank 0's."""

    microseconds: float
    error: float  # Half the width of the interval in which the offset lies, in microseconds.
    source: str  # "shared" (both ranks read one clock) or "measured".


def boot() -> str:
    """A text that differs between machines, and between boots of one; empty if it is not told."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identity() -> str:
    """A text that is the same for processes that read the same steady clock.

    That is one boot of one machine, and one time namespace, which can shift the clock.
    """
    with contextlib.suppress(OSError):
        if boot():
            return f"{boot()} {os.readlink('/proc/self/ns/time')}"
    # Nobody else's.
    return f"unknown {os.uname().nodename} {os.getpid()}"


def offset_between(rounds: Sequence[tuple[float, float, float, float]]) -> ClockOffset:
    """The offset that readings of two clocks allow; see [Note: Bounds on a clock's offset].

    A round has this rank's readings before and after it and rank 0's, in microseconds. Raises
    ValueError where no offset fits: a clock jumped, or readings were mixed up.
    """
    lowest = max(root_before - own_after for _, own_after, root_before, _ in rounds)
    highest = min(root_after - own_before for own_before, _, _, root_after in rounds)
    if lowest > highest:
        raise ValueError(
            "the clocks of two ranks do not fit together: expected an offset between the bounds of "
            f"{len(rounds)} rounds, but they leave none (at least {lowest:.0f} us, at most "
            f"{highest:.0f} us). A clock was probably set meanwhile; start the job again."
        )
    return ClockOffset((lowest + highest) / 2, (highest - lowest) / 2, "measured")


def measure(
    rank: int, gather: Callable[[list[int]], list[list[int]]], now: Callable[[], int]
) -> ClockOffset:
    """Measures this rank's offset. All ranks must call it, with the same number of rounds.

    `gather` gives a list of integers to all ranks and returns everybody's, in their order; `now`
    reads this rank's steady clock, in microseconds.
    """
    own: list[tuple[int, int]] = []
    root: list[tuple[int, int]] = []
    after = 0
    # One round more: a round's second readings travel with the next.
    for _ in range(_ROUNDS + 1):
        before = now()
        gathered = gather([before, after])
        if own:
            root[-1] = (root[-1][0], gathered[0][1])
        after = now()
        own.append((before, after))
        root.append((gathered[0][0], 0))
    if rank == 0:
        return ClockOffset(0.0, 0.0, "shared")
    # Of the last round, rank 0's second reading is not known.
    return offset_between(
        [(*mine, *of_root) for mine, of_root in zip(own[:-1], root[:-1], strict=True)]
    )
