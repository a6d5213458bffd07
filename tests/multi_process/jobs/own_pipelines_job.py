# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Data that each rank has alone, of lengths that nobody knows, and which rows steps compute on."""

import os
import time

import case_table
import keras
import numpy as np
import tensorflow as tf
from recorded_steps import RATE, Recorder, eager_loop, example, padded, recorder, trained

COUNTS = (0, 1, 5, 17, 64, 3, 3, 40)  # Examples of each file.
POLICY = tf.data.experimental.AutoShardPolicy
HINT = tf.data.experimental.SHARD_HINT


def generated(batches, first, size=4):
    """A data set of a generator, whose length nobody knows."""

    def numbers():
        yield from range(first, first + batches * size)

    signature = tf.TensorSpec([], tf.int64)
    dataset = tf.data.Dataset.from_generator(numbers, output_signature=signature)
    return dataset.map(example).batch(size)


def own_generators(context, lengths):
    strategy = context.strategy
    batches = lengths[context.rank]
    first = 1 + 4 * sum(lengths[: context.rank])
    return strategy.distribute_datasets_from_function(lambda _: generated(batches, first))


def generators(context):
    return trained(context, own_generators(context, (7, 5, 0, 1)))


def steps_at_a_time(context):
    """Several steps in an execution, with validation data of other lengths."""
    validation = own_generators(context, (1, 3, 2, 0))
    dataset = own_generators(context, (7, 5, 0, 1))
    return trained(context, dataset, 3, validation, steps_per_execution=3)


def nothing_anywhere(context):
    """No rank has a batch: an epoch of no steps."""
    distributed = own_generators(context, (0, 0, 0, 0))
    return {"loop": eager_loop(distributed, context), "length": int(distributed.cardinality())}


def counted_and_not(context):
    """A rank that knows how many batches it has, among others that do not."""

    def make(_):
        dataset = generated(2 + context.rank, 1 + 20 * context.rank)
        if context.rank == 0:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(2))
        return dataset

    distributed = context.strategy.distribute_datasets_from_function(make)
    results = trained(context, distributed)
    # What is made of it by a script, and by Keras.
    more = distributed.map(lambda x, y: (x, 2 * y)).prefetch(1)
    model = recorder(context)
    model.fit(more, epochs=2, verbose=0)
    return {**results, "transformed": padded(model.take())}


def parts_of_an_epoch(context):
    """An iterator that goes on in the next epoch, and others beside it that are given up."""
    model = recorder(context)
    endless = own_generators(context, (7, 5, 2, 1))
    strategy = context.strategy
    repeated = strategy.distribute_datasets_from_function(
        lambda _: generated(3 + context.rank, 1 + 40 * context.rank).repeat().map(lambda *x: x)
    )
    model.fit(
        repeated,
        steps_per_epoch=4,
        epochs=2,
        validation_data=endless,
        validation_steps=3,
        verbose=0,
    )
    results = {"fit": padded(model.take())}
    iterator = iter(endless)
    results["begun"] = next(iterator)[0]["number"].numpy().ravel()
    results["loop"] = eager_loop(endless, context)
    results["rest"] = padded([batch[0]["number"].numpy().ravel().tolist() for batch in iterator])
    return results


def restored(context):
    """The batches of an iterator, after every one of which another takes its place."""
    first, end = ((1, 19), (20, 21), (30, 30), (40, 51))[context.rank]
    dataset = tf.data.Dataset.range(first, end).map(example).filter(lambda x, y: True).batch(4)
    distributed = context.distribute(with_policy(dataset.unbatch().batch(4), POLICY.OFF))
    manager = context.directory / f"iterator_{context.rank}"
    iterator, steps = iter(distributed), []
    for batch in iterator:
        steps.append(batch[0]["number"].numpy().ravel().tolist())
        path = tf.train.Checkpoint(iterator=iterator).write(str(manager))
        iterator = iter(distributed)
        tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
    return {"steps": padded(steps)}


