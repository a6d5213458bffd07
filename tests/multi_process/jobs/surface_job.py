# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What scripts do with `fit`, `evaluate` and `predict`, one case per feature."""

import functools

import case_table
import keras
import numpy as np
import tensorflow as tf

RANDOM = np.random.RandomState(5)
X = RANDOM.randn(37, 4).astype("float32")
Y = (X @ RANDOM.randn(4, 1) + 0.1 * RANDOM.randn(37, 1)).astype("float32")
LABELS = (Y[:, 0] > 0).astype("int64")


def regression(context, make_optimizer=None, **arguments):
    with context.scope():
        optimizer = make_optimizer() if make_optimizer else keras.optimizers.SGD(0.05, momentum=0.9)
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(6, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        arguments.setdefault("loss", "mse")
        arguments.setdefault("metrics", ["mae"])
        model.compile(optimizer, **arguments)
    return model


def fit_regression(context, make_optimizer=None, epochs=2, **arguments):
    model = regression(context, make_optimizer, **arguments)
    return case_table.fit(model, X, Y, batch_size=8, shuffle=False, epochs=epochs)


def run_eagerly(context):
    def large_error(y, predicted):  # Of few examples: in most steps some rank has none.
        return keras.ops.cast(keras.ops.abs(y - predicted) > 2.0, "float32")

    return fit_regression(context, run_eagerly=True, metrics=["mae", large_error], epochs=2)


def generator_again(context):
    """One generator in several calls: each goes on where the one before ended."""

    def batches():
        for number in range(100):
            yield np.full((7, 4), number, "float32"), np.zeros((7, 1), "float32")

    with context.scope():
        first_number = keras.initializers.Constant([[1.0], [0.0], [0.0], [0.0]])
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=first_number)
        model = keras.Sequential([keras.layers.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    source = batches()
    for _ in range(2):
        model.fit(source, steps_per_epoch=2, epochs=2, verbose=0)
    return {"numbers": model.predict(source, steps=2, verbose=0)}


def on_batch(context):
    model = regression(context)
    results = {}
    for step, rows in enumerate((7, 5, 2, 1, 6)):
        weight = np.linspace(0.5, 1.5, rows).astype("float32")
        logs = model.train_on_batch(X[:rows], Y[:rows], sample_weight=weight, return_dict=True)
        results[f"train {step}"] = [logs["loss"], logs["mae"]]
    results["test"] = model.test_on_batch(X[:5], Y[:5])
    results["predict"] = model.predict_on_batch(X[:5])
    return {**results, **case_table.weights(model)}


def clipping(context):
    """Each rank clips its own gradients, as Keras does, so the results depend on the ranks."""
    results = {}
    for name in ("global_clipnorm", "clipnorm", "clipvalue"):
        make_optimizer = functools.partial(keras.optimizers.SGD, 0.05, **{name: 0.1})
        outcome = fit_regression(context, make_optimizer)
        results.update({f"{name}/{key}": value for key, value in outcome.items()})
    return results


def accumulation(context):
    make_optimizer = functools.partial(
        keras.optimizers.SGD, 0.05, momentum=0.9, gradient_accumulation_steps=2
    )
    return fit_regression(context, make_optimizer, epochs=3)


def moving_average(context):
    make_optimizer = functools.partial(
        keras.optimizers.SGD, 0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
    )
    return fit_regression(context, make_optimizer)


def loss_scale(context):
    """The second batch overflows in one row, so on one rank only: all ranks must skip the step."""
    y = Y.copy()
    y[9] = 3e38

    def make_optimizer():
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), initial_scale=64.0, dynamic_growth_steps=3
        )

    model = regression(context, make_optimizer)
    optimizer = model.optimizer
    results = case_table.fit(model, X, y, batch_size=8, shuffle=False, epochs=2)
    results["scale"] = float(optimizer.dynamic_scale.numpy())
    results["steps"] = int(optimizer.inner_optimizer.iterations.numpy())
    return {key: value for key, value in results.items() if not key.startswith("history")}


