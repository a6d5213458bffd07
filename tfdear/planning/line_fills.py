# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the line may do until the next bucket is ready. Imports no TensorFlow.

[Note: Fills] Between two times at which buckets become ready, the order on the line decides
nothing: what matters is which halves are carried to their ends, which in part, and what is on the
line at the end. `fills` names every such choice that may be the best of all plans. A half that is
cut into more parts than are told apart pays for so many start-ups at once and may then be cut
anywhere, which is more than a plan can do; so is what is said of two halves or more that are
carried in part in the same gap. `docs/fusion.md` proves that no plan does better than the best of
these choices.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Bucket", "Carried", "Fill", "Half", "everything_of", "fills"]


class Half(NamedTuple):
    """What is left of a half of a bucket.

    Args:
        seconds: Of a part.
        left: Parts that are left.
        parts: Parts in all; 1: it was not cut, and may be; 0: it may be cut anywhere at no cost.
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
        number: Its place in the bucket list.
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
        number: The bucket's place in the bucket list.
        run: How many parts.
        parts: Of how many.
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
        carried: What was carried; None: more than a plan can do.
    """

    end: float
    waiting: tuple[Bucket, ...]
    carried: tuple[Carried, ...] | None


def everything_of(bucket: Bucket) -> tuple[Carried, ...]:
    """All that is left of a bucket, as it is carried."""
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
    """Names every choice for the room before a time in which not all that waits can be done.

    Args:
        until: The time when the next bucket is ready.
        room: Seconds before it, from when on the line is free.
        waiting: The buckets that wait, the most urgent first.
        start_ups: Of a reduce-scatter and of an all-gather, in seconds.
        parts: Halves in up to so many parts are told apart.
    """
    return _Fills(until, start_ups, parts).of(room, tuple(waiting))


@dataclasses.dataclass(frozen=True)
class _Fills:
    until: float
    start_ups: tuple[float, float]
    parts: int

    def of(self, room: float, waiting: tuple[Bucket, ...]) -> Iterator[Fill]:
        for left, rest, carried in _completed(room, waiting):
            # To wait while something fits is no better than to carry it.
            if all(bucket.half.time > left for bucket in rest):
                yield Fill(self.until, rest, carried)
            if left <= 0:
                continue
            yield from self._ends(left, rest, carried, None)
            if self.parts > 1:
                yield from self._one_in_part(left, rest, carried)
                yield from self._several_in_part(left, rest)

    def _cuts(self, bucket: Bucket) -> Iterator[Half]:
        """The numbers of parts in which the next half of a bucket may travel, but for one."""
        half = bucket.half
        if half.parts > 1:
            yield half
        elif half.parts == 1:
            start_up = self.start_ups[bucket.next]
            # What takes no time is not worth cutting.
            for parts in range(2, self.parts + 1 if half.seconds > 0 else 2):
                yield Half(start_up + (half.seconds - start_up) / parts, parts, parts)

    def _ends(self, left, rest, carried, but) -> Iterator[Fill]:
        """What is on the line when the time comes: carried to its end, or cut there."""
        begin = self.until - left
        for place, bucket in enumerate(rest):
            half = bucket.half
            if place == but or half.time <= left:
                continue

            def fill(end, new, count, parts, place=place, bucket=bucket):
                steps = carried
                if steps is not None:
                    steps = (*steps, Carried(bucket.next, bucket.number, count, parts))
                return Fill(end, _put(rest, place, bucket.after(new)), steps)

            if half.parts:
                yield fill(begin + half.time, _DONE, half.left, half.parts)
            for cut in self._cuts(bucket):
                count = int(left / cut.seconds) + 1
                if count < cut.left:
                    new = Half(cut.seconds, cut.left - count, cut.parts)
                    yield fill(begin + count * cut.seconds, new, count, cut.parts)
            # Cut where the time is, or later while it goes on.
            if half.parts == 0:
                new = Half(half.seconds - left, 1, 0)
            elif half.parts == 1:
                start_ups = self.parts * self.start_ups[bucket.next]
                new = Half(half.seconds + start_ups - left, 1, 0)
            else:
                continue
            yield Fill(self.until, _put(rest, place, bucket.after(new)), None)

    def _one_in_part(self, left, rest, carried) -> Iterator[Fill]:
        """One half is carried in part before what is on the line when the time comes."""
        for place, bucket in enumerate(rest):
            for cut in self._cuts(bucket):
                most = min(int(left / cut.seconds), cut.left - 1)
                for count in range(1, most + 1):
                    after = bucket.after(Half(cut.seconds, cut.left - count, cut.parts))
                    other = _put(rest, place, after)
                    steps = carried
                    if steps is not None:
                        step = Carried(bucket.next, bucket.number, count, cut.parts)
                        steps = (*steps, step)
                    if count == most:
                        yield Fill(self.until, other, steps)
                    yield from self._ends(left - count * cut.seconds, other, steps, place)

    def _several_in_part(self, left, rest) -> Iterator[Fill]:
        """Two halves or more are: each has paid for a cut at least, and may be cut anywhere."""
        for size in range(2, len(rest) + 1):
            for places in itertools.combinations(range(len(rest)), size):
                least = 0.0
                freed = list(rest)
                for place in places:
                    bucket = rest[place]
                    half, start_up = bucket.half, self.start_ups[bucket.next]
                    least += half.seconds if half.parts > 1 else start_up
                    time = half.time + (start_up if half.parts == 1 else 0.0)
                    freed[place] = bucket.after(Half(time, 1, 0))
                if least >= left:
                    continue
                for number in range(size):
                    for done in itertools.combinations(places, number):
                        room = left - sum(freed[place].half.time for place in done)
                        if room < 0:
                            continue
                        after = tuple(
                            bucket.after(_DONE) if place in done else bucket
                            for place, bucket in enumerate(freed)
                        )
                        live = tuple(bucket for bucket in after if bucket.gather.left)
                        yield from self._ends(room, live, None, None)
                        yield Fill(self.until, live, None)


def _completed(room: float, waiting: tuple[Bucket, ...]) -> Iterator:
    """Every set of halves that can be carried to their ends: room left, what waits, steps."""
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


def _put(rest: tuple[Bucket, ...], place: int, bucket: Bucket) -> tuple[Bucket, ...]:
    if bucket.gather.left:
        return (*rest[:place], bucket, *rest[place + 1 :])
    return (*rest[:place], *rest[place + 1 :])
