# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The ways to exchange tables that are compared, and the ranks that exchange them so."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfdear.benchmarks import link, peers
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.settings import Settings
from tfdear.planning.cost_model import LinearCost
from tfdear.planning.embedding_costs import ExchangeCosts

_TIMEOUT = 600.0


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to exchange tables.

    Args:
        exchange: What `ranks/table_steps.py` does with tables; "horovod": what Horovod does.
        description: What it is, for readers.
        variables: Of its job's environment. Methods with the same ones share their processes.
        raw: Whether rows of the same id travel one by one.
        prior_only: Whether nothing waits for gradients of rows but those that are prior.
        early: Whether vectors of other rows come before the step that needs them.
        baseline: Whether it is one that sharded tables are compared with.
    """

    exchange: str
    description: str
    variables: Mapping[str, str]
    raw: bool = False
    prior_only: bool = False
    early: bool = False
    baseline: bool = True

    @property
    def schedule(self) -> str:
        """That of the dense gradients."""
        of_others = {"slices": "bytescheduler", "horovod": "wfbp"}
        return self.variables.get("TFDEAR_SCHEDULE", of_others.get(self.exchange, "dear"))

    @property
    def foreign(self) -> bool:
        """Whether another framework's ranks do it."""
        return self.exchange == "horovod"


# Layers of baselines wait in threads of TensorFlow.
_THREADS = {"TF_NUM_INTEROP_THREADS": "6"}
_BY_PRIORITY = {**_THREADS, "TFDEAR_EMBEDDING_SCHEDULE": "none"}
# Dense gradients as other frameworks send them.
_IN_ORDER = {**_BY_PRIORITY, "TFDEAR_SCHEDULE": "wfbp"}
METHODS = {
    "dense": Method("all_reduce", "all-reduce of whole tables", _BY_PRIORITY),
    "byteps": Method(
        "slices", "BytePS-like: all gradients in slices by priority, over servers", _BY_PRIORITY
    ),
    "all_gather_raw": Method(
        "all_gather", "Horovod-like: a row for each id, to all ranks", _BY_PRIORITY, raw=True
    ),
    "horovod": Method(
        "horovod", "Horovod: a row for each id, to all ranks; dense gradients in order", _THREADS
    ),
    "all_gather": Method("all_gather", "a row for each different id, to all ranks", _BY_PRIORITY),
    "parameter_servers_1": Method("servers 1", "Parallax-like with one server of rows", _IN_ORDER),
    "parameter_servers_2": Method("servers 2", "Parallax-like with two servers of rows", _IN_ORDER),
    "parameter_servers": Method(
        "servers", "Parallax-like with a server of rows for each rank", _IN_ORDER
    ),
    "block_sparse": Method(
        "blocks", "OmniReduce-like: sums of blocks that are not zero", _IN_ORDER
    ),
    "all_to_all": Method(
        "all_to_all", "tables divided among the ranks, without an order", _IN_ORDER, baseline=False
    ),
    "+horizontal": Method(
        "all_to_all",
        "and rows and vectors overtake dense gradients",
        {**_BY_PRIORITY, "TFDEAR_EMBEDDING_SCHEDULE": "horizontal"},
        baseline=False,
    ),
    "+vertical": Method(
        "all_to_all late",
        "EmbRace: and rows that no next batch needs come last",
        {**_BY_PRIORITY, "TFDEAR_EMBEDDING_SCHEDULE": "2d"},
        prior_only=True,
        baseline=False,
    ),
    "+early": Method(
        "all_to_all",
        "and vectors that the step does not change come before it ends",
        {**_BY_PRIORITY, "TFDEAR_EMBEDDING_SCHEDULE": "2d"},
        prior_only=True,
        early=True,
        baseline=False,
    ),
}


@dataclasses.dataclass(frozen=True)
class Computation:
    """A layer that sleeps."""

    forward: float = 0.0
    backward: float = 0.0
    sizes: Sequence[int] = ()  # Elements of its weights.


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A table, and the layer that needs its vectors."""

    rows: int
    columns: int
    layer: int


@dataclasses.dataclass
class Result:
    """What was measured of a method; times in seconds."""

    method: str
    seconds: list[float] = dataclasses.field(default_factory=list)  # Of steps.
    # Of a step, by kind: each exchange on the rank that came to it last, so without waiting; with
    # servers of rows on the slowest rank.
    exchanges: list[dict[str, float]] = dataclasses.field(default_factory=list)
    sent: float = 0.0  # Bytes of the busiest rank in a step, headers included.

    @property
    def median(self) -> float:
        """Median time of a step."""
        return statistics.median(self.seconds)

    @property
    def communication(self) -> float:
        """Median time of a step's exchanges, one after the other."""
        return statistics.median(sum(kinds.values()) for kinds in self.exchanges)


