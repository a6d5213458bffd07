# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Plans of the model of an iteration as numbers that the engine takes. Imports no TensorFlow."""

import dataclasses
from collections.abc import Sequence

from tfdear.planning import schedules

# The engine's Phase, by name (`tfdear.engine.engine.Phase`).
_PHASES = (
    "reduce_scatter",
    "all_gather",
    "all_reduce",
    "sparse_gather",
    "reduce",
    "broadcast",
    "intra_reduce_scatter",
    "inter_reduce_scatter",
    "inter_all_gather",
    "intra_all_gather",
    "sparse_exchange",
    "sparse_all_gather",
)

_FLOAT32 = 2  # In `tfdear.engine.engine.DATA_TYPES`.


@dataclasses.dataclass(frozen=True)
class Levels:
    """How many ranks the two levels have that sums are formed in.

    Args:
        intra: Ranks of a node, or of a row of a grid.
        inter: Nodes, or rows. A level of one rank does not exist.
    """

    intra: int
    inter: int


@dataclasses.dataclass(frozen=True)
class SparseBuckets:
    """Which buckets are exchanged sparsely; only those of float32 can be.

    Args:
        at_least: Elements of the smallest of them.
        levels: The levels, if sums of nodes are exchanged between the nodes; None: what ranks
            select is gathered among all ranks.
    """

    at_least: int
    levels: Levels | None


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """What the engine knows of a reduced tensor.

    Args:
        data_type: Number of its type in the engine.
        count: Elements; -1 if known at run time only.
        sparse: Whether rows with indices are gathered instead of summed.
        bytes: Size, as far as it is known.
    """

    data_type: int
    count: int
    sparse: bool
    bytes: int

    @property
    def alone(self) -> bool:
        """Whether it cannot share a bucket."""
        return self.sparse or self.count < 0


def encode(
    plan: schedules.Plan,
    tensors: Sequence[TensorSpec],
    tensor_of_layer: Sequence[int],
    *,
    tree: bool = False,
    levels: Levels | None = None,
    sparse_buckets: SparseBuckets | None = None,
) -> list[int]:
    """Writes a plan as the engine reads it.

    A bucket of a plan may become several of the engine's, which hold one data type each; sparse
    tensors travel alone. They then follow one another in the place of the one.

    Args:
        plan: Buckets and steps over the layers of a trace.
        tensors: The tensors of the layout.
        tensor_of_layer: The tensor that each layer of the trace stands for.
        tree: Whether sums are formed along trees: a reduce and a broadcast are then the halves of
            an all-reduce.
        levels: The levels, where sums are formed in two. Defaults to None: they are not.
        sparse_buckets: Which buckets are exchanged sparsely. Defaults to None: none.

    Returns:
        The numbers; `custom_ops/engine/plan.h` has their order.
    """
    parts_of_bucket = [
        _parts([tensor_of_layer[layer] for layer in bucket], tensors) for bucket in plan.buckets
    ]
    numbers: list[list[int]] = []
    buckets: list[list[int]] = []
    for parts in parts_of_bucket:
        numbers.append(list(range(len(buckets), len(buckets) + len(parts))))
        buckets.extend(parts)
    return _write(plan, numbers, buckets, tensors, tree, levels, sparse_buckets)


def encode_over_buckets(
    plan: schedules.Plan,
    buckets: Sequence[Sequence[int]],
    bucket_of_layer: Sequence[int],
    tensors: Sequence[TensorSpec],
    *,
    tree: bool = False,
    levels: Levels | None = None,
    sparse_buckets: SparseBuckets | None = None,
) -> list[int]:
    """Writes a plan for buckets that the engine has already: only their order is the plan's.

    Args:
        plan: Buckets and steps over the layers of a trace of these buckets, one layer in each.
        buckets: The tensors of the engine's buckets.
        bucket_of_layer: The engine's bucket that each layer of the trace stands for.
        tensors: The tensors of the layout.
        tree: As for `encode`.
        levels: As for `encode`.
        sparse_buckets: As for `encode`.

    Returns:
        The numbers, as `encode`.
    """
    numbers = [[bucket_of_layer[layer] for layer in layers] for layers in plan.buckets]
    return _write(plan, numbers, buckets, tensors, tree, levels, sparse_buckets)


def _write(
    plan: schedules.Plan,
    numbers: Sequence[Sequence[int]],
    buckets: Sequence[Sequence[int]],
    tensors: Sequence[TensorSpec],
    tree: bool,
    levels: Levels | None,
    sparse_buckets: SparseBuckets | None,
) -> list[int]:
    """The numbers of a plan; `numbers` has the engine's buckets that each of its buckets is."""
    steps: list[tuple[str, int, int, int]] = []
    for step in plan.steps:
        for number in numbers[step.bucket]:
            spec = tensors[buckets[number][0]]
            if _is_exchanged_sparsely([tensors[t] for t in buckets[number]], sparse_buckets):
                assert sparse_buckets is not None
                steps.extend(_sparse_steps(step, number, sparse_buckets.levels))
            else:
                steps.extend(_steps(step, number, spec, tree, levels))
    steps = _pipeline(steps)
    words = [int(plan.wait_for_all), len(buckets)]
    for bucket in buckets:
        words += [len(bucket), *bucket]
    words.append(len(steps))
    for phase, number, chunk, chunks in steps:
        words += [_PHASES.index(phase), number, chunk, chunks]
    return words


