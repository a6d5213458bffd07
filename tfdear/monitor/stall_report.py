# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a rank waits for, and since when: printed for whoever sends SIGUSR1.

[Note: a signal that no script delays]
Python runs handlers of its own between two steps of the main thread, which may be inside a kernel
that waits for other ranks. `faulthandler` writes at once, in the handler itself, where every thread
is; here into a file in memory, by which the monitor's thread sees that it was asked.
"""

import faulthandler
import fcntl
import functools
import os
import signal

from tfdear.monitor import diagnosis


class StackRequests:
    """The stacks of this process, each time that somebody sends SIGUSR1.

    A script that handles the signal itself keeps it, be it before or after this is made.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("tfdear-stacks", os.MFD_CLOEXEC)
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True)

    def take(self) -> str:
        """What was written since the last call; empty: nobody asked."""
        size = os.fstat(self._file).st_size
        if size == 0:
            return ""
        text = os.pread(self._file, size, 0).decode(errors="replace")
        os.ftruncate(self._file, 0)
        return text


@functools.cache
def stack_requests() -> StackRequests:
    """Those of this process, whose handler stays until it ends."""
    return StackRequests()


def text_of(snapshot: diagnosis.Snapshot, stacks: str) -> str:
    """Who waits for what, since when, as far as this rank knows."""
    lines = [f"{snapshot.describe(snapshot.rank)} was asked what it waits for (SIGUSR1)."]
    for item in snapshot.in_flight:
        missing = diagnosis.missing_ranks(snapshot, item)
        others = "; ".join(diagnosis.last_seen(snapshot, rank) for rank in missing)
        what = diagnosis.describe_collective(item)
        lines.append(f"For {item['seconds']:.1f} s it is in {what}. {others}".rstrip() + ".")
    if not snapshot.in_flight:
        lines.append("It is in no collective.")
    if snapshot.waiting_ops:
        lines.append(
            f"Nothing has happened for {snapshot.waiting_seconds:.1f} s, while these ops wait: "
            + ", ".join(snapshot.waiting_ops)
            + "."
        )
    for rank in sorted(snapshot.lost):
        lines.append(f"{snapshot.describe(rank)} is lost.")
    return "\n".join([*lines, "Its threads are at:", stacks.rstrip()])
