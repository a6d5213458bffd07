# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The examples, started as a user starts them."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from ports import free_port

import tfdear

pytestmark = pytest.mark.integration

ROOT = pathlib.Path(tfdear.__file__).resolve().parents[1]
# Only ends a job that hangs.
DEADLINE = 240.0
DIGITS = str(ROOT / "examples" / "digits.py")
SPARSE_DIGITS = str(ROOT / "examples" / "sparse_digits.py")
CUSTOM_LOOP = str(ROOT / "examples" / "custom_loop.py")
# Guessing gives 0.10; four epochs give 0.96 and more.
ACCURACY = 0.85


@pytest.fixture
def start(tmp_path):
    """Starts processes in a folder of their own and kills what is left of them."""
    foreign = ("TFDEAR_", "SLURM_", "OMPI_", "TF_CONFIG", "OMP_", "TF_NUM_")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    plain["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), plain.get("PYTHONPATH")]))
    started = []

    def start_process(*arguments, **variables):
        output = tmp_path / f"output_{len(started)}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=tmp_path,
                env={**plain, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.output_file = output
        started.append(process)
        return process

    yield start_process
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def output_of(process) -> str:
    """Waits for the end of a process that must succeed, and returns what it printed."""
    try:
        code = process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        code = f"none after {DEADLINE:g} s"
    text = process.output_file.read_text(errors="replace")
    assert code == 0, f"exit code {code}\n{text[-6000:]}"
    return text


def check_summary(text, workers):
    """The table at the end: printed once, by rank 0, with numbers that make sense."""
    assert re.findall(r"^workers +(\d+)$", text, re.MULTILINE) == [str(workers)]
    (accuracy,) = re.findall(r"^validation accuracy +([\d.]+)%$", text, re.MULTILINE)
    assert float(accuracy) / 100 >= ACCURACY
    seconds = dict(re.findall(r"^(time per epoch|communication) +([\d.]+) s$", text, re.MULTILINE))
    assert float(seconds["time per epoch"]) > 0
    assert (float(seconds["communication"]) > 0) == (workers > 1)
    overlap = re.findall(r"^overlap +([\d.]+)% of the communication", text, re.MULTILINE)
    assert len(overlap) == (1 if workers > 1 else 0)
    assert all(0 <= float(percent) <= 100 for percent in overlap)
    # Only rank 0 shows progress.
    assert text.count("Epoch 1/") == 1


@pytest.mark.smoke
def test_digits_with_the_launcher(start):
    text = output_of(start("-m", "tfdear", "run", "-n", "2", DIGITS, "--epochs", "4"))
    check_summary(text, workers=2)


def test_digits_alone(start):
    flags = ("--epochs", "4", "--batch-size", "32", "--schedule", "sequential")
    check_summary(output_of(start(DIGITS, *flags, OMP_NUM_THREADS="1")), workers=1)


# docs/getting-started.md and TensorFlow's tutorials, in test_saving.py, start jobs so, too.
@pytest.mark.long
def test_digits_under_tf_config(start):
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    ranks = []
    for index in range(2):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        ranks.append(
            start(DIGITS, "--epochs", "4", TF_CONFIG=json.dumps(config), OMP_NUM_THREADS="1")
        )
    chief, other = map(output_of, ranks)
    check_summary(chief, workers=2)
    assert "Epoch" not in other and "workers" not in other


# docs/compression.md trains with sparse sums, too.
@pytest.mark.long
def test_sparse_digits(start, tmp_path):
    flags = ("-m", "tfdear", "run", "-n", "4", "--nodes", "2", SPARSE_DIGITS, "--epochs", "5")
    text = output_of(start(*flags))
    pattern = r"^(dense|density 0.01) +validation accuracy ([\d.]+)%$"
    accuracy = dict(re.findall(pattern, text, re.MULTILINE))
    assert set(accuracy) == {"dense", "density 0.01"}
    assert all(float(percent) / 100 >= ACCURACY for percent in accuracy.values())
    assert (tmp_path / "sparse_digits.png").stat().st_size > 1000


def test_custom_loop(start):
    text = output_of(start("-m", "tfdear", "run", "-n", "2", CUSTOM_LOOP, "--epochs", "4"))
    epochs = re.findall(
        r"^epoch +(\d+) +loss ([\d.]+) +accuracy ([\d.]+) +"
        r"validation: loss ([\d.]+) +accuracy ([\d.]+)$",
        text,
        re.MULTILINE,
    )
    assert [int(epoch[0]) for epoch in epochs] == [1, 2, 3, 4]
    assert float(epochs[-1][1]) < float(epochs[0][1])
    assert float(epochs[-1][2]) >= ACCURACY
    assert float(epochs[-1][4]) >= ACCURACY
