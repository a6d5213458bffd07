# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A trace of the model from the engine's own timestamps. Imports no TensorFlow.

[Note: What the engine can see of computation]
A gradient is handed to the engine when the backward pass has made it, so the times between
contributions are those of the layers' backward computation. Marks tell when the forward pass comes
to a variable (`forward_marks.py`): from one mark to the next the layer of the first is computed,
less what communication was exposed there. What lies between the last mark and the first gradient is
the last layer's forward and backward computation. Where there are no marks, as in a loop that
computes eagerly, the forward pass is spread over the layers in proportion to their backward times.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfdear.base.names import EVENT_KINDS
from tfdear.measure import steps as statistics
from tfdear.planning.trace import Layer, Trace

_STEP = EVENT_KINDS.index("step")
_CONTRIBUTE = EVENT_KINDS.index("contribute")
_FORWARD = EVENT_KINDS.index("forward")
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
    marks = rows[rows["kind"] == _FORWARD]
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
    forward = max(float(np.median(before_first)) - backward[0], 0.0)
    share = backward
    if len(variables):
        last = backward[0] / _SECONDS
        forwards = [
            _forward_times(marks, variables, collectives, begin, first - last)
            for begin, first in passes
        ]
        measured = np.median(forwards, axis=0)[order]
        share = measured if measured.any() else backward
    share = share / share.sum() if share.sum() > 0 else np.full(count, 1 / count)
    layers = tuple(
        Layer(names[tensor], sizes[tensor], forward * float(part), float(seconds))
        for tensor, part, seconds in zip(order, share, backward, strict=True)
    )
    return Trace("measured", layers[::-1]), order[::-1].tolist()


def _forward_times(
    marks: np.ndarray, variables: Sequence[int], collectives: np.ndarray, begin: float, end: float
) -> np.ndarray:
    """Microseconds from the mark of each tensor's variable to the next mark, or to `end`."""
    times = np.zeros(len(variables))
    inside = marks[(marks["begin"] >= begin) & (marks["begin"] < end)]
    tensor_of_variable = {variable: tensor for tensor, variable in enumerate(variables)}
    # A variable's first mark counts: a loop comes to it again and again.
    first: dict[int, float] = {}
    for variable, at in zip(inside["subject"].tolist(), inside["begin"].tolist(), strict=True):
        if variable in tensor_of_variable:
            first[variable] = min(first.get(variable, at), at)
    if not first:
        return times
    order = sorted(first, key=first.__getitem__)
    # What comes before the first layer, such as casting its input, is counted as its own.
    starts = [begin, *(first[variable] for variable in order[1:])]
    for variable, start, stop in zip(order, starts, [*starts[1:], end], strict=True):
        exposed = _exposed(collectives, start, stop)
        times[tensor_of_variable[variable]] = max(stop - start - exposed, 0.0)
    return times


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
