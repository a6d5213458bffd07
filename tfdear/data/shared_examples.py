# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job agree on for a cache: who owns which examples, and where these are."""

import json
import os

from absl import logging

from tfdear import errors
from tfdear.data import disk_folder
from tfdear.data.disk_cache import DiskCache
from tfdear.data.global_batches import row_range
from tfdear.data.record_source import RecordSource
from tfdear.engine.example_store import ExampleStore
from tfdear.job.job import Job

# Where ranks wait for nobody.
_ALONE_TIMEOUT = 600.0


def open_disk(
    source: RecordSource,
    directory: str | os.PathLike,
    most_bytes: int | None,
    version: str,
    job: Job | None,
) -> DiskCache:
    """Keeps a source's records in a local directory; all ranks of a job call it at the same point.

    Args:
        source: The records.
        directory: A folder of this node.
        most_bytes: Of what the ranks of a node write; None: all but a tenth of what is free.
        version: Text that records of other versions differ in.
        job: The ranks; None: this process is alone.

    Raises:
        ValueError: The directory cannot be used.
    """
    folder = disk_folder.open_folder(directory, source, version)
    if most_bytes is None:
        most_bytes = disk_folder.free_bytes(folder) * 9 // 10
    if job is None or job.world_size == 1:
        held = disk_folder.lock(folder)
        return DiskCache(source, folder, None if held is None else 0, most_bytes, held)
    node = job.node
    held = disk_folder.lock(folder) if node.local_rank == 0 else None
    told = [
        json.loads(text) for text in job.exchange(json.dumps([node.node_rank, held is not None]))
    ]
    writes = [node.node_rank, True] in told
    writer = node.local_rank if writes else None
    return DiskCache(source, folder, writer, most_bytes // node.local_size, held)


def open_store(
    examples: int, memory_bytes: int, description: dict[str, str], job: Job | None
) -> ExampleStore:
    """Makes this rank's store; all ranks of a job call it at the same point of their scripts.

    The ranks of a node own the examples in parts of equal numbers, and share the memory. Where they
    cannot map each other's memory, each owns all of them.

    Args:
        examples: All of them.
        memory_bytes: For those in the memory of a node.
        description: What has to be the same on all ranks, for messages.
        job: The ranks; None: this process is alone.

    Raises:
        ValueError: The ranks' caches differ; the message has what they are, by rank.
    """
    if job is None or job.world_size == 1:
        return ExampleStore(examples, (0, examples), memory_bytes, _ALONE_TIMEOUT)
    timeout, node = job.options.timeout, job.node
    own = row_range(examples, node.local_rank, node.local_size)
    store = ExampleStore(examples, own, memory_bytes // node.local_size, timeout)
    told = {"node": node.node_rank, "examples": examples, **description}
    texts = [
        json.loads(text) for text in job.exchange(json.dumps({**told, "address": store.address()}))
    ]
    for name in ("examples", *description):
        if len({text[name] for text in texts}) > 1:
            raise ValueError(
                "All ranks must make the same DataCache, from the same files. Received, by rank, "
                f"{name}: {[text[name] for text in texts]}"
            )
    reason = None
    for rank, text in enumerate(texts):
        if rank != job.rank and text["node"] == node.node_rank and reason is None:
            try:
                store.map(rank, text["address"])
            except errors.TfdearError as error:
                reason = str(error)
    sharing = [
        not failed
        for failed, text in zip(job.exchange_integers(int(bool(reason))), texts, strict=True)
        if text["node"] == node.node_rank
    ]
    store.unpublish()
    if all(sharing):
        return store
    if reason is not None:
        logging.warning(
            "tfdear: rank %d cannot read the memory of other ranks on its node, so each of them "
            "keeps a copy of the examples: %s",
            job.rank,
            reason,
        )
    store.close()
    return ExampleStore(examples, (0, examples), memory_bytes // node.local_size, timeout)
