# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The store in which ranks meet: values, news, who is there, who gets in. Real sockets."""

import contextlib
import errno
import gc
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import weakref

import pytest
from ports import free_port

from tfdear import errors
from tfdear.rendezvous import certificates, secret_check
from tfdear.rendezvous.store import Store
from tfdear.rendezvous.store_service import StoreService

# Long enough for a thread that waits for a core.
_HEARTBEAT = 4.0
SECRET, OTHER = b"s" * 32, b"o" * 32


def description(pid=1):
    return json.dumps({"host": "h", "pid": pid})


@contextlib.contextmanager
def service(job_secret=SECRET, world_size=3, heartbeat=_HEARTBEAT):
    address = f"127.0.0.1:{free_port()}"
    certificate = certificates.of_rank(job_secret, 0) if job_secret else None
    served = StoreService(address, "127.0.0.1", world_size, heartbeat, certificate)
    served.start()
    try:
        yield served, address
    finally:
        served.stop()


@contextlib.contextmanager
def client(address, rank, job_secret=SECRET, heartbeat=_HEARTBEAT):
    certificate = certificates.of_rank(job_secret, rank) if job_secret else None
    store = Store(address, heartbeat, 3, certificate)
    try:
        yield store
    finally:
        store.leave()


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("job_secret", [SECRET, None])
def test_values(job_secret):
    with service(job_secret) as (_, address), client(address, 1, job_secret) as store:
        assert store.insert("a/b", "ä", timeout=5)
        assert not store.insert("a/b", "other", timeout=5)
        assert store.insert("a/c", "1", timeout=5)
        assert store.insert("a/c", "2", timeout=5, overwrite=True)
        assert store.insert("ab", "no part of a", timeout=5)
        assert store.try_get("a/b", timeout=5) == "ä"
        assert store.try_get("a", timeout=5) is None
        assert store.directory("a", timeout=5) == {"b": "ä", "c": "2"}
        assert store.insert("large", "x" * (40 << 20), timeout=20)
        with pytest.raises(errors.StoreUnavailableError, match="RESOURCE_EXHAUSTED"):
            store.insert("too large", "x" * (65 << 20), timeout=20)


def test_news_reach_those_whom_they_concern():
    with service() as (_, address), client(address, 0) as zero, client(address, 1) as one:
        one.insert("monitor/early", "before they came", timeout=5)
        assert zero.join(0, description(), timeout=5) is None
        assert one.join(1, description(), timeout=5) is None
        for store in (zero, one):
            assert store.wait_for("monitor/early", timeout=5) == "before they came"
        one.insert("exchange/x/1/1", "mine", timeout=5)
        one.insert("start/verdict", "go", timeout=5)
        assert zero.wait_for("exchange/x/1/1", timeout=5) == "mine"
        assert one.wait_for("start/verdict", timeout=5) == "go"
        assert one.told("exchange") == {}
        assert set(zero.told("start/rank")) == {"0", "1"} and not one.told("start/rank")
        assert one.wait_for("monitor/never", timeout=0.05) is None


def test_a_rank_is_one_process():
    with service() as (served, address), client(address, 1) as first, client(address, 1) as second:
        assert first.join(1, description(10), timeout=5) is None
        assert json.loads(second.join(1, description(11), timeout=5))["pid"] == 10
        assert served.present() == {1}
        first.leave()
        until(lambda: not served.present())
        assert json.loads(second.join(1, description(11), timeout=5))["pid"] == 10


def test_a_rank_of_another_job_does_not_come_late():
    with service(world_size=2) as (served, address), contextlib.ExitStack() as clients:
        zero, one, late, other = (
            clients.enter_context(client(address, rank)) for rank in (0, 1, 2, -1)
        )
        for rank, store in enumerate((zero, one)):
            assert store.join(rank, description(rank), timeout=5) is None
        verdict = {"go": True, "mismatch": False, "message": "", "node_steps": [0] * 3, "job": "00"}
        zero.insert("start/verdict", json.dumps(verdict), timeout=5)
        for rank, store in ((2, late), (-1, other)):
            with pytest.raises(errors.MismatchError, match="started with a world size of 2"):
                store.join(rank, description(9), timeout=5)
        # Its end is no news for the ranks of this one.
        late.close()
        other.close()
        time.sleep(0.2)
        assert served.present() == {0, 1} and one.told("lost") == {}


def test_who_leaves_is_not_lost():
    with service() as (served, address), client(address, 0) as zero, client(address, 1) as one:
        assert zero.join(0, description(), timeout=5) is None
        assert one.join(1, description(), timeout=5) is None
        one.leave("its last report")
        until(lambda: served.present() == {0})
        assert zero.told("lost") == {}
        assert zero.wait_for("monitor/left/1", timeout=5) == "its last report"


