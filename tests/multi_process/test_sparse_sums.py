# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Compressed sums of real ranks are those of a model of Algorithm 2, bit for bit."""

import pathlib

import numpy as np
import pytest
import sparse_sums_job as job
from ranks import Ranks

from tfdear.engine import plan as engine_plan

_JOBS = pathlib.Path(__file__).parent / "jobs"

LONG = pytest.mark.long
pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]


def run(directory, world_size, nodes, compression, **variables):
    """What each rank stored."""

    def environment(rank):
        return {
            "TFDEAR_NODE_RANK": str(rank * nodes // world_size),
            "TFDEAR_COMPRESSION": compression,
            "TFDEAR_BUCKET_BYTES": "16384",
            **variables,
        }

    directory.mkdir(exist_ok=True)
    script = str(_JOBS / "sparse_sums_job.py")
    with Ranks(world_size, script, environment, (str(directory),)) as ranks:
        codes = ranks.wait(timeout=150)
        outputs = "\n".join(ranks.output(rank)[-4000:] for rank in range(world_size))
        assert codes == [0] * world_size, outputs
    return [np.load(directory / f"rank_{rank}.npz") for rank in range(world_size)]


def boundaries(count, parts):
    return [count * part // parts for part in range(parts + 1)]


def largest(x, k):
    """Indices of the k largest by magnitude; of equal ones the first."""
    return np.argsort(-np.abs(x), kind="stable")[:k]


class Exchange:
    """All members of a sparse exchange of one vector: Algorithm 2, lines 5 to 20."""

    def __init__(self, members, feedback=True, momentum=0.0, reduce=False):
        self.members, self.feedback, self.reduce = members, feedback, reduce
        self.momentum = np.float32(momentum)
        self.residual = None

    def step(self, inputs, k):
        count = len(inputs[0])
        if self.residual is None:
            self.residual = np.zeros((self.members, count), np.float32)
            self.velocity = np.zeros((self.members, count), np.float32)
        total = np.zeros(count, np.float32)
        edges = boundaries(count, self.members) if self.reduce else [0, count]
        shares = [
            min(end - begin, max(1, high - low))
            for begin, end, low, high in zip(
                edges, edges[1:], *offsets(k, len(edges) - 1), strict=False
            )
        ]
        for member, x in enumerate(inputs):
            if self.feedback:
                if self.momentum:
                    self.velocity[member] = self.momentum * self.velocity[member] + x
                    x = self.velocity[member]
                self.residual[member] = self.residual[member] + x
                x = self.residual[member]
            for begin, end, share in zip(edges, edges[1:], shares, strict=False):
                chosen = begin + largest(x[begin:end], share)
                total[chosen] += x[chosen]
                self.residual[member][chosen] = 0
                self.velocity[member][chosen] = 0
        if not self.reduce:
            return total
        result = np.zeros(count, np.float32)
        for owner, (begin, end, share) in enumerate(zip(edges, edges[1:], shares, strict=False)):
            region = total[begin:end]
            chosen = largest(region, share)
            result[begin + chosen] = region[chosen]
            region[chosen] = 0
            if self.feedback:
                self.residual[owner][begin:end] += region
        return result


def offsets(k, parts):
    edges = boundaries(k, parts)
    return edges[:-1], edges[1:]


class Model:
    """A job of `nodes` with `local` ranks each, under a plan of the engine."""

    def __init__(self, plan, nodes, local, density, **options):
        self.plan, self.nodes, self.local, self.density = plan, nodes, local, density
        self.exchanges = [[Exchange(nodes, **options) for _ in range(local)] for _ in plan.buckets]
        self.compressed = {step.bucket for step in plan.steps if step.phase.startswith("sparse")}

    def step(self, number):
        """The sums of all tensors."""
        sums = {}
        for bucket, tensors in enumerate(self.plan.buckets):
            # Slots begin at multiples of 64 bytes.
            slots = np.cumsum([0] + [-(-job.COUNTS[t] // 16) * 16 for t in tensors])
            of_rank = np.zeros((self.nodes * self.local, slots[-1]), np.float32)
            for rank, buffer in enumerate(of_rank):
                for tensor, slot in zip(tensors, slots, strict=False):
                    buffer[slot : slot + job.COUNTS[tensor]] = job.gradient(rank, number, tensor)
            of_node = of_rank.reshape(self.nodes, self.local, -1)
            node_sums = of_node[:, 0].copy()
            for local in range(1, self.local):
                node_sums += of_node[:, local]
            total = np.empty(slots[-1], np.float32)
            edges = boundaries(slots[-1], self.local)
            for shard, (begin, end) in enumerate(zip(edges, edges[1:], strict=False)):
                inputs = node_sums[:, begin:end]
                if bucket in self.compressed:
                    k = max(1, int(np.floor(self.density * slots[-1] / self.local + 0.5)))
                    k = min(k, end - begin)
                    total[begin:end] = self.exchanges[bucket][shard].step(inputs, k)
                else:
                    total[begin:end] = inputs.sum(0)
            for tensor, slot in zip(tensors, slots, strict=False):
                sums[tensor] = total[slot : slot + job.COUNTS[tensor]]
        return sums


def check_model(reports, nodes, local, density, **options):
    model = Model(engine_plan.decode(reports[0]["plan"].tolist()), nodes, local, density, **options)
    assert model.compressed
    for step in range(job.STEPS):
        for tensor, expected in model.step(step).items():
            for report in reports:
                np.testing.assert_array_equal(report[f"sum|{step}|{tensor}"], expected)


@pytest.mark.parametrize(
    ("world_size", "nodes", "options", "model"),
    [
        (4, 2, "", {}),
        pytest.param(2, 2, "", {}, marks=LONG),
        (4, 2, ", error_feedback=False", {"feedback": False}),
        (4, 2, ", momentum=0.9", {"momentum": 0.9}),
        (4, 4, "", {"reduce": True}),
        # By itself it does so with four nodes.
        pytest.param(4, 2, ', exchange="reduce"', {"reduce": True}, marks=LONG),
    ],
)
def test_sums_equal_the_model_exactly(tmp_path, world_size, nodes, options, model):
    compression = f"MSTopK(0.02, dense_below=0{options})"
    reports = run(tmp_path / "job", world_size, nodes, compression)
    check_model(reports, nodes, world_size // nodes, 0.02, **model)


@pytest.mark.parametrize("options", ["", ", momentum=0.5, warm_up_steps=3, exchange='reduce'"])
def test_nothing_is_lost_when_plans_change_and_compression_ends(tmp_path, options):
    reports = run(
        tmp_path / "job",
        4,
        2,
        f"MSTopK(0.02, dense_below=0{options})",
        CASE_NEW_PLAN="1",
        # The last step sends everything that was held back.
        CASE_DENSITIES=" ".join(["0.02"] * (job.STEPS - 1) + ["1"]),
    )
    assert not np.array_equal(reports[0]["plan"], reports[0]["first_plan"])
    for tensor in range(len(job.COUNTS)):
        steps = [reports[0][f"sum|{step}|{tensor}"] for step in range(job.STEPS)]
        for report in reports:
            for step, expected in enumerate(steps):
                np.testing.assert_array_equal(report[f"sum|{step}|{tensor}"], expected)
        contributed = sum(
            job.gradient(rank, step, tensor).astype(np.float64)
            for rank in range(4)
            for step in range(job.STEPS)
        )
        if not options:
            np.testing.assert_allclose(np.sum(steps, 0), contributed, rtol=0, atol=1e-4)
        assert np.isfinite(steps).all()


@pytest.mark.parametrize("when", ["start", "later"])
def test_ranks_that_disagree_on_the_density_get_an_error(tmp_path, when):
    def environment(rank):
        density = 0.03 if rank == 1 else 0.02
        return {
            "TFDEAR_NODE_RANK": str(rank),
            "TFDEAR_COMPRESSION": f"MSTopK({density if when == 'start' else 0.5}, dense_below=0)",
            "CASE_DENSITIES": f"0.02 {density}" if when == "later" else "",
        }

    script = str(_JOBS / "sparse_sums_job.py")
    with Ranks(2, script, environment, (str(tmp_path),)) as ranks:
        codes = ranks.wait(timeout=100)
        outputs = [ranks.output(rank) for rank in range(2)]
        assert all(codes), outputs
    for output in outputs:
        for value in ("0.02", "0.03"):
            assert value in output, output[-3000:]


def test_one_node_is_dense(tmp_path):
    reports = run(tmp_path / "job", 2, 1, "MSTopK(0.02, dense_below=0)")
    assert not any("sparse" in kind for kind in reports[0]["kinds"])
    for tensor in range(len(job.COUNTS)):
        expected = job.gradient(0, 0, tensor) + job.gradient(1, 0, tensor)
        np.testing.assert_array_equal(reports[0][f"sum|0|{tensor}"], expected)


def test_plain_sparse_all_gather(tmp_path):
    compression = "MSTopK(0.02, dense_below=0, hierarchical=False)"
    reports = run(tmp_path / "job", 3, 1, compression)
    assert "sparse_all_gather" in reports[0]["kinds"]
    check_model(reports, 3, 1, 0.02)
