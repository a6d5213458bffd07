# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Reads caches alike and differently on two ranks, and stores what each saw or was told."""

import dataclasses
import json
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear

DIRECTORY = pathlib.Path(sys.argv[1])
EXAMPLES, BATCH = 20, 6
Cache = tfdear.data.DataCache
early_cache = Cache(tf.data.Dataset.range(EXAMPLES))
early = early_cache.batches(BATCH)

strategy = tfdear.DearStrategy()
rank = strategy.rank


def refusal(call):
    """What an error says."""
    try:
        call()
    except (ValueError, tfdear.errors.TfdearError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def positions_of(iterator):
    return [number for batch in iterator for number in np.asarray(batch[-1]).tolist()]


def places(cache, **arguments):
    return strategy.experimental_distribute_dataset(
        cache.batches(BATCH, positions=True, **arguments)
    )


def numbers():
    return Cache(tf.data.Dataset.range(EXAMPLES), memory="1MB")


def made_before():
    return {
        "batches": refusal(lambda: early_cache.batches(BATCH)),
        "examples": refusal(early_cache.examples),
        "distribute": refusal(lambda: strategy.experimental_distribute_dataset(early)),
        "from_function": refusal(
            lambda: strategy.distribute_datasets_from_function(lambda context: early)
        ),
    }


def different_arguments():
    cache = numbers()
    return {
        "seed": refusal(lambda: cache.batches(BATCH, seed=rank)),
        "seed of examples": refusal(lambda: cache.examples(seed=rank)),
        "batch_size": refusal(lambda: cache.batches(BATCH + rank)),
        "start": refusal(lambda: cache.batches(BATCH, start=(0, rank))),
    }


def unseeded():
    """As of a script that seeds nothing."""
    return {"seen": [batch.numpy().tolist() for batch in numbers().batches(BATCH)]}


def own_global_seeds():
    tf.random.set_seed(100 + rank)
    cache = numbers()
    batches = cache.batches(BATCH)
    seen = [number for batch in batches.as_numpy_iterator() for number in batch.tolist()]
    examples = [int(number) for number in cache.examples().as_numpy_iterator()]
    keras.utils.set_random_seed(1)
    return {"batches": seen, "examples": examples}


def different_caches():
    factor = 1 + rank
    captured = tf.constant(factor, tf.int64)
    directory = DIRECTORY / "disk" if rank == 0 else None
    records = tf.data.Dataset.range(EXAMPLES)
    if rank == 0:  # Names of layers and functions count what was made before.
        keras.layers.Rescaling(1.0)
        tf.function(lambda: 1)()
    layer = keras.layers.Rescaling(2.0)

    def in_words(number):
        known = tf.cond(number > 3, lambda: layer(tf.cast(number, tf.float32)), lambda: 1.0)
        return tf.numpy_function(lambda value: value, [known], tf.float32)

    return {
        "constant": refusal(lambda: Cache(records, lambda x: x * factor)),
        "captured": refusal(lambda: Cache(records, lambda x: x * captured)),
        "directory": refusal(lambda: Cache(records, directory=directory)),
        "on_error": refusal(lambda: Cache(records, on_error="skip" if rank else "raise")),
        "none": refusal(lambda: Cache(records, in_words)),
    }


def looked_at_by_one_rank():
    """The others have not begun the epoch that one has."""
    cache = numbers()
    dataset = cache.batches(BATCH, positions=True)
    if rank == 0:
        next(iter(dataset))
    distributed = strategy.experimental_distribute_dataset(dataset)
    return {"seen": positions_of(distributed) + positions_of(distributed)}


def repeated():
    distributed = strategy.experimental_distribute_dataset(
        numbers().batches(BATCH, positions=True).repeat(2)
    )
    return {"seen": positions_of(distributed) + positions_of(distributed)}


def in_functions_and_restored():
    """Iterations that only the reader counts."""
    distributed = places(numbers())

    @tf.function
    def largest(dataset):
        result = tf.constant(0, tf.int64)
        for *_, numbers in dataset:
            result = tf.maximum(result, tf.reduce_max(numbers))
        return result

    seen = positions_of(distributed)
    in_function = int(largest(distributed))
    seen += positions_of(distributed)
    again = places(numbers(), start=(2, 1))
    iterator = iter(again)
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(DIRECTORY / f"iterator_{rank}"))
    restored = places(numbers())
    iterator = iter(restored)
    tf.train.Checkpoint(iterator=iterator).read(path)
    rest = positions_of(iterator)
    return {
        "seen": seen,
        "in_function": in_function,
        "rest": rest,
        "after": positions_of(restored),
    }


def other_data_sets():
    cache = numbers()
    one, other = places(cache), places(cache, seed=7)
    return {"other": refusal(lambda: next(iter(one if rank == 0 else other)))}


def shards_by_hand():
    """Each rank has its own rows already; a part of the batches is one of all ranks."""

    def part_of(dataset, part):
        return strategy.experimental_distribute_dataset(dataset.shard(2, part))

    cache = numbers()
    own = strategy.distribute_datasets_from_function(
        lambda context: cache.batches(BATCH).shard(
            context.num_input_pipelines, context.input_pipeline_id
        )
    )
    return {
        "of rank": refusal(lambda: next(iter(part_of(cache.batches(BATCH), rank)))),
        "from_function": refusal(lambda: next(iter(own))),
        "seen": positions_of(part_of(cache.batches(BATCH, positions=True), 1)),
    }


def in_any_order():
    def late(batch):
        # Not the same ones on both ranks.
        time.sleep(0.03 * ((int(batch[0]) // 4 + rank) % 2))
        return batch

    cache = Cache(tf.data.Dataset.range(40))
    dataset = cache.batches(4, shuffle=False).map(
        lambda batch: tf.numpy_function(late, [batch], tf.int64),
        num_parallel_calls=4,
        deterministic=False,
    )
    distributed = strategy.experimental_distribute_dataset(dataset)
    return {"seen": [batch.numpy().tolist() for batch in distributed]}


def batches_on_one_rank():
    """Comes last: the others have made one call less."""
    cache = numbers()
    # Shorter than the strategy waits at its start.
    strategy._job.options = dataclasses.replace(strategy._job.options, init_timeout=1.0)
    return {"alone": refusal(lambda: cache.batches(BATCH)) if rank == 0 else ""}


CASES = (
    made_before,
    different_arguments,
    own_global_seeds,
    different_caches,
    looked_at_by_one_rank,
    repeated,
    in_functions_and_restored,
    other_data_sets,
    shards_by_hand,
    in_any_order,
    batches_on_one_rank,
)
report = {"unseeded": unseeded()}
keras.utils.set_random_seed(1)
for case in CASES:
    print(f"case {case.__name__}", flush=True)
    report[case.__name__] = case()
(DIRECTORY / f"rank_{rank}.json").write_text(json.dumps(report))
strategy.barrier()
