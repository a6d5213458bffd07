# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trainings with compressed gradients: what they compute, when, and how they go on."""

import collections
import itertools
import json
import pathlib

import numpy as np
import pytest
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

_JOB = str(pathlib.Path(__file__).parent / "jobs" / "compressed_training_job.py")
LONG = pytest.mark.long
COMPRESSION = "MSTopK(0.05, dense_below=0)"


# With layers large enough for several buckets.
DEFAULT_PLANNER = {"TFDEAR_FUSION": "Planned()", "CASE_WIDTH": "160"}


def run(directory, task="train", compression=COMPRESSION, **variables):
    """Four ranks on two nodes; what each stored."""

    def environment(rank):
        return {
            "TFDEAR_NODE_RANK": str(rank // 2),
            "TFDEAR_COMPRESSION": compression,
            "TFDEAR_FUSION": "FixedSize(8192)",
            "CASE_TASK": task,
            **variables,
        }

    directory.mkdir(exist_ok=True)
    with Ranks(4, _JOB, environment, (str(directory),)) as ranks:
        codes = ranks.wait(timeout=200)
        outputs = "\n".join(ranks.output(rank)[-4000:] for rank in range(4))
        (directory / "output").write_text(outputs)
        assert codes == [0] * 4, outputs
    if task == "crash":
        return None
    return [np.load(directory / f"{task}_{rank}.npz") for rank in range(4)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("job"))


def weights(report):
    keys = sorted((k for k in report.files if k[0] == "w" and k[1:].isdigit()), key=len)
    return np.concatenate([report[key].ravel() for key in keys])


def check_same(reports, reference):
    """All ranks hold the same bits, and those of the reference."""
    for report in reports:
        np.testing.assert_array_equal(weights(report), weights(reference[0]))


def events_of_steps(report):
    """Of each step: by kind, the begin, the end and the bucket of every event."""
    by_ticket = collections.defaultdict(lambda: collections.defaultdict(list))
    for kind, (ticket, subject, _, begin, end) in zip(
        report["kinds"], report["numbers"], strict=True
    ):
        by_ticket[ticket][str(kind)].append((begin, end, int(subject)))
    return [by_ticket[t] for t in sorted(by_ticket) if by_ticket[t]["sparse_exchange"]]


def buckets_in_order(step, kind):
    return [bucket for _, _, bucket in sorted(step[kind])]


def is_sorted(order, ready):
    """Whether buckets are in the order of these times, but for those that are nearly equal."""
    return all(ready[a] < ready[b] + 0.01 for a, b in zip(order, order[1:], strict=False))


@pytest.mark.parametrize(
    "model", [pytest.param("first layer first", marks=LONG), "last layer first"]
)
def test_phases_run_where_they_belong(tmp_path, model):
    # Collectives take a while, and no forward pass waits for an epoch to begin.
    variables = {"TFDEAR_MAX_DELAY_MS": "5", "CASE_ONE_EPOCH": "1", **DEFAULT_PLANNER}
    # Longer than a busy machine makes ranks differ, as a rule.
    variables["CASE_PAUSE"] = "0.06"
    if model == "last layer first":
        variables["CASE_LAST_FIRST"] = "1"
    reports = run(tmp_path, **variables)
    check_same(reports, reports)
    for report in reports:
        assert report["within_nodes"] == "shared_memory"
        steps, plans = events_of_steps(report), list(report["plans"])
        assert len(steps) == len(plans) == 20
        buckets = json.loads(str(report["buckets"]))
        bucket_of_tensor = {t: number for number, bucket in enumerate(buckets) for t in bucket}
        hidden = 0
        for step in steps:
            exchanged = {bucket: end for _, end, bucket in step["sparse_exchange"]}
            scattered = {bucket: end for _, end, bucket in step["intra_reduce_scatter"]}
            gathered = {bucket: begin for begin, _, bucket in step["intra_all_gather"]}
            assert exchanged.keys() == scattered.keys() == gathered.keys()
            for bucket, end in exchanged.items():
                assert scattered[bucket] <= end <= gathered[bucket]
            selected = {bucket: (begin, end) for begin, end, bucket in step["selection"]}
            assert selected.keys() == exchanged.keys()
            for bucket, (begin, end) in selected.items():
                assert scattered[bucket] <= begin <= end <= exchanged[bucket]
            # The line is not idle while the next bucket's elements are selected.
            hidden += sum(
                selected[other][0] < exchanged[bucket]
                for begin, _, bucket in step["sparse_exchange"]
                for other in selected.keys() - {bucket}
                if selected[other][1] > begin
            )
        assert hidden
        # When buckets are ready, after the begin of the backward pass, as a rule: in single steps a
        # busy machine stops a rank for a while.
        times = collections.defaultdict(list)
        for step in steps:
            last = collections.defaultdict(float)
            for _, end, tensor in step["contribute"]:
                bucket = bucket_of_tensor[tensor]
                last[bucket] = max(last[bucket], end)
            first = min(begin for begin, _, _ in step["contribute"])
            for bucket, end in last.items():
                times[bucket].append(end - first)
        ready = {bucket: np.median(of_steps) for bucket, of_steps in times.items()}
        # Measured times may confirm the first plan.
        measured = plans.index(plans[-1]) or 12
        assert measured <= 12
        assert set(plans[measured:]) == {plans[-1]}
        # Also as a rule: whether exchanges work under the backward pass, and the gathers of a step
        # under the forward pass of the next.
        early, late = [], []
        for step, later in itertools.pairwise(steps[measured:]):
            last_gradient = max(end for _, end, _ in step["contribute"])
            early.append(min(begin for begin, _, _ in step["sparse_exchange"]) < last_gradient)
            next_begin = min(end for _, end, _ in later["step"])
            next_gradient = min(begin for begin, _, _ in later["contribute"])
            late.append(
                any(
                    begin < next_gradient and end > next_begin
                    for begin, end, _ in step["intra_all_gather"]
                )
            )
            assert is_sorted(buckets_in_order(step, "sparse_exchange"), ready)
        assert np.median(early) == np.median(late) == 1, (early, late)
        # The first plan has the order of the variables.
        assert is_sorted(buckets_in_order(steps[0], "sparse_exchange"), ready) == (
            model == "first layer first"
        )


@LONG
@pytest.mark.parametrize("schedule", ["wfbp", "sequential", "bytescheduler"])
def test_no_schedule_changes_a_bit(tmp_path, uninterrupted, schedule):
    check_same(run(tmp_path, TFDEAR_SCHEDULE=schedule), uninterrupted)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    reports = run(tmp_path_factory.mktemp("planned"), **DEFAULT_PLANNER)
    check_same(reports, reports)
    return reports


@LONG
@pytest.mark.parametrize(
    "variable, value",
    [("TFDEAR_MAX_DELAY_MS", "10"), ("TFDEAR_BARRIER", "1")],
)
def test_neither_delays_nor_a_barrier_change_a_bit(tmp_path, planned, variable, value):
    check_same(run(tmp_path, **{variable: value}, **DEFAULT_PLANNER), planned)


@LONG
def test_density_one_is_dense(tmp_path):
    dense = run(tmp_path / "dense", compression="None")
    full = run(tmp_path / "full", compression="MSTopK(1.0, dense_below=0)")
    check_same(full, full)
    np.testing.assert_allclose(weights(full[0]), weights(dense[0]), rtol=1e-6, atol=1e-6)


@LONG
def test_momentum_of_the_optimizer_is_corrected(tmp_path):
    options = "0.05, dense_below=0, warm_up_steps=0"
    optimizers = "keras.optimizers.SGD(0.05, momentum=0.5)", "keras.optimizers.SGD(0.05)"
    found, expected, uncorrected = (
        run(tmp_path / f"{number}", compression=compression, CASE_OPTIMIZER=optimizers[number % 2])
        for number, compression in enumerate(
            [
                f"MSTopK({options})",
                f"MSTopK({options}, momentum=0.5)",
                f"MSTopK({options}, momentum=0.0)",
            ]
        )
    )
    check_same(found, found)
    assert "without momentum correction" not in (tmp_path / "0" / "output").read_text()
    np.testing.assert_allclose(weights(found[0]), weights(expected[0]), rtol=1e-4, atol=1e-5)
    assert np.abs(weights(found[0]) - weights(uncorrected[0])).max() > 1e-3


@LONG
@pytest.mark.parametrize("optimizer", ["LARS", "LAMB"])
def test_parallel_norms_are_of_the_compressed_sum(tmp_path, optimizer):
    parallel, alone = (
        run(
            tmp_path / f"{parallel}",
            CASE_OPTIMIZER=f"tfdear.optimizers.{optimizer}(0.02, {parallel=})",
        )
        for parallel in (True, False)
    )
    check_same(parallel, parallel)
    check_same(alone, alone)
    # Said once, by rank 0.
    output = (tmp_path / "True" / "output").read_text()
    assert output.count(f"{optimizer} are compressed without momentum correction") == 1
    assert any("norms" in report["kinds"] for report in parallel)
    assert not any("norms" in report["kinds"] for report in alone)
    np.testing.assert_allclose(weights(parallel[0]), weights(alone[0]), rtol=1e-5, atol=1e-5)


# With momentum there is one residual more to keep.
@pytest.mark.parametrize(
    "options",
    [
        pytest.param("", marks=LONG),
        ", momentum=0.9, warm_up_steps=15",
        # Nothing is held back, but the warm-up goes on.
        pytest.param(", error_feedback=False, warm_up_steps=15", marks=LONG),
    ],
)
def test_crash_and_resume_is_the_uninterrupted_run(tmp_path, options, uninterrupted):
    compression = COMPRESSION.replace(")", f"{options})")
    reference = run(tmp_path / "whole", compression=compression) if options else uninterrupted
    run(tmp_path / "job", "crash", compression)
    reports = run(tmp_path / "job", "resume", compression)
    check_same(reports, reference)
    assert not (tmp_path / "job" / "backup").exists()


@LONG
def test_weights_in_files_and_a_missing_residual(tmp_path, uninterrupted):
    run(tmp_path, "save")
    reports = run(tmp_path, "load")
    check_same(reports, uninterrupted)
    for report in reports:
        assert not report["warnings"].size
    files = list(tmp_path.glob(".half.weights.h5.rank*.residual"))
    assert len(files) == 8  # Of the last two epochs.
    next(file for file in files if "rank2" in file.name and "step10" in file.name).unlink()
    reports = run(tmp_path, "load")
    check_same(reports, reports)
    assert not np.array_equal(weights(reports[0]), weights(uninterrupted[0]))
    for report in reports:
        assert "rank 2: there is no file" in report["warnings"][0]


@LONG
def test_weights_in_files_of_another_file_system(tmp_path, uninterrupted):
    run(tmp_path, "save", CASE_PREFIX="file://")
    assert len(list(tmp_path.glob(".half.weights.h5.rank*.residual"))) == 8
    reports = run(tmp_path, "load", CASE_PREFIX="file://")
    check_same(reports, uninterrupted)
    for report in reports:
        assert not report["warnings"].size


@LONG
def test_custom_loop_with_a_checkpoint(tmp_path):
    reference = run(tmp_path, "loop")
    run(tmp_path, "checkpoint")
    check_same(run(tmp_path, "restore"), reference)


@LONG
def test_switching_at_epochs(tmp_path, uninterrupted):
    same = run(tmp_path / "same", CASE_SCHEDULE="{0: 0.05}")
    check_same(same, uninterrupted)
    # A last dense step sends everything that was held back.
    dense = run(tmp_path / "dense", compression="None")
    switched = run(tmp_path / "switched", CASE_SCHEDULE="{0: None, 1: 0.05, 2: None}")
    check_same(switched, switched)
    far = np.abs(weights(uninterrupted[0]) - weights(dense[0])).max()
    near = np.abs(weights(switched[0]) - weights(dense[0])).max()
    assert 0 < near < far
