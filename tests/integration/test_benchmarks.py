# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, their tables and files are complete, and their volumes are right."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tfdear.benchmarks import observed_files
from tfdear.planning.table import Table
from tfdear.planning.trace import Layer, Trace

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root"),
]


def benchmark(tmp_path: pathlib.Path, *arguments: str, timeout: float = 200) -> tuple[str, dict]:
    """Runs a benchmark; returns what it printed and what it wrote."""
    out = tmp_path / "numbers.json"
    done = subprocess.run(
        [sys.executable, "-m", "tfdear", "benchmark", *arguments, "--json", str(out)],
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Machine: " in done.stdout
    numbers = json.loads(out.read_text())
    assert numbers["machine"]["cores"] >= 1
    assert 0 <= numbers["machine"]["stolen"] < 1
    return done.stdout, numbers


@pytest.fixture
def trace_file(tmp_path):
    layers = tuple(Layer(f"layer{i}", 4096 * (i + 1), 1e-3, 2e-3) for i in range(12))
    path = tmp_path / "twelve.json"
    Trace("twelve layers", layers).save(path)
    return str(path)


@pytest.mark.timeout(240)
def test_collectives(tmp_path):
    printed, numbers = benchmark(
        tmp_path, "collectives", "--rate", "200mbit", "--sizes", "512K", "--repeats", "1",
        "--torch-python", "/nonexistent/python",
    )  # fmt: skip
    # A peer that is not there is said to be missing.
    assert "torch: not there" in printed
    assert "horovod: not there" in printed
    rows = {row["collective"]: row for row in numbers["rows"]}
    assert set(rows) == {"reduce_scatter", "all_gather", "all_reduce", "pair"}
    for row in rows.values():
        assert row["framework"] == "tfdear"
        assert 1.0 <= row["wire"][0] <= 1.1, row
        assert row["median"] > 0
    assert numbers["limit_bytes_per_second"] == pytest.approx(0.956 * 25e6, rel=1e-3)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_collectives_on_one_node(tmp_path):
    printed, numbers = benchmark(
        tmp_path, "collectives", "--one-node", "--sizes", "64K", "--repeats", "1"
    )
    frameworks = {row["framework"] for row in numbers["rows"]}
    assert frameworks == {"tfdear", "tfdear, without shared memory"}
    # Nothing leaves the node.
    assert all(row["wire"] == [] and row["median"] > 0 for row in numbers["rows"])
    assert "times as fast as tfdear, without shared memory" in printed


@pytest.mark.long
@pytest.mark.timeout(240)
def test_replay(tmp_path, trace_file):
    printed, numbers = benchmark(
        tmp_path, "replay", "--rate", "none", "--trace", trace_file, "--ratio", "1,2",
        "--planners", "FixedSize(65536)", "Planned", "--repeats", "2", "--iterations", "1",
    )  # fmt: skip
    assert numbers["tensors"] == 12
    assert [result["ratio"] for result in numbers["ratios"]] == [1, 2]
    for result in numbers["ratios"]:
        computation = result["forward"] + result["backward"]
        assert result["communication"] / computation == pytest.approx(result["ratio"])
        cases = {(case["schedule"], case["planner"]) for case in result["cases"]}
        schedules = ("dear", "dear_barrier", "wfbp", "sequential", "bytescheduler")
        assert cases == {(s, p) for s in schedules for p in ("FixedSize(65536)", "Planned")}
        for case in result["cases"]:
            # All of the gradients went over the wire once, in whatever order, and no more.
            assert 1.0 <= case["wire"] <= 1.15, case
            # Sleep is no shorter than asked for.
            assert min(case["seconds"]) >= 0.99 * computation
            check_wall(case)
    assert "wall s" in printed
    assert "dear is as fast as" in printed


def check_wall(case):
    """The real clock has all that the device's has, in every turn of one iteration."""
    for wall, device in zip(case["wall"], case["seconds"], strict=True):
        # The device's last sleep may be left out if it is shorter than a sleep can be.
        assert wall >= device - 1e-4, case


@pytest.mark.timeout(240)
@pytest.mark.skipif(
    "TFDEAR_TORCH_PYTHON" not in os.environ, reason="TFDEAR_TORCH_PYTHON names no PyTorch"
)
def test_replay_beside_torch(tmp_path, trace_file):
    printed, numbers = benchmark(
        tmp_path, "replay", "--rate", "none", "--trace", trace_file, "--ratio", "1",
        "--schedules", "dear", "--planners", "Planned", "--repeats", "2", "--iterations", "1",
        "--torch-python", os.environ["TFDEAR_TORCH_PYTHON"],
    )  # fmt: skip
    (result,) = numbers["ratios"]
    ours, theirs = result["cases"]
    assert (ours["schedule"], theirs["schedule"]) == ("dear", "torch DDP")
    computation = result["forward"] + result["backward"]
    for case in (ours, theirs):
        assert min(case["seconds"]) >= 0.99 * computation
        check_wall(case)
    assert "torch DDP" in printed


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "schedules", [("dear",), pytest.param(("dear", "wfbp"), marks=pytest.mark.long)]
)
def test_fusion(tmp_path, trace_file, schedules):
    _, numbers = benchmark(
        tmp_path, "fusion", "--rate", "none", "--trace", trace_file, "--repeats", "1",
        "--schedules", *schedules,
        "--planners", "NoFusion", "SingleBucket", "MGWFBP", "Planned",
        "GridSearch(10000, 200000, trials=3, steps_per_trial=2)",
    )  # fmt: skip
    results = {(r["schedule"], r["planner"]): r for r in numbers["results"]}
    assert len(results) == 5 * len(schedules)
    for schedule in schedules:
        assert results[schedule, "NoFusion"]["buckets"] == 12
        assert results[schedule, "SingleBucket"]["buckets"] == 1
        search = next(r for (s, p), r in results.items() if s == schedule and "Grid" in p)
        assert len(search["trials"]) == 3
        assert len({size for size, _ in search["trials"]}) == 3


