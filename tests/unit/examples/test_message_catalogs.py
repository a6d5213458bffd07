# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import random
import struct

import pytest
from text import message_catalogs


def catalog(messages: list[tuple[bytes, bytes]], order: str = "<") -> bytes:
    """A file as msgfmt writes it, without the table of hashes."""
    tables, texts = [], b""
    begin = 28 + 16 * len(messages)
    for side in (0, 1):
        for message in messages:
            tables += [len(message[side]), begin + len(texts)]
            texts += message[side] + b"\0"
    count = len(messages)
    header = (0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    return struct.pack(f"{order}7I{len(tables)}I", *header, *tables) + texts


@pytest.mark.parametrize("order", "<>")
def test_messages_of_either_byte_order(order):
    messages = [(b"", b"Language: de"), (b"menu\4Open", "Öffnen".encode()), (b"a\0as", b"b\0bs")]
    parsed = message_catalogs.parse_catalog(catalog(messages, order))
    assert parsed == [("", "Language: de"), ("Open", "Öffnen"), ("a", "b")]


def test_only_sentences_are_taken(tmp_path):
    messages = [
        (b"_Open a file\nnow", b"_Datei jetzt\n\xc3\xb6ffnen"),
        (b"<b>bold</b>", b"<b>fett</b>"),
        (b"options:\n  -a all", b"Optionen:\n  -a alle"),
    ]
    (tmp_path / "program.mo").write_bytes(catalog(messages))
    pairs = message_catalogs.read_pairs(tmp_path)
    assert pairs == [("Open a file now", "Datei jetzt öffnen")]


def test_a_machine_without_catalogs(tmp_path):
    assert message_catalogs.read_pairs(tmp_path / "missing") == []


def test_damaged_catalogs_are_refused_or_read():
    sound = catalog([(b"one", b"eins"), (b"two", b"zwei")])
    source = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(sound[: source.randrange(len(sound) + 1)])
        for _ in range(source.randrange(4)):
            if damaged:
                damaged[source.randrange(len(damaged))] = source.randrange(256)
        try:
            pairs = message_catalogs.parse_catalog(bytes(damaged))
        except ValueError:
            continue
        assert len(pairs) <= len(damaged) // 8
