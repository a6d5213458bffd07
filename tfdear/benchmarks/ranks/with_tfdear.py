# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that uses tfdear: its engine alone, or Keras under its strategy."""

import dataclasses
import functools
import os
import resource
import socket
import time

import numpy as np
import sleeping  # type: ignore[import-not-found]
import sum_parts  # type: ignore[import-not-found]

import tfdear
from tfdear.base import names
from tfdear.engine import event_reader
from tfdear.engine import plan as engine_plan
from tfdear.job import link_costs, options
from tfdear.job.job import Job
from tfdear.measure import steps as training_steps
from tfdear.rendezvous import rank_environment

_LANE = names.Lane.GRADIENTS
_WAIT_SECONDS = 60.0
# Longer than at the start of a job: results are compared with predictions from these costs.
_COSTS_WINDOW = 0.1
_DRAIN_BYTES = 1 << 20
_trained: dict = {}


def prepare(hostnames: list[str]) -> dict:
    """Rank 0: what all ranks must know before they start."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return {"port": probe.getsockname()[1]}


def start(rank: int, addresses: list[str], hostnames: list[str], prepared: dict) -> str:
    """Tells this process its rank; the first call that needs the job joins it."""
    nodes = list(dict.fromkeys(addresses))
    os.environ |= rank_environment.variables(
        rank,
        [nodes.index(address) for address in addresses],
        f"{addresses[0]}:{prepared['port']}",
    )
    return f"tfdear {tfdear.__version__}"


@functools.cache
def _job() -> Job:
    return Job(options.resolve({}))


def collective(name: str, nbytes: int, repeats: int) -> float:
    """Seconds per collective on `nbytes` bytes of float32."""
    # Zeros do not overflow, however often they are summed in place. They are written: memory that
    # never was is read from one page, which stays in the cache.
    data = np.full(nbytes // 4, 0, np.float32)
    run = _job().engine.run_collective
    # A barrier, and more than a shaped link lets through at once after a pause.
    run(_LANE, names.Operation.ALL_REDUCE, np.zeros(_DRAIN_BYTES // 4, np.float32))
    if name == "pair":
        seconds = 0.0
        for _ in range(repeats):
            seconds += run(_LANE, names.Operation.REDUCE_SCATTER, data)
            seconds += run(_LANE, names.Operation.ALL_GATHER, data)
        return seconds / repeats
    return run(_LANE, names.Operation[name.upper()], data, repeats=repeats) / repeats


def costs() -> dict[str, dict[str, float]]:
    """What the collectives cost this rank: a and b of each."""
    return _costs_of(_job())


def _costs_of(job: Job) -> dict[str, dict[str, float]]:
    return dataclasses.asdict(link_costs.measure(job.engine, _LANE, window=_COSTS_WINDOW))


def gradient_sum(count: int, repeats: int) -> dict:
    """Sums a gradient of `count` elements; all ranks start each repeat together.

    Returns for each repeat, after one that is not counted, on a clock that all ranks of this
    machine share: when it `begins`, when its gradient was `copied` into the engine, when its first
    collective starts (`first`) and its last one is over (`last`), when it `ends`; and the mean
    seconds of its collectives by phase (`phases`).
    """
    engine = _job().engine
    layout = engine.create_layout(f"gradient {count}", _LANE)
    float32 = names.data_type("float32")
    engine.add_tensor(layout, float32, count, sparse=False)
    tensor = engine_plan.TensorSpec(float32, count, sparse=False, bytes=4 * count)
    engine.set_plan(layout, _job().first_plan.encode([tensor], _LANE))
    gradient = _gradient(count)
    total = np.empty(count, np.float32)
    reader = event_reader.EventReader()
    begins, copied, ends = [], [], []
    for repeat in range(repeats + 1):
        if repeat <= 1:
            reader.read_rows()
        engine.run_collective(_LANE, names.Operation.ALL_REDUCE, np.zeros(1, np.float32))
        begins.append(time.monotonic())
        reduction = engine.open_reduction(layout)
        reduction.contribute(0, gradient)
        copied.append(time.monotonic())
        reduction.wait(0, _WAIT_SECONDS, total)
        reduction.close()
        ends.append(time.monotonic())
    phases: dict[str, float] = {}
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for event in reader.read():
        if event.kind in training_steps.PHASES:
            seconds = (event.end - event.begin) / max(1, repeats)
            phases[event.kind] = phases.get(event.kind, 0.0) + seconds
            first[event.ticket] = min(first.get(event.ticket, event.begin), event.begin)
            last[event.ticket] = max(last.get(event.ticket, event.end), event.end)
    return {
        "begins": begins[1:],
        "copied": copied[1:],
        "first": [first[ticket] for ticket in sorted(first)],
        "last": [last[ticket] for ticket in sorted(last)],
        "ends": ends[1:],
        "phases": phases,
    }


@functools.cache
def _gradient(count: int) -> np.ndarray:
    return np.random.default_rng(_job().rank).standard_normal(count, np.float32)


def parts_of_sum(
    count: int, nodes: int, ranks_per_node: int, k: int, bfloat16: bool
) -> dict[str, tuple[float, float]]:
    """Does the work of a compressed sum part by part, after one that is not counted.

    Returns when each part started and ended, on a clock that all ranks of this machine share.
    """
    parts = _parts(count, nodes, ranks_per_node, k, bfloat16)
    parts.run()
    return parts.run()


@functools.cache
def _parts(count: int, nodes: int, ranks_per_node: int, k: int, bfloat16: bool) -> sum_parts.Parts:
    ranks = [int(os.environ[name]) for name in ("TFDEAR_NODE_RANK", "TFDEAR_LOCAL_RANK")]
    engine, gradient = _job().engine, _gradient(count)
    return sum_parts.Parts(engine, gradient, nodes, ranks_per_node, *ranks, k, bfloat16)


def replay(
    counts: list[int], forward: list[float], backward: list[float], plan: list[int], repeats: int
) -> dict[str, list[float]]:
    """Times of iterations whose computation sleeps and whose gradients travel.

    Of each gradient, in the order of the forward pass, there are the elements and the seconds of
    its layer; the `plan` is in the engine's encoding. Returns the seconds per iteration, after one
    whose sums are checked, from the start of a backward pass to the end of the next forward pass:
    by the clock of the sleeping `device`, and by the `wall` clock, until this process could start
    the next iteration.
    """
    engine, world_size = _job().engine, _job().world_size
    layout = _layout(tuple(counts), tuple(plan))
    layers = range(len(counts))
    gradient = {count: np.full(count, _job().rank + 1, np.float32) for count in {*counts}}
    device = sleeping.Device()
    times, wall = [], []
    for iteration in range(repeats + 1):
        if iteration <= 1:
            engine.run_collective(_LANE, names.Operation.ALL_REDUCE, np.zeros(1, np.float32))
            device.restart()
            started = device.cursor
        begin = device.cursor
        reduction = engine.open_reduction(layout)
        for layer in reversed(layers):
            device.compute(backward[layer])
            reduction.contribute(layer, gradient[counts[layer]])
        for layer in layers:
            total = np.empty(counts[layer], np.float32) if iteration == 0 else None
            device.wait_until(reduction.wait(layer, _WAIT_SECONDS, total))
            if total is not None and not (total == world_size * (world_size + 1) / 2).all():
                raise RuntimeError(f"layer {layer}: the sum over the ranks is wrong")
            device.compute(forward[layer])
        reduction.close()
        times.append(device.cursor - begin)
        ended = time.monotonic()
        wall.append(ended - started)
        started = ended
    return {"device": times[1:], "wall": wall[1:]}


@functools.cache
def _layout(counts: tuple[int, ...], plan: tuple[int, ...]) -> int:
    engine = _job().engine
    layout = engine.create_layout(f"replay {hash(plan):x}", _LANE)
    for count in counts:
        engine.add_tensor(layout, names.data_type("float32"), count, sparse=False)
    engine.set_plan(layout, plan)
    return layout


def build(model: str, batch_size: int, schedule: str, fusion: str) -> int:
    """Makes a model to train. Returns the bytes of its gradients."""
    import keras_models  # type: ignore[import-not-found]

    planner = None if fusion == "default" else fusion
    strategy = tfdear.DearStrategy(schedule=schedule, fusion=planner)
    with strategy.scope():
        trained = keras_models.build(model)
    batch = keras_models.data(model, batch_size * strategy.world_size)
    dataset = keras_models.endless(batch)
    _trained["together"] = (trained, dataset, strategy.synchronize)
    alone = keras_models.endless(keras_models.data(model, batch_size))
    _trained["alone"] = (keras_models.build(model), alone, lambda: None)
    return sum(int(np.prod(weight.shape)) * 4 for weight in trained.trainable_weights)


def train(mode: str, steps: int) -> float:
    """Seconds per step, "together" with the other ranks or "alone"."""
    import keras_models

    model, dataset, finish = _trained[mode]
    return keras_models.seconds_per_step(model, dataset, steps, finish)


def learn(task: str, batch_size: int, steps: int) -> dict:
    """Makes the model and the data of a task, to be learned in this number of steps."""
    import keras
    import keras_models
    import learning_tasks  # type: ignore[import-not-found]
    import tensorflow as tf

    strategy = tfdear.DearStrategy()
    keras.utils.set_random_seed(1)
    chosen = learning_tasks.load(task)
    with strategy.scope():
        model = chosen.make(max(1, steps))
    dataset = tf.data.Dataset.from_tensor_slices((chosen.inputs, chosen.labels))
    dataset = dataset.repeat().shuffle(len(chosen.inputs), seed=1)
    dataset = dataset.batch(batch_size * strategy.world_size)
    _trained["task"] = (chosen, model, dataset, strategy.synchronize, steps)
    return {
        "gradient_bytes": sum(int(np.prod(w.shape)) * 4 for w in model.trainable_weights),
        "first_steps": keras_models.FIRST_STEPS,
    }


def learned() -> dict:
    """Learns the task; returns what was measured in the validation."""
    task, model, dataset, _, steps = _trained["task"]
    model.fit(dataset, epochs=1, steps_per_epoch=steps, verbose=0)
    logs = model.evaluate(*task.validation, batch_size=64, verbose=0, return_dict=True)
    return {"measure": task.measure, "value": task.of_logs(logs)}


def learning_step(steps: int) -> float:
    """Seconds per step of the task's training."""
    import keras_models

    _, model, dataset, finish, _ = _trained["task"]
    return keras_models.seconds_per_step(model, dataset, steps, finish)


