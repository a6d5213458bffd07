# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear doctor` finds this installation well, and says what is wrong with a broken one."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import psutil
import pytest
import tensorflow as tf

import tfdear
from tfdear.rendezvous import secret

pytestmark = pytest.mark.integration

PACKAGE = pathlib.Path(tfdear.__file__).resolve().parent
MINOR = ".".join(tf.__version__.split(".")[:2])


def run_doctor(folder, *arguments, package=PACKAGE, **variables):
    """Exit code and output."""
    return run_tfdear(package, folder, "doctor", *arguments, **variables)


def run_tfdear(package, folder, *arguments, **variables):
    """Exit code and output of a command of the package that lies there."""
    result = subprocess.run(
        [sys.executable, "-m", "tfdear", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(package.parent)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return result.returncode, result.stdout


@pytest.fixture
def broken(tmp_path):
    """A copy of the package, to be broken."""
    copy = tmp_path / "installed" / "tfdear"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.multi_process
def test_a_good_installation_passes_every_check(tmp_path):
    code, output = run_doctor(tmp_path)
    assert code == 0, output
    assert "All checks passed." in output and "FAILED" not in output
    assert re.search(rf"tensorflow +{re.escape(tf.__version__)}\n", output)
    assert re.search(r"lo +up, MTU \d+: 127\.0\.0\.1", output)
    assert re.search(r"backend tcp +built in\n +backend gloo +built in\n", output)
    assert re.search(r"backend nccl +not in this build\n", output)
    assert re.search(r"cores +\d+ usable of \d+", output)
    # Shown, because it explains many a hang; but not what is secret in it.
    for rank in (0, 1):
        for check in ("rendezvous", "all_reduce", "reduce_scatter", "all_gather", "barrier"):
            assert re.search(rf"ok +rank {rank} {check} +[\d.]+ ms", output), (rank, check)


@pytest.fixture(
    params=["for another TensorFlow", pytest.param("not built", marks=pytest.mark.long)]
)
def without_library(broken, request):
    """A package whose library cannot be used, and what is said about it."""
    libraries = broken / "_libraries"
    folder = libraries / f"tensorflow_{MINOR.replace('.', '_')}"
    other = folder.rename(broken / "tensorflow_2_4")
    shutil.rmtree(libraries)
    if request.param == "not built":
        return broken, "custom-op library is not built"
    libraries.mkdir()
    other.rename(libraries / other.name)
    return broken, "built against TensorFlow 2.4"


def test_doctor_explains_a_library_that_does_not_fit(without_library, tmp_path):
    package, words = without_library
    code, output = run_doctor(tmp_path, "--no-self-test", package=package)
    assert code == 1
    assert "Traceback" not in output
    (failure,) = re.findall(r"\[FAILED\] custom-op library.*(?:\n {8}.*)*", output)
    assert "What to do:" in failure and words in failure
    assert f"make install TF={MINOR}" in failure
    # Everything else is looked at all the same.
    assert re.search(rf"tensorflow +{re.escape(tf.__version__)}\n", output)
    assert "[ok] loopback" in output and "[ok] environment" in output


def test_commands_that_need_no_library_work_without_one(without_library, tmp_path):
    package, words = without_library
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['TFDEAR_RANK'])\n")
    code, output = run_tfdear(package, tmp_path, "run", "-n", "2", "train.py")
    assert (code, sorted(output.split("\n"))) == (0, ["", "[rank 1] rank 1", "rank 0"])
    code, output = run_tfdear(package, tmp_path, "simulate", "resnet-50", "--workers", "4")
    assert code == 0 and "speedup" in output, output
    code, output = run_tfdear(package, tmp_path, "timeline", "none.json", "-o", "out.json")
    assert code == 2 and "none.json" in output and "Traceback" not in output
    code, output = run_tfdear(package, tmp_path, "netlab", "--help")
    assert code == 0 and "up" in output
    # What does need it says so in the rank, and not before.
    (tmp_path / "train.py").write_text("import tfdear; tfdear.DearStrategy()\n")
    code, output = run_tfdear(package, tmp_path, "run", "-n", "1", "train.py")
    assert code == 1 and words in output and "make install" in output


def test_an_environment_without_sense_is_explained(tmp_path):
    code, output = run_doctor(tmp_path, "--no-self-test", TF_CONFIG="{not JSON")
    assert code == 1
    assert "[FAILED] environment: TF_CONFIG must be JSON" in output
    assert "What to do:" in output


def test_the_jobs_secret_is_told_by_its_fingerprint(tmp_path):
    text = "s3cret" * 6
    variables = {"TFDEAR_RANK": "0", "TFDEAR_WORLD_SIZE": "2", "TFDEAR_COORDINATOR": "alpha:61500"}
    code, output = run_doctor(tmp_path, "--no-self-test", **variables, TFDEAR_SECRET=text)
    assert code == 0 and text not in output
    fingerprint = secret.find({"TFDEAR_SECRET": text}).fingerprint
    assert f"TFDEAR_SECRET, fingerprint {fingerprint}" in output
    code, output = run_doctor(tmp_path, "--no-self-test", **variables, TFDEAR_SECRET="short")
    assert code == 1 and "rank 0 of 2 (TFDEAR_RANK), but the job's secret" in output
    assert "What to do: Give all ranks the same secret" in output


@pytest.mark.multi_process
def test_wrong_values_are_found(broken, tmp_path):
    # A rank that believes other values to be right stands for a collective that is wrong.
    script = broken / "commands/doctor/self_test.py"
    text = script.read_text()
    assert "axis=0)" in text
    script.write_text(text.replace("axis=0)", "axis=0) + (np.arange(_ELEMENTS) == 7)"))
    code, output = run_doctor(tmp_path, package=broken)
    assert code == 1
    assert "[FAILED] two ranks" in output
    assert re.search(
        r"FAILED rank 0 all_reduce .* 1 of \d+ elements are wrong, the first at 7", output
    )
    assert re.search(r"ok +rank 0 all_gather", output)


@pytest.mark.multi_process
def test_a_self_test_that_hangs_is_ended(broken, tmp_path):
    script = broken / "commands/doctor/self_test.py"
    script.write_text("import time\nprint('I hang', flush=True)\ntime.sleep(1000)\n")
    code, output = run_doctor(tmp_path, "--timeout", "3", package=broken)
    assert code == 1
    assert "not done after 3 s" in output and "--timeout" in output
    left = [p for p in psutil.process_iter() if str(broken) in " ".join(_command(p))]
    assert not left


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []
