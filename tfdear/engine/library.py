# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds and loads the custom-op library, and refuses one built for another TensorFlow."""

from __future__ import annotations

import functools
import importlib
import pathlib
import types

import tensorflow as tf

from tfdear.engine import build_check as _build_check

_LIBRARY = "_tfdear_ops.so"
# Kernels for GPUs of ops in the library above. Optional: `make cuda-ops` builds it.
_CUDA_LIBRARY = "_tfdear_cuda_ops.so"

_MISSING = """tfdear's custom-op library is not built: there is no {path}.
It is made by Bazel from the source tree of tfdear, and installed with the package. {rebuild}
If this is the source tree and the package is installed elsewhere, start Python in another
folder."""

_NOT_LOADABLE = """TensorFlow {running} cannot load {path},
which was built against TensorFlow {built} with Gloo {gloo}:
    {error}
If a shared library is named above, install it (Gloo is libgloo0 on Debian and Ubuntu). Otherwise
another installation has changed underneath. {rebuild}"""

_CUDA_NOT_LOADABLE = """TensorFlow {running} cannot load the kernels for GPUs in {path}:
    {error}
`make install` leaves that file as it is, so it may be built for another TensorFlow. Delete it, and
if you need it run this in tfdear's source tree, with VENV=... if the environment is not .venv:
    make cuda-ops"""


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
    # Before loading: with another minor the loader stops at some mangled symbol, or, worse, does
    # not, and the kernels see objects of another layout.
    _build_check.check_tensorflow(built.TENSORFLOW_VERSION, tf.__version__)
    path = library_path()
    try:
        ops = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        message = _NOT_LOADABLE.format(
            running=tf.__version__,
            path=path,
            built=built.TENSORFLOW_VERSION,
            gloo=built.GLOO_VERSION,
            error=error.message,
            rebuild=_build_check.how_to_rebuild(tf.__version__),
        )
        raise ImportError(message) from error
    cuda_path = path.with_name(_CUDA_LIBRARY)
    if cuda_path.exists():
        try:
            tf.load_library(str(cuda_path))
        except tf.errors.NotFoundError as error:
            message = _CUDA_NOT_LOADABLE.format(
                running=tf.__version__, path=cuda_path, error=error.message
            )
            raise ImportError(message) from error
    return ops


def _require(name: str) -> pathlib.Path:
    """Returns the path of a built file; it lies beside this module or nowhere."""
    path = pathlib.Path(__file__).resolve().parents[1] / name
    if not path.exists():
        raise ImportError(
            _MISSING.format(path=path, rebuild=_build_check.how_to_rebuild(tf.__version__))
        )
    return path
