# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Training from a cache that was killed within an epoch goes on with the next batch."""

import pathlib

import numpy as np
import pytest
import ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(400)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "cache_resume_job.py"
_EXAMPLES, _BATCH, _EPOCHS, _SAVED_EVERY = 103, 8, 3, 3
_STEPS = -(-_EXAMPLES // _BATCH)


def _run(directory, world_size, task, **env):
    results = ranks.run_ranks(
        world_size,
        _JOB,
        lambda rank: {name: str(value) for name, value in env.items()},
        timeout=120,
        arguments=(str(directory), task),
    )
    codes = [code for code, _ in results]
    if task == "crash":
        assert all(codes), codes
        return [], []
    assert codes == [0] * world_size, [output[-3000:] for _, output in results]
    stored = [np.load(directory / f"{task}_{rank}.npz") for rank in range(world_size)]
    parts = [[report[name] for name in report.files] for report in stored]
    return sorted(sum((seen.tolist() for seen, *_ in parts), [])), [rest for _, *rest in parts]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    seen, (weights, *others) = _run(tmp_path_factory.mktemp("train"), 2, "train")
    assert seen == list(range(_EPOCHS * _EXAMPLES))
    for other in others:
        np.testing.assert_equal(other, weights)
    return weights


def _first_place(kill_at):
    """The place of the first example after the last backup."""
    epoch, step = divmod(kill_at // _SAVED_EVERY * _SAVED_EVERY, _STEPS)
    return epoch * _EXAMPLES + step * _BATCH


@pytest.mark.parametrize(
    "kill_at",
    [
        pytest.param(step, marks=pytest.mark.long)
        if step != 16
        else pytest.param(step, marks=pytest.mark.newest_only)
        for step in (1, 3, 7, 13, 16, 20, 25, 26, 31, 38)
    ],
)
def test_a_killed_training_goes_on_bit_for_bit(tmp_path, expected, kill_at):
    _run(tmp_path, 2, "crash", CASE_KILL_AT=kill_at)
    seen, weights = _run(tmp_path, 2, "resume")
    assert seen == list(range(_first_place(kill_at), _EPOCHS * _EXAMPLES))
    for found in weights:
        np.testing.assert_equal(found, expected)
    assert not (tmp_path / "backup").exists()


@pytest.mark.newest_only
def test_it_may_be_killed_again_and_go_on_with_other_ranks(tmp_path, expected):
    # Killed after 17 steps, and after 8 more than were saved.
    _run(tmp_path, 4, "crash", CASE_KILL_AT=17)
    _run(tmp_path, 3, "crash", CASE_KILL_AT=8)
    seen, (found, _) = _run(tmp_path, 2, "resume")
    assert seen == list(range(_first_place(15 + 6), _EPOCHS * _EXAMPLES))
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("at_once", [2, 5])
def test_with_several_steps_at_once(tmp_path, at_once):
    expected_seen, (expected, *_) = _run(tmp_path, 2, "train", CASE_STEPS_PER_EXECUTION=at_once)
    assert expected_seen == list(range(_EPOCHS * _EXAMPLES))
    _run(tmp_path, 2, "crash", CASE_KILL_AT=18, CASE_STEPS_PER_EXECUTION=at_once)
    seen, weights = _run(tmp_path, 2, "resume", CASE_STEPS_PER_EXECUTION=at_once)
    assert 0 < len(seen) < _EPOCHS * _EXAMPLES
    assert seen == list(range(seen[0], _EPOCHS * _EXAMPLES))
    for found in weights:
        np.testing.assert_equal(found, expected)