@pytest.mark.long
@pytest.mark.timeout(240)
def test_search(tmp_path):
    random = "RandomSearch(trials=2, steps_per_trial=1, seed={seed})"
    printed, numbers = benchmark(
        tmp_path, "search", "--rate", "none", "--models", "perceptron", "--seeds", "2",
        "--grid", "2", "--repeats", "2", "--steps", "1",
        "--searches", random, "GridSearch(trials=3, steps_per_trial=1)",
    )  # fmt: skip
    assert "perceptron, seed 1: 25 MiB " in printed
    (model,) = numbers["models"]
    sizes = {size for size, _ in model["grid"]}
    assert sizes == {1_000_000, 100_000_000, 25 << 20}
    assert model["best"] in sizes
    assert len(model["start_over_best"]) == 2
    grids = model["searches"]["GridSearch(trials=3, steps_per_trial=1)"]
    for seed, found in enumerate(grids):
        assert found["seed"] == seed
        assert [size for size, _ in found["trials"]] == [1_000_000, 10_000_000, 100_000_000]
        assert found["size"] in (1_000_000, 10_000_000, 100_000_000)
        assert found["ratio"] > 0
    first, second = model["searches"][random]
    assert {size for size, _ in first["trials"]}.isdisjoint(size for size, _ in second["trials"])


