# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from tfdear import cost_model
from tfdear.planning.cost_model import LinearCost

ALGORITHMS = [
    cost_model.ring,
    cost_model.recursive_halving,
    cost_model.recursive_exchange,
    cost_model.double_binary_trees,
]
SIZES = [2**exponent for exponent in range(10, 25, 2)]


def test_fit_recovers_an_exact_line():
    truth = LinearCost(a=2e-4, b=9e-9)
    fitted = cost_model.fit(SIZES, [truth.seconds(size) for size in SIZES])
    assert fitted.a == pytest.approx(truth.a)
    assert fitted.b == pytest.approx(truth.b)


def test_fit_bears_relative_noise():
    # With absolute errors instead of relative ones, the noise of the largest size, 7 ms, would
    # swamp a start-up of 0.2 ms.
    truth = LinearCost(a=2e-4, b=9e-9)
    random = np.random.default_rng(0)
    for _ in range(20):
        noise = 1 + 0.05 * random.standard_normal(len(SIZES))
        times = [truth.seconds(size) for size in SIZES] * noise
        fitted = cost_model.fit(SIZES, times)
        assert fitted.a == pytest.approx(truth.a, rel=0.2)
        assert fitted.b == pytest.approx(truth.b, rel=0.2)


def test_fit_gives_no_negative_startup():
    fitted = cost_model.fit([100, 200, 300], [0.5, 2.0, 3.5])
    assert fitted.a == 0
    assert fitted.b > 0


@pytest.mark.parametrize(
    "sizes, seconds, message",
    [
        ([100], [1.0], "two different"),
        ([100, 100], [1.0, 2.0], "two different"),
        ([100, 200], [1.0], "one time per size"),
        ([100, 200], [0.0, 1.0], "positive times"),
        ([100, 200], [float("nan"), 1.0], "positive times"),
        ([-1, 200], [1.0, 2.0], "zero or more bytes"),
        ([100, 200], [2.0, 1.0], "do not grow"),
    ],
)
def test_fit_refuses(sizes, seconds, message):
    with pytest.raises(ValueError, match=message):
        cost_model.fit(sizes, seconds)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("workers", [1, 2, 4, 64, 2048])
def test_the_halves_make_the_whole(algorithm, workers):
    costs = algorithm(workers, alpha=1e-5, beta=1e-9, gamma=1e-10)
    for field in ("a", "b"):
        halves = getattr(costs.reduce_scatter, field) + getattr(costs.all_gather, field)
        assert getattr(costs.all_reduce, field) == pytest.approx(halves)
    if workers == 1:
        assert costs.all_reduce.seconds(1e9) == 0


def test_values_of_the_table():
    workers, alpha, beta, gamma = 8, 3.0, 5.0, 7.0
    ring = cost_model.ring(workers, alpha, beta, gamma).all_reduce
    assert ring.a == 2 * 7 * alpha
    assert ring.b == pytest.approx(2 * 7 / 8 * beta + 7 / 8 * gamma)
    halving = cost_model.recursive_halving(workers, alpha, beta, gamma).all_reduce
    assert halving.a == 2 * 3 * alpha
    assert halving.b == pytest.approx(2 * beta - (2 * beta + gamma) / 8 + gamma)
    trees = cost_model.double_binary_trees(workers, alpha, beta, gamma).all_reduce
    assert trees.a == 2 * 3 * alpha
    assert trees.b == pytest.approx(beta + gamma)


def test_recursive_exchange_has_a_round_for_each_factor():
    def rounds(workers):
        return cost_model.recursive_exchange(workers, alpha=1.0, beta=0.0).all_gather.a

    assert [rounds(workers) for workers in (1, 2, 3, 7, 8)] == [0, 1, 1, 1, 1]
    assert {workers: rounds(workers) for workers in (9, 16, 42, 1000)} == {
        9: 2,
        16: 4,
        42: 3,
        1000: 6,
    }
    assert {workers: rounds(workers) for workers in (11, 26, 997)} == {11: 10, 26: 25, 997: 996}


def test_hierarchical_is_a_ring_where_there_is_one_level():
    link = {"alpha": 3.0, "beta": 5.0}
    inner = {"intra_node_alpha": 2.0, "intra_node_beta": 1.0}
    one_each = cost_model.hierarchical(8, 1, **link, **inner, gamma=7.0)
    assert one_each == cost_model.ring(8, 3.0, 5.0, 7.0)
    one_node = cost_model.hierarchical(1, 8, **link, **inner, gamma=7.0)
    assert one_node == cost_model.ring(8, 2.0, 1.0, 7.0)


def test_hierarchical_beats_one_ring_over_all_workers_on_startup():
    flat = cost_model.ring(64, alpha=1.0, beta=1.0)
    levels = cost_model.hierarchical(
        8, 8, alpha=1.0, beta=1.0, intra_node_alpha=0.1, intra_node_beta=0.01
    )
    assert levels.all_reduce.a < flat.all_reduce.a / 4
    assert levels.all_reduce.b < flat.all_reduce.b


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "arguments, name", [((0, 1.0, 1.0), "workers"), ((2, -1.0, 1.0), "alpha"), ((2, 1, -1), "beta")]
)
def test_algorithms_refuse(algorithm, arguments, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        algorithm(*arguments)


def test_linear_cost_refuses():
    with pytest.raises(ValueError, match="`b`"):
        LinearCost(1.0, -1.0)


def test_levels_add_up_what_was_measured():
    inner = cost_model.ring(4, alpha=1.0, beta=2.0, gamma=0.5)
    outer = cost_model.ring(3, alpha=5.0, beta=7.0, gamma=0.25)
    both = cost_model.levels(inner, outer, 4)
    for half in ("reduce_scatter", "all_gather"):
        within, between = getattr(inner, half), getattr(outer, half)
        # Between the nodes travels a quarter of the bucket.
        expected = within.seconds(1000) + between.seconds(250)
        assert getattr(both, half).seconds(1000) == pytest.approx(expected)
    halves = both.reduce_scatter.seconds(1000) + both.all_gather.seconds(1000)
    assert both.all_reduce.seconds(1000) == pytest.approx(halves)
    assert cost_model.levels(None, outer, 1).all_gather == outer.all_gather
    assert cost_model.levels(inner, None, 4).all_gather == inner.all_gather
    with pytest.raises(ValueError, match="at least one level"):
        cost_model.levels(None, None, 1)
