# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Strangers: they connect to the ports of a job in every way but the right one. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import os
import random
import selectors
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tfdear.rendezvous import certificates

Address = tuple[str, int]

_CONNECT_SECONDS = 10.0
_TLS_ALERT, _TLS_HANDSHAKE = 0x15, 0x16


@dataclasses.dataclass(frozen=True)
class Port:
    """Where a process listens."""

    pid: int
    address: Address


def listening(pids: Iterable[int]) -> list[Port]:
    """Every TCP port on which these processes listen, or one that they have started."""
    ports = []
    for pid in pids:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            for found in one.net_connections("tcp"):
                if found.status == psutil.CONN_LISTEN:
                    # What listens on IPv4 alone may have a socket of IPv6.
                    host = found.laddr.ip.removeprefix("::ffff:")
                    ports.append(Port(one.pid, (host, found.laddr.port)))
    return sorted(ports, key=lambda port: (port.pid, port.address))


@dataclasses.dataclass(frozen=True)
class Visit:
    """What one stranger saw."""

    answer: bytes  # The first bytes that came back, as they were on the line.
    seconds: float | None  # After which the other side ended it; None: it did not.

    @property
    def is_turned_away(self) -> bool:
        """Whether it was ended, with no more than what TLS says before anybody is known."""
        return self.seconds is not None and (
            not self.answer or self.answer[0] in (_TLS_ALERT, _TLS_HANDSHAKE)
        )


@dataclasses.dataclass(frozen=True)
class Strangers:
    """Some strangers who do the same: send bytes, and wait until the other side ends it.

    Args:
        data: What each sends.
        number: How many they are.
        pace: Seconds between two bytes; 0: all at once.
        stays: Whether they wait for the end; else they end it themselves.
    """

    data: bytes = b""
    number: int = 1
    pace: float = 0.0
    stays: bool = True


def visit(
    address: Address, groups: Sequence[Strangers], seconds: float = 40.0
) -> list[list[Visit]]:
    """Sends groups of strangers to a port, all at once; each waits `seconds` at the most."""

    async def every() -> list[list[Visit]]:
        visits = [
            asyncio.gather(*(_visit(address, group, seconds) for _ in range(group.number)))
            for group in groups
        ]
        return list(await asyncio.gather(*visits))

    return asyncio.run(every())


async def _visit(address: Address, group: Strangers, seconds: float) -> Visit:
    answer = bytearray()
    begun = time.monotonic()
    writer = None

    async def send(to: asyncio.StreamWriter) -> None:
        step = 1 if group.pace else max(len(group.data), 1)
        for start in range(0, len(group.data), step):
            to.write(group.data[start : start + step])
            await to.drain()
            await asyncio.sleep(group.pace)

    async def whole() -> None:
        nonlocal writer
        reader, writer = await asyncio.open_connection(*address)
        if not group.stays:
            await send(writer)
            return
        sending = asyncio.ensure_future(send(writer))
        try:
            while part := await reader.read(65536):
                answer.extend(part[: 256 - len(answer)])
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending

    try:
        await asyncio.wait_for(whole(), seconds)
    except asyncio.TimeoutError:  # Before Python 3.11 it is no TimeoutError.
        return Visit(bytes(answer), None)
    except OSError:
        pass  # Cut, or not even let in.
    finally:
        if writer is not None:
            writer.close()
    return Visit(bytes(answer), time.monotonic() - begun)


class Flood:
    """Idle strangers at some ports, each of whom comes again when it was turned away.

    They are there inside of its `with` statement. `pause`: seconds until one comes again.
    """

    def __init__(self, addresses: Sequence[Address], number: int, pause: float = 0.5):
        self._addresses = addresses
        self._number = number
        self._pause = pause
        self._is_over = threading.Event()
        self._have_come = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Flood:
        self._thread.start()
        self._have_come.wait(_CONNECT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)

    async def _run(self) -> None:
        first = [asyncio.Event() for _ in range(self._number * len(self._addresses))]
        comers = [
            asyncio.ensure_future(self._come(self._addresses[i % len(self._addresses)], event))
            for i, event in enumerate(first)
        ]
        announcing = asyncio.ensure_future(self._announce(first))
        while not self._is_over.is_set():
            await asyncio.sleep(0.05)
        for task in (*comers, announcing):
            task.cancel()
        await asyncio.gather(*comers, announcing, return_exceptions=True)

    async def _announce(self, events: Sequence[asyncio.Event]) -> None:
        for event in events:
            await event.wait()
        self._have_come.set()

    async def _come(self, address: Address, came: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*address)
                came.set()
                try:
                    while await reader.read(4096):
                        pass
                finally:
                    writer.close()
            came.set()
            await asyncio.sleep(self._pause)


# What strangers send.


def client_hello() -> bytes:
    """The first bytes of somebody who speaks TLS."""
    outgoing = ssl.MemoryBIO()
    guarded = anybody().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=certificates.name_of(0))
    with contextlib.suppress(ssl.SSLWantReadError):
        guarded.do_handshake()
    return outgoing.read()


