# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import pytest

from tfdear import cost_model
from tfdear.planning import density_sweep
from tfdear.planning.embedding_costs import ExchangeCosts


def _costs(workers, alpha=5e-6, beta=1e-10):
    return ExchangeCosts(
        cost_model.ring(workers, alpha, beta), cost_model.pairwise(workers, alpha, beta)
    )


@pytest.mark.parametrize("workers", [4, 8])
def test_the_order_of_the_methods_is_that_of_figure_4(workers):
    """Shards are the fastest but for dense gradients; gathers pass the all-reduce on the way."""
    times = density_sweep.sweep(32_320, 1024, workers, _costs(workers))
    ahead = [
        all(times["all_to_all"][i] <= times[name][i] * (1 + 1e-3) for name in times)
        for i in range(len(density_sweep.DENSITIES))
    ]
    assert all(ahead[:-1])
    gather_first = [a < b for a, b in zip(times["all_gather"], times["dense"], strict=True)]
    assert gather_first[0] and not gather_first[-1]
    assert gather_first == sorted(gather_first, reverse=True), "they cross once"
    assert times["block_sparse"][0] < times["dense"][0] < times["block_sparse"][-1]
    for name, seconds in times.items():
        assert seconds == sorted(seconds), name


def test_there_are_no_more_servers_than_workers():
    times = density_sweep.sweep(100, 16, 1, _costs(1), densities=[0.5])
    assert [name for name in times if "servers" in name] == ["parameter_servers_1"]
    assert all(seconds == [0] for seconds in times.values())


def test_partition_and_type_of_the_vectors_count():
    times, halves, rows = (
        density_sweep.sweep(100, 16, 4, _costs(4), [0.5], **options)
        for options in ({}, {"value_bytes": 2}, {"kind": "row"})
    )
    assert halves["all_to_all"] < times["all_to_all"]
    assert halves["dense"] == times["dense"]
    assert rows["all_to_all"] == rows["parameter_servers_4"]
