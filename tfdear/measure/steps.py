# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the time of training steps went, from the engine's event record. No TensorFlow.

[Note: Steps in the event record]
A step is one reduction of gradients, known by its ticket. It begins when the reduction is opened,
which happens as soon as the step's data are there, or, if that was during the step before, as in a
loop inside a graph, when that one's last gradient was ready. Up to its first gradient a step counts
as forward pass, up to its last one as backward pass, from there to the begin of the next step as
other work (input pipeline, metrics, Python). TensorFlow starts the reads of all variables at once,
so the record knows nothing finer about the forward pass, and the backward pass through the last
layer, which ends with the first gradient, counts as forward.

[Note: Stall]
What communication costs a step is the time in which it waits and does not compute. The engine knows
when ops of TensorFlow wait for it: for reads of variables whose updates are in flight, for vectors
of sharded tables, for sums and other collectives. A period begins with the first op that has to and
ends when none does. As far as the process computed meanwhile, by its processor time, the period was
hidden; the rest is stall. To that comes the time in which ids of tables were split by what the next
step needs (`embedding_split`), as far as it does not lie in such a period. That is the Computation
Stall of Li et al., "EmbRace", section 5.4. A step has what lies between its begin and its end.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tfdear.base import names
from tfdear.base.names import EVENT_KINDS, STEP_KINDS, Group, Operation, WireFormat
from tfdear.engine import events as event_record


def _phases(group: Group | None, *wire_formats: WireFormat) -> tuple[str, ...]:
    return tuple(
        kind.name
        for kind in STEP_KINDS
        if kind.wire_format in wire_formats and group in (None, kind.group)
    )


# In these ranks exchange what they selected; their payload is what this rank coded.
SPARSE_PHASES = _phases(None, WireFormat.SELECTED)
PHASES = (
    *_phases(Group.WORLD, WireFormat.DENSE, WireFormat.ROWS),
    *_phases(Group.INTRA, WireFormat.DENSE),
    *_phases(Group.INTER, WireFormat.DENSE),
    *SPARSE_PHASES,
)
_SECONDS = 1e-6
_KIND = {kind: number for number, kind in enumerate(EVENT_KINDS)}
# Of variables, and of the rows of tables.
_UPDATES = [_KIND[kind] for kind in ("update", "row_update")]
_OF_STEPS = [_KIND[kind] for kind in ("step", "contribute", *PHASES)] + _UPDATES
_OF_STALLS = [_KIND[kind] for kind in ("wait", "embedding_split")]
_LINE = [_KIND[phase] for phase in PHASES]
# The halves that spread a sum that was counted in bytes before.
_UNCOUNTED = [
    _KIND[kind.name]
    for kind in STEP_KINDS
    if kind.wire_format == WireFormat.DENSE
    and kind.operation in (Operation.ALL_GATHER, Operation.BROADCAST)
]
_INTER = [_KIND[kind.name] for kind in STEP_KINDS if kind.group == Group.INTER]
_NODE_SUM = _KIND[names.step_kind(Operation.REDUCE_SCATTER, Group.INTRA).name]

# Times in microseconds of the steady clock.
STEP_WINDOW = np.dtype(
    [
        (name, np.int64)
        for name in ("ticket", "layout", "begin", "first_gradient", "last_gradient", "end")
    ]
)


