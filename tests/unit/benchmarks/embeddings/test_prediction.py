# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Predictions of replays are the simulator's, with the line that was measured."""

import pytest

from tfdear import fusion, simulator
from tfdear.benchmarks.embeddings import methods, prediction
from tfdear.planning.network import Network


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_line_is_that_of_the_costs(ranks):
    network = Network(alpha=3e-5, beta=8e-9)
    found = prediction.network_of(network.cluster(ranks).costs, ranks)
    assert (found.alpha, found.beta) == pytest.approx((3e-5, 8e-9))


def test_predictions_are_those_of_simulated_tables():
    trace, network = simulator.load("lm-1b"), Network(alpha=3e-5, beta=8e-9)
    names = [name for name in methods.METHODS if name in simulator.METHODS]
    schedules = {name: methods.METHODS[name].schedule for name in names}
    assert {"dense", "byteps", "all_gather", "parameter_servers", "all_to_all"} <= {*names}
    found = prediction.iteration_times(trace, network, [2, 4], schedules)
    for name, schedule in schedules.items():
        expected = simulator.simulate_tables(
            trace,
            network,
            [2, 4],
            {"planned": fusion.Planned()},
            [name],
            [schedule],
            chunk_bytes=4 << 20,
        )
        times = {result.workers: result.iteration_time for result in expected}
        assert found[name] == pytest.approx(times), name
    assert prediction.iteration_times(trace, network, [2], {"block_sparse": "wfbp"}) == {}
