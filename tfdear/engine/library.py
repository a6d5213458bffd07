# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Loads the custom-op library for the TensorFlow that runs."""

from __future__ import annotations

import functools
import pathlib
import types

import tensorflow as tf

from tfdear.engine import build_check as _build_check

# Kernels for GPUs of ops in the library. Optional: `make cuda-ops` builds it.
_CUDA_LIBRARY = "_tfdear_cuda_ops.so"

_NOT_LOADABLE = """TensorFlow {running} cannot load {path},
which was built against TensorFlow {built}:
    {error}
Another installation has changed underneath, or the library comes from another system. {rebuild}"""

_CUDA_NOT_LOADABLE = """TensorFlow {running} cannot load the kernels for GPUs in {path}:
    {error}
`make install` leaves that file as it is, so it may be built for another TensorFlow. Delete it, and
if you need it run this in tfdear's source tree, with VENV=... if the environment is not .venv:
    make cuda-ops"""


def library_path() -> pathlib.Path:
    """Returns where the custom-op library for the TensorFlow that runs is.

    For callers that open it by themselves, such as `ctypes.CDLL` for the engine's C functions. Call
    `load()` first: it checks that the library can be loaded.
    """
    return _build_check.library_path(tf.__version__)


@functools.cache
def load() -> types.ModuleType:
    """Loads the library, once per process; returns its generated Python functions, `dear_...`.

    If it is missing, was built against another minor version of TensorFlow than the one installed,
    or cannot be loaded, the message of the ImportError has the command that mends it.
    """
    path = library_path()
    try:
        ops = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        raise ImportError(_not_loadable(path, error.message)) from error
    cuda_path = pathlib.Path(__file__).resolve().parents[1] / _CUDA_LIBRARY
    if cuda_path.exists():
        try:
            tf.load_library(str(cuda_path))
        except tf.errors.NotFoundError as error:
            message = _CUDA_NOT_LOADABLE.format(
                running=tf.__version__, path=cuda_path, error=error.message
            )
            raise ImportError(message) from error
    return ops


def _not_loadable(path: pathlib.Path, error: str) -> str:
    """Why the library cannot be loaded, given what the dynamic linker says."""
    info = _build_check.build_info(tf.__version__)
    return _NOT_LOADABLE.format(
        running=tf.__version__,
        path=path,
        built=info["TENSORFLOW_VERSION"],
        error=error,
        rebuild=_build_check.how_to_rebuild(tf.__version__),
    )
