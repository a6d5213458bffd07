# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Debian's packages, fetched and unpacked without being root and without being installed."""

from __future__ import annotations

import pathlib
import shutil
import subprocess


class DebianPackages:
    """Packages of the releases that this machine's apt knows.

    Lists and caches of apt are in a folder of their own: those of the system may be missing or
    old, and only root may renew them.

    Args:
        path: the folder for all of that.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._versions: dict[str, str] = {}
        self._renewed = False

    @property
    def versions(self) -> dict[str, str]:
        """The version of each package unpacked so far."""
        return dict(self._versions)

    def unpack(self, name: str) -> pathlib.Path:
        """Fetches a package unless it is there, and returns the folder with its files."""
        files = self._path / "files" / name
        archives = sorted(self._path.glob(f"{name}_*.deb"))
        if not archives:
            self._renew()
            self._apt("download", name)
            archives = sorted(self._path.glob(f"{name}_*.deb"))
        archive = archives[-1]
        if not files.is_dir():
            # Under another name at first, so that what was interrupted is not taken for all of it.
            unfinished = self._path / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            subprocess.run(["dpkg-deb", "-x", archive, unfinished], check=True)
            files.parent.mkdir(exist_ok=True)
            unfinished.rename(files)
        version = ["dpkg-deb", "-f", archive, "Version"]
        self._versions[name] = subprocess.run(
            version, check=True, capture_output=True, text=True
        ).stdout.strip()
        return files

    def _renew(self) -> None:
        if self._renewed:
            return
        (self._path / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (self._path / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        # A source that does not answer is no failure as long as another one has the packages.
        self._apt("update", check=False)
        self._renewed = True

    def _apt(self, *arguments: str, check: bool = True) -> None:
        options = {
            "Dir::State": self._path,
            "Dir::State::lists": self._path / "lists",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": self._path,
            "Dir::Cache::archives": self._path / "archives",
            # Where root calls this, apt's own user could not write here.
            "APT::Sandbox::User": "root",
        }
        settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        command = ["apt-get", "-q", *settings, *arguments]
        try:
            result = subprocess.run(command, cwd=self._path, capture_output=True, text=True)
        except FileNotFoundError:
            raise SystemExit(
                "There is no apt-get here. Run `make text` on Debian 12, and name the folder that "
                "it makes, build/text, in TFDEAR_TEXT."
            ) from None
        if check and result.returncode:
            raise SystemExit(
                f"apt-get {' '.join(arguments)} failed. The packages are Debian 12's; its mirror "
                f"must be among apt's sources and must answer. It said:\n{result.stderr.strip()}"
            )
