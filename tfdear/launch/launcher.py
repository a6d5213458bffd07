# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job on this machine, shows what they print, and ends them together.

One thread and one event loop. Every rank runs under a guard (`guard.py`), which makes sure that the
rank and all that it starts end when they must, also when the launcher itself is killed.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from tfdear.launch.output import Relay, Sink, exception_line, last_lines
from tfdear.launch.plan import LaunchError, LaunchPlan, available_cores, free_port
from tfdear.launch.rank import GUARD_SECONDS, Rank, names, signal_name
from tfdear.launch.reminder import Reminder
from tfdear.launch.terminal import copy_window_size, pseudo_terminal

_GUARD = pathlib.Path(__file__).with_name("guard.py")
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds after which a notice says for which ranks the launcher waits.
_NOTICE_SECONDS = 1.0
# Seconds that a reader has, after the ranks ended, to take what they printed.
_DRAIN_SECONDS = 5.0
_TAIL_LINES = 15


def launch(plan: LaunchPlan, environ: Mapping[str, str] | None = None) -> int:
    """Runs a job and waits for its end. Call it in the main thread: it handles signals.

    Returns 0 when every rank returned 0; else the exit code of the rank that failed first, 128 + n
    if signal n killed it; 128 + n, too, when SIGINT, SIGTERM or SIGHUP ended the launcher; 127 when
    the command cannot be executed. Raises LaunchError when the log folder cannot be written, or the
    machine cannot start that many ranks.
    """
    return _Job(plan, os.environ if environ is None else environ).run()


