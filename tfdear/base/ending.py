# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is done when a job ends: when it is closed, at the latest when its process exits."""

import atexit
import os
from collections.abc import Callable


class Ending:
    """Actions for the end of a job, each done once; what was added last comes first.

    Exit handlers that a script registers later than this was made run before all of them, as they
    may still use what the actions end.
    """

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []
        self._pid = os.getpid()
        atexit.register(self._at_exit)

    def add(self, action: Callable[[], None]) -> None:
        """Takes up an action."""
        self._actions.append(action)

    def run(self) -> None:
        """Does them all now; an error of one is raised when the others are done, too."""
        atexit.unregister(self._at_exit)
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
