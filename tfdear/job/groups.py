# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The job's process groups: the members and the transport of each."""

import dataclasses
import json
from collections.abc import Callable, Sequence

from absl import logging

from tfdear import errors
from tfdear.base.names import COLLECTIVES_IN_LEVELS, Lane, Transport
from tfdear.engine.engine import Engine
from tfdear.engine.example_store import Connection
from tfdear.engine.plan import Levels
from tfdear.engine.process_group import ProcessGroup
from tfdear.job import topology
from tfdear.job.options import DearOptions
from tfdear.job.peer_directory import PeerDirectory
from tfdear.rendezvous import certificates, data_encryption, store_records
from tfdear.rendezvous.data_connections import DataConnections
from tfdear.rendezvous.data_listener import FIRST_FREE_GROUP
from tfdear.rendezvous.nodes import Node
from tfdear.rendezvous.rendezvous import Rendezvous

# The groups of the two levels, in the order of `topology.Grid`: rows and columns.
LEVELS = (Lane.GRADIENTS_INTRA, Lane.GRADIENTS_INTER)
# The lanes of all ranks.
WORLD_LANES = (
    Lane.GRADIENTS,
    Lane.CONTROL,
    Lane.EMBEDDINGS,
    Lane.EMBEDDING_ROWS,
    Lane.DELAYED_ROWS,
    Lane.EXCHANGES,
    Lane.LENGTHS,
)
# The lanes of the groups in which gradients are sent.
GRADIENT_LANES = (Lane.GRADIENTS, *LEVELS)