def decode(words: Sequence[int]) -> schedules.Plan:
    """Reads a plan of the engine; its buckets hold tensors."""
    position = 2
    buckets = []
    for _ in range(words[1]):
        size = words[position]
        buckets.append(tuple(words[position + 1 : position + 1 + size]))
        position += 1 + size
    steps = []
    for _ in range(words[position]):
        phase, bucket, chunk, chunks = words[position + 1 : position + 5]
        steps.append(schedules.Step(_PHASES[phase], bucket, chunk, chunks))
        position += 4
    return schedules.Plan(tuple(buckets), tuple(steps), wait_for_all=bool(words[0]))


def _parts(members: list[int], tensors: Sequence[TensorSpec]) -> list[list[int]]:
    parts: list[list[int]] = []
    of_type: dict[int, list[int]] = {}
    for tensor in members:
        spec = tensors[tensor]
        if spec.alone:
            parts.append([tensor])
        elif spec.data_type in of_type:
            of_type[spec.data_type].append(tensor)
        else:
            of_type[spec.data_type] = [tensor]
            parts.append(of_type[spec.data_type])
    return parts


def _steps(step: schedules.Step, number: int, spec: TensorSpec, tree: bool, levels: Levels | None):
    """The engine's steps for one step of a plan and one part of its bucket."""
    if spec.alone and step.chunk > 0:
        return
    if spec.sparse:
        # Gathering rows is one collective, in the place of the first half.
        if step.phase != "all_gather":
            yield ("sparse_gather", number, 0, 1)
        return
    chunk, chunks = (0, 1) if spec.alone else (step.chunk, step.chunks)
    if levels is not None:
        yield from _level_steps(step.phase, number, chunk, chunks, levels)
    elif not tree:
        yield (step.phase, number, chunk, chunks)
    elif step.phase == "reduce_scatter":
        yield ("reduce", number, chunk, chunks)
    elif step.phase == "all_gather":
        yield ("broadcast", number, chunk, chunks)
    elif chunk == 0:
        # A broadcast needs the whole sum: an all-reduce along a tree is not cut.
        yield ("reduce", number, 0, 1)
        yield ("broadcast", number, 0, 1)


def _is_exchanged_sparsely(specs: list[TensorSpec], sparse_buckets: SparseBuckets | None) -> bool:
    if sparse_buckets is None or specs[0].alone or specs[0].data_type != _FLOAT32:
        return False
    return sum(spec.count for spec in specs) >= max(sparse_buckets.at_least, 1)


def _sparse_steps(step: schedules.Step, number: int, levels: Levels | None):
    """The engine's steps for one step of a plan, of a bucket that is exchanged sparsely."""
    reduces, gathers = step.phase != "all_gather", step.phase != "reduce_scatter"
    # Selection needs the whole bucket; only the gathering half alone can be cut.
    if reduces and step.chunk == 0:
        if levels is None:
            yield ("sparse_all_gather", number, 0, 1)
        else:
            if levels.intra > 1:
                yield ("intra_reduce_scatter", number, 0, 1)
            yield ("sparse_exchange", number, 0, 1)
    if gathers and levels is not None and levels.intra > 1:
        if not reduces:
            yield ("intra_all_gather", number, step.chunk, step.chunks)
        elif step.chunk == 0:
            yield ("intra_all_gather", number, 0, 1)


def _level_steps(phase: str, number: int, chunk: int, chunks: int, levels: Levels):
    """A half of an all-reduce, or a whole one, in the levels that there are."""
    if phase == "all_reduce":
        # Each chunk has a chain of its own.
        for half in ("reduce_scatter", "all_gather"):
            for level_phase in _level_phases(half, levels):
                yield (level_phase, number, chunk, chunks)
        return
    # The halves may be cut differently, so only the first level of each works on its chunks; the
    # other follows the last of them, whole.
    first, *second = _level_phases(phase, levels)
    yield (first, number, chunk, chunks)
    if second and chunk == chunks - 1:
        yield (second[0], number, 0, 1)


def _level_phases(half: str, levels: Levels) -> list[str]:
    order = ("intra", "inter") if half == "reduce_scatter" else ("inter", "intra")
    return [f"{level}_{half}" for level in order if getattr(levels, level) > 1]


def _pipeline(steps: list[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int]]:
    """Lets a node go on with the next bucket while one is summed between the nodes.

    The group of a node takes its steps in order. A last step that waits for other nodes would hold
    up the first step of the next bucket, so it goes behind that, if there is one.
    """
    left = sum(step[0] == "intra_reduce_scatter" for step in steps)
    ordered, held = [], []
    for step in steps:
        if step[0] == "intra_all_gather" and left > 0:
            held.append(step)
            continue
        ordered.append(step)
        if step[0] == "intra_reduce_scatter":
            left -= 1
            ordered += held
            held = []
    return ordered
