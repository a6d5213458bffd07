# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A trace out of recorded steps."""

import numpy as np
import pytest

from tfdear.base.names import EVENT_KINDS
from tfdear.engine.events import EVENT_ROW
from tfdear.measure import layer_times
from tfdear.planning.trace import Layer, Trace

LAYOUT = 7
NAMES = ["a", "b", "c"]
SIZES = [40, 80, 120]


def row(kind, ticket, subject, begin, end, detail=0, computation=0):
    return (EVENT_KINDS.index(kind), ticket, subject, detail, begin, end, computation)


def steps(ready_of_step, forward=1000, layout=LAYOUT):
    """A step every 100 ms: it reads, computes forward, and its gradients are ready one by one."""
    rows = []
    for ticket, ready in enumerate(ready_of_step):
        begin = 100_000 * (ticket + 1)
        # Every variable is read at the begin of the step, and was updated in the one before.
        for variable in range(len(NAMES)):
            rows.append(row("read", ticket, variable, begin, begin))
            rows.append(row("update", ticket, variable, begin + 90_000, begin + 90_010))
        rows.append(row("step", ticket, layout, begin, begin))
        for tensor, time in ready:
            at = begin + forward + time
            rows.append(row("contribute", ticket, tensor, at - 1, at))
    return np.array(rows, EVENT_ROW)


def test_layers_in_the_reverse_of_the_order_of_readiness():
    # Tensor 0 is ready first, although it comes first in the model.
    rows = steps([[(0, 500), (2, 800), (1, 1400)]] * 4)
    trace, tensor_of_layer = layer_times.measure(rows, LAYOUT, NAMES, SIZES)
    assert tensor_of_layer == [1, 2, 0]
    assert [layer.name for layer in trace.layers] == ["b", "c", "a"]
    assert [layer.bytes for layer in trace.layers] == [80, 120, 40]
    # From gradient to gradient; nothing shows how long the first one took: what is usual.
    assert [layer.backward for layer in trace.layers] == pytest.approx([600e-6, 300e-6, 450e-6])
    # All that lies before the first gradient but its own backward time.
    assert trace.forward == pytest.approx(1500e-6 - 450e-6)


def test_the_first_step_does_not_count_and_medians_do():
    usual = [(2, 0), (1, 100), (0, 300)]
    rows = steps([[(2, 0), (1, 9000), (0, 9001)], usual, usual, [(2, 0), (1, 5000), (0, 5200)]])
    trace, tensor_of_layer = layer_times.measure(rows, LAYOUT, NAMES, SIZES)
    assert tensor_of_layer == [0, 1, 2]
    assert [layer.backward for layer in trace.layers[:2]] == pytest.approx([200e-6, 100e-6])


def test_ties_are_in_the_order_of_the_model():
    # 1 and 2 change places from step to step, within a hundredth of the backward pass.
    one, other = [(1, 5), (2, 0), (0, 1000)], [(1, 0), (2, 5), (0, 1000)]
    rows = steps([one, one, other, one, other])
    assert layer_times.measure(rows, LAYOUT, NAMES, SIZES)[1] == [0, 1, 2]


def test_exposed_communication_is_no_forward_pass():
    rows = steps([[(2, 0), (1, 100), (0, 300)]] * 3, forward=1000)
    gathers = [
        # 600 of the 1000 microseconds, half of them with computation under way.
        row("all_gather", ticket, 0, 100_000 * (ticket + 1), 100_000 * (ticket + 1) + 600, 8, 300)
        for ticket in range(3)
    ]
    rows = np.concatenate([rows, np.array(gathers, EVENT_ROW)])
    trace, _ = layer_times.measure(rows, LAYOUT, NAMES, SIZES)
    assert trace.forward == pytest.approx(1000e-6 - 300e-6 - 150e-6)


def test_without_a_whole_step_there_is_no_trace():
    assert layer_times.measure(np.empty(0, EVENT_ROW), LAYOUT, NAMES, SIZES) is None
    assert layer_times.measure(steps([[(0, 1), (1, 2)]] * 3), LAYOUT, NAMES, SIZES) is None
    whole = steps([[(2, 0), (1, 100), (0, 300)]] * 3)
    assert layer_times.measure(whole, LAYOUT + 1, NAMES, SIZES) is None


def test_layers_that_are_buckets():
    # Ready one after the other: tensors 2, 0, 1, 3; the bucket of 0 and 3 is ready with the last.
    layers = [
        Layer("t3", 8, 1.0, 4.0),
        Layer("t1", 4, 2.0, 3.0),
        Layer("t0", 2, 4.0, 2.0),
        Layer("t2", 1, 8.0, 1.0),
    ]
    trace, bucket_of_layer = layer_times.of_buckets(
        Trace("measured", layers), [3, 1, 0, 2], [[0, 3], [1], [2]]
    )
    assert bucket_of_layer == [0, 1, 2]
    assert [layer.bytes for layer in trace.layers] == [10, 4, 1]
    assert [layer.backward for layer in trace.layers] == [4.0, 5.0, 1.0]
    assert [layer.forward for layer in trace.layers] == [5.0, 2.0, 8.0]


