# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Compressed training learns as dense training does, with defaults; without error feedback not."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import pytest
import ranks

from tfdear.benchmarks.studies import convergence

_STUDY = pathlib.Path(convergence.__file__)
_VARIANTS = ("dense", "MSTopK", "without error feedback")
_DIGITS = str(pathlib.Path(__file__).parent / "jobs" / "convergence_job.py")
_LAUNCHER = [sys.executable, "-m", "tfdear", "run", "-n", "4", "--nodes", "2"]

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]


def perplexities(tmp_path, epochs, steps, seeds, timeout):
    """The last perplexities of a small Transformer that two nodes of two ranks train on text."""
    out = tmp_path / "perplexities.json"
    command = [sys.executable, str(_STUDY), "--json", str(out), "--variants", *_VARIANTS]
    command += ["--epochs", str(epochs), "--steps", str(steps), "--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads(out.read_text())["perplexities"].values()
    return [[curve[-1] for curve in curves] for curves in found]


def perplexities_of_one_seed(tmp_path, steps, timeout):
    """The same of one epoch and seed, by forked ranks, which start in less time."""
    found = []
    for name in _VARIANTS:
        out = tmp_path / f"{name}.json"
        variables = {"TFDEAR_COMPRESSION": convergence.VARIANTS[name].format(density=0.01)}

        def environment(rank, variables=variables):
            return {"TFDEAR_NODE_RANK": str(rank // 2), **variables}

        arguments = ("--epochs", "1", "--steps", str(steps), "--result", str(out))
        for code, output in ranks.run_ranks(4, _STUDY, environment, timeout, arguments):
            assert code == 0, output[-4000:]
        found.append([curve[-1] for curve in json.loads(out.read_text())])
    return found


def check(dense, compressed, forgetful, most, least_gain):
    """One short training scatters by some percent, so the mean of several is compared with dense.

    The same seed with and without error feedback scatters less.
    """
    over = statistics.geometric_mean(c / d for c, d in zip(compressed, dense, strict=True))
    assert over < most, (dense, compressed)
    gains = [f / c for f, c in zip(forgetful, compressed, strict=True)]
    assert min(gains) > least_gain, (compressed, forgetful)


# What is learned depends on sums, which are the same with every version.
@pytest.mark.long
@pytest.mark.newest_only
@pytest.mark.timeout(900)
def test_transformer_needs_error_feedback(tmp_path):
    check(*perplexities_of_one_seed(tmp_path, 500, 290), most=1.06, least_gain=1.08)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_transformer_of_two_seeds_needs_error_feedback(tmp_path):
    check(*perplexities(tmp_path, 1, 500, 2, 880), most=1.06, least_gain=1.08)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_transformer_within_two_percent(tmp_path):
    check(*perplexities(tmp_path, 8, 1000, 3, 7100), most=1.02, least_gain=1.1)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("learning_rate", [0.02, 0.05])
def test_digits_within_half_a_point(tmp_path, learning_rate):
    accuracy = {}
    for compression in ("None", "MSTopK(density=0.01, dense_below=0)"):
        command = [*_LAUNCHER, "--", _DIGITS, str(tmp_path), str(learning_rate)]
        done = subprocess.run(
            command,
            env={**os.environ, "TFDEAR_COMPRESSION": compression},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        accuracy[compression] = json.loads((tmp_path / "accuracy.json").read_text())
    dense, compressed = accuracy.values()
    assert compressed > dense - 0.005
