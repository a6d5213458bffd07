# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Connections for data: each to its peer, and strangers turned away. Real sockets."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time

import pytest

from tfdear import errors
from tfdear.rendezvous import certificates, data_connections, data_listener, guarded_sockets

SECRET, OTHER = b"s" * 32, b"o" * 32


class Meeting:
    """Where ranks that are threads tell each other where they listen."""

    number = b"n" * 16

    def __init__(self, size):
        self.world_size = size
        self.texts = [None] * size
        self.ended = None
        self.left = set()
        # So many times it does not answer.
        self.failures = 0
        self._changed = threading.Condition()

    def of(self, rank):
        return Entry(self, rank)

    def put(self, rank, text):
        with self._changed:
            self.texts[rank] = text
            self._changed.notify_all()

    def get(self, rank, timeout, other_than=None):
        with self._changed:
            self._changed.wait_for(lambda: self.texts[rank] not in (None, other_than), timeout)
            return self.texts[rank]

    def fail_sometimes(self):
        with self._changed:
            if self.failures > 0:
                self.failures -= 1
                raise errors.StoreUnavailableError("rank 0 is busy")


class Entry:
    """A meeting as one of its ranks sees it."""

    def __init__(self, meeting, rank):
        self._meeting, self._rank = meeting, rank
        self.world_size, self.number = meeting.world_size, meeting.number

    def publish(self, name, value):
        self._meeting.fail_sometimes()
        self._meeting.put(self._rank, value)

    def look_up(self, name, rank, timeout, other_than=None):
        self._meeting.fail_sometimes()
        return self._meeting.get(rank, timeout, other_than)

    def check(self, rank):
        if self._meeting.ended is not None:
            raise self._meeting.ended
        if rank in self._meeting.left:
            raise errors.PeerError(f"rank {rank} has left the job", rank)


def in_threads(size, body):
    failures = []

    def run(rank):
        try:
            body(rank)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]


def made(rank, meeting, of_job=SECRET, timeout=20.0, certificate_of=None):
    certificate = certificates.of_rank(of_job, certificate_of or rank) if of_job else None
    return data_connections.DataConnections(
        rank, "127.0.0.1", certificate, meeting.of(rank), timeout
    )


@pytest.mark.parametrize("of_job", [SECRET, None])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_socket_leads_to_its_peer(size, of_job):
    meeting = Meeting(size)
    barrier = threading.Barrier(size)

    def body(rank):
        with made(rank, meeting, of_job) as connections:
            for group, number in ((0, 1), (3, 2)):
                descriptors = connections.connect(group, range(size), range(number))
                assert [len(own) for own in descriptors] == [
                    number * (peer != rank) for peer in range(size)
                ]
                sockets = [[socket.socket(fileno=fd) for fd in own] for own in descriptors]
                for peer, own in enumerate(sockets):
                    for i, one in enumerate(own):
                        one.setblocking(True)
                        one.settimeout(20)
                        one.sendall(struct.pack("<4i", group, rank, peer, i))
                for peer, own in enumerate(sockets):
                    for i, one in enumerate(own):
                        assert struct.unpack("<4i", one.recv(16)) == (group, peer, rank, i)
                barrier.wait(30)
                for one in sum(sockets, []):
                    one.close()

    in_threads(size, body)


def address_of(meeting, rank):
    address = json.loads(meeting.get(rank, 20))
    return address["host"], address["port"]


