# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Measures how long `fit`, `evaluate` and a loop go on after their last step.

The process has one core, on which the thread of tf.data's autotuner goes first: told that it will
be cancelled, it looks before that is noted, and sleeps on.
"""

import contextlib
import json
import os
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

STEPS = 14
# Seconds that the test lets pass.
ENOUGH = 0.25
X = np.zeros([4 * STEPS, 4], "float32")
Y = np.zeros([4 * STEPS, 1], "float32")


def threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def tuners(known: set[int]) -> list[int]:
    """Threads that are not `known` and sleep on a futex with a deadline.

    No other thread of a pipeline has one, and none of them bears a name.
    """
    found = []
    for thread in threads() - known:
        try:
            call = pathlib.Path(f"/proc/self/task/{thread}/syscall").read_text().split()
        except OSError:  # It ended.
            continue
        waits = call[0] == "202" and int(call[2], 16) & 0x7F in (0, 9)  # FUTEX_WAIT(_BITSET)
        if waits and call[4] != "0x0":
            found.append(thread)
    return found


class Steps(keras.callbacks.Callback):
    """Makes every step as long as asked for; puts tuners first."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds
        self.known = threads()
        self.seen: set[int] = set()
        self.step = 0

    def end(self, *_, **__):
        time.sleep(self.seconds)
        self.step += 1
        if self.step % 3 == 0:  # In every epoch, when its pipeline runs.
            found = tuners(self.known)
            for thread in found:
                with contextlib.suppress(ProcessLookupError):  # It ended meanwhile.
                    os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
            self.seen.update(found)

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = end


def pipeline(parallel, autotune=None, rows=4 * STEPS):
    dataset = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows]))
    dataset = dataset.map(lambda x, y: (x + 1, y), num_parallel_calls=parallel).batch(4)
    if autotune is not None:
        options = tf.data.Options()
        options.autotune.enabled = autotune
        dataset = dataset.with_options(options)
    return dataset


def bodies(strategy):
    """What runs an epoch, by its name, and how many pipelines come to their end in it."""
    scope = strategy or tf.distribute.get_strategy()
    with scope.scope():
        model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def fit(make, steps):
        validation = make(rows=24)
        model.fit(make(), validation_data=validation, epochs=2, callbacks=[steps], verbose=0)

    def evaluate(make, steps):
        model.evaluate(make(), callbacks=[steps], verbose=0)

    def predict(make, steps):
        model.predict(make(), callbacks=[steps], verbose=0)

    @tf.function
    def step(batch):
        return scope.run(lambda x, y: tf.reduce_sum(x) + tf.reduce_sum(y), batch)

    def loop(make, steps):
        for batch in scope.experimental_distribute_dataset(make()):
            step(batch)
            steps.end()

    def loop_of_own_data(make, steps):
        for batch in scope.distribute_datasets_from_function(lambda _: make()):
            step(batch)
            steps.end()

    return {
        "fit": (fit, 2),
        "evaluate": (evaluate, 1),
        "predict": (predict, 1),
        "loop": (loop, 1),
        "loop_of_own_data": (loop_of_own_data, 1),
    }


def timed(body, parallel, autotune, step_seconds=0.1) -> tuple[float, Steps]:
    steps = Steps(step_seconds)
    begin = time.monotonic()
    body(lambda **arguments: pipeline(parallel, autotune, **arguments), steps)
    return time.monotonic() - begin, steps


def main():
    strategy = None
    if "--plain" not in sys.argv:
        import tfdear

        strategy = tfdear.DearStrategy()
    rank = strategy.rank if strategy else 0
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    report: dict = {"extra": {}, "threads": {}}
    for name, (body, epochs) in bodies(strategy).items():
        timed(body, 2, False, 0.0)  # Traces its functions.
        differences = []
        while len(differences) < 8:
            usual, steps = timed(body, tf.data.AUTOTUNE, False)
            tuned, _ = timed(body, tf.data.AUTOTUNE, None)
            differences.append((tuned - usual) / epochs)
            # A machine that has other things to do adds to either: then once more, on all ranks.
            noisy = min(differences) > ENOUGH if strategy else max(differences) < 1
            if int(strategy.all_reduce(tf.constant(int(noisy))) if strategy else noisy) == 0:
                break
        report["extra"][name] = min(differences) if strategy else max(differences)
        report["threads"][f"{name}, switched off by the script"] = len(steps.seen)
        for case, arguments in {
            "AUTOTUNE": (tf.data.AUTOTUNE, None),
            "nothing to tune": (2, None),
            "switched on by the script": (2, True),
        }.items():
            for _ in range(3):
                seen = len(timed(body, *arguments, 0.02)[1].seen)
                # A thread that is no tuner may come meanwhile, and is known the next time.
                is_stranger = int(case == "nothing to tune" and seen > 0)
                if not strategy or int(strategy.all_reduce(tf.constant(is_stranger))) == 0:
                    break
            report["threads"][f"{name}, {case}"] = seen
    # The last one, let go right before the end, is to sleep for two seconds more.
    _, steps = timed(body, tf.data.AUTOTUNE, None, 0.2)
    report["asleep"] = len(steps.seen & threads())
    print(json.dumps({**report, "end": time.monotonic()}), flush=True)


main()
