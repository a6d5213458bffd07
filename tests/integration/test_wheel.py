# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The wheel trains in a fresh environment, without compiler, Bazel, extras or the source tree."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
import tensorflow as tf

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = pathlib.Path(__file__).resolve().parents[2]
MINOR = ".".join(tf.__version__.split(".")[:2])
FOLDER = f"tfdear/_libraries/tensorflow_{MINOR.replace('.', '_')}"


def run(*command, cwd=ROOT, timeout=500, **variables):
    """Exit code and output."""
    # Nothing here may be found through the shell that the tests were started from.
    foreign = ("PYTHONPATH", "VIRTUAL_ENV", "TFDEAR_")
    environment = {n: v for n, v in os.environ.items() if not n.startswith(foreign)}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return result.returncode, result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, with the library for this TensorFlow, which is built already."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    code, output = run(*pip, "--wheel-dir", folder, ROOT)
    assert code == 0, output
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The folder of programs of a fresh environment, into which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    code, output = run(sys.executable, "-m", "venv", folder)
    assert code == 0, output
    code, output = run(folder / "bin/python", "-m", "pip", "install", "--quiet", wheel)
    assert code == 0, output
    yield folder / "bin"
    shutil.rmtree(folder)  # Two GiB.


def test_the_wheel_holds_the_package_and_the_libraries_for_one_tensorflow(wheel):
    assert wheel.name.split("-")[2:] == ["py3", "none", "linux_x86_64.whl"]
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        required = file.read(metadata).decode().splitlines()
    assert {name.split("/")[0] for name in names} == {"tfdear", metadata.split("/")[0]}
    assert sorted(name for name in names if "_libraries" in name) == [
        f"{FOLDER}/_build_info.py",
        # Optional; it alone needs Gloo's, which this machine has.
        f"{FOLDER}/_tfdear_gloo.so",
        f"{FOLDER}/_tfdear_ops.so",
    ]
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("tfdear/**/*.py")}
    assert {name for name in modules if "_libraries" not in name} == {
        name for name in names if name.endswith(".py") and "_libraries" not in name
    }
    assert {"tfdear/py.typed", "tfdear/planning/traces/resnet-50.json"} <= set(names)
    # It has no library for another one.
    assert f"Requires-Dist: tensorflow=={MINOR}.*" in required
    always = [line for line in required if line.startswith("Requires-Dist") and ";" not in line]
    assert not [line for line in always if "matplotlib" in line or "psutil" in line]


@pytest.mark.long
def test_it_trains_in_a_fresh_environment(programs, tmp_path):
    listing = [programs / "python", "-m", "pip", "list", "--format=json"]
    installed = {entry["name"] for entry in json.loads(run(*listing)[1])}
    assert "tfdear" in installed and not installed & {"matplotlib", "psutil"}

    # No compiler, no Bazel, nothing of the source tree.
    only = {"cwd": tmp_path, "PATH": str(programs)}
    code, output = run(programs / "tfdear", "doctor", **only)
    assert code == 0 and "All checks passed." in output, output
    assert str(programs.parent / "lib") in output and 'pip install "tfdear[doctor]"' in output

    shutil.copyfile(ROOT / "examples" / "digits.py", tmp_path / "digits.py")
    digits = ["run", "-n", "2", "digits.py", "--epochs", "2"]
    code, output = run(programs / "tfdear", *digits, **only)
    assert code == 0 and "validation accuracy" in output, output

    # Commands that need more say so.
    code, output = run(programs / "tfdear", "simulate", "resnet-50", "--plot", "x.png", **only)
    assert code == 2 and 'pip install "tfdear[plot]"' in output, output
