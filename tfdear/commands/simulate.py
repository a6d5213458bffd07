# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear simulate`: how a model would scale, from the command line. Loads no TensorFlow."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence

from tfdear import fusion, simulator
from tfdear.benchmarks import report
from tfdear.benchmarks.table import table
from tfdear.commands import output_file, table_simulation
from tfdear.commands.refusal import refuse
from tfdear.planning import schedules

_DESCRIPTION = """\
Simulates training on clusters that are not at hand: iteration time, speedup, scaling efficiency
and number of buckets of every schedule with every planner. It uses the planners that training uses.
For models with tables of embeddings also what each way to exchange them makes of it.
"""
_EPILOG = """\
examples:
  tfdear simulate resnet-50
  tfdear simulate bert-large --workers 64 --schedules dear wfbp --planners Planned
  tfdear simulate densenet-201 --network double_binary_trees --json result.json --plot result.png
  tfdear simulate lm-1b --ids-known --alpha 5e-6 --beta 1e-10
  tfdear simulate my_trace.json --alpha 5e-5 --beta 8e-9 --planners "FixedSize(4 << 20)" MGWFBP

The defaults of alpha and beta are 10 Gbit/s Ethernet, as the MG-WFBP paper measured it.
"""
# Each chunk is an event of the simulation, for every schedule, planner and cluster.
_MOST_CHUNKS = 10_000
_PLANNERS = ("NoFusion", "SingleBucket", "FixedSize", "MGWFBP", "Planned")


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `simulate` to the sub-commands of the command line."""
    parser = commands.add_parser(
        "simulate",
        help="simulate training on many workers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=run)
    defaults = simulator.Network()
    parser.add_argument(
        "trace", metavar="TRACE", help=f"a file, or one of {', '.join(simulator.shipped_traces())}"
    )
    parser.add_argument(
        "--workers",
        default="4..2048",
        metavar="P,P,...",
        help="numbers of workers; A..B doubles from A up to B (default: 4..2048)",
    )
    parser.add_argument(
        "--schedules", nargs="+", choices=schedules.SCHEDULES, default=schedules.SCHEDULES
    )
    parser.add_argument(
        "--planners",
        nargs="+",
        default=_PLANNERS,
        metavar="PLANNER",
        help=f"as in Python, such as 'FixedCount(4)' (default: {' '.join(_PLANNERS)})",
    )
    parser.add_argument("--network", choices=simulator.NETWORKS, default=defaults.algorithm)
    for name, text in (
        ("alpha", "latency of a message, in seconds"),
        ("beta", "time per byte between workers (hierarchical: nodes), in seconds"),
        ("gamma", "time to add one byte to another, in seconds"),
        ("intra_node_alpha", "latency of a message inside a node, in seconds"),
        ("intra_node_beta", "time per byte inside a node, in seconds"),
    ):
        default = getattr(defaults, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            default=default,
            metavar="SECONDS",
            help=f"{text} (default: {default:.3g})",
        )
    parser.add_argument(
        "--workers-per-node",
        type=int,
        default=defaults.workers_per_node,
        metavar="N",
        help=f"workers of a node, if hierarchical (default: {defaults.workers_per_node})",
    )
    parser.add_argument(
        "--compute-factor",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiply the trace's times, for a slower (above 1) or faster device (default: 1)",
    )
    parser.add_argument(
        "--chunk-bytes",
        type=int,
        metavar="BYTES",
        help="transfers are cut in chunks of this size and not interrupted "
        "(default: an urgent transfer interrupts another at no cost)",
    )
    table_simulation.add_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write the results")
    parser.add_argument("--plot", metavar="FILE", help="draw the efficiencies (needs tfdear[plot])")


def run(options: argparse.Namespace) -> int:
    """Simulates and prints; returns the exit code, 2 for invalid arguments."""
    try:
        output_file.check_writable(options.json, options.plot)
        trace = simulator.load(options.trace).scaled(options.compute_factor)
        if options.chunk_bytes is not None and trace.bytes > _MOST_CHUNKS * options.chunk_bytes:
            raise ValueError(
                f"--chunk-bytes would cut {trace.bytes} bytes into more than {_MOST_CHUNKS} "
                f"chunks; take a larger size. Received: {options.chunk_bytes}"
            )
        network = simulator.Network(
            options.network,
            options.alpha,
            options.beta,
            options.gamma,
            options.workers_per_node,
            options.intra_node_alpha,
            options.intra_node_beta,
        )
        workers = _workers(options.workers)
        planners = {text: fusion.parse(text) for text in options.planners}
        results = simulator.simulate(
            trace, network, workers, planners, options.schedules, options.chunk_bytes
        )
        bounds = {count: simulator.bounds(trace, network.costs(count)) for count in workers}
        _print(trace, network, workers, results, bounds)
        tables = None
        if trace.tables:
            tables = table_simulation.run(options, trace, network, workers, planners)
        if options.json is not None:
            _write(options.json, trace, network, results, bounds, tables)
        if options.plot is not None:
            from tfdear.commands import simulation_plot

            simulation_plot.draw(options.plot, trace, network, results, bounds)
    except (OSError, ValueError, ImportError) as error:
        return refuse("simulate", error)
    return 0


def _workers(text: str) -> list[int]:
    """Reads "4,8,16" or "4..2048"."""
    try:
        first, range_mark, last = text.partition("..")
        if not range_mark:
            numbers = [int(number) for number in text.split(",")]
        else:
            numbers = [int(first)]
            # A number below 1 would double for ever.
            while numbers[-1] >= 1 and 2 * numbers[-1] <= int(last):
                numbers.append(2 * numbers[-1])
        if min(numbers) < 1 or range_mark and int(last) < numbers[0]:
            raise ValueError
        return numbers
    except ValueError:
        raise ValueError(
            f"--workers must be numbers of workers such as 4,8,16 or 4..2048. Received: {text!r}"
        ) from None


def _print(trace, network, workers, results, bounds) -> None:
    print(
        f"{trace.name}: {len(trace.layers)} gradients, {trace.bytes / 1e6:.1f} MB, forward "
        f"{trace.forward * 1e3:.1f} ms, backward {trace.backward * 1e3:.1f} ms; "
        f"{network.algorithm}, alpha {network.alpha:.3g} s, beta {network.beta:.3g} s/byte"
    )
    names = {"all_reduce": "all-reduce", "dear_barrier": "with barrier", "dear": "without barrier"}
    limits = [
        ("bound", name, [f"{bounds[count][key] * 1e3:.1f}" for count in workers])
        for key, name in names.items()
    ]
    _print_table(
        "iteration time (ms)", workers, results, lambda r: f"{r.iteration_time * 1e3:.1f}", limits
    )
    _print_table("speedup over one worker", workers, results, lambda r: f"{r.speedup:.1f}")
    _print_table("scaling efficiency (%)", workers, results, lambda r: f"{r.efficiency * 100:.1f}")
    _print_table("buckets", workers, results, lambda r: str(r.buckets))


def _print_table(
    title: str,
    workers: Sequence[int],
    results: Sequence[simulator.Result],
    cell: Callable[[simulator.Result], str],
    more: Sequence[tuple[str, str, list[str]]] = (),
) -> None:
    cells: dict[tuple[str, str], list[str]] = {}
    for result in results:
        cells.setdefault((result.schedule, result.planner), []).append(cell(result))
    rows = [["schedule", "planner", *map(str, workers)]]
    rows += [[*key, *values] for key, values in cells.items()]
    rows += [[schedule, name, *values] for schedule, name, values in more]
    print(f"\n{title}\n{table(rows, num_left=2, equal_widths=True)}")


def _write(path, trace, network, results, bounds, tables) -> None:
    document = {
        "trace": {
            "name": trace.name,
            "gradients": len(trace.layers),
            "bytes": trace.bytes,
            "forward": trace.forward,
            "backward": trace.backward,
        },
        "network": dataclasses.asdict(network),
        "results": [dataclasses.asdict(result) for result in results],
        "bounds": [{"workers": count, **times} for count, times in bounds.items()],
    }
    if tables is not None:
        document["tables"] = tables
    report.write(path, document)
