# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Orders of collectives, and the iterations that follow from them. No TensorFlow."""

from tfdear.planning.schedules import (
    SCHEDULES,
    Plan,
    Step,
    Timeline,
    Transfer,
    execute,
    make_plan,
    timeline,
)

__all__ = [
    "SCHEDULES",
    "Plan",
    "Step",
    "Timeline",
    "Transfer",
    "execute",
    "make_plan",
    "timeline",
]