@functools.cache
def _searching():
    import searched_fit  # type: ignore[import-not-found]

    fusion = searched_fit.Fusion()
    return tfdear.DearStrategy(fusion=fusion), fusion


def searched_fit(model: str, batch_size: int, most_steps: int, assignment: dict) -> dict | None:
    """Trains while planners search; see `searched_fit.run`."""
    import searched_fit

    return searched_fit.run(
        *_searching(), model, batch_size, most_steps, searched_fit.Assignment(**assignment)
    )


def build_tables(**arguments) -> None:
    """Makes a model with tables that sleeps; see `table_steps.build`."""
    import table_steps  # type: ignore[import-not-found]

    table_steps.build(**arguments)


def run_tables(**arguments) -> dict:
    """Trains it; see `table_steps.run`."""
    import table_steps

    return table_steps.run(**arguments)


def costs_beside_tables() -> dict[str, dict[str, float]]:
    """As `costs`, in the job of the models with tables."""
    import table_steps

    return _costs_of(table_steps.strategy()._job)


def build_language_model(
    tables: str, words: int, columns: int, units: int, samples: int, windows: int, length: int
) -> None:
    """Makes a language model and its data.

    Args:
        tables: "sharded", "plain" (`keras.layers.Embedding`'s) or "densified" (the same with dense
            gradients).
        words: Rows of its two tables.
        columns: Of the tables.
        units: Of the LSTM.
        samples: Candidates of the sampled softmax.
        windows: Examples of a rank in a step.
        length: Words of an example.
    """
    import keras
    import language_model  # type: ignore[import-not-found]

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        if tables == "sharded":
            table, output_table = (tfdear.layers.ShardedEmbedding(words, columns) for _ in range(2))
            bias = tfdear.layers.ShardedEmbedding(words, 1, embeddings_initializer="zeros")
            loss = tfdear.losses.SampledSoftmax(output_table, bias, samples=samples)
            model = language_model.LanguageModel(table, output_table, bias, units, columns)
        else:
            densify = tables == "densified"
            model, loss = language_model.whole(words, columns, units, samples, densify)
        model.compile(keras.optimizers.Adam(1e-3), loss)
    dataset = language_model.data(words, windows * strategy.world_size, length)
    _trained["together"] = (model, dataset, strategy.synchronize)


def memory() -> int:
    """Bytes of the most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
