# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks with data of their own, of any length, compute on each example once and end together."""

import sys

import case_reports
import numpy as np
import pytest
from ranks import Ranks, run_ranks

sys.path.insert(0, str(case_reports._JOBS))
import recorded_steps as job  # noqa: E402

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

FILES = np.arange(1, 134)


@pytest.fixture(
    scope="module",
    params=(2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 3, 4))),
)
def reports(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(f"ranks_{request.param}")
    # Ranks that wait are compared early: no one's waiting may be taken for a mistake.
    env = {"TFDEAR_STALL_SECONDS": "0.5"}
    return case_reports.run_job(
        "own_pipelines_job.py", request.param, directory, env=env, timeout=300
    )


def steps_of(reports, case, key):
    """The numbers of the examples of every step, of all ranks together."""
    own = [report[case][key] for report in reports]
    assert len({len(steps) for steps in own}) == 1, [len(steps) for steps in own]
    joined = [np.concatenate(step) for step in zip(*own, strict=True)]
    return [step[step > 0] for step in joined]


def expected_weights(steps):
    """What gradient descent in one process makes of the same rows, in double precision."""
    features, targets = (values.astype("float64") for values in job.table())
    kernel, bias, losses = np.zeros([4, 1]), np.zeros(1), []
    for step in steps:
        error = features[step] @ kernel + bias - targets[step]
        losses.append((len(step), np.mean(error**2)))
        kernel -= job.RATE * 2 * features[step].T @ error / len(step)
        bias -= job.RATE * 2 * error.mean()
    return kernel, bias, losses


def check_weights(reports, case, steps):
    kernel, bias, losses = expected_weights(steps)
    for report in reports:
        np.testing.assert_allclose(report[case]["kernel"], kernel, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(report[case]["bias"], bias, rtol=1e-6, atol=1e-6)
    return losses


def check_learned(reports, case, steps, epochs):
    losses = check_weights(reports, case, steps)
    weights, means = np.array(losses).reshape(epochs, -1, 2).transpose(2, 0, 1)
    for report in reports:
        expected = (weights * means).sum(1) / weights.sum(1)
        # Of the errors, not their squares: weights in single precision leave 1e-7 of the targets'
        # size in each error, however small the error itself has become.
        errors = np.sqrt(report[case]["loss"]), np.sqrt(expected)
        np.testing.assert_allclose(*errors, rtol=5e-6, atol=1e-6)
        np.testing.assert_array_equal(report[case]["kernel"], reports[0][case]["kernel"])


def check_case(reports, case, every, epochs=2):
    """Each example once an epoch in all calls, in as many steps on all ranks; exact weights."""
    steps = steps_of(reports, case, "fit")
    assert len(steps) % epochs == 0
    assert all(len(step) for step in steps)  # Nobody goes on when all have ended.
    of_epochs = np.array_split(np.arange(len(steps)), epochs)
    for epoch in of_epochs:
        seen = np.concatenate([steps[step] for step in epoch])
        np.testing.assert_array_equal(np.sort(seen), every)
    check_learned(reports, case, steps, epochs)
    for key, times in (("evaluate", 2), ("loop", 1), ("loop_in_function", 1)):
        seen = np.concatenate(steps_of(reports, case, key))
        np.testing.assert_array_equal(np.sort(seen), np.repeat(every, times), err_msg=key)
    for report in reports:
        np.testing.assert_array_equal(np.sort(report[case]["predict"]), every)
        first, second = report[case]["evaluated"]  # Of batches that may differ.
        np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-7)
    return steps


@pytest.mark.parametrize("case", ("files", "listed_files", "hinted", "hinted_files"))
def test_files_and_hints_are_divided_among_the_ranks(reports, case):
    check_case(reports, case, FILES)
    for report in reports:  # Not the whole batches of a rank's files.
        assert report[case]["fit"].shape[1] <= -(-8 // len(reports))


def numbers_of(lengths, world_size):
    return np.arange(1, 1 + 4 * sum(lengths[:world_size]))


def test_generators_of_unknown_length(reports):
    steps = check_case(reports, "generators", numbers_of((7, 5, 0, 1), len(reports)))
    assert len(steps) == 2 * 7
    own = [report["generators"]["fit"] for report in reports]
    for rank, batches in enumerate((7, 5, 0, 1)[: len(reports)]):
        has_rows = (own[rank] > 0).any(1)
        np.testing.assert_array_equal(has_rows, np.tile(np.arange(7) < batches, 2))


def test_several_steps_at_a_time_and_validation_data(reports):
    case = "steps_at_a_time"
    steps = steps_of(reports, case, "fit")
    training = numbers_of((7, 5, 0, 1), len(reports))
    validation = numbers_of((1, 3, 2, 0), len(reports))
    lengths = (7, max((1, 3, 2, 0)[: len(reports)]))
    assert len(steps) == 3 * sum(lengths)
    trained = []
    for epoch in np.split(np.arange(len(steps)), 3):
        trained += [steps[step] for step in epoch[:7]]
        for expected, places in ((training, epoch[:7]), (validation, epoch[7:])):
            seen = np.concatenate([steps[place] for place in places])
            np.testing.assert_array_equal(np.sort(seen), expected)
    check_learned(reports, case, trained, 3)


def test_no_rank_has_anything(reports):
    for report in reports:
        assert report["nothing_anywhere"]["loop"].size == 0


def test_one_rank_knows_its_length(reports):
    ranks = len(reports)
    every = np.concatenate([1 + 20 * r + np.arange(4 * (2 + r)) for r in range(ranks)])
    steps = check_case(reports, "counted_and_not", every)
    assert len(steps) == 2 * (ranks + 1)
    transformed = np.concatenate(steps_of(reports, "counted_and_not", "transformed"))
    np.testing.assert_array_equal(np.sort(transformed), np.repeat(every, 2))


def test_iterators_that_go_on_beside_others_that_are_given_up(reports):
    case = "parts_of_an_epoch"
    for rank, report in enumerate(reports):
        fitted = report[case]["fit"]
        batches = 3 + rank
        training = [
            (1 + 40 * rank + 4 * (step % batches) + np.arange(4)).tolist() for step in range(8)
        ]
        steps = [*range(4), *range(7, 11)]
        assert fitted[steps].tolist() == training
        length, first = (7, 5, 2, 1)[rank], 1 + 4 * sum((7, 5, 2, 1)[:rank])
        validation = [
            (first + 4 * step + np.arange(4)).tolist() if step < length else [0] * 4
            for step in range(3)
        ]
        assert fitted[4:7].tolist() == fitted[11:14].tolist() == validation
        whole, rest = report[case]["loop"], report[case]["rest"]
        assert len(whole) == 7 and len(rest) == 6
        assert report[case]["begun"].tolist() == whole[0].tolist()
        assert rest[rest > 0].tolist() == whole[1:][whole[1:] > 0].tolist()


def test_an_iterator_goes_on_where_a_checkpoint_was_written(reports):
    of_ranks = (range(1, 19), range(20, 21), range(0), range(40, 51))
    steps = [report["restored"]["steps"] for report in reports]
    assert len({len(own) for own in steps}) == 1
    for rank, own in enumerate(steps):
        assert own[own > 0].tolist() == list(of_ranks[rank])


def test_custom_loops(reports):
    steps = steps_of(reports, "custom_loops", "steps")
    assert len(steps) == 2 * 7
    every = numbers_of((7, 5, 0, 1), len(reports))
    for epoch in (steps[:7], steps[7:]):
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), every)
    check_weights(reports, "custom_loops", steps)


