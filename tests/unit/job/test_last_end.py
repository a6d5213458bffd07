# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where ranks wait for each other at the end of a job."""

import atexit
import time

import pytest
from absl import logging

from tfdear import errors
from tfdear.base import patience
from tfdear.base.ending import Ending
from tfdear.job.last_end import LastEnd


class Store:
    """Does not answer the first calls; tells after some looks that the other ranks have come."""

    def __init__(self, failures):
        self._failures = failures
        self._entries = set()
        self.looks = 0

    def _fail_sometimes(self):
        if self._failures > 0:
            self._failures -= 1
            raise errors.StoreUnavailableError("rank 0 is busy")

    def insert(self, key, value, *, timeout):
        self._fail_sometimes()
        self._entries.add(key)
        return True

    def told(self, prefix):
        self._fail_sometimes()
        others = {"1": "", "2": ""} if prefix == "job/ended" and self.looks >= 5 else {}
        start = prefix + "/"
        return others | {k[len(start) :]: "" for k in self._entries if k.startswith(start)}

    def directory(self, prefix, *, timeout):
        return self.told(prefix)

    def has_told(self, key):
        return key == "job/all_ended" and self.looks >= 5

    def wait_for_news(self, timeout):
        self.looks += 1


class Job:
    """Of three ranks, as far as its end needs it: rendezvous and monitor in one."""

    world_size = 3
    healthy = True

    def __init__(self, failures):
        self.store = Store(failures)
        self.ending = Ending()

    def check_alive(self):
        pass


@pytest.mark.parametrize("where", ["at exit", "in close()"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_0_that_is_busy_does_not_end_the_wait(rank, where, monkeypatch):
    job = Job(failures=3)
    end = LastEnd(job, rank, job)
    if where == "at exit":
        handlers = []
        monkeypatch.setattr(atexit, "register", handlers.append)
        end.await_at_exit()
        handlers[0]()
    else:
        end.meet(timeout=60.0)
    assert f"job/ended/{rank}" in job.store._entries
    assert job.store.looks >= 5
    assert rank > 0 or "job/all_ended" in job.store._entries


def test_a_job_that_fails_ends_the_wait(monkeypatch):
    job = Job(failures=0)
    handlers = []
    monkeypatch.setattr(atexit, "register", handlers.append)
    LastEnd(job, 1, job).await_at_exit()
    job.healthy = False
    handlers[0]()
    assert job.store.looks == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_long_says_for_whom(rank, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_SECONDS", 25.0)
    said, handlers = [], []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    job = Job(failures=0)
    monkeypatch.setattr(atexit, "register", handlers.append)
    job.store.looks = -15  # All have come after 20 looks, each of which takes 10 s here.
    monkeypatch.setattr(time, "monotonic", lambda: 10.0 * job.store.looks)
    LastEnd(job, rank, job).await_at_exit()
    handlers[0]()
    assert [words.split(" s ago")[0].rsplit(" ")[-1] for words in said] == ["30", "60", "120"]
    assert f"Ranks that came: {rank}; missing: {'1, 2' if rank == 0 else '0, 2'}." in said[0]
