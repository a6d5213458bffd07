# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Requests for where this process is, by SIGUSR1.

[Note: a signal that no script delays]
Python runs handlers of its own between two steps of the main thread, which may be inside a kernel
that waits for other ranks. `faulthandler` writes at once, in the handler itself, where every thread
is; here into a file in memory, by which whoever takes the requests sees that it was asked.
"""

import faulthandler
import fcntl
import functools
import os
import signal


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
    """Those of this process, whose handler stays until it ends.

    From the first call on the signal does not end the process any more.
    """
    return StackRequests()
