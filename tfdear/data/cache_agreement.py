# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job must say alike of a cache, or they would read different examples."""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import SupportsIndex

import tensorflow as tf

from tfdear.data import cache_options
from tfdear.data.preparation import Preparation
from tfdear.data.record_source import RecordSource
from tfdear.job import job as job_module
from tfdear.job import seeds
from tfdear.job.job import Job

# TensorFlow's own where a script gave none. A strategy gives it another one in every run, where an
# interrupted epoch could not be gone on with.
_SEED_OF_NONE = 87654321


def compare(
    job: Job | None,
    call: str,
    arguments: Mapping[str, object],
    own: Mapping[str, object] = MappingProxyType({}),
) -> list[dict]:
    """Compares the arguments of a call that all ranks make at the same point of their scripts.

    Args:
        job: The ranks; None: this process is alone.
        call: What they call, for messages. Ranks that do something else meanwhile are waited for
            until the strategy's `init_timeout`, and named by the error then.
        arguments: Values of JSON.
        own: More such values, which may differ.

    Returns:
        Both, of all ranks.

    Raises:
        ValueError: The arguments differ.
        RendezvousTimeoutError: Not all ranks make the call.
    """
    told = {**arguments, **own}
    if job is None or job.world_size == 1:
        return [told]
    ranks = [json.loads(text) for text in job.exchange(json.dumps(told), f"arguments of {call}")]
    for name in arguments:
        if any(rank[name] != ranks[0][name] for rank in ranks):
            raise ValueError(
                f"All ranks must call {call} with the same arguments, or they would read different "
                f"examples. Received, by rank, {name}: {[rank[name] for rank in ranks]}"
            )
    return ranks


def seed_of(
    job: Job | None, call: str, seed: SupportsIndex | None, arguments: Mapping[str, object]
) -> int:
    """The seed of orders, the same on all ranks: that of rank 0 where none was given.

    `call` and `arguments` are as of `compare`, which compares them, and given seeds.
    """
    given = None if seed is None else cache_options.whole("seed", seed)
    global_seed = tf.compat.v1.get_seed(0)[0]
    # Scripts may seed TensorFlow by the rank, such as for augmentation.
    own = {"global seed": _SEED_OF_NONE if global_seed == seeds.drawn else global_seed}
    ranks = compare(job, call, {**arguments, "seed": given}, own)
    return ranks[0]["global seed"] if given is None else given


def checksum_of(arguments: Mapping[str, object], seed: int) -> int:
    """A number for what ranks have agreed on."""
    text = json.dumps([arguments, seed])
    content = hashlib.blake2b(text.encode(), digest_size=8)
    return int.from_bytes(content.digest(), "little", signed=True)


def description_of(
    source: RecordSource, preparation: Preparation, job: Job | None
) -> dict[str, str]:
    """What tells a cache from others, by words for it."""
    alone = job is None or job.world_size == 1
    return {
        "records with fingerprint": source.fingerprint(),
        "examples of": str(preparation.element_spec),
        # It reads what `prepare` captured, which may be much, such as the weights of a model.
        "checksum of what `prepare` computes": "" if alone else preparation.fingerprint(),
    }


def check_made_for(job: Job | None) -> None:
    """Raises a ValueError where a cache of `job` is used by ranks that do not share it."""
    current = job_module.current()
    if current is None or current.world_size == 1 or current is job:
        return
    raise ValueError(
        f"This DataCache was made without the DearStrategy of {current.world_size} ranks, or "
        "before it, so that each of them would get all examples. Make the strategy first, then the "
        "cache and its data sets."
    )
