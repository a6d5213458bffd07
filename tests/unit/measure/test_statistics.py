# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Statistics of steps, from records written down by hand."""

import numpy as np
import pytest
from event_rows import dear_step, dear_steps, record, row

from tfdear.measure import steps as statistics
from tfdear.measure.steps import StepStatistics
from tfdear.planning import cost_model
from tfdear.planning.bounds import Bounds, make_bounds


def milliseconds(step, *names):
    return [round(step[name] * 1000, 3) for name in names]


def test_windows_are_cut_at_the_first_and_the_last_gradient():
    windows = statistics.step_windows(dear_steps(3))
    assert windows["ticket"].tolist() == [0, 1, 2]
    assert windows["layout"].tolist() == [7, 7, 7]
    assert windows["begin"].tolist() == [5000, 105000, 205000]
    assert windows["first_gradient"].tolist() == [35000, 135000, 235000]
    assert windows["last_gradient"].tolist() == [85000, 185000, 285000]
    assert windows["end"].tolist() == [105000, 205000, 285000]


def test_a_step_that_was_opened_early_begins_when_the_one_before_is_done():
    rows = record(*dear_step(0, 0), *dear_step(1, 100), row("step", 2, 7, 2, 120, 120))
    early = record(*rows, row("contribute", 2, 0, 0, 230, 231))
    windows = statistics.step_windows(early)
    assert windows["begin"].tolist() == [0, 100000, 180000]
    assert windows["end"][1] == 180000


def test_a_step_without_gradients_is_none():
    rows = record(*dear_step(0, 0), row("step", 1, 7, 2, 90, 90), *dear_step(2, 100))
    assert statistics.step_windows(rows)["ticket"].tolist() == [0, 2]
    nothing = statistics.step_windows(record())
    assert len(nothing) == 0
    assert StepStatistics().add(record())["overlap"] is None


def test_sums_of_a_piece():
    summary = StepStatistics().add(dear_steps(4))
    assert summary["steps"] == 4
    names = ("reduce_scatter", "all_gather", "all_reduce", "update", "communication", "exposed")
    # Hidden: 10 of the first (12 ms of computation in 10 ms on the line), 10, 4 and 2.
    assert milliseconds(summary, *names) == [120, 48, 0, 16, 168, 64]
    assert summary["overlap"] == pytest.approx(26 / 42)
    assert summary["bytes"] == 16000
    assert summary["payload"]["all_gather"] == 16000


def test_passes_of_a_step_hold_no_exposed_communication():
    first, second = StepStatistics().add(dear_steps(4))["per_step"]
    assert [first["ticket"], second["ticket"]] == [0, 1]
    names = ("time", "forward", "backward", "other", "exposed", "communication", "update")
    # Nothing came before the first step; in the second's forward pass, 4 + 2 ms are exposed. Of
    # the last reduce-scatter's 20 ms, all behind the last gradient, 10 are.
    assert milliseconds(first, *names) == [100, 30, 50, 10, 16, 42, 4]
    assert milliseconds(second, *names) == [100, 24, 50, 10, 16, 42, 4]
    assert first["bytes"] == 4000


def with_stalls(rows):
    """The record with periods in which ops waited, and splits of ids, in every step."""
    stalls = [
        stall
        for window in statistics.step_windows(rows)
        for at in [window["begin"] / 1000]
        for stall in (
            row("wait", 0, 0, 3, at + 5, at + 15, 4),
            row("embedding_split", 3, 0, 9, at + 10, at + 20),
            row("embedding_split", 3, 1, 9, at + 19, at + 21),
            row("embedding_split", 3, 0, 9, at + 6, at + 8),
            row("wait", 0, 0, 1, at + 50, at + 52, 7),
        )
    ]
    return record(*rows, *stalls)


def test_stall_is_what_waits_did_not_compute_and_the_time_of_splits():
    # Six of the first wait; of the splits, which are on the line from 10 to 21, six outside of it;
    # nothing of the second wait.
    rows = with_stalls(dear_steps(4))
    summary = StepStatistics().add(rows)
    assert milliseconds(summary, "stall") == [4 * 12]
    assert [milliseconds(step, "stall") for step in summary["per_step"]] == [[12], [12]]
    assert statistics.average(summary["per_step"])["stall"] == pytest.approx(0.012)
    without = StepStatistics().add(dear_steps(4))
    assert without["stall"] == 0
    for name in ("time", "forward", "backward", "other", "exposed"):
        for step, same in zip(summary["per_step"], without["per_step"], strict=True):
            assert step[name] == same[name]


