# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks send about the same number of bytes for sharded tables, however often which words occur."""

import json
import pathlib

import pytest
import ranks as ranks_module

_JOB = pathlib.Path(__file__).parent / "jobs" / "sharded_skew_job.py"
_ORDERS = ("by frequency", "alphabetical", "distinct", "one")


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.slow
@pytest.mark.parametrize(
    "world_size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4))]
)
def test_the_largest_share_is_hardly_more_than_the_mean(tmp_path, world_size):
    out = tmp_path / "sent"
    results = ranks_module.run_ranks(world_size, _JOB, timeout=200, arguments=(str(out),))
    assert [code for code, _ in results] == [0] * world_size, [o[-3000:] for _, o in results]
    sent = [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(world_size)]
    skews = {}
    for case in sent[0]:
        of_ranks = [each[case] for each in sent]
        assert min(of_ranks) > 0
        skews[case] = max(of_ranks) * world_size / sum(of_ranks)
    print(world_size, skews, sent[0])
    assert set(skews) == {f"{kind} {name}" for kind in ("column", "row") for name in _ORDERS}
    for name in _ORDERS:
        assert skews[f"column {name}"] <= 1.02, skews
        # One word lies on one rank, which alone sends its vector to all others.
        if name != "one":
            assert skews[f"row {name}"] <= 1.1, skews
