# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear trace`: records a model's layer sizes and times from a run. Loads no TensorFlow."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from tfdear.commands import output_file

_DESCRIPTION = """\
Runs a training script on this machine and records a trace of its model: of every gradient its size
and the times of its layer's forward and backward pass, as rank 0 measures them in training steps 5
to 24. `tfdear simulate` and `tfdear benchmark replay` take it.

Any job writes a trace to the file that the variable TFDEAR_TRACE names on rank 0.
"""
_EPILOG = """\
examples:
  tfdear trace -o resnet.json train.py
  tfdear trace -n 4 -o resnet.json train.py --epochs 1
"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `trace` to the sub-commands of the command line."""
    parser = commands.add_parser(
        "trace",
        help="record layer sizes and times from a run",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="tfdear trace [-n RANKS] -o FILE.json script.py [arguments ...]",
        allow_abbrev=False,
    )
    parser.set_defaults(function=run)
    parser.add_argument(
        "-n", "--num-ranks", type=int, default=2, metavar="RANKS", help="default: 2"
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE.json")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script.py ...")


def run(options: argparse.Namespace) -> int:
    """Runs the script and prints where the trace is.

    Returns the job's exit code; 1 if the job made too few steps for a trace.
    """
    from tfdear.job.options import TRACE_VARIABLE
    from tfdear.launch import launcher
    from tfdear.launch.plan import LaunchPlan, make_command
    from tfdear.planning.trace import Trace

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command or options.num_ranks < 2:
        print(
            "tfdear: name a script, and two ranks or more: one rank alone exchanges no gradients "
            "that could be timed",
            file=sys.stderr,
        )
        return 2
    path = os.path.abspath(options.output)
    # Renamed when it is complete, so that a job that fails does not destroy an earlier trace.
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{os.getpid()}.{name}")
    try:
        plan = LaunchPlan(make_command(command[0], command[1:]), options.num_ranks)
        output_file.check_writable(path, new)
        os.environ[TRACE_VARIABLE] = new
        code = launcher.launch(plan)
        if code:
            return code
        if not os.path.exists(new):
            print(
                "tfdear: the job ended before it had made 25 training steps: no trace was recorded",
                file=sys.stderr,
            )
            return 1
        trace = Trace.load(new)
        os.replace(new, path)
    except (ValueError, OSError) as error:
        print(f"tfdear: {error}", file=sys.stderr)
        return 2
    finally:
        with contextlib.suppress(OSError):
            os.remove(new)
    print(
        f"{path}: {len(trace.layers)} gradients, {trace.bytes / 1e6:.1f} MB, forward "
        f"{trace.forward * 1e3:.1f} ms, backward {trace.backward * 1e3:.1f} ms"
    )
    return 0