def test_a_wait_across_steps_counts_in_both():
    wait = row("wait", 0, 0, 2, 95, 125, 15)  # The second step begins at 105.
    first, second = StepStatistics().add(record(*dear_steps(4), wait))["per_step"]
    assert milliseconds(first, "stall") + milliseconds(second, "stall") == [5, 10]


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_a_record_give_the_steps_of_the_whole(seed):
    rows = with_stalls(dear_steps(12, pauses={5: 400}))
    whole = StepStatistics().add(rows)
    cuts = np.sort(np.random.RandomState(seed).randint(0, len(rows), 9))
    reader = StepStatistics()
    pieces = [reader.add(piece) for piece in np.split(rows, cuts)]
    assert [step for piece in pieces for step in piece["per_step"]] == whole["per_step"]
    assert len(whole["per_step"]) == 10
    assert sum(piece["bytes"] for piece in pieces) == whole["bytes"]
    assert {round(step["stall"], 9) for step in whole["per_step"]} == {0.012}
    for phase in ("reduce_scatter", "all_gather", "update", "exposed"):
        assert sum(piece[phase] for piece in pieces) == pytest.approx(whole[phase])


def test_a_gap_in_the_record_is_no_long_step():
    rows = dear_steps(40)
    statistics_of_job = StepStatistics()
    statistics_of_job.add(rows[rows["ticket"] <= 5])
    statistics_of_job.forget()
    steps = statistics_of_job.add(rows[rows["ticket"] >= 25])["per_step"]
    assert [step["ticket"] for step in steps] == list(range(25, 38))
    assert {round(step["time"], 6) for step in steps} == {0.1}


def test_updates_of_rows_are_updates():
    rows = record(*dear_steps(4), row("row_update", 1, 9, 1, 230, 235))
    summary = StepStatistics().add(rows)
    assert milliseconds(summary, "update") == [21]
    assert milliseconds(summary["per_step"][1], "update") == [9]


def test_a_pause_between_epochs_does_not_move_the_typical_step():
    steps = StepStatistics().add(dear_steps(12, pauses={5: 9000}))["per_step"]
    average = statistics.average(steps)
    assert average["typical_time"] == pytest.approx(0.1)
    assert average["typical_forward"] == pytest.approx(0.024)
    assert average["time"] == pytest.approx(0.1 + 9.0 / 10)
    assert average["overlap"] == pytest.approx(26 / 42)
    assert statistics.average([]) is None


def test_bandwidths_are_those_of_nccl_tests():
    rows = record(
        row("reduce_scatter", 0, 0, 8_000_000, 0, 10),
        row("all_gather", 0, 0, 8_000_000, 10, 30),
        row("all_reduce", 1, 0, 6_000_000, 40, 60),
        row("broadcast", 2, 0, 4_000_000, 60, 70),
    )
    algbw, busbw = statistics.bandwidths(StepStatistics().add(rows), world_size=4)
    assert {phase: round(rate * 1e-6) for phase, rate in algbw.items()} == {
        "reduce_scatter": 800,
        "all_gather": 400,
        "all_reduce": 300,
        "broadcast": 400,
    }
    assert {phase: round(rate * 1e-6) for phase, rate in busbw.items()} == {
        "reduce_scatter": 600,
        "all_gather": 300,
        "all_reduce": 450,
        "broadcast": 400,
    }


def test_levels_that_work_at_once_are_counted_once():
    rows = record(
        row("step", 0, 7, 2, 0, 0),
        row("contribute", 0, 0, 0, 0, 1),
        row("intra_reduce_scatter", 0, 0, 8_000_000, 0, 10, 5),
        row("inter_reduce_scatter", 0, 0, 4_000_000, 10, 30, 20),
        row("intra_reduce_scatter", 0, 1, 6_000_000, 10, 20, 0),
    )
    summary = StepStatistics().add(rows)
    assert milliseconds(summary, "intra_reduce_scatter", "inter_reduce_scatter") == [20, 20]
    # Where two run, half of the time was computed: the mean of all and nothing.
    assert milliseconds(summary, "communication", "exposed") == [30, 10]
    assert summary["overlap"] == pytest.approx(2 / 3)
    assert summary["bytes"] == 14_000_000, "what travels between nodes is part of it"
    algbw, busbw = statistics.bandwidths(summary, world_size=6, level_sizes=(2, 3))
    assert algbw == pytest.approx({"intra_reduce_scatter": 7e8, "inter_reduce_scatter": 2e8})
    assert busbw["intra_reduce_scatter"] == pytest.approx(3.5e8)
    assert busbw["inter_reduce_scatter"] == pytest.approx(4e8 / 3)
    alone = StepStatistics().add(record(row("inter_reduce_scatter", 0, 0, 1000, 0, 10)))
    assert alone["bytes"] == 1000, "one rank per node: nothing else counts it"


