# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Agrees on which buckets of gradients are compressed, at the start of a job."""

import dataclasses
import json
from collections.abc import Callable

from tfdear.compression.compressor import Compressor, elements_of
from tfdear.engine.engine import Engine
from tfdear.engine.plan import Levels, SparseBuckets
from tfdear.job.links import Links
from tfdear.planning import cost_model


def agree(
    compressor: Compressor,
    levels: Levels,
    links: Links,
    engine: Engine,
    exchange: Callable[[str], list[str]],
    warn: Callable[[str], None],
) -> SparseBuckets | None:
    """Tells the engine which buckets to compress: by the costs of rank 0, as all ranks must agree.

    Args:
        compressor: How gradients are compressed.
        levels: Ranks that sum before they compress, and nodes that exchange the results.
        links: What was measured.
        engine: The started engine.
        exchange: Gives every rank the texts of all ranks.
        warn: Takes the reason where nothing is compressed.

    Returns:
        Which buckets; None if none are.
    """
    if levels.inter == 1:
        warn("all ranks are on one node, where nothing is compressed")
        return None
    measured = json.dumps(dataclasses.asdict(links.of_sparse_levels()[1]))
    outer = cost_model.CommunicationCosts(
        **{
            name: cost_model.LinearCost(**cost)
            for name, cost in json.loads(exchange(measured)[0]).items()
        }
    )
    smallest = compressor.smallest_bucket(outer, levels.intra, levels.inter)
    compressor.configure(engine, members=levels.inter)
    if smallest is None:
        warn(
            "by the measured costs, no bucket is faster compressed, whatever its size; set "
            "`dense_below` to the size in bytes from which buckets are to be compressed"
        )
        return None
    return SparseBuckets(elements_of(smallest), levels if compressor.hierarchical else None)
