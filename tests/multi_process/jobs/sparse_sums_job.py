# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sums of gradients under compression, step by step, for comparison with a model of them."""

import os
import pathlib
import sys

import numpy as np

import tfdear
from tfdear.base import names
from tfdear.engine import plan as engine_plan
from tfdear.planning import schedules
from tfdear.planning.trace import Layer, Trace

COUNTS = (5, 3001, 64, 1, 777, 2048)
STEPS = 6
FLOAT32 = names.data_type("float32")
TENSORS = [engine_plan.TensorSpec(FLOAT32, count, False, 4 * count) for count in COUNTS]


def gradient(rank: int, step: int, tensor: int) -> np.ndarray:
    random = np.random.RandomState(1000 * step + 100 * tensor + rank)
    return random.randn(COUNTS[tensor]).astype(np.float32)


def other_plan(strategy) -> list[int]:
    """Other buckets than those of the engine's first plan."""
    layers = tuple(Layer(str(count), 4 * count, 1.0, 1.0) for count in COUNTS)
    plan = schedules.make_plan("dear", [[5, 4, 3], [2, 1], [0]], Trace("sums", layers))
    plan_format = strategy._job.first_plan.plan_format
    return engine_plan.encode(plan, TENSORS, range(len(COUNTS)), plan_format)


if __name__ == "__main__":
    strategy = tfdear.DearStrategy(timeout=20.0, heartbeat=5.0)
    engine = strategy._job.engine
    layout = engine.create_layout("gradients", names.Lane.GRADIENTS)
    for count in COUNTS:
        engine.add_tensor(layout, FLOAT32, count, False)
    engine.set_plan(layout, strategy._job.first_plan.encode(TENSORS, names.Lane.GRADIENTS))
    densities = os.environ.get("CASE_DENSITIES", "")
    densities = [float(text) for text in densities.split()]
    first_plan, sums = [], {}
    for step in range(STEPS):
        if step == 1:
            first_plan = engine.plan(layout)[0]
            if os.environ.get("CASE_NEW_PLAN") and strategy.rank == 0:
                engine.propose(layout, other_plan(strategy), 1 << 20)
        if step < len(densities):
            strategy.set_density(densities[step])
        reduction = engine.open_reduction(layout)
        for tensor in range(len(COUNTS)):
            reduction.contribute(tensor, gradient(strategy.rank, step, tensor))
        for tensor, count in enumerate(COUNTS):
            out = np.empty(count, np.float32)
            reduction.wait(tensor, 30.0, out)
            sums[f"sum|{step}|{tensor}"] = out
        reduction.close()
    events = strategy.events()
    np.savez(
        pathlib.Path(sys.argv[1]) / f"rank_{strategy.rank}.npz",
        plan=engine.plan(layout)[0],
        first_plan=first_plan,
        kinds=[event.kind for event in events],
        costs=repr(strategy._job.costs),
        **sums,
    )
