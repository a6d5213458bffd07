# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear timeline`: merges and draws what ranks recorded, from the command line."""

from __future__ import annotations

import argparse
import pathlib

from tfdear.commands.refusal import refuse

_DESCRIPTION = """\
Puts the timelines of a job's ranks together, into a picture or into one file.

With TFDEAR_TIMELINE=FILE in its environment, every rank of a job writes such a timeline when its
script ends. Perfetto (ui.perfetto.dev) and chrome://tracing open them, merged or not.
"""
_EPILOG = """\
examples:
  TFDEAR_TIMELINE=timeline.json tfdear run -n 2 train.py
  tfdear timeline timeline.rank*.json -o timeline.png
  tfdear timeline timeline.rank*.json -o timeline.json
"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `timeline` to the sub-commands of the command line."""
    parser = commands.add_parser(
        "timeline",
        help="merge and draw the timelines of a job's ranks",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=_run)
    parser.add_argument("files", nargs="+", metavar="FILE.json", help="what the ranks wrote")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="FILE.json: the merged timeline; FILE.png, .svg or .pdf: a picture of it",
    )
    parser.add_argument(
        "--steps", type=int, default=3, metavar="N", help="number of steps to draw (default: 3)"
    )
    parser.add_argument(
        "--first-step",
        type=int,
        metavar="STEP",
        help="the first of them, by its number in the timeline (default: of typical time)",
    )


def _run(options: argparse.Namespace) -> int:
    from tfdear.measure import drawing, timeline

    try:
        trace = timeline.merge([timeline.read(path) for path in options.files])
        if pathlib.Path(options.output).suffix == ".json":
            timeline.write(trace, options.output)
        else:
            drawing.draw(
                trace, options.output, num_steps=options.steps, first_step=options.first_step
            )
    except OSError as error:
        return refuse("timeline", f"{error.filename}: {(error.strerror or str(error)).lower()}.")
    except (ModuleNotFoundError, ValueError) as error:
        return refuse("timeline", error)
    return 0
