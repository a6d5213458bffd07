# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds the custom-op library for the installed TensorFlow. Imports no TensorFlow itself.

[Note: one library for each TensorFlow] in setup.py says why there may be several.
"""

import importlib.metadata
import pathlib
import runpy
import sys
from typing import Any

LIBRARY = "_tfdear_ops.so"
_BUILD_INFO = "_build_info.py"
_FOLDERS = pathlib.Path(__file__).resolve().parents[1] / "_libraries"

_REBUILD = """Rebuild it in tfdear's source tree:
    make install TF={minor}                               (environment in .venv, or VENV=...)
    {python} -m pip install --force-reinstall --no-deps .    (this environment)"""

_OTHER_TENSORFLOW = """tfdear's custom-op library was built against TensorFlow {built},
but TensorFlow {running} is installed here ({python}).
The library works only with the minor version that it was built against. Install that one:
    {python} -m pip install "tensorflow=={newest}.*"
{rebuild}"""

_MISSING = """tfdear's custom-op library is not built: there is no {path}.
It is made by Bazel from the source tree of tfdear, and installed with the package. {rebuild}
If this is the source tree and the package is installed elsewhere, start Python in another
folder."""

# The distributions that TensorFlow comes in.
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-aarch64")


def minor(version: str) -> str:
    """Returns "2.21" for "2.21.0" or "2.21.0-rc1"."""
    return ".".join(version.split(".")[:2])


def how_to_rebuild(tensorflow_version: str) -> str:
    """The commands that build the library for a TensorFlow version."""
    return _REBUILD.format(minor=minor(tensorflow_version), python=sys.executable)


def installed_tensorflow() -> str | None:
    """Returns the version of the TensorFlow that is installed; None if it cannot be told."""
    for distribution in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def library_path(tensorflow_version: str) -> pathlib.Path:
    """Returns the path of the library for a version of TensorFlow.

    If there is none, the message of the ImportError has the commands that mend it.
    """
    built = _built_minors()
    wanted = minor(tensorflow_version)
    if built and wanted not in built:
        raise ImportError(
            _OTHER_TENSORFLOW.format(
                built=" and ".join(built),
                newest=built[-1],
                running=tensorflow_version,
                python=sys.executable,
                rebuild=how_to_rebuild(tensorflow_version),
            )
        )
    for name in (LIBRARY, _BUILD_INFO):
        path = _folder(wanted) / name
        if not path.exists():
            rebuild = how_to_rebuild(tensorflow_version)
            raise ImportError(_MISSING.format(path=path, rebuild=rebuild))
    return _folder(wanted) / LIBRARY


def build_info(tensorflow_version: str) -> dict[str, Any]:
    """Returns what the library for a version of TensorFlow was built with; loads nothing.

    TENSORFLOW_VERSION, TENSORFLOW_COMPILER, TENSORFLOW_COMPILE_FLAGS, GLOO_VERSION, COMPILER,
    COMPILE_FLAGS and BACKENDS; nothing where there is no such library.
    """
    path = _folder(minor(tensorflow_version)) / _BUILD_INFO
    if not path.exists():
        return {}
    return {name: value for name, value in runpy.run_path(str(path)).items() if name.isupper()}


def check_installed() -> None:
    """Raises an ImportError if the libraries are all for other TensorFlows than the installed one.

    Does nothing if none is built yet or the version cannot be told: loading the library checks
    again.
    """
    installed = installed_tensorflow()
    if installed is not None and _built_minors():
        library_path(installed)


def _folder(minor_version: str) -> pathlib.Path:
    return _FOLDERS / f"tensorflow_{minor_version.replace('.', '_')}"


def _built_minors() -> list[str]:
    """The minor versions of TensorFlow that there are libraries for, the newest last."""
    folders = [path.name.split("_")[1:] for path in _FOLDERS.glob("tensorflow_*")]
    return [".".join(numbers) for numbers in sorted(folders, key=lambda n: [int(i) for i in n])]
