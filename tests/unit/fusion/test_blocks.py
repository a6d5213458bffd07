# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Blocks of models of language: from paths of layers, and from groups."""

import random

import planning_instances
import pytest

from tfdear import cost_model, fusion, simulator
from tfdear.measure import layer_times
from tfdear.planning import schedules
from tfdear.planning.trace import Layer, Trace

COSTS = cost_model.ring(4, alpha=5e-5, beta=8e-9)


def of_trace(name):
    """Each block of a shipped trace as its first variable and its number of variables."""
    trace = simulator.load(name)
    tables = [table.layer for table in trace.tables]
    names = [layer.name for layer in trace.layers]
    sizes = [0 if layer.name in tables else layer.bytes for layer in trace.layers]
    blocks = fusion.Blocks().find(names, sizes)
    assert sorted(index for block in blocks for index in block) == list(range(len(names)))
    return [(names[block[0]], len(block)) for block in blocks]


def test_one_block_for_each_lstm():
    assert of_trace("lm-1b") == [
        ("embedding/table", 1),
        ("lstm/kernel", 3),
        ("projection/kernel", 2),
        ("softmax/table", 1),
        ("softmax/bias", 1),
    ]
    lstms = [("encoder/1/forward/kernel", 6), *((f"encoder/{i}/kernel", 3) for i in (2, 3, 4))]
    assert of_trace("gnmt-8") == [
        ("encoder_embedding/table", 1),
        *lstms,
        ("decoder_embedding/table", 1),
        ("decoder/1/kernel", 3),
        ("attention/query/kernel", 3),
        *((f"decoder/{i}/kernel", 3) for i in (2, 3, 4)),
        ("classifier/kernel", 2),
    ]


def test_one_block_for_each_attention_block():
    # The last ones take the normalizations behind the stacks.
    encoder = [(f"encoder/{i}/self_attention/query/kernel", 12 + 2 * (i == 5)) for i in range(6)]
    decoder = [(f"decoder/{i}/self_attention/query/kernel", 18 + 2 * (i == 5)) for i in range(6)]
    assert of_trace("transformer-big") == [
        ("encoder_embedding/table", 1),
        *encoder,
        ("decoder_embedding/table", 1),
        *decoder,
        ("output/kernel", 1),
    ]
    # The first one takes what is in front of it and small: positions, types, a normalization.
    blocks = of_trace("bert-base-squad")
    assert blocks[1:13] == [
        (f"encoder/{i}/self_attention/query/kernel", 16 + 4 * (i == 0)) for i in range(12)
    ]
    assert blocks[13:] == [("pooler/kernel", 4)]


def test_groups_are_blocks_as_they_are_given():
    names = ["lm/a/kernel", "lm/norm/gamma", "lm/b/kernel", "lm/c/kernel", "lm/c/bias"]
    sizes = [100, 1, 100, 100, 1]

    def find(*groups):
        return fusion.Blocks(groups=groups).find(names, sizes)

    assert find() == [[0, 1], [2], [3, 4]]
    assert find(("a", "c")) == [[0, 3, 4], [2, 1]]
    assert find(("a/.*", "lm/c/.*")) == [[0, 3, 4], [2, 1]]
    assert find("[ab]", ["c"]) == [[0, 2], [1], [3, 4]]
    # However small it is, and nothing joins it.
    assert find("norm", "a") == [[0], [1], [2], [3, 4]]
    assert find("c/bias") == [[0, 1], [2], [3], [4]]
    assert find("lm") == [[0, 1, 2, 3, 4]]


def test_groups_that_match_nothing_or_twice_are_named():
    names, sizes = ["lm/lstm/kernel", "lm/dense/kernel"], [8, 8]
    with pytest.raises(ValueError, match=r"'lstmm/\.\*'.*matches no path.*lm/lstm, lm/dense\."):
        fusion.Blocks(groups=[("dense", "lstmm/.*")]).find(names, sizes)
    with pytest.raises(ValueError, match=r"take 'lm/lstm/kernel': \('lstm',\) and \('l\.\*',\)"):
        fusion.Blocks(groups=["lstm", "l.*"]).find(names, sizes)
    for wrong in ("lstm", 3, [3], [()], ["("], [["a", 3]], None):
        with pytest.raises(ValueError, match="`groups` must be"):
            fusion.Blocks(groups=wrong)
    assert fusion.Blocks(groups=["a", ["b", "c"]]).groups == (("a",), ("b", "c"))


