# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the line can carry until the next bucket is ready. Imports no TensorFlow.

[Note: Fills] Between two times at which buckets become ready, the order on the line does not
matter, only which halves are carried to their ends, which in part, and what is on the line at the
end. `Fills` yields every such choice that may be part of the best plan. Two of them are
relaxations, more than a plan can do: a half cut into more parts than are distinguished pays that
many start-ups at once and may then be cut anywhere; and so may two or more halves that are carried
in part in the same gap. `docs/fusion.md` proves that no plan is better than the best of these
choices.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Half(NamedTuple):
    """What is left of a half of a bucket."""

    seconds: float  # Of one part.
    left: int  # Parts that are left.
    parts: int  # Parts in all; 1: not cut, but it can be; 0: it may be cut anywhere at no cost.

    @property
    def time(self) -> float:
        """Seconds of all that is left."""
        return self.seconds * self.left

    def cut(self, parts: int, start_up: float) -> "Half":
        """The half, which is whole, in so many parts; each has the start-up, in seconds."""
        return Half(start_up + (self.seconds - start_up) / parts, parts, parts)


DONE = Half(0.0, 0, 0)


class Bucket(NamedTuple):
    """A bucket that waits for the line; its all-gather comes after its reduce-scatter."""

    forward: float  # Seconds of the forward pass from its first layer on.
    number: int  # Its index in the bucket list.
    scatter: Half
    gather: Half

    @property
    def next(self) -> int:
        """0: the reduce-scatter is next; 1: the all-gather."""
        return 0 if self.scatter.left else 1

    @property
    def half(self) -> Half:
        """The half that is next."""
        return self.scatter if self.scatter.left else self.gather

    def after(self, half: Half) -> "Bucket":
        """The bucket with another state of the half that is next."""
        if self.scatter.left:
            return Bucket(self.forward, self.number, half, self.gather)
        return Bucket(self.forward, self.number, self.scatter, half)


class Carried(NamedTuple):
    """Parts of a half that were carried."""

    half: int  # 0: of the reduce-scatter; 1: of the all-gather.
    number: int  # The bucket's index in the bucket list.
    run: int  # Parts that were carried.
    parts: int  # Parts in all.


class Fill(NamedTuple):
    """A choice of what the line does."""

    end: float  # When the line is free.
    waiting: tuple[Bucket, ...]  # What waits then, the most urgent first.
    carried: tuple[Carried, ...] | None  # None for a relaxation, which is more than a plan can do.


def everything_of(buckets: Iterable[Bucket]) -> tuple[Carried, ...]:
    """All that is left of buckets, in the order in which it is carried."""
    return tuple(
        Carried(which, bucket.number, half.left, half.parts)
        for bucket in buckets
        for which, half in enumerate((bucket.scatter, bucket.gather))
        if half.left
    )


def all_carried(chain: tuple, waiting: Iterable[Bucket]) -> tuple[Carried, ...]:
    """What was carried on the way to a leaf, and then what waits.

    `chain` has the chain of the node before, and what was carried since.
    """
    groups = [everything_of(waiting)]
    while chain:
        chain, carried = chain
        groups.append(carried)
    return tuple(itertools.chain.from_iterable(reversed(groups)))


