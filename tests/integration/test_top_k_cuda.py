# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Top-k in CUDA compiles where there is nvcc, and selects exactly where there is a GPU.

Without a GPU only compiling is tested: the test program says so, with its exit code.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NVCC = os.environ.get("NVCC", "nvcc")
NO_GPU = 77

pytestmark = pytest.mark.integration


def run(*command):
    """Exit code and output."""
    result = subprocess.run(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    return result.returncode, result.stdout


def has_gpu():
    return shutil.which("nvidia-smi") is not None and run("nvidia-smi", "-L")[0] == 0


def test_without_nvcc_make_says_what_to_install():
    code, output = run("make", "-B", "cuda", "NVCC=/no/such/nvcc")
    assert code != 0
    assert "there is no /no/such/nvcc" in output and "CUDA toolkit" in output


@pytest.mark.skipif(shutil.which(NVCC) is None, reason="compiling needs nvcc")
def test_the_standalone_test_compiles_and_passes():
    code, output = run("make", "cuda", f"NVCC={NVCC}")
    assert code == 0, output
    code, output = run("build/top_k_standalone_test", "--draws", "100")
    if has_gpu():
        assert code == 0, output
    else:
        assert code == NO_GPU and "no GPU" in output