def jit_compile(context):
    if context.world_size == 1:
        return {"refused": True}
    try:
        fit_regression(context, jit_compile=True, epochs=1)
    except ValueError as error:
        return {"refused": "jit_compile=True" in str(error) and "DearStrategy" in str(error)}
    return {"refused": False}


def example_weights(context):
    model = regression(context, weighted_metrics=["mse"])
    weight = np.linspace(0, 2, len(X)).astype("float32")
    results = case_table.fit(model, X, Y, sample_weight=weight, batch_size=8, shuffle=False)
    with context.scope():
        classifier = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
        classifier.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    second = case_table.fit(
        classifier, X, LABELS, class_weight={0: 0.3, 1: 2.0}, batch_size=8, shuffle=False
    )
    results.update({f"class_weight/{key}": value for key, value in second.items()})
    return results


def dict_inputs(context):
    """Strings and numbers by name, two outputs with a loss each, vocabularies adapted in scope."""
    words = ["red", "green", "blue", "grey"]
    colours = np.array([[words[i % 4]] for i in range(37)])
    texts = np.array([[f"{words[i % 3]} and {words[i % 4]}"] for i in range(37)])
    with context.scope():
        number = keras.Input((4,), name="number")
        colour = keras.Input((1,), dtype="string", name="colour")
        text = keras.Input((1,), dtype="string", name="text")
        lookup = keras.layers.StringLookup(vocabulary=words, output_mode="one_hot")
        vectors = keras.layers.TextVectorization(output_sequence_length=3)
        vectors.adapt(texts[:, 0])
        embedded = keras.layers.Embedding(12, 3)(vectors(text))
        joined = keras.layers.Concatenate()(
            [number, lookup(colour), keras.layers.Flatten()(embedded)]
        )
        outputs = {
            "value": keras.layers.Dense(1, name="value")(joined),
            "class": keras.layers.Dense(2, name="class")(joined),
        }
        model = keras.Model({"number": number, "colour": colour, "text": text}, outputs)
        model.compile(
            keras.optimizers.SGD(0.02),
            loss={
                "value": "mse",
                "class": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            },
            loss_weights={"value": 1.0, "class": 0.5},
            metrics={"value": ["mae"], "class": ["accuracy"]},
        )
    inputs = {"number": X, "colour": colours, "text": texts}
    targets = {"value": Y, "class": LABELS}
    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(9)
    results = case_table.fit(model, dataset, epochs=2, validation_data=dataset)
    predicted = model.predict(dataset, verbose=0)
    return {**results, **{f"predict/{key}": value for key, value in predicted.items()}}


