# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Multi-worker training as TensorFlow teaches it: `TF_CONFIG`, checkpoints, export by the chief."""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

DIRECTORY = sys.argv[1]
PER_WORKER_BATCH = 8

tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

keras.utils.set_random_seed(1)  # The test asks that the loss falls: no luck in it.
strategy = tfdear.DearStrategy()  # The only line that differs from MultiWorkerMirroredStrategy.


def dataset(batch_size):
    random = np.random.RandomState(0)
    y = np.arange(96) % 4
    x = random.randint(0, 100, (96, 8, 8))
    for image, label in zip(x, y, strict=True):
        image[2 * label : 2 * label + 2] += 150  # A bright band tells the class.
    x = x.astype("float32") / 255
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).repeat().batch(batch_size)


def build_and_compile():
    model = keras.Sequential(
        [
            keras.layers.InputLayer(shape=(8, 8)),
            keras.layers.Reshape(target_shape=(8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.05),
        metrics=["accuracy"],
    )
    return model


def is_chief(task_type, task_id):
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)


def write_path(path, task_type, task_id):
    """The path itself on the chief; a directory of its own on every other worker."""
    if is_chief(task_type, task_id):
        return path
    directory = os.path.join(os.path.dirname(path), f"workertemp_{task_id}")
    tf.io.gfile.makedirs(directory)
    return os.path.join(directory, os.path.basename(path))


data = dataset(PER_WORKER_BATCH * num_workers)
with strategy.scope():
    model = build_and_compile()
    epoch = tf.Variable(0, dtype=tf.int64, name="epoch")

callbacks = [
    keras.callbacks.ModelCheckpoint(filepath=os.path.join(DIRECTORY, "checkpoint.keras")),
    keras.callbacks.BackupAndRestore(backup_dir=os.path.join(DIRECTORY, "backup")),
]
history = model.fit(data, epochs=3, steps_per_epoch=4, callbacks=callbacks, verbose=0)

task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
assert {"type": task_type, "index": task_id} == tf_config["task"]
assert strategy.cluster_resolver.cluster_spec().as_dict() == tf_config["cluster"]
own = write_path(os.path.join(DIRECTORY, "model.keras"), task_type, task_id)
model.save(own)
exported = write_path(os.path.join(DIRECTORY, "exported"), task_type, task_id)
model.export(exported, verbose=False)

checkpoint = tf.train.Checkpoint(model=model, epoch=epoch)
checkpoint_directory = write_path(os.path.join(DIRECTORY, "checkpoints"), task_type, task_id)
manager = tf.train.CheckpointManager(checkpoint, directory=checkpoint_directory, max_to_keep=1)
epoch.assign(3)
manager.save()
if not is_chief(task_type, task_id):
    tf.io.gfile.rmtree(os.path.dirname(own))

before = model.get_weights()
model.set_weights([np.zeros_like(weight) for weight in before])
epoch.assign(0)
strategy.barrier()
latest = tf.train.latest_checkpoint(os.path.join(DIRECTORY, "checkpoints"))
checkpoint.restore(latest).expect_partial()
assert int(epoch.numpy()) == 3
for old, new in zip(before, model.get_weights(), strict=True):
    np.testing.assert_array_equal(old, new)

x = next(iter(dataset(5)))[0]
if is_chief(task_type, task_id):
    np.savez(
        os.path.join(DIRECTORY, "expected.npz"),
        x=x,
        y=model(x),
        loss=history.history["loss"],
    )
