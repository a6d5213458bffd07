# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What caches have left on a disk."""

import dataclasses
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
    source: tuple[int, str] | None  # Its records, and the name of the first; None: nobody says.
    bytes: int
    in_use: bool  # By a job that writes.


def reports(directory: pathlib.Path) -> list[FolderReport]:
    """What is in a directory of caches, by folder."""
    found = []
    for folder in disk_folder.folders_in(directory):
        indices = [load_index(path) for path in folder.glob("index-*.npy")]
        numbers = [places["number"] for places in indices if places is not None]
        found.append(
            FolderReport(
                folder,
                len(np.unique(np.concatenate(numbers))) if numbers else 0,
                disk_folder.description(folder),
                sum(map(_bytes, folder.iterdir())),
                disk_folder.is_locked(folder),
            )
        )
    return found


def _bytes(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # A job that writes has given it another name just now.
        return 0


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
