# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which examples of a pipeline each rank computes on."""

import functools

import case_table
import keras
import numpy as np
import tensorflow as tf

ROWS = 1000


class Recorder(keras.Model):
    """Remembers the numbers of the examples that it sees, which begin with 1."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")
        self.seen: list[int] = []

    def call(self, x):
        return self.dense(x)

    def _record(self, data):
        x = keras.utils.unpack_x_y_sample_weight(data)[0]

        def record(numbers):
            self.seen.extend(numbers[numbers > 0].astype("int64").tolist())
            return np.int64(0)

        tf.numpy_function(record, [x], tf.int64)

    def train_step(self, data):
        self._record(data)
        return super().train_step(data)

    def test_step(self, data):
        self._record(data)
        return super().test_step(data)

    def predict_step(self, data):
        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        return x + 0.0 * super().predict_step(data)

    def take(self):
        seen, self.seen = self.seen, []
        return np.array(seen, "int64")


def recorder(context, **arguments):
    with context.scope():
        model = Recorder()
        model.compile(keras.optimizers.SGD(1e-9), "mse", **arguments)
    return model


def seen_by(context, dataset, **arguments):
    """What `fit`, `evaluate` and `predict` compute on."""
    model = recorder(context)
    results = {}
    model.fit(dataset, epochs=2, verbose=0, **arguments)
    results["fit"] = model.take()
    model.evaluate(dataset, verbose=0)
    results["evaluate"] = model.take()
    results["predict"] = model.predict(dataset, verbose=0).ravel().astype("int64")
    return results


def files(context):
    directory = context.directory / f"records_{context.rank}"
    directory.mkdir(exist_ok=True)
    for file in range(10):
        with tf.io.TFRecordWriter(str(directory / f"{file}.tfrecord")) as writer:
            for row in range(ROWS // 10):
                feature = tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[1 + file * ROWS // 10 + row])
                )
                example = tf.train.Example(features=tf.train.Features(feature={"number": feature}))
                writer.write(example.SerializeToString())
    return str(directory / "*.tfrecord")


def parse(record):
    feature = {"number": tf.io.FixedLenFeature([1], tf.int64)}
    number = tf.cast(tf.io.parse_single_example(record, feature)["number"], tf.float32)
    return number, number


def records_in_any_order(context):
    dataset = (
        tf.data.Dataset.list_files(files(context))
        .interleave(
            tf.data.TFRecordDataset,
            cycle_length=4,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .shuffle(100)
        .batch(32)
        .prefetch(tf.data.AUTOTUNE)
    )
    return seen_by(context, dataset)


def order_ignored_by_option(context):
    ignore_order = tf.data.Options()
    ignore_order.experimental_deterministic = False
    names = sorted(tf.io.gfile.glob(files(context)))
    dataset = tf.data.TFRecordDataset(names, num_parallel_reads=4)
    dataset = dataset.with_options(ignore_order)
    dataset = dataset.map(functools.partial(parse), num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.shuffle(2048).prefetch(tf.data.AUTOTUNE).batch(64)
    return seen_by(context, dataset)


def numbers(count=ROWS):
    return np.arange(1, count + 1, dtype="float32")[:, np.newaxis]


def loop(context, dataset):
    strategy = context.strategy
    for batch in strategy.experimental_distribute_dataset(dataset):
        strategy.run(lambda x: tf.reduce_sum(x), args=(batch[0],))


def refusals(context, x, dataset):
    """What `fit`, `evaluate`, `predict` and a loop say to data that differ between ranks."""
    model = recorder(context)
    calls = {
        "fit": lambda: model.fit(dataset, verbose=0),
        "evaluate": lambda: model.evaluate(dataset, verbose=0),
        "predict": lambda: model.predict(dataset, verbose=0),
        "loop": lambda: loop(context, dataset),
        "arrays": lambda: model.fit(x, x, batch_size=8, verbose=0),
    }
    results = {name: refusal(call) for name, call in calls.items()}
    # Nothing was trained on before it was seen.
    return {**results, "seen": len(model.take())}


def sharded_by_hand(context):
    x = numbers(64)
    dataset = tf.data.Dataset.from_tensor_slices((x, x))
    own = dataset.shard(context.world_size, context.rank).batch(8)
    return refusals(context, x[context.rank :: context.world_size], own)


def no_data_on_rank_1(context):
    x = numbers(0 if context.rank == 1 else 64)
    dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(8)
    return refusals(context, numbers(64) + context.rank, dataset)


def every_form(context):
    """Ragged, sparse and text, with a last batch that is smaller than the ranks are many."""
    count = 25
    x = numbers(count)

    def more(number, _):
        whole = tf.cast(number[0], tf.int32)
        forms = {
            "number": number,
            "ragged": tf.RaggedTensor.from_tensor(tf.range(whole)[tf.newaxis]),
            "text": tf.strings.as_string(whole),
            "sparse": tf.sparse.from_dense(tf.one_hot(whole % 5, 5)),
        }
        return forms, number

    dataset = tf.data.Dataset.from_tensor_slices((x, x)).map(more)
    dataset = dataset.apply(tf.data.experimental.dense_to_ragged_batch(8))
    seen, sums, words, sparse = [], [], [], []
    for _ in range(2):
        for forms, _ in context.distribute(dataset):
            seen += forms["number"].numpy().ravel().astype(int).tolist()
            rows = forms["ragged"]
            sums += tf.reduce_sum(rows, axis=list(range(1, rows.shape.rank))).numpy().tolist()
            words += [int(word) for word in forms["text"].numpy()]
            sparse += tf.sparse.to_dense(forms["sparse"]).numpy().argmax(1).tolist()
    return {"seen": seen, "sums": sums, "words": words, "sparse": sparse}


def drawn_numbers(context):
    """Random contents, drawn in parallel, are no reason to refuse the same examples."""
    x = numbers(48)

    def noisy(number, label):
        return number + tf.random.uniform([1], 0.0, 0.4), label

    dataset = tf.data.Dataset.from_tensor_slices((x, x)).map(noisy, num_parallel_calls=4).batch(8)
    return seen_by(context, dataset)


def steps_at_a_time(context):
    x = numbers(48)
    model = recorder(context, steps_per_execution=3)
    endless = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(48).batch(6).repeat()
    model.fit(endless, steps_per_epoch=6, epochs=4, verbose=0)
    return {"fit": model.take()}


def generated(context):
    """A generator that goes on in the next call: nothing of it is read twice or left out."""
    model = recorder(context)

    def batches():
        first = 1
        while True:
            batch = np.arange(first, first + 6, dtype="float32")[:, np.newaxis]
            yield batch, batch
            first += 6

    generator = batches()
    model.fit(generator, steps_per_epoch=4, epochs=2, verbose=0)
    model.fit(generator, steps_per_epoch=4, verbose=0)
    return {"fit": model.take()}


def own_rows(context):
    """Sharded by hand, with the policy that says so, in global batches as TensorFlow has it."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    results = {}
    for count, repeats in ((16, 1), (17, 1), (37, 1), (16, 3)):
        x = numbers(count)
        dataset = tf.data.Dataset.from_tensor_slices((x, x)).repeat(repeats)
        dataset = dataset.shard(context.world_size, context.rank).batch(8)
        dataset = dataset.map(lambda a, b: (a, b)).with_options(options)
        seen = seen_by(context, dataset)
        results |= {f"{count}/{repeats}/{name}": rows for name, rows in seen.items()}
    endless = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(16).batch(8).repeat()
    model = recorder(context)
    model.fit(
        endless.with_options(options), steps_per_epoch=2 * context.world_size, epochs=2, verbose=0
    )
    results["endless"] = model.take()
    return results


def own_datasets(context):
    """Ranks that made data sets of different lengths end an epoch together."""
    x = numbers(30)
    first, last = (0, 4) if context.rank == 0 else (context.rank * 10 - 6, context.rank * 10 + 4)

    def make(input_context):
        assert input_context.input_pipeline_id == context.rank
        assert input_context.num_input_pipelines == context.world_size
        rows = tf.data.Dataset.from_tensor_slices((x[first:last], x[first:last]))
        return rows.batch(input_context.get_per_replica_batch_size(4 * context.world_size))

    strategy = context.strategy
    results = seen_by(context, strategy.distribute_datasets_from_function(make))

    def endless(input_context):
        own = make(input_context)
        return own.repeat() if context.rank == 0 else own

    results["endless"] = refusal(lambda: strategy.distribute_datasets_from_function(endless))
    return results


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


CASES = {
    function.__name__: function
    for function in (
        records_in_any_order,
        order_ignored_by_option,
        sharded_by_hand,
        no_data_on_rank_1,
        every_form,
        drawn_numbers,
        steps_at_a_time,
        generated,
        own_rows,
        own_datasets,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
