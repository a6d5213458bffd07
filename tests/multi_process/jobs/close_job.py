# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Strategies one after another in one process: close_job.py TASK DIRECTORY [CYCLES]."""

import contextlib
import gc
import json
import os
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear import errors
from tfdear.job import job

TASK, DIRECTORY = sys.argv[1], pathlib.Path(sys.argv[2])
RANK = int(os.environ["TFDEAR_RANK"])
INPUTS = np.random.RandomState(0).randn(24, 8).astype("float32")
IDS = np.random.RandomState(1).randint(0, 40, (24, 3))
# What cycles do in turns: arguments, the nodes of the ranks, and which model is trained.
VARIANTS = {
    "plain": ({}, (0, 0), "dense"),
    "sockets": ({"shared_memory": False, "schedule": "sequential"}, (0, 0), "dense"),
    "tables": ({}, (0, 0), "tables"),
    "compressed": ({"compression": "MSTopK(0.25, dense_below=0)"}, (0, 1), "dense"),
    "bare": ({}, (0, 0), None),
    "nodes": ({"fusion": "FixedSize(256)"}, (0, 1), "dense"),
}


def make_model(kind="dense"):
    keras.utils.set_random_seed(1)
    if kind == "tables":
        layers = [
            keras.layers.Input((3,), dtype="int32"),
            tfdear.layers.ShardedEmbedding(40, 6),
            keras.layers.GlobalAveragePooling1D(),
        ]
    else:
        layers = [keras.layers.Input((8,)), keras.layers.Dense(16, "relu")]
    model = keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def fit(model, kind="dense", callbacks=None):
    inputs = IDS if kind == "tables" else INPUTS
    labels = INPUTS[:, :1]
    arguments = {"batch_size": 6, "epochs": 2, "verbose": 0, "shuffle": False}
    return model.fit(inputs, labels, callbacks=callbacks, **arguments).history


def raised(call, *arguments, **options):
    """The error of a call that has to fail."""
    try:
        call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{call} did not fail")


def _threads_and_descriptors():
    return [len(os.listdir(f"/proc/self/{of}")) for of in ("task", "fd")]


def held(before):
    """Descriptors, threads, and kibibytes of memory, of this process.

    Threads of a model's last pipelines, and connections that gRPC closes, end a little later: it
    waits until there are no more than `before`, for a while.
    """
    keras.backend.clear_session()
    gc.collect()
    end = time.monotonic() + 10
    while any(now > then for now, then in zip(_threads_and_descriptors(), before, strict=True)):
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    threads, descriptors = _threads_and_descriptors()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": descriptors,
        "threads": threads,
        "kibibytes": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
    }


def cycles(variants):
    reports: list[dict] = []
    for number in range(int(sys.argv[3])):
        name = variants[number % len(variants)]
        arguments, nodes, kind = VARIANTS[name]
        os.environ["TFDEAR_NODE_RANK"] = str(nodes[RANK])
        with tfdear.DearStrategy(**arguments, timeout=60, init_timeout=60) as strategy:
            losses = []
            if kind:
                with strategy.scope():
                    model = make_model(kind)
                losses = fit(model, kind)["loss"]
                del model
        del strategy
        assert job.current() is None
        before = [reports[-1][of] if reports else 0 for of in ("threads", "descriptors")]
        reports.append({"variant": name, "losses": losses, **held(before)})
    (DIRECTORY / f"cycles_{RANK}.json").write_text(json.dumps(reports))


