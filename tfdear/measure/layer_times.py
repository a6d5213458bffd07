# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A trace of the model from the engine's own timestamps. Imports no TensorFlow.

[Note: What the engine can see of computation]
A gradient is handed to the engine when the backward pass has made it, so the times between
contributions are those of the layers' backward computation. Marks tell when the forward pass comes
to a variable (`forward_marks.py`): from one mark to the next the layer of the first is computed, as
soon as its variables are there; when that is tells the end of the wait for each. The time of the
process's processor does not: an accelerator computes without it. Before the first layer vectors of
tables are exchanged, which is not computation either. What lies between the last mark and the first
gradient is the last layer's forward and backward computation. Where there are no marks, as in an
eager loop, the forward pass is what is left of it without exposed communication, spread over the
layers in proportion to their backward times.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfdear.base.names import EVENT_KINDS, TABLE_EXCHANGES
from tfdear.measure import steps as statistics
from tfdear.planning.trace import Layer, Trace

_STEP = EVENT_KINDS.index("step")
_CONTRIBUTE = EVENT_KINDS.index("contribute")
_FORWARD = EVENT_KINDS.index("forward")
_AWAIT = EVENT_KINDS.index("await")
_TABLE_EXCHANGES = [EVENT_KINDS.index(kind) for kind in TABLE_EXCHANGES]
_COLLECTIVES = [EVENT_KINDS.index(kind) for kind in statistics.PHASES]
_SECONDS = 1e-6
# Of the backward pass: times closer than this are taken for equal.
_SAME_TIME = 0.02


def measure(
    rows: np.ndarray,
    layout: int,
    names: Sequence[str],
    sizes: Sequence[int],
    variables: Sequence[int] = (),
    skip: int = 1,
) -> tuple[Trace, list[int]] | None:
    """Builds a trace from recorded steps, its layers in the reverse of the order of readiness.

    Of the event record's rows (`EVENT_ROW`) those of the layout count. `names`, `sizes` (in bytes)
    and `variables` (the engine's numbers) are those of its tensors; without variables the forward
    pass of single layers is not measured. The first `skip` steps are left out: they allocate memory
    and fill caches.

    Returns the trace, and for each of its layers the number of the tensor; None if `rows` do not
    hold a whole step.
    """
    count = len(names)
    opened = rows[(rows["kind"] == _STEP) & (rows["subject"] == layout)][skip:]
    windows = statistics.step_windows(rows)
    windows = windows[np.isin(windows["ticket"], opened["ticket"])]
    collectives = statistics.merge(rows[np.isin(rows["kind"], _COLLECTIVES)])
    contributions = rows[rows["kind"] == _CONTRIBUTE]
    marks = rows[np.isin(rows["kind"], (_FORWARD, _AWAIT))]
    exchanges = statistics.merge(rows[np.isin(rows["kind"], _TABLE_EXCHANGES)])
    ready, before_first, passes = [], [], []
    for ticket, begin in zip(windows["ticket"].tolist(), windows["begin"].tolist(), strict=True):
        of_step = contributions[contributions["ticket"] == ticket]
        times = np.full(count, -1.0)
        times[of_step["subject"]] = of_step["end"]
        if (times < 0).any():
            continue
        first = times.min()
        ready.append((times - first) * _SECONDS)
        before_first.append((first - begin - _exposed(collectives, begin, first)) * _SECONDS)
        passes.append((begin, first))
    if not ready:
        return None
    times = np.median(ready, axis=0)
    # Where times are as good as equal, the order of small kernels is chance: there the later in the
    # model goes first, as in the model.
    coarse = np.floor(times / max(_SAME_TIME * times.max(), 1e-9))
    order = np.lexsort((-np.arange(count), coarse))
    backward = np.diff(np.maximum.accumulate(times[order]), prepend=0.0)
    # Nothing shows when the backward pass began: the first layer takes what is usual.
    positive = backward[backward > 0]
    backward[0] = float(np.median(positive)) if len(positive) else 0.0
    forward = np.zeros(count)
    if len(variables):
        last = backward[0] / _SECONDS
        forwards = [
            _forward_times(marks, variables, exchanges, begin, first - last)
            for begin, first in passes
        ]
        forward = np.median(forwards, axis=0)[order] * _SECONDS
    if not forward.any():
        share = backward / backward.sum() if backward.sum() > 0 else np.full(count, 1 / count)
        forward = share * max(float(np.median(before_first)) - backward[0], 0.0)
    layers = tuple(
        Layer(names[tensor], sizes[tensor], *map(float, seconds))
        for tensor, *seconds in zip(order, forward, backward, strict=True)
    )
    return Trace("measured", layers[::-1]), order[::-1].tolist()


