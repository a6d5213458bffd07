# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The job's secret: where it comes from, and what is refused."""

import concurrent.futures
import errno
import os
import stat

import pytest

from tfdear.rendezvous import certificates, secret

TEXT = "s" * 32


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path)}


def file_of(path, text=TEXT, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_keys_are_in_no_text():
    certificate = certificates.of_rank(b"x" * 40, 1)
    text = repr(certificate)
    assert "PRIVATE KEY" not in text and "data_key" not in text
    assert repr(certificate.key) not in text and repr(certificate.data_key) not in text


def test_sources_in_their_order(home, tmp_path):
    file = file_of(tmp_path / "file", "f" * 32 + "\n")
    of_file = home | {"TFDEAR_SECRET_FILE": file}
    assert secret.find(of_file | {"TFDEAR_SECRET": TEXT}).value == TEXT.encode()
    assert secret.find(of_file).value == b"f" * 32
    assert secret.find(of_file | {"TFDEAR_INSECURE": "1"}) is None
    assert secret.find(home | {"TFDEAR_INSECURE": "0", "TFDEAR_SECRET": TEXT}).value


def test_a_users_file_is_made_once_for_all_processes(home, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: secret.find(home), range(64)))
    assert len({one.value for one in found}) == 1 and len(found[0].value) == 64
    folder = tmp_path / ".config" / "tfdear"
    assert os.listdir(folder) == ["secret"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    elsewhere = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert secret.find(home | elsewhere).source.startswith(str(tmp_path / "config"))
    assert secret.find({"XDG_RUNTIME_DIR": str(tmp_path / "run")}).value != found[0].value


@pytest.mark.parametrize(
    "mode, text, words",
    [
        (0o640, TEXT, "others can read or write .*mode 0640.*chmod 600"),
        (0o602, TEXT, "others can read or write"),
        (0o600, "", "must have 32 to 4096 characters. Received: 0"),
        (0o600, "s" * 31, "Received: 31"),
        (0o600, "s" * 5000, "Received: 4097"),
    ],
)
def test_a_file_that_will_not_do(tmp_path, mode, text, words):
    file = file_of(tmp_path / "file", text, mode)
    with pytest.raises(ValueError, match=words) as caught:
        secret.find({"TFDEAR_SECRET_FILE": file})
    assert not text or text not in str(caught.value)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    wrong = "it is no regular file"
    for name, why in (("pipe", wrong), ("nothing", "there is no such file"), (".", wrong)):
        with pytest.raises(ValueError, match=f"cannot be read from TFDEAR_SECRET_FILE=.*: {why}"):
            secret.find({"TFDEAR_SECRET_FILE": str(tmp_path / name)})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user(tmp_path):
    file = file_of(tmp_path / "file")
    os.chown(file, 12345, 12345)
    with pytest.raises(ValueError, match="belongs to another user"):
        secret.find({"TFDEAR_SECRET_FILE": file})


def test_no_place_for_a_secret():
    with pytest.raises(ValueError, match="there is no place for one"):
        secret.find({})


def test_a_home_that_may_not_be_read_is_none(monkeypatch, tmp_path):
    """As that of root, for the user of a container."""
    closed = str(tmp_path / "closed")
    stat_of, make = os.stat, os.mkdir

    def refuse(call):
        def checked(path, *arguments, **options):
            if str(path).startswith(closed):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return call(path, *arguments, **options)

        return checked

    monkeypatch.setattr(os, "stat", refuse(stat_of))
    monkeypatch.setattr(os, "mkdir", refuse(make))
    with pytest.raises(ValueError, match="there is no place for one"):
        secret.find({"HOME": closed})
    elsewhere = str(tmp_path / "run")
    found = secret.find({"HOME": closed, "XDG_RUNTIME_DIR": elsewhere})
    assert found.source.startswith(elsewhere)


def test_insecure_is_said_in_full(home):
    with pytest.raises(ValueError, match="TFDEAR_INSECURE must be 0 or 1"):
        secret.find(home | {"TFDEAR_INSECURE": "yes"})


def test_a_secret_shows_its_fingerprint_only():
    found = secret.find({"TFDEAR_SECRET": TEXT})
    assert TEXT not in f"{found} {found!r}"
    assert found.fingerprint in str(found) and len(found.fingerprint) == 8
    assert found.fingerprint != secret.find({"TFDEAR_SECRET": TEXT + "s"}).fingerprint


def test_it_is_taken_out_of_the_environment(monkeypatch, tmp_path):
    file = file_of(tmp_path / "file", "f" * 32)
    monkeypatch.setattr(secret, "_taken", [])
    monkeypatch.setenv("TFDEAR_SECRET", TEXT)
    first = secret.take()
    assert "TFDEAR_SECRET" not in os.environ
    assert secret.take() == first  # A second strategy of this process.
    assert secret.current() == first
    assert secret.find({"TFDEAR_SECRET_FILE": file}).value == b"f" * 32  # As for another process.
    monkeypatch.setenv("TFDEAR_SECRET", "t" * 32)
    assert secret.take().value == b"t" * 32
