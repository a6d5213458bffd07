# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear netlab`: a network of several nodes on this machine, from the command line."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tfdear.benchmarks import lab
from tfdear.benchmarks.lab import Lab, LabError
from tfdear.commands.refusal import refuse
from tfdear.launch.plan import LaunchError, make_command
from tfdear.rendezvous import rank_environment

_DESCRIPTION = """\
Makes a network of several nodes on this machine, to try and to measure what a cluster would do.

Every node is a network namespace with a link of the given rate; nodes reach each other and nothing
else. Needs root, iproute2 and util-linux. Programs see the machine's own files and processes.
"""
_EPILOG = """\
examples:
  tfdear netlab up --nodes 2 --rate 1gbit
  tfdear netlab exec 1 -- ip address
  tfdear netlab run -- train.py --epochs 3       # one rank per node
  tfdear netlab status
  tfdear netlab down
"""
_PORT = 7100
_GRACE_SECONDS = 15.0


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `netlab` to the sub-commands of the command line."""
    parser = commands.add_parser(
        "netlab",
        help="make a network of several nodes on this machine",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="action")
    up = actions.add_parser("up", help="make a lab")
    up.add_argument("--nodes", type=int, default=2, help="number of nodes (default: 2)")
    up.add_argument(
        "--rate", default="1gbit", help="what each node may send; none: not shaped (default: 1gbit)"
    )
    up.add_argument(
        "--paths",
        type=int,
        default=1,
        help="equal parts of the rate, of which one connection gets one (default: 1)",
    )
    execute = actions.add_parser("exec", help="run a command on one node", allow_abbrev=False)
    execute.add_argument("node", type=int, help="number of the node, from 0")
    execute.add_argument("command", nargs=argparse.REMAINDER, metavar="-- command ...")
    run = actions.add_parser("run", help="run a job with one rank per node", allow_abbrev=False)
    run.add_argument("-m", dest="module", action="store_true", help="what follows is a module")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- script.py ...")
    status = actions.add_parser("status", help="show a lab, its nodes and the bytes they sent")
    down = actions.add_parser("down", help="end what runs in a lab and remove it")
    functions = {up: _up, execute: _execute, run: _run, status: _status, down: _down}
    for action, function in functions.items():
        action.add_argument("--name", default="lab", help="name of the lab (default: lab)")
        action.set_defaults(function=functools.partial(_guarded, function))


def _guarded(
    function: Callable[[argparse.Namespace], int | None], options: argparse.Namespace
) -> int:
    try:
        return function(options) or 0
    except (LabError, LaunchError) as error:
        return refuse("netlab", error)


def _up(options: argparse.Namespace) -> None:
    rate = None if options.rate == "none" else options.rate
    _show(lab.up(options.nodes, rate, options.name, options.paths))


def _status(options: argparse.Namespace) -> None:
    _show(lab.find(options.name))


def _down(options: argparse.Namespace) -> None:
    lab.down(options.name)


def _show(shown: Lab) -> None:
    rate = "not shaped" if shown.rate is None else f"{shown.bits_per_second or 0:g} bit/s per node"
    if shown.paths > 1:
        rate += f" in {shown.paths} paths"
    print(f"lab {shown.name}: {len(shown.nodes)} nodes, {rate}")
    for number, node in enumerate(shown.nodes):
        print(
            f"  node {number}: {node.hostname}, {node.address}, namespace {node.namespace}, "
            f"{node.bytes_sent()} bytes sent, {node.bytes_received()} bytes received"
        )


def _command(options: argparse.Namespace) -> list[str]:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise LabError("name a command after --, such as: -- python train.py")
    return command


def _execute(options: argparse.Namespace) -> int:
    command = _command(options)
    nodes = lab.find(options.name).nodes
    if not 0 <= options.node < len(nodes):
        raise LabError(
            f"the nodes of lab {options.name!r} are 0 to {len(nodes) - 1}. Received: {options.node}"
        )
    arguments = nodes[options.node].command(command)
    sys.stdout.flush()
    os.execvp(arguments[0], arguments)


def _run(options: argparse.Namespace) -> int:
    target, *arguments = _command(options)
    command = make_command(target, arguments, module=options.module)
    nodes = lab.find(options.name).nodes
    processes: list[subprocess.Popen] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def interrupt(number, frame):
        raise KeyboardInterrupt(number)

    try:
        for number in previous:
            signal.signal(number, interrupt)
        for rank, node in enumerate(nodes):
            variables = rank_environment.variables(
                rank, range(len(nodes)), f"{nodes[0].address}:{_PORT}"
            )
            processes.append(
                subprocess.Popen(
                    node.command(command),
                    env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        return _wait(processes)
    except KeyboardInterrupt as interruption:
        return 128 + (interruption.args[0] if interruption.args else signal.SIGINT)
    finally:
        for process in processes:
            # The whole session: a rank may have started processes of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_GRACE_SECONDS)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(processes: list[subprocess.Popen]) -> int:
    """Waits for all; after a failure the others have some seconds to end."""
    deadline = float("inf")
    code = 0
    while any(process.poll() is None for process in processes) and time.monotonic() <= deadline:
        # `any` stops at the first that runs: a later one may have failed.
        code = code or next((p.returncode for p in processes if p.poll()), 0)
        if code:
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        time.sleep(0.05)
    code = code or next((p.returncode for p in processes if p.returncode), 0)
    return 128 - code if code < 0 else code
