# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The library's plain C functions, with the types of all their arguments, through ctypes."""

import ctypes
import pathlib

from tfdear import errors
from tfdear.base import names
from tfdear.engine import build_check as _build_check

_TEXT_BYTES = 4096

_INT, _INT64, _UINT64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
_DOUBLE, _TEXT = ctypes.c_double, ctypes.c_char_p
# What numbers, text and sizes are written to or read from; MEMORY is that of an array.
_INTS, _INT64S, _UINT64S = (ctypes.POINTER(number) for number in (_INT, _INT64, _UINT64))
_DOUBLES, _TEXTS = ctypes.POINTER(_DOUBLE), ctypes.POINTER(_TEXT)
_MEMORY = ctypes.c_void_p
_OBJECT = ctypes.c_void_p

# What connects a group's members; its arguments are those of `tfdear_connector`.
CONNECTOR = ctypes.CFUNCTYPE(_INT, *(_INT, _INTS, _INT, _INT, _INT), *(_INTS, _INTS, _MEMORY, _INT))

# What every function that can fail ends with: a place for its message, and how long it may be.
ERROR = (_TEXT, _INT)

# Of every function: what it returns, and its arguments. The headers say what they mean.
SIGNATURES: dict[str, tuple] = {
    "tfdear_names": (_TEXT,),
    # c_api.h
    "tfdear_group_create_in_shared_memory": (
        _INT,
        *(_INT, _TEXT, _INTS, _INT, _INT, _DOUBLE),
        *ERROR,
    ),
    "tfdear_group_create_over_tcp": (
        _INT,
        *(_INT, _TEXT, _INTS, _INT, _INT, _DOUBLE, _INT, CONNECTOR, _INT, _TEXT, _INT),
        *ERROR,
    ),
    "tfdear_group_create_over_transport": (
        _INT,
        *(_INT, _TEXT, _INTS, _INT, _INT, _OBJECT),
        *ERROR,
    ),
    "tfdear_group_listen": (_INT, _INT, _TEXT, _INT),
    "tfdear_group_probe": (_INT, _INT, _TEXTS, _INTS, _INT, *ERROR),
    "tfdear_group_connect": (_INT, _INT, _TEXTS, _INTS, _INT, *ERROR),
    "tfdear_start": (_INT, _INT, _INT64, _INT, *ERROR),
    "tfdear_group_set_connections": (_INT, _INT, _INT, *ERROR),
    "tfdear_stop": (_INT, _DOUBLE, *ERROR),
    "tfdear_layout_create": (_INT64, _TEXT, _INT),
    "tfdear_layout_add": (_INT, _INT64, _INT, _INT64, _INT, *ERROR),
    "tfdear_layout_set_lane": (_INT, _INT64, _INT, *ERROR),
    "tfdear_layout_set_variable": (_INT, _INT64, _INT, _INT64, _TEXT, _TEXT, _TEXT, *ERROR),
    "tfdear_layout_set_partition": (_INT, _INT64, _INT, _INT64S, _INT, *ERROR),
    "tfdear_layout_set_table": (_INT, _INT64, _INT, _INT64, _INT64, _INT64, *ERROR),
    "tfdear_table_counts": (None, _INT64, _INT64S),
    "tfdear_lookup_create": (_INT64,),
    "tfdear_lookup_add": (_INT, _INT64, _INT64S, _INT, _INT64, _INT64, _TEXT, *ERROR),
    "tfdear_lookup_look_ahead": (_INT, _INT64, *ERROR),
    "tfdear_lookup_early": (_INT, _INT64, _INT, *ERROR),
    "tfdear_lookup_may_pool": (_INT, _INT64, _INT, _INT64, *ERROR),
    "tfdear_layout_shared": (_INT64, _INT64),
    "tfdear_layout_request_norms": (_INT, _INT64, _INT, *ERROR),
    "tfdear_layout_set_optimizer": (_INT, _INT64, _DOUBLE, *ERROR),
    "tfdear_layout_buckets": (_INT, _INT64, _INT64S, _INT),
    "tfdear_layout_set_plan": (_INT, _INT64, _INT64S, _INT64, *ERROR),
    "tfdear_layout_propose": (_INT, _INT64, _INT64S, _INT64, _INT64, *ERROR),
    "tfdear_layout_plan": (_INT64, _INT64, _INT64S, _INT64, _INT64S),
    "tfdear_variable_create": (_INT64,),
    "tfdear_compress": (
        _INT,
        *(_INT, _INT, _INT, _DOUBLE, _INT, _INT, _INT64, _DOUBLE, _INT, _INT),
        *ERROR,
    ),
    "tfdear_set_density": (_INT, _DOUBLE, *ERROR),
    "tfdear_compression_save": (
        _INT,
        *(_INT64S, _INT, ctypes.POINTER(ctypes.POINTER(ctypes.c_char)), _INT64S),
        *ERROR,
    ),
    "tfdear_compression_forget": (None,),
    "tfdear_compression_load": (_INT, _TEXT, _INT64, _INT64S, _INT, *ERROR),
    "tfdear_synchronize": (_INT, _DOUBLE, *ERROR),
    "tfdear_in_flight": (_INT, _INT, _UINT64S, _DOUBLES, _INTS, _TEXT, _INT),
    "tfdear_waits": (_INT64, _TEXT, _INT),
    "tfdear_transport_failure": (_INT, _INTS, _TEXT, _INT),
    "tfdear_abort": (None, _INT, _TEXT),
    "tfdear_aborted": (_INT, _TEXT, _INT),
    "tfdear_events_read": (_INT64, _UINT64S, _MEMORY, _INT64),
    "tfdear_now_micros": (_INT64,),
    "tfdear_opened": (_INT64, _INT),
    "tfdear_counters": (_INT, _INT, _UINT64S, _UINT64S),
    # data_api.h
    "tfdear_collective_run": (
        _INT,
        *(_INT, _INT, _MEMORY, _INT64, _INT, _INT, _INT, _INT, _DOUBLES),
        *ERROR,
    ),
    "tfdear_reduction_open": (_INT, _INT64, _INT64S, *ERROR),
    "tfdear_reduction_contribute": (_INT, _INT64, _INT, _MEMORY, _INT64, *ERROR),
    "tfdear_reduction_wait": (
        _INT,
        *(_INT64, _INT, _MEMORY, _INT64, _DOUBLE, _INT64S),
        *ERROR,
    ),
    "tfdear_reduction_close": (None, _INT64),
    # examples_api.h
    "tfdear_examples_create": (
        _INT,
        *(_INT64, _INT64, _INT64, _INT64, _DOUBLE, _DOUBLE, _INT, _INT64S),
        *ERROR,
    ),
    "tfdear_examples_address": (_INT, _INT64, _TEXT, _INT),
    "tfdear_examples_map": (_INT, _INT64, _INT, _TEXT, *ERROR),
    "tfdear_examples_serve": (_INT, _INT64, _INTS, _TEXTS, _INT, _TEXT, _INT, *ERROR),
    "tfdear_examples_add_node": (
        _INT,
        *(_INT64, _INT, _INT64S, _INT, _INTS, _TEXTS, _INT, _TEXT, _INT),
        *ERROR,
    ),
    "tfdear_examples_unpublish": (None, _INT64),
    "tfdear_examples_read_in_order": (None, _INT64),
    "tfdear_examples_await_filled": (_INT, _INT64, _DOUBLE, _INTS, *ERROR),
    "tfdear_examples_stop_growing": (None, _INT64),
    "tfdear_examples_close": (None, _INT64, _TEXT),
    "tfdear_examples_note_read": (None, _INT64, _INT64, _INT64),
    "tfdear_examples_remove": (None, _INT64),
    "tfdear_examples_progress": (None, _INT64, _INT64S),
    "tfdear_reader_create": (
        _INT64,
        *(_INT64, _INT, _INT64, _INT64S, _INT64, _INT, _INT, _INT, _INT, _INT64, _INT64),
    ),
    "tfdear_reader_lead": (None, _INT64),
    "tfdear_reader_steps": (_INT64, _INT64),
    "tfdear_reader_set_next": (None, _INT64, _INT64, _INT64),
    "tfdear_reader_remove": (None, _INT64),
}


