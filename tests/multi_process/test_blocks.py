# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Gradients travel block by block, under every schedule, and no bit changes with it."""

import json
import pathlib

import pytest
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

_JOB = str(pathlib.Path(__file__).parent / "jobs" / "blocks_job.py")
COMPRESSION = "MSTopK(0.2, dense_below=0)"


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    done = {}

    def train_once(fusion, schedule="dear", world_size=2, nodes=1, **options):
        key = (fusion, schedule, world_size, nodes, *sorted(options.items()))
        if key in done:
            return done[key]
        directory = tmp_path_factory.mktemp("job")

        def environment(rank):
            return {
                "TFDEAR_FUSION": fusion,
                "TFDEAR_SCHEDULE": schedule,
                **({} if nodes == 1 else {"TFDEAR_NODE_RANK": str(rank * nodes // world_size)}),
                **{f"TFDEAR_{name.upper()}": value for name, value in options.items()},
            }

        with Ranks(world_size, _JOB, environment, (str(directory),)) as ranks:
            codes = ranks.wait(timeout=200)
            outputs = "\n".join(ranks.output(rank)[-4000:] for rank in range(world_size))
            assert codes == [0] * world_size, outputs
        reports = [directory / f"rank_{rank}.json" for rank in range(world_size)]
        done[key] = [json.loads(report.read_text()) for report in reports]
        for report in done[key]:
            assert report["weights"] == done[key][0]["weights"]
            # Timing decides at which step ranks take up a plan, but all take it up together.
            assert report["plans"] == done[key][0]["plans"]
        return done[key]

    return train_once


def check_buckets(report, exactly=True):
    """Each block is in one bucket, and with `exactly` there are no others."""
    table, *blocks = (set(block) for block in report["blocks"])
    for plan in report["plans"].values():
        buckets = [set(bucket) for bucket in plan["buckets"]]
        assert table in buckets
        assert sorted(map(sorted, buckets)) == sorted(map(sorted, [table, *blocks])) or not exactly
        for block in blocks:
            assert sum(bool(bucket & block) for bucket in buckets) == 1


def collectives(report):
    """By step: its plan, and what travelled as (kind, bucket), in the order in which it began."""
    steps = {}
    for kind, ticket, bucket, begin, _ in report["events"]:
        if kind not in ("step", "contribute") and str(ticket) in report["plans"]:
            steps.setdefault(ticket, []).append((begin, kind, bucket))
    # Of the last step some may not have begun when its batch ended.
    last = max(steps)
    return [
        (report["plans"][str(ticket)], [(kind, bucket) for _, kind, bucket in sorted(events)])
        for ticket, events in sorted(steps.items())
        if ticket < last
    ]


def block_of_buckets(report, plan):
    """The place of each bucket's block in the forward pass; 0 is the table's."""
    members = [set(bucket) for bucket in plan["buckets"]]
    return [
        next(place for place, block in enumerate(report["blocks"]) if set(block) & bucket)
        for bucket in members
    ]


SCHEDULES = [
    "dear",
    *(pytest.param(s, marks=pytest.mark.long) for s in ("wfbp", "sequential", "bytescheduler")),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_sends_blocks_and_gives_the_same_bits(train, schedule):
    reference, reports = train("FixedSize(4096)"), train("Blocks()", schedule)
    for report in reports:
        assert report["weights"] == reference[0]["weights"]
        assert report["loss"] == reference[0]["loss"]
        check_buckets(report)
        for plan, travelled in collectives(report):
            steps = [(s["phase"], s["bucket"]) for s in plan["steps"]]
            # The rows of the table have lanes of their own.
            table = block_of_buckets(report, plan).index(0)
            assert travelled == [step for step in steps if step[1] != table]


def test_blocks_come_back_in_the_order_of_the_forward_pass(train):
    for report in train("Blocks()"):
        seen = collectives(report)
        for plan, travelled in seen:
            blocks = block_of_buckets(report, plan)
            order = [(kind, blocks[bucket]) for kind, bucket in travelled]
            # No block overtakes one that is nearer to the front and reduced.
            last_reduced = {
                block: i for i, (kind, block) in enumerate(order) if kind == "reduce_scatter"
            }
            for place, (kind, block) in enumerate(order):
                if kind == "all_gather":
                    later = {b for k, b in order[place + 1 :] if k == "all_gather" and b < block}
                    assert all(last_reduced[b] > place for b in later), order
        # Before anything is measured it is the plain order of the schedule.
        plan, travelled = seen[0]
        blocks = block_of_buckets(report, plan)
        assert [blocks[bucket] for _, bucket in travelled] == [5, 4, 3, 2, 1, 1, 2, 3, 4, 5]


def test_planned_keeps_blocks_together(train):
    reference, reports = train("FixedSize(4096)"), train("Planned(Blocks())")
    for report in reports:
        assert report["weights"] == reference[0]["weights"]
        check_buckets(report, exactly=False)
        # On a link with so small a start-up neighbours share buckets only if that costs nothing.
        assert len(report["plans"]) >= 20


def test_groups(train):
    groups = 'Blocks(groups=[("lstm", "bidirectional"), "scores/kernel"])'
    reference, reports = train("FixedSize(4096)"), train(groups)
    for report in reports:
        assert report["weights"] == reference[0]["weights"]
        first, second, dense = report["blocks"][1], report["blocks"][2], report["blocks"][5]
        for plan in report["plans"].values():
            buckets = [sorted(bucket) for bucket in plan["buckets"]]
            assert sorted(first + second) in buckets
            assert dense[:1] in buckets


@pytest.mark.long
@pytest.mark.parametrize(
    "schedule", ["dear", pytest.param("bytescheduler", marks=pytest.mark.long)]
)
def test_blocks_in_two_levels(train, schedule):
    options = {"world_size": 4, "nodes": 2, "collective": "hierarchical"}
    reference = train("FixedSize(4096)", **options)
    for report in train("Blocks()", schedule, **options):
        assert report["weights"] == reference[0]["weights"]
        check_buckets(report)


@pytest.mark.long
def test_compressed_blocks(train):
    options = {"nodes": 2, "compression": COMPRESSION}
    reports, others = train("Blocks()", **options), train("Planned(Blocks())", "wfbp", **options)
    dense = train("FixedSize(4096)")
    for report in reports + others:
        # What is selected depends on buckets, which are the same.
        assert report["weights"] == reports[0]["weights"]
        assert report["weights"] != dense[0]["weights"]
        check_buckets(report)


def test_groups_that_do_not_fit_the_model_are_refused_on_all_ranks(tmp_path):
    variables = {"TFDEAR_FUSION": 'Blocks(groups=[("lstm", "gru")])'}
    with Ranks(2, _JOB, variables, (str(tmp_path),)) as ranks:
        codes = ranks.wait(timeout=200)
        assert 0 not in codes
        for rank in range(2):
            assert "'gru' of the groups of fusion.Blocks matches no path" in ranks.output(rank)
            assert "sequential/bidirectional" in ranks.output(rank)
