# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A script that does not end after its job was aborted, in a call that no abort can reach."""

import sys
import threading
import time
import types
from collections.abc import Callable

from tfdear._private import keras as _keras_private
from tfdear._private import tensorflow as _tf_private

_POLL_SECONDS = 0.25
# A write that runs when the job is aborted may take this long, whatever `cleanup_timeout` is.
_WRITE_SECONDS = 3600.0
# Modules that write checkpoints: while one does, a thread is in one of their functions.
_WRITERS = (*_keras_private.WRITERS, *_tf_private.WRITERS, "h5py")


def is_interactive() -> bool:
    """Whether this process is used interactively, so that somebody has seen the error."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def wait_until_stuck(
    cleanup_timeout: float,
    grace_seconds: float,
    closing_since: Callable[[], float | None],
    has_left: Callable[[], bool],
) -> bool:
    """Whether the script has not moved for as long as it may clean up.

    False once it has left the job, and goes on without it. The main thread may stay at one
    instruction for `cleanup_timeout` seconds; what closes the job, since `closing_since` by
    `time.monotonic`, may take `grace_seconds` more, to wait for other ranks. A checkpoint that is
    being written may be finished.
    """
    main = threading.main_thread().ident
    position, since = None, time.monotonic()
    last_write = time.monotonic() + _WRITE_SECONDS
    while True:
        time.sleep(_POLL_SECONDS)
        if has_left():
            return False
        now = time.monotonic()
        frames = sys._current_frames()
        if now < last_write and any(map(_writes_checkpoint, frames.values())):
            since = now
            continue
        closing = closing_since()
        if closing is not None:
            if now - max(closing, since) >= cleanup_timeout + grace_seconds:
                return True
            continue
        frame = frames.get(main or 0)
        current = (id(frame), frame.f_lasti) if frame is not None else None
        if current != position:
            position, since = current, now
        if now - since >= cleanup_timeout:
            return True


def _writes_checkpoint(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_WRITERS):
            return True
        frame = frame.f_back
    return False
