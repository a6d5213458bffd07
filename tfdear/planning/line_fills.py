# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the line can carry until the next bucket is ready. Imports no TensorFlow.

[Note: Fills] Between two times at which buckets become ready, the order on the line does not
matter, only which halves are carried to their ends, which in part, and what is on the line at the
end. `fills` yields every such choice that may be part of the best plan. Two of them are
relaxations, more than a plan can do: a half cut into more parts than are distinguished pays that
many start-ups at once and may then be cut anywhere; and so may two or more halves that are carried
in part in the same gap. `docs/fusion.md` proves that no plan is better than the best of these
choices.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Bucket", "Carried", "Fill", "Half", "everything_of", "fills"]


class Half(NamedTuple):
    """What is left of a half of a bucket.

    Args:
        seconds: Seconds of one part.
        left: Parts that are left.
        parts: Parts in all; 1: not cut, but it can be; 0: it may be cut anywhere at no cost.
    """

    seconds: float
    left: int
    parts: int

    @property
    def time(self) -> float:
        """Seconds of all that is left."""
        return self.seconds * self.left


_DONE = Half(0.0, 0, 0)


class Bucket(NamedTuple):
    """A bucket that waits for the line.

    Args:
        forward: Seconds of the forward pass from its first layer on.
        number: Its index in the bucket list.
        scatter: What is left of its reduce-scatter.
        gather: What is left of its all-gather, which comes afterwards.
    """

    forward: float
    number: int
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
    """Parts of a half that were carried.

    Args:
        half: 0: of the reduce-scatter; 1: of the all-gather.
        number: The bucket's index in the bucket list.
        run: Number of parts that were carried.
        parts: Number of parts in all.
    """

    half: int
    number: int
    run: int
    parts: int


class Fill(NamedTuple):
    """A choice of what the line does.

    Args:
        end: When the line is free.
        waiting: What waits then, the most urgent first.
        carried: What was carried; None for a relaxation, which is more than a plan can do.
    """

    end: float
    waiting: tuple[Bucket, ...]
    carried: tuple[Carried, ...] | None


def everything_of(bucket: Bucket) -> tuple[Carried, ...]:
    """All that is left of a bucket, in the order in which it is carried."""
    halves = (bucket.scatter, bucket.gather)
    return tuple(
        Carried(which, bucket.number, half.left, half.parts)
        for which, half in enumerate(halves)
        if half.left
    )


def fills(
    until: float,
    room: float,
    waiting: Sequence[Bucket],
    start_ups: tuple[float, float],
    parts: int,
) -> Iterator[Fill]:
    """Yields every choice for a gap in which not all that waits can be carried.

    Args:
        until: The time when the next bucket is ready.
        room: Seconds before that time during which the line is free.
        waiting: The buckets that wait, the most urgent first.
        start_ups: Start-ups of a reduce-scatter and of an all-gather, in seconds.
        parts: Halves in up to this many parts are distinguished.
    """
    return _Fills(until, start_ups, parts).of(room, tuple(waiting))


@dataclasses.dataclass(frozen=True)
class _Fills:
    until: float
    start_ups: tuple[float, float]
    parts: int

    def of(self, room: float, waiting: tuple[Bucket, ...]) -> Iterator[Fill]:
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
                yield Half(start_up + (half.seconds - start_up) / parts, parts, parts)

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
                return Fill(end, _put(rest, index, bucket.after(new)), steps)

            if half.parts:
                yield fill(begin + half.time, _DONE, half.left, half.parts)
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
            yield Fill(self.until, _put(rest, index, bucket.after(new)), None)

    def _one_in_part(self, left, rest, carried) -> Iterator[Fill]:
        """One half is carried in part before what is on the line at the end of the gap."""
        for index, bucket in enumerate(rest):
            for cut in self._cuts(bucket):
                most = min(int(left / cut.seconds), cut.left - 1)
                for count in range(1, most + 1):
                    after = bucket.after(Half(cut.seconds, cut.left - count, cut.parts))
                    other = _put(rest, index, after)
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
                            bucket.after(_DONE) if index in done else bucket
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
    steps = everything_of(first)
    for left, rest, carried in _completed(room, waiting[1:]):
        yield left, (first, *rest), carried
        if first.scatter.left and scatter <= left:
            yield left - scatter, (first.after(_DONE), *rest), (steps[0], *carried)
        if scatter + gather <= left:
            yield left - scatter - gather, rest, (*steps, *carried)


def _put(rest: tuple[Bucket, ...], index: int, bucket: Bucket) -> tuple[Bucket, ...]:
    if bucket.gather.left:
        return (*rest[:index], bucket, *rest[index + 1 :])
    return (*rest[:index], *rest[index + 1 :])