def test_what_is_small_joins_the_block_in_front_of_it():
    names = ["n0/gamma", "a/kernel", "n1/gamma", "n2/gamma", "rows", "n3/gamma", "b/kernel"]
    sizes = [1, 100, 1, 1, 0, 1, 100]
    assert fusion.Blocks().find(names, sizes) == [[1, 0, 2, 3, 5], [4], [6]]
    # Recurrent layers, and layers that are made of layers, never join others.
    names = ["a/kernel", "lstm/recurrent_kernel", "b/query/kernel", "b/key/kernel", "w/n/gamma"]
    assert fusion.Blocks().find(names, [100, 1, 1, 1, 1]) == [[0], [1], [2, 3, 4]]
    # Only what is small, or only rows.
    assert fusion.Blocks(groups=["a"]).find(names[:1] + ["n/gamma", "m/gamma"], [100, 1, 1]) == [
        [0],
        [1, 2],
    ]
    assert fusion.Blocks().find(["a", "b"], [0, 0]) == [[0], [1]]
    assert fusion.Blocks().find([], []) == []


def in_places(blocks, count):
    """A trace of as many layers as there are in blocks, which are scattered over it."""
    rng = random.Random(count)
    block_of_layer = [rng.randrange(blocks) for _ in range(count)]
    layers = (
        Layer(
            f"{block}/part/{i}", rng.randrange(1, 1 << 22), rng.random() / 1e3, rng.random() / 1e3
        )
        for i, block in enumerate(block_of_layer)
    )
    return Trace("scattered", tuple(layers)), block_of_layer


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
@pytest.mark.parametrize("planner", [fusion.Blocks(), fusion.Planned(fusion.Blocks())], ids=repr)
def test_blocks_that_become_ready_in_turns_are_whole_buckets(planner, schedule):
    # As the tuner does, whatever the order in which gradients become ready.
    trace, _ = in_places(blocks=5, count=40)
    names = [layer.name for layer in trace.layers]
    sizes = [layer.bytes for layer in trace.layers]
    blocks = fusion.Blocks().find(names, sizes)
    assert len(blocks) == 5
    tensor_of_layer = random.Random(1).sample(range(40), 40)
    shuffled = Trace("shuffled", tuple(trace.layers[tensor] for tensor in tensor_of_layer))
    arranged, order = layer_times.in_blocks(shuffled, tensor_of_layer, blocks)
    buckets = [
        {order[layer] for layer in bucket} for bucket in planner.buckets(arranged, COSTS, schedule)
    ]
    if planner == fusion.Blocks():
        assert sorted(map(sorted, buckets)) == sorted(map(sorted, blocks))
    for block in blocks:
        assert sum(bool(bucket & set(block)) for bucket in buckets) == 1
    # The engine gets them, too. A block is ready when its last gradient and those behind it are.
    plan = fusion.planner.make_plan(planner, schedule, arranged, COSTS)
    single = [[layer] for layer in reversed(range(40))]
    ready = dict(zip(tensor_of_layer[::-1], schedules.ready_times(single, shuffled), strict=True))
    last = [max(ready[order[layer]] for layer in bucket) for bucket in plan.buckets]
    assert schedules.ready_times(plan.buckets, arranged) == pytest.approx(
        [max(last[: place + 1]) for place in range(len(last))]
    )
    assert arranged.forward == pytest.approx(shuffled.forward)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_planned_of_blocks_is_the_best_list_of_whole_blocks(schedule):
    rng = random.Random(schedule)
    for _ in range(20):
        trace, costs = planning_instances.random_instance(rng, 6)
        layers = []
        for number, layer in enumerate(trace.layers):
            # Two variables of each layer, one of which has its times.
            layers += [
                Layer(f"{number}/kernel", layer.bytes, layer.forward, layer.backward),
                Layer(f"{number}/bias", 1, 0.0, 0.0),
            ]
        trace = Trace("pairs", tuple(layers))
        planner = fusion.Planned(fusion.Blocks(groups=[str(number) for number in range(6)]))
        planned = planner.buckets(trace, costs, schedule)
        every = [
            [[layer for pair in bucket for layer in (2 * pair + 1, 2 * pair)] for bucket in buckets]
            for buckets in planning_instances.all_bucket_lists(6)
        ]
        assert planned in every

        def seconds(buckets, trace=trace, costs=costs):
            return schedules.timeline(schedule, buckets, trace, costs).iteration_time

        assert seconds(planned) == pytest.approx(min(map(seconds, every)), rel=1e-9)


def test_planned_takes_blocks_only():
    with pytest.raises(ValueError, match="`blocks`"):
        fusion.Planned(fusion.FixedSize())
    assert repr(fusion.Planned()) == "Planned()"
    assert repr(fusion.Planned(fusion.Blocks(groups=["a"]))) == "Planned(Blocks(groups=(('a',),)))"
