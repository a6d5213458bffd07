# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a step knows of the next one decides in which order rows and vectors go, and no bit."""

import collections
import json
import pathlib

import numpy as np
import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(300)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "table_schedule_job.py"
_STEPS = 16
_HELD_BACK = 1.0  # Seconds, at most.


def _train(directory, world_size=2, **env):
    directory.mkdir()
    for code, output in run_ranks(world_size, _JOB, env, timeout=120, arguments=(str(directory),)):
        assert code == 0, output[-3000:]
    reports = []
    for rank in range(world_size):
        with np.load(directory / f"rank_{rank}.npz") as arrays:
            values = [arrays[name] for name in arrays.files]
        reports.append((values, json.loads((directory / f"rank_{rank}.json").read_text())))
    return reports


def _check_same(reports, expected):
    for arrays, _ in reports:
        assert len(arrays) == len(expected)
        for array, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array, wanted)  # Zeros of both signs are equal.


def _check_order(events):
    """Of one rank, all steps but the last."""
    of_kind = collections.defaultdict(list)
    for kind, ticket, subject, detail, begin, end in events:
        name = (
            f"next_{kind}" if kind in ("embedding_ids", "embedding_vectors") and subject else kind
        )
        of_kind[name].append((begin, end, detail, ticket))
    vectors, early = of_kind["embedding_vectors"], of_kind["next_embedding_vectors"]
    prior, delayed = of_kind["embedding_prior"], of_kind["embedding_delayed"]
    gradients = collections.defaultdict(list)
    for _, end, _, ticket in of_kind["contribute"]:
        gradients[ticket].append(end)
    last_gradients = [max(ends) for _, ends in sorted(gradients.items())]
    assert len(vectors) == len(prior) == len(last_gradients) == _STEPS
    assert len(early) == len(delayed) == _STEPS - 1
    # Ids that were foreseen are not gathered again.
    assert [detail == 0 for _, _, detail, _ in of_kind["embedding_ids"]] == (
        [False] + [True] * (_STEPS - 1)
    )
    under_backward = 0
    for step in range(_STEPS - 1):
        under_backward += early[step][1] <= last_gradients[step]
        begin = delayed[step][0]
        arrived = vectors[step + 1][1]
        waited = begin - prior[step][1]
        assert begin >= arrived or waited >= 0.9 * _HELD_BACK, f"step {step}"
        assert prior[step][0] < vectors[step + 1][0]
    # A busy machine stops a rank now and then.
    assert under_backward >= 0.8 * (_STEPS - 1)


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_hints_schedules_and_delays_change_no_bit(tmp_path, world_size):
    ((expected, _), *others) = _train(
        tmp_path / "none", world_size, TFDEAR_EMBEDDING_SCHEDULE="none"
    )
    _check_same(others, expected)
    right = _train(tmp_path / "right", world_size, CASE_BACKWARD="0.2")
    _check_same(right, expected)
    for _, events in right:
        _check_order(events)
    for hints in ("random", "absent"):
        reports = _train(tmp_path / hints, world_size, CASE_HINTS=hints, TFDEAR_MAX_DELAY_MS="3")
        _check_same(reports, expected)


def test_large_tables_travel_by_themselves_and_no_bit_changes(tmp_path):
    # A rank has some thirty different words in a step, and most of them in the next one.
    env = {"CASE_ROWS": "60", "CASE_ZIPF": "1.05", "CASE_WIDTHS": "8192 8191"}
    env["CASE_OPTIMIZER"] = "sgd"
    ((expected, _), *others) = _train(tmp_path / "none", TFDEAR_EMBEDDING_SCHEDULE="none", **env)
    _check_same(others, expected)
    reports = _train(tmp_path / "2d", TFDEAR_MAX_DELAY_MS="3", **env)
    _check_same(reports, expected)
    for _, events in reports:
        exchanges = collections.Counter(
            kind for kind, _, subject, *_ in events if not (subject and kind.endswith("vectors"))
        )
        assert exchanges["embedding_ids"] == _STEPS + _STEPS  # One, and one that looks ahead.
        assert exchanges["embedding_vectors"] == exchanges["embedding_prior"] == _STEPS + _STEPS
        assert exchanges["embedding_delayed"] == _STEPS - 1


