# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job agree on for a cache: who owns which examples, and where these are."""

import itertools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from absl import logging

from tfdear import errors
from tfdear.data import disk_folder, record_index
from tfdear.data.disk_cache import DiskCache
from tfdear.data.global_batches import row_range
from tfdear.data.record_source import RecordSource
from tfdear.data.shared_listing import ListedSource
from tfdear.engine.example_store import Connection, ExampleStore
from tfdear.job.job import Job

# Where ranks wait for nobody.
_ALONE_TIMEOUT = 600.0


def open_disk(
    source: RecordSource,
    listed: RecordSource,
    directory: str | os.PathLike,
    most_bytes: int | None,
    version: str,
    verify: bool,
    job: Job | None,
) -> DiskCache:
    """Keeps a source's records in a local directory; all ranks of a job call it at the same point.

    Args:
        source: The records.
        listed: What they are made of, whose files were listed.
        directory: A folder of this node.
        most_bytes: Of what the ranks of a node have written then; None: as many as a tenth of what
            is free leaves.
        version: Text that records of other versions differ in.
        verify: Whether checksums of what is there are compared.
        job: The ranks; None: this process is alone.

    Raises:
        ValueError: The directory cannot be used.
    """
    folder = disk_folder.open_folder(directory, source, version)
    index_folder = disk_folder.open_folder(directory, listed, version)
    if job is None or job.world_size == 1:
        held = _right_to_write({index_folder: listed, folder: source})
        writer, writers = (None if held is None else 0), 1
    else:
        node = job.node
        held = None
        if node.local_rank == 0:
            held = _right_to_write({index_folder: listed, folder: source})
        told = job.exchange(json.dumps([node.node_rank, held is not None]))
        writes = [node.node_rank, True] in [json.loads(text) for text in told]
        writer, writers = (node.local_rank if writes else None), node.local_size
    _keep_index(listed, index_folder, held)
    room = 0
    if writer is not None:
        # Nobody of this node writes before all have come by here.
        room = disk_folder.free_bytes(folder) * 9 // 10
        if most_bytes is not None:
            room = max(0, most_bytes - disk_folder.written_bytes(folder))
    return DiskCache(source, folder, writer, room // writers, held, verify=verify)


def _right_to_write(sources: Mapping[pathlib.Path, RecordSource]) -> BinaryIO | None:
    """The lock of the last of these folders, which then say of which source they are.

    None: it is not to be had.
    """
    *_, folder = sources
    held = None
    try:
        folder.mkdir(mode=0o700, exist_ok=True)  # Says why it is not there.
        held = disk_folder.lock(folder)
        if held is None:
            logging.warning(
                "tfdear: DataCache on disk: another job, or another cache of this one, writes into "
                "%s. This cache reads what it finds there and writes nothing. An earlier cache of "
                "the same script is to be closed first (`close()`).",
                folder,
            )
            return None
        for each, source in sources.items():
            disk_folder.describe(each, source)
        return held
    except OSError as error:
        if held is not None:
            held.close()
        logging.warning(
            "tfdear: DataCache on disk: nothing is written into %s: %s. What it has is read from "
            "there, other records come from their source.",
            folder,
            error,
        )
        return None


def open_store(
    examples: int,
    memory_bytes: int,
    placement: str,
    max_rate: float,
    verify: bool,
    description: dict[str, str],
    job: Job | None,
) -> ExampleStore:
    """Makes this rank's store; all ranks of a job call it at the same point of their scripts.

    Ranks own the examples in parts of equal numbers. Those of a node share their memory; what they
    cannot map, and other nodes, they ask over TCP.

    Args:
        examples: All of them.
        memory_bytes: For those in the memory of a node.
        placement: "sharded": every example has one owner; "replicated": one on every node.
        max_rate: Bytes per second that this rank takes from others, at most; 0: no limit.
        verify: Whether checksums of what comes from there are compared.
        description: What has to be the same on all ranks, for messages.
        job: The ranks; None: this process is alone.

    Raises:
        ValueError: The ranks' caches differ; the message has what they are, by rank.
    """
    if job is None or job.world_size == 1:
        return ExampleStore(examples, (0, examples), memory_bytes, _ALONE_TIMEOUT)
    timeout, node = job.options.timeout, job.node
    if placement == "sharded":
        own = row_range(examples, job.rank, job.world_size)
    else:
        own = row_range(examples, node.local_rank, node.local_size)
    store = ExampleStore(examples, own, memory_bytes // node.local_size, timeout, max_rate, verify)
    told = {
        "node": node.node_rank,
        "own": own,
        "address": store.address(),
        "examples": examples,
        **description,
    }
    ranks = [json.loads(text) for text in job.exchange(json.dumps(told))]
    for name in ("examples", *description):
        if len({rank[name] for rank in ranks}) > 1:
            raise ValueError(
                "All ranks must make the same DataCache, from the same files and with the same "
                f"`prepare`. Received, by rank, {name}: {[rank[name] for rank in ranks]}"
            )
    store.parts = [(rank["node"], *rank["own"]) for rank in ranks]
    nodes: dict[int, list[int]] = {}
    for number, rank in enumerate(ranks):
        nodes.setdefault(rank["node"], []).append(number)
    unmapped = _map_all(store, [r for r in nodes[node.node_rank] if r != job.rank], ranks)
    unmapped_by = [json.loads(text) for text in job.exchange(json.dumps(unmapped))]
    store.unpublish()
    if not any(unmapped_by) and (placement == "replicated" or len(nodes) == 1):
        return store
    if job.last_end is not None:
        # Others may read on when this rank's script has ended.
        job.last_end.await_at_exit()

    asked = [_asked_by(rank, nodes, unmapped_by, placement) for rank in range(job.world_size)]
    _connect(store, job, asked, [tuple(rank["own"]) for rank in ranks])
    return store


def _asked_by(
    rank: int, nodes: Mapping[int, list[int]], unmapped_by: list[list[int]], placement: str
) -> dict[int, list[int]]:
    """Whom a rank asks for examples, each with the ranks that own these.

    `nodes`: the ranks of each; `unmapped_by`: for each rank those of its node whose memory it
    cannot read.
    """
    asked = {owner: [owner] for owner in unmapped_by[rank]}
    own_node, own_members = next(item for item in nodes.items() if rank in item[1])
    for node, members in nodes.items():
        if node == own_node or placement == "replicated":
            continue
        if any(unmapped_by[member] for member in members):
            asked |= {member: [member] for member in members}
        else:
            # One that has the memory of all, another one for each rank of this node.
            asked[members[own_members.index(rank) % len(members)]] = members
    return asked


def _connect(
    store: ExampleStore,
    job: Job,
    asked: Sequence[Mapping[int, list[int]]],
    own: Sequence[tuple[int, int]],
) -> None:
    """Connects ranks that ask with those that are asked; all ranks call it together.

    Args:
        store: This rank's.
        job: The ranks.
        asked: Whom each rank asks, with the owners of the examples.
        own: The examples that each rank owns.
    """
    count = job.groups.connections
    peers = sorted({*asked[job.rank], *(r for r, of_r in enumerate(asked) if job.rank in of_r)})
    asking: dict[int, list[Connection]] = {}
    serving: list[Connection] = []
    unused: list[Connection] = []
    for peer, connections in zip(peers, job.connect(peers, 2 * count), strict=True):
        # Both may ask: the lower rank over the first half of the connections.
        halves = connections[:count], connections[count:]
        to_ask, to_answer = halves if job.rank < peer else halves[::-1]
        if peer in asked[job.rank]:
            asking[peer] = to_ask
        else:
            unused += to_ask
        if job.rank in asked[peer]:
            serving += to_answer
        else:
            unused += to_answer
    try:
        while asking:
            peer, to_ask = asking.popitem()
            ranges = [own[owner] for owner in asked[job.rank][peer]]
            store.add_node(peer, ranges, to_ask, job.data_key)
        to_answer, serving = serving, []
        store.serve(to_answer, job.data_key)
    finally:
        for connection in (*unused, *serving, *itertools.chain(*asking.values())):
            os.close(connection.descriptor)


def _keep_index(source: RecordSource, folder: pathlib.Path, held: BinaryIO | None) -> None:
    """Keeps where records are, if this rank may write and there is something to keep."""
    if held is None or not isinstance(source, ListedSource):
        return
    lengths = source.record_lengths()
    if lengths is not None:
        record_index.keep(folder, lengths)


def examples_of_node(store: ExampleStore, job: Job | None) -> int:
    """How many examples the ranks of this node own, of a store in parts."""
    node = 0 if job is None else job.node.node_rank
    return sum(end - begin for number, begin, end in store.parts if number == node)


def _map_all(store: ExampleStore, peers: list[int], ranks: list[dict]) -> list[int]:
    """Maps the examples of other ranks of this node; returns the ranks where that fails."""
    unmapped = []
    for peer in peers:
        try:
            store.map(peer, ranks[peer]["address"])
        except errors.TfdearError as error:
            unmapped.append(peer)
            logging.warning(
                "tfdear: the examples of rank %d come over TCP, since its memory cannot be read: "
                "%s",
                peer,
                error,
            )
    return unmapped
