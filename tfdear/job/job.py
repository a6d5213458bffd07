# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""This process among the others of its job: what is started, and in which order."""

from absl import logging

import tfdear
from tfdear.engine import engine as engine_module
from tfdear.engine import plan as engine_plan
from tfdear.fusion import planner
from tfdear.job import compressed_buckets, groups, links, seeds
from tfdear.job import options as options_module
from tfdear.job import tuner as tuner_module
from tfdear.monitor import exit_handlers
from tfdear.monitor import monitor as monitor_module
from tfdear.planning import cost_model
from tfdear.rendezvous import cluster as cluster_module
from tfdear.rendezvous import cluster_resolver as cluster_resolver_module
from tfdear.rendezvous import nodes
from tfdear.rendezvous import rendezvous as rendezvous_module

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
        self.monitor: monitor_module.Monitor | None = None
        # Decides about fusion, on rank 0.
        self.tuner: tuner_module.Tuner | None = None
        # Which buckets are compressed, if any.
        self.sparse_buckets: engine_plan.SparseBuckets | None = None
        if self.world_size == 1:
            self.node = nodes.Node(node_rank=0, num_nodes=1, local_rank=0, local_size=1)
            self.groups = groups.ProcessGroups(options, 0, [self.node])
            self.links = links.Links(self.groups)
            self.cluster_resolver = cluster_resolver or cluster_resolver_module.make(cluster)
            return
        self._rendezvous = rendezvous_module.connect(
            cluster,
            timeout=options.init_timeout,
            heartbeat=options.heartbeat,
            common={
                "tfdear": tfdear.__version__,
                "backend": "gloo",
                "device": "CPU",
                **options.shared(),
                # Ranks that record one measure their clocks together.
                options_module.TIMELINE_VARIABLE: (
                    "set" if options_module.timeline_file() else "not set"
                ),
            },
        )
        self.node = self._rendezvous.nodes[self.rank]
        self.cluster_resolver = cluster_resolver or cluster_resolver_module.make(
            cluster, self._rendezvous.hosts
        )
        self.groups = groups.ProcessGroups(options, self.rank, self._rendezvous.nodes)
        self.links = links.Links(self.groups)
        # From here on a rank that fails or dies is named by the others.
        self.monitor = monitor_module.Monitor(
            self._rendezvous,
            self.engine,
            self.groups.names_and_members(),
            heartbeat=options.heartbeat,
            timeout=options.timeout,
            stall_seconds=options_module.stall_seconds(),
            cleanup_timeout=options.cleanup_timeout,
        )
        self.monitor.start()
        exit_handlers.install(self.monitor, drain=self._drain)
        try:
            self._start(self.monitor)
        except Exception as error:
            self.monitor.report_failure(f"{type(error).__name__}: {error}"[:2000])
            raise

    def _start(self, monitor: monitor_module.Monitor) -> None:
        """What ranks do together once they have met, watched by the monitor."""
        options = self.options
        self.groups.connect(
            self.engine, self._rendezvous.listen_address, self.exchange, monitor.cause_of
        )
        seeds.share(self.exchange)
        self.engine.start(
            _FIRST_SCHEDULE[options.schedule],
            _ALGORITHM[options.collective],
            planner.first_bucket_bytes(options.fusion, options.compression is not None),
            options.max_delay_ms,
            first_agreement=tuner_module.FIRST_AGREEMENT,
        )
        self.links.measure(self.engine, self.node.num_nodes)
        if options.compression is not None:
            self.sparse_buckets = compressed_buckets.agree(
                options.compression,
                self.groups.sparse_levels,
                self.links,
                self.engine,
                self.exchange,
                self._warn_uncompressed,
            )
        if self.rank == 0:
            self.tuner = tuner_module.Tuner(
                self.engine,
                engine_module.EventReader(),
                options.fusion,
                options.planned_schedule,
                self.costs,
                tree=options.collective == "tree",
                levels=self.groups.levels,
                sparse_buckets=self.sparse_buckets,
                trace_file=options_module.trace_file(),
            )

    def exchange(self, value: str) -> list[str]:
        """Every rank's value, in the order of the ranks. All ranks must call it alike."""
        return self._rendezvous.exchange("exchange", value, timeout=self.options.init_timeout)

    def exchange_integers(self, value: int) -> list[int]:
        """As `exchange`, for integers."""
        return [int(text) for text in self.exchange(str(value))]

    @property
    def compresses(self) -> bool:
        """Whether buckets of gradients can be compressed: there is a network for it."""
        return self.sparse_buckets is not None

    @property
    def costs(self) -> cost_model.CommunicationCosts | None:
        """What a reduction of gradients costs, as measured by this rank at the start."""
        return self.links.of_gradients(self.options.compression if self.compresses else None)

    def _warn_uncompressed(self, reason: str) -> None:
        if self.rank == 0:
            logging.warning("tfdear: %r has no effect: %s.", self.options.compression, reason)

    def _drain(self) -> None:
        self.engine.synchronize(self.options.timeout)
