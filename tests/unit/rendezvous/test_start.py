# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The start of a job as one rank sees it. Real sockets."""

import json
import signal
import socket
import threading
import time

import pytest
from absl import logging
from ports import free_port

from tfdear import errors
from tfdear.rendezvous import certificates, rendezvous, start
from tfdear.rendezvous.cluster import Cluster
from tfdear.rendezvous.store import Store
from tfdear.rendezvous.store_service import StoreService

SECRET = "s" * 32


def serve():
    """A meeting of 3 ranks: its address, its service, and rank 0's store."""
    address = f"127.0.0.1:{free_port()}"
    certificate = certificates.of_rank(SECRET.encode(), 0)
    service = StoreService(address, "127.0.0.1", 3, 10.0, certificate)
    service.start()
    return address, service, Store(address, 10.0, 3, certificate)


def test_a_verdict_for_another_number_of_ranks_is_refused(monkeypatch):
    """As of a rank 0 whose version counts nodes in another way."""
    monkeypatch.setenv("TFDEAR_SECRET", SECRET)
    address, service, rank_0 = serve()
    meeting = start.Meeting(Cluster(1, 3, coordinator=address), 60.0, 10.0)
    description = {"common": {}, "host": "h", "pid": 1, "node": None, "address": None}

    def decide():
        verdict = {"go": True, "mismatch": False, "message": "", "node_steps": [0, 1], "job": "00"}
        rank_0.wait_for("start/rank/1", timeout=30)
        rank_0.insert("start/verdict", json.dumps(verdict), timeout=10)

    deciding = threading.Thread(target=decide)
    try:
        assert rank_0.join(0, json.dumps(description), timeout=10) is None
        deciding.start()
        with pytest.raises(errors.RendezvousError) as refusal:
            meeting.run(description)
        assert str(refusal.value) == (
            "rank 0 starts a job of 2 ranks, and this is rank 1 of 3. Do all ranks run the same "
            "tfdear?"
        )
    finally:
        deciding.join(30)
        meeting.store.leave()
        rank_0.leave()
        service.stop()


def test_an_interrupted_start_leaves_the_address(monkeypatch):
    """As in a notebook, whose process lives on and tries again."""
    monkeypatch.setenv("TFDEAR_SECRET", SECRET)
    cluster = Cluster(0, 2, coordinator=f"127.0.0.1:{free_port()}")
    before = threading.active_count()

    def interrupt(meeting):
        raise KeyboardInterrupt

    monkeypatch.setattr(start.Meeting, "_look_at_ranks", interrupt)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            rendezvous.connect(cluster, timeout=30.0, common={})
    end = time.monotonic() + 30
    while threading.active_count() > before:
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)


def test_another_job_at_the_address_hears_nothing_of_a_rank_0_that_cannot_listen(monkeypatch):
    """A user's jobs have one secret."""
    monkeypatch.setenv("TFDEAR_SECRET", SECRET)
    address, service, rank_0 = serve()
    try:
        with pytest.raises(errors.RendezvousError, match="cannot listen"):
            rendezvous.connect(Cluster(0, 2, coordinator=address), timeout=30.0, common={})
        assert rank_0.try_get("start/verdict", timeout=10) is None
    finally:
        rank_0.close()
        service.stop()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_who_waits_for_others_says_for_whom(rank, monkeypatch):
    """Rank 0 meets nobody; rank 1 meets rank 0; rank 2 comes to an address where nobody is."""
    monkeypatch.setenv("TFDEAR_SECRET", SECRET)
    monkeypatch.setattr(start, "_WORDS_SECONDS", 0.3)
    said = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    description = {"common": {}, "host": "h", "pid": 1, "node": None, "address": None}
    address, service, rank_0 = serve()
    if rank != 1:
        rank_0.close()
        service.stop()
    meeting = start.Meeting(Cluster(rank, 3, coordinator=address), 3.0, 10.0)
    try:
        if rank == 1:
            assert rank_0.join(0, json.dumps(description), timeout=10) is None
            # Asked, it says so, too, and lives on.
            signal.raise_signal(signal.SIGUSR1)
        meeting.listen()
        with pytest.raises(errors.RendezvousTimeoutError) as refusal:
            meeting.run(description)
    finally:
        meeting.close()
        rank_0.close()
        service.stop()
    missing = [
        "Ranks that came: 0; missing: 1, 2. ",
        "Ranks that came: 0, 1; missing: 2. ",
        f"could not reach rank 0 at {address} (one process). ",
    ][rank]
    (words,) = said
    assert missing in words and missing in str(refusal.value), (words, refusal.value)
    assert f"rank {rank} (host " in words and "at most 3 s" in words
    assert ("Its threads are at:" in words) == (rank == 1)
    assert ("Connection refused" in str(refusal.value)) == (rank == 2)


def test_a_rank_0_whose_name_is_not_known_yet_is_not_looked_for_by_grpc(monkeypatch):
    """Which would look for the name less and less often."""
    monkeypatch.setenv("TFDEAR_SECRET", SECRET)
    description = {"common": {}, "host": "h", "pid": 1, "node": None, "address": None}
    meeting = start.Meeting(Cluster(1, 3, coordinator=f"localhost:{free_port()}"), 60.0, 10.0)
    look_up, looks, joins = socket.getaddrinfo, [], []

    def look_up_late(host, *arguments, **options):
        if host == "localhost":
            looks.append(host)
            if len(looks) < 5:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *arguments, **options)

    verdict = {"go": False, "mismatch": False, "message": "met", "node_steps": [], "job": "00"}
    monkeypatch.setattr(socket, "getaddrinfo", look_up_late)
    monkeypatch.setattr(Store, "join", lambda *_, **__: joins.append(len(looks)))
    monkeypatch.setattr(Store, "wait_for", lambda *_, **__: json.dumps(verdict))
    try:
        with pytest.raises(errors.RendezvousError, match="met"):
            meeting.run(description)
        assert joins == [5]
    finally:
        meeting.close()
