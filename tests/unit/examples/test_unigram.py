# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from text import unigram


def test_cross_entropy_of_frequencies():
    # Counts of 3, 1 and 0, and one more of each: probabilities 4/7, 2/7 and 1/7.
    loss = unigram.cross_entropy(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 2]), 3)
    assert loss == pytest.approx(-(math.log(4 / 7) + math.log(2 / 7) + 2 * math.log(1 / 7)) / 4)
