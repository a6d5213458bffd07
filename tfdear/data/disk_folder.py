# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Folders of records on a local disk, which one job at a time writes."""

import fcntl
import json
import os
import pathlib
import shutil
import stat
from typing import BinaryIO

from tfdear.data.record_source import RecordSource, fingerprint_of

_FORMAT = "1"
# What says of which source the records are: their number, and the name of the first.
ABOUT = "about.json"


def open_folder(directory: str | os.PathLike, source: RecordSource, version: str) -> pathlib.Path:
    """Makes the folder of a source, which nobody else may write to.

    Raises:
        ValueError: The directory is a link, is no folder, or others may write to it.
    """
    parent = pathlib.Path(directory)
    key = fingerprint_of(_FORMAT, source.fingerprint(), source.modification_times(), version)
    folder = parent / key[:32]
    for path in (parent, folder):
        try:
            path.mkdir(mode=0o700, parents=path is parent, exist_ok=True)
            found = path.lstat()
        except OSError as error:
            raise ValueError(
                f"`directory` must be a local folder that can be written to: {error}"
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise ValueError(f"`directory` must be a folder, and no link. Received: {str(path)!r}")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ValueError(
                "`directory` must belong to this user, and others must not be able to write to it "
                f"(chmod 700). Received: {str(path)!r}, of user {found.st_uid} with mode "
                f"{stat.filemode(found.st_mode)}"
            )
    return folder


def describe(folder: pathlib.Path, source: RecordSource) -> None:
    """Says in a folder, for people, of which source it is."""
    about = folder / ABOUT
    if not about.exists():
        first = source.name(0) if len(source) else "nothing"
        about.write_text(json.dumps({"records": len(source), "first": first}))


def lock(folder: pathlib.Path) -> BinaryIO | None:
    """The right to write into a folder, as long as the file is open; None: another job has it."""
    file = (folder / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def free_bytes(folder: pathlib.Path) -> int:
    """What the disk of a folder has left."""
    return shutil.disk_usage(folder).free