def custom_loops(context):
    """An epoch of compiled steps, then one inside of a function."""
    strategy = context.strategy
    model = recorder(context)
    with context.scope():
        optimizer, squared = keras.optimizers.SGD(RATE), keras.losses.MeanSquaredError()
        model.dense.build([None, 4])
        optimizer.build(model.trainable_variables)

    def step(batch):
        model.record(batch)
        with tf.GradientTape() as tape:
            loss = squared(batch[1], model(batch[0]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train(batch):
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    @tf.function
    def epoch(batches):
        for batch in batches:
            strategy.run(step, args=(batch,))

    dataset = own_generators(context, (7, 5, 0, 1))
    for batch in dataset:
        train(batch)
    epoch(dataset)
    weights = dict(zip(("kernel", "bias"), model.get_weights(), strict=True))
    return {"steps": padded(model.take()), **weights}


def two_in_a_function(context):
    """A function that reads from two iterators, which TensorFlow would do at once."""
    one = iter(own_generators(context, (3, 6, 2, 1)))
    other = iter(own_generators(context, (7, 5, 9, 1)))

    @tf.function
    def both(one, other):
        return next(one)[0]["number"], next(other)[0]["number"]

    pairs = []
    try:
        while True:
            pairs.append([numbers.numpy().ravel().tolist() for numbers in both(one, other)])
    except tf.errors.OutOfRangeError:
        pass
    firsts, others = zip(*pairs, strict=True)
    return {"one": padded(firsts), "other": padded(others)}


def slow_rank(context):
    """A rank whose batches take longer than others may be in a collective without being asked."""

    def wait(number):
        if number == 9:  # Of rank 0.
            time.sleep(1.5)
        return number

    def late(x, y):
        number = tf.numpy_function(wait, [x["number"]], tf.int64)
        return {**x, "number": tf.ensure_shape(number, [1])}, y

    lengths = (4, 6, 2, 1)
    first = 1 + 4 * sum(lengths[: context.rank])
    dataset = context.strategy.distribute_datasets_from_function(
        lambda _: generated(lengths[context.rank], first).unbatch().map(late).batch(4)
    )
    model = recorder(context)
    model.fit(dataset, epochs=2, verbose=0)
    return {"fit": padded(model.take())}


def every_form(context):
    """Ragged, sparse and text."""
    lengths = (3, 0, 5, 1)[: context.world_size]
    first = 1 + 3 * sum(lengths[: context.rank])
    count = lengths[context.rank]

    def forms(number):
        return {
            "text": tf.strings.as_string(number),
            "ragged": tf.RaggedTensor.from_row_splits(
                tf.range(number % 4), tf.stack([tf.constant(0, tf.int64), number % 4])
            ),
            "sparse": tf.sparse.from_dense(tf.one_hot(number % 5, 5)),
        }

    def make(_):
        numbers = tf.data.Dataset.range(first, first + 3 * count).filter(lambda number: True)
        return numbers.map(forms).ragged_batch(3)

    words, ragged, sparse, steps = [], [], [], 0
    for batch in context.strategy.distribute_datasets_from_function(make):
        words += [int(word) for word in batch["text"].numpy()]
        ragged += tf.reduce_sum(tf.ones_like(batch["ragged"]), axis=[1, 2]).numpy().tolist()
        sparse += tf.sparse.to_dense(batch["sparse"]).numpy().argmax(1).tolist()
        steps += 1
    return {"words": words, "ragged": ragged, "sparse": sparse, "steps": steps}


class LookUp(Recorder):
    def __init__(self):
        super().__init__()
        import tfdear

        self.embedding = tfdear.layers.ShardedEmbedding(300, 1, embeddings_initializer="zeros")

    def call(self, inputs):
        return self.embedding(inputs["number"])[:, 0]


def table_of_all_ranks(context):
    with context.scope():
        model = LookUp()
        model.compile(keras.optimizers.SGD(RATE), "mse")
    history = model.fit(own_generators(context, (7, 5, 0, 1)), epochs=2, verbose=0)
    results = {"fit": padded(model.take()), "loss": history.history["loss"]}
    results["table"] = model.embedding.embeddings.numpy()
    context.wait_for_ranks()
    return results


def filtered(context):
    """The policy OFF, with a filter that leaves every rank another number of batches."""
    dataset = tf.data.Dataset.range(1, 134).map(example)
    dataset = dataset.filter(lambda x, y: x["number"][0] % 5 % context.world_size == context.rank)
    return trained(context, with_policy(dataset.batch(16), POLICY.OFF))


def batches_of_any_size(context):
    """The policy OFF, with fewer rows than ranks in batches, or in what a map leaves of them."""
    numbers = tf.data.Dataset.range(1, 10).map(example)

    def some(x, y):
        chosen = x["number"][:, 0] % 4 < 2
        return {name: tf.boolean_mask(values, chosen) for name, values in x.items()}, y[chosen]

    ones, fours = numbers.batch(1), numbers.batch(4)
    batches = {"ones": ones, "short_end": fours.shuffle(3, seed=1), "mapped": fours.map(some)}
    results = {"lengths": []}
    for name, dataset in batches.items():
        distributed = context.distribute(with_policy(dataset, POLICY.OFF))
        results[name] = eager_loop(distributed, context)
        results["lengths"].append(int(distributed.cardinality()))
    return results


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def write_files(context, counts=COUNTS):
    directory = context.directory / f"files_{context.rank}"
    directory.mkdir(exist_ok=True)
    names, first = [], 1
    for place, count in enumerate(counts):
        names.append(str(directory / f"{place}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1]) as writer:
            for number in range(first, first + count):
                writer.write(str(number).encode())
        first += count
    # The same names on all ranks.
    os.chdir(directory)
    return [os.path.basename(name) for name in names]


def parse(record):
    return example(tf.strings.to_number(record, tf.int64))


def files(context):
    dataset = tf.data.TFRecordDataset(write_files(context)).map(parse)
    return trained(context, with_policy(dataset.batch(8), POLICY.FILE))


def listed_files(context):
    """Files in a random order, several at a time, and examples in any order."""
    write_files(context)
    dataset = (
        tf.data.Dataset.list_files("*.tfrecord")
        .interleave(tf.data.TFRecordDataset, 3, num_parallel_calls=2, deterministic=False)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .shuffle(20)
        .batch(8)
        .prefetch(tf.data.AUTOTUNE)
    )
    return trained(context, with_policy(dataset, POLICY.FILE))


def hinted(context):
    """Examples are divided where the pipeline says so."""
    dataset = tf.data.TFRecordDataset(write_files(context)).shard(HINT, HINT).map(parse)
    return trained(context, with_policy(dataset.batch(8), POLICY.HINT))


def hinted_files(context):
    dataset = tf.data.Dataset.from_tensor_slices(write_files(context)).shard(HINT, HINT)
    dataset = dataset.interleave(tf.data.TFRecordDataset, 2).map(parse)
    return trained(context, with_policy(dataset.batch(8), POLICY.HINT))


def refusal(dataset, context):
    try:
        context.distribute(dataset)
    except ValueError as error:
        return str(error)
    return ""


def refused(context):
    few = write_files(context)[: context.world_size - 1]
    own = [f"{context.rank}.tfrecord", *write_files(context)]
    batches = {
        "few": (tf.data.TFRecordDataset(few), POLICY.FILE),
        "few_hinted": (tf.data.Dataset.from_tensor_slices(few).shard(HINT, HINT), POLICY.HINT),
        "different": (tf.data.TFRecordDataset(own), POLICY.FILE),
        "no_files": (tf.data.Dataset.range(100), POLICY.FILE),
        "no_hint": (tf.data.TFRecordDataset(own), POLICY.HINT),
    }
    refusals = {
        name: refusal(with_policy(dataset.batch(4), policy), context)
        for name, (dataset, policy) in batches.items()
    }
    scalars = with_policy(tf.data.Dataset.range(8), POLICY.OFF)
    return {**refusals, "scalars": refusal(scalars, context)}


def filtered_cache(context):
    """What a script leaves of the batches of a cache."""
    import tfdear

    records = tf.data.Dataset.range(1, 134)
    cache = tfdear.data.DataCache(records, example, memory="1MB")
    batches = cache.batches(24, shuffle=False)
    some = batches.unbatch().filter(lambda x, y: x["number"][0] % 7 < 4).batch(5)
    results = trained(context, some)
    cache.close()
    return results


def events(context):
    """When the sums are made, beside the steps."""
    dataset = own_generators(context, (5, 3, 0, 1))
    model = recorder(context, pause=0.15)
    model.fit(dataset, epochs=1, verbose=0)
    model.take(), model.ends.clear(), context.strategy.events()
    model.fit(dataset, epochs=2, verbose=0)
    from tfdear.base.names import Lane

    found = context.strategy.events()
    sums = [e for e in found if e.kind == "collective" and e.subject == Lane.LENGTHS]
    return {
        "sums": np.array([[event.begin, event.end] for event in sums]),
        "steps": [event.begin for event in found if event.kind == "step"],
        "computed": np.array(model.ends),
    }


CASES = {
    function.__name__: function
    for function in (
        generators,
        steps_at_a_time,
        nothing_anywhere,
        counted_and_not,
        parts_of_an_epoch,
        restored,
        custom_loops,
        two_in_a_function,
        slow_rank,
        every_form,
        table_of_all_ranks,
        filtered,
        batches_of_any_size,
        files,
        listed_files,
        hinted,
        hinted_files,
        refused,
        filtered_cache,
        events,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
