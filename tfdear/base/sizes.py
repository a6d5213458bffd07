# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sizes of memory as people write them."""

import re

from tfdear.base.checks import is_whole

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)}


def bytes_of(size: object, argument: str) -> int:
    """The bytes of a size: a whole number, or text such as "12GiB", "1.5 GB".

    Raises:
        ValueError: It is negative, or no size; the message calls it by the name of the argument.
    """
    if is_whole(size) and size >= 0:
        return size
    if isinstance(size, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", size)
        if found and found[2] in _UNITS:
            return round(float(found[1]) * _UNITS[found[2]])
    raise ValueError(
        f"`{argument}` must be a number of bytes from 0, or text such as '12GiB' or '500MB'. "
        f"Received: {size!r}"
    )
