# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Plans of the model of an iteration as numbers that the engine takes. Imports no TensorFlow."""

import dataclasses
from collections.abc import Sequence

from tfdear.base import names
from tfdear.base.names import Group, Operation, WireFormat
from tfdear.planning import schedules
from tfdear.planning.line import Step

_FLOAT32 = names.data_type("float32")
# Of kinds of steps, which a step of the engine's plan has as its phase.
_NUMBERS = {kind.name: number for number, kind in enumerate(names.STEP_KINDS)}


@dataclasses.dataclass(frozen=True)
class Levels:
    """How many ranks the two levels have that sums are formed in; one of 1 rank does not exist."""

    intra: int  # Ranks of a node, or of a row of a grid.
    inter: int  # Nodes, or rows.


@dataclasses.dataclass(frozen=True)
class SparseBuckets:
    """Which buckets are exchanged sparsely; only those of float32 can be."""

    at_least: int  # Elements of the smallest of them.
    # If sums of nodes are exchanged between the nodes; None: what ranks select is gathered among
    # all ranks.
    levels: Levels | None


@dataclasses.dataclass(frozen=True)
class PlanFormat:
    """How the engine forms sums, as far as the steps of its plans depend on it.

    Along trees, a reduce and a broadcast are the halves of an all-reduce.
    """

    tree: bool = False
    levels: Levels | None = None  # Where sums are formed in two.
    sparse_buckets: SparseBuckets | None = None


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """What the engine knows of a reduced tensor."""

    data_type: int  # Number of its type in the engine.
    count: int  # Elements; -1 if known at run time only.
    sparse: bool  # Whether rows with indices are gathered instead of summed.
    bytes: int  # Size, as far as it is known.

    @property
    def alone(self) -> bool:
        """Whether it cannot share a bucket."""
        return self.sparse or self.count < 0


def encode(
    plan: schedules.Plan,
    tensors: Sequence[TensorSpec],
    tensor_of_layer: Sequence[int],
    plan_format: PlanFormat,
) -> list[int]:
    """Writes a plan over the layers of a trace as the engine reads it.

    A bucket of a plan may become several of the engine's, which hold one data type each; sparse
    tensors travel alone. They then follow one another in the place of the one.
    `custom_ops/engine/schedule/plan.h` has the order of the numbers.
    """
    numbers: list[range] = []
    buckets: list[list[int]] = []
    for layers in plan.buckets:
        first = len(buckets)
        buckets += parts([tensor_of_layer[layer] for layer in layers], tensors)
        numbers.append(range(first, len(buckets)))
    return _write(plan, numbers, buckets, tensors, plan_format)


def encode_over_buckets(
    plan: schedules.Plan,
    buckets: Sequence[Sequence[int]],
    bucket_of_layer: Sequence[int],
    tensors: Sequence[TensorSpec],
    plan_format: PlanFormat,
) -> list[int]:
    """Writes, as `encode` does, the order of buckets of tensors that the engine has already.

    The plan is over the layers of a trace of these buckets, one layer in each of its own.
    """
    numbers = [[bucket_of_layer[layer] for layer in layers] for layers in plan.buckets]
    return _write(plan, numbers, buckets, tensors, plan_format)


def _write(
    plan: schedules.Plan,
    numbers: Sequence[Sequence[int]],
    buckets: Sequence[Sequence[int]],
    tensors: Sequence[TensorSpec],
    plan_format: PlanFormat,
) -> list[int]:
    """The numbers of a plan; `numbers` has the engine's buckets that each of its buckets is."""
    steps: list[Step] = []
    sparse_buckets = plan_format.sparse_buckets
    for step in plan.steps:
        for number in numbers[step.bucket]:
            specs = [tensors[tensor] for tensor in buckets[number]]
            if sparse_buckets is not None and _is_exchanged_sparsely(specs, sparse_buckets):
                steps.extend(_sparse_steps(step, number, sparse_buckets.levels))
            else:
                steps.extend(_steps(step, number, specs[0], plan_format))
    steps = _pipeline(steps)
    words = [int(plan.wait_for_all), len(buckets)]
    for bucket in buckets:
        words += [len(bucket), *bucket]
    words.append(len(steps))
    for step in steps:
        words += [_NUMBERS[step.phase], step.bucket, step.chunk, step.chunks]
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
        kind, bucket, chunk, chunks = words[position + 1 : position + 5]
        steps.append(Step(names.STEP_KINDS[kind].name, bucket, chunk, chunks))
        position += 4
    return schedules.Plan(tuple(buckets), tuple(steps), wait_for_all=bool(words[0]))