def test_two_iterators_in_a_function(reports):
    ranks = len(reports)
    for case, lengths in (("one", (3, 6, 2, 1)), ("other", (7, 5, 9, 1))):
        steps = steps_of(reports, "two_in_a_function", case)
        assert len(steps) == max((3, 6, 2, 1)[:ranks])
        for rank, report in enumerate(reports):
            first = 1 + 4 * sum(lengths[:rank])
            seen = report["two_in_a_function"][case]
            count = 4 * min(lengths[rank], len(steps))
            assert seen[seen > 0].tolist() == list(range(first, first + count))


def test_others_wait_for_a_slow_rank(reports):
    seen = np.concatenate(steps_of(reports, "slow_rank", "fit"))
    every = numbers_of((4, 6, 2, 1), len(reports))
    np.testing.assert_array_equal(np.sort(seen), np.repeat(every, 2))


def test_batches_of_every_form(reports):
    lengths = (3, 0, 5, 1)[: len(reports)]
    for rank, report in enumerate(reports):
        forms = report["every_form"]
        count = 3 * lengths[rank]
        first = 1 + 3 * sum(lengths[:rank])
        assert forms["steps"] == max(lengths)
        assert forms["words"].tolist() == list(range(first, first + count))
        assert forms["ragged"].tolist() == [number % 4 for number in range(first, first + count)]
        assert forms["sparse"].tolist() == [number % 5 for number in range(first, first + count)]