@pytest.mark.timeout(120)
def test_start(tmp_path):
    printed, numbers = benchmark(tmp_path, "start", "--worlds", "4,16", timeout=100)
    four, sixteen = numbers["jobs"]
    # A sum of 4 ranks goes straight to all, one of 16 in four rounds; now and then the kernel sends
    # a message again.
    assert 3.0 <= four["messages"] < 3.5
    assert 4.0 <= sixteen["messages"] < 4.5
    assert (four["connections"], sixteen["connections"]) == (3, 4)
    # What a rank costs rank 0 is the same in a larger job.
    assert sixteen["bytes"] / 16 < 1.25 * four["bytes"] / 4
    assert "4096 ranks, continued in a line" in printed


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_overlap(tmp_path):
    printed, numbers = benchmark(
        tmp_path, "overlap", "--model", "vgg-16", "--rate", "none", "--batch-size", "1",
        "--repeats", "1", "--steps", "1", "--torch-python", "/nonexistent/python", timeout=380,
    )  # fmt: skip
    (case,) = numbers["cases"]
    assert case["name"] == "tfdear dear, default"
    assert 1.0 <= case["wire"][0] <= 1.1
    assert "MultiWorkerMirroredStrategy: not there (--mirrored-python names no Python)" in printed


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["collectives", "--sizes", "4X"], "sizes are written like"),
        (["collectives", "--sizes", "0"], "sizes are written like"),
        (["collectives", "--rate", "fast"], "a rate is written like"),
        (["collectives", "--json", "nowhere/x.json"], "nowhere/x.json"),
        (["collectives", "--ranks", "1"], "--ranks must be at least 2"),
        (["overlap", "--ranks", "1", "--one-node"], "--ranks must be at least 2"),
        (["start", "--worlds", "4,1"], "a job has at least 2 ranks here"),
        (["replay", "--ratio", "0.5,0"], "expected a number above 0. Received: '0'"),
        (["replay", "--trace", "no-such-trace"], "no trace 'no-such-trace'"),
        (["fusion", "--planners", "NoSuchPlanner"], "is not a planner"),
        (["search", "--searches", "NoSuchPlanner"], "is not a planner"),
        (["search", "--searches", "Planned"], "--searches takes planners that search"),
        (["search", "--noise", "-0.1"], "--noise must be from 0 to 1"),
        (["embeddings", "sweep", "--sparsity", "100"], "--sparsity must be from 0 to below 100"),
        (["embeddings", "replay", "--trace", "resnet-50"], "has no tables"),
        (["embeddings", "replay", "--scale", "-1"], "--scale must be 0 or more"),
        (["embeddings", "replay", "--counts", "5,6,1"], "none larger than the one before"),
        (["embeddings", "train", "--words", "0"], "--words must be at least 1"),
        (["data", "--sizes", "12KB,small"], "`--sizes` must be a number of bytes"),
        (["data", "--size", "8"], "--size must be at least 16 bytes"),
        (["data", "--nodes", "2,1"], "--nodes takes whole numbers from 2"),
        (["data", "--source-rate", "fast"], "a rate is written like"),
    ],
)
def test_wrong_arguments_are_refused_in_words(arguments, words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tfdear", "benchmark", *arguments],
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "others", [(), pytest.param(("dense tree (TreeAR)",), marks=pytest.mark.long)]
)
def test_sparse(tmp_path, others):
    printed, numbers = benchmark(
        tmp_path, "sparse", "--rate", "100mbit", "--elements", "1000000", "--repeats", "2",
        "--sums", "dense hierarchical", *others, "HiTopKComm",
    )  # fmt: skip
    assert "step / parts" in printed
    dense, *trees, sparse = numbers["rows"]
    assert len(trees) == len(others)
    # What leaves a node, in pairs of eight bytes: (m - 1) k with m = 2 nodes. Coded it is 0.545 of
    # that, headers included; a busy machine acknowledges more often.
    pairs = 8 * 0.01 * numbers["elements"]
    assert sparse["sent"] <= 0.57 * pairs
    assert dense["sent"] >= 4 * numbers["elements"]
    for tree in trees:
        # The tree's root gets the sum of the other node and sends that of both.
        assert tree["sent"] >= 4 * numbers["elements"]
    assert all(row["predicted"] is None for row in (dense, *trees))
    phases = {"intra_reduce_scatter", "sparse_exchange", "intra_all_gather"}
    assert set(sparse["phases"][0]) == {"copy in", *phases, "copy out"}
    # Nine parts of a sum, each measured in every turn.
    assert [len(parts) for parts in sparse["parts"]] == [9, 9]
    assert all(seconds > 0 for parts in sparse["parts"] for seconds in parts.values())
    for row in numbers["rows"]:
        assert len(row["steps"]) == 2
        assert all(s >= e for s, e in zip(row["steps"], row["exchanges"], strict=True)), row


