# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear benchmark`: what the package does, measured, from the command line."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable
from typing import Any

from tfdear.benchmarks.lab import LabError
from tfdear.commands import benchmark_runs, output_file
from tfdear.planning import schedules

_DESCRIPTION = """\
Measures tfdear on a network of this machine's own (network namespaces with shaped links, see
`tfdear netlab`), one rank per node. Needs root.

Frameworks to compare with live in environments of their own, named by flags; they do the same work
in the same call, in turns.
"""
_EPILOG = """\
examples:
  tfdear benchmark collectives --ranks 4 --rate 1gbit --json collectives.json
  tfdear benchmark collectives --rate none --sizes 16M --torch-python /envs/torch/bin/python
"""
_ALL_PLANNERS = [
    "NoFusion",
    "SingleBucket",
    "FixedSize",
    "FixedCount(10)",
    "MGWFBP",
    "Planned",
    "Bayesian(steps_per_trial=3)",
    "RandomSearch(steps_per_trial=3)",
    "GridSearch(steps_per_trial=3)",
]
_SEARCHES = [
    "Bayesian(trials=8, steps_per_trial=3)",
    "RandomSearch(trials=8, steps_per_trial=3, seed={seed})",
    "GridSearch(trials=8, steps_per_trial=3)",
]
_USAGE_EXIT_CODE = 2
_FAILED_EXIT_CODE = 1


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `benchmark` to the sub-commands of the command line."""
    parser = commands.add_parser(
        "benchmark",
        help="measure collectives, schedules and planners",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(required=True, metavar="benchmark")
    collectives = _add(
        kinds, "collectives", "time and bandwidth of the collectives", benchmark_runs.collectives
    )
    collectives.add_argument(
        "--sizes",
        type=_sizes,
        default=_sizes("64K,256K,1M,4M,16M"),
        help="sizes, such as 64K,4M (default: 64K,256K,1M,4M,16M)",
    )
    collectives.add_argument(
        "--connections",
        type=_list(_positive(int)),
        default=[],
        help="also with these numbers of connections to each rank, such as 2,4 (default: only 1)",
    )
    collectives.add_argument(
        "--paths", type=_positive(int), default=1, help="as of `tfdear netlab up` (default: 1)"
    )
    replay = _add(
        kinds, "replay", "schedules and planners, with sleep as computation", benchmark_runs.replay
    )
    replay.add_argument(
        "--trace",
        default="resnet-50",
        help="a trace that comes with tfdear, or a JSON file (default: resnet-50)",
    )
    replay.add_argument(
        "--ratio",
        type=_list(_positive(float)),
        default=[0.5, 1.0, 1.33, 2.0, 4.0],
        help="communication over computation (default: 0.5,1,1.33,2,4)",
    )
    replay.add_argument(
        "--schedules",
        nargs="+",
        choices=schedules.SCHEDULES,
        default=list(schedules.SCHEDULES),
        help="default: all",
    )
    replay.add_argument(
        "--planners",
        nargs="+",
        default=["FixedSize", "Planned"],
        help='planners of tfdear.fusion, such as "FixedSize(4 << 20)" (default: FixedSize Planned)',
    )
    replay.add_argument(
        "--iterations", type=_positive(int), default=2, help="iterations per turn (default: 2)"
    )
    overlap = _add(kinds, "overlap", "training of a real model", benchmark_runs.overlap)
    overlap.add_argument(
        "--model",
        choices=("resnet-50", "densenet-201", "vgg-16", "bert-base"),
        default="resnet-50",
        help="default: resnet-50, on 64 x 64 images",
    )
    overlap.add_argument(
        "--batch-size",
        type=_positive(int),
        default=8,
        help="examples per rank and step (default: 8)",
    )
    overlap.add_argument(
        "--steps", type=_positive(int), default=5, help="steps per turn (default: 5)"
    )
    overlap.add_argument(
        "--schedules", nargs="+", default=["dear"], help="schedules of tfdear (default: dear)"
    )
    overlap.add_argument(
        "--planners",
        nargs="+",
        default=["default"],
        help='planners of tfdear.fusion, such as "FixedSize(4 << 20)" (default: what DearStrategy '
        "does by default)",
    )
    overlap.add_argument(
        "--one-node",
        action="store_true",
        help="all ranks on one node, as `tfdear run` starts them; --rate does not matter then",
    )
    sparse = _add(kinds, "sparse", "sums of gradients, dense and compressed", benchmark_runs.sparse)
    sparse.add_argument("--ranks-per-node", type=_positive(int), default=2, help="default: 2")
    sparse.add_argument("--density", type=float, default=0.01, help="default: 0.01")
    sparse.add_argument(
        "--elements",
        type=_positive(int),
        default=16 << 20,
        help="of the gradient (default: 16777216)",
    )
    sparse.add_argument(
        "--sums",
        nargs="+",
        metavar="NAME",
        help='ways to sum, such as "dense ring" HiTopKComm (default: all)',
    )
    sparse.set_defaults(rate="100mbit")
    training = _add(
        kinds, "training", "training with dense and compressed gradients", benchmark_runs.training
    )
    training.add_argument(
        "--task",
        choices=("resnet-50", "transformer"),
        default="resnet-50",
        help="default: resnet-50, on handwritten digits; transformer: on English text",
    )
    training.add_argument("--ranks-per-node", type=_positive(int), default=2, help="default: 2")
    training.add_argument(
        "--batch-size", type=_positive(int), default=8, help="examples per rank (default: 8)"
    )
    training.add_argument(
        "--rates",
        type=lambda text: text.split(","),
        default=["100mbit", "1gbit"],
        help="what each node may send, instead of --rate (default: 100mbit,1gbit)",
    )
    training.add_argument(
        "--sums",
        nargs="+",
        default=["dense hierarchical", "dense", "MSTopK(density=0.01)"],
        metavar="NAME",
        help='"dense", "dense hierarchical" or compressions; all are compared with the first '
        "(default: both, and the compression of density 0.01)",
    )
    training.add_argument(
        "--steps", type=_positive(int), default=5, help="steps per repeat (default: 5)"
    )
    training.add_argument(
        "--learning-steps",
        type=int,
        default=0,
        help="steps of a training whose result is told, on a link that is not shaped (default: "
        "none)",
    )
    planners = _add(
        kinds, "fusion", "all planners on one workload, with sleep", benchmark_runs.fusion
    )
    planners.add_argument("--trace", default="densenet-201", help="as of replay")
    planners.add_argument(
        "--ratio", type=_positive(float), default=1.0, help="communication / computation"
    )
    planners.add_argument(
        "--schedules", nargs="+", choices=schedules.SCHEDULES, default=["dear"], help="as of replay"
    )
    planners.add_argument(
        "--planners", nargs="+", default=_ALL_PLANNERS, help=f"default: {' '.join(_ALL_PLANNERS)}"
    )
    planners.add_argument(
        "--iterations", type=_positive(int), default=2, help="iterations per turn (default: 2)"
    )
    search = _add(
        kinds, "search", "searches for a bucket size in real training", benchmark_runs.search
    )
    search.add_argument(
        "--models",
        nargs="+",
        choices=("perceptron", "convolutional"),
        default=["perceptron", "convolutional"],
        help="default: both",
    )
    search.add_argument(
        "--searches",
        nargs="+",
        default=_SEARCHES,
        help=f'planners that search; "{{seed}}" is the seed (default: {" ".join(_SEARCHES)})',
    )
    search.add_argument(
        "--seeds", type=_positive(int), default=20, help="fits of each model (default: 20)"
    )
    search.add_argument("--first-seed", type=int, default=0, help="default: 0")
    search.add_argument(
        "--noise",
        type=float,
        default=0.03,
        help="added to the step times that searches are told, relative (default: 0.03)",
    )
    search.add_argument(
        "--grid", type=_positive(int), default=12, help="sizes of the grid (default: 12)"
    )
    search.add_argument(
        "--steps", type=_positive(int), default=3, help="steps of each repeat (default: 3)"
    )
    # Steps of these models take as long to compute as their gradients on such a link.
    search.set_defaults(rate="2gbit", repeats=3)


def _positive(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            value = 0
        if not 0 < value < math.inf:
            kind = "a whole number" if convert is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {kind} above 0. Received: {text!r}")
        return value

    return read


def _list(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def read(text: str) -> list[Any]:
        return [convert(part) for part in text.split(",")]

    return read


def _add(
    kinds: argparse._SubParsersAction,
    name: str,
    help_text: str,
    function: Callable[[argparse.Namespace], dict[str, Any]],
) -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=help_text, description=help_text)
    parser.add_argument(
        "--ranks", type=_positive(int), default=2, help="ranks, one per node (default: 2)"
    )
    parser.add_argument(
        "--rate", default="1gbit", help="what each node may send; none: not shaped (default: 1gbit)"
    )
    parser.add_argument(
        "--repeats", type=_positive(int), default=5, help="measurements, of which the median counts"
    )
    parser.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="give every rank one core (default: yes)",
    )
    parser.add_argument("--torch-python", metavar="PYTHON", help="a Python that has PyTorch")
    parser.add_argument("--horovod-python", metavar="PYTHON", help="a Python that has Horovod")
    parser.add_argument(
        "--mirrored-python",
        metavar="PYTHON",
        help="a Python that has TensorFlow with Keras 2 (default: that of --horovod-python)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.set_defaults(function=_reporting(function))
    return parser


def _reporting(
    function: Callable[[argparse.Namespace], dict[str, Any]],
) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        from tfdear.benchmarks import report
        from tfdear.benchmarks.group import BenchmarkError

        # As an exception, so that the lab and its ranks are removed before this process ends.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            output_file.check_writable(options.json)
            stolen = report.StolenTime()
            document = function(options)
            machine = report.machine(stolen.share())
            benchmark_runs.tell(f"Machine: {report.machine_line(machine)}")
            if options.json is not None:
                report.write(options.json, {"machine": machine, **document})
            return 0
        except (LabError, ValueError, OSError) as error:
            print(f"tfdear benchmark: {error}", file=sys.stderr)
            return _USAGE_EXIT_CODE
        except BenchmarkError as error:
            print(f"tfdear benchmark: {error}", file=sys.stderr)
            return _FAILED_EXIT_CODE

    return run


def _sizes(text: str) -> list[int]:
    """Reads "64K,4M"."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for part in text.split(","):
        factor = factors.get(part[-1:].upper())
        try:
            sizes.append(int(part[:-1]) * factor if factor else int(part))
        except ValueError:
            sizes.append(0)
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"sizes are written like 64K,4M. Received: {text!r}")
    return sizes