def step_windows(rows: np.ndarray) -> np.ndarray:
    """Begin, first and last gradient and end of every step in a piece of the event record.

    From rows of `EVENT_ROW` to those of `STEP_WINDOW`, in the order of the steps; see [Note: Steps
    in the event record]. The last one ends with its last gradient, because where the next begins is
    not known.
    """
    opened = rows[rows["kind"] == _KIND["step"]]
    gradients = rows[rows["kind"] == _KIND["contribute"]]
    # A step that was given up before its first gradient did nothing.
    opened = opened[np.isin(opened["ticket"], gradients["ticket"])]
    opened = opened[np.argsort(opened["ticket"], kind="stable")]
    gradients = gradients[np.isin(gradients["ticket"], opened["ticket"])]
    windows = np.zeros(len(opened), STEP_WINDOW)
    if not len(opened):
        return windows
    windows["ticket"] = opened["ticket"]
    windows["layout"] = opened["subject"]
    windows["first_gradient"] = np.iinfo(np.int64).max
    place = np.searchsorted(windows["ticket"], gradients["ticket"])
    np.minimum.at(windows["first_gradient"], place, gradients["end"])
    np.maximum.at(windows["last_gradient"], place, gradients["end"])
    windows["begin"] = opened["begin"]
    previous = np.maximum.accumulate(windows["last_gradient"])[:-1]
    windows["begin"][1:] = np.maximum(windows["begin"][1:], previous)
    # Two reductions in flight at once, as with two models in a step: the later one's gradients may
    # have begun before the earlier one's were complete.
    windows["first_gradient"] = np.maximum(windows["first_gradient"], windows["begin"])
    windows["last_gradient"] = np.maximum(windows["last_gradient"], windows["first_gradient"])
    windows["end"][:-1] = np.maximum(windows["begin"][1:], windows["last_gradient"][:-1])
    windows["end"][-1] = windows["last_gradient"][-1]
    return windows


class StepStatistics:
    """Sums up a record that comes in pieces.

    Use one per reader of the record: steps that are not over at the end of a piece are kept until a
    later one completes them.
    """

    def __init__(self) -> None:
        self._kept = np.empty(0, event_record.EVENT_ROW)
        self._reported = -1
        # Number of the layout of the latest step, None before the first.
        self.layout: int | None = None

    def add(self, rows: np.ndarray) -> dict:
        """Takes the next piece and sums it up.

        A collective is hidden as far as the process computed while it was on the line. That is
        measured by processor time: what the process used meanwhile, less what its communication
        threads used. With several threads of computation, their times are added up before they are
        compared with the collective's, so the overlap is then an upper bound.

        Returns a dict of: `steps` (reductions of gradients that communicated), seconds in each of
        `PHASES`, `update`, of `communication` (gradients, time with a collective on the line) and
        of it `exposed`; `overlap` (the hidden fraction, None without communication), `stall`
        (seconds, of all that the rank waited for; see [Note: Stall]) and `bytes`
        (payload of the gradients' buckets), all for this piece; `payload` (bytes by phase);
        `compressed_bytes` (what this rank coded of them); and `per_step`, a list of dicts for the
        steps that this piece completed, with the same keys and `ticket`, `time`, `forward`,
        `backward` and `other`. There, exposed communication is not part of `forward` and
        `backward`.
        """
        line = rows[np.isin(rows["kind"], _LINE)]
        duration, _ = _durations(line)
        summary: dict = {"steps": len(np.unique(line["ticket"]))}
        payload = {}
        for phase in PHASES:
            of_phase = line["kind"] == _KIND[phase]
            summary[phase] = float(duration[of_phase].sum() * _SECONDS)
            payload[phase] = int(line["detail"][of_phase].sum())
        updates = rows[np.isin(rows["kind"], _UPDATES)]
        summary["update"] = float((updates["end"] - updates["begin"]).sum() * _SECONDS)
        duration, hidden = _durations(merge(line))
        communication, concealed = duration.sum() * _SECONDS, hidden.sum() * _SECONDS
        summary["communication"] = float(communication)
        summary["exposed"] = float(communication - concealed)
        summary["overlap"] = float(concealed / communication) if communication > 0 else None
        summary["stall"] = float(sum(map(_exposed, _stalls(rows))) * _SECONDS)
        summary["bytes"] = int(_counted(line)["detail"].sum())
        summary["payload"] = payload
        summary["compressed_bytes"] = sum(payload[phase] for phase in SPARSE_PHASES)
        summary["per_step"] = self._complete_steps(rows)
        return summary

    def forget(self) -> None:
        """Forgets the steps that are not over: what comes next does not follow them."""
        self._kept = self._kept[:0]

    def _complete_steps(self, rows: np.ndarray) -> list[dict]:
        rows = np.concatenate([self._kept, rows[np.isin(rows["kind"], _OF_STEPS + _OF_STALLS)]])
        windows = step_windows(rows)
        if len(windows):
            self.layout = int(windows["layout"][-1])
        line = rows[np.isin(rows["kind"], _LINE)]
        # Tickets use the line one after the other, and a step whose successor's successor was
        # opened has been read from: nothing of it is still to come.
        # Without dense gradients nothing of a step is there.
        newest = int((line if len(line) else windows)["ticket"].max(initial=-1))
        complete = np.flatnonzero(
            (windows["ticket"] < newest)
            & (np.arange(len(windows)) < len(windows) - 2)
            & (windows["ticket"] > self._reported)
        )
        steps = _steps(windows[complete], rows, line)
        if len(complete):
            self._reported = int(windows["ticket"][complete[-1]])
        # One step more is kept: where it ends is where the next one begins.
        kept = rows["ticket"] >= self._reported
        # The tickets of these are not those of steps.
        in_stall = np.isin(rows["kind"], _OF_STALLS)
        opened = rows["begin"][kept & (rows["kind"] == _KIND["step"])]
        kept[in_stall] = rows["end"][in_stall] >= opened.min() if len(opened) else False
        self._kept = rows[kept]
        return steps


