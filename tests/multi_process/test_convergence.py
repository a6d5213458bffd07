# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Compressed training learns as dense training does, with defaults; without error feedback not."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DIGITS = str(pathlib.Path(__file__).parent / "jobs" / "convergence_job.py")
_LAUNCHER = [sys.executable, "-m", "tfdear", "run", "-n", "4", "--nodes", "2"]

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]


def perplexities(tmp_path, epochs, steps, seeds, timeout):
    """The last perplexities of a small Transformer that two nodes of two ranks train on text."""
    out = tmp_path / "perplexities.json"
    command = [sys.executable, str(_ROOT / "tfdear/benchmarks/studies/convergence.py")]
    command += ["--epochs", str(epochs), "--steps", str(steps), "--seeds", str(seeds)]
    command += ["--json", str(out), "--variants", "dense", "MSTopK", "without error feedback"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads(out.read_text())["perplexities"].values()
    return [[curve[-1] for curve in curves] for curves in found]


def check(dense, compressed, forgetful, most, least_gain):
    """One short training scatters by some percent, so the mean of several is compared with dense.

    The same seed with and without error feedback scatters less.
    """
    over = statistics.geometric_mean(c / d for c, d in zip(compressed, dense, strict=True))
    assert over < most, (dense, compressed)
    gains = [f / c for f, c in zip(forgetful, compressed, strict=True)]
    assert min(gains) > least_gain, (compressed, forgetful)


# What is learned depends on sums, which are the same with every version.
@pytest.mark.newest_only
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_transformer_needs_error_feedback(tmp_path, seeds):
    check(*perplexities(tmp_path, 1, 500, seeds, 880), most=1.06, least_gain=1.08)


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
