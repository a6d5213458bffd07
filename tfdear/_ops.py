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
It is made by Bazel, from the source tree of tfdear, and installed with the package. Build it there:
    make install TF={minor}                               (environment in .venv, or VENV=...)
    {python} -m pip install --force-reinstall --no-deps .    (this environment)
If this is the source tree and the package is installed elsewhere, start Python in another folder."""

_OTHER_TENSORFLOW = """tfdear's custom-op library was built against TensorFlow {built}, but {running} is \
installed here ({python}).
It works only with the minor version that it was built against. {rebuild}"""

_NOT_LOADABLE = """TensorFlow {running} cannot load {path}, built against TensorFlow {built} with Gloo {gloo}:
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
    path = pathlib.Path(__file__).resolve().with_name(_LIBRARY)
    if not path.exists():
        raise ImportError(_MISSING.format(path=path, minor=_minor(tf.__version__), **_interpreter()))
    return path


def build_info() -> types.ModuleType:
    """Returns what the library was built with, as a module of constants.

    Use it to report versions and flags; it loads nothing.

    Returns:
        The module `tfdear._build_info`: TENSORFLOW_VERSION, TENSORFLOW_COMPILER,
        TENSORFLOW_COMPILE_FLAGS, GLOO_VERSION, COMPILER, COMPILE_FLAGS and BACKENDS.

    Raises:
        ImportError: The library is not built.
    """
    path = library_path()
    try:
        return importlib.import_module("tfdear._build_info")
    except ModuleNotFoundError as error:
        message = _MISSING.format(
            path=path.with_name("_build_info.py"), minor=_minor(tf.__version__), **_interpreter()
        )
        raise ImportError(message) from error


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
    running = tf.__version__
    facts = {
        "built": built.TENSORFLOW_VERSION,
        "rebuild": _REBUILD.format(minor=_minor(running), **_interpreter()),
        "running": running,
    }
    # Before loading: with another minor the loader stops at some mangled symbol, or, worse, does
    # not, and the op's memory layout is wrong.
    if _minor(built.TENSORFLOW_VERSION) != _minor(running):
        raise ImportError(_OTHER_TENSORFLOW.format(**facts, **_interpreter()))
    path = library_path()
    try:
        return tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        message = _NOT_LOADABLE.format(
            path=path, gloo=built.GLOO_VERSION, error=error.message, **facts
        )
        raise ImportError(message) from error


def _minor(version: str) -> str:
    """Returns "2.21" for "2.21.0" or "2.21.0-rc1"."""
    return ".".join(version.split(".")[:2])


def _interpreter() -> dict[str, str]:
    return {"python": sys.executable}
