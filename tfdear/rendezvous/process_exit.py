# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The end of a process whose job has failed.

TensorFlow cannot be shut down in order while one of its threads waits for a rank that is gone: the
process would hang or crash, and the exit code would hide what happened. Such a process flushes its
output and ends at once, with a code that is not 0.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import sys
import threading

# Code of a process that had to be ended because it did not react to the end of the job.
EXIT_CODE_STUCK = 70
_FLUSH_SECONDS = 2.0

# The code, and the process that asked for it: a child that it forks ends in its own way.
_exit_code: list[tuple[int, int]] = []


def leave_without_teardown(code: int) -> None:
    """Makes this process end with `code`, without TensorFlow's teardown, when its script ends.

    The code is not 0. The first call wins.
    """
    if not _exit_code:
        _exit_code.append((code, os.getpid()))


def leave_now(code: int, message: str = "") -> None:
    """Ends the process at once with this exit code, with a last message on stderr.

    What was printed is still written, if its reader takes it within 2 s: where nobody reads, a
    write does not return, and the thread that is in it holds what a flush needs.
    """
    flush = threading.Thread(target=_flush, args=(message,), name="tfdear-flush", daemon=True)
    try:
        flush.start()
        flush.join(_FLUSH_SECONDS)
    except RuntimeError:
        # From Python 3.12 on no thread starts among the exit handlers. This watchdog needs none,
        # but knows no code but 1.
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(_FLUSH_SECONDS, exit=True, file=nowhere)
            _flush(message)
    finally:
        os._exit(code)


def _flush(message: str) -> None:
    # Streams may be closed, or their readers gone.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if message:
            # Not logged: the exit handlers may have shut logging down.
            print(message, file=sys.stderr)
        sys.stderr.flush()
    logging.shutdown()
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()


def _leave_if_asked() -> None:
    for code, pid in _exit_code:
        if pid == os.getpid():
            leave_now(code)


# Registered when this module is imported: exit handlers run in reverse order, so those of the
# script and of the rest of tfdear come first.
atexit.register(_leave_if_asked)
