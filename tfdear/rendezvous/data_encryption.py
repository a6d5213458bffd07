# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Whether ranks encrypt the data that travel between nodes; the engine does it."""

import os
from collections.abc import Mapping

from tfdear.rendezvous import secret

VARIABLE = "TFDEAR_TLS"


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for it; a ValueError if that is not clear."""
    value = environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1. Received: {VARIABLE}={value!r}")
    return value == "1"


def check(backend: str) -> None:
    """Raises a ValueError where it is asked for and cannot be had; before the ranks meet."""
    if not is_on():
        return
    if backend == "gloo":
        raise ValueError(f'{VARIABLE}=1 needs backend "tcp": Gloo encrypts nothing.')
    if secret.current() is None:
        raise ValueError(
            f"{VARIABLE}=1 encrypts with a key that follows from the job's secret, and "
            "TFDEAR_INSECURE=1 goes without one. Set one of both."
        )
