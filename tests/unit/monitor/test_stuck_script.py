# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which scripts count as stuck after the end of their job."""

import threading
import time

import pytest

from tfdear.monitor import stuck_script


@pytest.mark.parametrize("closes", [False, True])
def test_a_script_that_does_not_move(closes):
    """The main thread waits right here, in its exit handlers or not."""
    since = time.monotonic()
    found = []

    def watch():
        closing = (lambda: since) if closes else (lambda: None)
        found.append(stuck_script.wait_until_stuck(0.5, 0.5, closing, lambda: False))

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join(30)
    assert found == [True]
    assert time.monotonic() - since >= (1.0 if closes else 0.5)


def test_a_script_that_has_left_its_job_is_not_watched():
    """It closed the strategy, and may do what it likes."""
    left = threading.Event()
    found = []

    def watch():
        found.append(stuck_script.wait_until_stuck(60, 60, time.monotonic, left.is_set))

    thread = threading.Thread(target=watch)
    thread.start()
    left.set()
    thread.join(30)
    assert found == [False]