def with_marks(rows, marks, forward=1000):
    """Adds marks of variables to steps that `steps` made: microseconds since each began."""
    begins = rows[rows["kind"] == EVENT_KINDS.index("step")]["begin"]
    added = [row("forward", 0, v, begin + at, begin + at) for begin in begins for v, at in marks]
    return np.concatenate([rows, np.array(added, EVENT_ROW)])


def test_forward_times_are_those_between_marks():
    rows = steps([[(2, 0), (1, 100), (0, 300)]] * 4)
    # Variables 10, 11 and 12 have these gradients; 11 is used twice, and 99 has no gradient.
    marks = [(10, 50), (11, 250), (99, 300), (11, 400), (12, 650)]
    trace, tensors = layer_times.measure(
        with_marks(rows, marks), LAYOUT, NAMES, SIZES, [10, 11, 12]
    )
    assert tensors == [0, 1, 2]
    # The last layer's ends with the first backward time, which is usual, before its gradient.
    assert [layer.forward for layer in trace.layers] == pytest.approx([250e-6, 400e-6, 200e-6])


def test_layers_without_a_mark_take_nothing():
    rows = steps([[(2, 0), (1, 100), (0, 300)]] * 4)
    trace, _ = layer_times.measure(
        with_marks(rows, [(12, 450)]), LAYOUT, NAMES, SIZES, [10, 11, 12]
    )
    assert [layer.forward for layer in trace.layers] == pytest.approx([0, 0, 850e-6])
    unmarked, _ = layer_times.measure(rows, LAYOUT, NAMES, SIZES, [10, 11, 12])
    spread, _ = layer_times.measure(rows, LAYOUT, NAMES, SIZES)
    assert unmarked == spread


def test_a_wait_for_a_gather_is_no_forward_time():
    rows = steps([[(2, 0), (1, 100), (0, 300)]] * 4)
    added = []
    for ticket, begin in enumerate(100_000 * np.arange(1, 5)):
        # The processor is idle all the time, as an accelerator computes: 11 comes 150 microseconds
        # late; 10 and 12 in time, although gathers, the last of all, are under way till 700.
        added.append(row("all_gather", ticket, 0, begin, begin + 400, 8, 0))
        added.append(row("all_gather", ticket, 1, begin + 400, begin + 700, 8, 0))
        added += [row("await", ticket, v, begin, begin + at) for v, at in ((10, 40), (11, 400))]
    rows = np.concatenate([rows, np.array(added, EVENT_ROW)])
    marks = [(10, 50), (11, 250), (12, 650)]
    trace, _ = layer_times.measure(with_marks(rows, marks), LAYOUT, NAMES, SIZES, [10, 11, 12])
    assert [layer.forward for layer in trace.layers] == pytest.approx([210e-6, 250e-6, 200e-6])


def test_a_layer_waits_for_all_that_it_uses():
    rows = steps([[(2, 0), (1, 100), (0, 300)]] * 4)
    begins = 100_000 * np.arange(1, 5)
    late = [row("await", 0, 10, begin, begin + 300) for begin in begins]
    rows = np.concatenate([rows, np.array(late, EVENT_ROW)])
    # 10 and 11 are of one layer.
    marks = [(10, 50), (11, 50), (12, 650)]
    trace, _ = layer_times.measure(with_marks(rows, marks), LAYOUT, NAMES, SIZES, [10, 11, 12])
    assert [layer.forward for layer in trace.layers] == pytest.approx([0, 350e-6, 200e-6])


def test_exchanges_of_tables_are_no_forward_time():
    rows = steps([[(2, 0), (1, 100), (0, 300)]] * 4)
    exchanges = [
        row(kind, 0, 0, begin + at, begin + end)
        for begin in 100_000 * np.arange(1, 5)
        # The last one looks ahead: it is not what the first layer waits for.
        for kind, at, end in (
            ("embedding_prior", -50, 20),
            ("embedding_vectors", 30, 130),
            ("embedding_vectors", 300, 600),
        )
    ]
    rows = np.concatenate([rows, np.array(exchanges, EVENT_ROW)])
    marks = [(10, 150), (11, 250), (12, 650)]
    trace, _ = layer_times.measure(with_marks(rows, marks), LAYOUT, NAMES, SIZES, [10, 11, 12])
    assert [layer.forward for layer in trace.layers] == pytest.approx([130e-6, 400e-6, 200e-6])


def test_layers_of_a_block_are_side_by_side_and_one_that_comes_late_changes_no_order():
    # From the back: c1 at 1 s, b1 at 3, b0 at 4, c0 at 5, which is late, and a at 7.
    names, seconds = ["a", "c0", "b0", "b1", "c1"], [2.0, 1.0, 1.0, 2.0, 1.0]
    layers = (Layer(name, 8, time, time) for name, time in zip(names, seconds, strict=True))
    trace, order = layer_times.in_blocks(
        Trace("late", tuple(layers)), [10, 15, 12, 13, 14], [[10], [12, 13], [15, 14]]
    )
    assert order == [10, 12, 13, 15, 14]
    assert [layer.name for layer in trace.layers] == ["a", "b0", "b1", "c0", "c1"]
    assert [layer.forward for layer in trace.layers] == [2.0, 1.0, 2.0, 1.0, 1.0]
    # The blocks are ready at 5, no sooner than that at 5, and at 7.
    assert [layer.backward for layer in trace.layers] == [2.0, 0.0, 0.0, 5.0, 0.0]
