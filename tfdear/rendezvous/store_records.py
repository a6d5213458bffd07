# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other in the store, as JSON that is checked when it is read.

Whoever reaches the meeting point can write there: a rank of another version, a leftover of another
job, a stranger. A record that is not as it must be is a RendezvousError that names its key at once.
"""

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any

from tfdear import errors

_MOST_DIGITS = 9  # Of a rank.
_SHOWN = 200  # Of a record that is wrong.

# A shape is a type, a tuple of types, {name: shape} for an object that has at least these names
# ("name?" may be missing), or [shape] for a list of such.
_DESCRIPTION = {
    "common": dict,
    "host": str,
    "pid": int,
    "node": (int, type(None)),
    "address": (str, type(None)),
    "boot?": (str, type(None)),
}
_IN_FLIGHT = {
    "group": str,
    "sequence": int,
    "signature": str,
    "tensors?": [str],
    "waiting_for": int,
    "opened?": dict,
}
_REPORTS = {
    "failed": {"error": str, "time": (int, float)},
    "left": {"aborted": bool, "failed": bool},
    "stall": [_IN_FLIGHT],
}
_CAUSE = {"kind": str, "message": str}
_VERDICT = {"go": bool, "mismatch": bool, "message": str, "node_steps": [int], "job": str}
_ADDRESS = {"host": str, "port": int}
_LOST = {"silent": (int, float)}


def descriptions(entries: Mapping[str, str]) -> dict[int, dict[str, Any]]:
    """What each rank that came told about itself, from its text by its number as text."""
    return _of_ranks("start/rank", entries, _DESCRIPTION)


def verdict(text: str) -> dict[str, Any]:
    """Whether all ranks start ("go"), and if not, why ("message").

    If they do, "node_steps" tells where each rank runs (`nodes.of_steps`), and "job" is the number
    of this job, drawn by rank 0, in hexadecimal digits.
    """
    verdict = _read("start/verdict", text, _VERDICT)
    if not re.fullmatch("([0-9a-f]{2})*", verdict["job"]):
        raise _unexpected("start/verdict", text, "its 'job' is no hexadecimal number")
    return verdict


def data_address(key: str, text: str) -> tuple[str, int]:
    """Where a rank listens for connections that carry data."""
    address = _read(key, text, _ADDRESS)
    try:
        ipaddress.ip_address(address["host"])
    except ValueError as error:
        raise _unexpected(key, text, f"its 'host' is no address: {error}") from None
    if not 0 < address["port"] < 1 << 16:
        raise _unexpected(key, text, "its 'port' is none")
    return address["host"], address["port"]


def lost(entries: Mapping[str, str]) -> dict[int, float]:
    """For how many seconds each rank that is lost was silent; 0: its connection was closed."""
    return {rank: one["silent"] for rank, one in _of_ranks("lost", entries, _LOST).items()}


def reports(records: Mapping[str, str], kind: str) -> dict[int, Any]:
    """The reports of one kind, such as "stall", that ranks wrote for the monitors: "kind/rank"."""
    start = kind + "/"
    entries = {key[len(start) :]: text for key, text in records.items() if key.startswith(start)}
    return _of_ranks(f"monitor/{kind}", entries, _REPORTS[kind])


def cause(text: str) -> dict[str, str]:
    """Kind and message of what ended the job, as a monitor wrote them."""
    return _read("monitor/cause", text, _CAUSE)


def values_of_ranks(key: str, text: str, world_size: int) -> list[str]:
    """What rank 0 collected, as JSON: a text of every rank."""
    return texts(key, text, world_size)


def texts(key: str, text: str, count: int) -> list[str]:
    """So many texts, as JSON."""
    values = _read(key, text, [str])
    if len(values) != count:
        raise _unexpected(key, text, f"it has {len(values)} values instead of {count}")
    return values


def number_of_rank(key: str, text: str) -> int:
    """The rank in which a key ends; the rest of the key is for the message."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise _unexpected(f"{key}/{text[:_SHOWN]}", text, "its name ends in no rank")
    return int(text)


def _of_ranks(key: str, entries: Mapping[str, str], shape: Any) -> dict[int, Any]:
    return {
        number_of_rank(key, rank): _read(f"{key}/{rank}", text, shape)
        for rank, text in entries.items()
    }


def _read(key: str, text: str, shape: Any) -> Any:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unexpected(key, text, f"it is not JSON: {error}") from error
    problem = _mismatch(document, shape, "it")
    if problem:
        raise _unexpected(key, text, problem)
    return document


def _mismatch(document: Any, shape: Any, where: str) -> str:
    """Which part of the document does not have that shape; "" if all of it does."""
    if isinstance(shape, list):
        if not isinstance(document, list):
            return f"{where} is no list"
        items = (_mismatch(item, shape[0], f"{where}[{i}]") for i, item in enumerate(document))
        return next(filter(None, items), "")
    if isinstance(shape, dict):
        if not isinstance(document, dict):
            return f"{where} is no object"
        for name, inner in shape.items():
            plain = name.removesuffix("?")
            if plain in document:
                problem = _mismatch(document[plain], inner, f"{where}[{plain!r}]")
            else:
                problem = f"{where} has no {name!r}" if plain == name else ""
            if problem:
                return problem
        return ""
    # To Python, JSON's true and false are numbers; here they are not.
    is_unexpected_bool = isinstance(document, bool) and shape is not bool
    if isinstance(document, shape) and not is_unexpected_bool:
        return ""
    return f"{where} is {document!r}"[:_SHOWN]


def _unexpected(key: str, text: str, problem: str) -> errors.RendezvousError:
    return errors.RendezvousError(
        f"the store in which the ranks meet holds what no rank of this job writes, under {key!r}: "
        f"{problem}. Received: {text[:_SHOWN]!r}. Do all ranks run the same tfdear, and does no "
        "other job use this meeting point?"
    )
