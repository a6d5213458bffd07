# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Nothing stays behind of shapes that are other ones in every step."""

import pytest
from ranks import run_ranks

# A layout's number is how many there were before it.
_JOB = """
import numpy as np
import tensorflow as tf
import tfdear
from tfdear.base import names

strategy = tfdear.DearStrategy()

def layouts():
    return strategy._job.engine.create_layout("count", names.Lane.CONTROL)

def sum_of(count):
    mine = tf.range(count, dtype=tf.float32) + strategy.rank
    total = strategy.all_reduce(mine).numpy()
    expected = strategy.world_size * np.arange(count)
    np.testing.assert_array_equal(total, expected + sum(range(strategy.world_size)))

for count in range(300):
    sum_of(count)
before = layouts()
assert before > 200, before
for count in range(300, 700):
    sum_of(count)
sum_of(5)
# One for sizes at run time, and those of the two counts.
assert layouts() - before <= 2, (before, layouts())
print("DONE")
"""


@pytest.mark.multi_process
@pytest.mark.timeout(120)
def test_eager_sums_of_many_shapes_share_a_layout():
    for code, output in run_ranks(2, _JOB):
        assert code == 0 and "DONE" in output, output[-4000:]
