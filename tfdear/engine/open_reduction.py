# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""An execution of a layout that is driven from Python, by the engine's C functions."""

import ctypes

import numpy as np

from tfdear.engine.c_api import call, load


class OpenReduction:
    """An execution of a layout, driven from Python: `Engine.open_reduction`."""

    def __init__(self, number: int):
        self._number = number

    def contribute(self, tensor: int, data: np.ndarray) -> None:
        """Adds this rank's share of a tensor."""
        call("reduction_contribute", self._number, tensor, data.ctypes.data, data.size)

    def wait(self, tensor: int, timeout: float, out: np.ndarray | None = None) -> float:
        """Waits for the sum of a tensor and copies it to `out`, if that is given.

        Returns when the sum was there, in seconds of `time.monotonic`.
        """
        since = ctypes.c_int64()
        address, size = (None, 0) if out is None else (out.ctypes.data, out.nbytes)
        call("reduction_wait", self._number, tensor, address, size, timeout, ctypes.byref(since))
        return since.value / 1e6

    def close(self) -> None:
        """Gives up the reduction; sums that are still on their way arrive unseen."""
        load().tfdear_reduction_close(self._number)
