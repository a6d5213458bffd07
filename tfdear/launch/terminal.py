# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A terminal for the live rank, like the one on which the launcher shows it."""

from __future__ import annotations

import contextlib
import fcntl
import pty
import termios
import tty


def pseudo_terminal(shown_on: int) -> tuple[int, int]:
    """A terminal as wide as this one: the end from which its output comes, and the rank's."""
    source, output = pty.openpty()
    # The real terminal does all the processing, once.
    tty.setraw(output, termios.TCSANOW)
    copy_window_size(shown_on, output)
    return source, output


def copy_window_size(source: int, target: int) -> None:
    """Makes a terminal as large as another one, if both are terminals."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
