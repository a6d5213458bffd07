# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What collectives cost. No TensorFlow."""

from tfdear.planning.cost_model import CommunicationCosts, LinearCost, fit
from tfdear.planning.network_costs import (
    double_binary_trees,
    hierarchical,
    levels,
    pairwise,
    recursive_exchange,
    recursive_halving,
    ring,
)

__all__ = [
    "CommunicationCosts",
    "LinearCost",
    "double_binary_trees",
    "fit",
    "hierarchical",
    "levels",
    "pairwise",
    "recursive_exchange",
    "recursive_halving",
    "ring",
]
