# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank's port, where the process can have no more threads. Real sockets."""

import socket
import threading

import pytest

from tfdear.rendezvous import data_listener

NUMBER = b"n" * 16


@pytest.fixture
def refused(monkeypatch):
    """Names of threads, each of which cannot be started once."""
    names = []
    start = threading.Thread.start

    def start_or_fail(thread):
        if thread.name in names:
            names.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    return names


def is_welcome(address):
    with socket.create_connection(address, timeout=10) as peer:
        peer.sendall(data_listener.HELLO.pack(data_listener.MAGIC, NUMBER, 1, 0, 0, 0))
        try:
            return peer.recv(len(data_listener.WELCOME)) == data_listener.WELCOME
        except ConnectionResetError:
            return False


@pytest.mark.parametrize(
    "name, fails", [("tfdear-data-listener", True), ("tfdear-handshake", False)]
)
def test_a_thread_that_does_not_start_costs_one_try(name, fails, refused):
    listener = data_listener.DataListener(0, "127.0.0.1", None, 2, NUMBER)
    refused.append(name)
    try:
        if fails:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                with listener.listening():
                    pass
        with listener.listening() as address:
            assert address is not None  # It is a new one, of which others must hear.
            assert fails or not is_welcome(address)
            assert not refused
            assert is_welcome(address)
    finally:
        listener.close()
