# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a monitor makes of what it is told, and of a log that nobody reads. Real sockets."""

import concurrent.futures
import json
import signal
import threading
import time

import pytest
from absl import logging
from ports import free_port

from tfdear import errors
from tfdear.monitor.monitor import Monitor
from tfdear.rendezvous import process_exit, rendezvous
from tfdear.rendezvous.cluster import Cluster


class Engine:
    """Does nothing, and counts how often the monitor looks at it."""

    looks = 0
    aborted = False

    def in_flight(self):
        self.looks += 1
        return []

    def waits(self):
        return 0, []

    def failure(self):
        return None

    def abort(self, kind, message):
        self.aborted = True


def meet():
    address = f"127.0.0.1:{free_port()}"

    def connect(rank):
        cluster = Cluster(rank, 2, coordinator=address)
        return rendezvous.connect(cluster, timeout=60.0, common={})

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(connect, range(2)))


@pytest.mark.parametrize(
    "reports, cause",
    [
        ({"left": {"aborted": False, "failed": False}}, None),
        (
            {
                "failed": {"error": "ValueError: no data", "time": 0.0},
                "left": {"aborted": False, "failed": True},
            },
            "failed: ValueError: no data",
        ),
        ({}, "was lost: it was killed or crashed"),
    ],
)
def test_what_rank_0_told_before_it_went_counts(reports, cause, monkeypatch):
    monkeypatch.setenv("TFDEAR_SECRET", "s" * 32)
    monkeypatch.setattr(process_exit, "leave_without_teardown", lambda code: None)
    rank_0, rank_1 = meet()
    engine = Engine()
    monitor = Monitor(rank_1, engine)
    try:
        for kind, report in reports.items():
            rank_0.publish(f"monitor/{kind}", json.dumps(report))
        rank_0.ending.run()
        end = time.monotonic() + 60
        with pytest.raises(errors.StoreUnavailableError):
            while time.monotonic() < end:
                rank_1.store.check()
                time.sleep(0.01)
        # As where the script holds the interpreter: all came at once.
        monitor.start()
        while monitor.healthy and engine.looks < 5:
            assert time.monotonic() < end
            time.sleep(0.01)
        if cause is None:
            monitor.check_alive()
        else:
            with pytest.raises(errors.JobAbortedError, match=f"rank 0 .*{cause}"):
                monitor.check_alive()
    finally:
        monitor.leave()
        monitor.close()
        rank_1.ending.run()


def test_a_stall_that_rank_0_has_not_got_is_told_again(monkeypatch):
    monkeypatch.setenv("TFDEAR_SECRET", "s" * 32)
    rank_0, rank_1 = meet()
    monitor = Monitor(rank_1, Engine())
    calls = []

    def insert(key, value, **_):
        calls.append(key)
        if len(calls) == 1:
            raise errors.StoreUnavailableError("rank 0 is busy")

    try:
        monkeypatch.setattr(rank_1.store, "insert", insert)
        wait = {"group": "gradients", "sequence": 1, "signature": "sum", "seconds": 1e9}
        for _ in range(3):
            monitor._publish_stall([wait])
        assert calls == ["monitor/stall/1"] * 2
        # For whom a ring waits changes all the time: not each change is told to all ranks.
        for peer in range(100):
            monitor._publish_stall([{**wait, "waiting_for": peer}])
        assert len(calls) <= 3
        calls[2:] = []
        monitor._publish_stall([{**wait, "sequence": 2}])
        assert len(calls) == 3
    finally:
        monkeypatch.undo()
        rank_1.ending.run()
        rank_0.ending.run()


def test_a_log_that_nobody_reads_does_not_keep_a_job_alive(monkeypatch):
    monkeypatch.setenv("TFDEAR_SECRET", "s" * 32)
    monkeypatch.setattr(process_exit, "leave_without_teardown", lambda code: None)
    is_read = threading.Event()
    # As a write to a pipe that is full.
    for name in ("warning", "error"):
        monkeypatch.setattr(logging, name, lambda *_, **__: is_read.wait(60))
    rank_0, rank_1 = meet()
    engine = Engine()
    monitor = Monitor(rank_1, engine)
    try:
        monitor.start()
        signal.raise_signal(signal.SIGUSR1)  # It is asked to say what it waits for.
        rank_0.publish("monitor/failed", json.dumps({"error": "no data", "time": 0.0}))
        end = time.monotonic() + 40
        while not engine.aborted:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        is_read.set()
        monitor.leave()
        monitor.close()
        rank_1.ending.run()
        rank_0.ending.run()
