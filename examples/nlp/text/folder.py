# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The folder of the prepared texts: `build/text` in this repository, or `$TFDEAR_TEXT`."""

from __future__ import annotations

import hashlib
import os
import pathlib

_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
# Of the texts that the figures in docs/nlp.md were measured on.
_EXPECTED = pathlib.Path(__file__).with_name("checksums.txt")


def folder() -> pathlib.Path:
    """Where prepared texts are."""
    return pathlib.Path(os.environ.get("TFDEAR_TEXT") or _REPOSITORY / "build" / "text").resolve()


def prepared(name: str) -> pathlib.Path:
    """The path of a prepared file, which must be there."""
    path = folder() / name
    if not path.is_file():
        raise SystemExit(
            f"There is no {path}. Run `make text` once, which fetches Debian's packages and makes "
            "it, or start the example with `--text fallback`, which needs nothing."
        )
    return path


def checksum(path: pathlib.Path) -> str:
    """SHA-256 of a file, as `sha256sum` prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def expected_checksums() -> dict[str, str]:
    """Name of each file that is the same everywhere, and its SHA-256."""
    lines = _EXPECTED.read_text().splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return {name: digest for digest, name in pairs}


def different_files() -> list[str]:
    """Names of the prepared files whose contents are not those that the figures are of."""
    return [
        name
        for name, digest in expected_checksums().items()
        if (folder() / name).is_file() and checksum(folder() / name) != digest
    ]
