# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A training loop on several workers as TensorFlow teaches it, stopped and taken up again."""

import json
import os
import sys
import zlib

import keras
import numpy as np
import tensorflow as tf

import tfdear

DIRECTORY, NUM_EPOCHS = sys.argv[1], int(sys.argv[2])
STEPS_PER_EPOCH = 4
PER_WORKER_BATCH = 8

num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
global_batch = PER_WORKER_BATCH * num_workers

# Instead of MultiWorkerMirroredStrategy.
strategy = tfdear.DearStrategy()


def dataset_of_worker(context):
    batch = context.get_per_replica_batch_size(global_batch)
    y = np.arange(96) % 4
    x = np.random.RandomState(0).rand(96, 8, 8).astype("float32") / 4
    for image, label in zip(x, y, strict=True):
        image[2 * label : 2 * label + 2] += 0.7  # A bright band tells the class.
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96)
    return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch)


def is_chief(task_type, task_id, cluster_spec):
    first = task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict()
    return task_type is None or task_type == "chief" or first


def write_path(path, task_type, task_id, cluster_spec):
    """The path itself on the chief; a directory of its own on every other worker."""
    if is_chief(task_type, task_id, cluster_spec):
        return path
    directory = os.path.join(os.path.dirname(path), f"workertemp_{task_id}")
    tf.io.gfile.makedirs(directory)
    return os.path.join(directory, os.path.basename(path))


with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    data = strategy.distribute_datasets_from_function(dataset_of_worker)
    optimizer = keras.optimizers.RMSprop(0.01)
    accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(iterator):
    def step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
            loss = tf.nn.compute_average_loss(
                losses(y, predictions), global_batch_size=global_batch
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        accuracy.update_state(y, predictions)
        return loss

    losses = strategy.run(step, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


epoch = tf.Variable(tf.constant(0, tf.int64), name="epoch")
step_in_epoch = tf.Variable(tf.constant(0, tf.int64), name="step_in_epoch")
task_type, task_id, cluster_spec = (
    strategy.cluster_resolver.task_type,
    strategy.cluster_resolver.task_id,
    strategy.cluster_resolver.cluster_spec(),
)
place = (task_type, task_id, cluster_spec)

checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
directory = os.path.join(DIRECTORY, "loop")
own_directory = write_path(directory, *place)
manager = tf.train.CheckpointManager(checkpoint, directory=own_directory, max_to_keep=1)
latest = tf.train.latest_checkpoint(directory)
if latest:
    checkpoint.restore(latest)
    # The tutorial cannot go on: its checkpoints are made when all steps of an epoch are done, and
    # it then divides by their number, 0. Ours can; with no step in which workers would wait for
    # each other, they have to before the chief saves anew and deletes what another has yet to read.
    strategy.all_gather(tf.constant([0]))

while epoch.numpy() < NUM_EPOCHS:
    iterator = iter(data)
    total = 0.0
    num_batches = 0
    while step_in_epoch.numpy() < STEPS_PER_EPOCH:
        total += train_step(iterator)
        num_batches += 1
        step_in_epoch.assign_add(1)
    loss = total / max(num_batches, 1)
    print(
        "epoch %d, accuracy: %f, loss: %f" % (epoch.numpy(), accuracy.result(), loss),  # noqa: UP031
        flush=True,
    )
    accuracy.reset_state()
    manager.save()
    if not is_chief(*place):
        tf.io.gfile.rmtree(own_directory)
    epoch.assign_add(1)
    step_in_epoch.assign(0)

weights = zlib.crc32(b"".join(np.asarray(weight).tobytes() for weight in model.get_weights()))
everybody = strategy.all_gather(tf.constant([weights], tf.int64)).numpy()
assert (everybody == weights).all(), everybody
