# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds and loads the custom-op library, and refuses one built for another TensorFlow."""

from __future__ import annotations

import functools
import importlib
import pathlib
import sys
import types

import tensorflow as tf

_LIBRARY = "_tfdear_ops.so"

_REBUILD = """Rebuild it in tfdear's source tree:
    make install TF={minor}                               (environment in .venv, or VENV=...)
    {python} -m pip install --force-reinstall --no-deps .    (this environment)"""

_MISSING = """tfdear's custom-op library is not built: there is no {path}.
It is made by Bazel from the source tree of tfdear, and installed with the package. {rebuild}
If this is the source tree and the package is installed elsewhere, start Python in another
folder."""

_OTHER_TENSORFLOW = """tfdear's custom-op library was built against TensorFlow {built},
but TensorFlow {running} is installed here ({python}).
The library works only with the minor version that it was built against. {rebuild}"""

_NOT_LOADABLE = """TensorFlow {running} cannot load {path},
which was built against TensorFlow {built} with Gloo {gloo}:
    {error}
If a shared library is named above, install it (Gloo is libgloo0 on Debian and Ubuntu). Otherwise
another installation has changed underneath. {rebuild}"""


def library_path() -> pathlib.Path:
    """Returns where the custom-op library is.

    For callers that open it by themselves, such as `ctypes.CDLL` for the engine's C functions. Call
    `load()` first: it checks that the library fits.

    Returns:
        The absolute path of the library beside this module.

    Raises:
        ImportError: The library is not built.
    """
    return _require(_LIBRARY)


def build_info() -> types.ModuleType:
    """Returns what the library was built with, as a module of constants.

    Use it to report versions and flags; it loads nothing.

    Returns:
        The module `tfdear._build_info`: TENSORFLOW_VERSION, TENSORFLOW_COMPILER,
        TENSORFLOW_COMPILE_FLAGS, GLOO_VERSION, COMPILER, COMPILE_FLAGS and BACKENDS.

    Raises:
        ImportError: The library is not built.
    """
    library_path()
    _require("_build_info.py")
    return importlib.import_module("tfdear._build_info")


@functools.lru_cache(maxsize=1)
def load() -> types.ModuleType:
    """Loads the custom-op library, once per process.

    Returns:
        The module of generated Python functions, one for each op, named `dear_...`.

    Raises:
        ImportError: The library is missing, was built against another minor version of TensorFlow
            than the one installed, or cannot be loaded. The message has the command that mends it.
    """
    built = build_info()
    facts = {
        "built": built.TENSORFLOW_VERSION,
        "python": sys.executable,
        "rebuild": _rebuild(),
        "running": tf.__version__,
    }
    # Before loading: with another minor the loader stops at some mangled symbol, or, worse, does
    # not, and the kernels see objects of another layout.
    if _minor(built.TENSORFLOW_VERSION) != _minor(tf.__version__):
        raise ImportError(_OTHER_TENSORFLOW.format(**facts))
    path = library_path()
    try:
        return tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        facts.update(error=error.message, gloo=built.GLOO_VERSION, path=path)
        raise ImportError(_NOT_LOADABLE.format(**facts)) from error


def _require(name: str) -> pathlib.Path:
    """Returns the path of a built file; it lies beside this module or nowhere."""
    path = pathlib.Path(__file__).resolve().with_name(name)
    if not path.exists():
        raise ImportError(_MISSING.format(path=path, rebuild=_rebuild()))
    return path


def _minor(version: str) -> str:
    """Returns "2.21" for "2.21.0" or "2.21.0-rc1"."""
    return ".".join(version.split(".")[:2])


def _rebuild() -> str:
    return _REBUILD.format(minor=_minor(tf.__version__), python=sys.executable)
