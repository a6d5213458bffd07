# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `tfdear cache` says and does."""

import fcntl
import threading

import tensorflow as tf

import tfdear
from tfdear.commands.main import main
from tfdear.data import disk_folder


def test_the_command_lists_checks_and_deletes(tmp_path, capsys):
    directory, path = tmp_path / "disk", str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(5):
            writer.write(f"{number}")
    cache = tfdear.data.DataCache(tfdear.data.TFRecordFiles(path), directory=directory)
    cache.fill()
    (folder,) = directory.iterdir()

    def say(*arguments):
        code = main(["cache", str(directory), *arguments])
        return code, capsys.readouterr().out

    assert "a job writes into it" in say()[1]
    assert "  not removed" in say("--remove")[1]
    (folder / "part-001-0000.tfrecord").write_bytes(b"the begin of a record")
    code, said = say("--verify")
    assert code == 0 and "  not checked: a job writes into it" in said
    (folder / "part-001-0000.tfrecord").unlink()
    cache.close()
    code, said = say()
    assert code == 0
    assert said.startswith(f"{folder}: 5 of 5 records, 0.0 MB; the first is {path}, record 0")
    assert say("--verify") == (0, said + "  all records are whole\n")
    (part,) = folder.glob("part-*")
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    (folder / "index-001.npy").write_bytes(b"nothing")
    code, said = say("--verify")
    assert code == 1
    assert f"  {part}: no whole record at byte {len(content) * 4 // 5} of {len(content)}" in said
    assert "index-001.npy: no index" in said
    with disk_folder.lock(folder):
        assert "  not removed" in say("--remove")[1]
    assert say("--remove")[1].endswith("  removed\n")
    assert list(directory.iterdir()) == []
    assert say() == (0, f"{directory} has no records of a cache.\n")


def test_folders_that_say_nothing_are_listed_and_those_of_others_are_not(tmp_path, capsys):
    directory, path = tmp_path / "disk", str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write("1")
    source = tfdear.data.TFRecordFiles(path)
    # A folder of where the records are, and another one of examples.
    cache = tfdear.data.DataCache(source, directory=directory, disk_holds="prepared")
    cache.fill()
    cache.close()
    cache_folders = set(directory.iterdir())
    assert len(cache_folders) == 2
    for name, content in (("other", "[1]"), ("0" * 32, "{}"), ("1" * 32, "")):
        (directory / name).mkdir()
        (directory / name / "about.json").write_text(content)
    (directory / ("0" * 32) / "other").write_text("of another program")
    assert main(["cache", str(directory), "--remove"]) == 0
    said = capsys.readouterr().out
    for folder in cache_folders:
        assert f"{folder}: " in said
    assert said.count("of 1 records, 0.0 MB; the first is") == 2
    text = f"{directory / ('1' * 32)}: 0 records, 0.0 MB; nothing says of which source it is"
    assert text in said
    assert {folder.name for folder in directory.iterdir()} == {"other", "0" * 32}


def test_a_job_that_starts_while_somebody_looks_may_write(tmp_path):
    (tmp_path / "lock").touch()
    assert not disk_folder.is_locked(tmp_path)
    with (tmp_path / "lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)  # As `is_locked` has it for a moment.
        assert not disk_folder.is_locked(tmp_path)
        timer = threading.Timer(0.05, looking.close)
        timer.start()
        with disk_folder.lock(tmp_path):
            assert disk_folder.is_locked(tmp_path)
        timer.join()


def test_the_command_refuses_what_is_no_directory(tmp_path, capsys):
    assert main(["cache", str(tmp_path / "nothing")]) == 2
    assert "there is no directory" in capsys.readouterr().err
