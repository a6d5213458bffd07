# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `tfdear simulate` says about models with tables of embeddings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from tfdear import simulator
from tfdear.benchmarks.table import table
from tfdear.planning import density_sweep
from tfdear.planning.partition import KINDS
from tfdear.planning.trace import Trace

_VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what concerns tables to the arguments of the command."""
    group = parser.add_argument_group("models with tables of embeddings")
    group.add_argument(
        "--methods",
        nargs="+",
        choices=tuple(simulator.METHODS),
        default=tuple(simulator.METHODS),
        metavar="METHOD",
        help=f"ways to exchange tables, of {', '.join(simulator.METHODS)} (default: all)",
    )
    group.add_argument(
        "--partition",
        choices=("auto", *KINDS),
        default="auto",
        help="how tables are divided among ranks (default: auto)",
    )
    group.add_argument(
        "--vectors", choices=tuple(_VALUE_BYTES), default="float32", help="type of the vectors"
    )
    group.add_argument(
        "--ids-known",
        action="store_true",
        help="ranks with shards know the ids of all, as where each reads the global batch",
    )
    group.add_argument(
        "--sweep",
        action="store_true",
        help="print what exchanges of the first table cost at every density of its gradient",
    )


def run(
    options: argparse.Namespace,
    trace: Trace,
    network: simulator.Network,
    workers: Sequence[int],
    planners: dict[str, Any],
) -> dict[str, Any]:
    """Simulates the tables of a trace and prints; returns what belongs into the JSON file."""
    results = simulator.simulate_tables(
        trace,
        network,
        workers,
        planners,
        options.methods,
        options.schedules,
        options.chunk_bytes,
        options.partition,
        _VALUE_BYTES[options.vectors],
        options.ids_known,
    )
    for item in trace.tables:
        print(
            f"\ntable {item.layer}: {item.rows} x {item.columns}; a batch has {item.ids} ids, "
            f"{item.coalesced} different ones, {item.prior} of them again in the next batches of "
            f"{item.workers} workers" + f", {item.bags} bags" * (item.bags > 0),
            end="",
        )
    print()
    document: dict[str, Any] = {"results": [_as_dict(result) for result in results]}
    if results:
        _print_results(results, workers)
    if options.sweep:
        first = trace.tables[0]
        document["sweep"] = {}
        for count in workers:
            costs = network.cluster(count).costs
            times = density_sweep.sweep(
                first.rows,
                first.columns,
                count,
                costs,
                kind=options.partition,
                value_bytes=_VALUE_BYTES[options.vectors],
            )
            document["sweep"][str(count)] = times
            heads = [f"{100 * density:g} %" for density in density_sweep.DENSITIES]
            rows = [[f"{count} workers", *heads]]
            rows += [[name, *(f"{s * 1e3:.2f}" for s in times[name])] for name in times]
            print(f"\n{first.layer}: all communication of a step (ms), by density of its gradient")
            print(table(rows, equal_widths=True))
    return document


def _as_dict(result: simulator.TableResult) -> dict[str, Any]:
    return {"method": result.method, **{k: v for k, v in vars(result).items() if k != "method"}}


def _print_results(results: Sequence[simulator.TableResult], workers: Sequence[int]) -> None:
    baselines: list[simulator.TableResult] = []
    shards: list[simulator.TableResult] = []
    for result in results:
        (baselines if simulator.METHODS[result.method].baseline else shards).append(result)
    _print_table("iteration time with tables (ms)", workers, results, _time)
    _print_table("computation stall (ms)", workers, results, lambda r: f"{r.exposed * 1e3:.1f}")
    if not baselines or not shards:
        return
    best = {count: _shortest(baselines, count) for count in workers}
    rows = [["best sharded", *(f"{best[n] / _shortest(shards, n):.3f}" for n in workers)]]
    _print_table(
        "speedup over the best baseline",
        workers,
        shards,
        lambda r: f"{best[r.workers] / r.iteration_time:.3f}",
        rows,
    )


def _shortest(results: Sequence[simulator.TableResult], workers: int) -> float:
    return min(result.iteration_time for result in results if result.workers == workers)


def _time(result: simulator.TableResult) -> str:
    return f"{result.iteration_time * 1e3:.1f}"


def _print_table(
    title: str,
    workers: Sequence[int],
    results: Sequence[simulator.TableResult],
    cell: Callable[[simulator.TableResult], str],
    more: Sequence[list[str]] = (),
) -> None:
    cells: dict[str, list[str]] = {}
    for result in results:
        cells.setdefault(result.method, []).append(cell(result))
    rows = [["method", *map(str, workers)], *([key, *values] for key, values in cells.items())]
    print(f"\n{title}\n{table([*rows, *more], equal_widths=True)}")
