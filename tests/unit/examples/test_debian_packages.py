# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess

import pytest
from text.debian_packages import DebianPackages

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="there is no dpkg-deb here")


@pytest.fixture
def archive(tmp_path):
    """A package that lies where a fetched one would, so that nothing is fetched."""
    source = tmp_path / "source"
    (source / "DEBIAN").mkdir(parents=True)
    (source / "DEBIAN/control").write_text(
        "Package: sample\nVersion: 1:2.3\nArchitecture: all\n"
        "Maintainer: nobody\nDescription: none\n"
    )
    (source / "usr/share").mkdir(parents=True)
    (source / "usr/share/text").write_text("text")
    path = tmp_path / "sample_1%3a2.3_all.deb"
    subprocess.run(["dpkg-deb", "--build", source, path], check=True, capture_output=True)
    return path


def test_a_package_that_is_there_is_unpacked_once(archive, tmp_path):
    packages = DebianPackages(tmp_path)
    files = packages.unpack("sample")
    assert (files / "usr/share/text").read_text() == "text"
    (files / "usr/share/text").write_text("kept")
    assert packages.unpack("sample") == files
    assert (files / "usr/share/text").read_text() == "kept"
    assert packages.versions == {"sample": "1:2.3"}


def test_what_apt_does_not_know_is_said(tmp_path, monkeypatch):
    script = tmp_path / "apt-get"
    script.write_text("#!/bin/sh\necho E: no such package >&2; exit 100\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SystemExit, match="(?s)download sample failed.*no such package"):
        DebianPackages(tmp_path).unpack("sample")
