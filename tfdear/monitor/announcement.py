# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a monitor says, without waiting for ever until somebody reads it."""

import threading
from collections.abc import Callable
from typing import Any

_SECONDS = 2.0


def say(log: Callable[..., None], message: str, *arguments: object, **options: Any) -> None:
    """Calls a function of a log, and waits 2 s for it at most.

    Where nobody reads what this process prints, a write does not return. The monitor has to go on:
    it ends the job.
    """
    saying = threading.Thread(
        target=log, args=(message, *arguments), kwargs=options, name="tfdear-says", daemon=True
    )
    try:
        saying.start()
    except RuntimeError:  # There are too many threads; or, from Python 3.12 on, the process ends.
        log(message, *arguments, **options)
        return
    saying.join(_SECONDS)
