# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Refuses searches for hyperparameters in which every rank would try choices of its own."""

import inspect
import sys
import types


def refuse(rank: int, world_size: int) -> None:
    """Raises if the caller was called by a tuner of keras-tuner, in a job of several ranks.

    Such a tuner knows nothing of other ranks: each would draw hyperparameters for itself, and all
    would write to one folder of results. It takes any error but a FatalRuntimeError for a failed
    trial, and goes on.
    """
    if world_size == 1 or "keras_tuner" not in sys.modules:
        return
    frame: types.FrameType | None = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "keras_tuner":
            raise sys.modules["keras_tuner"].errors.FatalRuntimeError(
                f"tfdear: keras-tuner searches on rank {rank} of {world_size}, and every rank "
                "would try hyperparameters of its own. Expected: a search in one process. Search "
                "with one rank (`tfdear run -n 1` or no launcher), then train with what it found "
                "on all."
            )
        frame = frame.f_back
