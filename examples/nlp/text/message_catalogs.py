# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""German messages of the programs that are installed here, from gettext's catalogs."""

from __future__ import annotations

import pathlib
import re
import struct

_FOLDER = pathlib.Path("/usr/share/locale/de/LC_MESSAGES")
_MAGIC = 0x950412DE
# Menus mark the letter that calls an entry with an underscore.
_MNEMONIC = re.compile(r"_(?=\w)")
# Markup, code, and lists of options are no sentences.
_NO_SENTENCE = re.compile(r"[<>\\{}|]|\n *[-\n]")


def read_pairs(folder: pathlib.Path = _FOLDER) -> list[tuple[str, str]]:
    """Returns (English, German) of the messages that are plain sentences; [] if there are none."""
    pairs = []
    for path in sorted(folder.glob("*.mo")):
        for source, target in parse_catalog(path.read_bytes()):
            if not _NO_SENTENCE.search(source) and not _NO_SENTENCE.search(target):
                pairs.append((_one_line(source), _one_line(target)))
    return pairs


def parse_catalog(data: bytes) -> list[tuple[str, str]]:
    """Returns (message, translation) of a catalog, without contexts and plurals.

    Raises:
        ValueError: these bytes are no catalog, or a damaged one.
    """
    for order in "<>":
        if len(data) >= 20 and struct.unpack_from(order + "I", data)[0] == _MAGIC:
            break
    else:
        raise ValueError("These bytes are no catalog of messages: they do not begin like one.")
    _, count, sources, targets = struct.unpack_from(order + "4I", data, 4)
    if max(sources, targets) + 8 * count > len(data):
        raise ValueError(f"A catalog of {len(data)} bytes has no room for {count} messages.")

    def text(table: int, index: int) -> str:
        length, begin = struct.unpack_from(order + "2I", data, table + 8 * index)
        if begin + length > len(data):
            raise ValueError(f"Message {index} of a catalog ends after the catalog.")
        # A context stands before the message, further plurals after it.
        singular = data[begin : begin + length].split(b"\0")[0]
        return singular.split(b"\4")[-1].decode("utf-8", "replace")

    return [(text(sources, index), text(targets, index)) for index in range(count)]


def _one_line(message: str) -> str:
    return " ".join(_MNEMONIC.sub("", message).split())
