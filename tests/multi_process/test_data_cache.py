# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A cache that the ranks of a node share: the same batches for any number of ranks and nodes."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(240)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "data_cache_job.py"
_EXAMPLES = 1003
_RECORD_BYTES = 24


def _write_records(directory):
    for name, numbers in (("a", range(400)), ("b", range(400, _EXAMPLES))):
        with tf.io.TFRecordWriter(str(directory / f"{name}.tfrecord")) as writer:
            for number in numbers:
                writer.write(tf.io.serialize_tensor(np.int64(number)).numpy())


def _run(directory, world_size, memory="1MB", nodes=1, on_disk=None, placement="sharded"):
    if not directory.exists():
        directory.mkdir()
        _write_records(directory)
    env = {"CASE_PLACEMENT": placement}
    if on_disk is not None:
        env["CASE_DIRECTORY"] = str(on_disk)
    results = run_ranks(
        world_size,
        _JOB,
        lambda rank: {**env, "TFDEAR_NODE_RANK": str(rank * nodes // world_size)},
        timeout=120,
        arguments=(str(directory), memory),
    )
    for code, output in results:
        assert code == 0, output[-3000:]
    return [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (report,) = _run(tmp_path_factory.mktemp("alone") / "1", 1)
    return report


def _joined(reports, batch_size, epoch):
    """The batches of an epoch, of the rows of all ranks."""
    of_ranks = [report["seen"][str(batch_size)][epoch] for report in reports]
    return [sum(rows, []) for rows in zip(*of_ranks, strict=True)]


def test_one_process_sees_every_example_once(alone):
    for batch_size in (1, 64, 2000):
        epochs = [sum(_joined([alone], batch_size, epoch), []) for epoch in range(2)]
        for epoch in epochs:
            assert sorted(epoch) == list(range(_EXAMPLES))
        assert epochs[0] != epochs[1]
    assert alone["statistics"]["prepared"] == alone["afterwards"]["prepared"] == _EXAMPLES


@pytest.mark.parametrize(
    ("world_size", "nodes", "memory", "placement"),
    [
        (2, 1, "1MB", "sharded"),
        pytest.param(3, 1, "9KB", "sharded", marks=pytest.mark.newest_only),
        (4, 2, "1MB", "sharded"),
        pytest.param(3, 3, "3KB", "sharded", marks=pytest.mark.newest_only),
        pytest.param(4, 2, "1MB", "replicated", marks=pytest.mark.newest_only),
        pytest.param(3, 3, "0", "replicated", marks=pytest.mark.long),
        pytest.param(4, 4, "1MB", "sharded", marks=pytest.mark.long),
        pytest.param(4, 1, "1MB", "sharded", marks=pytest.mark.long),
    ],
)
def test_ranks_see_and_learn_the_same(tmp_path, alone, world_size, nodes, memory, placement):
    reports = _run(tmp_path / "job", world_size, memory, nodes, placement=placement)
    for batch_size in (1, 8, 64, 2000):
        for epoch in range(2):
            assert _joined(reports, batch_size, epoch) == _joined([alone], batch_size, epoch)
    # Of a batch of one, a rank in turn has the row; the others have none.
    assert {len(rows) for report in reports for rows in report["seen"]["1"][0]} == {0, 1}
    prepared = sum(report["afterwards"]["prepared"] for report in reports)
    held = sum(report["afterwards"]["held"] for report in reports)
    fetched = sum(report["afterwards"]["fetched"] for report in reports)
    served = sum(report["afterwards"]["served"] for report in reports)
    if memory == "1MB":
        # Once for the job, or for a node.
        copies = nodes if placement == "replicated" else 1
        assert prepared == held == copies * _EXAMPLES
    else:
        assert all(report["afterwards"]["full"] for report in reports)
        assert held == (0 if memory == "0" else 3 * (3000 // _RECORD_BYTES))
    if nodes == 1 or placement == "replicated":
        assert fetched == served == 0
    else:
        assert served >= fetched > 0
    for report in reports:
        for name, values in alone["history"].items():
            np.testing.assert_allclose(report["history"][name], values, rtol=1e-5)
        for one, other in zip(report["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert report["weights"] == reports[0]["weights"]
        np.testing.assert_allclose(
            report["predictions"], alone["predictions"], rtol=1e-4, atol=1e-6
        )


@pytest.mark.newest_only
def test_another_number_of_ranks_finds_what_others_left_on_disk(tmp_path, alone):
    for world_size, from_source in ((2, _EXAMPLES), (3, 0)):
        reports = _run(tmp_path / "job", world_size, on_disk=tmp_path / "disk")
        assert _joined(reports, 64, 1) == _joined([alone], 64, 1)
        for name, records in (
            ("source_records", from_source),
            ("disk_records", _EXAMPLES - from_source),
        ):
            assert sum(report["afterwards"][name] for report in reports) == records
    writers = {path.name.split("-")[1] for path in (tmp_path / "disk").glob("*/part-*")}
    assert writers == {"000", "001"}


_DIFFERENT = """
    import sys

    import tensorflow as tf

    import tfdear

    strategy = tfdear.DearStrategy()
    files = sys.argv[1 + strategy.rank % 2]
    cache = tfdear.data.DataCache(tfdear.data.TFRecordFiles(files))
"""


def test_ranks_with_different_files_are_told(tmp_path):
    _write_records(tmp_path)
    paths = tuple(str(tmp_path / f"{name}.tfrecord") for name in "ab")
    for code, output in run_ranks(2, _DIFFERENT, timeout=60, arguments=paths):
        assert code != 0
        assert "All ranks must make the same DataCache" in output
        assert f"by rank, sources: {[['TFRecordFiles', path] for path in paths]}" in output
