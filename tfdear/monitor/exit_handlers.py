# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a rank tells the others when its script ends."""

import atexit
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tfdear.monitor.monitor import Monitor


def install(monitor: Monitor, drain: Callable[[], None] | None = None) -> None:
    """Reports the end of this rank to the others before its connections close.

    An exception that ends the script is reported at once, before its traceback is printed; the
    normal end when exit handlers run. Exit handlers that are registered after this call run before
    the monitor is closed, and may still use the other ranks. `drain` waits until this rank has no
    work in flight; it is called where a rank ends without an error, before it reports that.
    """
    previous = sys.excepthook

    def report(kind: Any, error: Any, trace: Any) -> None:
        monitor.report_failure(f"{kind.__name__}: {error}"[:2000])
        previous(kind, error, trace)

    sys.excepthook = report

    def close() -> None:
        if drain is not None and monitor.healthy:
            try:
                drain()
            except Exception as error:  # The script has ended: nothing is left to catch it.
                traceback.print_exc()
                monitor.report_failure(f"{type(error).__name__}: {error}"[:2000])
        monitor.close()

    atexit.register(close)