@dataclasses.dataclass(frozen=True)
class Fills:
    """The choices for a gap in which not all that waits can be carried."""

    until: float  # When the next bucket is ready.
    start_ups: tuple[float, float]  # Seconds, of a reduce-scatter and of an all-gather.
    parts: int  # Halves in up to this many parts are distinguished.

    def of(self, room: float, waiting: tuple[Bucket, ...]) -> Iterator[Fill]:
        """Yields them; the line is free for `room` seconds, the most urgent bucket waits first."""
        for left, rest, carried in _completed(room, waiting):
            # Waiting while something fits is no better than carrying it.
            if all(bucket.half.time > left for bucket in rest):
                yield Fill(self.until, rest, carried)
            if left <= 0:
                continue
            yield from self._ends(left, rest, carried, None)
            if self.parts > 1:
                yield from self._one_in_part(left, rest, carried)
                yield from self._several_in_part(left, rest)

    def _cuts(self, bucket: Bucket) -> Iterator[Half]:
        """The next half of a bucket in each number of parts that it may be sent in, except one."""
        half = bucket.half
        if half.parts > 1:
            yield half
        elif half.parts == 1:
            start_up = self.start_ups[bucket.next]
            # A half that takes no time is not worth cutting.
            for parts in range(2, self.parts + 1 if half.seconds > 0 else 2):
                yield half.cut(parts, start_up)

    def _ends(self, left, rest, carried, skipped) -> Iterator[Fill]:
        """What is on the line at the end of the gap: carried to its end, or cut there."""
        begin = self.until - left
        for index, bucket in enumerate(rest):
            half = bucket.half
            if index == skipped or half.time <= left:
                continue

            def fill(end, new, count, parts, index=index, bucket=bucket):
                steps = carried
                if steps is not None:
                    steps = (*steps, Carried(bucket.next, bucket.number, count, parts))
                return Fill(end, put(rest, index, bucket.after(new)), steps)

            if half.parts:
                yield fill(begin + half.time, DONE, half.left, half.parts)
            for cut in self._cuts(bucket):
                count = int(left / cut.seconds) + 1
                if count < cut.left:
                    new = Half(cut.seconds, cut.left - count, cut.parts)
                    yield fill(begin + count * cut.seconds, new, count, cut.parts)
            # Cut at the end of the gap, or later.
            if half.parts == 0:
                new = Half(half.seconds - left, 1, 0)
            elif half.parts == 1:
                start_ups = self.parts * self.start_ups[bucket.next]
                new = Half(half.seconds + start_ups - left, 1, 0)
            else:
                continue
            yield Fill(self.until, put(rest, index, bucket.after(new)), None)

    def _one_in_part(self, left, rest, carried) -> Iterator[Fill]:
        """One half is carried in part before what is on the line at the end of the gap."""
        for index, bucket in enumerate(rest):
            for cut in self._cuts(bucket):
                most = min(int(left / cut.seconds), cut.left - 1)
                for count in range(1, most + 1):
                    after = bucket.after(Half(cut.seconds, cut.left - count, cut.parts))
                    other = put(rest, index, after)
                    steps = carried
                    if steps is not None:
                        step = Carried(bucket.next, bucket.number, count, cut.parts)
                        steps = (*steps, step)
                    if count == most:
                        yield Fill(self.until, other, steps)
                    yield from self._ends(left - count * cut.seconds, other, steps, index)

    def _several_in_part(self, left, rest) -> Iterator[Fill]:
        """Two or more halves are: each has paid for at least one cut, and may be cut anywhere."""
        for size in range(2, len(rest) + 1):
            for indices in itertools.combinations(range(len(rest)), size):
                least = 0.0
                freed = list(rest)
                for index in indices:
                    bucket = rest[index]
                    half, start_up = bucket.half, self.start_ups[bucket.next]
                    least += half.seconds if half.parts > 1 else start_up
                    time = half.time + (start_up if half.parts == 1 else 0.0)
                    freed[index] = bucket.after(Half(time, 1, 0))
                if least >= left:
                    continue
                for number in range(size):
                    for done in itertools.combinations(indices, number):
                        room = left - sum(freed[index].half.time for index in done)
                        if room < 0:
                            continue
                        after = tuple(
                            bucket.after(DONE) if index in done else bucket
                            for index, bucket in enumerate(freed)
                        )
                        live = tuple(bucket for bucket in after if bucket.gather.left)
                        yield from self._ends(room, live, None, None)
                        yield Fill(self.until, live, None)


def _completed(room: float, waiting: tuple[Bucket, ...]) -> Iterator:
    """For every set of halves that can be carried to their ends: room left, what waits, steps."""
    if not waiting:
        yield room, (), ()
        return
    first = waiting[0]
    scatter, gather = first.scatter.time, first.gather.time
    steps = everything_of([first])
    for left, rest, carried in _completed(room, waiting[1:]):
        yield left, (first, *rest), carried
        if first.scatter.left and scatter <= left:
            yield left - scatter, (first.after(DONE), *rest), (steps[0], *carried)
        if scatter + gather <= left:
            yield left - scatter - gather, rest, (*steps, *carried)


def put(rest: tuple[Bucket, ...], index: int, bucket: Bucket) -> tuple[Bucket, ...]:
    """What waits with another state of the bucket at this index, which goes when it is done."""
    if bucket.gather.left:
        return (*rest[:index], bucket, *rest[index + 1 :])
    return (*rest[:index], *rest[index + 1 :])
