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
from tfdear.rendezvous import certificates, data_connections

SECRET, OTHER = b"s" * 32, b"o" * 32


class Meeting:
    """Ranks that are threads exchange texts here."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size)
        self.texts = [None] * size

    def of(self, rank):
        def exchange(text):
            self.texts[rank] = text
            self._barrier.wait(30)
            return list(self.texts)

        return exchange


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
                descriptors = connections.connect(group, range(size), number)
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
    host, port = json.loads(meeting.texts[rank])["address"]
    return host, port


def test_strangers_are_turned_away_and_ranks_are_not():
    meeting, stop = Meeting(2), threading.Event()
    received = []

    def attack():
        while None in meeting.texts:
            time.sleep(0.01)
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
            for descriptor in connections.connect(0, [0, 1], 1)[1 - rank]:
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
                connections.connect(0, [0, 1], 1)

    in_threads(2, body)


def test_a_rank_of_another_job_with_the_same_secret_is_refused():
    published = []

    def first(text):
        published.append(json.loads(text))
        return [text, text]

    def second(text):
        # It knows the address, as of an earlier job, and has the secret.
        return [json.dumps(published[0] | {"job": "00" * 16}), text]

    of = [certificates.of_rank(SECRET, rank) for rank in range(2)]
    with data_connections.DataConnections(0, "127.0.0.1", of[0], first, 1.0) as host:
        with data_connections.DataConnections(1, "127.0.0.1", of[1], second, 1.0) as guest:
            with pytest.raises(errors.TfdearError, match="no connection to rank 0 at 127"):
                guest.connect(0, [0, 1], 1)
        assert not host._arrived


def test_who_is_known_makes_no_room_for_strangers():
    meeting = Meeting(2)
    meeting.texts[1] = json.dumps({"address": ["127.0.0.1", 1], "job": "00" * 16})
    own = certificates.of_rank(SECRET, 0)
    exchange = lambda text: [text, meeting.texts[1]]  # noqa: E731
    context = data_connections._contexts(certificates.of_rank(SECRET, 1))[1]
    with data_connections.DataConnections(0, "127.0.0.1", own, exchange, 20.0) as host:
        address, hello = host._addresses[0], (b"tfdear 1", host.job, 1, 0, 0)

        def come():
            plain = socket.create_connection(address, timeout=10)
            guarded = context.wrap_socket(plain, server_hostname=certificates.name_of(0))
            guarded.sendall(data_connections._HELLO.pack(*hello))
            return guarded, guarded.recv(8)

        rank_1, told = come()
        assert told == b"welcome!"
        with contextlib.ExitStack() as held:
            # More than there are places, in the moment in which the peer alone has its connection.
            strangers = [
                held.enter_context(socket.create_connection(address, timeout=10))
                for _ in range(2 * data_connections._MOST_HANDSHAKES)
            ]
            strangers[0].settimeout(20)
            assert strangers[0].recv(1) == b""
            with rank_1.unwrap() as connection:
                ((_, (descriptor,)),) = (host.connect(0, [0, 1], 1),)
                with socket.socket(fileno=descriptor) as accepted:
                    connection.sendall(b"mine")
                    accepted.setblocking(True)
                    accepted.settimeout(20)
                    assert accepted.recv(4) == b"mine"
        # It has one connection of each number, and no second one.
        second, told = come()
        second.close()
        assert told == b""


def test_the_port_is_closed_when_all_are_there():
    meeting = Meeting(1)
    with made(0, meeting):
        address = address_of(meeting, 0)
        socket.create_connection(address, timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
