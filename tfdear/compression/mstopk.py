# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Top-k sparsification with hierarchical all-gather. No TensorFlow."""

import dataclasses
import math
from typing import Any

from tfdear.base import names
from tfdear.base.checks import is_number, is_whole
from tfdear.compression.compressor import check_density
from tfdear.planning.cost_model import CommunicationCosts, LinearCost

# From this number of members on, a reduce sends at most half of what an all-gather sends: the
# volumes are 2 k (m - 1) / m and (m - 1) k pairs, and their quotient is m / 2.
REDUCE_FROM_MEMBERS = 4

_EXCHANGES = ("auto", *names.EXCHANGES)
# Bytes of a coded pair at densities about 0.01, over the 4 bytes of an element.
_CODED = {"float32": 1.1, "bfloat16": 0.6}
_FIRST_DENSITY = 0.25
# The default warm-up. What is held back arrives about 1 / density steps late; the warm-up takes
# this many times as long. Its first density is this factor higher, low enough for quick steps on a
# slow link.
_WARM_UP_DELAYS = 10
_WARM_UP_FACTOR = 5
# Processor time, in seconds, on an ordinary core: to select (per byte of the vector: error feedback
# reads and writes it) and to code, decode and add one pair. Rough on purpose: all ranks must
# make the same choice, and these numbers decide only about tiny buckets.
_SELECT_BYTE = 0.25e-9
_CODE_PAIR = 20e-9


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """The density falls exponentially from the first one in this number of steps."""

    steps: int
    first_density: float


