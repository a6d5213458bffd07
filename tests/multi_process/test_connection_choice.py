# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Gradients travel over as many connections as are fastest."""

import os
import pathlib

import lab_ranks
import pytest

from tfdear.benchmarks import lab as netlab

_JOB = pathlib.Path(__file__).parent / "jobs" / "connection_choice_job.py"

pytestmark = [
    pytest.mark.multi_process,
    pytest.mark.newest_only,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root"),
]


def _chosen(lab, directory):
    """What all ranks say, which is the same."""
    lab_ranks.run(lab, _JOB, [str(directory / "chosen")], directory, {}, timeout=90)
    chosen = {int((directory / f"chosen.{rank}").read_text()) for rank in range(len(lab.nodes))}
    assert len(chosen) == 1
    return chosen.pop()


def test_one_connection_has_all_of_a_plain_link(tmp_path):
    with netlab.temporary(2, rate="100mbit") as lab:
        assert _chosen(lab, tmp_path) == 1


def test_several_have_more_of_a_bundle_of_links(tmp_path):
    with netlab.temporary(2, rate="100mbit", paths=8) as lab:
        # All may fall on one path: once in some hundred times.
        assert any(_chosen(lab, tmp_path) > 1 for _ in range(3))
