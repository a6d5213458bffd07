# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What statistics say of the parts of a step with tables: bytes of each, and what it waited."""

import json
import pathlib

import pytest
from ranks import run_ranks

_JOB = pathlib.Path(__file__).parent / "jobs" / "table_parts_job.py"


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("world_size", "schedule", "shared_memory"),
    [
        pytest.param(2, "2d", "1", marks=pytest.mark.long),
        (3, "2d", "0"),
        (3, "horizontal", "1"),
    ],
)
def test_bytes_are_those_of_the_ids(world_size, schedule, shared_memory, tmp_path):
    environment = {
        "TFDEAR_EMBEDDING_SCHEDULE": schedule,
        "TFDEAR_SHARED_MEMORY": shared_memory,
        "TFDEAR_MAX_DELAY_MS": "2",
    }
    for code, output in run_ranks(
        world_size, _JOB, environment, timeout=150, arguments=(str(tmp_path),)
    ):
        assert code == 0, output[-3000:]
    for rank in range(world_size):
        report = json.loads((tmp_path / f"rank_{rank}.json").read_text())
        seen = report["bytes"]
        whole = seen.pop("whole")
        assert report["looks_ahead"] == (schedule == "2d")
        for name, expected in report["expected"].items():
            assert seen[name] == {**expected, "whole": 0}, (rank, name)
        for part in ("early_vectors", "delayed"):
            assert (seen["columns"][part] > 0) == (schedule == "2d")
        assert whole.pop("whole") == report["gathered"] and not any(whole.values())
        assert (report["splits"] > 0) == (schedule == "2d")
        # Ops of every step wait for vectors, and no longer than the steps took.
        assert report["waits"] > 0
        assert 0 < report["stall"] <= report["elapsed"]
        for stall, time in zip(report["stalls"], report["times"], strict=True):
            assert 0 <= stall <= time + 1e-5


_ALONE = """
    import keras
    import numpy as np

    import tfdear

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), tfdear.layers.ShardedEmbedding(20, 4), keras.layers.Flatten(),
             keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    model.fit(np.arange(12).reshape(4, 3), np.zeros((4, 1)), verbose=0)
    statistics = strategy.statistics()
    assert statistics["stall"] == 0 and statistics["embeddings"] == {}, statistics
    print("waited for nobody")
"""


@pytest.mark.multi_process
def test_a_rank_alone_waits_for_nobody():
    ((code, output),) = run_ranks(1, _ALONE, timeout=100)
    assert code == 0 and "waited for nobody" in output, output[-3000:]