def test_strangers_are_turned_away_and_ranks_are_not():
    meeting, stop = Meeting(2), threading.Event()
    received = []

    def attack():
        held = []
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
        first_bytes = (b"", b"G", b"GET / HTTP/1.1\r\n\r\n", b"tfdear 1" + bytes(24), bytes(65536))
        while not stop.is_set():
            for data in first_bytes:
                with contextlib.suppress(OSError):
                    one = socket.create_connection(address_of(meeting, 0), timeout=1)
                    one.settimeout(0.01)
                    held.append(one)
                    one.sendall(data)
            with contextlib.suppress(OSError):
                one = socket.create_connection(address_of(meeting, 0), timeout=1)
                one.settimeout(1)
                guarded = plain.wrap_socket(one)  # It trusts anybody and has no certificate.
                held.append(guarded)
                guarded.sendall(bytes(32))
                received.append(guarded.recv(8))
        for one in held:
            with contextlib.suppress(OSError):
                received.append(one.recv(1))
            one.close()

    attacker = threading.Thread(target=attack)

    def body(rank):
        with made(rank, meeting) as connections:
            if rank == 1:
                time.sleep(1.5)  # Strangers fill every place meanwhile.
            for descriptor in connections.connect(0, [0, 1], range(1))[1 - rank]:
                with socket.socket(fileno=descriptor) as one:
                    one.setblocking(True)
                    one.settimeout(20)
                    one.sendall(b"mine")
                    assert one.recv(4) == b"mine"

    attacker.start()
    try:
        in_threads(2, body)
    finally:
        stop.set()
        attacker.join(30)
    # An alert of TLS at the most, and no byte of the job.
    assert all(data in (b"", b"\x15") for data in received)


@pytest.mark.parametrize("of_job, certificate_of", [(OTHER, None), (None, None), (SECRET, 2)])
def test_who_is_not_the_rank_that_it_says_does_not_get_in(of_job, certificate_of):
    meeting = Meeting(2)

    def body(rank):
        own = (of_job, certificate_of) if rank == 1 else (SECRET, None)
        with made(rank, meeting, own[0], timeout=2.0, certificate_of=own[1]) as connections:
            with pytest.raises(errors.TfdearError, match=f"rank {1 - rank} "):
                connections.connect(0, [0, 1], range(1))

    in_threads(2, body)


def test_a_rank_of_another_job_with_the_same_secret_is_refused():
    meeting, other = Meeting(2), Meeting(2)
    other.number = b"o" * 16

    def body(rank):
        if rank == 0:
            with made(0, meeting, timeout=2.0) as host:
                with pytest.raises(errors.PeerError, match="rank 1 did not connect within 2 s"):
                    host.connect(0, [0, 1], range(1))
                assert not host.listener.arrived
        else:
            # It knows the address, as of an earlier job, and has the secret.
            other.texts[0] = meeting.get(0, 20)
            with made(1, other, timeout=1.0) as guest:
                with pytest.raises(errors.PeerError, match="no connection to rank 0 at 127"):
                    guest.connect(0, [0, 1], range(1))

    in_threads(2, body)


def test_who_is_known_makes_no_room_for_strangers():
    meeting = Meeting(2)
    context = guarded_sockets.contexts(certificates.of_rank(SECRET, 1))[1]
    hello = data_listener.HELLO.pack(b"tfdear 1", meeting.number, 1, 0, 0, 0)

    def come():
        plain = socket.create_connection(address_of(meeting, 0), timeout=10)
        guarded = context.wrap_socket(plain, server_hostname=certificates.name_of(0))
        guarded.sendall(hello)
        return guarded, guarded.recv(8)

    # The other one, which never comes, keeps the port open.
    with listening(meeting, for_group=3) as host:
        rank_1, told = come()
        assert told == b"welcome!"
        rank_1.sendall(data_listener.CONFIRMATION)
        with contextlib.ExitStack() as held:
            # More than there are places, in the moment in which the peer alone has its connection.
            strangers = [
                held.enter_context(socket.create_connection(address_of(meeting, 0), timeout=10))
                for _ in range(2 * data_listener.MOST_HANDSHAKES)
            ]
            strangers[0].settimeout(20)
            assert strangers[0].recv(1) == b""
            with rank_1.unwrap() as connection:
                ((_, (descriptor,)),) = (host.connect(0, [0, 1], range(1)),)
                with socket.socket(fileno=descriptor) as accepted:
                    connection.sendall(b"mine")
                    accepted.setblocking(True)
                    accepted.settimeout(20)
                    assert accepted.recv(4) == b"mine"
        # It has one connection of each number, and no second one.
        second, told = come()
        second.close()
        assert told == b""


@contextlib.contextmanager
def listening(meeting, for_group, of_job=SECRET):
    """Rank 0's connections, while a thread waits in vain for rank 1 in a group."""
    outcome = []

    def wait_in_vain(host):
        try:
            host.connect(for_group, [0, 1], range(1))
        except errors.TfdearError as error:
            outcome.append(str(error))

    with made(0, meeting, of_job) as host:
        waiting = threading.Thread(target=wait_in_vain, args=(host,))
        waiting.start()
        address_of(meeting, 0)
        yield host
    waiting.join(5)
    assert outcome == ["the connections of this rank were closed meanwhile"]


