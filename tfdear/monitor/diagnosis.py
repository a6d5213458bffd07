# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds out why a job cannot go on, from the reports of all ranks. No clock, no network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfdear.rendezvous import rank_names, store_records

# A rank that fails publishes why before its connections close. Connections that closed this many
# seconds ago without a report were closed by the kernel: the process was killed or crashed.
SECONDS_FOR_REPORT = 1.5
# A collective that waits for a rank whose script has ended may take this long to complete with the
# bytes that are still in transit.
SECONDS_FOR_LAST_BYTES = 1.0
# Ranks that stall in different collectives are reported together when they do so within this time.
SECONDS_FOR_OTHERS_TO_STALL = 3.0
# A script that breaks this rule ends with a rank that is missing or in another collective.
_CALLS_FOR_ALL = (
    "`fit`, `evaluate` and `predict` are calls for all ranks: call them on every rank, not only on "
    "the chief."
)
_MOST_OPS = 5  # Named in a message.
# Errors of the engine that are not caused by another rank.
_OWN_FAILURES = ("internal", "resource_exhausted")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why the job ends; the same on every rank."""

    kind: str  # "unavailable", "deadline_exceeded", "invalid_argument" or "aborted".
    message: str  # What every rank raises.

    def to_json(self) -> str:
        """For the store."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Cause:
        """From the store."""
        fields = store_records.cause(text)
        return Cause(fields["kind"], fields["message"])


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What one rank knows at one moment: of itself, and from what the others published."""

    rank: int
    describe: Callable[[int], str]  # Names a rank, with its host and process id.
    members: Callable[[str], list[int]]  # The ranks of a process group.
    # Collectives that run on this rank now, as `WatchedEngine.in_flight` tells them.
    in_flight: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Ops of this rank that wait, and for how long nothing has happened meanwhile.
    waiting_ops: list[str] = dataclasses.field(default_factory=list)
    waiting_seconds: float = 0.0
    # Transport error of this rank's engine ("message", "peer", "kind"), and for how long.
    failure: Mapping[str, Any] | None = None
    failure_seconds: float = 0.0
    # Ranks that raised, whose script ended, that are gone without a word (by the seconds of silence
    # before, 0 where their connection was closed), and that wait in collectives.
    failed: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    left: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    lost: Mapping[int, float] = dataclasses.field(default_factory=dict)
    stalls: Mapping[int, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    # Seconds a collective may take, a rank may be silent, and a rank waits before it reports that.
    timeout: float = 300.0
    heartbeat: float = 10.0
    stall_seconds: float = 2.0


def find_cause(snapshot: Snapshot) -> Cause | None:
    """The reason why the job must end, None while there is none. The root cause comes first."""
    for find in (_failed, _different, _apart, _left, _lost, _disconnected, _overdue, _stuck):
        cause = find(snapshot)
        if cause is not None:
            return cause
    return None


def lost_rank_0(snapshot: Snapshot, refused: bool) -> Cause:
    """The cause when rank 0, and with it the store, does not answer any more."""
    if refused:
        what = "was lost: it was killed or crashed (its connections closed without a word)"
    else:
        what = (
            f"has not answered for {snapshot.heartbeat:g} s (TFDEAR_HEARTBEAT): it is stopped, or "
            "its machine or network is gone"
        )
    return Cause(
        "unavailable",
        f"{snapshot.describe(0)}, through which the ranks meet, {what}."
        + _activity(snapshot)
        + " See rank 0's log.",
    )


def missing_ranks(snapshot: Snapshot, item: Mapping[str, Any]) -> list[int]:
    """Ranks of the process group that are not known to be in this collective.

    A rank in an earlier collective of the group is missing too; one in a later collective is not.
    If none is, the rank for which this one waits counts as missing.
    """
    here = {snapshot.rank}
    for rank, items in snapshot.stalls.items():
        if any(o["group"] == item["group"] and o["sequence"] >= item["sequence"] for o in items):
            here.add(rank)
    missing = [rank for rank in snapshot.members(item["group"]) if rank not in here]
    if not missing and item.get("waiting_for", -1) >= 0:
        missing = [item["waiting_for"]]
    return missing


def last_seen(snapshot: Snapshot, rank: int) -> str:
    """What a rank last reported to do."""
    if rank in snapshot.left:
        return f"rank {rank} has left the job"
    items = snapshot.stalls.get(rank)
    if items:
        return f"rank {rank} waits in " + ", ".join(describe_collective(item) for item in items)
    return f"rank {rank} is alive but waits in no collective"


def describe_collective(item: Mapping[str, Any]) -> str:
    """ "all_reduce float32[10] (#17 in group world)"."""
    return f"{item['signature']} (#{item['sequence']} in group {item['group']})"


def _activity(snapshot: Snapshot) -> str:
    if not snapshot.in_flight:
        return ""
    what = ", ".join(describe_collective(item) for item in snapshot.in_flight)
    return f" Rank {snapshot.rank} was in {what}."


def _failed(snapshot: Snapshot) -> Cause | None:
    if not snapshot.failed:
        return None
    rank, report = min(snapshot.failed.items(), key=lambda pair: (pair[1].get("time", 0), pair[0]))
    return Cause(
        "aborted",
        f"{snapshot.describe(rank)} failed: {report.get('error', 'no message')}."
        + _activity(snapshot)
        + f" See rank {rank}'s log for its traceback.",
    )


def _different(snapshot: Snapshot) -> Cause | None:
    for own in snapshot.in_flight:
        ranks_of_signature = {own["signature"]: [snapshot.rank]}
        members = snapshot.members(own["group"])
        for rank, items in sorted(snapshot.stalls.items()):
            for other in items if rank in members and rank != snapshot.rank else ():
                if (other["group"], other["sequence"]) == (own["group"], own["sequence"]):
                    ranks_of_signature.setdefault(other["signature"], []).append(rank)
        # Ranks stall at about the same time: wait for the reports that are still missing.
        is_complete = sum(map(len, ranks_of_signature.values())) == len(members)
        patience = snapshot.stall_seconds + SECONDS_FOR_OTHERS_TO_STALL
        if len(ranks_of_signature) > 1 and (is_complete or own["seconds"] > patience):
            who = "; ".join(
                f"{rank_names.ranks(ranks)}: {signature}"
                for signature, ranks in sorted(ranks_of_signature.items(), key=lambda p: min(p[1]))
            )
            return _called_differently(
                f"{who} (#{own['sequence']} in group {own['group']})",
                _different_tensors(snapshot, own) + _different_tickets(ranks_of_signature),
            )
    return None


def _called_differently(who: str, hints: str = "") -> Cause:
    return Cause(
        "invalid_argument",
        f"ranks call different collectives: {who}. All ranks must run the same operations in the "
        f"same order with the same shapes and data types. {_CALLS_FOR_ALL}{hints}",
    )


def _apart(snapshot: Snapshot) -> Cause | None:
    """Ranks that wait for each other in different groups, each for what the other has not called.

    All ranks take places in groups in one order, that of the program. So of two ranks one is ahead:
    it has taken as many places or more in all groups that they share. Where one is ahead in one
    group and the other in another, their programs differ, and no waiting helps.
    """
    for own in snapshot.in_flight:
        if own["seconds"] <= snapshot.stall_seconds + SECONDS_FOR_OTHERS_TO_STALL:
            continue
        members = snapshot.members(own["group"])
        ranks_of_item = {describe_collective(own): [snapshot.rank]}
        for rank, items in sorted(snapshot.stalls.items()):
            for other in items if rank in members and rank != snapshot.rank else ():
                if snapshot.members(other["group"]) == members:
                    ranks_of_item.setdefault(describe_collective(other), []).append(rank)
        others = (item for items in snapshot.stalls.values() for item in items)
        if any(_are_apart(snapshot, own, other) for other in others):
            return _called_differently(
                "; ".join(
                    f"{rank_names.ranks(ranks)}: {item}"
                    for item, ranks in sorted(ranks_of_item.items(), key=lambda p: min(p[1]))
                )
            )
    return None


def _are_apart(snapshot: Snapshot, own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    members = snapshot.members(own["group"])
    if own["group"] == other["group"] or snapshot.members(other["group"]) != members:
        return False
    mine, theirs = own.get("opened", {}), other.get("opened", {})
    shared = [group for group in mine.keys() & theirs.keys() if snapshot.members(group) == members]
    try:
        ahead = [mine[group] - theirs[group] for group in shared]
        return min(ahead, default=0) < 0 < max(ahead, default=0)
    except TypeError:  # Not numbers: what another rank wrote is not to be trusted that far.
        return False


def _different_tensors(snapshot: Snapshot, own: Mapping[str, Any]) -> str:
    """Names the first tensor in which the collectives of two ranks differ."""
    for rank, items in sorted(snapshot.stalls.items()):
        for other in items:
            if (other["group"], other["sequence"]) != (own["group"], own["sequence"]):
                continue
            # "IDENTITY NAME TYPE(SHAPE)": only the names may differ between ranks.
            pairs = zip(own.get("tensors", ()), other.get("tensors", ()), strict=False)
            for own_tensor, other_tensor in pairs:
                identity, _, name = own_tensor.partition(" ")
                other_identity, _, other_name = other_tensor.partition(" ")
                if identity != other_identity:
                    return (
                        f" Rank {snapshot.rank} sends the gradient of {name} where rank {rank} "
                        f"sends that of {other_name}: create layers and variables in the same "
                        "order on all ranks."
                    )
    return ""


def _different_tickets(signatures: Iterable[str]) -> str:
    split = [signature.rpartition(", ticket ") for signature in signatures]
    if len({collective for collective, _, _ in split}) > 1 or not all(
        ticket for _, _, ticket in split
    ):
        return ""
    return (
        " A rank that is ahead by its ticket has given up a step, after an error that its script "
        "caught, which the others still take."
    )


def _left(snapshot: Snapshot) -> Cause | None:
    peer = _failed_peer(snapshot)
    for item in snapshot.in_flight:
        gone = [
            rank
            for rank in snapshot.left
            if rank == peer
            or (rank == item.get("waiting_for") and item["seconds"] > SECONDS_FOR_LAST_BYTES)
        ]
        if not gone:
            continue
        waiting = {snapshot.rank}
        for rank, items in snapshot.stalls.items():
            if any((o["group"], o["sequence"]) == (item["group"], item["sequence"]) for o in items):
                waiting.add(rank)
        rank = min(gone)
        verb = "waits" if len(waiting) == 1 else "wait"
        return Cause(
            "unavailable",
            f"{snapshot.describe(rank)} left the job (its script ended) while "
            f"{rank_names.ranks(waiting)} {verb} in {describe_collective(item)}. "
            f"All ranks must take the same number of steps. {_CALLS_FOR_ALL} "
            f"See rank {rank}'s log for why its script ended early.",
        )
    return None


def _lost(snapshot: Snapshot) -> Cause | None:
    lost = [r for r in snapshot.lost if r not in snapshot.left and r not in snapshot.failed]
    closed = [rank for rank in lost if not snapshot.lost[rank]]
    if closed:
        return _killed(snapshot, closed)
    if not lost:
        return None
    names = ", ".join(snapshot.describe(rank) for rank in sorted(lost))
    verb = "has" if len(lost) == 1 else "have"
    return Cause(
        "unavailable",
        f"{names} {verb} not given a sign of life for {snapshot.heartbeat:g} s (TFDEAR_HEARTBEAT): "
        "stopped, or the machine or the network is gone." + _activity(snapshot),
    )


def _killed(snapshot: Snapshot, ranks: Sequence[int]) -> Cause:
    names = ", ".join(snapshot.describe(rank) for rank in sorted(ranks))
    it, was = ("it", "was") if len(ranks) == 1 else ("they", "were")
    return Cause(
        "unavailable",
        f"{names} {was} lost: {it} {was} killed or crashed (connections closed without a word)."
        f"{_activity(snapshot)} See the log of {rank_names.ranks(ranks)}; the kernel's log tells "
        "whether memory ran out.",
    )


def _disconnected(snapshot: Snapshot) -> Cause | None:
    failure = snapshot.failure
    if failure is None or _is_deadline(failure):
        return None
    if failure.get("kind") in _OWN_FAILURES:
        return Cause("aborted", f"{snapshot.describe(snapshot.rank)}: {failure['message']}.")
    peer = _failed_peer(snapshot)
    if peer in snapshot.left:
        return None  # A rank whose script has ended closes its connections.
    if peer is None:
        # Usually its stream shows which rank it was; this is for when it does not.
        if snapshot.failure_seconds < snapshot.heartbeat + 2.0:
            return None
        return Cause("unavailable", f"{failure['message']}.{_activity(snapshot)}")
    if snapshot.failure_seconds < SECONDS_FOR_REPORT:
        return None
    # The end of its process would have ended its stream, too.
    return Cause(
        "unavailable",
        f"{snapshot.describe(snapshot.rank)} has lost a connection to {snapshot.describe(peer)}, "
        f"which still gives signs of life: {failure['message']}.{_activity(snapshot)} See the log "
        f"of {rank_names.ranks([peer])}; the network between them may reset connections.",
    )


def _overdue(snapshot: Snapshot) -> Cause | None:
    late = [item for item in snapshot.in_flight if item["seconds"] > snapshot.timeout]
    if not late and snapshot.failure is not None and _is_deadline(snapshot.failure):
        late = snapshot.in_flight
        if not late:
            return Cause("deadline_exceeded", str(snapshot.failure["message"]))
    if not late:
        return None
    item = late[0]
    missing = missing_ranks(snapshot, item)
    if missing:
        who = f"{rank_names.ranks(missing)} did not come: " + "; ".join(
            f"{last_seen(snapshot, rank)} ({snapshot.describe(rank)})" for rank in missing
        )
    else:
        who = "all ranks are in it, but no bytes move; check the network between the nodes"
    return Cause(
        "deadline_exceeded",
        f"{describe_collective(item)} was not complete after {snapshot.timeout:g} s "
        "(DearStrategy's timeout). "
        f"{who[0].upper()}{who[1:]}. {f'{_CALLS_FOR_ALL} ' if missing else ''}"
        "Raise the timeout if a rank may be that much slower.",
    )


def _stuck(snapshot: Snapshot) -> Cause | None:
    if not snapshot.waiting_ops or snapshot.waiting_seconds <= snapshot.timeout:
        return None
    shown = snapshot.waiting_ops[:_MOST_OPS]
    more = len(snapshot.waiting_ops) - len(shown)
    return Cause(
        "deadline_exceeded",
        f"{snapshot.describe(snapshot.rank)} has had operations that wait, and nothing else of "
        f"tfdear's, for {snapshot.timeout:g} s (DearStrategy's timeout): {', '.join(shown)}"
        f"{f' and {more} more' if more else ''}. No collective is under way, so they wait for "
        "updates or data of this rank: for each other, if nothing of the step is computing. Take "
        "what they look up and update apart into several steps, and report it to tfdear. Raise the "
        "timeout if a single operation of the step may take that long.",
    )


def _failed_peer(snapshot: Snapshot) -> int | None:
    peer = snapshot.failure.get("peer", -1) if snapshot.failure is not None else -1
    return peer if isinstance(peer, int) and peer >= 0 else None


def _is_deadline(failure: Mapping[str, Any]) -> bool:
    return failure["kind"] == "deadline_exceeded"