def declare(library: ctypes.CDLL, signatures: dict[str, tuple]) -> ctypes.CDLL:
    """Gives the functions of a library the types of a table like `SIGNATURES`; returns it."""
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library: ctypes.CDLL | None = None


def load() -> ctypes.CDLL:
    """The library, with the types of its functions.

    An ImportError: it is missing, does not fit TensorFlow, or is of another version than these
    Python files, so that the two number something differently.
    """
    if _library is None:
        import tensorflow as tf

        from tfdear.engine import library as ops

        ops.load()
        return load_from(ops.library_path(), _build_check.how_to_rebuild(tf.__version__))
    return _library


def load_from(path: pathlib.Path, how_to_rebuild: str) -> ctypes.CDLL:
    """As `load`, from a library that may need no TensorFlow; for the whole process."""
    global _library
    library = declare(ctypes.CDLL(str(path)), SIGNATURES)
    difference = names.difference(library.tfdear_names().decode())
    if difference is not None:
        raise ImportError(
            f"{path} is not of the same version of tfdear as the Python files beside it: "
            f"{difference}. {how_to_rebuild}"
        )
    _library = library
    return library


def call(name: str, *arguments) -> None:
    """Calls a function that can fail, by its name without "tfdear_".

    The last two arguments, which take its message, are added; a failure is a TfdearError.
    """
    call_in(load(), name, *arguments)


def call_in(library: ctypes.CDLL, name: str, *arguments) -> None:
    """The same for a function of another library."""
    error = ctypes.create_string_buffer(_TEXT_BYTES)
    code = getattr(library, f"tfdear_{name}")(*arguments, error, _TEXT_BYTES)
    if code:
        failure = errors.TfdearError(error.value.decode(errors="replace"))
        failure.kind = names.STATUS_CODES[code - 1]
        raise failure
