# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import pathlib

import pytest

from tfdear.base import memory
from tfdear.base.sizes import bytes_of


def _write(files):
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _proc(tmp_path, group):
    proc = tmp_path / "proc"
    _write({proc / "meminfo": "MemTotal: 8 kB\nMemAvailable:   4096 kB\n"})
    if group is not None:
        _write({proc / "self" / "cgroup": group})
    return str(proc)


@pytest.mark.parametrize("group", [None, "0::/\n", "0::/job/task\n"])
def test_what_the_system_has_left_counts(tmp_path, group):
    assert memory.available_bytes(_proc(tmp_path, group), str(tmp_path / "cgroup")) == 4096 << 10


@pytest.mark.parametrize("limited", ["job", "job/task"])
def test_limits_of_groups_count(tmp_path, limited):
    groups = tmp_path / "cgroup"
    for name in ("job", "job/task"):
        _write(
            {
                groups / name / "memory.max": "100000\n" if name == limited else "max\n",
                groups / name / "memory.current": "60000\n",
                groups / name / "memory.stat": "anon 10000\ninactive_file 5000\n",
            }
        )
    assert memory.available_bytes(_proc(tmp_path, "0::/job/task\n"), str(groups)) == 45000


def test_limits_of_the_older_groups_count(tmp_path):
    groups = tmp_path / "cgroup"
    group = groups / "memory" / "job"
    _write(
        {
            group / "memory.limit_in_bytes": "100000\n",
            group / "memory.usage_in_bytes": "120000\n",
            group / "memory.stat": "total_inactive_file 10000\n",
        }
    )
    proc = _proc(tmp_path, "7:cpu:/job\n5:memory:/job\n")
    assert memory.available_bytes(proc, str(groups)) == 0


def test_this_machine_has_some():
    total = pathlib.Path("/proc/meminfo").read_text().split()[1]
    assert 1 << 20 < memory.available_bytes() <= int(total) << 10


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0),
        (7, 7),
        ("12GiB", 12 << 30),
        ("1.5 kB".replace("k", "K"), 1500),
        ("2MB", 2000000),
        ("10", 10),
        ("0B", 0),
    ],
)
def test_sizes(size, expected):
    assert bytes_of(size, "memory") == expected


@pytest.mark.parametrize("size", [-1, "-1", "12 parsecs", "", "GiB", 1.5, True, None, "1e9"])
def test_what_is_no_size(size):
    with pytest.raises(ValueError, match="`memory` must be a number of bytes"):
        bytes_of(size, "memory")
