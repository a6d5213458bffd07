# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Gives random generators the same seed on all ranks.

Datasets are shuffled on every rank: in the same order, or examples are lost.
"""

import hashlib
import pickle
import random
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdear._private import tensorflow as _tf_private

# What TensorFlow was given here: another seed in every run. None: the script gave it one.
drawn: int | None = None

Agree = Callable[[str, Callable[[list[str]], str]], str]


def share(agree: Agree) -> None:
    """Seeds TensorFlow's, Python's and numpy's global generators, unless the script did so.

    All ranks call it together; `agree` tells all what rank 0 decides by the texts of all.
    """
    seed = int(agree(str(random.SystemRandom().randrange(1 << 31)), lambda seeds: seeds[0]))
    if _tf_private.context.global_seed() is None:
        global drawn
        drawn = seed
        tf.random.set_seed(seed)
    # Python's generator shuffles a `keras.utils.PyDataset`, numpy's the data of many scripts. A
    # state that is the same on all ranks was seeded by the script and stays.
    _agree_on_state(agree, random.getstate(), lambda: random.seed(seed))
    _agree_on_state(agree, np.random.get_state(legacy=False), lambda: np.random.seed(seed))


def _agree_on_state(agree: Agree, state: object, reseed: Callable[[], None]) -> None:
    digest = hashlib.sha256(pickle.dumps(state)).hexdigest()
    if int(agree(digest, lambda digests: str(len({*digests})))) > 1:
        reseed()