def test_parts_of_merged_collectives_follow_one_another():
    random = np.random.RandomState(0)
    events = []
    for _ in range(200):
        begin = int(random.randint(0, 1000))
        length = int(random.randint(0, 30))
        spent = length * random.rand()
        events.append(row("all_gather", begin // 10, 0, 0, begin, begin + length, spent))
    rows = record(*events)
    merged = statistics.merge(rows)
    assert (merged["begin"][1:] >= merged["end"][:-1]).all()
    busy = np.zeros(1_100_000, bool)
    for event in rows:
        busy[event["begin"] : event["end"]] = True
    assert (merged["end"] - merged["begin"]).sum() == busy.sum()
    assert (merged["computation"] <= merged["end"] - merged["begin"]).all()


@pytest.mark.parametrize("gather, saving", [(0.5, 0.0), (1.0, 0.0), (1.7, 0.7), (2.0, 1.0), (5, 1)])
def test_the_published_bounds_differ_by_the_papers_equation_9(gather, saving):
    # Its assumptions: t_bp = 2 t_ff, t_ar = 2 t_rs = 2 t_ag; times in units of t_ff.
    bounds = Bounds(1.0, 2.0, gather, gather, 2 * gather)
    assert bounds.all_reduce_overlap - bounds.dear_barrier == pytest.approx(saving)


def test_bounds_are_ordered_and_speedup_is_limited():
    random = np.random.RandomState(0)
    for _ in range(200):
        forward, backward, scatter, gather = random.exponential(1.0, 4)
        bounds = Bounds(forward, backward, scatter, gather, scatter + gather)
        assert bounds.dear <= bounds.dear_barrier <= bounds.sequential + 1e-12
        assert bounds.dear <= bounds.all_reduce_overlap <= bounds.sequential + 1e-12
        # Equation 6 is equation 7 as a speedup.
        assert bounds.speedup(64) == pytest.approx(64 * (forward + backward) / bounds.dear_barrier)
        assert bounds.speedup(64) <= 64 * (1 + 1e-12)


def test_bounds_take_modelled_communication_where_it_is_known():
    average = statistics.average(StepStatistics().add(dear_steps(6))["per_step"])
    costs = cost_model.CommunicationCosts(
        reduce_scatter=cost_model.LinearCost(0.001, 1e-6),
        all_gather=cost_model.LinearCost(0.002, 1e-6),
        all_reduce=cost_model.LinearCost(0.003, 2e-6),
    )
    modelled = make_bounds(average, [1000, 3000], costs)
    assert modelled.reduce_scatter == pytest.approx(0.006)
    assert modelled.all_gather == pytest.approx(0.008)
    assert modelled.all_reduce == pytest.approx(0.014)
    assert modelled.dear == pytest.approx(0.024 + 0.050)
    measured = make_bounds(average, [1000, 3000], None)
    assert measured.reduce_scatter == pytest.approx(0.030)
    assert measured.all_reduce == pytest.approx(0.042)


def test_a_schedule_of_all_reduces_gives_bounds_for_the_halves():
    rows = []
    for ticket in range(4):
        at = 100 * ticket
        rows += [row("step", ticket, 7, 1, at, at), row("contribute", ticket, 0, 0, at, at + 30)]
        rows += [row("contribute", ticket, 1, 0, at, at + 60)]
        rows += [row("all_reduce", ticket, 0, 4000, at + 60, at + 80)]
    average = statistics.average(StepStatistics().add(record(*rows))["per_step"])
    bounds = make_bounds(average, [4000], None)
    assert (bounds.reduce_scatter, bounds.all_gather) == (pytest.approx(0.01), pytest.approx(0.01))
    assert bounds.of("wfbp") == pytest.approx(0.060)
    assert bounds.of("sequential") == pytest.approx(0.080)
    assert bounds.of("dear") == pytest.approx(0.060)
