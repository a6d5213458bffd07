# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""This process and the others of its job: what is started, and in which order."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

import tfdear
from tfdear import errors
from tfdear.base import descriptors
from tfdear.base.ending import Ending
from tfdear.engine import gloo_library
from tfdear.engine.engine import Engine
from tfdear.engine.event_reader import EventReader
from tfdear.engine.example_store import Connection
from tfdear.engine.first_plan import FirstPlan
from tfdear.engine.plan import PlanFormat, SparseBuckets
from tfdear.fusion import planner
from tfdear.job import compressed_buckets, seeds, table_costs
from tfdear.job.groups import ProcessGroups
from tfdear.job.last_end import LastEnd
from tfdear.job.links import Links
from tfdear.job.options import (
    CHECK_DATA_VARIABLE,
    TIMELINE_VARIABLE,
    DearOptions,
    checks_data,
    stall_seconds,
    timeline_file,
    trace_file,
    warn_seconds,
)
from tfdear.job.tuner import FIRST_AGREEMENT, Tuner
from tfdear.monitor import exit_handlers
from tfdear.monitor.monitor import Monitor
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.table_choice import TableChoice
from tfdear.rendezvous import connections, data_encryption, rendezvous
from tfdear.rendezvous.cluster import discover
from tfdear.rendezvous.cluster_resolver import make as make_cluster_resolver
from tfdear.rendezvous.nodes import Node

_current: "Job | None" = None


def current() -> "Job | None":
    """The job that this process has started last; None: it has started none, or closed it."""
    return _current


class _Closable(Protocol):
    def close(self) -> None: ...


