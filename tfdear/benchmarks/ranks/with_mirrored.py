# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that uses TensorFlow's MultiWorkerMirroredStrategy; it needs Keras 2."""

import contextlib
import json
import os
import socket

import keras_models  # type: ignore[import-not-found]
import tensorflow as tf

_trained: dict = {}
_joined: dict = {}


def prepare(hostnames: list) -> dict:
    """Rank 0: what all ranks must know before they start."""
    with contextlib.ExitStack() as stack:
        # Several ranks may share an address.
        probes = [stack.enter_context(socket.socket()) for _ in hostnames]
        for probe in probes:
            probe.bind(("", 0))
        return {"ports": [probe.getsockname()[1] for probe in probes]}


def start(rank: int, addresses: list, hostnames: list, prepared: dict) -> str:
    """Joins the job."""
    ports = prepared["ports"]
    workers = [f"{address}:{port}" for address, port in zip(addresses, ports, strict=True)]
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    _joined["strategy"] = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
    )
    _joined["world_size"] = len(addresses)
    return f"MultiWorkerMirroredStrategy of TensorFlow {tf.__version__}"


def build(model: str, batch_size: int) -> int:
    """Makes a model to train. Returns the bytes of its gradients."""
    with _joined["strategy"].scope():
        together = keras_models.build(model)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # With sharding off every worker's dataset has its own rows, and is batched for all together.
    batch = keras_models.data(model, batch_size * _joined["world_size"])
    dataset = keras_models.endless(batch).with_options(options)
    _trained["together"] = (together, dataset)
    alone = keras_models.endless(keras_models.data(model, batch_size))
    _trained["alone"] = (keras_models.build(model), alone)
    return sum(weight.shape.num_elements() * 4 for weight in together.trainable_weights)


def train(mode: str, steps: int) -> float:
    """Seconds per step, "together" with the other ranks or "alone"."""
    return keras_models.seconds_per_step(*_trained[mode], steps)