def test_who_has_reported_its_end_leaves_with_that_report():
    with service() as (served, address), client(address, 0) as zero, client(address, 1) as one:
        assert zero.join(0, description(), timeout=5) is None
        assert one.join(1, description(), timeout=5) is None
        one.insert("monitor/left/1", "the first", timeout=5)
        one.leave("the last")
        until(lambda: served.present() == {0})
        assert zero.told("monitor/left") == {"1": "the first"}


RANK_1 = """
import json, sys, time
from tfdear.rendezvous import certificates
from tfdear.rendezvous.store import Store
store = Store(sys.argv[1], 4.0, 3, certificates.of_rank(b"s" * 32, 1))
print(store.join(1, json.dumps({"host": "h", "pid": 5}), timeout=20), flush=True)
{then}
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["killed", "stopped", "held"])
def test_a_rank_that_is_gone_is_known_to_all(how):
    # A script that holds the interpreter, as some C extensions do, is not gone.
    hold = "import ctypes; ctypes.PyDLL(None).usleep(8_000_000); store.leave(); print('left')"
    script = RANK_1.replace("{then}", hold if how == "held" else "")
    with service() as (_, address), client(address, 0) as zero:
        assert zero.join(0, description(), timeout=5) is None
        child = subprocess.Popen(
            [sys.executable, "-c", script, address], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout.readline() == "None\n"
            if how == "held":
                assert child.stdout.readline() == "left\n"
                assert zero.told("lost") == {}
                return
            os.kill(child.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            lost = json.loads(zero.wait_for("lost/1", timeout=20.0))
            assert (lost["silent"] > 1.0) == (how == "stopped")
        finally:
            child.kill()
            child.wait()


RANK_0 = """
import sys, time
from tfdear.rendezvous import certificates
from tfdear.rendezvous.store_service import StoreService
certificate = certificates.of_rank(b"s" * 32, 0)
StoreService(sys.argv[1], "127.0.0.1", 2, 4.0, certificate).start()
print("listens", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_how_rank_0_has_ended_is_known(how):
    address = f"127.0.0.1:{free_port()}"
    child = subprocess.Popen(
        [sys.executable, "-c", RANK_0, address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "listens\n"
        with client(address, 1) as one:
            assert one.join(1, description(), timeout=20) is None
            os.kill(child.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            # Nobody waits for the process itself: its port may still be open.
            with pytest.raises(errors.StoreUnavailableError) as caught:
                until(lambda: one.told("monitor") is None)
            assert caught.value.refused == (how == "killed")
    finally:
        child.kill()
        child.wait()


def test_the_end_of_rank_0_is_known_to_the_others():
    with service() as (served, address), client(address, 1) as one:
        assert one.join(1, description(), timeout=5) is None
        assert one.told("monitor") == {}
        served.stop()
        with pytest.raises(errors.StoreUnavailableError) as caught:
            until(lambda: one.told("monitor") is None)
        assert caught.value.refused


def test_a_store_that_cannot_read_what_it_is_told_is_broken():
    with service() as (served, address), client(address, 1) as one:
        assert one.join(1, description(), timeout=5) is None
        until(lambda: served.present() == {1})
        served._loop.call_soon_threadsafe(served._present[1].put_nowait, {"key": "a"})
        with pytest.raises(errors.StoreUnavailableError, match="KeyError: 'value'"):
            until(lambda: one.told("monitor") is None)
        until(lambda: not served.present())


@pytest.mark.parametrize(
    "own, of_rank_0, found",
    [
        (SECRET, SECRET, None),
        (OTHER, SECRET, "another secret"),
        (SECRET, None, r"no secret \(TFDEAR_INSECURE=1\)"),
        (None, SECRET, "a secret"),
    ],
)
def test_who_does_not_know_the_secret_stays_outside(own, of_rank_0, found):
    with service(of_rank_0) as (served, address), client(address, 1, own) as stranger:
        if found is None:
            assert stranger.join(1, description(), timeout=5) is None
        else:
            with pytest.raises(errors.StoreUnavailableError):
                stranger.join(1, description(), timeout=5)
            with pytest.raises(errors.StoreUnavailableError):
                stranger.try_get("start/verdict", timeout=5)
            assert served.present() == set()
        certificate = certificates.of_rank(own, 1) if own else None
        difference = secret_check.difference(address, certificate)
        assert difference == found or found.startswith(difference[:9])


def test_a_certificate_is_asked_of_both_sides():
    with service() as (_, address):
        host, port = address.split(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=certificates.of_rank(SECRET, 1).authority.decode())
        context.set_alpn_protocols(["h2"])
        # It trusts rank 0, but shows nothing itself: it gets no answer.
        with socket.create_connection((host, int(port)), timeout=5) as plain:
            with context.wrap_socket(plain, server_hostname=certificates.name_of(0)) as guarded:
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    assert guarded.recv(1) == b""


def test_ranks_do_not_pass_for_rank_0():
    address = f"127.0.0.1:{free_port()}"
    other = StoreService(address, "127.0.0.1", 3, 2.0, certificates.of_rank(SECRET, 2))
    other.start()
    try:
        with client(address, 1) as store, pytest.raises(errors.StoreUnavailableError):
            store.try_get("start/verdict", timeout=5)
    finally:
        other.stop()


def test_a_port_that_is_taken():
    with service() as (_, address):
        second = StoreService(address, "127.0.0.1", 3, 2.0, certificates.of_rank(SECRET, 0))
        with pytest.raises(errors.RendezvousError, match=f"cannot listen on {address}"):
            second.start()


@pytest.mark.parametrize("where", ["asyncio.run", "grpc.aio.server"])
def test_a_service_that_cannot_start_says_why(where, monkeypatch):
    def fail(*coroutines, **options):
        for coroutine in coroutines:
            coroutine.close()
        raise OSError(errno.EMFILE, "Too many open files")

    address = f"127.0.0.1:{free_port()}"
    service = StoreService(address, "127.0.0.1", 3, 2.0, certificates.of_rank(SECRET, 0))
    monkeypatch.setattr(where, fail)
    with pytest.raises(errors.RendezvousError, match=f"listen on {address}.*: OSError: .*Too many"):
        service.start()
    service.stop()


def test_strangers_fill_no_place_of_a_rank_for_long():
    with service(world_size=1) as (_, address), client(address, 0) as store:
        assert store.join(0, description(), timeout=5) is None
        host, port = address.split(":")
        with contextlib.ExitStack() as held:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    connection = socket.create_connection((host, int(port)), timeout=1)
                    held.enter_context(connection)
            store.insert("monitor/x", "1", timeout=5)
            assert store.wait_for("monitor/x", timeout=5) == "1"
            # A rank that comes meanwhile gets its place when theirs are taken from them.
            with client(address, 1) as late:
                end = time.monotonic() + 25
                while True:
                    with contextlib.suppress(errors.StoreUnavailableError):
                        assert late.join(1, description(), timeout=20) is None
                        break
                    assert time.monotonic() < end
                    time.sleep(0.1)


def test_who_has_left_is_turned_away_and_comes_to_the_next_job():
    """A rank closes its strategy and creates another one before rank 0 has closed its own."""
    with service() as (_, address):
        with client(address, 1) as first:
            assert first.join(1, description(), timeout=5) is None
        with client(address, 1) as again:
            with pytest.raises(errors.StoreUnavailableError, match="job has ended for rank 1"):
                again.join(1, description(), timeout=5)
            assert not again.was_joined
        with client(address, 2) as other:
            assert other.join(2, description(), timeout=5) is None
            other.insert("job/all_ended", "", timeout=5)
        with client(address, 0) as late:
            with pytest.raises(errors.StoreUnavailableError, match="has ended for rank 0"):
                late.join(0, description(), timeout=5)
    certificate = certificates.of_rank(SECRET, 0)
    following = StoreService(address, "127.0.0.1", 3, 2.0, certificate)
    following.start()
    try:
        with client(address, 1) as store:
            assert store.join(1, description(), timeout=5) is None
    finally:
        following.stop()


def test_who_comes_in_the_place_of_a_lost_rank_waits_for_the_next_job():
    """Started again by whatever watches over processes, while the others still end."""
    with service() as (served, address), client(address, 0) as zero:
        assert zero.join(0, description(), timeout=5) is None
        lost = Store(address, 2.0, 3, certificates.of_rank(SECRET, 1))
        assert lost.join(1, description(10), timeout=5) is None
        lost.close()
        assert zero.wait_for("lost/1", timeout=10) is not None
        with client(address, 1) as again:
            with pytest.raises(errors.StoreUnavailableError, match="job has ended for rank 1"):
                again.join(1, description(11), timeout=5)
            assert not again.was_joined
        assert served.present() == {0}


def test_a_store_that_has_left_has_no_threads():
    with service() as (_, address):
        before = threading.active_count()
        with client(address, 1, heartbeat=60.0) as store:
            assert store.join(1, description(), timeout=5) is None
            assert threading.active_count() > before
        # One of the test before may have ended meanwhile.
        until(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("how", ["leaves", "closes", "rank 0 ends", "turned away"])
def test_a_store_that_is_closed_has_no_stream(how):
    """gRPC's stream must go while its threads run; at the end of a process it may wait for ever."""
    gc.collect()
    gc.disable()  # Nothing may be left to it: it may come too late.
    try:
        with service() as (served, address), client(address, 1) as other:
            store = Store(address, 2.0, 3, certificates.of_rank(SECRET, 1))
            if how == "turned away":
                assert other.join(1, description(1), timeout=5) is None
                assert json.loads(store.join(1, description(2), timeout=5))["pid"] == 1
            else:
                assert store.join(1, description(), timeout=5) is None
            stream = weakref.ref(store._stream)
            if how == "rank 0 ends":
                served.stop()
                until(lambda: not store._joined)
            store.leave() if how == "leaves" else store.close()
            until(lambda: stream() is None)
    finally:
        gc.enable()
