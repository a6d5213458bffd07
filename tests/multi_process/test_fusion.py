# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Plans of tensor fusion change while training runs, and nothing but time changes with them."""

import json
import pathlib
import re

import numpy as np
import pytest
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

_JOB = str(pathlib.Path(__file__).parent / "jobs" / "replanning_job.py")


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    done = {}

    def train_once(
        world_size, planner, schedule="dear", collective="ring", nodes=1, optimizer="adam"
    ):
        key = (world_size, planner, schedule, collective, nodes, optimizer)
        if key in done:
            return done[key]
        directory = tmp_path_factory.mktemp("job")
        variables = {
            "CASE_PLANNER": planner,
            "CASE_SCHEDULE": schedule,
            "CASE_COLLECTIVE": collective,
            "CASE_OPTIMIZER": optimizer,
        }

        def environment(rank):
            if nodes == 1:
                return variables
            return variables | {"TFDEAR_NODE_RANK": str(rank * nodes // world_size)}

        with Ranks(world_size, _JOB, environment, (str(directory),)) as ranks:
            codes = ranks.wait(timeout=200)
            outputs = "\n".join(ranks.output(rank)[-4000:] for rank in range(world_size))
            assert codes == [0] * world_size, outputs
        done[key] = [np.load(directory / f"rank_{rank}.npz") for rank in range(world_size)]
        return done[key]

    return train_once


def weights(report):
    return [report[key] for key in sorted(report.files) if key.startswith("w")]


def check_plans_changed(reports):
    # All planners in turn, some of which may agree with each other on so small a model.
    assert reports[0]["plans"] >= 5, reports[0]["seen"]
    for report in reports:
        assert report["seen"] == reports[0]["seen"], "ranks must have the same plans"
        assert report["retraces"] == 0


def check_close(reports, reference):
    """Ranks agree in every bit, and every weight with the reference within rounding.

    Gradients of about 0.1 were summed 120 times: what rounding leaves does not get smaller where a
    weight happens to be near 0.
    """
    expected = weights(reference[0])
    for report in reports:
        for value, first, other in zip(weights(report), weights(reports[0]), expected, strict=True):
            np.testing.assert_array_equal(value, first)
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


# Three ranks divide nothing evenly.
@pytest.mark.parametrize(
    "world_size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4))]
)
def test_any_plan_gives_the_same_bits(train, world_size):
    reference = train(world_size, "fixed")
    assert reference[0]["plans"] == 1
    reports = train(world_size, "rotation")
    check_plans_changed(reports)
    for report in [*reference, *reports]:
        np.testing.assert_array_equal(report["loss"], reference[0]["loss"])
        for value, expected in zip(weights(report), weights(reference[0]), strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    "schedule", [pytest.param(s, marks=pytest.mark.long) for s in ("bytescheduler", "wfbp")]
)
def test_schedules_with_changing_plans(train, schedule):
    reference = train(2, "fixed")
    reports = train(2, "rotation", schedule)
    check_plans_changed(reports)
    for report in reports:
        for value, expected in zip(weights(report), weights(reference[0]), strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.long
def test_trees_with_changing_plans(train):
    reference = train(3, "fixed", optimizer="sgd")
    reports = train(3, "rotation", collective="tree", optimizer="sgd")
    check_plans_changed(reports)
    check_close(reports, reference)


@pytest.mark.long
@pytest.mark.parametrize(
    "schedule", ["dear", pytest.param("bytescheduler", marks=pytest.mark.long)]
)
def test_any_plan_gives_the_same_bits_in_two_levels(train, schedule):
    # Within a node in the order of its ranks, then in the order of the nodes, whatever the bucket.
    reference = train(4, "fixed", collective="hierarchical", nodes=2)
    reports = train(4, "rotation", schedule, "hierarchical", nodes=2)
    check_plans_changed(reports)
    for report in [*reference, *reports]:
        for value, expected in zip(weights(report), weights(reference[0]), strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.long
def test_rings_between_nodes_with_changing_plans(train):
    # Two nodes of two ranks: sums go around a ring, in an order that depends on the bucket.
    reference = train(4, "fixed", nodes=2, optimizer="sgd")
    reports = train(4, "rotation", nodes=2, optimizer="sgd")
    check_plans_changed(reports)
    check_close(reports, reference)


def test_gradients_whose_shape_tensorflow_does_not_know_are_fused(tmp_path):
    script = str(pathlib.Path(_JOB).parent / "sequence_model_job.py")
    with Ranks(2, script, lambda rank: {}, (str(tmp_path),)) as ranks:
        assert ranks.wait(timeout=100) == [0, 0], ranks.output(0) + ranks.output(1)
    reports = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert reports[0]["weights"] == reports[1]["weights"]
    assert reports[0]["buckets"] == [0]


def test_a_search_ends_in_training_and_a_drift_begins_another(tmp_path):
    script = str(pathlib.Path(_JOB).parent / "searching_job.py")
    with Ranks(2, script, lambda rank: {}, (str(tmp_path),)) as ranks:
        assert ranks.wait(timeout=200) == [0, 0], ranks.output(0) + ranks.output(1)
    reports = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2)]
    weights_of_ranks = [np.load(tmp_path / f"rank_{rank}.npz") for rank in range(2)]
    for name in weights_of_ranks[0].files:
        np.testing.assert_array_equal(weights_of_ranks[0][name], weights_of_ranks[1][name])
    assert reports[0]["buckets"] == reports[1]["buckets"], "ranks must have the same plans"
    assert reports[1]["told"] == [], "rank 0 decides"

    told = reports[0]["told"]
    trials = "".join("w" if trial["was_done"] else "t" for trial in told)
    # Trials up to an end, at least as many looks as tell of a drift, trials up to an end.
    match = re.fullmatch(r"(t{7,10})(w{6,})(t{7,10})(w{3,})", trials)
    assert match, trials
    first, second = told[: match.end(1)], told[match.end(2) : match.end(3)]
    assert second[0]["size"] == first[-1]["best"], "the new search begins with the old best"
    for search in (first, second):
        assert len({trial["size"] for trial in search}) >= 4
    # What was fast in each stage: few buckets of the sixteen gradients, then one for each.
    assert buckets_of(first[-1]["best"]) <= 3, first
    assert buckets_of(second[-1]["best"]) == 16, second

    buckets, looks = (np.array(reports[0][key]) for key in ("buckets", "looks"))
    assert {buckets_of(trial["size"]) for trial in told} <= set(buckets)
    # The best plan stays from the end of a search on.
    for search, begin, end in ((first, 1, 2), (second, 3, 4)):
        watched = (looks > match.end(begin)) & (looks < match.end(end))
        assert watched.sum() >= 90
        assert set(buckets[watched]) == {buckets_of(search[-1]["best"])}


def buckets_of(size):
    """How many buckets of this size the sixteen equal gradients of the job make."""
    return -(-16 // max(1, size // (64 * 64 * 4)))
