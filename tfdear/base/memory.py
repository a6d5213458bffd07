# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How much memory this process could still use."""

import pathlib


def available_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Bytes that the system has left, and those that limits of control groups leave.

    Pages of files, which the kernel drops when it needs memory, count as available.
    """
    lines = pathlib.Path(proc, "meminfo").read_text().splitlines()
    kibibytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return min([1024 * kibibytes, *_left_by_groups(proc, cgroups)])


def _left_by_groups(proc: str, cgroups: str) -> list[int]:
    try:
        own = pathlib.Path(proc, "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in own:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # Version 2.
            names = ("memory.max", "memory.current", "inactive_file")
            root = pathlib.Path(cgroups)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = pathlib.Path(cgroups, "memory")
        else:
            continue
        group = root / path.lstrip("/")
        # The limit of every group around holds, too.
        while group == root or root in group.parents:
            left += _left_by(group, *names)
            group = group.parent
    return left


def _left_by(group: pathlib.Path, most: str, used: str, reclaimable: str) -> list[int]:
    """What the limit of a group leaves; empty: it has none, or cannot be read."""
    try:
        limit = (group / most).read_text().strip()
        if limit == "max":
            return []
        files = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        in_use = int((group / used).read_text()) - int(files[reclaimable])
        return [max(int(limit) - in_use, 0)]
    except (OSError, KeyError, ValueError):
        return []
