# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Refuses a library that was built for another TensorFlow. Imports no TensorFlow itself."""

import importlib.metadata
import importlib.util
import sys

_REBUILD = """Rebuild it in tfdear's source tree:
    make install TF={minor}                               (environment in .venv, or VENV=...)
    {python} -m pip install --force-reinstall --no-deps .    (this environment)"""

_OTHER_TENSORFLOW = """tfdear's custom-op library was built against TensorFlow {built},
but TensorFlow {running} is installed here ({python}).
The library works only with the minor version that it was built against. {rebuild}"""

# The distributions that TensorFlow comes in.
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-aarch64")


def minor(version: str) -> str:
    """Returns "2.21" for "2.21.0" or "2.21.0-rc1"."""
    return ".".join(version.split(".")[:2])


def how_to_rebuild(tensorflow_version: str) -> str:
    """The commands that build the library for a TensorFlow version."""
    return _REBUILD.format(minor=minor(tensorflow_version), python=sys.executable)


def check_tensorflow(built: str, running: str) -> None:
    """Raises an ImportError if a library built against one version cannot run with the other."""
    if minor(built) == minor(running):
        return
    raise ImportError(
        _OTHER_TENSORFLOW.format(
            built=built, running=running, python=sys.executable, rebuild=how_to_rebuild(running)
        )
    )


def check_installed() -> None:
    """As `check_tensorflow`, for what is installed, without loading TensorFlow.

    Does nothing if the library is not built yet or the version cannot be told: loading the library
    checks again.
    """
    if importlib.util.find_spec("tfdear._build_info") is None:
        return
    from tfdear import _build_info

    for distribution in _DISTRIBUTIONS:
        try:
            installed = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        check_tensorflow(_build_info.TENSORFLOW_VERSION, installed)
        return
