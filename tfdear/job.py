# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""This process's place in the job: cluster, rendezvous, engine and monitor, started together."""

import dataclasses
import functools
import hashlib
import json
import os
import pickle
import random
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

import tfdear
from tfdear import (
    _tf_private,
    compression,
    cost_model,
    engine_plan,
    errors,
    link_costs,
    planner,
    timeline_recorder,
    topology,
)
from tfdear import cluster as cluster_module
from tfdear import cluster_resolver as cluster_resolver_module
from tfdear import engine as engine_module
from tfdear import monitor as monitor_module
from tfdear import options as options_module
from tfdear import rendezvous as rendezvous_module
from tfdear import tuner as tuner_module

_Lane = engine_module.Lane

# What the engine does before the first plan; "bytescheduler" is an order of partitioned buckets.
_FIRST_SCHEDULE = {
    "dear": engine_module.Schedule.DEAR,
    "wfbp": engine_module.Schedule.WFBP,
    "sequential": engine_module.Schedule.SEQUENTIAL,
    "bytescheduler": engine_module.Schedule.WFBP,
}
_ALGORITHM = {
    "ring": engine_module.Algorithm.SHARDS,
    "tree": engine_module.Algorithm.TREE,
    "hierarchical": engine_module.Algorithm.LEVELS,
    "torus2d": engine_module.Algorithm.LEVELS,
}
# The groups of the levels, in the order of `topology.Grid`: rows and columns.
_LEVELS = (_Lane.GRADIENTS_INTRA, _Lane.GRADIENTS_INTER)
# All that gradients travel in.
_GRADIENT_LANES = (_Lane.GRADIENTS, *_LEVELS)