@pytest.mark.long
@pytest.mark.timeout(420)
def test_training(tmp_path):
    printed, numbers = benchmark(
        tmp_path, "training", "--task", "transformer", "--rates", "100mbit", "--steps", "1",
        "--repeats", "1", "--batch-size", "2", "--learning-steps", "2",
        "--sums", "MSTopK(density=0.01)", timeout=400,
    )  # fmt: skip
    assert "perplexity" in printed
    (row,) = numbers["rows"]
    # The warm-up begins at five times the density. Dense, a node sends as much as the gradients.
    assert 0 < row["sent"]["100mbit"] < 0.1 * row["gradient_bytes"]
    assert len(row["seconds"]["100mbit"]) == 1
    assert row["learned"] > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("training", "--sums", "dense", "MSTopK(density=2)"), "density"),
        (("embeddings", "sweep", "--methods", "horovod"), "one of tfdear's.*Received: horovod"),
    ],
)
def test_refuses_what_cannot_be_measured(arguments, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tfdear", "benchmark", *arguments],
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.timeout(400)
def test_embeddings_sweep(tmp_path):
    methods = (
        *("dense", "byteps", "all_gather", "block_sparse", "all_to_all"),
        *("parameter_servers_1", "parameter_servers_2", "parameter_servers"),
    )
    printed, numbers = benchmark(
        tmp_path, "embeddings", "sweep", "--rate", "none", "--rows", "1000", "--columns", "512",
        "--sparsity", "0,90", "--repeats", "1", "--iterations", "2", "--methods", *methods,
        "horovod", "--horovod-python", "/nonexistent/python", timeout=380,
    )  # fmt: skip
    assert "horovod: not there; /nonexistent/python cannot run it" in printed
    assert "chosen / best" in printed
    assert "BytePS-like" in numbers["methods"]["byteps"]
    whole, sparse = numbers["points"]
    assert (whole["used"], sparse["used"]) == (1000, 100)
    row = 4 * 512
    for point in numbers["points"]:
        sent = {result["method"]: result["sent"] for result in point["results"]}
        used = point["used"]
        # Each rank's half of the sums, twice; each rank's rows; vectors and gradients of halves.
        least = {
            "dense": 1000 * row,
            "byteps": 1000 * row,
            "all_gather": used * (row + 8),
            "parameter_servers_1": used * row,
            "parameter_servers_2": used * row,
            "parameter_servers": used * row,
            "all_to_all": used * (row + 4),
        }
        for name, nbytes in least.items():
            # Servers have the ids that are theirs, not the same number of them.
            share = 0.8 if name in ("parameter_servers_2", "parameter_servers") else 0.999
            assert share * nbytes <= sent[name] <= 1.1 * nbytes + 60_000, name
        for result in point["results"]:
            assert result["communication"] > 0, result


_GATHERED = ("all_gather_raw", "all_gather")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "methods",
    # test_embeddings_sweep has the others, too.
    [
        (*_GATHERED, "parameter_servers"),
        pytest.param(
            ("byteps", *_GATHERED, "parameter_servers", "all_to_all"), marks=pytest.mark.long
        ),
    ],
)
def test_embeddings_replay(tmp_path, methods):
    layers = [Layer(name, 4 * 500 * 32, 1e-3, 2e-3) for name in ("first", "second")]
    for place in (1, 2, 4):
        layers.insert(place, Layer(f"dense{place}", 40_000, 1e-3, 2e-3))
    tables = tuple(Table(name, 500, 32, 120, 80, 40, 4) for name in ("first", "second"))
    path = tmp_path / "tables.json"
    Trace("two tables", tuple(layers), tables).save(path)
    printed, numbers = benchmark(
        tmp_path, "embeddings", "replay", "--rate", "200mbit", "--trace", str(path), "--scale", "1",
        "--repeats", "1", "--iterations", "2", "--methods", *methods, "horovod", timeout=380,
    )  # fmt: skip
    assert "horovod: not there (--horovod-python names no Python)" in printed
    assert numbers["dense_bytes"] == 3 * 40_000
    results = {result["method"]: result for result in numbers["results"]}
    assert tuple(results) == methods
    for name, result in results.items():
        # Sleep is no shorter than asked for; a step sends what it must, and little more.
        assert result["median"] >= 0.99 * numbers["computation"]
        assert 0.9 * result["least_bytes"] <= result["sent"], name
        assert result["sent"] <= 1.1 * result["least_bytes"] + 60_000, name
        assert result["predicted"]["16"] > 0
    raw, coalesced = (results[name]["least_bytes"] for name in ("all_gather_raw", "all_gather"))
    assert raw - coalesced == 2 * (120 - 80) * (4 * 32 + 8)
    assert "tokens/s, simulated" in printed


