# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Watches over the job: finds out which rank failed, and ends all ranks with the same message.

[Note: report before close]
A rank that fails or ends publishes `failed` or `left` in the store BEFORE its connections close. So
a connection that closes without such a report means that the process was killed. The first rank
that knows the cause writes the key `cause`, which can be written once; all ranks raise that
message. The engine holds a transport error back until then: what a neighbour sees first (a closed
connection) is seldom the cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from absl import logging

from tfdear import errors
from tfdear.base.stack_requests import stack_requests
from tfdear.monitor import diagnosis, stall_report, stuck_script, stuck_step
from tfdear.monitor.announcement import say
from tfdear.rendezvous import process_exit, store_records
from tfdear.rendezvous.rendezvous import Rendezvous

_CALL_SECONDS = 1.5  # One request to the store.
_POLL_ON_ONE_MACHINE_SECONDS = 0.2
_POLL_SECONDS = 1.0
# Between two reports of a rank on the same stall; and how many rank 0 may tell in a second.
_STALL_PAUSE_SECONDS, _MOST_STALLS_TOLD = 1.0, 2000
_REPORT_SECONDS = 10.0  # Rank 0 keeps the store open for reports this long after its own end.


class WatchedEngine(Protocol):
    """What the monitor needs of the engine."""

    def in_flight(self) -> list[dict[str, Any]]:
        """Running collectives: group, sequence, signature, seconds, waiting_for (-1: unknown).

        Where gradients are summed, also "tensors": a text for each, "IDENTITY NAME TYPE(SHAPE)".
        Where calls take places in groups, "opened": how many have been taken by now, by group.
        """

    def waits(self) -> tuple[int, list[str]]:
        """The ops that wait, and a number that is another one as soon as anything happens."""

    def failure(self) -> dict[str, Any] | None:
        """A transport error that is held back: message, peer (-1: unknown) and kind."""

    def abort(self, kind: str, message: str) -> None:
        """Fails everything now and later. The first call wins."""