class Jobs:
    """The processes of some methods, which take turns. Use it in a `with` statement.

    A method of Horovod is left out, with a word, where `horovod_python`, a Python, has none.
    """

    def __init__(self, settings: Settings, methods: Sequence[str], horovod_python: str | None):
        self._settings = settings
        self._wanted = methods
        self._horovod_python = horovod_python
        self._stack = contextlib.ExitStack()
        self._groups: dict[str, Group] = {}

    def __enter__(self) -> Jobs:
        with contextlib.ExitStack() as stack:  # Ends what was started where something does not.
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def _start(self, stack: contextlib.ExitStack) -> None:
        settings = self._settings
        groups: dict[tuple[tuple[str, str], ...], Group] = {}
        for name in self._wanted:
            variables = METHODS[name].variables
            if METHODS[name].foreign:
                peer = peers.horovod(self._horovod_python, variables)
                opened = peer.open(stack, settings)
                if opened is not None:
                    self._groups[name] = opened
                continue
            key = tuple(sorted(variables.items()))
            if key not in groups:
                group = Group("with_tfdear", sys.executable, settings.lab, settings.pin, variables)
                groups[key] = stack.enter_context(group)
            self._groups[name] = groups[key]

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def methods(self) -> list[str]:
        """Names of the methods that are there."""
        return list(self._groups)

    def costs(self) -> ExchangeCosts:
        """What exchanges cost here, once a model is built: as every job measures its links.

        One of the methods must be tfdear's.
        """
        own = next(name for name in self._groups if not METHODS[name].foreign)
        collectives = link.measure(self._groups[own], "costs_beside_tables")
        # An all-gather of n bytes sends (P - 1) / P of them, in P - 1 messages.
        ranks = len(self._settings.lab.nodes)
        gather = collectives.all_gather
        return ExchangeCosts(collectives, LinearCost(gather.a, gather.b * ranks / (ranks - 1)))

    def build(self, name: str, layers: Sequence[Computation], tables: Sequence[Lookup]) -> None:
        """Makes the model of a method."""
        self._groups[name].call(
            "build_tables",
            _TIMEOUT,
            name=name,
            exchange=METHODS[name].exchange,
            layers=[dataclasses.asdict(layer) for layer in layers],
            tables=[dataclasses.asdict(table) for table in tables],
            addresses=[node.address for node in self._settings.lab.nodes],
        )

    def measure(
        self, ids: Mapping[str, list[dict[str, Any]]], warm_up: int = 1
    ) -> dict[str, Result]:
        """Makes steps of some methods, which take turns.

        Args:
            ids: By method, the ids of its tables, as `ranks/table_steps.py` takes them.
            warm_up: Steps before the first turn. Defaults to 1.
        """
        settings, lab = self._settings, self._settings.lab
        results = {name: Result(name) for name in ids}
        arguments = {name: {"name": name, "ids": ids[name]} for name in ids}
        for name in ids:  # Makes its graph, and warms up memory and connections.
            self._groups[name].call("run_tables", _TIMEOUT, steps=warm_up, **arguments[name])
        for _ in range(settings.repeats):
            for name, result in results.items():
                before = lab.bytes_sent()
                of_ranks = self._groups[name].call(
                    "run_tables", _TIMEOUT, steps=settings.iterations, **arguments[name]
                )
                sent = lab.most_sent_since(before) / (settings.iterations + 1)
                result.sent = min(result.sent or sent, sent)
                # Ranks wait for each other, so that they take as long but for single steps.
                means = [statistics.fmean(answer["seconds"]) for answer in of_ranks]
                result.seconds.append(max(means))
                # One step more is not timed.
                exchanges = [answer["exchanges"] for answer in of_ranks]
                on_servers = METHODS[name].exchange.startswith("servers")
                kinds = _of_slowest(exchanges) if on_servers else _of_last(exchanges)
                steps = settings.iterations + 1
                result.exchanges.append({kind: total / steps for kind, total in kinds.items()})
        return results


def _of_slowest(of_ranks: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """The sums of all exchanges by kind, of the rank that has the longest ones.

    A rank beside the only server sends nothing over the line: it says nothing about the others.
    """
    sums = [{kind: sum(times) for kind, times in exchanges.items()} for exchanges in of_ranks]
    return max(sums, key=lambda kinds: sum(kinds.values()))


def _of_last(of_ranks: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """The sums of all exchanges by kind, each as long as on the rank where it was shortest."""
    sums = {}
    for kind in of_ranks[0]:
        times = [exchanges.get(kind, []) for exchanges in of_ranks]
        if len({len(of_rank) for of_rank in times}) > 1:
            sums[kind] = min(map(sum, times))
        else:
            sums[kind] = sum(map(min, zip(*times, strict=True)))
    return sums