def _check_waited(events):
    """Of one rank: what travels last waited for dense sums on the way; counts what did, by kind."""
    checked = collections.Counter()
    dense = collections.defaultdict(list)
    for kind, ticket, _, _, begin, end in events:
        if kind in ("reduce_scatter", "all_gather"):
            dense[ticket].append((begin, end))
    arrivals = [e[5] for e in events if e[0] == "embedding_vectors" and not e[2]]
    for kind, _, subject, _, begin, _ in events:
        if kind != "embedding_delayed" and not (kind == "embedding_vectors" and subject):
            continue
        arrived = max((end for end in arrivals if end <= begin), default=None)
        if arrived is None or begin - arrived >= 0.9 * _HELD_BACK:
            continue
        for steps in dense.values():
            if min(start for start, _ in steps) < arrived < max(end for _, end in steps):
                assert begin >= max(end for _, end in steps), kind
                checked[kind] += 1
    return checked


def test_what_travels_last_waits_for_the_dense_sums_of_the_forward_pass(tmp_path):
    # Whether dense sums are on the way when vectors arrive is up to the machine: a busy one yields
    # a run without any now and then.
    for run in range(10):
        reports = _train(tmp_path / f"delayed_{run}", 2, TFDEAR_MAX_DELAY_MS="20")
        checked = sum((_check_waited(events) for _, events in reports), collections.Counter())
        if checked["embedding_vectors"] and checked["embedding_delayed"]:
            return
    pytest.fail(f"nothing had to wait in any run; in the last one: {checked}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    ["sgd", *(pytest.param(name, marks=pytest.mark.long) for name in ("lion", "rmsprop"))],
)
def test_other_optimizers_and_loops_in_a_graph(tmp_path, optimizer):
    env = {"CASE_OPTIMIZER": optimizer, "CASE_STEPS_PER_EXECUTION": "4"}
    ((expected, _), *_) = _train(tmp_path / "none", TFDEAR_EMBEDDING_SCHEDULE="none", **env)
    reports = _train(tmp_path / "2d", TFDEAR_MAX_DELAY_MS="2", **env)
    _check_same(reports, expected)
    assert any(kind == "embedding_delayed" for kind, *_ in reports[0][1])


_TWO_OPTIMIZERS = """
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdear

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        layers = [
            tfdear.layers.ShardedEmbedding(40, 6, "zeros", exchange=exchange)
            for exchange in ("all_to_all", "all_gather")
        ]
        for layer in layers:
            layer.build()
        optimizers = [keras.optimizers.SGD(1.0), keras.optimizers.SGD(2.0)]
        for optimizer in optimizers:
            optimizer.build([layer.table for layer in layers])

    @tf.function
    def step(ids):
        def on_rank(ids):
            with tf.GradientTape(persistent=True) as tape:
                loss = sum(tf.reduce_sum(layer(ids)) for layer in layers)
            tables = [layer.table for layer in layers]
            for optimizer in optimizers:
                optimizer.apply(tape.gradient(loss, tables), tables)

        strategy.run(on_rank, args=(ids,))

    words = np.random.default_rng(0).integers(0, 40, (10, 8, 5))
    data = tf.data.Dataset.from_tensor_slices(words.reshape(80, 5)).batch(8)
    for batch in strategy.experimental_distribute_dataset(data):
        step(batch)
    counts = np.bincount(words.reshape(-1), minlength=40)
    for layer in layers:
        (table,) = layer.get_weights()
        assert (table == -3.0 * counts[:, None]).all(), table[:, 0] / -3.0 - counts
    print("added up")
    strategy.barrier()
"""


def test_two_updates_of_a_table_in_one_step():
    env = {"TFDEAR_MAX_DELAY_MS": "10"}
    for code, output in run_ranks(3, _TWO_OPTIMIZERS, env, timeout=120):
        assert code == 0, output[-3000:]
        assert "added up" in output
