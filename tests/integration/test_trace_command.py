# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear trace` writes a trace that the simulator takes, or leaves what was there."""

import pytest

from tfdear.commands import main as cli
from tfdear.planning.trace import Trace

pytestmark = [pytest.mark.integration, pytest.mark.multi_process, pytest.mark.newest_only]

TRAINING = """
import keras
import numpy as np

import tfdear

strategy = tfdear.DearStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((60, 4)), np.ones((60, 1)), batch_size=2, verbose=0)
"""


@pytest.fixture
def trace(tmp_path, monkeypatch, capfd):
    """Runs the command on a script; returns its exit code and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(script, *arguments):
        (tmp_path / "train.py").write_text(script)
        monkeypatch.setenv("TFDEAR_TRACE", "")  # The command sets it, for this process too.
        code = cli.main(["trace", "-o", "trace.json", *(arguments or ("train.py",))])
        output, errors = capfd.readouterr()
        return code, output + errors

    return run


def test_a_failure_leaves_the_trace_that_was_there(trace, tmp_path):
    (tmp_path / "trace.json").write_text("measured for hours")
    for script, arguments, code, words in (
        ("raise SystemExit(3)", (), 3, "rank"),
        ("", (), 1, "no trace was recorded"),
        ("import os; open(os.environ['TFDEAR_TRACE'], 'w').write('{')", (), 2, "is not JSON"),
        ("", ("typo.py",), 2, "there is no script typo.py"),
    ):
        found, said = trace(script, *arguments)
        assert (found, words in said) == (code, True), said
        assert (tmp_path / "trace.json").read_text() == "measured for hours"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json", "train.py"]


def test_a_job_replaces_it(trace, tmp_path, capfd):
    (tmp_path / "trace.json").write_text("an old one")
    code, said = trace(TRAINING)
    assert code == 0 and "4 gradients" in said, said
    recorded = Trace.load(tmp_path / "trace.json")
    assert recorded.bytes == 4 * (4 * 8 + 8 + 8 + 1)
    assert recorded.backward > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json", "train.py"]
    assert cli.main(["simulate", "trace.json", "--workers", "4"]) == 0
    assert "4" in capfd.readouterr().out