class Job:
    """Starts what a strategy needs of its own process and of the others, and holds it.

    Raises a TfdearError if the ranks do not fit together or did not all come in time, or an earlier
    job of this process has failed; a ValueError if the environment describes no valid cluster, or
    not one for the collective, or a job of several ranks is open in this process.
    """

    def __init__(self, options: DearOptions, cluster_resolver=None):
        self.options = options
        self.engine = Engine()
        self.is_open = True
        # What is closed before the job is, where it is still in use.
        self._to_close: weakref.WeakSet[_Closable] = weakref.WeakSet()
        cluster = discover(cluster_resolver)
        if cluster.world_size > 1:
            _check_may_start(self.engine)
            descriptors.raise_limit()
            if options.backend == "gloo":
                gloo_library.load()  # Before the ranks meet.
            data_encryption.check(options.backend)
        self._cluster = cluster
        self._given_resolver = cluster_resolver
        self.source = cluster.source
        self.rank = cluster.rank
        self.world_size = cluster.world_size
        self.monitor: Monitor | None = None
        self.last_end: LastEnd | None = None
        # Plans tensor fusion, on rank 0.
        self.tuner: Tuner | None = None
        # Chooses exchanges of tables; None: a rank alone has none.
        self.table_choice: TableChoice | None = None
        # Which buckets are compressed, if any.
        self.sparse_buckets: SparseBuckets | None = None
        # Numbered on through all jobs of this process.
        self._first_event = EventReader.next_event()
        self.number = ""  # Which no other job of several ranks has.
        if self.world_size == 1:
            self.ending = Ending()
            self.node = Node(node_rank=0, num_nodes=1, local_rank=0, local_size=1)
            self.groups = ProcessGroups(options, 0, [self.node])
            self.links = Links(self.groups)
            self._make_current()
            return
        # Where a variable is wrong, this rank says so before the others wait for it.
        stalls = {"stall_seconds": stall_seconds(), "warn_seconds": warn_seconds()}
        self._rendezvous = rendezvous.connect(
            cluster,
            timeout=options.init_timeout,
            heartbeat=options.heartbeat,
            common={
                "tfdear": tfdear.__version__,
                "backend": "gloo" if options.backend == "gloo" else "tcp",
                "device": "CPU",
                "TensorFlow": tf.__version__,
                **options.shared(),
                # Ranks that record timelines measure their clocks together.
                TIMELINE_VARIABLE: "set" if timeline_file() else "not set",
                CHECK_DATA_VARIABLE: str(int(checks_data())),
                data_encryption.VARIABLE: str(int(data_encryption.is_on())),
            },
        )
        self.ending = self._rendezvous.ending
        self.node = self._rendezvous.nodes[self.rank]
        self.number = self._rendezvous.number.hex()
        try:
            self.groups = ProcessGroups(options, self.rank, self._rendezvous.nodes)
        except ValueError:
            self.ending.run()  # All ranks see it alike, and may try again.
            raise
        # After the updates in flight, which may have to connect first.
        self.ending.add(self.groups.close)
        self.links = Links(self.groups)
        # From here on the others name a rank that fails or dies.
        self.monitor = Monitor(
            self._rendezvous,
            self.engine,
            self.groups.names_and_members(),
            heartbeat=options.heartbeat,
            timeout=options.timeout,
            cleanup_timeout=options.cleanup_timeout,
            **stalls,
        )
        self.monitor.start()
        exit_handlers.install(self.monitor, self.ending, drain=self._drain)
        self.last_end = LastEnd(self._rendezvous, self.rank, self.monitor)
        try:
            self._start(self.monitor)
        except BaseException as error:  # An interrupt, too: a notebook lives on.
            self.close(error)
            raise
        self._make_current()

    def _make_current(self) -> None:
        global _current
        # One of one rank may be made beside one of several.
        if _current is None or _current.world_size == 1:
            _current = self

    def _start(self, monitor: Monitor) -> None:
        """The part of the start that the monitor watches: all ranks have met and do it together."""
        options = self.options
        self.groups.connect(self._rendezvous, self.engine, monitor.cause_of)
        seeds.share(self.agree)
        self.engine.start(
            options.max_delay_ms,
            first_agreement=FIRST_AGREEMENT,
            tables_first=options.embedding_schedule != "none",
        )
        self.links.measure(self.engine, self.node.num_nodes)
        self.table_choice = table_costs.choice_of_all(
            self.links.costs_of_class["world"], self.node.local_size, self.world_size, self.agree
        )
        if options.compression is not None:
            self.sparse_buckets = compressed_buckets.choose(
                options.compression,
                self.groups.sparse_levels,
                self.links,
                self.engine,
                self.agree,
                self._warn_uncompressed,
            )
        plan_format = PlanFormat(
            tree=options.collective == "tree",
            levels=self.groups.levels,
            sparse_buckets=self.sparse_buckets,
        )
        self.first_plan = FirstPlan(
            options.planned_schedule,
            planner.first_bucket_bytes(options.fusion, options.compression is not None),
            plan_format,
            planner.find_blocks(options.fusion),
        )
        if self.rank == 0:
            self.tuner = Tuner(
                self.engine,
                self.event_reader(),
                options.fusion,
                options.planned_schedule,
                self.costs,
                plan_format,
                trace_file=trace_file(),
            )

    def check_open(self) -> None:
        """Raises a TfdearError when the job was closed."""
        if not self.is_open:
            raise errors.TfdearError(
                "this DearStrategy was closed. Create another one, and in its scope the model, its "
                "optimizer and whatever else has variables; those of the closed one can still be "
                "read and saved."
            )

    def close_with(self, closable: _Closable) -> None:
        """Closes something with the job, unless nobody else holds it by then."""
        self._to_close.add(closable)

    def close(self, failure: BaseException | None = None) -> None:
        """Ends the job in this process, which may start another one then.

        All ranks call it together, once no step runs any more; a second call does nothing. After a
        `failure` of this rank, or of the job, it waits for nobody, and this process cannot start
        another job.

        Raises:
            RendezvousTimeoutError: A rank did not come within the timeout; the text says which.
            TfdearError: The job was aborted meanwhile, or updates failed. It is closed all the
                same.
        """
        global _current
        if not self.is_open:
            return
        monitor = self.monitor
        error = failure
        if monitor is not None and failure is None and monitor.healthy:
            error = self._meet()
        self.is_open = False
        if _current is self:
            _current = None
        if monitor is not None and error is not None:
            monitor.report_failure(exit_handlers.text_of(error))
        healthy = monitor is None or monitor.healthy
        if not healthy:
            # The others know why by now. Nothing below may wait for them.
            why = "it has failed" if error is None else exit_handlers.text_of(error)
            self.engine.abort("aborted", f"rank {self.rank} has left the job: {why}")
        with contextlib.ExitStack() as rest:  # All of it, from its end, whatever becomes of a part.
            if monitor is not None:
                rest.callback(self._stop_engine, reports=healthy)
                rest.callback(monitor.leave)
            rest.callback(self.ending.run)
            if self.tuner is not None:
                rest.callback(self.tuner.close)
            for closable in list(self._to_close):
                rest.callback(closable.close)
        if error is not None and error is not failure:
            raise error

    def _stop_engine(self, reports: bool) -> None:
        self.groups.close()  # Else a group that connects would wait for its peers first.
        with contextlib.nullcontext() if reports else contextlib.suppress(Exception):
            self.engine.stop(self.options.timeout)

    def _meet(self) -> BaseException | None:
        """Waits for the updates in flight, then for all ranks; returns what went wrong."""
        assert self.last_end is not None
        try:
            self._drain()
            self.last_end.meet(self.options.timeout)
        except BaseException as error:  # An interrupt, too: the others must hear of it.
            return error
        return None

    def event_reader(self) -> EventReader:
        """Reads what the engine has recorded of this job."""
        return EventReader(self._first_event)

    @functools.cached_property
    def cluster_resolver(self) -> Any:
        """What the script has given, else one that describes this job."""
        if self._given_resolver is not None:
            return self._given_resolver
        hosts = self._rendezvous.hosts() if self.world_size > 1 else ()
        return make_cluster_resolver(self._cluster, hosts)

    def exchange(self, value: str, of: str = "exchange") -> list[str]:
        """The values of all ranks, in the order of the ranks. All ranks must call it together.

        For short values: rank 0 sends all of them to all ranks. See `agree`. `of`: what the error
        calls it if some ranks do not come; exchanges of different names do not meet.
        """
        self.check_open()
        return self._rendezvous.exchange(of, value, timeout=self.options.init_timeout)

    def agree(self, value: str, decide: Callable[[list[str]], str]) -> str:
        """What rank 0 decides by the values of all ranks, in their order; all call it together."""
        self.check_open()
        timeout = self.options.init_timeout
        return self._rendezvous.agree("exchange", value, decide, timeout=timeout)

    def exchange_integers(self, value: int) -> list[int]:
        """As `exchange`, for integers."""
        return [int(text) for text in self.exchange(str(value))]

    def connect(self, ranks: Sequence[int], connections: int) -> list[list[Connection]]:
        """So many connections to each of some ranks, of which each calls it with this one.

        All ranks of the job call it, in the same order, if only for nobody. The descriptors belong
        to the caller; what they carry is to be encrypted with `data_key`.
        """
        self.check_open()
        return self.groups.connect_with(ranks, connections)

    @property
    def data_key(self) -> bytes:
        """What encrypts data between the ranks of this job; empty: they travel in the clear."""
        return self.groups.data_key()

    @property
    def server_limits(self) -> connections.Options:
        """Options of a gRPC server that is to `listen`, which keep strangers from filling it."""
        return connections.limits(self.world_size)

    def listen(self, server: Any) -> str:
        """Lets a gRPC server listen for ranks of this job; returns its "host:port"."""
        address = self._rendezvous.listen_address
        host = f"[{address}]" if ":" in address else address
        port = connections.listen(server, f"{host}:0", self._rendezvous.certificate)
        return f"{host}:{port}"

    def channel(self, rank: int, address: str, options: connections.Options) -> Any:
        """A gRPC channel to such a server of a rank."""
        return connections.channel(address, rank, self._rendezvous.certificate, options)

    @property
    def compresses(self) -> bool:
        """Whether some buckets of gradients are compressed."""
        return self.sparse_buckets is not None

    @property
    def costs(self) -> CommunicationCosts | None:
        """What a reduction of gradients costs, as measured by this rank at the start."""
        return self.links.of_gradients(self.options.compression if self.compresses else None)

    def _warn_uncompressed(self, reason: str) -> None:
        if self.rank == 0:
            logging.warning("tfdear: %r has no effect: %s.", self.options.compression, reason)

    def _drain(self) -> None:
        self.engine.synchronize(self.options.timeout)


def _check_may_start(engine: Engine) -> None:
    """Raises where this process cannot take part in another job of several ranks."""
    if _current is not None and _current.world_size > 1:
        raise ValueError(
            "a DearStrategy of several ranks is open in this process, which can hold one at a "
            "time. Use it for every model, or close() it on all ranks before another one is "
            "created."
        )
    cause = engine.aborted()
    if cause is not None:
        raise errors.TfdearError(
            "the job of an earlier DearStrategy of this process has failed, so that it cannot take "
            f"part in another one. Start the process again. What failed: {cause}"
        )