def parts(members: Sequence[int], tensors: Sequence[TensorSpec]) -> list[list[int]]:
    """The buckets of the engine that are made of tensors which share one of a plan."""
    found: dict[tuple[str, int], list[int]] = {}
    for tensor in members:
        spec = tensors[tensor]
        key = ("alone", tensor) if spec.alone else ("data type", spec.data_type)
        found.setdefault(key, []).append(tensor)
    return list(found.values())


def _step(
    operation: Operation,
    number: int,
    chunk: int = 0,
    chunks: int = 1,
    *,
    group: Group = Group.WORLD,
    wire_format: WireFormat = WireFormat.DENSE,
) -> Step:
    return Step(names.step_kind(operation, group, wire_format).name, number, chunk, chunks)


def _steps(step: Step, number: int, spec: TensorSpec, plan_format: PlanFormat):
    """The engine's steps for one step of a plan and one part of its bucket."""
    operation = Operation[step.phase.upper()]
    if spec.alone and step.chunk > 0:
        return
    if spec.sparse:
        # Gathering rows is one collective, in the place of the first half.
        if operation != Operation.ALL_GATHER:
            yield _step(Operation.ALL_GATHER, number, wire_format=WireFormat.ROWS)
        return
    chunk, chunks = (0, 1) if spec.alone else (step.chunk, step.chunks)
    if plan_format.levels is not None:
        yield from _level_steps(operation, number, chunk, chunks, plan_format.levels)
    elif not plan_format.tree:
        yield _step(operation, number, chunk, chunks)
    elif operation == Operation.REDUCE_SCATTER:
        yield _step(Operation.REDUCE, number, chunk, chunks)
    elif operation == Operation.ALL_GATHER:
        yield _step(Operation.BROADCAST, number, chunk, chunks)
    elif chunk == 0:
        # A broadcast needs the whole sum: an all-reduce along a tree is not cut.
        yield _step(Operation.REDUCE, number)
        yield _step(Operation.BROADCAST, number)


def _is_exchanged_sparsely(specs: list[TensorSpec], sparse_buckets: SparseBuckets) -> bool:
    if specs[0].alone or specs[0].data_type != _FLOAT32:
        return False
    return sum(spec.count for spec in specs) >= max(sparse_buckets.at_least, 1)


def _sparse_steps(step: Step, number: int, levels: Levels | None):
    """The engine's steps for one step of a plan, of a bucket that is exchanged sparsely."""
    operation = Operation[step.phase.upper()]
    reduces, gathers = operation != Operation.ALL_GATHER, operation != Operation.REDUCE_SCATTER
    in_levels = levels is not None and levels.intra > 1
    # Selection needs the whole bucket; only the gathering half alone can be cut.
    if reduces and step.chunk == 0:
        if in_levels:
            yield _step(Operation.REDUCE_SCATTER, number, group=Group.INTRA)
        group = Group.WORLD if levels is None else Group.INTER
        yield _step(Operation.ALL_REDUCE, number, group=group, wire_format=WireFormat.SELECTED)
    if gathers and in_levels:
        if not reduces:
            yield _step(operation, number, step.chunk, step.chunks, group=Group.INTRA)
        elif step.chunk == 0:
            yield _step(Operation.ALL_GATHER, number, group=Group.INTRA)


def _level_steps(operation: Operation, number: int, chunk: int, chunks: int, levels: Levels):
    """A half of an all-reduce, or a whole one, in the levels that there are."""
    if operation == Operation.ALL_REDUCE:
        # Each chunk has a chain of its own.
        for half in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER):
            for group in _groups(half, levels):
                yield _step(half, number, chunk, chunks, group=group)
        return
    # The halves may be cut differently, so only the first level of each works on its chunks; the
    # other follows the last of them, whole.
    first, *second = _groups(operation, levels)
    yield _step(operation, number, chunk, chunks, group=first)
    if second and chunk == chunks - 1:
        yield _step(operation, number, group=second[0])


def _groups(half: Operation, levels: Levels) -> list[Group]:
    """The levels that there are, in the order of the half."""
    groups = [(Group.INTRA, levels.intra), (Group.INTER, levels.inter)]
    if half == Operation.ALL_GATHER:
        groups.reverse()
    return [group for group, size in groups if size > 1]


def _pipeline(steps: list[Step]) -> list[Step]:
    """Lets a node go on with the next bucket while one is summed between the nodes.

    The group of a node takes its steps in order. A last step that waits for other nodes would hold
    up the first step of the next bucket, so it goes behind that, if there is one.
    """
    first = names.step_kind(Operation.REDUCE_SCATTER, Group.INTRA).name
    last = names.step_kind(Operation.ALL_GATHER, Group.INTRA).name
    left = sum(step.phase == first for step in steps)
    ordered, held = [], []
    for step in steps:
        if step.phase == last and left > 0:
            held.append(step)
            continue
        ordered.append(step)
        if step.phase == first:
            left -= 1
            ordered += held
            held = []
    return ordered
