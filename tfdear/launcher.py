# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job on this machine, shows what they print, and ends them together.

One thread and one event loop. Every rank runs under a guard (`rank_guard`), which sees to it that
the rank and all that it starts end when they must, also when the launcher itself is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from tfdear.launch_plan import LaunchError, LaunchPlan, available_cores, free_port
from tfdear.launcher_output import Relay, Sink, last_lines, tail_of_file

_GUARD = pathlib.Path(__file__).with_name("rank_guard.py")
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds after which a notice says for whom the launcher waits.
_NOTICE_SECONDS = 1.0
# Seconds that a guard may take beyond the time it gives its rank.
_GUARD_SECONDS = 10.0
# Seconds that a reader has, after the ranks ended, to take what they printed.
_DRAIN_SECONDS = 5.0
_TAIL_LINES = 15


def launch(plan: LaunchPlan, environ: Mapping[str, str] | None = None) -> int:
    """Runs a job and waits for its end. Use it from the main thread of a process.

    Args:
        plan: what to start.
        environ: environment variables of the job. Defaults to None: those of this process.

    Returns:
        0 when every rank returned 0; else the exit code of the rank that failed first, 128 + n if
        signal n killed it; 128 + n, too, when signal n (SIGINT, SIGTERM, SIGHUP) ended the launcher;
        127 when the command cannot be executed.

    Raises:
        LaunchError: the log folder cannot be written.
    """
    return _Job(plan, os.environ if environ is None else environ).run()


