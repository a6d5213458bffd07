# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A training with sharded tables and sampled candidates, which may crash and go on.

sharded_resume_job.py DIRECTORY TASK [WORLD_SIZE_BEFORE]

TASK is "train", "crash" (after two of four epochs, all ranks) or "resume".
"""

import os
import pathlib
import sys
import time

import keras
import numpy as np

import tfdear

DIRECTORY, TASK = pathlib.Path(sys.argv[1]), sys.argv[2]
WORDS, WIDTH, LENGTH, BATCH, STEPS, EPOCHS = 60, 5, 4, 12, 5, 4
strategy = tfdear.DearStrategy(timeout=60.0)


class Crash(keras.callbacks.Callback):
    """Ends all ranks at once, when all have their backups."""

    def on_epoch_begin(self, epoch, logs=None):
        del logs
        if epoch < EPOCHS // 2:
            return
        (DIRECTORY / f"crash_{strategy.rank}").touch()
        end = time.monotonic() + 60
        while len(list(DIRECTORY.glob("crash_*"))) < strategy.world_size:
            if time.monotonic() > end:
                raise TimeoutError("the other ranks did not come to crash")
            time.sleep(0.001)
        os._exit(0)


class LanguageModel(keras.Model):
    def __init__(self):
        super().__init__()
        make = tfdear.layers.ShardedEmbedding
        normal = keras.initializers.RandomNormal
        self.words = make(WORDS, WIDTH, embeddings_initializer=normal(seed=1), partition="column")
        self.dense = keras.layers.Dense(WIDTH, "tanh", kernel_initializer=normal(seed=2))
        self.classes = make(WORDS, WIDTH, embeddings_initializer=normal(seed=3), partition="row")

    def call(self, ids):
        return self.dense(self.words(ids))


keras.utils.set_random_seed(1)
with strategy.scope():
    model = LanguageModel()
    loss = tfdear.losses.SampledSoftmax(model.classes, samples=15, seed=5)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.05, EPOCHS * STEPS), weight_decay=0.01
    )
    model.compile(optimizer, loss)
    model.build((None, LENGTH))
ids = np.random.default_rng(0).zipf(1.3, (BATCH * STEPS, LENGTH)) % WORDS
callbacks = []
if TASK != "train":
    callbacks.append(keras.callbacks.BackupAndRestore(str(DIRECTORY / "backup")))
if TASK == "crash":
    callbacks.append(Crash())
model.fit(
    ids, (ids * 7 + 1) % WORDS, BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks
)
values = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *optimizer.variables]]
np.savez(DIRECTORY / f"{TASK}_{strategy.rank}.npz", *values)
strategy.barrier()
