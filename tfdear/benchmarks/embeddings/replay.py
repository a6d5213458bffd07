# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ways to exchange the tables of a model whose computation sleeps as long as a trace says.

All else is real: a Keras model under the strategy, its tables, gradients, updates and the line.
Rows that no batch names are left out of tables that are looked up: they cost nothing there.

Reference: Li et al., "EmbRace", ICPP 2022, section 5.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdear.benchmarks import report
from tfdear.benchmarks.embeddings import prediction
from tfdear.benchmarks.embeddings.methods import METHODS, Computation, Jobs, Lookup, Result
from tfdear.benchmarks.ranks import drawn_ids
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of
from tfdear.planning import partition, row_counts
from tfdear.planning.embedding_costs import TableTraffic
from tfdear.planning.partition import ID_BYTES
from tfdear.planning.table import Table
from tfdear.planning.trace import Trace

# Until buckets are planned by what was measured.
_WARM_UP_STEPS = 8
# Numbers of ranks.
_SIMULATED = (2, 4, 8, 16)


def measure(
    settings: Settings,
    *,
    methods: Sequence[str],
    trace: Trace,
    scale: float,
    ratio: float,
    counts: tuple[int, int, int] | None = None,
    horovod_python: str | None = None,
) -> dict[str, Any]:
    """Replays a model with every method, and prints a table.

    Args:
        settings: Where and how often; an iteration is a step.
        methods: Names of `METHODS`, one of tfdear's among them. That of Horovod is left out where
            it is not there.
        trace: A model with tables.
        scale: What the sizes of dense gradients are multiplied by. With 0 there are none, and no
            computation: all that is measured is the traffic of tables.
        ratio: Computation over the time that the line needs for dense gradients.
        counts: Rows of a rank's batch in place of the trace's, of all tables together: original,
            different ones and prior ones, these with as many ranks as there are here.
        horovod_python: A Python that has Horovod, or None.

    Returns:
        What the JSON file holds.
    """
    ranks = len(settings.lab.nodes)
    tables = [_counted(table, ranks, len(trace.tables), counts) for table in trace.tables]
    trace = dataclasses.replace(trace, tables=tuple(tables))
    with Jobs(settings, methods, horovod_python) as jobs:
        methods = jobs.methods
        costs = jobs.costs()
        trace = _scaled(trace, scale)
        dense_bytes = _dense_bytes(trace)
        computation = 0.0
        if dense_bytes:
            computation = ratio * costs.collectives.all_reduce.seconds(dense_bytes)
        trace = trace.scaled(computation / (trace.forward + trace.backward))
        layers, places = _layers(trace)
        for name in methods:
            jobs.build(name, layers, _lookups(name, tables, places, ranks))
        results = jobs.measure({name: _ids(name, tables) for name in methods}, _WARM_UP_STEPS)
    network = prediction.network_of(costs, ranks)
    workers = sorted({*_SIMULATED, ranks})
    schedules = {name: METHODS[name].schedule for name in methods}
    predicted = prediction.iteration_times(trace, network, workers, schedules)
    least = {name: _least_bytes(name, dense_bytes, tables, ranks) for name in methods}
    shortest = {
        name: _Shortest(
            tuple(_windows(name, layers, places, tables, ranks)),
            least[name],
            sum(_exposed_bytes(name, table, ranks) for table in tables),
        )
        for name in methods
        if METHODS[name].exchange.startswith("all_to_all")
    }
    for table in tables:
        settings.tell(
            f"{table.layer}: {table.rows} x {table.columns}; rows of a rank's batch: {table.ids}, "
            f"different {table.coalesced}, prior {table.prior}"
        )
    settings.tell(
        f"{trace.name} on {ranks} ranks: dense gradients {dense_bytes / 1e6:.1f} MB (x {scale:g}), "
        f"computation {computation:.3f} s"
    )
    _print(settings, results, least, shortest, predicted, computation, ranks * tables[0].ids)
    _print_scaling(settings, predicted, workers, tables[0].ids)
    return {
        "benchmark": "embeddings replay",
        "trace": trace.name,
        "ranks": ranks,
        "rate_bits_per_second": settings.lab.bits_per_second,
        "scale": scale,
        "dense_bytes": dense_bytes,
        "computation": computation,
        "costs": dataclasses.asdict(costs),
        "tables": [dataclasses.asdict(table) for table in tables],
        "results": [
            {
                **vars(result),
                "description": METHODS[name].description,
                "median": result.median,
                "communication": result.communication,
                "stall": result.median - computation,
                "least_bytes": least[name],
                "exposed_bytes": shortest[name].exposed_bytes if name in shortest else None,
                "predicted": predicted.get(name),
            }
            for name, result in results.items()
        ],
    }


