# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tensor fusion: which gradients travel as one collective. Imports no TensorFlow.

`tfdear.planner.Planner` says what a planner is.
"""

from tfdear import call_text
from tfdear.bayesian import Bayesian
from tfdear.fixed import FixedCount, FixedSize, NoFusion, SingleBucket
from tfdear.mg_wfbp import MGWFBP
from tfdear.planned import Planned
from tfdear.planner import Planner
from tfdear.search import GridSearch, RandomSearch

__all__ = [
    "MGWFBP",
    "Bayesian",
    "FixedCount",
    "FixedSize",
    "GridSearch",
    "NoFusion",
    "Planned",
    "RandomSearch",
    "SingleBucket",
    "SyncEASGD",
]

SyncEASGD = SingleBucket


def parse(text: str) -> Planner:
    """Reads a planner as it is written in Python.

    Args:
        text: The name of a planner, with or without arguments in parentheses: "Planned",
            "FixedSize(4 << 20)", "Bayesian(trials=6)".

    Raises:
        ValueError: There is no such planner, or it does not take these arguments.

    Example:

    >>> from tfdear import fusion
    >>> fusion.parse("FixedSize(4 << 20)")
    FixedSize(bytes=4194304)
    """
    return call_text.parse(text, {name: globals()[name] for name in __all__}, "a planner")
