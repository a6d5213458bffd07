# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a compression of gradients is. No TensorFlow."""

from typing import Any, Protocol, runtime_checkable

from tfdear.base.checks import is_number
from tfdear.planning.cost_model import CommunicationCosts

_ELEMENT_BYTES = 4  # Only float32 is compressed.


@runtime_checkable
class Compressor(Protocol):
    """How gradients are compressed between nodes: `members` of them, of `ranks_per_node` each."""

    density: float  # Fraction of the elements that are sent.
    hierarchical: bool  # Whether the ranks of a node sum up before they compress.
    error_feedback: bool  # Whether what is not sent is kept, so that there is a state to save.

    @property
    def corrects_momentum(self) -> bool:
        """Whether the residual takes account of the optimizer's momentum."""

    def smallest_bucket(
        self, outer: CommunicationCosts, ranks_per_node: int, members: int
    ) -> int | None:
        """The size from which a bucket gains by compression, in bytes; None if none does.

        `outer` are the costs of dense collectives among the nodes.
        """

    def costs(
        self,
        inner: CommunicationCosts | None,
        outer: CommunicationCosts,
        ranks_per_node: int,
        members: int,
    ) -> CommunicationCosts:
        """What the halves of a compressed all-reduce cost, for planners of tensor fusion.

        `inner` are the costs among the ranks of a node; None: there is one per node.
        """

    def configure(self, engine: Any, *, members: int) -> None:
        """Tells the started engine how, the same on all ranks, before a layout is first used."""


def elements_of(nbytes: int) -> int:
    """The number of elements in that many bytes, rounded up."""
    return -(-nbytes // _ELEMENT_BYTES)


def check_density(density: object) -> None:
    """Raises a ValueError if this is not a density."""
    if not is_number(density) or not 0 < density <= 1:
        raise ValueError(
            "`density` must be a fraction of the elements, above 0 and at most 1. "
            f"Received: density={density!r}"
        )