def _counted(table: Table, ranks: int, tables: int, counts: tuple[int, int, int] | None) -> Table:
    """The table with the rows of a batch that belong to this number of ranks, and without bags."""
    table = dataclasses.replace(table, bags=0, tokens=None)
    if counts is None:
        prior = row_counts.fit(table).prior(ranks)
        return dataclasses.replace(table, prior=prior, workers=ranks)
    ids, coalesced, prior = (round(count / tables) for count in counts)
    return dataclasses.replace(table, ids=ids, coalesced=coalesced, prior=prior, workers=ranks)


def _scaled(trace: Trace, scale: float) -> Trace:
    apart = {table.layer for table in trace.tables}
    layers = (
        layer
        if layer.name in apart
        else dataclasses.replace(layer, bytes=4 * math.ceil(layer.bytes * scale / 4))
        for layer in trace.layers
    )
    return dataclasses.replace(trace, layers=tuple(layers))


def _dense_bytes(trace: Trace) -> int:
    apart = {table.layer for table in trace.tables}
    return sum(layer.bytes for layer in trace.layers if layer.name not in apart)


def _layers(trace: Trace) -> tuple[list[Computation], dict[str, int]]:
    """The layers that sleep, and the places of those that need a table's vectors.

    The times of a layer stand with the last of its tensors.
    """
    apart = {table.layer for table in trace.tables}
    layers: list[Computation] = []
    places: dict[str, int] = {}
    sizes: list[int] = []
    for layer in trace.layers:
        if layer.name in apart:
            places[layer.name] = len(layers)
        elif layer.bytes:
            sizes.append(layer.bytes // 4)
        if layer.name in apart or layer.forward or layer.backward or layer is trace.layers[-1]:
            layers.append(Computation(layer.forward, layer.backward, tuple(sizes)))
            sizes = []
    return layers, places


def _counts(name: str, table: Table) -> tuple[int, int, int]:
    """The ids of a rank, the different ones and the prior ones, as they travel."""
    return table.ids, table.ids if METHODS[name].raw else table.coalesced, table.prior


def _lookups(
    name: str, tables: Sequence[Table], places: Mapping[str, int], ranks: int
) -> list[Lookup]:
    whole = METHODS[name].exchange in ("all_reduce", "slices")
    return [
        Lookup(
            table.rows if whole else drawn_ids.rows_of(*_counts(name, table)[1:], ranks),
            table.columns,
            places[table.layer],
        )
        for table in tables
    ]


def _ids(name: str, tables: Sequence[Table]) -> list[dict[str, Any]]:
    names = ("ids", "coalesced", "prior")
    return [
        {"function": "draw", **dict(zip(names, _counts(name, table), strict=True))}
        for table in tables
    ]


def _least_bytes(name: str, dense_bytes: int, tables: Sequence[Table], ranks: int) -> float:
    """What a rank has to send in a step, without headers."""
    total = 2 * (ranks - 1) / ranks * dense_bytes
    exchange = METHODS[name].exchange
    for table in tables:
        rows = _counts(name, table)[1]
        values = 4 * rows * table.columns
        holders = partition.choose("auto", table.rows, table.columns, ranks)
        traffic = TableTraffic(table, ranks, holders)
        if exchange == "all_gather":
            total += (ranks - 1) * traffic.gathered(rows)
        elif exchange == "horovod":
            # Rows of the same id one by one, with indices of the ids' type.
            total += (ranks - 1) * table.ids * (4 * table.columns + ID_BYTES)
        elif exchange.startswith("servers"):
            servers = min(int(exchange.partition(" ")[2] or ranks), ranks)
            # The vectors of a server's rows to all others, gradients to the other servers.
            total += values * max(1.0 if servers < ranks else 0.0, (ranks + servers - 2) / servers)
        elif exchange in ("all_reduce", "slices"):
            total += 2 * (ranks - 1) / ranks * 4 * table.rows * table.columns
        else:
            total += traffic.vectors(rows) + traffic.gradients(rows) + traffic.ids()
    return total


def _exposed_bytes(name: str, table: Table, ranks: int) -> float:
    """Rows and vectors of a table that travel between its layer's backward and forward passes.

    Those of a table in the first layer are ready last and needed first: computation can hide
    nothing of them.
    """
    gradients = table.prior if METHODS[name].prior_only else table.coalesced
    vectors = table.prior if METHODS[name].early else table.coalesced
    holders = partition.choose("auto", table.rows, table.columns, ranks)
    traffic = TableTraffic(table, ranks, holders)
    return traffic.vectors(vectors) + traffic.gradients(gradients)


def _windows(
    name: str,
    layers: Sequence[Computation],
    places: Mapping[str, int],
    tables: Sequence[Table],
    ranks: int,
) -> Iterator[tuple[float, float]]:
    """For each layer, the seconds of both passes from it on, and bytes that cannot travel then.

    What layers before it, and it, exchange is ready when its backward pass is over, or later, and
    has arrived before its forward pass begins.
    """
    outside = 0.0
    for place, layer in enumerate(layers):
        outside += 2 * (ranks - 1) / ranks * 4 * sum(layer.sizes)
        for table in tables:
            if places[table.layer] == place:
                outside += _exposed_bytes(name, table, ranks)
        yield sum(behind.forward + behind.backward for behind in layers[place:]), outside


@dataclasses.dataclass(frozen=True)
class _Shortest:
    """What a step takes at least, whatever the order of its exchanges.

    Args:
        windows: What `_windows` says of each layer.
        bytes: That a rank has to send.
        exposed_bytes: Of these, of all tables, what travels between backward and forward passes.
    """

    windows: Sequence[tuple[float, float]]
    bytes: float
    exposed_bytes: float

    def bound(self, rate: float) -> float:
        """Seconds if the line, of so many bytes per second, or the computation never rests.

        As if all tables were in the first layer and every gradient could be hidden.
        """
        return max(self.windows[0][0] + self.exposed_bytes / rate, self.bytes / rate)

    def seconds(self, rate: float) -> float:
        """Seconds with what the layers have to wait for."""
        return max(self.bytes / rate, *(span + outside / rate for span, outside in self.windows))


def _print(
    settings: Settings,
    results: Mapping[str, Result],
    least: Mapping[str, float],
    shortest: Mapping[str, _Shortest],
    predicted: Mapping[str, Mapping[int, float]],
    computation: float,
    tokens: int,
) -> None:
    rate = settings.lab.bits_per_second
    baselines = [result.median for name, result in results.items() if METHODS[name].baseline]
    cells = []
    for name, result in results.items():
        payload_rate = None if rate is None else rate / 8 * report.PAYLOAD_SHARE
        simulated = predicted.get(name, {}).get(len(settings.lab.nodes))
        bound = seconds = ""
        if payload_rate is not None and name in shortest:
            bound = f"{shortest[name].bound(payload_rate):.3f}"
            seconds = f"{shortest[name].seconds(payload_rate):.3f}"
        of_best = "" if not baselines else f"{result.median / min(baselines):.3f}"
        cells.append(
            [
                ("method", name),
                ("step s", f"{result.median:.3f}"),
                ("slowest", f"{max(result.seconds):.3f}"),
                ("tokens/s", f"{tokens / result.median:.0f}"),
                ("stall s", f"{result.median - computation:.3f}"),
                ("of best baseline", of_best),
                ("exchanges s", f"{result.communication:.3f}"),
                ("bound s", bound),
                ("least s", seconds),
                ("line s", "" if payload_rate is None else f"{least[name] / payload_rate:.3f}"),
                ("predicted s", "" if simulated is None else f"{simulated:.3f}"),
                ("MB sent", f"{result.sent / 1e6:.1f}"),
                ("of least", f"{result.sent / least[name]:.3f}"),
            ]
        )
    settings.tell(table_of(cells))


def _print_scaling(
    settings: Settings,
    predicted: Mapping[str, Mapping[int, float]],
    workers: Sequence[int],
    tokens: int,
) -> None:
    """Simulated throughput, with the measured line and as much computation for each rank."""
    rows = []
    for name, times in predicted.items():
        cells = [(f"{count}", f"{count * tokens / times[count]:.0f}") for count in workers]
        rows.append([("tokens/s, simulated", name), *cells])
    if rows:
        settings.tell(f"\n{table_of(rows)}")
