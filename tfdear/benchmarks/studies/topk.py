# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Top-k operators: time over that of reading the vector once, recall, and number of results.

    python tfdear/benchmarks/studies/topk.py [--torch PYTHON] [--json topk.json] [--full]

Recall compares magnitudes, so that any choice among equal elements is right. The vectors alternate
between two draws: what an operator has learned from one call it uses on other data. DGC and the
Gaussian threshold are single-threaded numpy code here.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tfdear
from tfdear.base import names
from tfdear.benchmarks import engine_parts, report

SAMPLINGS = 30


def _normal_except(value):
    def draw(random, d, k):
        x = random.standard_normal(d, "float32")
        x[random.integers(d)] = value
        return x

    return draw


def _few_non_zeros(random, d, k):
    x = np.zeros(d, "float32")
    x[random.integers(d, size=k // 2)] = random.standard_normal(k // 2)
    return x


def _bfloat16(random, d, k):
    return (random.standard_normal(d, "float32").view("uint32") & 0xFFFF0000).view("float32")


def _sorted(random, d, k):
    x = np.sort(np.abs(random.standard_normal(d, "float32")))
    x[1::2] *= -1
    return x


DISTRIBUTIONS = {
    "normal": lambda random, d, k: random.standard_normal(d, "float32"),
    "uniform": lambda random, d, k: random.random(d, "float32") - np.float32(0.5),
    "Laplace": lambda random, d, k: random.laplace(size=d),
    "Student-t(3)": lambda random, d, k: random.standard_t(3, d),
    "Cauchy": lambda random, d, k: random.standard_cauchy(d),
    "log-normal(4)": lambda random, d, k: random.lognormal(0, 4, d),
    "log-normal(8)": lambda random, d, k: random.lognormal(0, 8, d),
    "bfloat16 (ties)": _bfloat16,
    "one outlier, 1e30": _normal_except(1e30),
    "one infinity": _normal_except(np.inf),
    "one NaN": _normal_except(np.nan),
    "k/2 non-zeros": _few_non_zeros,
    "all equal": lambda random, d, k: np.full(d, random.standard_normal(), "float32"),
    "all zero": lambda random, d, k: np.zeros(d, "float32"),
    "denormals": lambda random, d, k: random.standard_normal(d, "float32") * np.float32(1e-40),
    "sorted, alternating": _sorted,
}


class Core:
    """The engine's top-k through ctypes: no TensorFlow around it."""

    def __init__(self, threads):
        self._library = engine_parts.library()
        self._top_k = self._library.tfdear_top_k_create(threads)
        self._values, self._indices = np.empty(0, "float32"), np.empty(0, "uint32")

    def close(self):
        self._library.tfdear_top_k_destroy(self._top_k)

    def _outputs(self, k):
        # Reused: the pages of fresh memory would have to be allocated in every call.
        if self._values.size != k:
            self._values, self._indices = np.empty(k, "float32"), np.empty(k, "uint32")
        return self._values, self._indices

    def select(self, x, k):
        values, indices = self._outputs(k)
        float32 = names.data_type("float32")
        self._library.tfdear_top_k_select(
            self._top_k, float32, _data(x), x.size, k, _data(values), _data(indices)
        )
        return indices

    def select_cold(self, x, k):
        self._library.tfdear_top_k_forget(self._top_k)
        return self.select(x, k)

    def select_with_feedback(self, x, residual, k):
        values, indices = self._outputs(k)
        self._library.tfdear_top_k_select_with_feedback(
            self._top_k, _data(x), _data(residual), x.size, k, _data(values), _data(indices)
        )

    def read(self, x):
        self._library.tfdear_read_pass(self._top_k, _data(x), x.size)

    def add(self, x, y):
        self._library.tfdear_add_pass(self._top_k, _data(x), _data(y), x.size)


def _data(array):
    return array.ctypes.data


def double_sampling(x, k, random):
    """Deep Gradient Compression: the threshold of a sample of 1 %, then at most 10 corrections."""
    magnitudes = np.abs(x)
    sample = magnitudes[random.integers(x.size, size=max(x.size // 100, 1))]
    rank = max(int(sample.size * k / x.size), 1)
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    for _ in range(10):
        count = np.count_nonzero(magnitudes >= threshold)
        if 0.8 * k <= count <= 1.25 * k:
            break
        threshold *= 1.25 if count > 1.25 * k else 0.9
    indices = np.flatnonzero(magnitudes >= threshold)
    if indices.size > 1.25 * k:  # The second sampling: among the elements that passed.
        indices = indices[np.argpartition(magnitudes[indices], -k)[-k:]]
    return indices


def gaussian_threshold(x, k):
    """The k-th magnitude of a normal distribution with the vector's moments, corrected 3 times."""
    deviation = float(np.std(x))
    threshold = deviation * statistics.NormalDist().inv_cdf(1 - k / x.size / 2)
    magnitudes = np.abs(x - np.mean(x))
    for _ in range(3):
        count = np.count_nonzero(magnitudes > threshold)
        if 2 * k / 3 <= count <= 4 * k / 3:
            break
        threshold *= 0.5 if count < 2 * k / 3 else 1.5
    return np.flatnonzero(magnitudes > threshold)[:k]


TORCH = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(int(sys.argv[1]))
for line in sys.stdin:
    task = json.loads(line)
    vectors = [torch.from_numpy(np.load(path)) for path in task["vectors"]]
    def select(x):
        return torch.topk(x.abs(), task["k"], sorted=False)[1]
    select(vectors[0])
    seconds = []
    for i in range(task["repeats"]):
        begin = time.perf_counter()
        indices = select(vectors[i % 2])
        seconds.append(time.perf_counter() - begin)
    np.save(task["indices"], select(vectors[0]).numpy())
    print(json.dumps(seconds), flush=True)
"""


class Torch:
    """torch.topk in the interpreter that has PyTorch."""

    def __init__(self, python, threads):
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self._process = subprocess.Popen(
            [python, "-c", TORCH, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self):
        self._process.communicate(timeout=60)
        self._folder.cleanup()

    def measure(self, vectors, k, repeats):
        paths = [f"{self._folder.name}/{i}.npy" for i in range(2)]
        for path, vector in zip(paths, vectors, strict=True):
            np.save(path, vector)
        indices = f"{self._folder.name}/indices.npy"
        task = {"vectors": paths, "k": k, "repeats": repeats, "indices": indices}
        print(json.dumps(task), file=self._process.stdin, flush=True)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"the process with torch ended with {self._process.wait(60)}")
        return json.loads(answer), np.load(indices)


class Exact:
    """The result of exact selection by its definition, in the order of the bits."""

    def __init__(self, x, k):
        self._x, self._k = x, k
        magnitudes = _magnitudes(x)
        self._kth = np.partition(magnitudes, x.size - k)[x.size - k]
        self._above = np.count_nonzero(magnitudes > self._kth)

    def recall(self, indices):
        selected = _magnitudes(self._x[np.unique(indices)])
        ties = min(np.count_nonzero(selected == self._kth), self._k - self._above)
        return float((np.count_nonzero(selected > self._kth) + ties) / self._k)


def _magnitudes(x):
    return np.minimum(x.view("uint32") & 0x7FFFFFFF, 0x7F800001)


def timed(function: Callable, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


class Case:
    """One distribution, size and k."""

    def __init__(self, name, d, density, core, torch, budget):
        self.k = max(int(d * density), 1)
        random = np.random.default_rng(0)
        self.vectors = [
            np.ascontiguousarray(DISTRIBUTIONS[name](random, d, self.k), "float32")
            for _ in range(2)
        ]
        self.about = {"distribution": name, "d": d, "k": self.k}
        self._core, self._torch, self._budget = core, torch, budget

    def rows(self):
        """Measures every operator; the read pass is timed before each of its calls."""
        core, k, vectors = self._core, self.k, self.vectors
        exact = Exact(vectors[0], k)
        tensors = [tf.constant(vector) for vector in vectors]
        random = np.random.default_rng(1)
        residual = np.zeros_like(vectors[0])
        total = np.zeros_like(vectors[0])
        operators = {
            "tfdear, warm": lambda i: core.select(vectors[i], k),
            "tfdear, cold": lambda i: core.select_cold(vectors[i], k),
            "tfdear.ops.mstopk": lambda i: tfdear.ops.mstopk(tensors[i], k)[1],
            "tf.math.top_k": lambda i: tf.math.top_k(tf.abs(tensors[i]), k, sorted=False)[1],
            "numpy argpartition": lambda i: np.argpartition(np.abs(vectors[i]), -k)[-k:],
            f"MSTopK, published ({SAMPLINGS})": lambda i: tfdear.ops.mstopk(
                tensors[i], k, samplings=SAMPLINGS
            )[1],
            "DGC double sampling": lambda i: double_sampling(vectors[i], k, random),
            "Gaussian threshold": lambda i: gaussian_threshold(vectors[i], k),
        }
        read = self._read_seconds()
        for operator, select in operators.items():
            with np.errstate(all="ignore"):
                indices = np.array(select(0))
                seconds, ratio = self._compare(lambda i: core.read(vectors[i]), select)
            yield self._row(operator, seconds, ratio, exact, indices)
        if self._torch is not None:
            seconds, indices = self._torch.measure(vectors, k, self._repeats(50 * read))
            middle = statistics.median(seconds)
            yield self._row("torch.topk", middle, middle / read, exact, indices)
        for i in range(8):  # Until the residual roughly has its distribution.
            core.select_with_feedback(vectors[i % 2], residual, k)
        seconds, ratio = self._compare(
            lambda i: core.add(vectors[i], total),
            lambda i: core.select_with_feedback(vectors[i], residual, k),
        )
        timing = {"seconds": seconds, "over_two_reads_and_one_write": ratio}
        yield {**self.about, "operator": "tfdear, with feedback", **timing}

    def _repeats(self, seconds):
        return int(min(max(self._budget / max(seconds, 1e-6), 3), 101))

    def _read_seconds(self):
        return statistics.median(timed(self._core.read, self.vectors[i % 2]) for i in range(11))

    def _compare(self, reference, measured):
        """Medians of times and of their ratios, in turns: the machine's speed drifts."""
        timed(measured, 0)
        repeats = self._repeats(timed(measured, 1))
        seconds, ratios = [], []
        for i in range(repeats):
            reference_seconds = timed(reference, i % 2)
            # Alternately on the vector that was read and on the other, as the cache has it.
            seconds.append(timed(measured, (i // 2) % 2))
            ratios.append(seconds[-1] / reference_seconds)
        return statistics.median(seconds), statistics.median(ratios)

    def _row(self, operator, seconds, ratio, exact, indices):
        return {
            **self.about,
            "operator": operator,
            "seconds": seconds,
            "over_read_pass": ratio,
            "recall": exact.recall(indices),
            "returned": int(np.size(indices)),
        }


def cases(full):
    """The whole grid, or a small one of about a minute."""
    if full:
        sizes = [256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20]
        return [(n, d, p) for d in sizes for p in (0.001, 0.01) for n in DISTRIBUTIONS]
    every = [(name, 1 << 20, 0.001) for name in DISTRIBUTIONS]
    return [("normal", 16 << 20, 0.001), ("normal", 16 << 20, 0.01), *every]


def measure_on_gpu():
    """Runs the CUDA kernel's own benchmark, which compares it with CUB's DeviceTopK."""
    program = pathlib.Path(__file__).resolve().parents[3] / "build/top_k_standalone_test"
    skipped = "the CUDA kernel and CUB's DeviceTopK are not measured"
    if not program.exists():
        print(f"{skipped}: {program} is not there. With nvcc: make cuda")
        return []
    result = subprocess.run([program, "--benchmark"], stdout=subprocess.PIPE, text=True)
    if result.returncode == 77:
        print(f"{skipped}: no GPU")
        return []
    result.check_returncode()
    print(result.stdout)
    return [{"operator": "CUDA", **json.loads(result.stdout)}]


def print_row(row):
    if "recall" in row:
        rest = f"{row['over_read_pass']:9.2f} {row['recall']:8.4f} {row['returned']:10d}"
    else:
        rest = f"{row['over_two_reads_and_one_write']:9.2f} times two reads and one write"
    print(f"  {row['operator']:26s} {1e3 * row['seconds']:10.3f} ms {rest}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="all sizes up to 128 M: an hour")
    parser.add_argument("--only", help="distributions whose names contain this")
    parser.add_argument("--size", type=int, help="only this many elements")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument(
        "--budget", type=float, default=0.2, help="seconds per figure (default 0.2)"
    )
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--json", help="file to write the numbers to")
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    core = Core(arguments.threads)
    torch = Torch(arguments.torch, arguments.threads) if arguments.torch else None
    if torch is None:
        print("torch.topk is not measured: --torch names an interpreter that has PyTorch")
    rows = measure_on_gpu()
    for name, d, density in cases(arguments.full):
        if arguments.only and arguments.only not in name or arguments.size not in (None, d):
            continue
        case = Case(name, d, density, core, torch, arguments.budget)
        print(f"{name}, d = {d}, k = {case.k}")
        print(f"  {'':26s} {'time':>13s} {'/ read':>9s} {'recall':>8s} {'returned':>10s}")
        for row in case.rows():
            print_row(row)
            rows.append(row)
    if arguments.json:
        report.write(arguments.json, rows)
    core.close()
    if torch is not None:
        torch.close()


if __name__ == "__main__":
    main()