def test_with_a_sharded_table_and_batches_read_ahead(reports):
    lengths = (7, 5, 0, 1)
    case = "table_of_all_ranks"
    steps = steps_of(reports, case, "fit")
    assert len(steps) == 2 * 7
    for epoch in (steps[:7], steps[7:]):
        seen = np.sort(np.concatenate(epoch))
        np.testing.assert_array_equal(seen, numbers_of(lengths, len(reports)))
    for report in reports:
        np.testing.assert_array_equal(report[case]["table"], reports[0][case]["table"])
        np.testing.assert_allclose(report[case]["loss"], expected_table_losses(steps), 1e-5)


def expected_table_losses(steps):
    """Of a model that looks a number up for each example, trained by gradient descent."""
    _, targets = job.table()
    table, losses = np.zeros(300), []
    for step in steps:
        error = table[step] - targets[step, 0]
        losses.append((len(step), np.mean(error**2)))
        table[step] -= job.RATE * 2 * error / len(step)
    weights, means = np.array(losses).reshape(2, -1, 2).transpose(2, 0, 1)
    return (weights * means).sum(1) / weights.sum(1)


def test_a_filter_leaves_every_rank_another_number_of_batches(reports):
    every = np.arange(1, 134)
    ranks = len(reports)
    check_case(reports, "filtered", every[every % 5 % ranks < ranks])


def test_batches_of_any_size(reports):
    ranks, every = len(reports), np.arange(1, 10)
    for key, numbers in (("ones", every), ("short_end", every), ("mapped", every[every % 4 < 2])):
        seen = np.concatenate(steps_of(reports, "batches_of_any_size", key))
        np.testing.assert_array_equal(np.sort(seen), np.repeat(numbers, ranks), err_msg=key)
    for report in reports:
        lengths = report["batches_of_any_size"]["lengths"]
        # Unknown behind a map, but where a rank is alone.
        assert list(lengths) == ([9, 3, 3] if ranks == 1 else [9, 2 * min(4, ranks) + 1, -2])


def test_a_filtered_cache(reports):
    every = np.arange(1, 134)
    check_case(reports, "filtered_cache", every[every % 7 < 4])


def test_what_cannot_be_divided_is_refused(reports):
    ranks = len(reports)
    if ranks == 1:
        return
    for report in reports:
        messages = {key: str(text) for key, text in report["refused"].items()}
        for key in ("few", "few_hinted"):
            assert f"has {ranks - 1} " in messages[key], messages[key]
            assert f"there are {ranks} ranks" in messages[key], messages[key]
        assert f"Groups of ranks that have: {[[r] for r in range(ranks)]}" in messages["different"]
        assert "finds no files in this data set" in messages["no_files"]
        assert "SHARD_HINT" in messages["no_hint"]
        assert "Received a scalar tensor" in messages["scalars"]


