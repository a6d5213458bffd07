# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How benchmarks tell what they found: a table, the machine, a JSON file."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from typing import Any

_CPU_TIMES = "/proc/stat"
# Payload of a full TCP segment in an Ethernet frame as the token bucket counts it: no link with
# 1500-byte packets carries more.
PAYLOAD_SHARE = 1448 / 1514


def machine(stolen: float) -> dict[str, Any]:
    """Returns what a reader must know of the machine, and of its time while it was measured."""
    model = platform.processor()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "stolen": round(stolen, 3),
    }


def machine_line(facts: dict[str, Any]) -> str:
    """What `machine` says, in one line."""
    return (
        f"{facts['cores']} cores of {facts['processor']}, {facts['memory_gib']:g} GiB, Linux "
        f"{facts['kernel']}, Python {facts['python']}, {facts['date']}; {facts['stolen']:.1%} of "
        "the cores' time went to other virtual machines"
    )


class StolenTime:
    """How much of the cores' time the host of a virtual machine has given to others since."""

    def __init__(self):
        self._begin = self._ticks()

    def share(self) -> float:
        """From 0, as always on a machine that is not virtual, to 1."""
        spent = [end - begin for begin, end in zip(self._begin, self._ticks(), strict=True)]
        return spent[-1] / max(sum(spent), 1)

    @staticmethod
    def _ticks() -> list[int]:
        """User, nice, system, idle, iowait, irq, softirq, steal; guests are part of the first."""
        with open(_CPU_TIMES) as file:
            return [int(number) for number in file.readline().split()[1:9]]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be: the first one flush left, numbers flush right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for number, line in enumerate(lines):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
        if number == 0:
            text.append("  ".join("-" * width for width in widths))
    return "\n".join(text)


def size(nbytes: float) -> str:
    """Bytes as people say them: "4 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:g} {unit}"
        nbytes /= 1024
    return f"{nbytes:g} GiB"


def write(path: str, document: dict[str, Any]) -> None:
    """Writes a benchmark's numbers as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