def first_bytes() -> dict[str, bytes]:
    """First bytes of strangers that send little, by what they are."""
    return {
        "nothing": b"",
        "one byte": b"G",
        "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "tls": client_hello(),
        "noise": random.Random(1).randbytes(1 << 16),
        # How Gloo begins a message to a buffer that nobody has.
        "gloo": struct.pack("<6Q", 48, 2, 0, 8, 1 << 40, 8),
    }


def large_bytes() -> dict[str, bytes]:
    """What says that it is large, or is."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
    return {
        "tls record": b"\x16\x03\x01\xff\xff" + bytes(0xFFFF),
        "tls message": b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(0x4000 - 4),
        "http/2 frame": preface + b"\xff\xff\xff\x00\x00" + bytes(3) + b"\x01" + bytes(1 << 24),
    }


# Strangers who speak TLS.


def anybody() -> ssl.SSLContext:
    """Trusts whoever answers, and shows no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def with_certificate(certificate: certificates.Certificate) -> ssl.SSLContext:
    """Trusts whoever answers, and shows this."""
    context = anybody()
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate.chain + certificate.key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def self_signed(rank: int, padding: int = 0) -> certificates.Certificate:
    """One that nobody has signed but itself, with so many bytes that mean nothing."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, certificates.name_of(rank))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2090, 1, 1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(certificates.name_of(rank))]), critical=False
        )
    )
    if padding:
        nothing = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), bytes(padding))
        builder = builder.add_extension(nothing, critical=False)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificates.Certificate(authority=pem, chain=pem, key=private, data_key=b"")


def told_over_tls(
    address: Address, context: ssl.SSLContext, data: bytes, seconds: float = 20.0
) -> bytes:
    """What the other side tells of its own, over TLS, to one who sends this and waits.

    Raises a TimeoutError when it does not end the connection.
    """
    told = b""
    end = time.monotonic() + seconds
    with socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
        connection.settimeout(seconds)
        try:
            with context.wrap_socket(
                connection, server_hostname=certificates.name_of(0)
            ) as guarded:
                guarded.sendall(data)
                while part := guarded.recv(4096):
                    told += part
                    if time.monotonic() > end:
                        raise TimeoutError(f"{address} still answers after {seconds:g} s")
        except TimeoutError:
            raise
        except OSError:
            pass  # An alert, or it was cut; SSLError is one of these.
    return told


# Who stands between a rank and another one.


class Relay:
    """Passes on what comes to its port, and keeps what the clients sent.

    The first `reflected` connections get back what they send, as from a mirror. Use it in a `with`
    statement. Before `target` is set, who connects has to wait.
    """

    def __init__(self, reflected: int = 0):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()[:2]
        self.target: Address | None = None
        self.reflected = reflected
        # What the client sent on each connection that was passed on, and what came back.
        self.sent: list[bytearray] = []
        self.received: list[bytearray] = []
        self.num_mirrored = 0  # Of bytes.
        self._is_closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            body: Callable[[socket.socket], None] = self._pass_on
            if self.reflected > 0:
                self.reflected -= 1
                body = self._mirror
            thread = threading.Thread(target=body, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _mirror(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(_CONNECT_SECONDS)
            while data := client.recv(65536):
                self.num_mirrored += len(data)
                client.sendall(data)

    def _pass_on(self, client: socket.socket) -> None:
        while self.target is None:
            if self._is_closed.wait(0.02):
                client.close()
                return
        sent, received = bytearray(), bytearray()
        self.sent.append(sent)
        self.received.append(received)
        with client, contextlib.suppress(OSError):
            with socket.create_connection(self.target, timeout=_CONNECT_SECONDS) as server:
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._carry(client, server, sent, received)

    def _carry(
        self, client: socket.socket, server: socket.socket, sent: bytearray, received: bytearray
    ) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, (server, sent))
            ready.register(server, selectors.EVENT_READ, (client, received))
            while ready.get_map() and not self._is_closed.is_set():
                for key, _ in ready.select(0.1):
                    other, record = key.data
                    data = key.fileobj.recv(65536)
                    if not data:
                        ready.unregister(key.fileobj)
                        other.shutdown(socket.SHUT_WR)
                        continue
                    record.extend(data[: max(0, (1 << 20) - len(record))])
                    other.sendall(data)


# What is looked at from outside.


def resident_bytes(pid: int) -> int:
    """The memory that a process has taken."""
    return psutil.Process(pid).memory_info().rss


def num_files(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def command_lines(pid: int) -> list[bytes]:
    """The command lines of a process and of those that it has started."""
    lines = []
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(OSError), open(f"/proc/{one.pid}/cmdline", "rb") as file:
                lines.append(file.read())
    return lines


@functools.cache
def allow_many_files() -> None:
    """Lets this process hold the connections of thousands of strangers."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        wanted = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
