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
FILES = ("engine/library.py", "engine/build_check.py")
LIBRARIES = pathlib.Path("_libraries")
MINOR = ".".join(tf.__version__.split(".")[:2])
FOLDER = LIBRARIES / f"tensorflow_{MINOR.replace('.', '_')}"
LIBRARY = FOLDER / "_tfdear_ops.so"
BUILD_INFO = FOLDER / "_build_info.py"


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
    shutil.copytree(INSTALLED / FOLDER, folder / FOLDER)
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
    """Makes the library one for another version of TensorFlow."""
    path = package / BUILD_INFO
    line = f'TENSORFLOW_VERSION = "{version}"'
    text, count = re.subn(r"^TENSORFLOW_VERSION = .*$", line, path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)
    numbers = version.split(".")[:2]
    path.parent.rename(package / LIBRARIES / f"tensorflow_{'_'.join(numbers)}")


@pytest.mark.smoke
def test_the_copy_loads_once_and_serves_ctypes(package):
    code = """
import ctypes
module = library.load()
assert module is library.load()
assert any(name.startswith("dear_") for name in dir(module)), dir(module)
ctypes.CDLL(str(library.library_path())).tfdear_synchronize
print(library.library_path())
"""
    returncode, stdout, stderr = run(package, code)
    assert returncode == 0, stderr
    assert stdout.strip() == str(package.resolve() / LIBRARY)


@pytest.mark.smoke
def test_of_several_libraries_the_one_that_fits_is_loaded(package):
    for minor in ("2_4", "2_99", "3_0"):
        other = package / LIBRARIES / f"tensorflow_{minor}"
        shutil.copytree(package / FOLDER, other)
        (other / "_tfdear_ops.so").write_bytes(b"not a library")
    code = "from tfdear.engine import build_check; build_check.check_installed(); library.load()"
    returncode, stdout, stderr = run(package, f"{code}; print(library.library_path())")
    assert returncode == 0, stderr
    assert stdout.strip() == str(package.resolve() / LIBRARY)


def test_all_that_do_not_fit_are_named(package):
    shutil.copytree(package / FOLDER, package / LIBRARIES / "tensorflow_2_100")
    set_built_version(package, "2.99.1")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert "built against TensorFlow 2.99 and 2.100" in message
    assert f'{sys.executable} -m pip install "tensorflow==2.100.*"' in message


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
    assert "built against TensorFlow 2.4" in message
    assert tf.__version__ in message
    assert "make install TF=" in message


@pytest.mark.smoke
def test_another_minor_version_is_refused_in_words(package):
    set_built_version(package, "2.4.1")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert "built against TensorFlow 2.4" in message
    assert tf.__version__ in message
    assert f"make install TF={MINOR}" in message
    assert f"{sys.executable} -m pip install --force-reinstall --no-deps ." in message


def test_another_patch_version_loads(package):
    set_built_version(package, f"{MINOR}.99")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 0, stderr


@pytest.mark.parametrize("name", [LIBRARY, BUILD_INFO], ids=lambda path: path.name)
def test_a_missing_file_tells_how_to_build(package, name):
    (package / name).unlink()
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert str(package.resolve() / name) in message
    assert "make install" in message


def test_a_file_that_is_no_library_is_an_import_error(package):
    (package / LIBRARY).write_bytes(b"not a library")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert "cannot load" in message
    assert "make install" in message


def test_the_library_needs_none_of_the_system_beside_the_compilers():
    needed = subprocess.run(
        ["objdump", "-p", INSTALLED / LIBRARY], check=True, capture_output=True, text=True
    ).stdout
    names = re.findall(r"NEEDED +(\S+)", needed)
    assert {re.split(r"[.-]", name)[0] for name in names} <= {
        *("libtensorflow_framework", "libstdc++", "libgcc_s", "libc", "libm", "ld"),
        *("libpthread", "libdl"),
    }


def test_kernels_for_gpus_of_another_build_are_named(package):
    (package / "_tfdear_cuda_ops.so").write_text("not a library")
    returncode, _, stderr = run(package, "library.load()")
    assert returncode == 1
    message = stderr[stderr.index("ImportError:") :]
    assert "kernels for GPUs in " + str(package.resolve() / "_tfdear_cuda_ops.so") in message
    assert "Delete it" in message
    assert "make cuda-ops" in message