@dataclasses.dataclass(frozen=True)
class MSTopK:
    """Sends only the largest elements of the gradients between the nodes.

    Use it where the network between the nodes is the bottleneck: gradients are summed densely
    within every node, each rank selects the largest elements of its shard of that sum, and only
    these travel between the nodes, before the shards are gathered within the nodes. All but the
    last step runs under the backward pass, the last under the next forward pass. With one node
    nothing is compressed. Selection is exact; what is not sent is kept and sent later (error
    feedback), in a residual that belongs to the rank's shard and is saved in checkpoints.

    Only float32 gradients of a size that gains by it, by the cost model, are compressed; others,
    and the rows of `tf.IndexedSlices`, travel as without compression.

    Args:
        density: Fraction of the elements that are sent, above 0 and at most 1. From every bucket a
            rank selects `max(1, floor(density * elements / ranks per node + 0.5))` elements; 1
            sends everything, dense. Defaults to 0.01.
        samplings: None selects exactly. A number selects with the published bisection instead, with
            that many counting passes, for comparison. Defaults to None.
        error_feedback: Whether what is not sent is added to the next step's gradient. Defaults to
            True; without it, what is not sent is lost.
        momentum: Factor of momentum correction: the residual then sums up the gradients' momentum.
            None: that of the optimizer, if it is `keras.optimizers.SGD` with momentum and without
            `nesterov`; what it then does to the sums is taken into account, and nothing need be
            changed. A number is for plain SGD, in place of its momentum. Defaults to None.
        warm_up_steps: Steps in which the density falls exponentially from 0.25 to `density`. None:
            it falls from five times `density` in the first 10 / `density` steps of an optimizer
            (from 0.05 in 1000 steps); other sums have no warm-up. Defaults to None.
        values: "float32", lossless, or "bfloat16", rounded, with the rounding error in the
            residual. Defaults to "float32".
        exchange: "all_gather": every node gets every node's selection, which it sends (m - 1)
            times for m nodes; "reduce": nodes sum regions and send what they select of the sums,
            less than 2 times each pair whatever m is, at two more start-ups; "auto": a reduce from
            4 nodes on. Defaults to "auto".
        hierarchical: False: every rank selects from its own gradient, and all selections go to all
            ranks: the plain sparse all-gather, a baseline. Defaults to True.
        dense_below: Size in bytes below which a bucket travels dense. Defaults to None: the cost
            model decides with the costs that rank 0 measures at the start.

    Raises:
        ValueError: An argument is out of range, or does not go with another.

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", section 3 (HiTopKComm); Lin et al., "Deep Gradient Compression", section 3
    (momentum correction, warm-up).

    Example:

    >>> import tfdear
    >>> tfdear.compression.MSTopK(density=0.01).elements(1_000_000, ranks_per_node=2)
    5000
    """

    density: float = 0.01
    samplings: int | None = None
    error_feedback: bool = True
    momentum: float | None = None
    warm_up_steps: int | None = None
    values: str = "float32"
    exchange: str = "auto"
    hierarchical: bool = True
    dense_below: int | None = None

    def __post_init__(self) -> None:
        check_density(self.density)
        momentum = 0 if self.momentum is None else self.momentum
        if not is_number(momentum) or not 0 <= momentum < 1:
            raise ValueError(
                "`momentum` must be None or a number of at least 0 and below 1. "
                f"Received: momentum={self.momentum!r}"
            )
        if self.momentum and not self.error_feedback:
            raise ValueError(
                "Momentum correction sums up what was not sent, which `error_feedback=False` "
                f"discards. Set one of them. Received: momentum={self.momentum!r}, "
                f"error_feedback={self.error_feedback!r}"
            )
        for name, minimum in (("samplings", 1), ("warm_up_steps", 0), ("dense_below", 0)):
            value = getattr(self, name)
            if value is not None and (not is_whole(value) or value < minimum):
                raise ValueError(
                    f"`{name}` must be a whole number of at least {minimum}. "
                    f"Received: {name}={value!r}"
                )
        for name, choices in (("values", names.VALUE_FORMATS), ("exchange", _EXCHANGES)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"`{name}` must be one of {choices}. Received: {name}={getattr(self, name)!r}"
                )

    def elements(self, count: int, ranks_per_node: int) -> int:
        """Returns how many elements of a bucket a rank selects.

        Args:
            count: Elements of the bucket.
            ranks_per_node: Ranks that share the bucket on a node; 1 if not `hierarchical`.
        """
        return max(1, math.floor(self.density * count / ranks_per_node + 0.5))

    def warm_up(self) -> WarmUp:
        """Returns the warm-up that was asked for, or that of an optimizer if none was."""
        if self.warm_up_steps is not None:
            return WarmUp(self.warm_up_steps, _FIRST_DENSITY)
        first_density = min(1.0, _WARM_UP_FACTOR * self.density)
        return WarmUp(math.ceil(_WARM_UP_DELAYS / self.density), first_density)

    def exchange_among(self, members: int) -> str:
        """Returns the kind of exchange for a number of nodes: "all_gather" or "reduce"."""
        if self.exchange != "auto":
            return self.exchange
        return "reduce" if members >= REDUCE_FROM_MEMBERS else "all_gather"

    @property
    def corrects_momentum(self) -> bool:
        """Whether the residual takes account of the optimizer's momentum."""
        return self.error_feedback and self.momentum is None

    def configure(self, engine: Any, *, members: int) -> None:
        """Tells the engine how to compress; see `Compressor.configure`."""
        warm_up = self.warm_up()
        engine.compress(
            exchange=self.exchange_among(members),
            values=self.values,
            error_feedback=self.error_feedback,
            momentum=self.momentum if self.error_feedback else 0.0,
            samplings=self.samplings or 0,
            warm_up_steps=warm_up.steps,
            first_density=warm_up.first_density,
            only_optimizers_warm_up=self.warm_up_steps is None,
            hierarchical=self.hierarchical,
        )
        engine.set_density(self.density)

    def exchange_cost(self, outer: CommunicationCosts, members: int) -> LinearCost:
        """Returns the cost of a sparse exchange, per byte of a rank's shard.

        Use it with what was measured, to tell when compression pays. In addition to the payload it
        counts the messages with the sizes of the payloads, and the time to select and code.

        Args:
            outer: Costs of dense collectives among the nodes.
            members: Number of nodes.
        """
        pairs = self.density / 4
        payload = self.density * _CODED[self.values]
        if self.exchange_among(members) == "reduce":
            start_up = 2 * outer.reduce_scatter.a + 2 * outer.all_gather.a
            transfer = payload * (outer.reduce_scatter.b + outer.all_gather.b)
            coded = 4 * pairs
        else:
            start_up = 2 * outer.all_gather.a
            transfer = payload * members * outer.all_gather.b
            coded = (1 + members) * pairs
        return LinearCost(start_up, transfer + _SELECT_BYTE + coded * _CODE_PAIR)

    def smallest_bucket(
        self, outer: CommunicationCosts, ranks_per_node: int, members: int
    ) -> int | None:
        """Returns the size from which a bucket gains by compression, in bytes; None if none does.

        Args:
            outer: Costs of dense collectives among the nodes.
            ranks_per_node: Ranks that share a bucket on a node.
            members: Number of nodes.
        """
        if self.dense_below is not None:
            return self.dense_below
        dense = outer.all_reduce
        sparse = self.exchange_cost(outer, members)
        if sparse.b >= dense.b:
            return None
        pays = max(0.0, sparse.a - dense.a) / (dense.b - sparse.b) * ranks_per_node
        # With fewer elements, one pair is more than the density asks for.
        one_pair = 4 * ranks_per_node / self.density
        return math.ceil(max(pays, one_pair))

    def costs(
        self,
        inner: CommunicationCosts | None,
        outer: CommunicationCosts,
        ranks_per_node: int,
        members: int,
    ) -> CommunicationCosts:
        """Returns what the halves of a compressed all-reduce cost, for planners of tensor fusion.

        Args:
            inner: Costs among the ranks of a node. None: there is one per node.
            outer: Costs of dense collectives among the nodes.
            ranks_per_node: Ranks of a node.
            members: Number of nodes.
        """
        sparse = self.exchange_cost(outer, members)
        first, gather = LinearCost(sparse.a, sparse.b / ranks_per_node), LinearCost(0.0, 0.0)
        if inner is not None:
            first, gather = inner.reduce_scatter + first, inner.all_gather
        return CommunicationCosts(first, gather, first + gather)