def test_a_port_is_open_only_while_somebody_waits():
    meeting = Meeting(2)
    with listening(meeting, for_group=0):
        address = address_of(meeting, 0)
        socket.create_connection(address, timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


def test_groups_meet_at_different_times():
    meeting = Meeting(3)
    ports, came = set(), threading.Barrier(3)

    def body(rank):
        with made(rank, meeting) as connections:
            # Rank 0 wants the second group while the others are in the first one.
            groups = {0: (1, 0), 1: (0, 1), 2: (0, 1)}[rank]
            members = {0: [1, 2], 1: [0, 1, 2]}
            for group in groups:
                if rank not in members[group]:
                    continue
                for own in connections.connect(group, members[group], range(1)):
                    for descriptor in own:
                        socket.socket(fileno=descriptor).close()
                ports.add(meeting.texts[rank])
            came.wait(30)
            assert not connections.listener.arrived
            came.wait(30)
            # And later again, at a new port: nobody listens in between.
            if rank < 2:  # Nobody comes to the last one.
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(address_of(meeting, rank), timeout=5)
            came.wait(30)
            for own in connections.connect(3, range(3), range(1)):
                for descriptor in own:
                    socket.socket(fileno=descriptor).close()
            ports.add(meeting.texts[rank])

    in_threads(3, body)
    assert len(ports - {None}) >= 4


@pytest.mark.parametrize("of_job", [SECRET, None])
def test_rank_0_may_be_busy_for_a_while(of_job):
    meeting = Meeting(2)
    meeting.failures = 6

    def body(rank):
        with made(rank, meeting, of_job) as connections:
            for own in connections.connect(0, range(2), range(1)):
                for descriptor in own:
                    socket.socket(fileno=descriptor).close()

    in_threads(2, body)


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_waits_for_who_has_left(rank):
    meeting = Meeting(2)
    threading.Timer(0.3, meeting.left.add, (1 - rank,)).start()
    with made(rank, meeting) as connections:
        with pytest.raises(errors.PeerError, match="has left the job") as caught:
            connections.connect(0, [0, 1], range(1))
    assert caught.value.peer == 1 - rank and caught.value.kind == ""


def greeted(address, hello):
    """What an open job answers to a connection that says this; and the connection."""
    plain = socket.create_connection(address, timeout=10)
    plain.settimeout(10)
    plain.sendall(hello)
    return plain.recv(8), plain


def test_a_port_that_was_another_ranks_before_is_none_of_its():
    meeting = Meeting(3)
    with listening(meeting, for_group=0, of_job=None):
        hello = data_listener.HELLO.pack(b"tfdear 1", meeting.number, 2, 1, 0, 0)
        told, plain = greeted(address_of(meeting, 0), hello)
        plain.close()
        assert told == b""


def test_who_has_given_up_meanwhile_may_come_again():
    meeting = Meeting(2)
    hello = data_listener.HELLO.pack(b"tfdear 1", meeting.number, 1, 0, 0, 0)
    with listening(meeting, for_group=3, of_job=None) as host:
        # It is welcome, and does not confirm it.
        told, plain = greeted(address_of(meeting, 0), hello)
        assert told == b"welcome!"
        plain.close()
        with made(1, meeting, None) as guest:
            threading.Thread(target=guest.connect, args=(0, [0], range(1))).start()
            ((descriptor,),) = host.connect(0, [1], range(1))
            with socket.socket(fileno=descriptor) as arrived:
                assert arrived.getpeername() != plain


def test_who_waits_hears_that_the_job_has_ended():
    meeting = Meeting(2)
    begin = time.monotonic()
    threading.Timer(
        0.3, lambda: setattr(meeting, "ended", errors.JobAbortedError("it ended"))
    ).start()
    for rank in (0, 1):
        with made(rank, meeting) as connections:
            with pytest.raises(errors.JobAbortedError, match="it ended"):
                connections.connect(0, [0, 1], range(1))
    assert time.monotonic() - begin < 10
