# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks that were started with different versions or options: which, and what to do."""

from collections.abc import Mapping
from typing import Any

from tfdear.rendezvous import rank_names

# What to do when the ranks differ in one of these.
_ADVICE = {
    "world size": "Start every rank of the job with the same cluster description.",
    "tfdear": "Install the same version of tfdear on every machine.",
    "TensorFlow": "Install the same version of TensorFlow on every machine.",
    "backend": "Give DearStrategy the same backend on every rank.",
    "device": "Give every rank the same kind of device, or hide the GPUs from all of them.",
}


def mismatch(descriptions: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Which ranks have which value, where what must be the same differs; None where nothing does.

    It compares what the ranks that came told about themselves.
    """
    lines = []
    for name in dict.fromkeys(name for own in descriptions.values() for name in own["common"]):
        ranks_of_value: dict[str, list[int]] = {}
        for rank, own in sorted(descriptions.items()):
            ranks_of_value.setdefault(str(own["common"].get(name)), []).append(rank)
        if len(ranks_of_value) > 1:
            who = "; ".join(
                f"{value} on {rank_names.ranks(ranks)}" for value, ranks in ranks_of_value.items()
            )
            advice = _ADVICE.get(name, "Make it the same everywhere.")
            lines.append(f"{name}: {who}. {advice}")
    if not lines:
        return None
    return "the ranks of this job do not fit together. " + " ".join(lines)