def notebook():
    """Tensors first, a strategy later, its end, and what is left of it."""
    before = tf.Variable(tf.random.normal([3])) * 2.0
    hook = sys.excepthook
    strategy = tfdear.DearStrategy(timeout=60)
    second = raised(tfdear.DearStrategy)
    with strategy.scope():
        model = make_model()
    watch = tfdear.callbacks.StepStatistics(DIRECTORY / "logs", every=1)
    fit(model, callbacks=[watch])
    cache = tfdear.data.DataCache(tf.data.Dataset.range(7))
    assert sorted(int(n) for batch in cache.batches(2) for n in batch) != []
    step = tf.function(lambda: strategy.all_reduce(tf.constant(1.0)))
    assert float(step()) == 2.0
    in_step = raised(strategy.run, tf.function(strategy.close))
    strategy.close()
    strategy.close()
    assert np.isfinite(before.numpy()).all()
    assert sys.excepthook is hook
    assert keras.config.is_interactive_logging_enabled()
    if os.environ.get("TFDEAR_TIMELINE"):
        assert (DIRECTORY / f"timeline.rank{RANK}.json").exists()
    # Variables are plain values now.
    weights = model.get_weights()
    path = str(DIRECTORY / f"model_{RANK}.keras")
    model.save(path)
    for kept, loaded in zip(weights, keras.models.load_model(path).get_weights(), strict=True):
        np.testing.assert_array_equal(kept, loaded)

    def enter():
        with strategy:
            pass

    data = tf.data.Dataset.range(4).batch(2)
    errors = {
        "second": second,
        "in_step": in_step,
        "run": raised(strategy.run, lambda: 1),
        "all_reduce": raised(strategy.all_reduce, tf.constant(1.0)),
        "barrier": raised(strategy.barrier),
        "statistics": raised(strategy.statistics),
        "synchronize": raised(strategy.synchronize),
        "fit": raised(fit, model),
        "predict": raised(model.predict, INPUTS, verbose=0),
        "train_on_batch": raised(model.train_on_batch, INPUTS[:6], INPUTS[:6, :1]),
        "distribute": raised(strategy.experimental_distribute_dataset, data),
        "cache": raised(cache.statistics),
        "new_cache": raised(tfdear.data.DataCache, data.unbatch(), strategy=strategy),
        "traced": raised(step),
        "enter": raised(enter),
    }
    with strategy.scope():
        errors["variable"] = raised(tf.Variable, 1.0)
    # The functions of the closed one do not work in the next one, which works.
    with tfdear.DearStrategy(timeout=60) as following:
        errors["traced_later"] = raised(step)
        errors["train_on_batch_later"] = raised(model.train_on_batch, INPUTS[:6], INPUTS[:6, :1])
        with following.scope():
            model = make_model()
        again = fit(model, callbacks=[watch])
        assert following.statistics()["steps"] <= 8, "steps of the strategy before"
        # One of a single rank beside it, for something local, is not this process's.
        alone = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
        with tfdear.DearStrategy(alone) as single:
            assert single.world_size == 1
        errors["beside_a_single_rank"] = raised(tfdear.DearStrategy)
        assert job.current() is following._job
    if RANK == 0:  # Eight batches in each of both trainings.
        points = {
            event.step
            for file in (DIRECTORY / "logs").iterdir()
            for event in tf.compat.v1.train.summary_iterator(str(file))
            if event.summary.value
        }
        assert min(points) <= 8 and 10 <= max(points) <= 16, points
    errors["losses"] = again["loss"]
    (DIRECTORY / f"notebook_{RANK}.json").write_text(json.dumps(errors))


def error():
    """Rank 1 fails within its `with` statement; the other hears of it."""
    seen = ""
    begin = time.monotonic()
    try:
        with tfdear.DearStrategy(timeout=300) as strategy:
            with strategy.scope():
                model = make_model()
            fit(model)
            if RANK == 1:
                raise ValueError("the disk is full")
            fit(model)
    except Exception as failure:
        seen = str(failure)
    report = {
        "seen": seen,
        "seconds": time.monotonic() - begin,
        "current": job.current() is None,
        "again": raised(tfdear.DearStrategy, init_timeout=5),
    }
    (DIRECTORY / f"error_{RANK}.json").write_text(json.dumps(report))


def missing():
    """Rank 0 closes, rank 1 goes on with something else."""
    strategy = tfdear.DearStrategy(timeout=15)
    if RANK == 0:
        (DIRECTORY / "missing_0.json").write_text(json.dumps({"seen": raised(strategy.close)}))
        return
    end = time.monotonic() + 60
    while (seen := strategy._job.engine.aborted()) is None and time.monotonic() < end:
        time.sleep(0.05)
    strategy.close()
    (DIRECTORY / "missing_1.json").write_text(json.dumps({"seen": seen}))


def ended():
    """One rank closes, the other one's script ends: in turns."""
    for closing in (0, 1):
        strategy = tfdear.DearStrategy(timeout=60)
        if closing == 1:
            if RANK == 1:
                strategy.close()
                print("closed", flush=True)
            return  # The script of rank 0 ends.
        strategy.close()


def ended_long_ago():
    """A rank closes when rank 0's process has ended, and with it where the ranks meet."""
    strategy = tfdear.DearStrategy(timeout=60)
    if RANK == 0:
        return
    store = strategy._job._rendezvous.store
    with contextlib.suppress(errors.StoreUnavailableError):
        while True:
            store.check()
            time.sleep(0.1)
    strategy.close()
    print("closed", flush=True)


if TASK == "cycles":
    cycles(os.environ["VARIANTS"].split(","))
else:
    {
        "notebook": notebook,
        "error": error,
        "missing": missing,
        "ended": ended,
        "ended_long_ago": ended_long_ago,
    }[TASK]()
print("done", flush=True)
