# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The command line. Loads no TensorFlow by itself."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import tfdear
from tfdear.commands import cache, netlab, timeline, trace
from tfdear.commands.refusal import refuse
from tfdear.launch.plan import LaunchError, LaunchPlan, make_command

# Their modules load numpy and the planners, so they are imported only for these commands.
_PLANNING_COMMANDS = {
    "simulate": "simulate training on many workers",
    "benchmark": "measure collectives, schedules and planners",
}

_RUN_DESCRIPTION = """\
Starts a job of several ranks on this machine.

The output of rank 0 is shown as it comes; the lines of the others stand behind [rank N]. When one
rank fails, all are ended, and the exit code is that of the first that failed (128 + n after signal
n). Ctrl-C ends all ranks; a second one ends them at once. With --nodes, this machine plays several
nodes, to try hierarchical communication without a cluster.
"""

_RUN_EPILOG = """\
examples:
  tfdear run -n 4 train.py --epochs 3
  tfdear run -n 4 --nodes 2 --log-dir logs train.py
  tfdear run -n 2 -m package.module --flag
  tfdear run -n 2 -- ./program --flag

Every rank gets TFDEAR_RANK, TFDEAR_WORLD_SIZE, TFDEAR_LOCAL_RANK, TFDEAR_LOCAL_SIZE,
TFDEAR_NODE_RANK and TFDEAR_COORDINATOR. OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS and
TF_NUM_INTEROP_THREADS share the cores among the ranks, GLIBC_TUNABLES asks for large pages of
memory, TF_CPP_MIN_LOG_LEVEL is 1 on rank 0 and 2 on the others; what is set already is kept. What
TensorFlow says at every start is shown for rank 0 alone; log files have all of it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of `sys.argv`.

    Returns the exit code: 2 for invalid arguments, else that of the command.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _make_parser(arguments[0] if arguments else None).parse_args(arguments)
    return options.function(options)


def _run(options: argparse.Namespace) -> int:
    # Imported here: `tfdear doctor` must work where the launcher does not.
    from tfdear.launch import launcher

    # What follows "--" is the command, even if it begins with a dash.
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        return refuse("run", "name the script to run, such as: tfdear run -n 2 train.py")
    try:
        plan = LaunchPlan(
            command=make_command(command[0], command[1:], module=options.module),
            num_ranks=options.num_ranks,
            num_nodes=options.nodes,
            log_dir=options.log_dir,
            prefix=options.prefix,
            show=_ranks(options.show, options.num_ranks),
            grace=options.grace,
        )
        return launcher.launch(plan)
    except LaunchError as error:
        return refuse("run", error)


def _doctor(options: argparse.Namespace) -> int:
    from tfdear.commands.doctor import checks

    return checks.run(self_test=options.self_test, timeout=options.timeout)


def _ranks(text: str | None, num_ranks: int) -> frozenset[int] | None:
    """Reads "all", "none" or "0,2"."""
    if text is None:
        return None
    if text in ("all", "none"):
        return frozenset(range(num_ranks) if text == "all" else ())
    try:
        return frozenset(int(number) for number in text.split(","))
    except ValueError:
        raise LaunchError(
            f"--show must be all, none or ranks such as 0,2. Received: {text!r}"
        ) from None


def _make_parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfdear", description="Data-parallel Keras training with hidden communication."
    )
    parser.add_argument("--version", action="version", version=f"tfdear {tfdear.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    run = commands.add_parser(
        "run",
        help="start a job on this machine",
        description=_RUN_DESCRIPTION,
        epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="tfdear run -n RANKS [options] script.py [arguments ...]",
        # An abbreviation could take an argument that the user meant for the script.
        allow_abbrev=False,
    )
    run.set_defaults(function=_run)
    run.add_argument(
        "-n", "--num-ranks", type=int, required=True, metavar="RANKS", help="number of processes"
    )
    run.add_argument(
        "--nodes", type=int, default=1, help="number of nodes that this machine plays (default: 1)"
    )
    run.add_argument(
        "--log-dir",
        metavar="DIR",
        help="write DIR/rank_N.log for every rank, and show rank 0 alone",
    )
    run.add_argument(
        "--show",
        metavar="RANKS",
        help="ranks to show: all, none or such as 0,2 (default: all; with --log-dir: 0)",
    )
    run.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="put [rank N] in front of the lines of other ranks than 0 (default: yes)",
    )
    run.add_argument(
        "--grace",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="time for the other ranks to end by themselves after a failure (default: 15)",
    )
    run.add_argument(
        "-m", dest="module", action="store_true", help="what follows is the name of a module"
    )
    run.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="script.py ...",
        help="a Python script, a program or (after -m) a module, and its arguments",
    )

    doctor = commands.add_parser(
        "doctor",
        help="check the installation",
        description="Prints what tfdear finds on this machine and runs a job of two ranks. "
        "The exit code is 0 when every check passes, else 1.",
    )
    doctor.set_defaults(function=_doctor)
    doctor.add_argument(
        "--self-test",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the job of two ranks (default: yes)",
    )
    doctor.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="time for that job (default: 120)",
    )
    netlab.add_parser(commands)
    trace.add_parser(commands)
    timeline.add_parser(commands)
    cache.add_parser(commands)
    for name, summary in _PLANNING_COMMANDS.items():
        if name == command:
            importlib.import_module(f"tfdear.commands.{name}").add_parser(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser
