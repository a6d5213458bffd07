# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A cache that the ranks of a node share: the same batches for any number of ranks and nodes."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

import tfdear

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(240)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "data_cache_job.py"
_EXAMPLES = 1003
_RECORD_BYTES = 24


def _write_records(directory):
    for name, numbers in (("a", range(400)), ("b", range(400, _EXAMPLES))):
        with tf.io.TFRecordWriter(str(directory / f"{name}.tfrecord")) as writer:
            for number in numbers:
                writer.write(tf.io.serialize_tensor(np.int64(number)).numpy())


def _run(directory, world_size, memory="1MB", nodes=1, on_disk=None, placement="sharded"):
    if not directory.exists():
        directory.mkdir()
        _write_records(directory)
    env = {"CASE_PLACEMENT": placement}
    if on_disk is not None:
        env["CASE_DIRECTORY"] = str(on_disk)
    results = run_ranks(
        world_size,
        _JOB,
        lambda rank: {**env, "TFDEAR_NODE_RANK": str(rank * nodes // world_size)},
        timeout=120,
        arguments=(str(directory), memory),
    )
    for code, output in results:
        assert code == 0, output[-3000:]
    return [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (report,) = _run(tmp_path_factory.mktemp("alone") / "1", 1)
    return report


def _joined(reports, batch_size, epoch):
    """The batches of an epoch, of the rows of all ranks."""
    of_ranks = [report["seen"][str(batch_size)][epoch] for report in reports]
    return [sum(rows, []) for rows in zip(*of_ranks, strict=True)]


def test_one_process_sees_every_example_once(alone):
    for batch_size in (1, 64, 2000):
        epochs = [sum(_joined([alone], batch_size, epoch), []) for epoch in range(2)]
        for epoch in epochs:
            assert sorted(epoch) == list(range(_EXAMPLES))
        assert epochs[0] != epochs[1]
    assert alone["statistics"]["prepared"] == alone["afterwards"]["prepared"] == _EXAMPLES


@pytest.mark.parametrize(
    ("world_size", "nodes", "memory", "placement"),
    [
        (2, 1, "1MB", "sharded"),
        pytest.param(3, 1, "9KB", "sharded", marks=pytest.mark.newest_only),
        pytest.param(4, 2, "1MB", "sharded", marks=pytest.mark.long),
        pytest.param(3, 3, "3KB", "sharded", marks=pytest.mark.newest_only),
        pytest.param(4, 2, "1MB", "replicated", marks=pytest.mark.long),
        pytest.param(3, 3, "0", "replicated", marks=pytest.mark.long),
        pytest.param(4, 4, "1MB", "sharded", marks=pytest.mark.long),
        pytest.param(4, 1, "1MB", "sharded", marks=pytest.mark.long),
    ],
)
def test_ranks_see_and_learn_the_same(tmp_path, alone, world_size, nodes, memory, placement):
    reports = _run(tmp_path / "job", world_size, memory, nodes, placement=placement)
    for batch_size in (1, 8, 64, 2000):
        for epoch in range(2):
            assert _joined(reports, batch_size, epoch) == _joined([alone], batch_size, epoch)
    # Of a batch of one, a rank in turn has the row; the others have none.
    assert {len(rows) for report in reports for rows in report["seen"]["1"][0]} == {0, 1}
    prepared = sum(report["afterwards"]["prepared"] for report in reports)
    held = sum(report["afterwards"]["held"] for report in reports)
    fetched = sum(report["afterwards"]["fetched"] for report in reports)
    served = sum(report["afterwards"]["served"] for report in reports)
    if memory == "1MB":
        # Once for the job, or for a node.
        copies = nodes if placement == "replicated" else 1
        assert prepared == held == copies * _EXAMPLES
    else:
        assert all(report["afterwards"]["full"] for report in reports)
        assert held == (0 if memory == "0" else 3 * (3000 // _RECORD_BYTES))
    if nodes == 1 or placement == "replicated":
        assert fetched == served == 0
    else:
        assert served >= fetched > 0
    for report in reports:
        for name, values in alone["history"].items():
            np.testing.assert_allclose(report["history"][name], values, rtol=1e-5)
        for one, other in zip(report["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert report["weights"] == reports[0]["weights"]
        np.testing.assert_allclose(
            report["predictions"], alone["predictions"], rtol=1e-4, atol=1e-6
        )


@pytest.mark.newest_only
def test_another_number_of_ranks_finds_what_others_left_on_disk(tmp_path, alone):
    for world_size, from_source in ((2, _EXAMPLES), (3, 0)):
        reports = _run(tmp_path / "job", world_size, on_disk=tmp_path / "disk")
        assert _joined(reports, 64, 1) == _joined([alone], 64, 1)
        for name, records in (
            ("source_records", from_source),
            ("disk_records", _EXAMPLES - from_source),
        ):
            assert sum(report["afterwards"][name] for report in reports) == records
    writers = {path.name.split("-")[1] for path in (tmp_path / "disk").glob("*/part-*")}
    assert writers == {"000", "001"}


_FROM_DISK = """
    import json
    import sys

    import tensorflow as tf

    import tfdear
    from tfdear.job import job

    strategy = tfdear.DearStrategy()
    cache = tfdear.data.DataCache(
        tfdear.data.TFRecordFiles(sys.argv[1] + "/*.tfrecord"),
        lambda record: tf.ensure_shape(tf.io.parse_tensor(record, tf.int64), []),
        memory=0,
        directory=sys.argv[2],
    )
    dataset = cache.batches(50, seed=1)
    read = []
    for epoch in range(4):
        seen = [number for batch in dataset.as_numpy_iterator() for number in batch.tolist()]
        ranks = [json.loads(text) for text in job.current().exchange(json.dumps(seen))]
        assert sorted(sum(ranks, [])) == list(range(1003))
        own = cache.statistics()["source_records"]
        read.append(sum(int(text) for text in job.current().exchange(str(own))))
    print("read:", json.dumps(read))
"""


def test_ranks_find_what_others_of_their_node_wrote(tmp_path):
    _write_records(tmp_path)
    arguments = (str(tmp_path), str(tmp_path / "disk"))
    for code, output in run_ranks(2, _FROM_DISK, timeout=150, arguments=arguments):
        assert code == 0, output[-3000:]
        read = json.loads(output.split("read:")[1].splitlines()[0])
        assert read[0] == _EXAMPLES
        # Until a rank reads again what it wrote, the other one may read some of it, too.
        assert read[1] < 1.5 * _EXAMPLES
        assert read[1] == read[2] == read[3]


_DIFFERENT = """
    import sys

    import tensorflow as tf

    import tfdear

    strategy = tfdear.DearStrategy()
    files = sys.argv[1 + strategy.rank % 2]
    cache = tfdear.data.DataCache(tfdear.data.TFRecordFiles(files))
"""


def test_ranks_with_different_files_are_told(tmp_path):
    _write_records(tmp_path)
    paths = tuple(str(tmp_path / f"{name}.tfrecord") for name in "ab")
    for code, output in run_ranks(2, _DIFFERENT, timeout=150, arguments=paths):
        assert code != 0
        assert "All ranks must make the same DataCache" in output
        assert f"by rank, sources: {[['TFRecordFiles', path] for path in paths]}" in output


@pytest.fixture(scope="module")
def agreement(tmp_path_factory):
    """What two ranks stored that read caches alike and differently."""
    directory = tmp_path_factory.mktemp("agreement")
    job = _JOB.with_name("cache_agreement_job.py")
    for code, output in run_ranks(2, job, timeout=120, arguments=(str(directory),)):
        assert code == 0, output[-3000:]
    return [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(2)]


def _seen(reports, case, name="seen"):
    return sorted(sum((report[case][name] for report in reports), []))


def test_a_cache_of_no_strategy_is_refused_by_one(agreement):
    for report in agreement:
        for call, message in report["made_before"].items():
            assert message.startswith("ValueError: This DataCache was made without"), call


def test_ranks_with_other_arguments_are_told(agreement):
    for report in agreement:
        told = report["different_arguments"]
        assert all(
            message.startswith("ValueError: All ranks must call") for message in told.values()
        )
        assert "DataCache.batches with" in told["seed"]
        assert told["seed"].endswith("by rank, seed: [0, 1]")
        assert "DataCache.examples with" in told["seed of examples"]
        assert told["batch_size"].endswith("by rank, batch_size: [6, 7]")
        assert told["start"].endswith("by rank, start: [[0, 0], [0, 1]]")


def test_ranks_with_other_caches_are_told(agreement):
    for report in agreement:
        told = report["different_caches"]
        for name in ("constant", "captured"):
            assert "by rank, checksum of what `prepare` computes: " in told[name]
        assert told["directory"].endswith("by rank, directory: ['a folder', 'None']")
        assert told["on_error"].endswith("by rank, on_error: ['raise', 'skip']")
        assert told["none"] == "no error"


def test_orders_without_a_seed_are_those_of_rank_0(agreement):
    for name in ("batches", "examples"):
        assert _seen(agreement, "own_global_seeds", name) == list(range(20))


def test_orders_without_any_seed_are_those_of_every_run(agreement):
    steps = zip(*(report["unseeded"]["seen"] for report in agreement), strict=True)
    alone = tfdear.data.DataCache(tf.data.Dataset.range(20)).batches(6, seed=87654321)
    assert [sum(rows, []) for rows in steps] == [batch.numpy().tolist() for batch in alone]


def test_a_rank_that_looks_at_a_batch_changes_nothing(agreement):
    assert _seen(agreement, "looked_at_by_one_rank") == list(range(40))


def test_iterations_of_several_epochs_follow_each_other(agreement):
    assert _seen(agreement, "repeated") == list(range(80))


def test_iterations_go_on_behind_those_that_only_the_reader_sees(agreement):
    case = "in_functions_and_restored"
    assert _seen(agreement, case) == [*range(20), *range(40, 60)]
    assert max(report[case]["in_function"] for report in agreement) == 39
    assert _seen(agreement, case, "rest") == list(range(52, 60))
    assert _seen(agreement, case, "after") == list(range(60, 80))


def test_ranks_that_iterate_over_other_data_sets_are_told(agreement):
    for rank, report in enumerate(agreement):
        told = report["other_data_sets"]["other"]
        assert f"Rank {rank}: the ranks do not begin the same epoch of the same data set" in told
        assert told.endswith("by rank: [[(0, 0)], [(0, 0)]]")


def test_ranks_that_take_parts_of_their_own_rows_are_told(agreement):
    for rank, report in enumerate(agreement):
        for name in ("of rank", "from_function"):
            told = report["shards_by_hand"][name]
            assert f"Rank {rank}: the ranks take different parts of a DataCache's data set" in told
            assert told.endswith("the one that is taken: [[2, 0], [2, 1]]")
    assert _seen(agreement, "shards_by_hand") == [*range(6, 12), 18, 19]


def test_batches_in_any_order_are_put_into_one(agreement):
    steps = zip(*(report["in_any_order"]["seen"] for report in agreement), strict=True)
    assert [sum(rows, []) for rows in steps] == np.arange(40).reshape(10, 4).tolist()


def test_a_rank_that_makes_a_data_set_alone_is_told(agreement):
    told = agreement[0]["batches_on_one_rank"]["alone"]
    assert "the exchange of 'arguments of DataCache.batches' was not complete" in told