class ProcessGroups:
    """The process groups of this rank.

    Raises a ValueError if the collective or the compression does not go with the nodes.
    """

    def __init__(self, options: DearOptions, rank: int, nodes: Sequence[Node]):
        self._options = options
        self._rank = rank
        self._node_ranks = [node.node_rank for node in nodes]
        self._num_nodes = nodes[rank].num_nodes
        # The ranks of the levels in which gradients are summed, and of those of compression.
        self.grid: topology.Grid | None = None
        self.sparse_grid: topology.Grid | None = None
        self._data_connections: DataConnections | None = None
        self._connected_without_group = 0
        # The transport of each group, once it is opened.
        self.transports: dict[Lane, Transport] = {}
        # To each peer, for the data of gradients and the examples of caches.
        self.connections = max(options.connections, 1)
        everyone = list(range(len(nodes)))
        own = nodes[rank]
        # The members of each group, in the order of their ranks in it.
        self.members: dict[Lane, list[int]] = {
            **dict.fromkeys(WORLD_LANES, everyone),
            Lane.INTRA_NODE: [r for r in everyone if nodes[r].node_rank == own.node_rank],
            Lane.INTER_NODE: [r for r in everyone if nodes[r].local_rank == own.local_rank],
        }
        self._add_levels()

    def _add_levels(self) -> None:
        options = self._options
        in_levels = options.collective in COLLECTIVES_IN_LEVELS
        compressed = options.compression is not None and options.compression.hierarchical
        if len(self._node_ranks) == 1 or not (in_levels or compressed):
            return
        asked_by = [f'`collective="{options.collective}"`'] * in_levels
        instead = ['collective="ring"'] * in_levels
        if compressed:
            asked_by.append("`compression`, which sums within the nodes,")
            instead.append(f"{type(options.compression).__name__}(..., hierarchical=False)")
        grid = topology.make_grid(
            options.collective if in_levels else "hierarchical",
            self._node_ranks,
            " and ".join(asked_by),
            " and ".join(instead),
        )
        if in_levels and compressed and not grid.nodes:
            raise ValueError(
                f"collective={options.collective!r} arranges these {len(self._node_ranks)} "
                "ranks in rows that are not nodes, but compression sums within the nodes. Use "
                'collective="ring" or "hierarchical", or MSTopK(..., hierarchical=False). '
                f"Received: {self._num_nodes} nodes"
            )
        self.grid = grid if in_levels else None
        self.sparse_grid = grid if compressed else None
        row, column = grid.row_of(self._rank), grid.column_of(self._rank)
        if len(row) > 1:
            self.members[Lane.GRADIENTS_INTRA] = row
        if len(column) > 1:
            self.members[Lane.GRADIENTS_INTER] = column

    @property
    def levels(self) -> Levels | None:
        """The sizes of the two levels that gradients are summed in; None if they are not."""
        return None if self.grid is None else self.grid.levels

    @property
    def level_sizes(self) -> tuple[int, int]:
        """The sizes of the levels of sums or of compression, ones where there are none."""
        grid = self.grid or self.sparse_grid
        return (1, 1) if grid is None else dataclasses.astuple(grid.levels)

    @property
    def sparse_levels(self) -> Levels:
        """Ranks that sum before they select, and ranks that exchange what they selected."""
        if self.sparse_grid is None:
            return Levels(intra=1, inter=len(self._node_ranks))
        return self.sparse_grid.levels

    def names_and_members(self) -> dict[str, list[int]]:
        """The members of each group, by its name."""
        return {lane.name.lower(): ranks for lane, ranks in self.members.items()}

    def connect(
        self,
        meeting: Rendezvous,
        engine: Engine,
        cause_of: Callable[[errors.TfdearError], Exception],
    ) -> None:
        """Opens all groups: through shared memory where all members can, else over TCP.

        The engine is not started yet. `cause_of` gives the error to raise for one that a failed
        connection raised.

        Over TCP, only the group of the control sums is connected, the others when they are used.
        """
        self._meeting = meeting
        self._cause_of = cause_of
        self._data_connections = DataConnections(
            self._rank,
            meeting.listen_address,
            meeting.certificate,
            PeerDirectory(meeting, engine),
            self._options.timeout,
        )
        groups = [self._group(lane) for lane in self.members]
        in_memory = self._connect_in_memory(
            [g for g in groups if g.lane in self._lanes_on_one_node]
        )
        for group in groups:
            if group.lane not in in_memory:
                self._connect_over_network(group)

    def _group(self, lane: Lane) -> ProcessGroup:
        # In a torus rows and columns are rings, except rows that share memory.
        ring = self._options.collective == "torus2d" and lane in LEVELS
        ranks = self.members[lane]
        return ProcessGroup(
            lane,
            ranks,
            self._rank,
            timeout=self._options.timeout,
            direct=not ring and len({self._node_ranks[r] for r in ranks}) in (1, len(ranks)),
            # Messages of other groups are too short to be divided among connections.
            connections=self.connections if lane in GRADIENT_LANES else 1,
        )

    def use_connections(self, engine: Engine, number: int) -> None:
        """Uses so many connections to each peer from now on; all ranks call it together."""
        self.connections = number
        for lane in GRADIENT_LANES:
            if self.transports.get(lane) == Transport.TCP:
                engine.set_connections(lane, number)

    @property
    def may_choose_connections(self) -> bool:
        """Whether nobody has said how many connections there are to be, and they matter."""
        asked = self._options.connections
        return asked == 0 and self.transports.get(Lane.GRADIENTS) == Transport.TCP

    def connect_with(self, ranks: Sequence[int], connections: int) -> list[list[Connection]]:
        """So many connections to each of some ranks, for who has no group; see `Job.connect`."""
        assert self._data_connections is not None
        group = FIRST_FREE_GROUP + self._connected_without_group
        self._connected_without_group += 1
        try:
            sockets = self._data_connections.connect(group, ranks, range(connections))
        except errors.TfdearError as error:
            raise self._cause_of(error) from None
        return [
            [
                Connection(socket, f"{group} {min(rank, self._rank)} {max(rank, self._rank)} {i}")
                for i, socket in enumerate(of_rank)
            ]
            for rank, of_rank in zip(ranks, sockets, strict=True)
        ]

    def close(self) -> None:
        """Lets nobody wait for connections any more."""
        if self._data_connections is not None:
            self._data_connections.close()

    @property
    def _lanes_on_one_node(self) -> tuple[Lane, ...]:
        """Lanes whose members share a node."""
        lanes = [Lane.INTRA_NODE]
        if self._num_nodes == 1:
            lanes += WORLD_LANES
        grid = self.grid or self.sparse_grid
        if grid is not None and grid.nodes:
            lanes.append(Lane.GRADIENTS_INTRA)
        return tuple(lanes)

    def _connect_in_memory(self, groups: Sequence[ProcessGroup]) -> set[Lane]:
        """Connects those of which all members can reach the memory of all; returns their lanes.

        The members of each are the ranks of this node.
        """
        lanes = [group.lane for group in groups]
        refusals = dict.fromkeys(lanes, "" if self._options.shared_memory else "switched off")
        blobs = dict.fromkeys(lanes, b"")
        for group in groups:
            if not refusals[group.lane]:
                try:
                    blobs[group.lane] = group.open_in_shared_memory()
                except errors.TfdearError as error:
                    refusals[group.lane] = str(error)
        node = self.members[Lane.INTRA_NODE]
        of_members = self._of_members(node, "memory", [blobs[lane].hex() for lane in lanes])
        blobs_of = {
            lane: [bytes.fromhex(own[i]) for own in of_members] for i, lane in enumerate(lanes)
        }
        for group in groups:
            if not refusals[group.lane]:
                try:
                    group.probe(blobs_of[group.lane])
                except errors.TfdearError as error:
                    refusals[group.lane] = str(error)
        of_members = self._of_members(node, "refusals", [refusals[lane] for lane in lanes])
        connected = set()
        for i, group in enumerate(groups):
            of_group = [own[i] for own in of_members]
            if any(of_group):
                logging.info(
                    "tfdear: process group %r does not use shared memory: %s", group.name, of_group
                )
            else:
                self._connect(group, blobs_of[group.lane], Transport.SHARED_MEMORY)
                connected.add(group.lane)
        return connected

    def _connect_over_network(self, group: ProcessGroup) -> None:
        if self._options.backend == "gloo":
            blob = group.open_over_gloo(self._meeting.listen_address)
            of_members = self._of_members(group.ranks, group.name, [blob.hex()])
            self._connect(group, [bytes.fromhex(own[0]) for own in of_members], Transport.GLOO)
            return
        assert self._data_connections is not None
        try:
            group.open_over_tcp(self._data_connections.connect, self.data_key())
        except errors.TfdearError as error:
            raise self._cause_of(error) from None
        self.transports[group.lane] = Transport.TCP
        if group.lane == Lane.CONTROL:
            # Whoever cannot be reached is found before the training begins.
            self._connect(group, [self._meeting.number] * len(group.ranks), Transport.TCP)

    def _connect(self, group: ProcessGroup, blobs: Sequence[bytes], transport: Transport) -> None:
        try:
            group.connect(blobs)
        except errors.TfdearError as error:
            raise self._cause_of(error) from None
        self.transports[group.lane] = transport

    def data_key(self) -> bytes:
        """What encrypts the data of this job alone: others of the user may have the same secret.

        Empty: data travel in the clear.
        """
        certificate = self._meeting.certificate
        if certificate is None or not data_encryption.is_on():
            return b""
        name = f"tfdear 1 data of job {self._meeting.number.hex()}"
        return certificates.derive(certificate.data_key, name, 32)

    def _of_members(self, ranks: Sequence[int], name: str, texts: list[str]) -> list[list[str]]:
        """What these ranks, which call it together, give; once for each name."""
        timeout = self._options.init_timeout
        values = self._meeting.exchange_among(ranks, name, json.dumps(texts), timeout)
        return [store_records.texts(name, value, len(texts)) for value in values]
