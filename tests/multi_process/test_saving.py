# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a job saves loads in a process that cannot import tfdear; TensorFlow's tutorial script."""

import json
import pathlib
import re
import subprocess
import sys
import textwrap

import case_reports
import numpy as np
import pytest
from ports import free_port
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

_JOBS = pathlib.Path(__file__).parent / "jobs"


def run_without_tfdear(script, *arguments):
    """Runs a script in a process of its own in which `import tfdear` fails."""
    refuse = "import sys; sys.modules['tfdear'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", refuse + textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    return directory, case_reports.run_job("saving_job.py", 2, directory, timeout=180)


def test_ranks_load_what_they_saved(saved):
    _, reports = saved
    for case in ("saving", "custom_loop", "tables"):
        case_reports.check_ranks_equal(reports, case)


def test_files_load_without_tfdear(saved):
    directory, _ = saved
    run_without_tfdear(
        """
        import keras, numpy as np, tensorflow as tf
        directory = sys.argv[1]
        ranks = np.load(directory + "/rank_0.npz")
        x, expected = ranks["saving|x"], ranks["saving|expected"]
        for name in ("all.keras", "all.h5", "chief.keras"):
            loaded = keras.models.load_model(f"{directory}/{name}")
            np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)
        loaded.load_weights(directory + "/all.weights.h5")
        loaded.fit(x, expected, verbose=0)
        for name in ("exported_all", "exported_chief"):
            module = tf.saved_model.load(f"{directory}/{name}")
            served = module.serve(tf.constant(x))
            np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)
        module = tf.saved_model.load(directory + "/module")
        inferred = module.infer(tf.constant(x))
        np.testing.assert_allclose(inferred, ranks["custom_loop|expected"], rtol=1e-5, atol=1e-6)
        for name in ("tables_all", "tables_chief"):
            module = tf.saved_model.load(f"{directory}/{name}")
            served = module.serve(ranks["tables|ids"])
            np.testing.assert_allclose(served, ranks["tables|expected"], rtol=1e-5, atol=1e-6)
        left = [name for name in __import__("os").listdir(directory) if "tmp" in name.lower()]
        assert not left, left
        """,
        directory,
    )


def run_workers(script, *arguments):
    """Runs a script of two tasks under `TF_CONFIG`; returns what each printed."""
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    tasks = [{"type": "worker", "index": rank} for rank in range(2)]
    jobs = {"worker": addresses}

    def variables(rank):
        return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": tasks[rank]})}

    arguments = tuple(map(str, arguments))
    with Ranks(2, str(_JOBS / script), variables, arguments, launcher=False) as ranks:
        codes = ranks.wait(timeout=150)
        outputs = [ranks.output(rank) for rank in range(2)]
    assert codes == [0, 0], outputs[0][-4000:] + outputs[1][-4000:]
    return outputs


def test_tutorial_of_a_loop_on_several_workers(tmp_path):
    first = run_workers("tutorial_loop_worker.py", tmp_path, 2)
    second = run_workers("tutorial_loop_worker.py", tmp_path, 4)
    # What the checkpoint says is done is not done again.
    losses = {}
    for outputs, epochs in ((first, ["0", "1"]), (second, ["1", "2", "3"])):
        line = r"^epoch (\d), accuracy: ([\d.]+), loss: ([\d.]+)$"
        found = [re.findall(line, text, re.M) for text in outputs]
        assert found[0] == found[1] and [epoch for epoch, *_ in found[0]] == epochs
        losses |= {epoch: float(loss) for epoch, _, loss in found[0]}
    assert losses["3"] < losses["0"]
    assert [path.name for path in tmp_path.iterdir() if path.name != "workertemp_1"] == ["loop"]


def test_tutorial_of_multi_worker_training(tmp_path):
    run_workers("tutorial_worker.py", tmp_path)
    assert (tmp_path / "checkpoint.keras").exists()
    assert not (tmp_path / "backup").exists() or not list((tmp_path / "backup").iterdir())
    assert not (tmp_path / "workertemp_1").exists()
    losses = np.load(tmp_path / "expected.npz")["loss"]
    assert losses[-1] < losses[0]
    run_without_tfdear(
        """
        import keras, numpy as np, tensorflow as tf
        directory = sys.argv[1]
        stored = np.load(directory + "/expected.npz")
        for name in ("model.keras", "checkpoint.keras"):
            y = keras.models.load_model(f"{directory}/{name}").predict(stored["x"], verbose=0)
            np.testing.assert_allclose(y, stored["y"], rtol=1e-5, atol=1e-6)
        module = tf.saved_model.load(directory + "/exported")
        served = module.serve(stored["x"])
        np.testing.assert_allclose(served, stored["y"], rtol=1e-5, atol=1e-6)
        """,
        tmp_path,
    )