def test_sums_are_made_one_batch_ahead(reports):
    if len(reports) == 1:
        return
    for report in reports:
        events = report["events"]
        steps, batches = events["steps"], 5
        assert len(steps) == len(events["computed"]) == 2 * batches
        assert len(events["sums"]) == 2 * (batches + 1)
        for epoch in range(2):
            sums = events["sums"][epoch * (batches + 1) :][: batches + 1]
            for step in range(batches):
                place = epoch * batches + step
                _, end = sums[step + 1]  # Whether anybody has the batch of the next step.
                # Over while this step still computes, so that the next one waits for nothing.
                assert end < events["computed"][place]
                if place + 1 < len(steps):
                    assert events["computed"][place] < steps[place + 1]


DIFFERENT = """
    import os, numpy as np, tensorflow as tf, keras, tfdear
    strategy = tfdear.DearStrategy()
    rank, begun = strategy.rank, 0
    at_epoch, at_batch = map(int, os.environ["CASE_AT"].split(","))

    def batches():
        global begun
        begun += 1
        for number in range(6):
            x = np.arange(12, dtype="float32")[:, np.newaxis] + 12 * number
            if rank == 1 and begun > at_epoch and number >= at_batch:
                x = x[::-1]
            yield x, x

    spec = (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    steps = int(os.environ["CASE_STEPS"]) or None
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-6), "mse")

    class Count(keras.callbacks.Callback):
        total = 0
        def on_train_batch_end(self, batch, logs=None):
            Count.total += 1

    if steps:
        dataset = dataset.repeat()
    try:
        model.fit(dataset, steps_per_epoch=steps, epochs=3, callbacks=[Count()], verbose=0)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        print("REFUSED", Count.total, str(error))
    else:
        print("TRAINED", Count.total)
"""


@pytest.mark.parametrize(
    ("at", "steps", "check", "trained"),
    [
        pytest.param("0,0", 0, "0", 0, marks=pytest.mark.long),
        ("1,0", 0, "0", 6),
        ("1,0", 3, "0", 6),
        ("0,4", 0, "1", 4),
        pytest.param("0,4", 0, "0", None, marks=pytest.mark.long),
    ],
)
def test_a_pipeline_that_differs_is_caught_in_its_first_batch_of_an_epoch(
    at, steps, check, trained
):
    env = {"CASE_AT": at, "CASE_STEPS": str(steps), "TFDEAR_CHECK_DATA": check}
    for code, output in run_ranks(3, DIFFERENT, env, timeout=90):
        assert code == 0, output[-3000:]
        if trained is None:
            assert "TRAINED 18" in output, output[-3000:]
            continue
        assert f"REFUSED {trained} " in output, output[-3000:]
        assert "same only within these groups of ranks: [[0, 2], [1]]" in output


LOST = """
    import os, signal, numpy as np, tensorflow as tf, tfdear
    strategy = tfdear.DearStrategy(timeout=60, heartbeat=5)

    def batches():
        for number in range(100):
            if strategy.rank == 1 and number == 4:
                if os.environ["CASE_END"] == "error":
                    raise OSError("the disk is gone")
                os.kill(os.getpid(), signal.SIGKILL)
            yield np.ones([2, 1], "float32")

    own = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_generator(
            batches, output_signature=tf.TensorSpec([None, 1])
        )
    )
    for place, batch in enumerate(own):
        print("batch", place, flush=True)
"""


@pytest.mark.parametrize(
    ("end", "words"), (("kill", "was killed or crashed"), ("error", "the disk is gone"))
)
def test_a_lost_rank_is_named_by_those_that_wait_for_its_batches(end, words):
    with Ranks(2, LOST, {"CASE_END": end}) as ranks:
        codes = ranks.wait(timeout=120)
        assert codes[0] == 1
        assert "rank 1" in ranks.output(0) and words in ranks.output(0)
        # An error is raised when its batch is asked for, though it was read ahead.
        assert end == "kill" or "batch 3" in ranks.output(0)
