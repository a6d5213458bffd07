# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that uses Horovod on TensorFlow, with its Gloo controller."""

import collections
import os
import resource
import time

import tensorflow as tf

_DRAIN_BYTES = 1 << 20
_server = None


def prepare(hostnames: list) -> dict:
    """Rank 0: what all ranks must know before they start; the rendezvous is served from here."""
    global _server
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    _server = RendezvousServer()
    port = _server.start()
    counts = collections.Counter(hostnames)
    hosts = parse_hosts(",".join(f"{name}:{count}" for name, count in counts.items()))
    _server.init(get_host_assignments(hosts, len(hostnames)))
    return {"port": port}


def start(rank: int, addresses: list, hostnames: list, prepared: dict) -> str:
    """Joins the job."""
    size = str(len(addresses))
    os.environ.update(
        HOROVOD_RANK=str(rank),
        HOROVOD_SIZE=size,
        HOROVOD_LOCAL_RANK=str(hostnames[:rank].count(hostnames[rank])),
        HOROVOD_LOCAL_SIZE=str(hostnames.count(hostnames[rank])),
        HOROVOD_CROSS_RANK=str(list(dict.fromkeys(hostnames)).index(hostnames[rank])),
        HOROVOD_CROSS_SIZE=str(len({*hostnames})),
        HOROVOD_HOSTNAME=hostnames[rank],
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE="eth0",
        # A rank that is stopped between its turns must not be taken for lost.
        HOROVOD_GLOO_TIMEOUT_SECONDS="3600",
        HOROVOD_GLOO_RENDEZVOUS_ADDR=addresses[0],
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(prepared["port"]),
    )
    import horovod
    import horovod.tensorflow as horovod_tensorflow

    horovod_tensorflow.init()
    return f"Horovod {horovod.__version__} (Gloo, TensorFlow {tf.__version__})"


def collective(name: str, nbytes: int, repeats: int) -> float:
    """Seconds per collective on `nbytes` bytes of float32."""
    import horovod.tensorflow as horovod_tensorflow

    size = horovod_tensorflow.size()
    data = tf.zeros([nbytes // 4])
    shard = tf.zeros([nbytes // 4 // size])
    run = {
        "all_reduce": lambda: horovod_tensorflow.allreduce(
            data, op=horovod_tensorflow.Sum, name="all_reduce"
        ),
        "reduce_scatter": lambda: horovod_tensorflow.reducescatter(
            data, op=horovod_tensorflow.Sum, name="reduce_scatter"
        ),
        "all_gather": lambda: horovod_tensorflow.allgather(shard, name="all_gather"),
    }[name]
    # A barrier, and more than a shaped link lets through at once after a pause.
    horovod_tensorflow.allreduce(tf.zeros([_DRAIN_BYTES // 4]), name="barrier")
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


_trained: dict = {}


def build(model: str, batch_size: int) -> int:
    """Makes a model to train. Returns the bytes of its gradients."""
    import horovod.tensorflow.keras as horovod_keras
    import keras_models  # type: ignore[import-not-found]

    dataset = keras_models.endless(keras_models.data(model, batch_size))
    together = keras_models.build(model, horovod_keras.DistributedOptimizer)
    _trained["together"] = (together, dataset)
    _trained["alone"] = (keras_models.build(model), dataset)
    return sum(weight.shape.num_elements() * 4 for weight in together.trainable_weights)


def train(mode: str, steps: int) -> float:
    """Seconds per step, "together" with the other ranks or "alone"."""
    import keras_models

    return keras_models.seconds_per_step(*_trained[mode], steps)


def build_language_model(
    tables: str, words: int, columns: int, units: int, samples: int, windows: int, length: int
) -> None:
    """Makes a language model and its data, as `with_tfdear` does; `tables` without "sharded"."""
    import horovod.tensorflow.keras as horovod_keras
    import keras
    import language_model  # type: ignore[import-not-found]

    model, loss = language_model.whole(words, columns, units, samples, tables == "densified")
    model.compile(horovod_keras.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss)
    dataset = language_model.data(words, windows, length)
    _trained["together"] = (model, dataset)


def build_tables(name: str, layers: list, tables: list, **_) -> None:
    """Makes a model with tables that sleeps; see `horovod_steps.build`."""
    import horovod_steps  # type: ignore[import-not-found]

    horovod_steps.build(name, layers, tables)


def run_tables(**arguments) -> dict:
    """Trains it; see `horovod_steps.run`."""
    import horovod_steps

    return horovod_steps.run(**arguments)


def memory() -> int:
    """Bytes of the most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
