# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Switches tf.data's autotuner off where it has nothing to tune.

The end of an epoch may have to wait for its thread (docs/data.md says why). Most iterators are
released without waiting (`iterators`), but not those of loops inside a `tf.function`.
"""

import tensorflow as tf

# Batches read ahead where the autotuner is off: one is prepared while another is used.
READ_AHEAD = 2


def switch_off_unused(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without an autotuner, unless its options set autotuning or a step is AUTOTUNE.

    It reads ahead if TensorFlow would have added that.
    """
    given = dataset.options()
    if given.autotune != tf.data.Options().autotune or _is_tuned(dataset):
        return dataset
    optimization = given.experimental_optimization
    injected = (optimization.apply_default_optimizations, optimization.inject_prefetch)
    if False not in injected and type(dataset).__name__ != "_PrefetchDataset":
        dataset = dataset.prefetch(READ_AHEAD)
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _is_tuned(dataset: tf.data.Dataset) -> bool:
    """Whether a step of the pipeline is AUTOTUNE, or TensorFlow would make it so."""
    optimization = dataset.options().experimental_optimization
    made = (optimization.apply_default_optimizations, optimization.map_parallelization)
    waiting, seen = [dataset], set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, tf.Graph):
            for operation in current.get_operations():
                for value in operation.inputs:
                    if _is_autotune(value.op.name.rsplit("/")[-1], value, operation.type):
                        return True
            waiting.extend(current._functions.values())
        elif isinstance(current, tf.data.Dataset):
            if type(current).__name__ == "_VariantDataset":
                return True  # Its steps cannot be seen.
            if False not in made and _is_parallelized(current):
                return True
            for name, value in vars(current).items():
                if _is_autotune(name.lstrip("_"), value, type(current).__name__):
                    return True
                waiting.extend(tf.nest.flatten(value))
        elif hasattr(current, "function"):  # Of `map`, `interleave` and the like.
            waiting.append(current.function)
        elif isinstance(getattr(current, "graph", None), tf.Graph) and not tf.is_tensor(current):
            waiting.append(current.graph)
    return False


def _is_autotune(name: str, value: object, step: str) -> bool:
    """Whether a value of a step is AUTOTUNE, by the names that tf.data gives to both."""
    # Readers of files have buffers too, whose sizes are not tuned.
    names = ("num_parallel_calls", "buffer_size") if "Prefetch" in step else "num_parallel_calls"
    return name.startswith(names) and tf.get_static_value(value) == tf.data.AUTOTUNE


def _is_parallelized(dataset: tf.data.Dataset) -> bool:
    """Whether it is a script's `map` without `num_parallel_calls` that TensorFlow spreads.

    With the autotuner on, and only then, TensorFlow runs functions without state as with AUTOTUNE.
    """
    if type(dataset).__name__ != "_MapDataset" or dataset._force_synchronous:
        return False
    function = dataset._map_func
    if (getattr(function._func, "__module__", None) or "").startswith("tensorflow."):
        return False  # Part of another step, and cheap.
    operations = function.function.graph.get_operations()
    return not any(operation.op_def.is_stateful for operation in operations)
