# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Schedules and bucket sizes change when things happen, not what comes out."""

import collections

import case_reports
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

TRAININGS = "single_steps,several_steps,adversaries,adversaries_in_a_loop"
# World size, schedule, bucket bytes, most milliseconds of delay before a collective.
SETTINGS = {
    "dear": ("dear", 4096, 5),
    "wfbp": ("wfbp", 4096, 5),
    "sequential": ("sequential", 4096, 0),
    "1 byte": ("dear", 1, 0),
    "1 KiB": ("wfbp", 1024, 5),
    "1 GiB": ("dear", 1 << 30, 0),
    "wide": ("dear", 1 << 20, 0),
    # Without delays, a loopback may be done before the next step begins.
    "wide and slow": ("dear", 1 << 20, 20),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    done = {}

    def run_once(world_size, setting, cases=TRAININGS):
        key = (world_size, setting, cases)
        if key not in done:
            schedule, bucket_bytes, delay = SETTINGS[setting]
            env = {
                "TFDEAR_SCHEDULE": schedule,
                "TFDEAR_BUCKET_BYTES": str(bucket_bytes),
                "TFDEAR_MAX_DELAY_MS": str(delay),
            }
            directory = tmp_path_factory.mktemp("job")
            done[key] = case_reports.run_job(
                "schedule_job.py", world_size, directory, cases=cases, env=env
            )
        return done[key]

    return run_once


# "1 KiB" is wfbp, too.
@pytest.mark.parametrize(
    "setting",
    ["1 KiB"]
    + [
        pytest.param(setting, marks=pytest.mark.long)
        for setting in ("sequential", "wfbp", "1 byte", "1 GiB")
    ],
)
def test_two_ranks_get_the_same_bits(run, setting):
    reference, reports = run(2, "dear"), run(2, setting)
    for case in TRAININGS.split(","):
        case_reports.check_ranks_equal(reports, case)
        case_reports.check_identical(reports[0], reference[0], case)


@pytest.mark.long
@pytest.mark.parametrize(
    "world_size, setting, other",
    [
        (3, "1 byte", "1 GiB"),
        (4, "dear", "1 KiB"),
        (4, "dear", "sequential"),
        (4, "dear", "wfbp"),
    ],
)
def test_more_ranks_get_the_same_bits(run, world_size, setting, other):
    cases = "several_steps,adversaries_in_a_loop"
    reference, reports = run(world_size, setting, cases), run(world_size, other, cases)
    for case in cases.split(","):
        case_reports.check_ranks_equal(reports, case)
        case_reports.check_identical(reports[0], reference[0], case)


Event = collections.namedtuple("Event", "kind ticket subject detail begin end")
COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")


def record(report):
    """The events of a rank."""
    stored = report["events"]
    return [
        Event(str(kind), int(numbers[0]), int(numbers[1]), int(numbers[2]), *numbers[3:])
        for kind, numbers in zip(stored["kind"], stored["numbers"], strict=True)
    ]


@pytest.fixture(scope="module")
def records(run):
    return [record(report) for report in run(2, "wide", "events")]


def test_every_rank_has_the_same_order_of_collectives(records):
    orders = [
        [(e.kind, e.ticket, e.subject) for e in events if e.kind in COLLECTIVES]
        for events in records
    ]
    assert len(orders[0]) > 20
    assert orders[0] == orders[1]


def test_no_read_sees_a_value_before_its_update(records):
    for events in records:
        reads = [event for event in events if event.kind == "read"]
        assert any(event.ticket > 0 for event in reads)
        assert all(event.ticket == event.detail for event in reads)


def test_reduce_scatters_begin_before_the_backward_pass_ends(records):
    for events in records:
        steps = collections.defaultdict(lambda: ([], []))
        for event in events:
            if event.kind == "contribute":
                steps[event.ticket][0].append(event.end)
            elif event.kind == "reduce_scatter":
                steps[event.ticket][1].append(event.begin)
        gradients = [step for step in steps.values() if step[1]]
        assert len(gradients) == 10
        early = [min(begins) < max(ends) for ends, begins in gradients]
        # As a rule: the first step traces, and a busy machine delays others.
        assert sum(early) > len(early) // 2, early


def test_all_gathers_overlap_the_next_forward_pass(run):
    for events in map(record, run(2, "wide and slow", "events")):
        tickets = sorted({event.ticket for event in events if event.kind == "all_gather"})
        overlapped = 0
        for ticket, following in zip(tickets, tickets[1:], strict=False):
            gathered = max(e.end for e in events if e.kind == "all_gather" and e.ticket == ticket)
            gradients = [e for e in events if e.kind == "contribute"]
            backward_end = max(e.end for e in gradients if e.ticket == ticket)
            next_backward = min(e.end for e in gradients if e.ticket == following)
            # Reads between two backward passes belong to the forward pass. Its functions may wait
            # for a variable several times, the outermost first; computation follows the last.
            last_read = {}
            for event in events:
                if event.kind == "read" and backward_end < event.end < next_backward:
                    last_read[event.subject] = event.end
            overlapped += any(end < gathered for end in last_read.values())
        assert overlapped >= (len(tickets) - 1) // 2, (overlapped, len(tickets))
