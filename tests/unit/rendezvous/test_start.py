# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The start of a job as one rank sees it. Real sockets."""

import json
import socket
import threading

import pytest

from tfdear import errors
from tfdear.rendezvous import certificates, start
from tfdear.rendezvous.cluster import Cluster
from tfdear.rendezvous.store import Store
from tfdear.rendezvous.store_service import StoreService

SECRET = "s" * 32


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_verdict_for_another_number_of_ranks_is_refused(monkeypatch):
    """As of a rank 0 whose version counts nodes in another way."""
    monkeypatch.setenv("TFDEAR_SECRET", SECRET)
    address = f"127.0.0.1:{free_port()}"
    certificate = certificates.of_rank(SECRET.encode(), 0)
    service = StoreService(address, "127.0.0.1", 3, 10.0, certificate)
    service.start()
    rank_0 = Store(address, 10.0, 3, certificate)
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
