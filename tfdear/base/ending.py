# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is done when a job ends: when it is closed, at the latest when its process exits.

[Note: children of multiprocessing]
A process that `multiprocessing` has forked ends without exit handlers, and an exception that ends
one of its processes comes to no `sys.excepthook`. What it does call at the end are its own
finalizers, while that exception is on its way.
"""

import atexit
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.util import Finalize

_LAST = -100  # Behind the finalizers of its queues and pools.


def is_child_of_multiprocessing() -> bool:
    """Whether that started this process; see [Note: children of multiprocessing]."""
    return multiprocessing.parent_process() is not None


class Ending:
    """Actions for the end of a job, each done once; what was added last comes first.

    Exit handlers that a script registers later than this was made run before all of them, as they
    may still use what the actions end.
    """

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []
        self._pid = os.getpid()
        # What ends this process, where only a finalizer can know it.
        self.failure: BaseException | None = None
        atexit.register(self._at_exit)
        self._finalizer: Finalize | None = None
        if is_child_of_multiprocessing():
            # A child that was forked while an exception was handled seems to handle it to its end.
            handled = sys.exc_info()[1]
            self._finalizer = Finalize(None, self._finalize, (handled,), exitpriority=_LAST)

    def add(self, action: Callable[[], None]) -> None:
        """Takes up an action."""
        self._actions.append(action)

    def run(self) -> None:
        """Does them all now; an error of one is raised when the others are done, too."""
        atexit.unregister(self._at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()
        errors = []
        while self._actions:
            try:
                self._actions.pop()()
            except BaseException as error:  # An interrupt, too: the rest must not be left out.
                errors.append(error)
        if errors:
            raise errors[0]

    def _at_exit(self) -> None:
        # A forked child has this object too, but not the job.
        if os.getpid() == self._pid:
            self.run()

    def _finalize(self, handled: BaseException | None) -> None:
        error = sys.exc_info()[1]
        if error is not handled and not isinstance(error, SystemExit):
            self.failure = error
        self._at_exit()
