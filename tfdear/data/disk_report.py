# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What caches have left on a disk."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np

from tfdear.data import disk_folder
from tfdear.data.disk_writer import load_index
from tfdear.data.record_scan import whole_records


@dataclasses.dataclass(frozen=True)
class FolderReport:
    """What is in the folder of one source."""

    folder: pathlib.Path
    records: int  # In its index.
    all_records: int  # Of the source.
    first: str  # The name of the source's first record.
    bytes: int
    in_use: bool  # By a job that writes.


def reports(directory: pathlib.Path) -> list[FolderReport]:
    """What is in a directory of caches, by folder."""
    found = []
    for about in sorted(directory.glob(f"*/{disk_folder.ABOUT}")):
        folder = about.parent
        source = json.loads(about.read_text())
        indices = [load_index(path) for path in folder.glob("index-*.npy")]
        numbers = [places["number"] for places in indices if places is not None]
        held = disk_folder.lock(folder)
        found.append(
            FolderReport(
                folder,
                len(np.unique(np.concatenate(numbers))) if numbers else 0,
                source["records"],
                source["first"],
                sum(path.stat().st_size for path in folder.iterdir()),
                in_use=held is None,
            )
        )
        if held is not None:
            held.close()
    return found


def faults(folder: pathlib.Path) -> list[str]:
    """What is damaged in a folder: the first damaged place of each file."""
    found = []
    for path in sorted(folder.glob("part-*.tfrecord")):
        end = 0
        for _, bounds in whole_records(path):
            end = int(bounds[-1])
        if end < path.stat().st_size:
            found.append(f"{path}: no whole record at byte {end} of {path.stat().st_size}")
    for path in sorted(folder.glob("index-*.npy")):
        if load_index(path) is None:
            found.append(f"{path}: no index")
    return found


def remove(folder: pathlib.Path) -> bool:
    """Deletes a folder unless a job writes into it; whether it did."""
    held = disk_folder.lock(folder)
    if held is None:
        return False
    with held:
        shutil.rmtree(folder)
    return True
