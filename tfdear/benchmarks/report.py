# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What benchmarks report in addition to their tables: the machine, and a JSON file."""

from __future__ import annotations

import datetime
import json
import os
import platform
from typing import Any

_CPU_TIMES = "/proc/stat"
# Payload of a full TCP segment in an Ethernet frame as the token bucket counts it: no link with
# 1500-byte packets carries more.
PAYLOAD_SHARE = 1448 / 1514


def machine(stolen: float) -> dict[str, Any]:
    """Describes the machine, and how much of its time was stolen during the measurement."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "stolen": round(stolen, 3),
    }


def machine_line(description: dict[str, Any]) -> str:
    """Formats what `machine` returned in one line."""
    processor, memory = description["processor"], description["memory_gib"]
    return (
        f"{description['cores']} cores of {processor}, {memory:g} GiB, "
        f"Linux {description['kernel']}, Python {description['python']}, {description['date']}; "
        f"{description['stolen']:.1%} of the cores' time went to other virtual machines"
    )


class StolenTime:
    """How much of the cores' time since then a virtual machine has lost to others."""

    def __init__(self) -> None:
        self._start = self._ticks()

    def share(self) -> float:
        """From 0, as always on a physical machine, to 1."""
        spent = [end - start for start, end in zip(self._start, self._ticks(), strict=True)]
        return spent[-1] / max(sum(spent), 1)

    @staticmethod
    def _ticks() -> list[int]:
        """User, nice, system, idle, iowait, irq, softirq, steal; guests are part of the first."""
        with open(_CPU_TIMES) as file:
            return [int(number) for number in file.readline().split()[1:9]]


def size(nbytes: float) -> str:
    """Formats a number of bytes: "4 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:g} {unit}"
        nbytes /= 1024
    return f"{nbytes:g} GiB"


def write(path: str, document: Any) -> None:
    """Writes a document as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
