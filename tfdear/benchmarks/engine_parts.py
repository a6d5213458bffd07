# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Parts of the engine as C functions (`custom_ops/benchmarks`), to measure each by itself.

They have a library of their own, which `make install` builds in the source tree; no wheel has it.
"""

import ctypes
import functools
import pathlib

from tfdear.engine import c_api

PATH = pathlib.Path(__file__).resolve().parents[1] / "_tfdear_benchmarks.so"

_INT, _INT64, _MEMORY, _OBJECT = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p

# As `c_api.SIGNATURES`.
SIGNATURES: dict[str, tuple] = {
    # row_updates_api.cc
    "tfdear_adam_seconds": (ctypes.c_double, _INT, _INT64, _INT64),
    "tfdear_make_up_seconds": (ctypes.c_double, _INT64, _INT64, _INT64),
    # sum_of_squares_api.cc
    "tfdear_sums_of_squares": (None, _INT, _MEMORY, ctypes.POINTER(_INT64), _INT, _MEMORY),
    # top_k_api.cc
    "tfdear_top_k_create": (_OBJECT, _INT),
    "tfdear_top_k_destroy": (None, _OBJECT),
    "tfdear_top_k_select": (None, _OBJECT, _INT, _MEMORY, _INT64, _INT64, _MEMORY, _MEMORY),
    "tfdear_top_k_select_with_feedback": (
        None,
        *(_OBJECT, _MEMORY, _MEMORY, _INT64, _INT64, _MEMORY, _MEMORY),
    ),
    "tfdear_top_k_forget": (None, _OBJECT),
    "tfdear_read_pass": (None, _OBJECT, _MEMORY, _INT64),
    "tfdear_add_pass": (None, _OBJECT, _MEMORY, _MEMORY, _INT64),
    # sparse_code_api.cc
    "tfdear_sparse_encode": (_INT64, _MEMORY, _MEMORY, _INT64, _INT64, _INT, _MEMORY, _INT64),
    "tfdear_sparse_decode_and_add": (_INT, _MEMORY, _INT64, _INT64, _MEMORY),
}


def are_built() -> bool:
    """Returns whether this is a source tree that has them."""
    return PATH.exists()


@functools.cache
def library() -> ctypes.CDLL:
    """Returns their library."""
    if not are_built():
        raise ImportError(
            f"There is no {PATH}. Run `make install` in the source tree of tfdear, and measure "
            "there: wheels do not have it."
        )
    return c_api.declare(ctypes.CDLL(str(PATH)), SIGNATURES)
