# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The custom-op library loads only beside the TensorFlow it was built against.

Every case runs in a process of its own, on a copy of the installed files: a library that is loaded
once stays loaded.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

import tfdear

INSTALLED = pathlib.Path(tfdear.__file__).parent
FILES = ("engine/library.py", "engine/build_check.py", "_build_info.py", "_tfdear_ops.so")


@pytest.fixture
def package(tmp_path):
    """A package `tfdear` that holds what loading needs, and nothing else."""
    folder = tmp_path / "tfdear"
    folder.mkdir()
    (folder / "engine").mkdir()
    (folder / "__init__.py").touch()
    (folder / "engine/__init__.py").touch()
    for name in FILES:
        shutil.copyfile(INSTALLED / name, folder / name)
    return folder


def run(package, code):
    """Runs code where `tfdear` is the copy; returns its exit code, stdout and stderr."""
    prelude = f"import sys; sys.path.insert(0, {str(package.parent)!r})\n"
    prelude += "from tfdear.engine import library\n"
    result = subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=package.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return result.returncode, result.stdout, result.stderr


def set_built_version(package, version):
    path = package / "_build_info.py"
    line = f'TENSORFLOW_VERSION = "{version}"'
    text, count = re.subn(r"^TENSORFLOW_VERSION = .*$", line, path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


@pytest.mark.smoke
def test_the_copy_loads_once_and_serves_ctypes(package):
    code = """
import ctypes
module = library.load()
assert module is library.load()
assert any(name.startswith("dear_") for name in dir(module)), dir(module)
ctypes.CDLL(str(library.library_path())).tfdear_synchronize
print(library.library_path())
print(library.build_info().TENSORFLOW_VERSION)
"""
    returncode, stdout, stderr = run(package, code)
    assert returncode == 0, stderr
    assert stdout.split() == [str(package.resolve() / "_tfdear_ops.so"), tf.__version__]


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["DearStrategy", "ops", "optimizers", "parallel_tensor_operator"])
def test_what_needs_the_library_is_refused_with_both_versions_named(package, name):
    shutil.copyfile(INSTALLED / "__init__.py", package / "__init__.py")
    set_built_version(package, "2.4.1")
    prelude = f"import sys; sys.path.insert(0, {str(package.parent)!r}); import tfdear\n"
    result = subprocess.run(
        [sys.executable, "-c", prelude + f"print(tfdear.__version__)\ntfdear.{name}"],
        cwd=package.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    # The package itself can be imported; TensorFlow is not needed to find out.
    assert result.stdout == f"{tfdear.__version__}\n"
    assert result.returncode == 1
    message = result.stderr[result.stderr.index("ImportError:") :]
    assert "built against TensorFlow 2.4.1" in message
    assert tf.__version__ in message
    assert "make install TF=" in message


@pytest.mark.smoke
def test_another_minor_version_is_refused_in_words(package):
    set_built_version(package, "2.4.1")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    minor = ".".join(tf.__version__.split(".")[:2])
    assert "built against TensorFlow 2.4.1" in message
    assert tf.__version__ in message
    assert f"make install TF={minor}" in message
    assert f"{sys.executable} -m pip install --force-reinstall --no-deps ." in message


def test_another_patch_version_loads(package):
    set_built_version(package, ".".join([*tf.__version__.split(".")[:2], "99"]))
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 0, stderr


@pytest.mark.parametrize("name", ["_tfdear_ops.so", "_build_info.py"])
def test_a_missing_file_tells_how_to_build(package, name):
    (package / name).unlink()
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert str(package.resolve() / name) in message
    assert "make install" in message


def test_a_file_that_is_no_library_is_an_import_error(package):
    (package / "_tfdear_ops.so").write_bytes(b"not a library")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert "cannot load" in message
    assert "make install" in message


def test_kernels_for_gpus_of_another_build_are_named(package):
    (package / "_tfdear_cuda_ops.so").write_text("not a library")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert "kernels for GPUs in " + str(package.resolve() / "_tfdear_cuda_ops.so") in message
    assert "Delete it" in message
    assert "make cuda-ops" in message
