# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Folders of records on a local disk, which one job at a time writes."""

import errno
import fcntl
import json
import os
import pathlib
import re
import shutil
import stat
import time
from typing import BinaryIO

from tfdear.data.record_source import RecordSource, fingerprint_of

_FORMAT = "2"
# What says of which source the records are: their number, and the name of the first.
_ABOUT = "about.json"
_KEY = re.compile("[0-9a-f]{32}")
_FILES = re.compile(r"about\.json|lock|records\.npz|index-.*|part-.*|.*\.new")
# Others may look who has a lock, and do for a moment what a job does that has it.
_LOCK_SECONDS, _LOCK_TRIES = 0.1, 3
# What a disk says that takes nothing more.
_NO_MORE = (errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def open_folder(directory: str | os.PathLike, source: RecordSource, version: str) -> pathlib.Path:
    """Makes the folder of a source, which nobody else may write to.

    It is not there if the directory is, but on a disk that is full or read-only.

    Raises:
        ValueError: The directory is a link, is no local folder, or others may write to it.
    """
    if (
        not isinstance(directory, str | os.PathLike)
        or not str(directory)
        or "://" in str(directory)
    ):
        raise ValueError(
            "`directory` must be a folder on a local disk of each node, where one job at a time "
            f"writes. Received: {directory!r}"
        )
    parent = pathlib.Path(directory)
    key = fingerprint_of(_FORMAT, source.fingerprint(), source.modification_times(), version)
    folder = parent / key[:32]  # As `_KEY`.
    for path in (parent, folder):
        try:
            path.mkdir(mode=0o700, parents=path is parent, exist_ok=True)
            found = path.lstat()
        except OSError as error:
            if path is folder and error.errno in _NO_MORE:
                break  # Nobody else can make it.
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


def folders_in(directory: pathlib.Path) -> list[pathlib.Path]:
    """The folders of sources in a directory, with nothing in them that is of something else."""
    return [
        folder
        for folder in sorted(directory.iterdir())
        if _KEY.fullmatch(folder.name)
        and folder.is_dir()
        and all(_FILES.fullmatch(path.name) for path in folder.iterdir())
    ]


def describe(folder: pathlib.Path, source: RecordSource) -> None:
    """Says in a folder, for people, of which source it is."""
    if description(folder) is not None:
        return
    first = source.name(0) if len(source) else "nothing"
    aside = folder / f"{_ABOUT}.new"
    aside.write_text(json.dumps({"records": len(source), "first": first}))
    aside.replace(folder / _ABOUT)


def description(folder: pathlib.Path) -> tuple[int, str] | None:
    """The number of a source's records and the name of the first; None: the folder says neither."""
    try:
        about = json.loads((folder / _ABOUT).read_text())
        return int(about["records"]), str(about["first"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def lock(folder: pathlib.Path) -> BinaryIO | None:
    """The right to write into a folder, as long as the file is open; None: another job has it.

    Raises:
        OSError: Nobody can write into it.
    """
    file = (folder / "lock").open("ab")
    try:
        for _ in range(_LOCK_TRIES):
            if _try(file, fcntl.LOCK_EX):
                return file
            time.sleep(_LOCK_SECONDS)
    except OSError:
        file.close()
        raise
    file.close()
    return None


def is_locked(folder: pathlib.Path) -> bool:
    """Whether a job may write into a folder, which nothing is written into to find out."""
    try:
        with (folder / "lock").open("rb") as file:
            return not _try(file, fcntl.LOCK_SH)
    except OSError:
        return False


def _try(file: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def written_bytes(folder: pathlib.Path) -> int:
    """What the records in a folder take."""
    return sum(path.stat().st_size for path in folder.glob("part-*.tfrecord"))


def free_bytes(folder: pathlib.Path) -> int:
    """What the disk of a folder has left."""
    return shutil.disk_usage(folder).free
