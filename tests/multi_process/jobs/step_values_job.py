# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a step does beyond its gradients: arguments that are no batch, collectives, variables."""

import sys
import time

import case_table
import keras
import numpy as np
import tensorflow as tf

X = np.random.RandomState(0).randn(25, 4).astype("float32")
Y = (np.arange(25) % 5).astype("int64")
BATCH = 8  # The last batch has one row: with more than one rank, some have none.


def batches(context):
    return context.distribute(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH))


def dense(units):
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(units)])


def class_weights_first(context):
    """The examples are those of the batch, though other tensors come before it."""
    class_weights = tf.constant([1.0, 2.0, 0.5, 1.5, 3.0])
    results = {}
    for kind in ("graph", "compiled", "eager"):
        with context.scope():
            model = dense(5)
            model.set_weights([np.ones((4, 5), "float32") * np.arange(5), np.zeros(5, "float32")])
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build(model.trainable_variables)
            loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            metric = keras.metrics.Mean()

        def step(scale, weights, x, y, parts=(model, optimizer, loss_object, metric)):
            model, optimizer, loss_object, metric = parts
            with tf.GradientTape() as tape:
                logits = model(x * scale, training=True)
                loss = loss_object(y, logits, sample_weight=tf.gather(weights, y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            metric.update_state(y)
            return logits

        if kind == "compiled":
            step = tf.function(step)
        run = lambda x, y, step=step: context.run(step, (0.5, class_weights, x, y))  # noqa: E731
        run = tf.function(run) if kind == "graph" else run
        rows = [int(tf.shape(run(*batch))[0]) for batch in batches(context)]
        if context.strategy:
            rows = np.sum(context.strategy.all_gather(tf.constant([rows])).numpy(), 0)
        results[f"{kind} rows"] = rows
        results[f"{kind} metric"] = float(metric.result())
        for place, value in enumerate(model.get_weights()):
            results[f"{kind} {place}"] = value
    return results


def contrastive(context):
    """Every example's negatives are the whole batch, gathered in one of several ways."""
    results = {}
    for how in ("strategy", "replica context", "all_to_all", "scattered"):
        for compiled in (False, True):
            with context.scope():
                model = dense(3)
                model.set_weights([np.linspace(-1, 1, 12).reshape(4, 3), np.zeros(3)])
                optimizer = keras.optimizers.SGD(0.1)
                optimizer.build(model.trainable_variables)
            step = contrastive_step(context, how, model, optimizer)
            run = lambda x, step=step: reduce(context, context.run(step, (x,)))  # noqa: E731
            run = tf.function(run) if compiled else run
            losses = [float(run(x)) for x, _ in batches(context)]
            results[f"{how} {compiled} losses"] = losses
            results[f"{how} {compiled} weights"] = model.get_weights()[0]
    return results


def contrastive_step(context, how, model, optimizer):
    def step(x):
        total = gather(context, how, tf.ones([tf.shape(x)[0], 1]))
        rows = tf.cast(tf.shape(total)[0], tf.float32)
        with tf.GradientTape() as tape:
            mine = tf.math.l2_normalize(model(x, training=True), -1)
            everybody = gather(context, how, mine)
            logits = 5 * tf.matmul(mine, everybody, transpose_b=True)
            itself = tf.reduce_sum(5 * mine * mine, -1)
            loss = tf.reduce_sum(tf.reduce_logsumexp(logits, -1) - itself) / rows
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def gather(context, how, rows):
    strategy = context.strategy
    if strategy is None:
        return rows
    if how == "strategy":
        return strategy.all_gather(rows)
    if how == "replica context":
        nested = tf.distribute.get_replica_context().all_gather({"rows": rows}, axis=0)
        return nested["rows"]
    size, number = strategy.world_size, tf.shape(rows)[0]
    if how == "all_to_all":
        splits = tf.fill([size], number)
        return strategy.all_to_all(tf.tile(rows, [size, 1]), splits)[0]
    # Every rank writes its rows into a table, of which each gets a part of the sum.
    before, after = strategy.rank * BATCH, (size - strategy.rank) * BATCH

    def place(values, begin, end, shape):
        # Known shapes, as all ranks must reduce tensors of the same shape.
        return tf.ensure_shape(tf.pad(values, [[begin, end]] + [[0, 0]] * (len(shape) - 1)), shape)

    shape = [size * BATCH, rows.shape[1]]
    part = strategy.reduce_scatter(place(rows, before, after - number, shape))
    table = strategy.all_reduce(place(part, before, after - BATCH, shape))
    filled = strategy.all_reduce(place(tf.ones([number]), before, after - number, shape[:1]))
    return tf.boolean_mask(table, filled > 0)


def reduce(context, value):
    return context.strategy.reduce("SUM", value, axis=None) if context.strategy else value


def left_out(context):
    """What a rank without examples computes reaches nobody."""
    strategy, results = context.strategy, {}

    def step(x):
        ones = tf.ones([tf.shape(x)[0], 2])
        if strategy is None:
            return {name: ones for name in names} | {"mean": tf.constant(3.0)}
        replica = tf.distribute.get_replica_context()
        rows = tf.IndexedSlices(ones, tf.zeros([tf.shape(x)[0]], tf.int64), tf.constant([1, 2]))
        present = strategy.all_reduce(1.0)
        scattered = strategy.reduce_scatter(tf.reshape(tf.ones([12]), [6, 2]))
        total = tf.reduce_sum(strategy.all_gather(ones))
        return {
            "all_gather": strategy.all_gather(ones),
            "all_gather of a replica": replica.all_gather(ones, axis=0),
            "along another axis": replica.all_gather(tf.transpose(ones), axis=1),
            "all_reduce": strategy.all_reduce(tf.reduce_sum(ones)),
            "all_reduce of a replica": replica.all_reduce("SUM", tf.reduce_sum(ones)),
            "reduce_scatter": total * tf.reduce_mean(strategy.all_gather(scattered)) / present,
            "rows": strategy.all_reduce(rows).values,
            "mean": replica.all_reduce("MEAN", tf.constant(3.0)),
        }

    names = ("all_gather", "all_gather of a replica", "along another axis", "all_reduce")
    names += ("all_reduce of a replica", "reduce_scatter", "rows")

    def sums(x):
        # Not the outputs themselves: those of a rank without examples are cut, if they have rows.
        return context.run(lambda x: {k: tf.reduce_sum(v) for k, v in step(x).items()}, (x,))

    for kind, run in (("eager", sums), ("graph", tf.function(sums))):
        for x, _ in batches(context):
            for name, value in run(x).items():
                results.setdefault(f"{kind} {name}", []).append(float(value))
    return results


# What TensorFlow's own strategy makes of writes is the reference where it defines the answer.


def for_each_world_size(context, case):
    """Results on these ranks, or as MirroredStrategy has them with 1, 2 and 3 replicas."""
    if context.strategy:
        return {f"{context.world_size} {k}": v for k, v in case(context.strategy).items()}
    results = {}
    for size in (1, 2, 3):
        devices = [f"CPU:{place}" for place in range(size)]
        mirrored = tf.distribute.MirroredStrategy(devices)
        results |= {f"{size} {k}": v for k, v in case(mirrored).items()}
    return results


def replica_number():
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.cast(replica, tf.float32)


KINDS = tf.VariableAggregation
WRITES = {
    "scatter_add": (KINDS.SUM, KINDS.MEAN, KINDS.ONLY_FIRST_REPLICA),
    "scatter_sub": (KINDS.SUM, KINDS.MEAN, KINDS.ONLY_FIRST_REPLICA),
    "scatter_update": (KINDS.ONLY_FIRST_REPLICA,),
    "scatter_max": (KINDS.ONLY_FIRST_REPLICA,),
    "scatter_min": (KINDS.ONLY_FIRST_REPLICA,),
    "scatter_mul": (KINDS.ONLY_FIRST_REPLICA,),
    "scatter_div": (KINDS.ONLY_FIRST_REPLICA,),
}


def written_parts(context):
    def case(strategy):
        results = {}
        for method, kinds in WRITES.items():
            for kind in kinds:
                with strategy.scope():
                    variable = tf.Variable(tf.range(1.0, 6.0), trainable=False, aggregation=kind)

                def step(variable=variable, method=method):
                    values = tf.stack([2.0 + replica_number(), 3.0])
                    rows = tf.IndexedSlices(values, tf.constant([1, 3]))
                    getattr(variable, method)(rows)

                run = tf.function(lambda step=step: strategy.run(step))
                for _ in range(2):
                    run()
                results[f"{method} {kind}"] = variable.numpy()
        return results

    return for_each_world_size(context, case)


def other_written_parts(context):
    """As `assign` of the whole would do."""
    results = {}
    for kind in (KINDS.SUM, KINDS.MEAN, KINDS.ONLY_FIRST_REPLICA, KINDS.NONE):
        with context.scope():
            table = tf.Variable(tf.zeros([4, 2]), trainable=False, aggregation=kind)
            cells = tf.Variable(tf.zeros([6]), trainable=False, aggregation=kind)
            metric = (
                tf.Variable(
                    tf.zeros([3]),
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=kind,
                )
                if kind == KINDS.SUM
                else None
            )

        def step(x, table=table, cells=cells, kind=kind):
            rows = tf.cast(tf.shape(x)[0], tf.float32)
            cells.scatter_nd_add([[1], [4]], tf.stack([rows, 1.0]))
            cells.scatter_nd_sub([[4]], [1.0])
            if kind != KINDS.SUM:
                table[1, :].assign(tf.fill([2], 7.0))
                cells.scatter_nd_update([[0]], [5.0])
                table.scatter_update(tf.IndexedSlices([[1.0, 2.0]], [3]))

        for run in (tf.function(context.run), context.run):
            for x, _ in batches(context):
                run(step, (x,))
        if kind == KINDS.SUM:
            results["summed"] = cells.numpy()
            if context.strategy and context.world_size > 1:
                for refused in (
                    lambda table=table: table[1, :].assign([1.0, 1.0]),
                    lambda cells=cells: cells.scatter_nd_update([[0]], [1.0]),
                    lambda v=metric: v.scatter_add(tf.IndexedSlices([1.0], [0])),
                ):
                    try:
                        context.strategy.run(refused)
                    except NotImplementedError as error:
                        assert "does not work inside `strategy.run`" in str(error), error
                    else:
                        raise AssertionError("the write was not refused")
        else:
            results[f"table {kind}"] = table.numpy()
            results[f"update {kind}"] = cells.numpy()[[0, 4]]
    return results


def counters(context):
    """What all ranks write alike is kept as it is, whatever the weights of the ranks."""
    results = {}
    for name in ("float16", "float32", "float64"):
        with context.scope():
            counter = tf.Variable(tf.zeros([], name), trainable=False)
            product = tf.Variable(tf.ones([3], name), trainable=False)

        def step(x, counter=counter, product=product, name=name):
            counter.assign_add(tf.ones([], name))
            product.assign(product * tf.constant([0.999, 1.001, 0.99], name))

        @tf.function
        def steps(x, step=step):
            for _ in tf.range(300):
                context.run(step, (x,))

        for x in (X[:8], X[:1]):
            mine = slice(context.rank * len(x) // context.world_size, None)
            end = (context.rank + 1) * len(x) // context.world_size
            steps(tf.constant(x[:end][mine]))
        results[f"{name} counter"] = counter.numpy()
        results[f"{name} product"] = product.numpy()
    return results


OWN_WRITES = {
    "assign": lambda v, x: v.assign(x),
    "constant": lambda v, x: v.assign(tf.constant(5, v.dtype)),
    "assign_add": lambda v, x: v.assign_add(x),
    "assign_sub": lambda v, x: v.assign_sub(x),
    "of itself": lambda v, x: v.assign(v + 2 * x),
    "decayed": lambda v, x: v.assign(v // 2 + x),
    "largest": lambda v, x: v.assign(tf.maximum(v, x)),
    "twice": lambda v, x: (v.assign(x), v.assign_add(v * x)),
    "reset": lambda v, x: (v.assign(tf.zeros_like(v)), v.assign_add(x)),
}


def own_values(context):
    """A variable whose ranks' values are added up is each rank's own inside a step."""

    def case(strategy):
        results = {}
        for dtype in ("float32", "int64"):
            for name, write in OWN_WRITES.items():
                for compiled in (False, True):
                    with strategy.scope():
                        variable = tf.Variable(
                            tf.zeros([], dtype),
                            trainable=False,
                            synchronization=tf.VariableSynchronization.ON_READ,
                            aggregation=KINDS.SUM,
                        )

                    def step(x, variable=variable, write=write, dtype=dtype):
                        write(variable, tf.cast(x + 2 * replica_number(), dtype))

                    run = lambda x, step=step: strategy.run(step, (x,))  # noqa: E731
                    run = tf.function(run) if compiled else run
                    seen = []
                    for x in (3.0, 7.0, 1.0):
                        run(tf.constant(x))
                        seen.append(variable.numpy())
                    variable.assign(tf.constant(12, dtype))
                    seen.append(variable.numpy())
                    run(tf.constant(2.0))
                    seen.append(variable.numpy())
                    results[f"{name} {dtype} {compiled}"] = np.array(seen)
        return results

    return for_each_world_size(context, case)


class LastValue(keras.metrics.Metric):
    """Assigns what it saw last, and a mean that forgets."""

    def __init__(self, name="last_value"):
        super().__init__(name=name)
        self.last = self.add_weight(name="last", initializer="zeros")
        self.decayed = self.add_weight(name="decayed", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        value = keras.ops.sum(keras.ops.cast(y_true, "float32"))
        self.last.assign(value)
        self.decayed.assign(0.5 * self.decayed + value)

    def result(self):
        return {"last": self.last + 0.0, "decayed": self.decayed + 0.0}


def metrics_that_assign(context):
    """In `fit` and in a loop; a result is that of all ranks, also inside a step."""
    kinds = {
        "graph": {},
        "several steps": {"steps_per_execution": 2},
        "eager": {"run_eagerly": True},
    }

    def case(strategy):
        results = {}
        for kind, arguments in kinds.items():
            ours = strategy is context.strategy
            with strategy.scope():
                model = dense(1)
                metric = LastValue()
                # Of Keras's ways to run steps, MirroredStrategy has one.
                given = arguments if ours else {}
                model.compile("sgd", "mse", metrics=[metric], **given)
            rows = tf.data.Dataset.from_tensor_slices((X[:24], Y[:24])).batch(6)
            if ours:
                history = model.fit(rows, epochs=2, verbose=0).history
            else:  # It trains with one number of replicas per process, and an epoch is as good.
                model.evaluate(rows, verbose=0)
            after = {name: float(value) for name, value in metric.result().items()}
            results[kind] = np.array(list(after.values()))
            if ours:
                assert {name: history[name][-1] for name in after} == after
            metric.reset_state()
            results[f"{kind} reset"] = [float(value) for value in metric.result().values()]
            model.evaluate(rows, verbose=0)
            results[f"{kind} evaluated"] = [float(v) for v in metric.result().values()]
        return results

    return for_each_world_size(context, case)


def reset_with_ranks_left_out(context):
    """A rank without examples takes part in a reset, and in nothing else."""
    results = {}
    for compiled in (False, True):
        with context.scope():
            metric, kept = keras.metrics.Sum(), keras.metrics.Sum()

        def step(x, metric=metric, kept=kept):
            metric.reset_state()
            metric.update_state(tf.ones([tf.shape(x)[0]]))
            kept.update_state(tf.ones([tf.shape(x)[0]]))
            return metric.result()

        run = lambda x, step=step: context.run(step, (x,))  # noqa: E731
        run = tf.function(run) if compiled else run
        results[f"{compiled} inside"] = [float(run(x)) for x, _ in batches(context)]
        results[f"{compiled} after"] = float(metric.result())
        results[f"{compiled} kept"] = float(kept.result())
    return results


def digits(context):
    """A value is written as it is given, or refused as TensorFlow does."""
    results = {}
    kinds = {"none": KINDS.NONE, "sum": KINDS.SUM, "first": KINDS.ONLY_FIRST_REPLICA}
    for name, kind in kinds.items():
        with context.scope():
            exact = tf.Variable(tf.zeros([], "float64"), trainable=False, aggregation=kind)
            whole = tf.Variable(0, trainable=False, aggregation=KINDS.SUM)

        def step(exact=exact, share=1 if kind != KINDS.SUM else context.world_size):
            exact.assign(0.1 / share)
            exact.assign_add(0.2 / share)

        context.run(step)
        # The sum of three thirds has another last digit.
        results[name] = exact.numpy() if name != "sum" else np.round(exact.numpy(), 14)
        for write in (lambda v=whole: v.assign(0.5), lambda v=whole: v.assign_add(0.5)):
            try:
                context.run(write)
            except (TypeError, ValueError):
                continue
            raise AssertionError("a fraction was written into an integer variable")
    return results


def gathered_in_an_update(context):
    """An update that reads rows of another variable sees them as the program's order has it."""
    with context.scope():
        table = tf.Variable(tf.ones([3, 2]))
        sums = tf.Variable(tf.zeros([2]))
    strategy = context.strategy

    def update(variable, function, gradient):
        if strategy:
            strategy.extended.update(variable, function, args=(gradient,))
        else:
            function(variable, gradient)

    def step(x):
        ones = [tf.ones([3, 2]), tf.ones([2])]
        if strategy:
            ones = tf.distribute.get_replica_context().all_reduce("MEAN", ones)
        update(table, lambda variable, gradient: variable.assign_add(gradient), ones[0])
        update(sums, lambda v, gradient: v.assign_add(gradient * tf.gather(table, 1)), ones[1])
        update(table, lambda variable, gradient: variable.assign_sub(2 * gradient), ones[0])
        update(sums, lambda v, g: v.assign_add(g * table.gather_nd([[2, 0], [2, 1]])), ones[1])

    run = tf.function(lambda x: context.run(step, (x,)))
    for x, _ in batches(context):
        run(x)
    return {"table": table.numpy(), "sums": sums.numpy()}


EAGER_READS = {
    "maximum": lambda v: tf.maximum(v, -1e9),
    "plus": lambda v: v + 0.0,
    "minus": lambda v: -v,
    "convert": tf.convert_to_tensor,
    "identity": tf.identity,
    "stack": lambda v: tf.stack([v, v])[0],
    "concat": lambda v: tf.concat([v, v], 0),
    "slice": lambda v: v[1:],
    "gather": lambda v: tf.gather(v, [1, 0]),
    "raw": lambda v: tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype),
    "raw argument": lambda v: tf.raw_ops.Abs(x=v),
    "numpy": lambda v: v.numpy(),
    "array": np.asarray,
    "function": tf.function(lambda v: v + 0.0),
}
KERAS_READS = {
    "keras maximum": lambda v: keras.ops.maximum(v, -1e9),
    "keras plus": lambda v: v + 0.0,
    "keras numpy": keras.ops.convert_to_numpy,
}


def read_in_flight(context):
    """However Python reads a variable after a step, it has the step's update."""
    with context.scope():
        weight = keras.Variable(tf.zeros([2]), name="weight")
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x[:, :2] * weight)
        optimizer.apply(tape.gradient(loss, [weight.value]))

    run = tf.function(lambda x: context.run(step, (x,)))
    whole = next(iter(batches(context)))[0]
    run(whole)
    results = {}
    for name, read in {**EAGER_READS, **KERAS_READS}.items():
        if context.rank > 0:
            time.sleep(0.2)  # So that rank 0 reads before the sums are there.
        run(whole)
        results[name] = read(weight if name in KERAS_READS else weight.value)
        results[f"{name} gradient"] = gradient_of(tf.maximum, weight.value)
    return results


def gradient_of(function, variable):
    with tf.GradientTape() as tape:
        value = function(variable, -1e9)
    return tape.gradient(value, variable)


FUNCTIONS = (class_weights_first, contrastive, left_out)
FUNCTIONS += (written_parts, other_written_parts, counters, digits, gathered_in_an_update)
FUNCTIONS += (own_values, metrics_that_assign, reset_with_ranks_left_out, read_in_flight)
CASES = {function.__name__: function for function in FUNCTIONS}

if __name__ == "__main__":
    if "--plain" in sys.argv:
        cpu = tf.config.list_physical_devices("CPU")[0]
        place = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [place] * 3)
    case_table.main(CASES)
