# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a killed job left in a cache's directory is taken up by the next one."""

import json
import pathlib
import random
import time

import pytest
import tensorflow as tf
from ranks import Ranks, run_ranks

from tfdear.data import disk_writer

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(120)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "cache_killed_job.py"
_EXAMPLES = 600
_SECONDS = 3.0  # For which a job reads and writes, at least.


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "records.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(_EXAMPLES):
            writer.write(b"%06d" % number * (1 + number % 60))
    return path


# Few of many moments are those in which something is written.
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))]
)
def test_what_a_job_wrote_until_it_was_killed_is_taken_up(source, tmp_path, seed):
    disk, report = tmp_path / "disk", tmp_path / "report"
    choice = random.Random(seed)

    # Two ranks prepare, each two examples at a time.
    def arguments(seconds):
        return tuple(map(str, (source, disk, report, seconds)))

    with Ranks(2, _JOB, arguments=arguments(8 * _SECONDS / _EXAMPLES)) as job:
        for rank in range(2):
            job.wait_for_output(rank, "begun", 120)
        time.sleep(choice.uniform(0, _SECONDS))
        for rank in choice.sample(range(2), choice.choice([1, 2])):
            job.processes[rank].kill_session()
        assert any(job.wait(timeout=120))
    # Two ranks may have written a record, if one of them was lost first.
    indices = [disk_writer.load_index(path) for path in disk.glob("*/index-*.npy")]
    indexed = len({number for index in indices for number in index["number"].tolist()})
    for code, output in run_ranks(2, _JOB, {}, timeout=150, arguments=arguments(0)):
        assert code == 0, output[-3000:]
        assert "damaged" not in output
    ranks = [json.loads(pathlib.Path(f"{report}.{rank}").read_text()) for rank in range(2)]
    for epoch in range(2):
        half = slice(epoch * _EXAMPLES // 2, (epoch + 1) * _EXAMPLES // 2)
        seen = [number for rank in ranks for number in rank["seen"][half]]
        assert sorted(seen) == list(range(_EXAMPLES))
    found = sum(rank["statistics"]["disk_records"] for rank in ranks)
    read = sum(rank["statistics"]["source_records"] for rank in ranks)
    # Each rank has looked at the first one before.
    assert found + read == _EXAMPLES + 2
    assert found >= indexed
    print(f"{indexed} records were in the index, {found} were found")
