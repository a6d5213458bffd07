# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a step takes for the next batch's ids is what the next step looks up."""

import itertools
import json
import pathlib

import pytest
import ranks as ranks_module

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

_JOB = pathlib.Path(__file__).parent / "jobs/next_ids_job.py"
# Lookups of a table in a row, without an evaluation: of each the next but for the last.
_STEPS = {
    "fit": [6, 6],
    "fit_many_steps": [6, 6],
    "fit_arrays": [6, 6],
    "fit_ragged": [6, 6],
    "loop_reading": [6],
    "loop_many_steps": [6],
    "loop_arguments": [5],
    "loop_of_functions": [5],
}
_WITHOUT = ("at_random", "generator")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    directory = tmp_path_factory.mktemp("next_ids")
    results = ranks_module.run_ranks(2, str(_JOB), timeout=300, arguments=(str(directory),))
    for code, output in results:
        assert code == 0, output[-5000:]
    return [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(2)]


def _by_table(lookups):
    tables = {}
    for name, ids, expected in lookups:
        tables.setdefault(name, []).append((ids, expected))
    return tables


@pytest.mark.timeout(360)
@pytest.mark.parametrize("case", _STEPS)
def test_the_next_step_looks_up_what_was_expected(seen, case):
    for of_rank in seen:
        tables = _by_table(of_rank[case])
        assert len(tables) == (2 if case == "fit_arrays" else 1)
        for lookups in tables.values():
            starts = [0, *itertools.accumulate(_STEPS[case])]
            for start, end in itertools.pairwise(starts):
                epoch = lookups[start:end]
                assert len(epoch) == end - start
                for (_, expected), (ids, _) in itertools.pairwise(epoch):
                    assert expected == ids
                assert epoch[-1][1] == []


@pytest.mark.timeout(360)
@pytest.mark.parametrize("case", _WITHOUT)
def test_no_hint_for_what_is_drawn_or_read_in_step(seen, case):
    for of_rank in seen:
        assert of_rank[case]
        assert all(expected is None for _, _, expected in of_rank[case])


@pytest.mark.timeout(360)
def test_a_function_of_other_data_expects_nothing(seen):
    for of_rank in seen:
        assert len(of_rank["loop_over_other_data"]) == 5
        assert all(expected == [] for _, _, expected in of_rank["loop_over_other_data"])


@pytest.mark.timeout(360)
def test_a_rank_whose_data_end_earlier_expects_nothing_more(seen):
    for rank, batches in enumerate((4, 3)):
        lookups = seen[rank]["own_data"]
        assert len(lookups) == 8
        for start in (0, 4):
            for step in range(3):
                expected, (ids, _) = lookups[start + step][2], lookups[start + step + 1][1:]
                assert expected == (ids if step + 1 < batches else [])
