# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a rank waits for, and since when: printed for whoever sends SIGUSR1."""

from tfdear.monitor import diagnosis


def text_of(snapshot: diagnosis.Snapshot, stacks: str) -> str:
    """Who waits for what, since when, as far as this rank knows."""
    lines = [f"{snapshot.describe(snapshot.rank)} was asked what it waits for (SIGUSR1)."]
    for item in snapshot.in_flight:
        missing = diagnosis.missing_ranks(snapshot, item)
        others = "; ".join(diagnosis.last_seen(snapshot, rank) for rank in missing)
        what = diagnosis.describe_collective(item)
        lines.append(f"For {item['seconds']:.1f} s it is in {what}. {others}".rstrip() + ".")
    if not snapshot.in_flight:
        lines.append("It is in no collective.")
    if snapshot.waiting_ops:
        lines.append(
            f"Nothing has happened for {snapshot.waiting_seconds:.1f} s, while these ops wait: "
            + ", ".join(snapshot.waiting_ops)
            + "."
        )
    for rank in sorted(snapshot.lost):
        lines.append(f"{snapshot.describe(rank)} is lost.")
    return "\n".join([*lines, "Its threads are at:", stacks.rstrip()])