class TwoSteps(keras.Model):
    """A subclassed model with a `train_step` of its own and a loss of its own."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(5, activation="tanh")
        self.head = keras.layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="tracked")

    def call(self, inputs):
        return self.head(self.hidden(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.tracker.update_state(tf.abs(y - predicted))
        return {"tracked": self.tracker.result()}


def subclassed(context):
    with context.scope():
        model = TwoSteps()
        model.compile(keras.optimizers.SGD(0.05), "mse")
    results = case_table.fit(model, X, Y, batch_size=8, shuffle=False, epochs=2)
    results["predict"] = model.predict(X, batch_size=8, verbose=0)
    return results


def callbacks(context):
    """Those that decide must decide alike, and those that write must write the same."""
    model = regression(context)
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            del epoch, logs
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    directory = context.directory / f"callbacks_{context.rank}_of_{context.world_size}"
    directory.mkdir(exist_ok=True)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
    results = case_table.fit(
        model, X[:20], Y[:20], batch_size=8, shuffle=False, epochs=12,
        validation_data=(X[20:], -Y[20:]),
        callbacks=[
            stop,
            keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.1),
            keras.callbacks.ModelCheckpoint(str(directory / "best.keras"), save_best_only=True),
            keras.callbacks.ModelCheckpoint(
                str(directory / "epoch_{epoch}.weights.h5"), save_weights_only=True
            ),
            keras.callbacks.BackupAndRestore(str(directory / "backup")),
            keras.callbacks.TerminateOnNaN(),
            Rates(),
        ],
    )  # fmt: skip
    results["rates"] = rates
    results["stopped"] = stop.stopped_epoch
    results["files"] = sorted(p.name for p in directory.iterdir() if "epoch_" not in p.name)
    best = keras.models.load_model(directory / "best.keras")
    results["best"] = best.predict(X, batch_size=8, verbose=0)
    return results


def logs(context):
    """Callbacks of all ranks that log into one folder; one of a class of its own stays."""
    directory = context.directory / "logs"
    calls = []

    class OwnLog(keras.callbacks.CSVLogger):
        def on_epoch_end(self, epoch, logs=None):
            calls.append(epoch)
            super().on_epoch_end(epoch, logs)

    model = regression(context)
    written = [
        keras.callbacks.CSVLogger(str(directory / "log.csv")),
        OwnLog(str(directory / f"own{context.rank}.csv")),
        keras.callbacks.TensorBoard(str(directory / "board")),
    ]
    directory.mkdir(parents=True, exist_ok=True)
    validation = (X[8:12], Y[8:12])
    model.fit(
        X[:8], Y[:8], batch_size=8, epochs=2, verbose=0, validation_data=validation,
        callbacks=written,
    )  # fmt: skip
    return {"calls": calls}


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]


def data_forms(context):
    results = {}

    def generator():
        for index in range(5):
            yield X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]

    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    forms = {
        "sequence": (Sequence(), {"shuffle": False}),
        "generator": (generator(), {}),
        "repeated": (whole.repeat(), {"steps_per_epoch": 5}),
    }
    for name, (form, arguments) in forms.items():
        outcome = case_table.fit(regression(context), form, **arguments)
        results.update({f"{name}/{key}": value for key, value in outcome.items()})
    outcome = case_table.fit(
        regression(context), X, Y, batch_size=8, shuffle=False, epochs=2, validation_split=0.3
    )
    results.update({f"split/{key}": value for key, value in outcome.items()})
    model = regression(context)
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)  # Shuffled: alike on all ranks, at least.
    results["ranks only"] = case_table.digest(model.variables)
    return results


def dropout(context):
    with context.scope():
        layer = keras.layers.Dropout(0.5)
        model = keras.Sequential([keras.layers.Input((4,)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    mask = tf.function(lambda: context.run(lambda: layer(tf.ones([64]), training=True)))()
    results = case_table.fit(model, X, Y, batch_size=8, shuffle=False)
    return {"digests": results["digests"], "mask": mask}


def extra_losses(context):
    """Regularizers count once, not once per rank."""
    with context.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden(inputs)))
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return case_table.fit(model, X, Y, batch_size=8, shuffle=False, epochs=2)


def summed_loss(context):
    return fit_regression(
        context,
        lambda: keras.optimizers.SGD(0.01),
        loss=keras.losses.MeanSquaredError(reduction="sum"),
    )


def normalization(context):
    """Not synchronized: statistics are the ranks' own, their moving averages are shared."""
    with context.scope():
        layers = [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((4,)), *layers])
        model.compile("adam", "mse")
    results = case_table.fit(model, X, Y, batch_size=9, shuffle=False, epochs=2)
    results["predict"] = model.predict(X, verbose=0)
    return results


def many_metrics(context):
    with context.scope():
        head = keras.layers.Dense(1, activation="sigmoid")
        model = keras.Sequential([keras.layers.Input((4,)), head])
        metrics = [
            keras.metrics.AUC(num_thresholds=20, name="auc"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
            keras.metrics.BinaryAccuracy(name="accuracy"),
            keras.metrics.F1Score(threshold=0.5, name="f1"),
            keras.metrics.R2Score(name="r2"),
            keras.metrics.RootMeanSquaredError(name="rmse"),
        ]
        model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=metrics)
    labels = LABELS[:, np.newaxis].astype("float32")
    return case_table.fit(
        model, X, labels, batch_size=8, shuffle=False, epochs=2, validation_data=(X, labels)
    )


def mixed_precision(context):
    with context.scope():
        policy = keras.mixed_precision.DTypePolicy("mixed_float16")
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(6, activation="tanh", dtype=policy),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )
        # A small scale: with a large one, which steps overflow depends on the ranks' shares.
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=64.0)
        model.compile(scaled, "mse")
    return case_table.fit(model, X, Y, batch_size=8, shuffle=False, epochs=2)