def _durations(line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    duration = line["end"] - line["begin"]
    return duration, np.clip(line["computation"], 0, duration)


def _exposed(line: np.ndarray) -> int:
    duration, hidden = _durations(line)
    return int((duration - hidden).sum())


def _stalls(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The periods in which ops waited, and the splits of ids: see [Note: Stall].

    Neither overlap among themselves. What lies of a split in periods of the other kind counts as
    its `computation`, so that the exposed parts of both can be added.
    """
    waits = rows[rows["kind"] == _KIND["wait"]]
    waits = waits[np.argsort(waits["begin"], kind="stable")]
    splits = rows[rows["kind"] == _KIND["embedding_split"]].copy()
    splits["computation"] = 0
    splits = merge(splits) if len(splits) else splits
    whole = waits.copy()
    whole["computation"] = 0
    waited_until = _exposed_until(whole)
    splits["computation"] = np.rint(waited_until(splits["end"]) - waited_until(splits["begin"]))
    return waits, splits


def merge(line: np.ndarray) -> np.ndarray:
    """Collectives of gradients that ran at once, as rows that do not overlap.

    Where steps of two levels run in two process groups, the line is busy while one of them is. What
    the process computed in a part of it is the mean of what the collectives there say. Of a row
    only begin, end, ticket and computation have a meaning; where tickets overlap, a part belongs to
    the earliest.
    """
    line = line[np.argsort(line["begin"], kind="stable")]
    if (line["begin"][1:] >= line["end"][:-1]).all():
        return line
    duration, hidden = _durations(line)
    bounds = np.unique(np.concatenate([line["begin"], line["end"]]))
    parts = np.zeros(len(bounds) - 1, line.dtype)
    parts["begin"], parts["end"] = bounds[:-1], bounds[1:]
    first = np.searchsorted(bounds, line["begin"])
    count = np.searchsorted(bounds, line["end"]) - first
    # One entry per collective and part of it.
    of_line = np.repeat(np.arange(len(line)), count)
    place = np.arange(len(of_line)) - np.repeat(np.cumsum(count) - count, count) + first[of_line]
    running = np.bincount(place, minlength=len(parts))
    rates = np.bincount(
        place, weights=(hidden / np.maximum(duration, 1))[of_line], minlength=len(parts)
    )
    parts["ticket"] = np.iinfo(np.int64).max
    np.minimum.at(parts["ticket"], place, line["ticket"][of_line])
    length = parts["end"] - parts["begin"]
    parts["computation"] = np.rint(length * rates / np.maximum(running, 1))
    return parts[running > 0]


def _counted(line: np.ndarray) -> np.ndarray:
    """The collectives whose payload is that of the buckets: the first of each chain."""
    first = ~np.isin(line["kind"], _UNCOUNTED)
    if (line["kind"] == _NODE_SUM).any():
        # Between the nodes travels what was counted within them.
        first &= ~np.isin(line["kind"], _INTER)
    return line[first]


def _steps(windows: np.ndarray, rows: np.ndarray, line: np.ndarray) -> list[dict]:
    count = len(windows)

    def of_step(events: np.ndarray, values: np.ndarray) -> np.ndarray:
        known = np.isin(events["ticket"], windows["ticket"])
        place = np.searchsorted(windows["ticket"], events["ticket"][known])
        return np.bincount(place, weights=values[known], minlength=count)

    columns = {}
    for phase in PHASES:
        of_phase = line["kind"] == _KIND[phase]
        columns[phase] = of_step(line[of_phase], _durations(line[of_phase])[0])
    updates = rows[np.isin(rows["kind"], _UPDATES)]
    columns["update"] = of_step(updates, updates["end"] - updates["begin"])
    merged = merge(line)
    duration, hidden = _durations(merged)
    columns["communication"] = of_step(merged, duration)
    exposed = columns["exposed"] = of_step(merged, duration - hidden)
    exposed_until = _exposed_until(merged)
    for name, begin, end in (
        ("forward", "begin", "first_gradient"),
        ("backward", "first_gradient", "last_gradient"),
        ("other", "last_gradient", "end"),
    ):
        waited = exposed_until(windows[end]) - exposed_until(windows[begin])
        columns[name] = np.maximum(windows[end] - windows[begin] - waited, 0.0)
    columns["stall"] = np.zeros(count)
    for stall in map(_exposed_until, _stalls(rows)):
        columns["stall"] += stall(windows["end"]) - stall(windows["begin"])
    columns["time"] = windows["end"] - windows["begin"]
    counted = _counted(line)
    payload = of_step(counted, counted["detail"])
    steps = []
    for i in range(count):
        step: dict = {"ticket": int(windows["ticket"][i])}
        step.update((name, float(values[i] * _SECONDS)) for name, values in columns.items())
        communicated = columns["communication"][i]
        step["overlap"] = float(1 - exposed[i] / communicated) if communicated > 0 else None
        step["bytes"] = int(payload[i])
        steps.append(step)
    return steps


def _exposed_until(line: np.ndarray):
    """Exposed communication up to a time, in microseconds, as a function of that time.

    A collective's exposed part is spread evenly over it. The rows do not overlap.
    """
    line = line[np.argsort(line["begin"], kind="stable")]
    if not len(line):
        return lambda times: np.zeros(len(times))
    duration, hidden = _durations(line)
    after = np.cumsum(duration - hidden)
    before = after - (duration - hidden)
    times = np.column_stack([line["begin"], line["end"]]).ravel()
    return lambda at: np.interp(at, times, np.column_stack([before, after]).ravel())


def average(steps: Sequence[Mapping]) -> dict | None:
    """The mean of every quantity in `per_step` of `StepStatistics.add`; None without steps.

    `typical_time`, `typical_forward` and `typical_backward` are medians, which a pause between two
    epochs does not move.
    """
    if not steps:
        return None
    names = [name for name in steps[0] if name not in ("ticket", "overlap")]
    means: dict = {name: float(np.mean([step[name] for step in steps])) for name in names}
    communication = means["communication"]
    means["overlap"] = 1 - means["exposed"] / communication if communication > 0 else None
    for name in ("time", "forward", "backward"):
        means[f"typical_{name}"] = float(np.median([step[name] for step in steps]))
    return means


def bandwidths(
    summary: Mapping, world_size: int, level_sizes: tuple[int, int] = (1, 1)
) -> tuple[dict, dict]:
    """Achieved bandwidths per phase, as nccl-tests defines them, in bytes per second.

    A collective's time ends when the slowest rank is through, and begins on this rank when it has
    the line: what it waits for other ranks is part of it. `summary` is what `StepStatistics.add`
    returned, `level_sizes` the ranks of a node and the number of nodes.

    Returns `algbw`: payload by time; `busbw`: that times what crosses the busiest link per byte of
    payload. Phases that did not run are left out.
    """
    sizes = dict(zip(Group, (world_size, *level_sizes), strict=True))
    kinds = {kind.name: kind for kind in STEP_KINDS if kind.wire_format == WireFormat.DENSE}
    algbw = {
        phase: summary["payload"][phase] / summary[phase]
        for phase in PHASES
        if phase in kinds and summary[phase] > 0
    }

    def crossing(kind: names.StepKind) -> float:
        """What crosses the busiest link per byte of payload."""
        if kind.operation in (Operation.REDUCE, Operation.BROADCAST):
            return 1.0
        shards = (sizes[kind.group] - 1) / sizes[kind.group]
        return 2 * shards if kind.operation == Operation.ALL_REDUCE else shards

    return algbw, {phase: rate * crossing(kinds[phase]) for phase, rate in algbw.items()}
