# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The merging rule of MG-WFBP. Imports no TensorFlow."""

import dataclasses

from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace


@dataclasses.dataclass(frozen=True)
class MGWFBP:
    """Fuses gradients by Algorithm 1 of MG-WFBP: merge when waiting costs less than a start-up.

    Use it as the published planner for all-reduce under the backward pass; whatever the schedule,
    it plans for that one. Its rule looks one layer ahead, so it is not always optimal:
    `docs/fusion.md` shows where. `Planned` is, and costs as little.

    Example:

    >>> from tfdear import cost_model, fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
    >>> fusion.MGWFBP().buckets(trace, cost_model.ring(2, alpha=9.0, beta=0.25), "wfbp")
    [[1, 0]]

    Reference: Shi et al., "MG-WFBP: Merging Gradients Wisely for Efficient Communication in
    Distributed Deep Learning", Algorithm 1.
    """

    needs_profile = True

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order.

        Args:
            trace: The model with its measured times.
            costs: The measured network, of which the all-reduce counts.
            schedule: Any; the plan is the one for all-reduce under the backward pass.

        Returns:
            Lists of layer indices, last layers first.

        Raises:
            ValueError: There are no costs.
        """
        if costs is None:
            raise ValueError(
                "MGWFBP needs measured costs, and received None. Use FixedSize() until the "
                "network is measured."
            )
        cost = costs.all_reduce
        layers = trace.layers
        buckets: list[list[int]] = [[]]
        ready = line_free = 0.0
        for index in reversed(range(len(layers))):
            ready += layers[index].backward
            start = max(line_free, ready)  # Of the current bucket with this layer in it.
            buckets[-1].append(index)
            if index and ready + layers[index - 1].backward - start >= cost.a:
                line_free = start + cost.seconds(sum(layers[i].bytes for i in buckets[-1]))
                buckets.append([])
        return buckets
