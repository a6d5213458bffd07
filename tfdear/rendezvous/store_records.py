# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other in the store, as JSON that is checked when it is read.

Whoever reaches the meeting point can write there: a rank of another version, a leftover of another
job, a stranger. A record that is not as it must be is an error that names its key at once.
"""

import json
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
}
_REPORTS = {
    "failed": {"error": str, "time": (int, float)},
    "left": {"aborted": bool, "failed": bool},
    "stall": [_IN_FLIGHT],
}
_CAUSE = {"kind": str, "message": str}


def descriptions(entries: Mapping[str, str]) -> dict[int, dict[str, Any]]:
    """What each rank that came told about itself.

    Args:
        entries: The text of each rank, by its number as text.

    Raises:
        RendezvousError: A number or a text is not what a rank writes.
    """
    return _of_ranks("start/rank", entries, _DESCRIPTION)


def reports(records: Mapping[str, str], kind: str) -> dict[int, Any]:
    """The reports of one kind that ranks wrote for the monitors.

    Args:
        records: All reports, by "kind/rank".
        kind: "failed", "left" or "stall".

    Raises:
        RendezvousError: A number or a text is not what a monitor writes.
    """
    start = kind + "/"
    entries = {key[len(start) :]: text for key, text in records.items() if key.startswith(start)}
    return _of_ranks(f"monitor/{kind}", entries, _REPORTS[kind])


def cause(text: str) -> dict[str, str]:
    """Kind and message of what ended the job.

    Args:
        text: The cause as a monitor wrote it.

    Raises:
        RendezvousError: It is not what a monitor writes.
    """
    return _read("monitor/cause", text, _CAUSE)


def values_of_ranks(key: str, text: str, world_size: int) -> list[str]:
    """What rank 0 collected: a text of every rank.

    Args:
        key: Where it stood, for the message.
        text: A list as JSON.
        world_size: The number of ranks.

    Raises:
        RendezvousError: It is not a list of that many texts.
    """
    values = _read(key, text, [str])
    if len(values) != world_size:
        raise _unexpected(key, text, f"it has {len(values)} values for {world_size} ranks")
    return values


def number_of_rank(key: str, text: str) -> int:
    """The rank in which a key ends.

    Args:
        key: The rest of the key, for the message.
        text: The rank.

    Raises:
        RendezvousError: It is not the number of a rank.
    """
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
            if plain not in document and plain == name:
                return f"{where} has no {name!r}"
            if plain in document:
                problem = _mismatch(document[plain], inner, f"{where}[{plain!r}]")
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