class Job:
    """What a strategy knows of its own process and of the others.

    Args:
        options: The strategy's options.
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`, or None.

    Raises:
        TfdearError: The ranks do not fit together, or did not all come within the deadline.
        ValueError: The environment describes no valid cluster, or not one for the collective.
    """

    def __init__(self, options: options_module.DearOptions, cluster_resolver=None):
        self.options = options
        self.engine = engine_module.Engine()
        cluster = cluster_module.discover(cluster_resolver)
        self.source = cluster.source
        self.rank = cluster.rank
        self.world_size = cluster.world_size
        self.monitor = None
        # What carries the messages of each process group; empty for a rank alone.
        self.transports: dict[_Lane, engine_module.Transport] = {}
        # What collectives cost this rank, by link class, and the decisions about fusion (rank 0).
        self.link_costs: dict[str, cost_model.CommunicationCosts] = {}
        self.tuner: tuner_module.Tuner | None = None
        # Where gradients are summed in two levels: which ranks form them.
        self.grid: topology.Grid | None = None
        # Where they are compressed: the levels of that, and which buckets.
        self._sparse_grid: topology.Grid | None = None
        self._sparse_buckets: engine_plan.SparseBuckets | None = None
        if self.world_size == 1:
            self.local_rank = self.node_rank = 0
            self.local_size = self.num_nodes = 1
            self.cluster_resolver = cluster_resolver or cluster_resolver_module.make(cluster)
            return
        self._rendezvous = rendezvous_module.connect(
            cluster,
            timeout=options.init_timeout,
            heartbeat=options.heartbeat,
            facts={
                "tfdear": tfdear.__version__,
                "backend": "gloo",
                "device": "CPU",
                **options.shared(),
                # Ranks that record one measure their clocks together.
                timeline_recorder.VARIABLE: (
                    "set" if timeline_recorder.requested_file() else "not set"
                ),
            },
        )
        self.local_rank = self._rendezvous.local_rank
        self.local_size = self._rendezvous.local_size
        self.node_rank = self._rendezvous.node_rank
        self.num_nodes = self._rendezvous.num_nodes
        self.cluster_resolver = cluster_resolver or cluster_resolver_module.make(
            cluster, self._rendezvous.hosts
        )
        self._group_members = self._choose_groups()
        # From here on a rank that fails or dies is named by the others.
        self.monitor = monitor_module.Monitor(
            self._rendezvous,
            self.engine,
            {lane.name.lower(): ranks for lane, ranks in self._group_members.items()},
            heartbeat=options.heartbeat,
            timeout=options.timeout,
            cleanup_timeout=options.cleanup_timeout,
        )
        self.monitor.start()
        monitor_module.install_exit_handlers(self.monitor, drain=self._drain)
        try:
            self._start()
        except Exception as error:
            self.monitor.report_failure(f"{type(error).__name__}: {error}"[:2000])
            raise

    def _start(self) -> None:
        """What ranks do together once they have met, watched by the monitor."""
        options = self.options
        self._connect_groups(self._rendezvous.listen_address)
        self._share_seed()
        self.engine.start(
            _FIRST_SCHEDULE[options.schedule],
            _ALGORITHM[options.collective],
            planner.first_bucket_bytes(options.fusion, options.compression is not None),
            options.max_delay_ms,
            first_agreement=tuner_module.FIRST_AGREEMENT,
        )
        self._measure_links()
        self._compress()
        if self.rank == 0:
            self.tuner = tuner_module.Tuner(
                self.engine,
                engine_module.EventReader(),
                options.fusion,
                options.planned_schedule,
                self.costs,
                tree=options.collective == "tree",
                levels=self.levels,
                sparse_buckets=self._sparse_buckets,
                trace_file=os.environ.get("TFDEAR_TRACE"),
            )

    def exchange(self, value: str) -> list[str]:
        """Every rank's value, in the order of the ranks. All ranks must call it alike."""
        return self._rendezvous.exchange("exchange", value, timeout=self.options.init_timeout)

    def exchange_integers(self, value: int) -> list[int]:
        """As `exchange`, for integers."""
        return [int(text) for text in self.exchange(str(value))]

    @property
    def levels(self) -> engine_plan.Levels | None:
        """The sizes of the two levels that gradients are summed in; None if they are not."""
        return None if self.grid is None else self.grid.levels

    @property
    def level_sizes(self) -> tuple[int, int]:
        """The same as numbers, ones where there are no levels."""
        grid = self.grid or self._sparse_grid
        return (1, 1) if grid is None else dataclasses.astuple(grid.levels)

    def _choose_groups(self) -> dict[_Lane, list[int]]:
        """The members of each process group, in the order of their ranks in it."""
        nodes = self._rendezvous.node_rank_of_rank
        local_ranks = self._rendezvous.local_rank_of_rank
        everyone = list(range(self.world_size))
        groups = {
            _Lane.GRADIENTS: everyone,
            _Lane.CONTROL: everyone,
            _Lane.INTRA_NODE: [r for r in everyone if nodes[r] == self.node_rank],
            _Lane.INTER_NODE: [r for r in everyone if local_ranks[r] == self.local_rank],
        }
        in_levels = self.options.collective in topology.COLLECTIVES
        option = self.options.compression
        compressed = option is not None and option.hierarchical
        if in_levels or compressed:
            grid = topology.make_grid(
                self.options.collective if in_levels else "hierarchical", nodes
            )
            if in_levels and compressed and not grid.nodes:
                raise ValueError(
                    f"collective={self.options.collective!r} arranges these {self.world_size} "
                    "ranks in rows that are not nodes, but compression sums within the nodes. Use "
                    'collective="ring" or "hierarchical", or MSTopK(..., hierarchical=False). '
                    f"Received: {self.num_nodes} nodes"
                )
            self.grid = grid if in_levels else None
            self._sparse_grid = grid if compressed else None
            row, column = grid.row_of(self.rank), grid.column_of(self.rank)
            if len(row) > 1:
                groups[_Lane.GRADIENTS_INTRA] = row
            if len(column) > 1:
                groups[_Lane.GRADIENTS_INTER] = column
        return groups

    @property
    def _lanes_on_one_node(self) -> tuple[_Lane, ...]:
        """Lanes whose members share a node; the same on all ranks."""
        lanes = [_Lane.INTRA_NODE]
        if self.num_nodes == 1:
            lanes += [_Lane.GRADIENTS, _Lane.CONTROL]
        grid = self.grid or self._sparse_grid
        if grid is not None and grid.nodes:
            lanes.append(_Lane.GRADIENTS_INTRA)
        return tuple(lanes)

    def _connect_groups(self, bind_address: str) -> None:
        nodes = self._rendezvous.node_rank_of_rank
        for lane, ranks in self._group_members.items():
            # In a torus, rows and columns are rings, but for rows that share memory.
            ring = self.options.collective == "torus2d" and lane in _LEVELS
            open_group = functools.partial(
                self.engine.open_group,
                lane,
                lane.name.lower(),
                ranks,
                self.rank,
                bind_address,
                self.options.timeout,
                direct=not ring and len({nodes[r] for r in ranks}) in (1, len(ranks)),
                # What the others carry is too short to be spread.
                connections=self.options.connections if lane in _GRADIENT_LANES else 1,
            )
            if lane in self._lanes_on_one_node:
                self._connect_on_one_node(lane, ranks, open_group)
            else:
                self._connect_group(lane, ranks, open_group())

    def _connect_group(self, lane: _Lane, ranks: list[int], blob: bytes) -> None:
        self._connect(lane, ranks, self._exchange_blobs(blob))
        self.transports[lane] = engine_module.Transport.GLOO

    def _connect(self, lane: _Lane, ranks: list[int], blobs: list[bytes]) -> None:
        assert self.monitor is not None
        try:
            self.engine.connect_group(lane, [blobs[r] for r in ranks])
        except errors.TfdearError as error:
            raise self.monitor.cause_of(error) from None

    def _connect_on_one_node(
        self, lane: _Lane, ranks: list[int], open_group: Callable[..., bytes]
    ) -> None:
        """Connects members of one node through shared memory if all of them can, else by Gloo."""
        shared_memory = engine_module.Transport.SHARED_MEMORY
        refusal = "" if self.options.shared_memory else "switched off"
        blob = b""
        if not refusal:
            try:
                blob = open_group(transport=shared_memory)
            except errors.TfdearError as error:
                refusal = str(error)
        blobs = self._exchange_blobs(blob)
        if not refusal:
            try:
                self.engine.probe_group(lane, [blobs[r] for r in ranks])
            except errors.TfdearError as error:
                refusal = str(error)
        refusals = self.exchange(refusal)
        shared = not any(refusals[r] for r in ranks)
        if shared:
            self._connect(lane, ranks, blobs)
            self.transports[lane] = shared_memory
        if not any(refusals):
            return
        # Groups elsewhere may have refused: every rank takes part in every exchange.
        if shared:
            self._exchange_blobs(b"")
            return
        logging.info(
            "tfdear: process group %r does without shared memory: %s", lane.name.lower(), refusals
        )
        self._connect_group(lane, ranks, open_group())

    def _exchange_blobs(self, blob: bytes) -> list[bytes]:
        return [bytes.fromhex(text) for text in self.exchange(blob.hex())]

    @property
    def compresses(self) -> bool:
        """Whether buckets of gradients can be compressed: there is a network for it."""
        return self._sparse_buckets is not None

    def _compress(self) -> None:
        """Tells the engine which buckets to compress: by rank 0's costs, as all must agree."""
        option = self.options.compression
        if option is None:
            return
        levels = self._sparse_levels
        if levels.inter == 1:
            self._warn_uncompressed("all ranks are on one node, where nothing is compressed")
            return
        measured = json.dumps(dataclasses.asdict(self._costs_of_levels()[1]))
        outer = cost_model.CommunicationCosts(
            **{
                name: cost_model.LinearCost(**cost)
                for name, cost in json.loads(self.exchange(measured)[0]).items()
            }
        )
        smallest = compression.smallest_bucket(option, outer, levels.intra, levels.inter)
        warm_up = option.warm_up()
        at_least = -1 if smallest is None else -(-smallest // 4)  # Elements.
        self.engine.compress(
            exchange=option.exchange_among(levels.inter),
            values=option.values,
            error_feedback=option.error_feedback,
            momentum=option.momentum if option.error_feedback else 0.0,
            samplings=option.samplings or 0,
            warm_up_steps=warm_up.steps,
            first_density=warm_up.first_density,
            only_optimizers_warm_up=option.warm_up_steps is None,
            at_least=at_least,
            hierarchical=option.hierarchical,
        )
        self.engine.set_density(option.density)
        if at_least < 0:
            self._warn_uncompressed(
                "by the costs that were measured, no size of bucket gains by it; say with "
                "`dense_below` from how many bytes buckets are to be compressed"
            )
        else:
            self._sparse_buckets = engine_plan.SparseBuckets(
                at_least, levels if option.hierarchical else None
            )

    def _warn_uncompressed(self, reason: str) -> None:
        if self.rank == 0:
            logging.warning(
                "tfdear: %r has no effect: %s.",
                self.options.compression,
                reason,
            )

    @property
    def _sparse_levels(self) -> engine_plan.Levels:
        """Ranks that sum before they select, and ranks that exchange what they selected."""
        if self._sparse_grid is None:
            return engine_plan.Levels(intra=1, inter=self.world_size)
        return self._sparse_grid.levels

    def _costs_of_levels(
        self,
    ) -> tuple[cost_model.CommunicationCosts | None, cost_model.CommunicationCosts]:
        """What was measured within and between the nodes; the first is None for one rank each."""
        levels, world = self._sparse_levels, self.link_costs["world"]
        if levels.intra == 1:
            return None, world
        inner, outer = (self.link_costs[name] for name in self._link_names)
        return inner, outer

    @property
    def costs(self) -> cost_model.CommunicationCosts | None:
        """What a reduction of gradients costs, as measured by this rank at the start."""
        if self.compresses:
            assert self.options.compression is not None
            levels, costs = self._sparse_levels, self._costs_of_levels()
            return compression.costs(self.options.compression, *costs, levels.intra, levels.inter)
        if self.grid is None:
            return self.link_costs.get("world")
        inner, outer = (self.link_costs.get(name) for name in self._link_names)
        return cost_model.levels(inner, outer, self.grid.levels.intra)

    @property
    def _link_names(self) -> tuple[str, str]:
        nodes = self.grid is None or self.grid.nodes
        return ("intra_node", "inter_node") if nodes else ("rows", "columns")

    def _measure_links(self) -> None:
        self.link_costs["world"] = link_costs.measure(self.engine, _Lane.GRADIENTS)
        lanes = (_Lane.INTRA_NODE, _Lane.INTER_NODE) if self.grid is None else _LEVELS
        # Groups of one have no links, and a group of all is measured unless gradients travel there.
        # All ranks must decide alike.
        if self.grid is None and self.num_nodes in (1, self.world_size):
            return
        for name, lane in zip(self._link_names, lanes, strict=True):
            if len(self._group_members.get(lane, ())) > 1:
                # All columns of a grid use the nodes' links at once, and so they are measured.
                together = _Lane.CONTROL if self.grid or self._sparse_grid else None
                self.link_costs[name] = link_costs.measure(self.engine, lane, together)

    def _share_seed(self) -> None:
        # Datasets are shuffled on every rank: in the same order, or examples are lost.
        seed = int(self.exchange(str(random.SystemRandom().randrange(1 << 31)))[0])
        if _tf_private.context.global_seed() is None:
            tf.random.set_seed(seed)
        # Python's generator shuffles `keras.utils.PyDataset`s, numpy's many users' own data. States
        # that agree were seeded by the script and are left alone.
        self._agree_on_state(random.getstate(), lambda: random.seed(seed))
        self._agree_on_state(np.random.get_state(legacy=False), lambda: np.random.seed(seed))

    def _agree_on_state(self, state: object, reseed: Callable[[], None]) -> None:
        digest = hashlib.sha256(pickle.dumps(state)).hexdigest()
        if len(set(self.exchange(digest))) > 1:
            reseed()

    def _drain(self) -> None:
        self.engine.synchronize(self.options.timeout)