class _Job:
    """The event loop."""

    def __init__(self, plan: LaunchPlan, environ: Mapping[str, str]):
        self._plan = plan
        self._environ = environ
        self._ranks: list[Rank] = []
        self._files = contextlib.ExitStack()
        self._logs: dict[int, BinaryIO] = {}
        for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
            if stream is not None:
                stream.flush()
            else:
                _keep_open(descriptor)
        self._stdout = Sink(1)
        # The same sink when both are the same file, so that their order is kept.
        self._stderr = self._stdout if _same_file(1, 2) else Sink(2)
        self._sinks = list({id(sink): sink for sink in (self._stdout, self._stderr)}.values())
        self._signals: list[int] = []
        self._signal = 0
        self._first: Rank | None = None
        self._reason = ""
        self._notice_at = float("inf")
        self._terminate_at = float("inf")
        self._abandon_at = float("inf")
        self._signalled_at = float("inf")
        self._reminder = Reminder()
        self._wake_read, self._wake_write = os.pipe()
        self._files.callback(os.close, self._wake_read)
        self._files.callback(os.close, self._wake_write)
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def run(self) -> int:
        with self._files, self._catch_signals():
            try:
                self._start()
                while not all(rank.is_gone for rank in self._ranks):
                    self._step()
                    self._decide()
            finally:
                # After any error: without its channel, a guard ends its rank.
                for rank in self._ranks:
                    if not rank.is_gone:
                        rank.channel.close()
            self._prefer_the_cause()
            self._summarize()
            self._drain()
        if self._first is not None:
            return self._first.code_for_shell
        return 128 + self._signal if self._signal else 0

    # Starting.

    def _start(self) -> None:
        if self._environ.get("TF_CONFIG"):
            self._say(
                "TF_CONFIG is set; the ranks do not get it, the launcher decides who they are."
            )
        if self._plan.log_dir is not None:
            try:
                os.makedirs(self._plan.log_dir, exist_ok=True)
            except OSError as error:
                raise LaunchError(
                    f"the log folder {self._plan.log_dir} cannot be made: {error.strerror}."
                ) from None
            # All of them before the first rank starts: nothing runs if one cannot be written.
            for number in range(self._plan.num_ranks):
                self._logs[number] = self._open_log(number)
        coordinator = f"127.0.0.1:{free_port()}"
        cores = available_cores()
        for number in range(self._plan.num_ranks):
            environment = self._plan.environment(self._environ, number, coordinator, cores)
            try:
                self._ranks.append(self._start_rank(number, environment))
            except OSError as error:
                raise LaunchError(
                    f"rank {number} of {self._plan.num_ranks} could not be started: "
                    f"{error.strerror}. Start fewer ranks, or raise what limits them (see `ulimit "
                    "-a`)."
                ) from None
            if self._signals:
                break

    def _start_rank(self, number: int, environment: dict[str, str]) -> Rank:
        channel, guard_channel = socket.socketpair()
        with guard_channel, contextlib.ExitStack() as child_side:
            log = self._logs.get(number)
            shown = self._plan.is_shown(number)
            relays: list[Relay] = []
            if log is not None and not shown:
                outputs = [log.fileno(), log.fileno()]
            else:
                sinks: list[Sink | None] = list(self._sinks) if shown else [None]
                outputs = []
                for sink in sinks:
                    live = number == 0
                    if live and sink is not None and sink.is_terminal:
                        source, output = pseudo_terminal(sink.descriptor)
                    else:
                        source, output = os.pipe()
                    child_side.callback(os.close, output)
                    prefix = f"[rank {number}] ".encode() if self._plan.prefix else b""
                    relays.append(Relay(source, sink, None if live else prefix, log))
                    outputs.append(output)
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(guard_channel.fileno())]
                + [str(self._plan.kill_after), *self._plan.command],
                # Only rank 0 may read what the user types.
                stdin=None if number == 0 else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[-1],
                env=environment,
                pass_fds=[guard_channel.fileno()],
                # Keys that the terminal turns into signals reach only the launcher.
                start_new_session=True,
            )
        channel.setblocking(False)
        rank = Rank(number, guard, channel)
        rank.relays, rank.log_path = relays, log.name if log is not None else None
        return rank

    def _open_log(self, number: int) -> BinaryIO:
        path = os.path.join(self._plan.log_dir or "", f"rank_{number}.log")
        try:
            return self._files.enter_context(open(path, "wb", buffering=0))
        except OSError as error:
            raise LaunchError(f"{path} cannot be written: {error.strerror}.") from None

    # Running.

    def _step(self) -> None:
        """Waits for something to happen, and moves bytes."""
        # Level-triggered `poll` takes regular files, too, which `epoll` refuses.
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        sources = {}
        for rank in self._ranks:
            if rank.is_gone:
                continue
            poll.register(rank.channel, select.POLLIN)
            for relay in rank.relays:
                if relay.is_open and not (relay.sink and relay.sink.is_full()):
                    poll.register(relay.source, select.POLLIN)
                    sources[relay.source] = relay
        for sink in self._sinks:
            if sink.wants_to_write():
                poll.register(sink.descriptor, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(self._timeout_milliseconds())}
        if self._wake_read in ready:
            # One byte per signal that came: its number.
            self._signals += os.read(self._wake_read, 4096)
        for descriptor in ready & sources.keys():
            if not sources[descriptor].read_some():
                sources[descriptor].close()
        for rank in self._ranks:
            if not rank.is_gone and rank.channel.fileno() in ready:
                rank.read_events()
        for sink in self._sinks:
            if sink.descriptor in ready:
                sink.write_some()
            sink.release()

    def _timeout_milliseconds(self) -> float:
        now = time.monotonic()
        deadlines = (self._notice_at, self._terminate_at, self._abandon_at, self._reminder.at)
        seconds = min([deadline - now for deadline in deadlines] + [3600.0])
        return 1000 * max(0.0, min([seconds] + [sink.seconds_to_release() for sink in self._sinks]))

    def _decide(self) -> None:
        """Handles signals and failures, and ends the job when it is time to."""
        now = time.monotonic()
        self._handle_signals()
        if self._first is None and not self._signal:
            self._find_first_failure(now)
        running = [rank for rank in self._ranks if not rank.is_gone]
        if not running:
            return
        others = names(running)
        if now >= self._notice_at:
            self._notice_at = float("inf")
            seconds = max(0.0, self._terminate_at - now)
            self._say(f"{self._reason}; waiting up to {seconds:.0f} s for {others} to end too.")
        if now >= self._terminate_at:
            self._terminate_at = float("inf")
            killing = f"SIGTERM, SIGKILL after {self._plan.kill_after:g} s"
            self._say(f"{self._reason}; ending {others} ({killing}).")
            self._signal_all(signal.SIGTERM)
        reminder = self._reminder.text(self._ranks, now)
        if reminder is not None and not self._signal:
            self._say(reminder)
        if now >= self._abandon_at:
            # Only processes in uninterruptible system calls are still here.
            for rank in running:
                rank.kill_group()
                rank.guard.kill()
                rank.end(-signal.SIGKILL)
                rank.leave()

    def _handle_signals(self) -> None:
        if self._stdout.is_broken and not self._signal:
            self._signals.append(signal.SIGPIPE)
        for number in self._signals:
            if number == signal.SIGWINCH:
                self._resize()
            elif number in (*_ENDING_SIGNALS, signal.SIGPIPE):
                self._end_by_signal(number)
        self._signals.clear()

    def _find_first_failure(self, now: float) -> None:
        failed = [rank for rank in self._ranks if rank.has_failed]
        if failed:
            self._first = min(failed, key=lambda rank: rank.ended_at or now)
            self._reason = f"{self._first} {self._first.ending()}"
            self._notice_at = now + _NOTICE_SECONDS
            self._terminate_at = now + self._plan.grace

    def _prefer_the_cause(self) -> None:
        """A rank that ends because another one failed may be gone before that one is."""
        first = self._first
        if first is None or not first.ended_for_another:
            return
        # Rank 0 waits for the others before it goes, and any rank may clean up first.
        end = self._signalled_at
        others = [rank for rank in self._ranks if rank.has_failed and not rank.ended_for_another]
        causes = [rank for rank in others if (rank.ended_at or end) < end]
        self._first = min(causes, key=lambda rank: rank.ended_at or end, default=first)

    def _end_by_signal(self, number: int) -> None:
        if self._signal:
            if number == self._signal == signal.SIGHUP:
                return  # The shell and the kernel both tell that a terminal was closed.
            self._say("killing all ranks.")
            self._signal_all(signal.SIGKILL)
            return
        self._signal = number
        self._terminate_at = self._notice_at = float("inf")
        if number == signal.SIGPIPE:
            self._say("nobody reads the output any more; ending all ranks.")
            number = signal.SIGTERM
        else:
            self._say(
                f"{signal_name(number)}: ending all ranks (SIGKILL after "
                f"{self._plan.kill_after:g} s, or at once with a second signal)."
            )
        self._signal_all(number)

    def _signal_all(self, number: int) -> None:
        now = time.monotonic()
        self._signalled_at = min(self._signalled_at, now)
        self._abandon_at = now + self._plan.kill_after + GUARD_SECONDS
        for rank in self._ranks:
            rank.signal(number)

    @contextlib.contextmanager
    def _catch_signals(self):
        def note(number: int, frame: Any) -> None:
            pass  # The number goes to the wake-up pipe.

        numbers = [*_ENDING_SIGNALS, signal.SIGWINCH]
        # A signal that was ignored from the start (nohup, a shell's background job) stays ignored.
        handlers = {n: signal.getsignal(n) for n in numbers}
        caught = {n: handler for n, handler in handlers.items() if handler is not signal.SIG_IGN}
        old_descriptor = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            for number in caught:
                signal.signal(number, note)
            yield
        finally:
            for number, handler in caught.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_descriptor)

    # Messages.

    def _say(self, text: str) -> None:
        self._stderr.write_lines(f"tfdear run: {text}\n".encode())

    def _resize(self) -> None:
        for rank in self._ranks:
            for relay in rank.relays:
                if relay.is_open and relay.sink and os.isatty(relay.source):
                    copy_window_size(relay.sink.descriptor, relay.source)

    def _summarize(self) -> None:
        first = self._first
        if first is None:
            return
        node = f" on node {self._plan.node_of(first.number)}" if self._plan.num_nodes > 1 else ""
        seconds = (first.ended_at or first.started_at) - first.started_at
        if first.error and not first.pid:
            self._say(f"{first} {first.error} ({self._plan.command[0]}).")
            return
        data = first.printed
        cause = exception_line(data) if (first.exit_code or 0) > 0 else None
        self._say(
            f"{first} (pid {first.pid}{node}) failed first: it {first.ending()} after "
            f"{seconds:.1f} s" + (f", with {cause}" if cause else ".")
        )
        if first.exit_code == -signal.SIGKILL and not first.was_stopped:
            self._say("SIGKILL often comes from the kernel when memory is short; see `dmesg`.")
        for rank in self._ranks:
            if rank is not first:
                later = (rank.ended_at or 0.0) - (first.ended_at or 0.0)
                when = f"{abs(later):.1f} s {'later' if later >= 0 else 'earlier'}"
                self._say(f"{rank} {rank.ending()}, {when}.")
        others_failed = any(rank.has_failed for rank in self._ranks if rank is not first)
        if self._plan.is_shown(first.number) and not others_failed:
            return  # What it printed is just above.
        where = f" ({first.log_path})" if first.log_path else ""
        lines = last_lines(data, _TAIL_LINES)
        self._say(f"the last that {first} printed{where}: {'' if lines else 'nothing'}")
        for line in lines:
            self._stderr.write_lines(f"    {line}\n".encode())

    def _drain(self) -> None:
        """Writes what waits, as long as it is read."""
        for sink in self._sinks:
            sink.release(now=True)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while True:
            waiting = [sink for sink in self._sinks if sink.wants_to_write()]
            seconds = deadline - time.monotonic()
            if not waiting or seconds <= 0:
                return
            poll = select.poll()
            for sink in waiting:
                poll.register(sink.descriptor, select.POLLOUT)
            ready = {descriptor for descriptor, _ in poll.poll(1000 * seconds)}
            for sink in waiting:
                if sink.descriptor in ready:
                    sink.write_some()
                    # A reader that is slow but alive has all the time it needs.
                    deadline = time.monotonic() + _DRAIN_SECONDS


def _keep_open(descriptor: int) -> None:
    """Lets nothing that is opened later be taken for a stream that was closed before the start."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return
    null = os.open(os.devnull, os.O_WRONLY)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False
