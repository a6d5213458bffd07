# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""tfdear: data-parallel Keras training with communication hidden behind computation."""

import importlib
from typing import TYPE_CHECKING

from tfdear.engine import build_check as _build_check

if TYPE_CHECKING:
    from tfdear import (
        callbacks,
        compression,
        cost_model,
        data,
        fusion,
        layers,
        losses,
        ops,
        optimizers,
        parallel_tensor_operator,
        schedules,
        simulator,
        trace,
    )
    from tfdear.errors import TfdearError
    from tfdear.strategy import DearStrategy

__version__ = "0.1.0"
__all__ = [
    "DearStrategy",
    "TfdearError",
    "callbacks",
    "compression",
    "cost_model",
    "data",
    "fusion",
    "layers",
    "losses",
    "ops",
    "optimizers",
    "parallel_tensor_operator",
    "schedules",
    "simulator",
    "trace",
]

_HOMES = {"DearStrategy": "tfdear.strategy", "TfdearError": "tfdear.errors"}
# These load the library. All else, the command line first of all, works where it is missing or does
# not fit, or there would be no `tfdear doctor` to say so.
_WITH_LIBRARY = frozenset(
    {"DearStrategy", "data", "layers", "losses", "ops", "optimizers", "parallel_tensor_operator"}
)


def __getattr__(name: str):
    # Imported on first use, so that the command line starts without loading TensorFlow.
    if name in _WITH_LIBRARY:
        # Before TensorFlow is imported: what is private in it may have moved in another version.
        _build_check.check_installed()
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"tfdear.{name}")
    raise AttributeError(f"module 'tfdear' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
