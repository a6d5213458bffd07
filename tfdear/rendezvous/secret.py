# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The secret that the ranks of a job share, and by which they know each other.

The first source that is present wins: TFDEAR_SECRET (the text itself), TFDEAR_SECRET_FILE, and a
file of the user's, which is made on first use. `tfdear run` gives every job a secret of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pathlib
import secrets
import stat
from collections.abc import Mapping

from tfdear.rendezvous import certificates

TEXT_VARIABLE = "TFDEAR_SECRET"
_FILE, _INSECURE = "TFDEAR_SECRET_FILE", "TFDEAR_INSECURE"
VARIABLES = (TEXT_VARIABLE, _FILE, _INSECURE)  # What says where the secret is from.
# Whoever reaches a port may test guesses on what it answers: the secret must not be a password.
_FEWEST_CHARACTERS = 32
_MOST_CHARACTERS = 4096
_ADVICE = "Make one: python -c 'import secrets; print(secrets.token_hex(32))'."


@dataclasses.dataclass(frozen=True)
class Secret:
    """A secret and where it is from. Its text appears nowhere but in `value`."""

    value: bytes = dataclasses.field(repr=False)
    source: str  # For messages: a variable, or the path of a file.

    @property
    def fingerprint(self) -> str:
        """By which people compare secrets; nothing follows from it about the secret."""
        return certificates.derive(self.value, "tfdear 1 fingerprint", 4).hex()

    def __str__(self) -> str:
        return f"{self.source}, fingerprint {self.fingerprint}"


_taken: list[Secret] = []  # What `take` has taken out of the environment.


def new() -> str:
    """A new secret, for one job."""
    return secrets.token_hex(32)


def take() -> Secret | None:
    """This process's secret; None with TFDEAR_INSECURE=1, which does without.

    The text of TFDEAR_SECRET is taken out of the environment, which the processes that a script
    starts would inherit and which tools print.

    Raises:
        ValueError: A secret is too short, or its file is missing, or open to others.
    """
    found = current()
    if found is None or found.source != TEXT_VARIABLE:
        return found
    os.environ.pop(TEXT_VARIABLE, None)
    _taken[:] = [found]
    return found


def current() -> Secret | None:
    """As `take`, and the environment stays as it is."""
    others = {name: text for name in (TEXT_VARIABLE, _INSECURE) if (text := os.environ.get(name))}
    if _taken and others in ({}, {_INSECURE: "0"}):
        return _taken[0]
    return find(os.environ)


def find(environ: Mapping[str, str]) -> Secret | None:
    """The secret that these variables mean, whatever this process has taken; raises as `take`."""
    insecure = environ.get(_INSECURE, "")
    if insecure not in ("", "0", "1"):
        raise ValueError(f"{_INSECURE} must be 0 or 1. Received: {_INSECURE}={insecure!r}")
    if insecure == "1":
        return None
    if environ.get(TEXT_VARIABLE):
        return _checked(environ[TEXT_VARIABLE], TEXT_VARIABLE)
    if environ.get(_FILE):
        return _read(pathlib.Path(environ[_FILE]).expanduser(), f"{_FILE}=")
    path = _path_of_user(environ)
    if not os.path.exists(path):
        _make(path)
    return _read(path, "")


def _path_of_user(environ: Mapping[str, str]) -> pathlib.Path:
    home = environ.get("HOME", "")
    configured = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    # The second is of this machine alone: ranks of others say which secret they have.
    folders = [configured, environ.get("XDG_RUNTIME_DIR", "")]
    for folder in filter(None, folders):
        path = pathlib.Path(folder, "tfdear", "secret")
        # Unlike `path.exists()`, it does not raise where a folder may not be read.
        if os.path.exists(path) or _is_writable(path.parent):
            return path
    raise ValueError(
        "the ranks of a job know each other by a secret, and there is no place for one: neither "
        f"$XDG_CONFIG_HOME nor $HOME/.config can be written. Set {_FILE} or {TEXT_VARIABLE}. "
        f"{_ADVICE}"
    )


def _is_writable(folder: pathlib.Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _make(path: pathlib.Path) -> None:
    """Writes a new secret; where several processes do, the first one's stays."""
    draft = path.with_name(f".secret.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(new() + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link fails where the file is there already, on NFS too.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _read(path: pathlib.Path, prefix: str) -> Secret:
    what = f"{prefix}{path}"
    try:
        if not path.is_file():
            what_is_wrong = "it is no regular file" if path.exists() else "there is no such file"
            raise FileNotFoundError(errno.ENOENT, what_is_wrong)
        with path.open(encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"the job's secret cannot be read from {what}: {reason}.") from None
    if facts.st_uid not in (os.getuid(), 0):
        raise ValueError(
            f"the job's secret would come from {what}, which belongs to another user (uid "
            f"{facts.st_uid}, this process has {os.getuid()}). Use a file of your own."
        )
    if facts.st_uid == os.getuid() and facts.st_mode & 0o077:
        raise ValueError(
            f"others can read or write {what}, which holds the job's secret (mode "
            f"{stat.S_IMODE(facts.st_mode):04o}). Run: chmod 600 {path}"
        )
    return _checked(text, what)


def _checked(text: str, source: str) -> Secret:
    stripped = text.strip()
    if not _FEWEST_CHARACTERS <= len(stripped) <= _MOST_CHARACTERS:
        raise ValueError(
            f"the job's secret, from {source}, must have {_FEWEST_CHARACTERS} to "
            f"{_MOST_CHARACTERS} characters. Received: {len(stripped)}. {_ADVICE}"
        )
    return Secret(stripped.encode(), source)
