# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Starts jobs of `jobs/case_table.py` and compares what their processes stored."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping

import numpy as np
from ranks import Ranks

_JOBS = pathlib.Path(__file__).parents[1] / "multi_process/jobs"
TIMES_ROUNDING = 4.0  # So many times what rounding does to plain Keras may differ.
Report = dict[str, dict[str, np.ndarray]]


def run_job(
    job: str,
    world_size: int | None,
    directory: pathlib.Path,
    *,
    cases: str = "",
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    timeout: float = 240.0,
) -> list[Report]:
    """Runs a job and returns what each process stored, by case.

    Args:
        job: name of a script in `jobs`.
        world_size: number of ranks; None runs one process without a strategy.
        directory: where the processes store files; made if missing.
        cases: names of the cases, separated by commas; all by default.
        env: more variables for every process, or a function of the rank.
        timeout: seconds after which the job is killed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    arguments = (str(directory), *(("--cases", cases) if cases else ()))
    plain = world_size is None
    if plain:
        arguments += ("--plain",)
    count = 1 if plain else world_size
    with Ranks(count, str(_JOBS / job), env, arguments, launcher=not plain) as ranks:
        codes = ranks.wait(timeout=timeout)
        outputs = "\n".join(f"--- rank {r}:\n{ranks.output(r)[-5000:]}" for r in range(count))
        assert codes == [0] * count, f"exit codes {codes}\n{outputs}"
    names = ["plain"] if plain else [f"rank_{rank}" for rank in range(count)]
    return [_load(directory / f"{name}.npz") for name in names]


def _load(path: pathlib.Path) -> Report:
    report: Report = {}
    with np.load(path) as stored:
        for name in stored.files:
            case, key = name.split("|", 1)
            report.setdefault(case, {})[key] = stored[name]
    return report


def check_ranks_equal(reports: list[Report], case: str, ignore: tuple[str, ...] = ()) -> None:
    """All that a case stored has the same bytes on all ranks."""
    first = reports[0][case]
    for rank, report in enumerate(reports[1:], 1):
        assert report[case].keys() == first.keys()
        for key, value in report[case].items():
            if not key.startswith(ignore or ("\0",)):
                np.testing.assert_array_equal(
                    value, first[key], err_msg=f"{case}: {key} of rank {rank} and of rank 0"
                )


def check_identical(report: Report, reference: Report, case: str) -> None:
    """Bit for bit what the reference has."""
    assert report[case].keys() == reference[case].keys()
    for key, value in reference[case].items():
        np.testing.assert_array_equal(report[case][key], value, err_msg=f"{case}: {key}")


def check_close(
    report: Report,
    reference: Report,
    case: str,
    tolerance: float,
    counted: float = 1e-6,
    ignore: tuple[str, ...] = (),
) -> None:
    """History within a relative tolerance of the reference's, and predictions if stored.

    Args:
        report: of one rank.
        reference: of the process without a strategy.
        case: name of the case.
        tolerance: relative, for losses and predictions.
        counted: absolute tolerance of accuracies: rounding may flip one example.
        ignore: beginnings of keys that differ by design.
    """
    assert report[case].keys() == reference[case].keys()
    for key, expected in reference[case].items():
        if "digests" in key or "weight/" in key or key.startswith(ignore or ("\0",)):
            continue
        value = report[case][key]
        if expected.dtype.kind not in "fc":
            np.testing.assert_array_equal(value, expected, err_msg=f"{case}: {key}")
        else:
            atol = counted if "accuracy" in key else 1e-6
            np.testing.assert_allclose(
                value, expected, rtol=tolerance, atol=atol, err_msg=f"{case}: {key}"
            )


def check_weights_close(
    report: Report,
    reference: Report,
    case: str,
    tolerance: float,
    rounding: Report | None = None,
) -> None:
    """Every final weight within a tolerance of the reference's, relative to its variable's largest.

    A variable that is zero but for a hundredth of the model's largest weight counts as that large.
    What is no number in the reference must be none here: Keras's Adafactor divides by zero when the
    gradients of a variable are zero.

    Args:
        report: of one rank.
        reference: of the process without a strategy.
        case: name of the case.
        tolerance: relative to the largest element of the variable.
        rounding: of a process without a strategy that differed in the last bits at the begin; what
            this changed in a variable is allowed four times.
    """
    compared = [key for key in reference[case] if "weight/" in key]
    assert compared, f"{case} stored no weights"
    largest = max(_largest(reference[case][key]) for key in compared)
    for key in compared:
        expected, value = reference[case][key], report[case][key]
        assert value.shape == expected.shape, f"{case}: {key}"
        np.testing.assert_array_equal(np.isnan(value), np.isnan(expected), f"{case}: {key}: NaN")
        worst = _largest(value - expected)
        scale = max(_largest(expected), 0.01 * largest)
        allowed = tolerance * scale
        if rounding is not None:
            allowed += TIMES_ROUNDING * _largest(rounding[case][key] - expected)
        assert worst <= allowed, (
            f"{case}: {key} differs by {worst:g}; {tolerance:g} of {scale:g} is allowed"
            + ("" if rounding is None else f", and {allowed:g} with rounding")
        )


def _largest(values: np.ndarray) -> float:
    """The largest absolute value, leaving out what is no number."""
    return np.max(np.abs(values), initial=0.0, where=~np.isnan(values))
