# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a script exchanges delays none of the small collectives that a step waits for."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(150)]

# Rank 1 holds its rows back until a sum of all ranks has come, for which rank 0 holds its number
# back until its own rows are on the line. The exchange was called first, so were both in one lane
# they would wait for each other until the deadline. On rank 0 every exchange here needs what rank 1
# holds back: a root that broadcasts to it could be done before.
_HELD_OPEN = """
    import threading
    import time

    import numpy as np
    import tensorflow as tf

    import tfdear
    from tfdear.base import names

    strategy = tfdear.DearStrategy(timeout=30)
    rank, size = strategy.rank, strategy.world_size
    engine = strategy._job.engine
    summed = threading.Event()
    COLLECTIVES = {
        "all_to_all": lambda rows: strategy.all_to_all(rows, [tf.shape(rows)[0] // size] * size)[0],
        "all_gather": strategy.all_gather,
        "reduce_scatter": strategy.reduce_scatter,
        "broadcast": lambda rows: strategy.broadcast(rows, 1),
        "all_reduce": strategy.all_reduce,
    }


    def until(condition):
        end = time.monotonic() + 25
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.001)


    def on_the_line(group):
        return any(running["group"] == group for running in engine.in_flight())


    # Stateless, or TensorFlow would run these calls one after the other.
    def call(function, value):
        (result,) = tf.numpy_function(function, [value], [value.dtype], stateful=False)
        return tf.ensure_shape(result, value.shape)


    def hold_rows(rows):
        if rank == 1:
            until(summed.is_set)
        return rows


    def hold_number(number):
        if rank == 0:
            until(lambda: on_the_line("exchanges"))
        return number


    def note_sum(total):
        summed.set()
        return total


    for name, collective in COLLECTIVES.items():

        @tf.function(autograph=False)
        def step(rows, number):
            rows = call(hold_rows, rows)
            exchanged = collective(rows)
            total = strategy.reduce("sum", call(hold_number, number), axis=None)
            return exchanged, call(note_sum, total)

        summed.clear()
        strategy.events()
        rows = tf.reshape(tf.range(size * 2**18, dtype=tf.float32), [-1, 64]) + 0.5 * rank
        exchanged, total = step(rows, tf.constant(rank + 1.0))
        assert total == size * (size + 1) / 2, total
        lanes = {
            names.Lane(event.subject): event
            for event in strategy.events()
            if event.kind == "collective"
        }
        exchange, control = lanes[names.Lane.EXCHANGES], lanes[names.Lane.CONTROL]
        # Rank 0 may see the end of either first: rank 1's rows can overtake its number.
        if rank == 0:
            assert exchange.begin <= control.begin < exchange.end, lanes
        else:
            assert control.end <= exchange.begin < exchange.end, lanes
        print(name, "did not hold up the sum", flush=True)
        strategy.barrier()
"""


@pytest.mark.parametrize("environment", [{}, {"TFDEAR_SHARED_MEMORY": "0"}])
def test_small_sums_pass_what_a_script_exchanges(environment):
    for code, output in run_ranks(2, _HELD_OPEN, environment, timeout=120):
        assert code == 0, output[-3000:]
        for name in ("all_to_all", "all_gather", "reduce_scatter", "broadcast", "all_reduce"):
            assert f"{name} did not hold up the sum" in output