@pytest.mark.long
@pytest.mark.timeout(400)
def test_embeddings_train(tmp_path):
    printed, numbers = benchmark(
        tmp_path, "embeddings", "train", "--rate", "none", "--words", "3000", "--columns", "32",
        "--units", "8", "--samples", "20", "--windows", "3", "--length", "5", "--repeats", "1",
        "--iterations", "1", timeout=380,
    )  # fmt: skip
    assert "horovod: not there (--horovod-python names no Python)" in printed
    rows = {row["name"]: row for row in numbers["rows"]}
    assert tuple(rows) == ("sharded", "plain", "densified")
    # Gradients of the tables as tensors, or rows of some of the words.
    tables = 2 * 4 * 3000 * 33
    assert rows["densified"]["sent"] > 0.9 * tables / 2
    assert rows["plain"]["sent"] < 0.3 * tables and rows["sharded"]["sent"] < 0.3 * tables
    assert all(row["median"] > 0 and row["memory"] > 0 for row in rows.values())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_data(tmp_path):
    printed, numbers = benchmark(
        tmp_path, "data", "--cases", "local", "remote", "source", "--sizes", "2KB", "--size", "4KB",
        "--batch-size", "8", "--nodes", "2", "--rates", "200mbit", "--repeats", "2",
        "--local-bytes", "200KB", "--remote-bytes", "2MB", "--source-bytes", "1MB",
        "--source-rate", "50mbit", "--grain-python", "/nonexistent/python", timeout=280,
    )  # fmt: skip
    assert "Grain: not there; /nonexistent/python cannot run it" in printed
    figures = {(figure["case"], figure["what"]): figure for figure in numbers["figures"]}
    rows = {row["case"]: row for row in numbers["rows"]}
    local, remote = rows["local, 2 KB"], rows["remote, 2 nodes, 200mbit"]
    assert len(local["rates"]) == 5
    assert all(rate > 0 for rates in local["rates"].values() for rate in rates)
    # Half of the examples that a rank reads are on the other node, more or less.
    assert 0.4 < remote["crossing"] / 2_000_000 < 0.6
    # Of small examples, what asks for them counts as well.
    assert 1.0 <= remote["sent"] / remote["crossing"] <= 1.15
    for what in ("taken from others / 0.956 of the line", "DataCache / tf.data service"):
        assert figures["remote, 2 nodes, 200mbit", what]["value"] > 0
    if observed_files.missing() is None:
        source = rows["source, 2 ranks, 50mbit"]
        for name, first, later in (("DataCache", 1, 0), ("cache()", 2, 0), ("plain", 2, 2)):
            # The records' places are looked for, too: by 13 bytes of each.
            assert all(first <= turn["bytes"] <= first + 0.01 for turn in source["first"][name])
            assert [turn["bytes"] for turn in source["later"][name]] == [later] * 2
        assert figures["source, 2 ranks, 50mbit", "bytes of the first epoch / D"]["holds"]
    else:
        assert "source: not there" in printed


@pytest.mark.long
@pytest.mark.timeout(240)
def test_memory_of_data(tmp_path):
    printed, numbers = benchmark(
        tmp_path, "data", "--cases", "memory", "--size", "20KB", "--memory-bytes", "80MB",
        "--batch-size", "16", "--repeats", "1",
    )  # fmt: skip
    on_node, of_each, of_two = numbers["rows"]
    # All ranks have a cache of their own; those of one DataCache share one, of two nodes a half.
    assert of_each["taken"][0] >= 3.5 * of_each["bytes"]
    assert on_node["taken"][0] <= 2 * on_node["bytes"]
    assert of_two["bytes"] == on_node["bytes"] // 2 and "each of 2 nodes" in of_two["case"]
    assert of_two["taken"][0] <= on_node["taken"][0]
