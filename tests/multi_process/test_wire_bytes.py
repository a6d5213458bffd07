# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The bytes that leave a rank are those of bandwidth-optimal algorithms, over so many connections
as it was told to use."""

import json
import os
import pathlib

import lab_ranks
import pytest

from tfdear.benchmarks import lab as netlab

_CONNECTIONS = 16
_JOB = pathlib.Path(__file__).parent / "jobs" / "wire_bytes.py"


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
@pytest.mark.parametrize(
    "world_size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4))]
)
def test_collectives_send_no_more_than_they_must(world_size, tmp_path):
    with netlab.temporary(world_size, rate=None) as lab:
        variables = {"TFDEAR_CONNECTIONS": str(_CONNECTIONS)}
        lab_ranks.run(lab, _JOB, [str(tmp_path / "sent.json")], tmp_path, variables, timeout=90)
    share = (world_size - 1) / world_size
    bound = {"reduce_scatter": share, "all_gather": share, "all_reduce": 2 * share}
    for rank in range(world_size):
        sent = json.loads((tmp_path / f"sent.{rank}").read_text())
        # TensorFlow's, the monitor's and those of other groups are far fewer.
        assert 1 <= sent.pop("connections") / (_CONNECTIONS * (world_size - 1)) < 2
        print(world_size, rank, {name: round(sent[name] / bound[name], 4) for name in bound})
        for name, least in bound.items():
            assert least <= sent[name] <= 1.05 * least, (name, sent[name], least)
