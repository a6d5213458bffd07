# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

from tfdear.engine import c_api
from tfdear.rendezvous import tf_server
from tfdear.rendezvous.cluster import Cluster


def test_whatever_fails_is_handed_to_the_thread_that_waits(monkeypatch):
    def refuse():
        raise ImportError("of another version")

    monkeypatch.setattr(c_api, "load", refuse)
    monkeypatch.setenv("no_grpc_proxy", "")  # Which it changes.
    cluster = Cluster(1, 2, coordinator="127.0.0.1:1")
    start = tf_server.ServerStart(cluster, heartbeat=10.0, register_timeout=1.0)
    start.start()
    start.join(60)
    assert not start.is_alive() and "of another version" in str(start.error)