def _forward_times(
    marks: np.ndarray, variables: Sequence[int], exchanges: np.ndarray, begin: float, end: float
) -> np.ndarray:
    """Microseconds in which each tensor's layer computes: to the next variable's mark, or to `end`.

    They count from the mark of its own variable, or from when that and those before it are there.
    """
    times = np.zeros(len(variables))
    inside = marks[(marks["end"] >= begin) & (marks["end"] < end)]
    tensor_of_variable = {variable: tensor for tensor, variable in enumerate(variables)}
    # The first of a variable counts: a loop comes to it again and again.
    first, there = (_first_ends(inside[inside["kind"] == kind]) for kind in (_FORWARD, _AWAIT))
    order = sorted(first.keys() & tensor_of_variable.keys(), key=first.__getitem__)
    if not order:
        return times
    # What comes before the first layer, such as casting its input, is counted as its own, but for
    # the vectors that it gets.
    stops = [*(first[variable] for variable in order[1:]), end]
    at = begin + _within(exchanges, begin, first[order[0]])
    for variable, stop in zip(order, stops, strict=True):
        start = max(at, there.get(variable, at))
        times[tensor_of_variable[variable]] = max(stop - start, 0.0)
        at = max(start, stop)
    return times


def _first_ends(rows: np.ndarray) -> dict[int, float]:
    """When the first of the events of each subject ended."""
    ends: dict[int, float] = {}
    for subject, end in zip(rows["subject"].tolist(), rows["end"].tolist(), strict=True):
        ends[subject] = min(ends.get(subject, end), end)
    return ends


def _within(periods: np.ndarray, begin: float, end: float) -> float:
    """How much of the time between two lies in periods, which do not overlap."""
    inside = np.minimum(periods["end"], end) - np.maximum(periods["begin"], begin)
    return float(np.clip(inside, 0, None).sum())


def of_buckets(
    trace: Trace, tensor_of_layer: Sequence[int], buckets: Sequence[Sequence[int]]
) -> tuple[Trace, list[int]]:
    """Makes a trace whose layers are buckets, from what `measure` returned: one of tensors.

    Use it where the buckets are given, each as its tensors, to find the order in which they become
    ready: the layers are in the reverse of it. Returns also the number of each layer's bucket.
    """
    bucket_of_tensor = {t: number for number, bucket in enumerate(buckets) for t in bucket}
    ready = [0.0] * len(buckets)
    forward = [0.0] * len(buckets)
    size = [0] * len(buckets)
    last = [0] * len(buckets)
    clock = 0.0
    for place, layer in enumerate(reversed(trace.layers)):
        number = bucket_of_tensor[tensor_of_layer[len(trace.layers) - 1 - place]]
        clock += layer.backward
        ready[number], last[number] = clock, place
        forward[number] += layer.forward
        size[number] += layer.bytes
    order = sorted(range(len(buckets)), key=last.__getitem__)
    backward = np.diff([ready[number] for number in order], prepend=0.0)
    layers = tuple(
        Layer(f"bucket {number}", size[number], forward[number], float(seconds))
        for number, seconds in zip(order, backward, strict=True)
    )
    return Trace(trace.name, layers[::-1]), order[::-1]


def in_blocks(
    trace: Trace, tensor_of_layer: Sequence[int], blocks: Sequence[Sequence[int]]
) -> tuple[Trace, list[int]]:
    """Puts the layers of each block side by side, from what `measure` returned.

    Use it where tensors, each block's, always share a bucket. The forward pass comes to blocks in
    the reverse of the order in which the backward pass makes their gradients, on average: one of
    them may come late. Each is ready with its last gradient, to which all of the block's backward
    time is given, and not before those behind it. Returns also the number of each layer's tensor.
    """
    layer_of_tensor = {tensor: layer for layer, tensor in enumerate(tensor_of_layer)}
    ready = np.cumsum([layer.backward for layer in trace.layers[::-1]])[::-1]
    times = [[float(ready[layer_of_tensor[tensor]]) for tensor in block] for block in blocks]
    layers: list[Layer] = []
    order: list[int] = []
    clock = 0.0
    for number in sorted(range(len(blocks)), key=lambda number: np.mean(times[number])):
        end = max(clock, *times[number])
        # From the back the first of the block is the last.
        for place, tensor in reversed(list(enumerate(blocks[number]))):
            layer = trace.layers[layer_of_tensor[tensor]]
            layers.append(dataclasses.replace(layer, backward=0.0 if place else end - clock))
            order.append(tensor)
        clock = end
    return Trace(trace.name, tuple(layers[::-1])), order[::-1]


def _exposed(collectives: np.ndarray, begin: float, end: float) -> float:
    """Microseconds between two times in which a collective ran and nothing was computed."""
    inside = np.minimum(collectives["end"], end) - np.maximum(collectives["begin"], begin)
    duration = np.maximum(collectives["end"] - collectives["begin"], 1)
    idle = np.clip(1 - collectives["computation"] / duration, 0, 1)
    return float((np.clip(inside, 0, None) * idle).sum())
