# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The memory of a cache ends before the machine has none left, and a warning says so."""

import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear.data import cache_options, memory_bound

pytestmark = pytest.mark.timeout(180)


def read(cache, epochs):
    for _ in range(epochs):
        numbers = [batch[:, 0] for batch in cache.batches(16).as_numpy_iterator()]
        assert sorted(np.concatenate(numbers).tolist()) == list(range(len(cache)))


def test_a_bound_ends_the_filling_with_one_warning(caplog):
    cache = tfdear.data.DataCache(
        tf.data.Dataset.range(2000), lambda number: tf.fill([1000], number), memory="8MB"
    )
    read(cache, 1)
    first = cache.statistics()
    read(cache, 2)
    statistics = cache.statistics()
    assert statistics["full"]
    assert 0.98 * 8e6 < statistics["held_bytes"] <= 8e6
    # What is held is found in every later epoch, and nothing else.
    assert statistics["hits"] - first["hits"] == 2 * first["held"]
    assert statistics["prepared"] - first["prepared"] == 2 * (2000 - first["held"])
    (warning,) = [record for record in caplog.records if "DataCache: memory" in record.message]
    assert "since its bound is reached" in warning.message
    assert f"holds {statistics['held']} of this rank's 2000 examples" in warning.message


def test_what_is_promised_to_one_cache_is_not_promised_to_another():
    before = memory_bound.promised_bytes()
    cache = tfdear.data.DataCache(tf.data.Dataset.range(5), memory="1TiB")
    assert memory_bound.promised_bytes() == before + (1 << 40)
    assert cache_options.memory_bytes_of(None) == 0
    cache.fill()  # It needs no more.
    assert memory_bound.promised_bytes() == before
    assert cache_options.memory_bytes_of(None) > 0
    tfdear.data.DataCache(tf.data.Dataset.range(5), memory=0)
    assert memory_bound.promised_bytes() == before


_SCRIPT = """
import os, pathlib, sys
import tensorflow as tf
import tfdear
group, limit, usage = pathlib.Path(sys.argv[1]), *sys.argv[2:]
(group / "cgroup.procs").write_text(str(os.getpid()))
left = 400 << 20
(group / limit).write_text(str(int((group / usage).read_text()) + left))
cache = tfdear.data.DataCache(
    tf.data.Dataset.range(10000), lambda number: tf.fill([10000], number), memory="790MB"
)
seen = sum(int(batch[:, 0].numpy().sum()) for batch in cache.batches(16))
assert seen == sum(range(10000)), seen
statistics = cache.statistics()
print(statistics["full"], statistics["held_bytes"] >> 20)
"""


def _group():
    """A new control group of memory, and the names of its limit and its usage."""
    own = dict(
        line.split(":", 2)[1:]
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    )
    if "memory" in own:
        parent = pathlib.Path("/sys/fs/cgroup/memory") / own["memory"].lstrip("/")
        names = "memory.limit_in_bytes", "memory.usage_in_bytes"
    else:
        parent, names = pathlib.Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
    group = parent / f"tfdear-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    if not (group / names[0]).exists():
        group.rmdir()
        pytest.skip("control groups do not limit memory here")
    return group, *names


@pytest.mark.newest_only
def test_a_limit_below_the_bound_kills_nobody():
    group, *names = _group()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(_SCRIPT), str(group), *names],
            timeout=120,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        full, mebibytes = ended.stdout.split()[-2:]
        assert full == "True"
        assert 100 < int(mebibytes) < 400
        assert "MiB left on this node" in ended.stderr
    finally:
        group.rmdir()
