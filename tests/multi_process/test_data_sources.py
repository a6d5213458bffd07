# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job read of a source, counted by the file system that it is on."""

import json
import pathlib

import lab_ranks
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks import observed_files

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(300)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "data_sources_job.py"
_FILES, _RECORDS_PER_FILE, _RECORD_BYTES = 4, 250, 4_000
_EXAMPLES = _FILES * _RECORDS_PER_FILE
_SOURCE_BYTES = _EXAMPLES * (_RECORD_BYTES + 16)
_EPOCHS = 3
# Of an example in memory.
_EXAMPLE_BYTES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of records of which each begins with its number."""
    directory = tmp_path_factory.mktemp("source")
    for file in range(_FILES):
        with tf.io.TFRecordWriter(str(directory / f"{file}.tfrecord")) as writer:
            for place in range(_RECORDS_PER_FILE):
                number = np.int64(file * _RECORDS_PER_FILE + place)
                writer.write(number.tobytes().ljust(_RECORD_BYTES, b"."))
    return directory


def _run(folder, tmp_path, cases):
    """A job of two ranks on each of two nodes; returns what each rank reports."""
    with (
        observed_files.ObservedFiles(folder, tmp_path / "source") as observed,
        netlab.temporary(2, rate=None) as lab,
    ):
        arguments = [str(tmp_path / "report"), str(observed.path), json.dumps(cases)]
        lab_ranks.run(lab.with_ranks(2), _JOB, arguments, tmp_path, {}, timeout=150)
    reports = [json.loads((tmp_path / f"report.{rank}").read_text()) for rank in range(4)]
    return {case["name"]: [report[case["name"]] for report in reports] for case in cases}


def _of_epochs(ranks, count):
    """How much of something was counted in each epoch, in the source or by all ranks."""
    if count in ("bytes", "lists"):
        return np.diff([counts[count] for counts in ranks[0]["counts"]]).tolist()
    if count == "calls":
        return np.sum([rank["calls"] for rank in ranks], 0).tolist()
    each = [[0, *(epoch[count] for epoch in rank["statistics"])] for rank in ranks]
    return np.diff(np.sum(each, 0)).tolist()


@pytest.mark.skipif(
    observed_files.missing() is not None, reason=observed_files.missing() or "it is there"
)
def test_a_job_reads_a_source_once(folder, tmp_path):
    disk = str(tmp_path / "disk")
    cases = [
        {"name": "plain", "pipeline": "plain"},
        {"name": "cache()", "pipeline": "cache()"},
        {"name": "sharded", "disk": disk},
        {"name": "replicated", "placement": "replicated"},
        {"name": "half", "memory": _EXAMPLE_BYTES * _EXAMPLES // 4},
    ]
    done = _run(folder, tmp_path, cases)
    done |= _run(folder, tmp_path, [{"name": "again", "disk": disk}])
    for name, ranks in done.items():
        for epoch in range(_EPOCHS):
            seen = [number for rank in ranks for number in rank["seen"][epoch]]
            assert sorted(seen) == list(range(_EXAMPLES)), name
    once, none = [_EXAMPLES, 0, 0], [0, 0, 0]
    # All ranks run a plain pipeline.
    assert _of_epochs(done["plain"], "bytes") == [4 * _SOURCE_BYTES] * 3
    assert _of_epochs(done["plain"], "calls") == [4 * _EXAMPLES] * 3
    assert _of_epochs(done["cache()"], "bytes") == [4 * _SOURCE_BYTES, 0, 0]
    for name, copies in (("sharded", 1), ("replicated", 2)):
        first, *later = _of_epochs(done[name], "bytes")
        assert copies * _SOURCE_BYTES <= first <= (copies + 0.01) * _SOURCE_BYTES
        assert later == [0, 0]
        assert _of_epochs(done[name], "calls") == [copies * _EXAMPLES, 0, 0]
        # One rank lists the only folder.
        assert _of_epochs(done[name], "lists") == [1, 0, 0]
    assert _of_epochs(done["again"], "bytes") == none
    assert _of_epochs(done["again"], "calls") == once
    # What is not in the memory of some node is read by the rank that needs it.
    half = done["half"]
    first, *later = _of_epochs(half, "bytes")
    assert first <= 1.51 * _SOURCE_BYTES
    assert later == [_SOURCE_BYTES // 2] * 2
    assert _of_epochs(half, "calls")[1:] == [_EXAMPLES // 2] * 2
    hits = np.add(_of_epochs(half, "hits"), _of_epochs(half, "fetched"))
    assert hits[1:].tolist() == [_EXAMPLES // 2] * 2


_SHARED = """
    import os
    import sys

    import numpy as np
    import tensorflow as tf

    import tfdear
    from tfdear.data import image_folder, shared_listing, source_files
    from tfdear.job import job

    strategy = tfdear.DearStrategy()
    share = shared_listing.among(job.current())
    own = []

    def find(part):
        own.append(part)
        values = np.random.default_rng(part).integers(1 << 60, size=part * 20_000)
        return {"values": values, "names": shared_listing.array_of([f"part {part}"] * part)}

    # More than is exchanged at a time.
    for part, found in enumerate(share(7, find)):
        np.testing.assert_array_equal(found["values"], find(part)["values"])
        assert shared_listing.texts_of(found["names"]) == [f"part {part}"] * part
    assert own[:-7] == list(range(strategy.rank, 7, strategy.world_size))
    assert share(0, find) == []

    def fails(part):
        if part == 4:
            raise tf.errors.DataLossError(None, None, "part 4 is damaged")
        return {}

    try:
        share(9, fails)
    except tf.errors.DataLossError as error:
        print("the error:", error.message)
    # A class is a part: who lists one looks at its files.
    listed = []
    look_at = source_files.look_at
    image_folder.look_at = lambda paths: (listed.extend(paths), look_at(paths))[1]
    folder = tfdear.data.ImageFolder(sys.argv[1])
    cache = tfdear.data.DataCache(folder)
    assert {os.path.basename(os.path.dirname(path)) for path in listed} == {
        f"class{label}" for label in range(strategy.rank, 4, strategy.world_size)
    }
    assert folder.classes == [f"class{label}" for label in range(4)]
    for content, label in cache.batches(11, shuffle=False):
        for number in range(len(label)):
            assert content[number].numpy().startswith(b"%d " % label[number].numpy())
    assert len(cache) == 1 + 2 + 3 + 4
    try:
        tfdear.data.DataCache(tfdear.data.TFRecordFiles("/nowhere/*"))
    except ValueError as error:
        print("the other error:", error)
"""


def test_ranks_share_what_each_found(tmp_path):
    for label in range(4):
        (tmp_path / f"class{label}").mkdir()
        for file in range(label + 1):
            (tmp_path / f"class{label}" / f"{file}.jpeg").write_text(f"{label} {file}")
    for code, output in run_ranks(3, _SHARED, timeout=100, arguments=(str(tmp_path),)):
        assert code == 0, output[-3000:]
        assert "the error: Rank 1: part 4 is damaged" in output
        assert "the other error: Rank 0: No file matches '/nowhere/*'" in output