def fit_again(context):
    """Another learning rate, frozen layers, another optimizer, on the same model."""
    model = regression(context)
    results = case_table.fit(model, X, Y, batch_size=8, shuffle=False)
    model.optimizer.learning_rate = 0.01
    second = case_table.fit(model, X, Y, batch_size=8, shuffle=False, initial_epoch=0)
    with context.scope():
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(1e-3), "mae")
    third = case_table.fit(model, X, Y, batch_size=8, shuffle=False)
    for name, outcome in (("second", second), ("third", third)):
        results.update({f"{name}/{key}": value for key, value in outcome.items()})
    return results


def recurrent(context):
    words = np.random.RandomState(1).randint(0, 9, (37, 5))
    with context.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((5,), dtype="int32"),
                keras.layers.Embedding(9, 4, mask_zero=True),
                keras.layers.LSTM(4),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return case_table.fit(model, words, Y, batch_size=9, shuffle=False, epochs=1)


def stateful(context):
    """States go on from batch to batch, each in its row of the rank's."""
    rows = 6  # In a batch of all ranks; place p of all batches is one sequence.
    x = np.random.RandomState(2).randn(4 * rows, 5, 3).astype("float32")
    with context.scope():
        shape = (rows // context.world_size, 5, 3)
        inputs = keras.Input(batch_shape=shape)
        outputs = keras.layers.Dense(1)(keras.layers.LSTM(4, stateful=True)(inputs))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.05), "mse")
    y = x[:, -1, :1]
    results = case_table.fit(model, x, y, batch_size=rows, shuffle=False, epochs=2)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(rows)
    results["evaluated"] = model.evaluate(dataset, verbose=0)
    return results


def sparse_inputs(context):
    """A sparse input beside a dense one; ranks have no row of the last batch."""
    x = np.where(X[:9] > 0.5, X[:9], 0).astype("float32")
    columns = (tf.sparse.from_dense(x), X[:9])
    dataset = tf.data.Dataset.from_tensor_slices((columns, LABELS[:9])).batch(4)
    with context.scope():
        inputs = [keras.Input((4,), sparse=True), keras.Input((4,))]
        wide, deep = keras.layers.Dense(3)(inputs[0]), keras.layers.Dense(3)(inputs[1])
        joined = keras.layers.Concatenate()([wide, deep])
        model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(joined))
        model.compile(
            keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    results = case_table.fit(model, dataset, epochs=2)
    results["evaluated"] = model.evaluate(dataset, verbose=0)
    return results


class Counting(keras.Model):
    """Logs how many examples it gets right, as a whole number."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(2)

    def call(self, x):
        return self.layer(x)

    def _logs(self, x, y):
        logits = self(x)
        right = keras.ops.equal(y, keras.ops.cast(keras.ops.argmax(logits, -1), "int64"))
        return {"right": keras.ops.sum(keras.ops.cast(right, "int32")), "constant": tf.constant(3)}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x), True))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        steps = tf.identity(self.optimizer.iterations.value)
        return {"loss": loss, "steps": steps, **self._logs(x, y)}

    def test_step(self, data):
        return self._logs(*data)


def counts(context):
    with context.scope():
        model = Counting()
        model.compile(keras.optimizers.SGD(0.05))
    # The last batch has one example.
    results = case_table.fit(model, X, LABELS, batch_size=9, shuffle=False, epochs=2)
    results["evaluated"] = list(
        model.evaluate(X, LABELS, batch_size=8, verbose=0, return_dict=True).values()
    )
    return results


CASES = {
    function.__name__: function
    for function in (
        run_eagerly,
        generator_again,
        on_batch,
        clipping,
        accumulation,
        moving_average,
        loss_scale,
        stateful,
        sparse_inputs,
        counts,
        jit_compile,
        example_weights,
        dict_inputs,
        subclassed,
        callbacks,
        logs,
        data_forms,
        dropout,
        extra_losses,
        summed_loss,
        normalization,
        many_metrics,
        mixed_precision,
        fit_again,
        recurrent,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
