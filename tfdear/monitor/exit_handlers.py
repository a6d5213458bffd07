# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a rank tells the others when its script ends."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

from tfdear.base.ending import Ending
from tfdear.monitor.monitor import Monitor

_LONGEST = 2000


def install(monitor: Monitor, ending: Ending, drain: Callable[[], None] | None = None) -> None:
    """Reports the end of this rank to the others before its connections close.

    An exception that ends the script is reported at once, before its traceback is printed; the
    normal end with the job's. Exit handlers of a script that were registered later than `ending`
    was made run before the monitor is closed, and may still use the other ranks. `drain` waits
    until this rank has no work in flight; it is called where a rank ends without an error, before
    it reports that.
    """
    previous = sys.excepthook

    def report(kind: Any, error: Any, trace: Any) -> None:
        monitor.report_failure(text_of(error))
        previous(kind, error, trace)

    sys.excepthook = report

    def close() -> None:
        if sys.excepthook is report:
            sys.excepthook = previous
        if ending.failure is not None:
            monitor.report_failure(text_of(ending.failure))
        if drain is not None and monitor.healthy:
            try:
                drain()
            except Exception as error:  # The script has ended: nothing is left to catch it.
                traceback.print_exc()
                monitor.report_failure(text_of(error))
        monitor.close()

    ending.add(close)


def text_of(error: BaseException) -> str:
    """An error as the other ranks are told of it."""
    # An error of a graph begins with pages that say where its ops were made, and ends with what
    # happened. The pages are in the log of this rank.
    lines = [line for line in str(error).splitlines() if not line.startswith('  File "')]
    text = "\n".join(filter(str.strip, lines))
    return f"{type(error).__name__}: {text}"[:_LONGEST]
