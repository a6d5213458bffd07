# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the tuner makes plans for."""

import time

import numpy as np

import tfdear
from tfdear import simulator
from tfdear.base.names import Lane, data_type
from tfdear.engine import plan as engine_plan
from tfdear.engine.engine import Engine
from tfdear.engine.event_reader import EventReader
from tfdear.job import tuner
from tfdear.planning import schedules
from tfdear.planning.cost_model import CommunicationCosts, LinearCost


def test_a_busy_line_gets_a_plan_for_the_measured_times():
    half = LinearCost(2e-4, 0.75 * 8e-9)
    costs = CommunicationCosts(half, half, LinearCost(4e-4, 1.5 * 8e-9))
    trace = simulator.load("resnet-50")
    line = costs.all_reduce.seconds(trace.bytes)
    trace = trace.scaled(line / (trace.forward + trace.backward))
    planner = tfdear.fusion.Planned()
    plan_format = engine_plan.PlanFormat()
    engine = Engine()
    number = engine.create_layout("resnet-50", Lane.GRADIENTS)
    float32 = data_type("float32")
    tensors = []
    for layer in trace.layers:
        count = layer.bytes // 4
        engine.add_tensor(number, float32, count, sparse=False)
        tensors.append(engine_plan.TensorSpec(float32, count, sparse=False, bytes=layer.bytes))
    names = [layer.name for layer in trace.layers]
    layout = tuner._Layout(number, names, tensors, list(range(len(names))), planner)
    layout.trace, layout.tensor_of_layer = trace, list(range(len(names)))
    tuner.Tuner(engine, EventReader(), planner, "dear", costs, plan_format)._propose(layout)
    plan = planner.plan(trace, costs, "dear")
    best = schedules.execute(plan, trace, costs).iteration_time
    assert layout.prediction is not None and layout.prediction.time == best
    words = engine_plan.encode(plan, tensors, layout.tensor_of_layer, plan_format)
    assert layout.proposed == words


def test_a_measurement_that_brings_nothing_is_seldom_repeated(monkeypatch):
    calls = []

    def measure(*_):
        calls.append(time.sleep(0.05))

    monkeypatch.setattr(tuner.layer_times, "measure", measure)
    planner = tfdear.fusion.Planned()
    watching = tuner.Tuner(Engine(), EventReader(), planner, "dear", None, engine_plan.PlanFormat())
    watching._rows.append(np.zeros(0))
    layout = tuner._Layout(0, ["layer"], [], [0], planner, opened=[0.0] * 9)
    for _ in range(5):
        watching._profile(layout)
    assert len(calls) == 1
    layout.measure_from = 0.0
    watching._profile(layout)
    assert len(calls) == 2
