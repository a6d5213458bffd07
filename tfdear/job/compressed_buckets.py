# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Agrees on which buckets of gradients are compressed, at the start of a job."""

import dataclasses
import json
from collections.abc import Callable

from tfdear.compression.compressor import Compressor, elements_of
from tfdear.engine.engine import Engine
from tfdear.engine.plan import Levels, SparseBuckets
from tfdear.job.links import Links
from tfdear.planning.cost_model import CommunicationCosts, LinearCost


def choose(
    compressor: Compressor,
    levels: Levels,
    links: Links,
    engine: Engine,
    agree: Callable[[str, Callable[[list[str]], str]], str],
    warn: Callable[[str], None],
) -> SparseBuckets | None:
    """Tells the started engine which buckets to compress; returns them, None if none are.

    The costs of rank 0 decide, as all ranks must agree: `agree` tells all what rank 0 decides by
    the texts of all. `levels` are the ranks that sum before they compress, and the nodes that
    exchange the results; `warn` takes the reason where nothing is compressed.
    """
    if levels.inter == 1:
        warn("all ranks are on one node, where nothing is compressed")
        return None
    measured = json.dumps(dataclasses.asdict(links.of_sparse_levels()[1]))
    costs = json.loads(agree(measured, lambda of_ranks: of_ranks[0]))
    outer = CommunicationCosts(**{name: LinearCost(**cost) for name, cost in costs.items()})
    smallest = compressor.smallest_bucket(outer, levels.intra, levels.inter)
    compressor.configure(engine, members=levels.inter)
    if smallest is None:
        warn(
            "by the measured costs, no bucket is faster compressed, whatever its size; set "
            "`dense_below` to the size in bytes from which buckets are to be compressed"
        )
        return None
    return SparseBuckets(elements_of(smallest), levels if compressor.hierarchical else None)
