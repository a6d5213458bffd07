# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tensor fusion: which gradients travel as one collective. Imports no TensorFlow.

`tfdear.fusion.planner.Planner` says what a planner is.
"""

from tfdear.fusion.bayesian import Bayesian
from tfdear.fusion.blocks import Blocks
from tfdear.fusion.fixed import FixedCount, FixedSize, NoFusion, SingleBucket
from tfdear.fusion.mg_wfbp import MGWFBP
from tfdear.fusion.planned import Planned
from tfdear.fusion.planner import Planner
from tfdear.fusion.search import GridSearch, RandomSearch
from tfdear.planning import call_text

__all__ = [
    "MGWFBP",
    "Bayesian",
    "Blocks",
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
            "FixedSize(4 << 20)", "Bayesian(trials=6)", "Planned(Blocks())".

    Raises:
        ValueError: There is no such planner, or it does not take these arguments.

    Example:

    >>> from tfdear import fusion
    >>> fusion.parse("FixedSize(4 << 20)")
    FixedSize(bytes=4194304)
    """
    return call_text.parse(text, {name: globals()[name] for name in __all__}, "a planner")
