# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Compressed training learns as dense training does, with defaults; without error feedback not."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DIGITS = str(pathlib.Path(__file__).parent / "jobs" / "convergence_job.py")
_LAUNCHER = [sys.executable, "-m", "tfdear", "run", "-n", "4", "--nodes", "2"]

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]


def perplexities(tmp_path, epochs, steps, variants, timeout):
    """The last perplexities of a small Transformer that two nodes of two ranks train on text."""
    out = tmp_path / "perplexities.json"
    command = [sys.executable, str(_ROOT / "benchmarks" / "convergence.py")]
    command += ["--epochs", str(epochs), "--steps", str(steps), "--json", str(out)]
    command += ["--variants", *variants]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {name: curve[-1] for name, curve in json.loads(out.read_text())["perplexities"].items()}


@pytest.mark.timeout(400)
def test_transformer_needs_error_feedback(tmp_path):
    found = perplexities(tmp_path, 1, 500, ["dense", "MSTopK", "without error feedback"], 300)
    assert found["MSTopK"] < 1.05 * found["dense"]
    assert found["without error feedback"] > 1.08 * found["dense"]


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_transformer_within_two_percent(tmp_path):
    found = perplexities(tmp_path, 8, 1000, ["dense", "MSTopK", "without error feedback"], 2300)
    assert found["MSTopK"] < 1.02 * found["dense"]
    assert found["without error feedback"] > 1.02 * found["dense"]


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