class Monitor:
    """Watches over the job in a thread of its own, from `start` to `close`.

    Args:
        rendezvous: Where the ranks met.
        engine: What to abort.
        group_members: The ranks of the process groups that do not hold all, by name. Groups within
            and across nodes have the same name but other members on every rank.
        heartbeat: Seconds of silence after which a rank is given up; None: as in the rendezvous.
        timeout: Seconds any collective may take, and ops of a step may wait while nothing happens.
        stall_seconds: A collective that runs longer is compared with those of the other ranks.
        warn_seconds: One that runs longer is warned of.
        cleanup_timeout: Seconds for which the script may clean up after an abort; see
            `stuck_script`.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        engine: WatchedEngine,
        group_members: Mapping[str, Sequence[int]] | None = None,
        *,
        heartbeat: float | None = None,
        timeout: float = 300.0,
        stall_seconds: float = 2.0,
        warn_seconds: float = 30.0,
        cleanup_timeout: float = 60.0,
    ):
        self._rendezvous = rendezvous
        self._engine = engine
        self._heartbeat = rendezvous.heartbeat if heartbeat is None else heartbeat
        self._timeout = timeout
        self._stall_seconds = stall_seconds
        self._warn_seconds = warn_seconds
        self._cleanup_timeout = cleanup_timeout
        self._store = rendezvous.store
        self._rank = rendezvous.rank
        # A forked child has this object too, but must not report for the rank.
        self._pid = os.getpid()
        self._group_members = dict(group_members or {})
        local = rendezvous.on_one_machine
        self._poll_seconds = _POLL_ON_ONE_MACHINE_SECONDS if local else _POLL_SECONDS
        self._stuck_step = stuck_step.StuckStep(engine.waits)
        self._stack_requests = stack_requests()
        self._thread = threading.Thread(target=self._run, name="tfdear-monitor", daemon=True)
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._cause: diagnosis.Cause | None = None
        self._closing_since: float | None = None
        self._has_left = False
        self._reported = False
        self._failure_since: float | None = None
        self._script_failure: dict[str, Any] | None = None
        self._reports: dict[str, str] = {}
        self._store_gone = False
        self._lost: dict[int, float] = {}
        self._published_stall = "[]"
        self._stalled_in: list[tuple[str, int, str]] = []
        self._stall_published_at = 0.0
        self._stall_pause = max(_STALL_PAUSE_SECONDS, rendezvous.world_size**2 / _MOST_STALLS_TOLD)
        self._warned: set[tuple[str, int]] = set()
        rendezvous.check_alive = self.check_alive

    def start(self) -> None:
        """Starts to watch; a job of one process needs no monitor."""
        if self._rendezvous.world_size > 1:
            self._thread.start()

    @property
    def healthy(self) -> bool:
        """True while neither this rank nor the job has failed; False in a forked child."""
        return self._cause is None and not self._reported and os.getpid() == self._pid

    def check_alive(self) -> None:
        """Raises JobAbortedError when the job was aborted."""
        if self._cause is not None:
            raise errors.JobAbortedError(self._cause.message)

    def cause_of(
        self, failure: errors.TfdearError, what: str = "could not start", peer: int = -1
    ) -> errors.TfdearError:
        """Why groups could not be connected, or a peer not asked: rarely what was noticed first.

        Args:
            failure: What this rank noticed.
            what: What it failed to do.
            peer: The rank that closed its connection. Defaults to -1: not known.

        Returns:
            An error with the cause on which the ranks agreed, else `failure` itself.
        """
        self._script_failure = {
            "message": f"{self._rendezvous.describe(self._rank)} {what}: {failure}",
            "peer": peer,
            "kind": failure.kind,
        }
        # Heartbeats show whether a peer died; `diagnosis` waits for them.
        end = time.monotonic() + self._heartbeat + _REPORT_SECONDS
        while self._cause is None and time.monotonic() < end:
            time.sleep(0.05)
        return failure if self._cause is None else errors.JobAbortedError(self._cause.message)

    def report_failure(self, error: str) -> None:
        """Tells the other ranks that this one fails. Call it before any connection closes.

        It waits up to a heartbeat: rank 0's script may hold the interpreter, and what the others
        see first would else be that connections close.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            over = self._cause is not None or self._closing_since is not None
            if self._reported or over or self._rendezvous.world_size == 1:
                return
            self._reported = True
        report = {"error": error, "time": time.time()}
        timeout = max(_CALL_SECONDS, self._heartbeat)
        self._publish(f"monitor/failed/{self._rank}", json.dumps(report), timeout=timeout)

    def close(self) -> None:
        """Reports the end of this rank; call it when no collective runs any more.

        Rank 0 waits up to 10 s for the others, because the store ends with it.
        """
        if self._closing_since is not None or os.getpid() != self._pid:
            return
        self._closing_since = time.monotonic()
        self._wake.set()
        if self._rendezvous.world_size == 1:
            return
        left = json.dumps({"aborted": self._cause is not None, "failed": self._reported})
        self._publish(f"monitor/left/{self._rank}", left)
        if self._rank == 0:
            self._wait_for_others()
        if self._cause is not None or self._reported:
            process_exit.leave_without_teardown(1)
        elif self._thread.is_alive():
            self._thread.join(_CALL_SECONDS + self._poll_seconds)
        self._rendezvous.close(left)

    def leave(self) -> None:
        """Says, after `close`, that the script goes on without the job: nothing watches it."""
        self._has_left = True

    def _wait_for_others(self) -> None:
        end = time.monotonic() + _REPORT_SECONDS
        while time.monotonic() < end:
            try:
                entries = self._store.told("monitor/left")
                gone = {int(rank) for rank in entries} | set(self._rendezvous.lost_ranks())
            except errors.StoreUnavailableError:
                return
            if self._cause is not None:
                gone |= self._lost_peer()
            if len(gone | {self._rank}) == self._rendezvous.world_size:
                # The calls with which the others reported may not have returned yet.
                time.sleep(0.1)
                return
            time.sleep(0.05)

    def _lost_peer(self) -> set[int]:
        failure = self._engine.failure()
        return {failure["peer"]} if failure and failure.get("peer", -1) >= 0 else set()

    def _publish(
        self, key: str, value: str, overwrite: bool = False, timeout: float = _CALL_SECONDS
    ) -> bool:
        """Whether the store has got it."""
        if self._store_gone:
            return False
        # The loop notices an unreachable store, too, and finds out why.
        with contextlib.suppress(errors.StoreUnavailableError):
            self._store.insert(key, value, timeout=timeout, overwrite=overwrite)
            return True
        return False

    def _run(self) -> None:
        while self._closing_since is None and self._cause is None:
            self._wake.wait(self._poll_seconds)
            try:
                self._check()
            except Exception as error:  # A monitor that dies silently is worse than any error.
                text = "tfdear: the monitor of rank %d failed"
                say(logging.error, text, self._rank, exc_info=error)
                self._abort(
                    diagnosis.Cause("aborted", f"the monitor of rank {self._rank} failed: {error}")
                )
        if self._cause is not None:
            self._end_stuck_script()

    def _check(self) -> None:
        in_flight = self._engine.in_flight()
        failure = self._engine.failure() or self._script_failure
        now = time.monotonic()
        self._failure_since = None if failure is None else self._failure_since or now
        unreachable = None if self._store_gone else self._read_reports()
        if unreachable is None:
            self._publish_stall(in_flight)
        reports = self._reports
        if "cause" in reports:
            self._abort(diagnosis.Cause.from_json(reports["cause"]))
            return
        left = store_records.reports(reports, "left")
        waiting_seconds, waiting_ops = self._stuck_step.look(now, in_flight)
        snapshot = diagnosis.Snapshot(
            rank=self._rank,
            describe=self._rendezvous.describe,
            members=self._members,
            in_flight=in_flight,
            waiting_ops=waiting_ops,
            waiting_seconds=waiting_seconds,
            failure=failure,
            failure_seconds=now - (self._failure_since or now),
            failed=store_records.reports(reports, "failed"),
            left={rank: r for rank, r in left.items() if not r["aborted"] and not r["failed"]},
            lost=self._lost,
            stalls=store_records.reports(reports, "stall"),
            timeout=self._timeout,
            heartbeat=self._heartbeat,
            stall_seconds=self._stall_seconds,
        )
        if stacks := self._stack_requests.take():
            say(logging.warning, "tfdear: %s", stall_report.text_of(snapshot, stacks))
        if unreachable is not None:
            self._check_unreachable_store(snapshot, unreachable)
            return
        if self._reported:
            return  # The others, which waited for this rank, say what became of them.
        cause = diagnosis.find_cause(snapshot)
        if cause is not None:
            self._agree_and_abort(cause)
            return
        self._warn_of_stalls(snapshot)

    def _read_reports(self) -> errors.StoreUnavailableError | None:
        """Reads what the service has told; an error where it tells nothing any more."""
        gone = None
        try:
            self._store.check()
        except errors.StoreUnavailableError as error:
            gone = error
        # What it told at last counts, such as why rank 0 ends.
        self._reports = self._store.known("monitor")
        self._lost = store_records.lost(self._store.known("lost"))
        return gone

    def _check_unreachable_store(
        self, snapshot: diagnosis.Snapshot, error: errors.StoreUnavailableError
    ) -> None:
        """Without the store every rank decides for itself, with the same result."""
        self._store_gone = True  # A report there would only cost time.
        if not self._rendezvous.has_left(0):
            self._abort(diagnosis.lost_rank_0(snapshot, error.refused))

    def _publish_stall(self, in_flight: list[dict[str, Any]]) -> None:
        stalled = [
            {key: value for key, value in item.items() if key != "seconds"}
            for item in in_flight
            if item["seconds"] > self._stall_seconds
        ]
        text = json.dumps(stalled)
        if text == self._published_stall:
            return
        # All ranks are told by rank 0: what changes while they stand in one collective, such as
        # for whom a ring waits, comes seldom where they are many.
        which = [(item["group"], item["sequence"], item["signature"]) for item in stalled]
        now = time.monotonic()
        if which == self._stalled_in and now < self._stall_published_at + self._stall_pause:
            return
        # Rank 0 may be busy: what it has not got is sent again.
        if self._publish(f"monitor/stall/{self._rank}", text, overwrite=True):
            self._published_stall, self._stalled_in, self._stall_published_at = text, which, now

    def _warn_of_stalls(self, snapshot: diagnosis.Snapshot) -> None:
        for item in snapshot.in_flight:
            key = (item["group"], item["sequence"])
            if item["seconds"] < self._warn_seconds or key in self._warned:
                continue
            self._warned.add(key)
            missing = diagnosis.missing_ranks(snapshot, item)
            say(
                logging.warning,
                "tfdear: rank %d has waited %.0f s in %s; the job ends after %g s. %s",
                self._rank,
                item["seconds"],
                diagnosis.describe_collective(item),
                self._timeout,
                "; ".join(diagnosis.last_seen(snapshot, rank) for rank in missing)
                or "All ranks are in it.",
            )

    def _members(self, group: str) -> list[int]:
        return list(self._group_members.get(group, range(self._rendezvous.world_size)))

    def _agree_and_abort(self, cause: diagnosis.Cause) -> None:
        """All ranks take the first cause in the store."""
        # Rank 0 may be busy for as long as it would not count as lost.
        timeout = max(_CALL_SECONDS, self._heartbeat)
        try:
            if not self._store.insert("monitor/cause", cause.to_json(), timeout=timeout):
                text = self._store.try_get("monitor/cause", timeout=_CALL_SECONDS)
                cause = diagnosis.Cause.from_json(text) if text else cause
        except errors.StoreUnavailableError:
            pass  # This rank has to end all the same.
        self._abort(cause)

    def _abort(self, cause: diagnosis.Cause) -> None:
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
        # From here on, TensorFlow cannot be shut down in order.
        process_exit.leave_without_teardown(1)
        if not self._reported:
            # Before the script hears of it and ends: `tfdear run` tells by it who failed first.
            say(logging.error, "tfdear: rank %d ends: %s", self._rank, cause.message)
        self._engine.abort(cause.kind, cause.message)

    def _end_stuck_script(self) -> None:
        if stuck_script.is_interactive():
            return
        is_stuck = stuck_script.wait_until_stuck(
            self._cleanup_timeout,
            _REPORT_SECONDS,
            lambda: self._closing_since,
            lambda: self._has_left,
        )
        if not is_stuck:
            return
        message = self._cause.message if self._cause is not None else ""
        if self._closing_since is None:
            left = json.dumps({"aborted": True, "failed": False})
            self._publish(f"monitor/left/{self._rank}", left)
        process_exit.leave_now(
            process_exit.EXIT_CODE_STUCK,
            f"tfdear: rank {self._rank} did not react to the end of the job and ends itself "
            f"with code {process_exit.EXIT_CODE_STUCK} (cleanup_timeout "
            f"{self._cleanup_timeout:g} s). The job ended because {message}",
        )
