# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job find out about the files of a source: each a part, and then share it.

[Note: files are listed once]
To look through folders of a million files, or through records whose places nobody wrote down, takes
minutes, and all of a job's ranks at once slow a file system down. So part k is dealt to rank k mod
P, and all get what each found. It is exchanged in rounds, each of a bounded time and number of
bytes, so that no rank waits for another for longer than one part takes. What a rank cannot read is
the same error on all of them.
"""

import abc
import base64
import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfdear import errors
from tfdear.data import disk_folder, record_index
from tfdear.data.record_source import RecordSource
from tfdear.job import job as job_module
from tfdear.job.job import Job

# What is found out about a part, by its number.
Found: TypeAlias = dict[str, np.ndarray]
Find: TypeAlias = Callable[[int], Found]
# Finds out about so many parts, in whatever process.
Share: TypeAlias = Callable[[int, Find], list[Found]]

# Of all ranks, in a round.
_ROUND_BYTES = 1 << 20
_ROUND_SECONDS = 10.0
_LENGTH_BYTES = 8
_KINDS: dict[str, type[Exception]] = {"ValueError": ValueError, "OSError": OSError}


class ListedSource(abc.ABC):
    """A `RecordSource` of files, which the ranks of a job list together."""

    @property
    @abc.abstractmethod
    def is_listed(self) -> bool:
        """Whether this process knows its files and their records already."""

    @abc.abstractmethod
    def arguments(self) -> list[str]:
        """What it was made of, the same on all ranks."""

    @abc.abstractmethod
    def list_files(self, share: Share) -> None:
        """Finds out which files there are, and what tells them from those of another time."""

    @abc.abstractmethod
    def find_records(self, share: Share, kept: np.ndarray | None) -> None:
        """Finds out where their records are, or takes it from what `record_index` has kept."""

    @abc.abstractmethod
    def record_lengths(self) -> np.ndarray | None:
        """What is worth keeping of that; None: nothing."""


def has_several_ranks() -> bool:
    """Whether this process is one of several, which list files together."""
    job = job_module.current()
    return job is not None and job.world_size > 1


def list_source(
    source: RecordSource, directory: str | os.PathLike | None, version: str, job: Job | None
) -> None:
    """Lists the files of a source; all ranks of a job call it at the same point.

    Args:
        source: Of which not all kinds have files.
        directory: Where an index of the records may be, as `disk_folder.open_folder` takes it.
        version: As that takes it.
        job: The ranks; None: this process is alone.

    Raises:
        ValueError: The ranks' sources differ, or files are missing.
        tf.errors.OpError: A file cannot be read, or is of no such kind.
    """
    is_listed = not isinstance(source, ListedSource) or source.is_listed
    share: Share = alone
    if job is not None and job.world_size > 1:
        about = source.arguments() if isinstance(source, ListedSource) else []
        own = {"source": [type(source).__name__, *about], "is_listed": is_listed}
        ranks = [json.loads(text) for text in job.exchange(json.dumps(own))]
        if any(rank["source"] != own["source"] for rank in ranks):
            raise ValueError(
                "All ranks must make the same DataCache, from the same files. Received, by rank, "
                f"sources: {[rank['source'] for rank in ranks]}"
            )
        is_listed = all(rank["is_listed"] for rank in ranks)
        share = among(job)
    if is_listed or not isinstance(source, ListedSource):
        return
    if share is not alone:  # Alone it lists them when it is made.
        source.list_files(share)
    kept = None
    if directory is not None:
        kept = record_index.load(disk_folder.open_folder(directory, source, version))
    source.find_records(share, kept)


def alone(parts: int, find: Find) -> list[Found]:
    """Finds out about all parts in this process."""
    return [find(part) for part in range(parts)]


def among(job: Job) -> Share:
    """Lets each rank of a job find out about some of the parts, and all get all of it."""

    def share(parts: int, find: Find) -> list[Found]:
        own = iter(range(job.rank, parts, job.world_size))
        pending, streams = b"", [b""] * job.world_size
        left, error = True, None
        limit = _ROUND_BYTES // job.world_size
        while True:
            end = time.monotonic() + _ROUND_SECONDS
            while left and error is None and len(pending) < limit and time.monotonic() < end:
                part = next(own, None)
                left = part is not None
                try:
                    pending += b"" if part is None else _frame(find(part))
                except Exception as caught:
                    error = _describe(caught)
            told = {
                "bytes": base64.b64encode(pending[:limit]).decode(),
                "more": left or len(pending) > limit,
                "error": error,
            }
            pending = pending[limit:]
            more = False
            for rank, text in enumerate(job.exchange(json.dumps(told))):
                with _words_of(rank):
                    answer = json.loads(text)
                    streams[rank] += base64.b64decode(answer["bytes"], validate=True)
                    more |= bool(answer["more"])
                    told_error = answer["error"]
                    failure = None if told_error is None else _error_of(rank, told_error)
                if failure is not None:
                    raise failure
            if not more:
                break
        found = []
        for rank, stream in enumerate(streams):
            with _words_of(rank):
                found.append(_unframe(stream, len(range(rank, parts, job.world_size))))
        return [found[part % job.world_size].pop(0) for part in range(parts)]

    return share


def array_of(texts: list[str]) -> np.ndarray:
    """Texts that are paths or names, as an array of bytes."""
    return np.frombuffer("\0".join(texts).encode(), np.uint8)


def texts_of(array: np.ndarray) -> list[str]:
    """What `array_of` made an array of."""
    return array.tobytes().decode().split("\0") if len(array) else []


def _frame(found: Found) -> bytes:
    content = io.BytesIO()
    arrays: dict[str, Any] = {**found}
    np.savez_compressed(content, **arrays)
    return len(content.getvalue()).to_bytes(_LENGTH_BYTES, "little") + content.getvalue()


@contextlib.contextmanager
def _words_of(rank: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Parsers of NumPy and zip files raise their own.
        raise errors.TfdearError(
            f"Rank {rank} sent what is no part of a list of files: {type(error).__name__}: {error}"
        ) from error


def _unframe(stream: bytes, parts: int) -> list[Found]:
    found, begin = [], 0
    while begin < len(stream):
        length = int.from_bytes(stream[begin : begin + _LENGTH_BYTES], "little")
        begin += _LENGTH_BYTES
        with np.load(io.BytesIO(stream[begin : begin + length]), allow_pickle=False) as arrays:
            found.append(dict(arrays))
        begin += length
    if len(found) != parts:
        raise ValueError(f"{len(found)} parts instead of {parts}")
    return found


def _describe(error: Exception) -> Mapping[str, Any]:
    if isinstance(error, tf.errors.OpError):
        return {"code": error.error_code, "text": error.message}
    kind = next((name for name, of in _KINDS.items() if isinstance(error, of)), None)
    return {"kind": kind or type(error).__name__, "text": str(error)}


def _error_of(rank: int, told: Mapping[str, Any]) -> Exception:
    text = f"Rank {rank}: {told['text']}"
    if "code" in told:
        kind = tf.compat.v1.errors.exception_type_from_error_code(told["code"])
        return kind(None, None, text)
    if told["kind"] in _KINDS:
        return _KINDS[told["kind"]](text)
    return errors.TfdearError(f"Rank {rank}: {told['kind']}: {told['text']}")
