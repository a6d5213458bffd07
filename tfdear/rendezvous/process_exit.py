# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The end of a process whose job has failed.

TensorFlow cannot be shut down in order while one of its threads waits for a rank that is gone: the
process would hang or crash, and the exit code would hide what happened. Such a process flushes its
output and ends at once, with a code that is not 0.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys

# Code of a process that had to be ended because it did not react to the end of the job.
EXIT_CODE_STUCK = 70

_exit_code: list[int] = []
_pid = os.getpid()  # A forked child ends in its own way.


def leave_without_teardown(code: int) -> None:
    """Makes this process end with `code`, without TensorFlow's teardown, when its script ends.

    The code is not 0. The first call wins.
    """
    if not _exit_code:
        _exit_code.append(code)


def leave_now(code: int) -> None:
    """Ends the process at once with this exit code. What was printed is still written."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # It may be closed, or its reader may be gone.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def _leave_if_asked() -> None:
    if _exit_code and os.getpid() == _pid:
        leave_now(_exit_code[0])


# Registered when this module is imported: exit handlers run in reverse order, so those of the
# script and of the rest of tfdear come first.
atexit.register(_leave_if_asked)
