# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A process that reads ArrayRecord files with Grain."""

import os
import tempfile
import time

import array_record.python.array_record_module as array_record  # type: ignore[import-not-found]
import grain.python as grain  # type: ignore[import-not-found]
import numpy as np

_directory = tempfile.TemporaryDirectory(prefix="tfdear-grain-")
_pipelines: dict = {}


def prepare(hostnames: list[str]) -> dict:
    """Rank 0: there is nothing to agree on."""
    return {}


def start(rank: int, addresses: list[str], hostnames: list[str], prepared: dict) -> str:
    """Says what it is."""
    return f"Grain {getattr(grain, '__version__', '')}".strip()


def open_pipeline(name: str, kind: str, count: int, nbytes: int, batch_size: int) -> None:
    """Writes the examples, and opens them in the order of the file, or shuffled."""
    path = os.path.join(_directory.name, f"{nbytes}.array_record")
    if not os.path.exists(path):
        # A group of one record, as Grain's documentation asks for where access is random.
        writer = array_record.ArrayRecordWriter(path, "group_size:1,uncompressed")
        content = np.random.default_rng(0).integers(256, size=nbytes, dtype=np.uint8)
        for number in range(count):
            writer.write((content ^ np.uint8(number % 251)).tobytes())
        writer.close()
    dataset = grain.MapDataset.source(grain.ArrayRecordDataSource([path]))
    if kind == "shuffle":
        dataset = dataset.shuffle(seed=1)
    dataset = dataset.map(lambda record: np.frombuffer(record, np.uint8)).batch(batch_size)
    _pipelines[name] = dataset


def close(names: list[str]) -> None:
    """Gives up pipelines."""
    for name in names:
        _pipelines.pop(name)


def epochs(name: str, seconds: float = 0.0) -> dict:
    """As of `with_pipelines`."""
    rows = 0
    begin, cpu = time.monotonic(), time.process_time()
    while not rows or time.monotonic() - begin < seconds:
        for batch in _pipelines[name].to_iter_dataset():
            rows += len(batch)
    return {
        "rows": rows,
        "seconds": time.monotonic() - begin,
        "cpu_seconds": time.process_time() - cpu,
    }