class _Rank:
    """One rank, its guard, and what is known of it."""

    def __init__(self, number: int, guard: subprocess.Popen, channel: socket.socket):
        self.number = number
        self.guard = guard
        self.channel = channel
        self.started_at = time.monotonic()
        self.relays: list[Relay] = []
        self.log_path: str | None = None
        self.pid = 0
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        self.error = ""
        self.was_stopped = False
        self.is_gone = False
        self._received = b""

    def read_events(self) -> None:
        """Takes what the guard tells; its end is the end of the rank."""
        try:
            data = self.channel.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if not data:
            self.leave()

    def _take(self, event: dict[str, Any]) -> None:
        if "started" in event:
            self.pid = event["started"]
        elif "not_started" in event:
            self.end(127, error=f"could not be started: {event['not_started']}")
        else:
            self.was_stopped = event["stopped"]
            self.end(os.waitstatus_to_exitcode(event["ended"]), at=event["time"])

    def end(self, exit_code: int, at: float | None = None, error: str = "") -> None:
        """Notes the end of the rank; its guard may still be ending what it left behind."""
        if self.exit_code is None:
            self.exit_code = exit_code
            self.error = error
            self.ended_at = time.monotonic() if at is None else at

    def leave(self) -> None:
        """Notes that the guard has ended, and with it everything of this rank."""
        try:
            self.guard.wait(timeout=_GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            self.guard.kill()
            self.guard.wait()
        if self.exit_code is None:
            # Somebody killed the guard; the kernel then kills the rank, and here go the others.
            self.kill_group()
            self.end(self.guard.returncode or 1, error="was lost: its guard process was killed")
        for relay in self.relays:
            relay.close()
        self.channel.close()
        self.is_gone = True

    def signal(self, number: int) -> None:
        """Has the guard pass on a signal."""
        if not self.is_gone:
            with contextlib.suppress(OSError):
                self.channel.send(bytes([number]))

    def kill_group(self) -> None:
        """Kills the rank's process group without its guard."""
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"rank {self.number}"

    @property
    def has_failed(self) -> bool:
        return self.exit_code not in (None, 0)

    @property
    def code_for_shell(self) -> int:
        code = self.exit_code or 0
        return 128 - code if code < 0 else code

    def how_it_ended(self) -> str:
        """A phrase: "exited with code 1"."""
        if self.error:
            return self.error
        code = self.exit_code or 0
        text = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        if self.was_stopped:
            text += " (it was stopped before, as by SIGSTOP, and did not react)"
        return text


class _Job:
    """The event loop."""

    def __init__(self, plan: LaunchPlan, environ: Mapping[str, str]):
        self._plan = plan
        self._environ = environ
        self._ranks: list[_Rank] = []
        self._files = contextlib.ExitStack()
        self._logs: dict[int, BinaryIO] = {}
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._stdout = Sink(1)
        # One and the same when both lead to one place, so that their order is kept.
        self._stderr = self._stdout if _same_file(1, 2) else Sink(2)
        self._sinks = list({id(sink): sink for sink in (self._stdout, self._stderr)}.values())
        self._signals: list[int] = []
        self._signal = 0
        self._first: _Rank | None = None
        self._notice_at = float("inf")
        self._terminate_at = float("inf")
        self._abandon_at = float("inf")
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
                # Whatever went wrong: without its channel, a guard ends its rank.
                for rank in self._ranks:
                    if not rank.is_gone:
                        rank.channel.close()
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
            # All of them before the first rank: a folder that cannot be written costs nothing yet.
            for number in range(self._plan.num_ranks):
                self._logs[number] = self._open_log(number)
        coordinator = f"127.0.0.1:{free_port()}"
        cores = available_cores()
        for number in range(self._plan.num_ranks):
            environment = self._plan.environment(self._environ, number, coordinator, cores)
            self._ranks.append(self._start_rank(number, environment))
            if self._signals:
                break

    def _start_rank(self, number: int, environment: dict[str, str]) -> _Rank:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as child_side:
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
                    terminal = live and sink is not None and sink.is_terminal
                    source, output = _pseudo_terminal(sink) if terminal else os.pipe()
                    child_side.callback(os.close, output)
                    prefix = f"[rank {number}] ".encode() if self._plan.prefix else b""
                    relays.append(Relay(source, sink, None if live else prefix, log))
                    outputs.append(output)
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(theirs.fileno())]
                + [str(self._plan.kill_after), *self._plan.command],
                # Rank 0 may read what the user types; for several ranks that makes no sense.
                stdin=None if number == 0 else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[-1],
                env=environment,
                pass_fds=[theirs.fileno()],
                # Keys that the terminal turns into signals reach the launcher alone.
                start_new_session=True,
            )
        ours.setblocking(False)
        rank = _Rank(number, guard, ours)
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
        ready = {descriptor for descriptor, _ in poll.poll(self._milliseconds())}
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

    def _milliseconds(self) -> float:
        now = time.monotonic()
        deadlines = (self._notice_at, self._terminate_at, self._abandon_at)
        seconds = min([deadline - now for deadline in deadlines] + [3600.0])
        return 1000 * max(0.0, min([seconds] + [sink.seconds_to_release() for sink in self._sinks]))

    def _decide(self) -> None:
        """Ends the job when it is time to."""
        now = time.monotonic()
        if self._stdout.is_broken and not self._signal:
            self._signals.append(signal.SIGPIPE)
        for number in self._signals:
            if number == signal.SIGWINCH:
                self._resize()
            elif number in (*_ENDING_SIGNALS, signal.SIGPIPE):
                self._end_by_signal(number)
        self._signals.clear()
        if self._first is None and not self._signal:
            failed = [rank for rank in self._ranks if rank.has_failed]
            if failed:
                self._first = min(failed, key=lambda rank: rank.ended_at or now)
                self._notice_at = now + _NOTICE_SECONDS
                self._terminate_at = now + self._plan.grace
        running = [rank for rank in self._ranks if not rank.is_gone]
        if not running:
            return
        names = _names(rank.number for rank in running)
        if now >= self._notice_at:
            self._notice_at = float("inf")
            self._say(
                f"{self._first} {self._first.how_it_ended()}; waiting up to "
                f"{max(0.0, self._terminate_at - now):.0f} s for {names} to end too."
            )
        if now >= self._terminate_at:
            self._terminate_at = float("inf")
            self._say(
                f"{self._first} {self._first.how_it_ended()}; ending {names} (SIGTERM, SIGKILL after {self._plan.kill_after:g} s)."
            )
            self._signal_all(signal.SIGTERM)
        if now >= self._abandon_at:
            # Only processes in uninterruptible system calls come so far.
            for rank in running:
                rank.kill_group()
                rank.guard.kill()
                rank.end(-signal.SIGKILL)
                rank.leave()

    def _end_by_signal(self, number: int) -> None:
        if self._signal:
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
                f"{_signal_name(number)}: ending all ranks (SIGKILL after "
                f"{self._plan.kill_after:g} s, or at once with a second signal)."
            )
        self._signal_all(number)

    def _signal_all(self, number: int) -> None:
        self._abandon_at = time.monotonic() + self._plan.kill_after + _GUARD_SECONDS
        for rank in self._ranks:
            rank.signal(number)

    @contextlib.contextmanager
    def _catch_signals(self):
        def note(number: int, frame: Any) -> None:
            pass  # The wake-up pipe gets the number.

        numbers = [*_ENDING_SIGNALS, signal.SIGWINCH]
        # A signal that was ignored from the start (nohup, a shell's background job) stays ignored.
        before = {n: signal.getsignal(n) for n in numbers}
        caught = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
        old_descriptor = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            for number in caught:
                signal.signal(number, note)
            yield
        finally:
            for number, handler in caught.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_descriptor)

    # Telling.

    def _say(self, text: str) -> None:
        self._stderr.write_lines(f"tfdear run: {text}\n".encode())

    def _resize(self) -> None:
        for rank in self._ranks:
            for relay in rank.relays:
                if relay.is_open and relay.sink and os.isatty(relay.source):
                    _copy_window_size(relay.sink.descriptor, relay.source)

    def _summarize(self) -> None:
        first = self._first
        if first is None:
            return
        place = f" on node {self._plan.node_of(first.number)}" if self._plan.num_nodes > 1 else ""
        seconds = (first.ended_at or first.started_at) - first.started_at
        if first.error and not first.pid:
            self._say(f"{first} {first.error} ({self._plan.command[0]}).")
            return
        self._say(
            f"{first} (pid {first.pid}{place}) failed first: it "
            f"{first.how_it_ended()} after {seconds:.1f} s."
        )
        if first.exit_code == -signal.SIGKILL and not first.was_stopped:
            self._say("SIGKILL often comes from the kernel when memory is short; see `dmesg`.")
        for rank in self._ranks:
            if rank is not first:
                later = (rank.ended_at or 0.0) - (first.ended_at or 0.0)
                when = f"{abs(later):.1f} s {'later' if later >= 0 else 'earlier'}"
                self._say(f"{rank} {rank.how_it_ended()}, {when}.")
        others_failed = any(rank.has_failed for rank in self._ranks if rank is not first)
        if self._plan.is_shown(first.number) and not others_failed:
            return  # What it said stands just above.
        where = f" ({first.log_path})" if first.log_path else ""
        data = b"\n".join(relay.tail for relay in first.relays)
        if not first.relays and first.log_path:
            data = tail_of_file(first.log_path)
        lines = last_lines(data, _TAIL_LINES)
        self._say(f"the last that {first} printed{where}: {'' if lines else 'nothing'}")
        for line in lines:
            self._stderr.write_lines(f"    {line}\n".encode())

    def _drain(self) -> None:
        """Writes what waits, while somebody takes it."""
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
            if poll.poll(1000 * seconds):
                # A reader that is slow but there may have all the time it needs.
                deadline = time.monotonic() + _DRAIN_SECONDS
            for sink in waiting:
                sink.write_some()


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False


def _pseudo_terminal(sink: Sink) -> tuple[int, int]:
    """A terminal for the live rank, as wide as the one that shows it."""
    ours, theirs = pty.openpty()
    # The real terminal does all the processing, once.
    tty.setraw(theirs, termios.TCSANOW)
    _copy_window_size(sink.descriptor, theirs)
    return ours, theirs


def _copy_window_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _names(numbers: Iterable[int]) -> str:
    ordered = [str(number) for number in sorted(numbers)]
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(ordered)}"
