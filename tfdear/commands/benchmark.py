# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear benchmark`: what the package does, measured, from the command line."""

from __future__ import annotations

import argparse
import functools
import math
import signal
import sys
from collections.abc import Callable
from typing import Any

from tfdear.benchmarks import report
from tfdear.benchmarks.group import BenchmarkError
from tfdear.benchmarks.lab import LabError
from tfdear.commands import benchmark_runs, data_benchmark, embedding_benchmarks, output_file
from tfdear.commands.refusal import refuse
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
_FAILED_EXIT_CODE = 1
_Benchmark = Callable[[argparse.Namespace], dict[str, Any]]


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
    collectives = _add(kinds, benchmark_runs.collectives, "time and bandwidth of the collectives")
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
        "--gloo", action="store_true", help="also over Gloo's connections in place of tfdear's own"
    )
    collectives.add_argument("--tls", action="store_true", help="also over encrypted connections")
    _add_one_node(collectives)
    _add_number(collectives, "--paths", 1, "as of `tfdear netlab up`")
    start = _add_plain(kinds, benchmark_runs.start, "how large jobs start, without TensorFlow")
    start.add_argument(
        "--worlds",
        type=_worlds,
        default=[16, 64, 256],
        help="numbers of ranks, all on this machine (default: 16,64,256)",
    )
    replay = _add(kinds, benchmark_runs.replay, "schedules and planners, with sleep as computation")
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
    _add_number(replay, "--iterations", 2, "iterations per turn")
    overlap = _add(kinds, benchmark_runs.overlap, "training of a real model")
    overlap.add_argument(
        "--model",
        choices=("resnet-50", "densenet-201", "vgg-16", "bert-base", "bert-small"),
        default="resnet-50",
        help="default: resnet-50, on 64 x 64 images",
    )
    _add_number(overlap, "--batch-size", 8, "examples per rank and step")
    _add_number(overlap, "--steps", 5, "steps per turn")
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
    _add_one_node(overlap)
    sparse = _add(kinds, benchmark_runs.sparse, "sums of gradients, dense and compressed")
    sparse.add_argument("--ranks-per-node", type=_positive(int), default=2, help="default: 2")
    sparse.add_argument("--density", type=float, default=0.01, help="default: 0.01")
    _add_number(sparse, "--elements", 16 << 20, "of the gradient")
    sparse.add_argument(
        "--sums",
        nargs="+",
        metavar="NAME",
        help='ways to sum, such as "dense ring" HiTopKComm (default: all)',
    )
    sparse.set_defaults(rate="100mbit")
    training = _add(kinds, benchmark_runs.training, "training with dense and compressed gradients")
    training.add_argument(
        "--task",
        choices=("resnet-50", "transformer"),
        default="resnet-50",
        help="default: resnet-50, on handwritten digits; transformer: on English text",
    )
    training.add_argument("--ranks-per-node", type=_positive(int), default=2, help="default: 2")
    _add_number(training, "--batch-size", 8, "examples per rank")
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
    _add_number(training, "--steps", 5, "steps per repeat")
    training.add_argument(
        "--learning-steps",
        type=int,
        default=0,
        help="steps of a training whose result is told, on a link that is not shaped (default: "
        "none)",
    )
    planners = _add(kinds, benchmark_runs.fusion, "all planners on one workload, with sleep")
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
    _add_number(planners, "--iterations", 2, "iterations per turn")
    search = _add(kinds, benchmark_runs.search, "searches for a bucket size in real training")
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
    _add_number(search, "--seeds", 20, "fits of each model")
    search.add_argument("--first-seed", type=int, default=0, help="default: 0")
    search.add_argument(
        "--noise",
        type=float,
        default=0.03,
        help="added to the step times that searches are told, relative (default: 0.03)",
    )
    _add_number(search, "--grid", 12, "sizes of the grid")
    _add_number(search, "--steps", 3, "steps of each repeat")
    # Steps of these models take as long to compute as their gradients on such a link.
    search.set_defaults(rate="2gbit", repeats=3)
    embedding_benchmarks.add_parser(kinds, _add)
    data_benchmark.add_parser(kinds, _add)


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


def _worlds(text: str) -> list[int]:
    worlds = sorted(_list(_positive(int))(text))
    if worlds[0] < 2:
        raise argparse.ArgumentTypeError(f"a job has at least 2 ranks here. Received: {text}")
    return worlds


def _add_one_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--one-node",
        action="store_true",
        help="all ranks on one node, as `tfdear run` starts them; --rate does not matter then",
    )


def _add_number(parser: argparse.ArgumentParser, option: str, default: int, text: str) -> None:
    help_text = f"{text} (default: {default})"
    parser.add_argument(option, type=_positive(int), default=default, help=help_text)


def _add(
    kinds: argparse._SubParsersAction, function: _Benchmark, help_text: str
) -> argparse.ArgumentParser:
    """Adds a benchmark of ranks that each have a node, with the options that all of them have."""
    parser = _add_plain(kinds, function, help_text)
    _add_number(parser, "--ranks", 2, "ranks, one per node")
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
    return parser


def _add_plain(
    kinds: argparse._SubParsersAction, function: _Benchmark, help_text: str
) -> argparse.ArgumentParser:
    """Adds a benchmark by the name of its function."""
    parser = kinds.add_parser(function.__name__, help=help_text, description=help_text)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.set_defaults(function=functools.partial(_report, function))
    return parser


def _report(function: _Benchmark, options: argparse.Namespace) -> int:
    """Runs a benchmark and writes what it found; returns the exit code."""
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
        return refuse("benchmark", error)
    except BenchmarkError as error:
        print(f"tfdear benchmark: {error}", file=sys.stderr)
        return _FAILED_EXIT_CODE


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
