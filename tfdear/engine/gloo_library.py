# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The library that `backend="gloo"` needs besides; a build has it where Gloo was installed."""

import ctypes
import functools

from tfdear.engine import build_check, c_api

_LIBRARY = "_tfdear_gloo.so"

_NOT_BUILT = """this build of tfdear has no backend "gloo": there is no {path}.
Leave `backend` as it is: "tcp" needs no other library. To compare with Gloo, install Gloo 0.5 or
later (libgloo-dev on Debian and Ubuntu) and build again. {rebuild}"""

_NOT_LOADABLE = """backend "gloo" needs a library that this machine lacks:
    {error}
Leave `backend` as it is: "tcp" needs no other library. Or install Gloo's; on Debian or Ubuntu, as
root:
    apt-get update && apt-get install -y --no-install-recommends libgloo0
Where Gloo is in a folder of its own, name that folder in LD_LIBRARY_PATH."""

_SIGNATURES: dict[str, tuple] = {
    "tfdear_gloo_create": (
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_double),
        *(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), *c_api.ERROR),
    )
}


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with the types of its functions.

    An ImportError: it was not built, or cannot be loaded; the text says what to do.
    """
    import tensorflow as tf

    path = build_check.library_path(tf.__version__).with_name(_LIBRARY)
    if not path.exists():
        rebuild = build_check.how_to_rebuild(tf.__version__)
        raise ImportError(_NOT_BUILT.format(path=path, rebuild=rebuild))
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(_NOT_LOADABLE.format(error=error)) from error
    return c_api.declare(library, _SIGNATURES)


def create(
    rank: int, size: int, bind_address: str, timeout: float, connections: int
) -> ctypes.c_void_p:
    """Makes a transport over Gloo's connections, for a group of the engine to take over."""
    transport = ctypes.c_void_p()
    c_api.call_in(
        load(),
        "gloo_create",
        *(rank, size, bind_address.encode(), timeout, connections, ctypes.byref(transport)),
    )
    return transport
