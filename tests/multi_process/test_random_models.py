# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Random small models, optimizers, batches and schedules against plain Keras in one process.

A failure names the numbers of its models. To repeat one, in the setting of its job:
`TFDEAR_TEST_MODELS=1234,1240 pytest tests/multi_process/test_random_models.py -m long`, where the
first number decides about ranks, schedule and fusion.
"""

import os
import random
import time

import case_reports
import numpy as np
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

PLANNERS = ("FixedSize(200)", "FixedSize", "NoFusion", "SingleBucket", "FixedCount(3)", "Planned")
SCHEDULES = ("dear", "barrier", "wfbp", "sequential", "bytescheduler")
# World size, schedule, planner and the numbers of the models.
FEW = (
    (2, "dear", "FixedSize(200)", range(6)),
    (3, "bytescheduler", "NoFusion", range(3)),
)
MODELS_PER_JOB = 25
LONG_SECONDS = 600
LONG_MODELS = 500


def compare(directory, world_size, schedule, planner, numbers, reference=None):
    """Trains the models; returns what is wrong with any of them."""
    cases = ",".join(map(str, numbers))
    barrier = schedule == "barrier"
    env = {
        "TFDEAR_SCHEDULE": "dear" if barrier else schedule,
        "TFDEAR_BARRIER": str(int(barrier)),
        "TFDEAR_FUSION": planner,
    }
    if reference is None:
        reference = train_plainly(directory / "plain", numbers)
    try:
        reports = case_reports.run_job(
            "random_models_job.py",
            world_size,
            directory / "ranks",
            cases=cases,
            env=env,
            timeout=60 + 40 * len(numbers),
        )
    except AssertionError as error:
        return {cases: str(error).strip()}
    wrong = find_wrong(cases.split(","), reports, reference)
    if wrong:
        # A gradient may be zero but for rounding, such as that of a bias whose effect a
        # BatchNormalization takes away. Adaptive optimizers blow that up, in one process, too.
        rounding = train_plainly(directory / "rounding", wrong, TFDEAR_TEST_ROUNDING="1")
        for number in wrong.keys() - (really := find_wrong(wrong, reports, reference, rounding)):
            print(f"rounding alone explains model {number}: {wrong[number]}", flush=True)
        wrong = really
    return wrong


def train_plainly(directory, numbers, **env):
    cases = ",".join(map(str, numbers))
    timeout = 60 + 20 * len(numbers)
    job = "random_models_job.py"
    return case_reports.run_job(job, None, directory, cases=cases, env=env, timeout=timeout)[0]


def find_wrong(numbers, *arguments):
    wrong = {}
    for number in numbers:
        try:
            check(number, *arguments)
        except AssertionError as error:
            wrong[number] = str(error).strip()
    return wrong


def check(number, reports, reference, rounding=None):
    """`rounding`: what plain Keras makes of weights that differ in the last bits at the begin."""
    tolerance = float(reference[number]["tolerance"])
    case_reports.check_ranks_equal(reports, number)
    case_reports.check_weights_close(reports[0], reference, number, tolerance, rounding)
    assert reports[0][number].keys() == reference[number].keys()
    for key, expected in reference[number].items():
        if key.startswith("history/"):
            allowed = tolerance * (1.0 + np.abs(expected))
            if rounding is not None:
                allowed += case_reports.TIMES_ROUNDING * np.abs(rounding[number][key] - expected)
            value = reports[0][number][key]
            close = (np.abs(value - expected) <= allowed) | (np.isnan(value) & np.isnan(expected))
            assert close.all(), f"{number}: {key} is {value}, expected {expected}"


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    numbers = sorted({number for *_, few in FEW for number in few})
    return train_plainly(tmp_path_factory.mktemp("plain"), numbers)


@pytest.mark.parametrize(
    "world_size, schedule, planner, numbers",
    [pytest.param(*FEW[0], marks=pytest.mark.long), FEW[1]],
)
def test_random_models_equal_one_process(
    reference, tmp_path, world_size, schedule, planner, numbers
):
    wrong = compare(tmp_path, world_size, schedule, planner, numbers, reference)
    assert not wrong, report(world_size, schedule, planner, wrong)


@pytest.mark.long
@pytest.mark.timeout(12 * LONG_SECONDS)
def test_a_long_run_of_random_models(tmp_path):
    """At least ten minutes and five hundred models, other ones every time."""
    chosen = os.environ.get("TFDEAR_TEST_MODELS")
    first = int(chosen.split(",")[0]) if chosen else random.SystemRandom().randrange(10**9)
    print(f"the first model is number {first}")
    begin, done, wrong = time.monotonic(), 0, []
    while time.monotonic() - begin < LONG_SECONDS or done < LONG_MODELS:
        numbers = range(first + done, first + done + MODELS_PER_JOB)
        if chosen:
            numbers = [int(number) for number in chosen.split(",")]
        r = random.Random(numbers[0])
        setting = (r.choice((1, 2, 2, 3, 3, 4)), r.choice(SCHEDULES), r.choice(PLANNERS))
        found = compare(tmp_path / str(done), *setting, numbers)
        done += len(numbers)
        seconds = time.monotonic() - begin
        print(f"{done} models, {seconds:.0f} s, last {numbers[0]}: {setting}", flush=True)
        if found:
            wrong.append(report(*setting, found))
            print(wrong[-1], flush=True)
        if chosen:
            break
    print(f"{done} models in {time.monotonic() - begin:.0f} s")
    assert not wrong, "\n".join(wrong)


def report(world_size, schedule, planner, wrong):
    lines = "\n".join(f"model {number}: {what}" for number, what in wrong.items())
    return f"{world_size} ranks, {schedule}, {planner}:\n{lines}"
