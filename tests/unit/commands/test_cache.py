# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `tfdear cache` says and does."""

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


def test_the_command_refuses_what_is_no_directory(tmp_path, capsys):
    assert main(["cache", str(tmp_path / "nothing")]) == 2
    assert "there is no directory" in capsys.readouterr().err
