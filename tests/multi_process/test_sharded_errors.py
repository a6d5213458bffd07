# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Errors of sharded tables come on all ranks, and say which rank, layer, id and range."""

import itertools
import pathlib

import case_table
import pytest
import ranks as ranks_module

_JOB = pathlib.Path(__file__).parent / "jobs" / "sharded_errors_job.py"

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]


def outputs_of(world_size, *arguments):
    """What the ranks print until they end, with an error or without."""
    results = ranks_module.run_ranks(world_size, _JOB, timeout=200, arguments=arguments)
    return [code for code, _ in results], [output for _, output in results]


# One of each method and each id.
_USUAL = (
    ("fit", "20"),
    ("fit", "nan"),
    ("reversible", "-1"),
    ("evaluate", "-1"),
    ("predict", "20"),
    ("pooled", "20"),
)
_METHODS = ("fit", "evaluate", "predict", "pooled", "reversible")


def marks_of(case):
    if case == _USUAL[0]:
        return []
    return [pytest.mark.newest_only] + [pytest.mark.long] * (case not in _USUAL)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        pytest.param(*case, marks=marks_of(case))
        for case in itertools.product(_METHODS, ("20", "-1", "nan"))
    ],
)
def test_an_id_that_is_no_row_of_one_rank(method, given):
    codes, outputs = outputs_of(3, method, given)
    assert all(codes), outputs
    for output in outputs:
        assert "came to the end" not in output
        assert "layer 'words' (table of 20 x 6)" in output, output[-3000:]
        said = "(what a cast makes of NaN)" if given == "nan" else f"id {given}"
        assert f"{said} at place" in output and "not in [0, 20)" in output, output[-3000:]
    # The others say whose it is.
    (culprit,) = [rank for rank in range(3) if " failed: Invalid" not in outputs[rank]]
    for rank, output in enumerate(outputs):
        assert rank == culprit or f"rank {culprit} (host" in output, output[-3000:]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("rows", ("20 x 6", "24 x 6")),
        pytest.param("columns", ("20 x 6", "20 x 8"), marks=pytest.mark.long),
        ("order", ("users", "items")),
    ],
)
def test_ranks_that_disagree_on_tables(kind, expected):
    codes, outputs = outputs_of(2, kind)
    assert all(codes), outputs
    for output in outputs:
        assert "came to the end" not in output
        for text in expected:
            assert text in output, output[-3000:]
        assert "rank 0" in output and "rank 1" in output, output[-3000:]


def test_what_cannot_be_done_by_rows_is_refused():
    codes, outputs = outputs_of(2, "refusals")
    assert codes == [0, 0], outputs
    wanted = {
        "Adafactor": "optimizer of its own",
        "Lamb": "norms of all of",
        "UnitNorm": "keras.constraints.NonNeg",
    }
    if case_table.MUON_WORKS:
        wanted["Muon"] = "optimizer of its own"
    for output in outputs:
        refused = dict(
            line.removeprefix("refused ").split(": ", 1)
            for line in output.splitlines()
            if line.startswith("refused ")
        )
        assert refused.keys() == wanted.keys(), output[-3000:]
        for name, text in wanted.items():
            assert text in refused[name] and "layer 'words'" in refused[name], refused[name]
            assert "keras.layers.Embedding" in refused[name]
            if "optimizer of its own" in text:
                assert "keras.optimizers.MultiOptimizer" in refused[name]
