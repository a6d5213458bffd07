# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The time of the norms of LARS and LAMB: fused in one pass, and shared by the ranks.

First table: the fused kernel over all layers of a model on one core, over the time to read the same
bytes once (`memcmp` of two equal arrays). Second table: processor time of the norms per rank, over
1/P of that of one rank: for the shards of P ranks one after another; for the same shards in P
processes at once, which share this machine's memory; the same after each has read half a gigabyte
of other data; and in real steps of P ranks, from their event record. Before that table, the time of
P processes at once on arrays that stay in their caches, over that of one: they then share no memory
bandwidth. With --json FILE, writes the numbers.
"""

import argparse
import ctypes
import json
import math
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from tfdear.benchmarks import engine_parts, report

_STEPS = 6
_DEADLINE = 120.0
_ARRAYS = {"lars": 2, "lamb": 4}
_WORLD_SIZES = range(1, 5)
_OTHER_DATA_BYTES = 1 << 29
# Fits into the cache of a core.
_CACHED_ELEMENTS = 1 << 14
_CACHED_PASSES = 1000


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of the trainable variables of ResNet-50 with 1000 classes."""
    shapes: list[tuple[int, ...]] = [(7, 7, 3, 64), (64,), (64,)]
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            kernels = [(1, 1, channels, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            if block == 0:
                kernels.append((1, 1, channels, 4 * width))
            for kernel in kernels:
                shapes += [kernel, (kernel[-1],), (kernel[-1],)]
            channels = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


def transformer(
    width: int = 512, inner: int = 2048, vocabulary: int = 37000
) -> list[tuple[int, ...]]:
    """Shapes of the Transformer base model, 6 layers on either side."""
    attention = [(width, width), (width,)] * 4 + [(width,), (width,)]
    dense = [(width, inner), (inner,), (inner, width), (width,), (width,), (width,)]
    return [(vocabulary, width), *(attention + dense) * 6, *(attention * 2 + dense) * 6]


MODELS = {"resnet-50": resnet50, "transformer": transformer}


def kernel(model: str, kind: str, repeats: int = 15) -> dict[str, float]:
    """Seconds of the kernel over all layers, and of reading the same number of bytes once."""
    layers, offsets = layers_of(model, kind)
    total = int(offsets[-1]) * 4 * _ARRAYS[kind]
    left = np.zeros(total // 2, np.uint8)
    right = np.zeros_like(left)
    left[:] = right[:] = 1
    compare = ctypes.CDLL(None).memcmp
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (left, right)]
    seconds: dict[str, list[float]] = {"norms": [], "read": []}
    shards = {size: shards_of(layers, offsets, size) for size in _WORLD_SIZES}
    seconds_of_rank: dict[tuple[int, int], list[float]] = {}
    for _ in range(repeats):
        start = time.perf_counter()
        compare(*pointers, ctypes.c_size_t(left.nbytes))
        seconds["read"].append(time.perf_counter() - start)
        start = time.perf_counter()
        sums_of_squares(kind, layers)
        seconds["norms"].append(time.perf_counter() - start)
        for size, parts in shards.items():
            for rank, part in enumerate(parts):
                cpu = time.thread_time()
                sums_of_squares(kind, part)
                taken = time.thread_time() - cpu
                seconds_of_rank.setdefault((size, rank), []).append(taken)
    result = {name: statistics.median(values) for name, values in seconds.items()}
    for size in shards:
        # The slowest rank counts.
        medians = [statistics.median(seconds_of_rank[size, rank]) for rank in range(size)]
        result[f"cpu_{size}"] = max(medians)
    for size, parts in shards.items():
        result[f"at_once_{size}"] = at_once(kind, parts, 7, cold=False)
        result[f"cold_{size}"] = at_once(kind, parts, 7, cold=True)
    return result


def sums_of_squares(kind: str, layers: list[list[np.ndarray]]) -> None:
    """Adds up what the norms of layers are made of, as the engine does, in the calling thread.

    Of every layer that is: gradient, weights and, for LAMB, mean and square of the gradients,
    contiguous and of float32.
    """
    arrays = [array for layer in layers for array in layer]
    sums = np.empty((len(layers), 2))
    engine_parts.library().tfdear_sums_of_squares(
        int(kind == "lamb"),
        (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays]),
        (ctypes.c_int64 * len(layers))(*[layer[0].size for layer in layers]),
        len(layers),
        sums.ctypes.data_as(ctypes.c_void_p),
    )


def at_once(kind: str, parts: list, repeats: int, cold: bool, passes: int = 1) -> float:
    """Mean processor time of the norms of a part; all parts at once, each in its own process.

    In a measurement each process computes its norms `passes` times, if `cold` after reading other
    data; the median of the `repeats` counts.
    """
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(len(parts))
    results = fork.SimpleQueue()
    other_data = np.ones(_OTHER_DATA_BYTES // 8) if cold else np.ones(1)

    def work(part) -> None:
        seconds = []
        for _ in range(repeats + 1):
            other_data.max()
            barrier.wait(_DEADLINE)
            cpu = time.thread_time()
            for _ in range(passes):
                sums_of_squares(kind, part)
            seconds.append(time.thread_time() - cpu)
        results.put(statistics.median(seconds[1:]))

    processes = [fork.Process(target=work, args=(part,)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_DEADLINE)
        if process.exitcode != 0:
            raise RuntimeError(f"a process ended with {process.exitcode}; its error is above")
    return statistics.fmean(results.get() for _ in parts)


def layers_of(model: str, kind: str) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """The arrays of every layer, and the offsets of the layers in them.

    The layers are contiguous in each array, as in buckets and variables.
    """
    sizes = [math.prod(shape) for shape in MODELS[model]()]
    offsets = np.cumsum([0, *sizes])
    random = np.random.default_rng(0)
    arrays = [random.random(int(offsets[-1]), np.float32) for _ in range(_ARRAYS[kind])]
    layers = [
        [array[begin:end] for array in arrays]
        for begin, end in zip(offsets, offsets[1:], strict=False)
    ]
    return layers, offsets


def shards_of(layers, offsets, world_size: int) -> list[list[list[np.ndarray]]]:
    """The pieces of layers in every rank's shard of one bucket of all layers."""
    total = int(offsets[-1])
    shards = []
    for rank in range(world_size):
        low, high = rank * total // world_size, (rank + 1) * total // world_size
        pieces = []
        for layer, begin, end in zip(layers, offsets, offsets[1:], strict=False):
            first, last = max(low, begin) - begin, min(high, end) - begin
            if first < last:
                pieces.append([array[first:last] for array in layer])
        shards.append(pieces)
    return shards


def rank_job(model: str, kind: str, parallel: bool, directory: pathlib.Path) -> None:
    """One rank: runs steps with known gradients and writes their times."""
    import keras
    import tensorflow as tf

    import tfdear

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        variables = [keras.Variable(np.full(shape, 0.5, "float32")) for shape in MODELS[model]()]
        make = tfdear.optimizers.LARS if kind == "lars" else tfdear.optimizers.LAMB
        optimizer = make(0.01, weight_decay=1e-4, parallel=parallel)
        optimizer.build(variables)

    @tf.function
    def step():
        gradients = [tf.fill(variable.shape, 1e-3) for variable in variables]
        strategy.run(lambda: optimizer.apply(gradients, variables))

    step()
    strategy.synchronize()
    strategy.events()  # Discards those of the first step, which traces.
    cpu = time.process_time()
    for _ in range(_STEPS):
        step()
    strategy.synchronize()
    cpu = time.process_time() - cpu
    norms = [event for event in strategy.events() if event.kind == "norms"]
    result = {
        "cpu": sum(event.computation for event in norms) / _STEPS,
        "bytes": sum(event.detail for event in norms) / _STEPS,
        "process_cpu": cpu / _STEPS,
    }
    (directory / f"{strategy.rank}.json").write_text(json.dumps(result))


def ranks(model: str, kind: str, world_size: int, parallel: bool) -> list[dict[str, float]]:
    """Runs `rank_job` on that many ranks of this machine and returns what each wrote."""
    with tempfile.TemporaryDirectory(prefix="tfdear-norms-") as directory:
        command = [sys.executable, "-m", "tfdear", "run", "-n", str(world_size), "--show", "none"]
        command += [__file__, "--rank-job", model, kind, str(int(parallel)), directory]
        subprocess.run(command, check=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
        files = sorted(pathlib.Path(directory).glob("*.json"))
        return [json.loads(file.read_text()) for file in files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=_ARRAYS, default=list(_ARRAYS))
    parser.add_argument("--world-sizes", nargs="*", type=int, default=[2, 3, 4])
    parser.add_argument("--json", help="file to write the numbers to")
    parser.add_argument("--rank-job", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_job:
        model, kind, parallel, directory = arguments.rank_job
        rank_job(model, kind, bool(int(parallel)), pathlib.Path(directory))
        return
    rows: list[dict[str, Any]] = []
    print(f"{'model':12s} {'norms':5s} {'MB':>6s} {'kernel':>9s} {'one read':>9s} {'ratio':>6s}")
    for model in arguments.models:
        for kind in arguments.kinds:
            seconds = kernel(model, kind)
            size = 4e-6 * _ARRAYS[kind] * sum(math.prod(shape) for shape in MODELS[model]())
            rows.append({"model": model, "kind": kind, "megabytes": size, **seconds, "ranks": {}})
            print(
                f"{model:12s} {kind:5s} {size:6.0f} {1e3 * seconds['norms']:6.1f} ms "
                f"{1e3 * seconds['read']:6.1f} ms {seconds['norms'] / seconds['read']:6.2f}",
                flush=True,
            )
    for kind in arguments.kinds:
        small = [[[np.ones(_CACHED_ELEMENTS, np.float32)] * _ARRAYS[kind]]]
        times = [at_once(kind, small * n, 5, False, _CACHED_PASSES) for n in _WORLD_SIZES]
        ratios = ", ".join(f"{time / times[0]:.2f}" for time in times)
        print(f"{kind} in the cache, 1 to {len(times)} processes at once: {ratios}", flush=True)
    print(
        f"\n{'model':12s} {'norms':5s} {'ranks':>5s} {'shard':>9s} {'over 1/P':>9s} "
        f"{'at once':>9s} {'cold':>9s} {'in steps':>9s} {'over cold':>9s}"
    )
    for row in rows:
        for world_size in _WORLD_SIZES:
            whole = row["cpu_1"] / world_size
            cold = row[f"cold_{world_size}"]
            cells = f"{1e3 * row[f'cpu_{world_size}']:6.2f} ms "
            for cpu in (row[f"cpu_{world_size}"], row[f"at_once_{world_size}"], cold):
                cells += f"{cpu / whole:9.2f} "
            if world_size in arguments.world_sizes:
                result = ranks(row["model"], row["kind"], world_size, True)
                row["ranks"][world_size] = result
                cpu = statistics.mean(each["cpu"] for each in result)
                cells += f"{cpu / whole:9.2f} {cpu / cold:9.2f}"
            print(f"{row['model']:12s} {row['kind']:5s} {world_size:5d} {cells}", flush=True)
    if arguments.json:
        report.write(arguments.json, rows)


if __name__ == "__main__":
    main()
