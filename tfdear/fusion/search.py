# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Planners that try bucket sizes while training runs: their base class and the two baselines.

Imports no TensorFlow.
"""

import abc
import math

import numpy as np

from tfdear.base.checks import is_whole
from tfdear.fusion.fixed import FixedSize
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

# [Note: Drift] After the search has ended, this many observations give the usual step time; the
# search starts again when as many later ones all differ from it. One slow observation (a
# checkpoint, another program on the machine) is no drift.
_DRIFT_WINDOW = 3


class Search(abc.ABC):
    """What all searches share: the trials, the best of them, the end, the drift.

    A subclass chooses sizes in `_first` and `_next`, and documents the arguments.
    """

    def __init__(
        self,
        low: int = 1_000_000,
        high: int = 100_000_000,
        *,
        trials: int = 20,
        steps_per_trial: int = 10,
        drift: float = 0.2,
    ) -> None:
        if not 1 <= low < high < math.inf:
            raise ValueError(
                "`low` and `high` must be numbers of bytes with 1 <= low < high. "
                f"Received: low={low!r}, high={high!r}"
            )
        for name, value in (("trials", trials), ("steps_per_trial", steps_per_trial)):
            if not is_whole(value) or value < 1:
                raise ValueError(
                    f"`{name}` must be a positive whole number. Received: {name}={value!r}"
                )
        if not 0 < drift < math.inf:
            raise ValueError(
                "`drift` must be a positive fraction of the step time, such as 0.2. "
                f"Received: drift={drift!r}"
            )
        # Converted, because 1e6 is a usual way to write a million.
        self.low = int(low)
        self.high = int(high)
        self.trials = trials
        self.steps_per_trial = steps_per_trial
        self.drift = drift
        self._sizes: list[int] = []
        self._seconds: list[float] = []
        self._since_done: list[float] = []
        self._bytes: int | None = None
        self._done = False

    @property
    def needs_profile(self) -> bool:
        """Whether `buckets` wants measured layer times and costs."""
        return False

    @property
    def done(self) -> bool:
        """Whether the search has ended; `buckets` then gives the best plan."""
        return self._done

    @property
    def history(self) -> list[tuple[int, float]]:
        """The trials of this search so far: bucket size in bytes, seconds per step."""
        return list(zip(self._sizes, self._seconds, strict=True))

    @property
    def best(self) -> int:
        """The best bucket size so far, in bytes; without any trial, that of the first."""
        if not self._sizes:
            return self._current()
        return self._sizes[int(np.argmin(self._seconds))]

    @property
    def bytes(self) -> int:
        """The bucket size to use now, in bytes: that of the trial, or the best after the search."""
        return self.best if self._done else self._current()

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None = None, schedule: str = "dear"
    ) -> list[list[int]]:
        """Returns the buckets of the current trial, or of the best one after the search.

        Args:
            trace: The model.
            costs: The network. Defaults to None: unknown.
            schedule: Which of `tfdear.schedules.SCHEDULES` runs. Defaults to "dear".

        Returns:
            The layers of each bucket, in backward order.
        """
        return FixedSize(self.bytes).buckets(trace, costs, schedule)

    def observe(self, seconds_per_step: float) -> None:
        """Ends a trial with its step time, which chooses the next one.

        Call it on one rank, with the mean over `steps_per_trial` steps, and give the buckets that
        follow to the others. Call it as often when `done`: a drift of the step time starts a new
        search.

        Args:
            seconds_per_step: Mean time of a step with the current buckets, in seconds.

        Raises:
            ValueError: The time is not positive.
        """
        if not 0 < seconds_per_step < math.inf:
            raise ValueError(
                "`seconds_per_step` must be a positive time in seconds. "
                f"Received: seconds_per_step={seconds_per_step!r}"
            )
        if self._done:
            self._watch(seconds_per_step)
            return
        self._sizes.append(self._current())
        self._seconds.append(float(seconds_per_step))
        following = self._next() if len(self._sizes) < self.trials else None
        if following is None:
            self._done = True
        else:
            self._bytes = following

    def _watch(self, seconds: float) -> None:
        """Starts again when the step time differs from the usual one; see [Note: Drift]."""
        self._since_done.append(seconds)
        if len(self._since_done) < 2 * _DRIFT_WINDOW:
            return
        usual = float(np.median(self._since_done[:_DRIFT_WINDOW]))
        recent = np.array(self._since_done[-_DRIFT_WINDOW:]) / usual
        del self._since_done[_DRIFT_WINDOW:-_DRIFT_WINDOW]
        # All of them on the same side, not only their mean.
        if recent.min() > 1 + self.drift or recent.max() < 1 - self.drift:
            self._restart(self.best)

    def _restart(self, size: int) -> None:
        """Starts a new search with this size; the old trials are no longer valid."""
        self._bytes = size
        self._sizes, self._seconds, self._since_done = [], [], []
        self._done = False

    def _current(self) -> int:
        if self._bytes is None:
            self._bytes = self._first()
        return self._bytes

    def _at(self, position: float) -> int:
        """The size at a position between 0 (`low`) and 1 (`high`) on the log axis."""
        return self._clip(self.low * (self.high / self.low) ** position)

    def _clip(self, size: float) -> int:
        return min(max(round(size), self.low), self.high)

    def _position(self, size: int) -> float:
        return math.log(size / self.low) / math.log(self.high / self.low)

    @abc.abstractmethod
    def _first(self) -> int:
        """The size of the first trial of all, in bytes."""

    @abc.abstractmethod
    def _next(self) -> int | None:
        """The size of the next trial, in bytes; None ends the search."""


class RandomSearch(Search):
    """Searches the bucket size by trying random ones, evenly spread over the log axis.

    Use it as a baseline of `Bayesian`.

    Args:
        low: Smallest bucket size, in bytes. Defaults to 1 MB.
        high: Largest bucket size, in bytes. Defaults to 100 MB.
        trials: Number of trials. Defaults to 20.
        steps_per_trial: Steps over which the caller averages. Defaults to 10.
        drift: Relative change of the step time that starts a new search. Defaults to 0.2.
        seed: Seed of the random numbers. Defaults to 0.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear.fusion import RandomSearch
    >>> planner = RandomSearch(trials=1)
    >>> planner.observe(0.5)
    >>> planner.done
    True

    Reference: Zhang et al., "DeAR", section VI-G.
    """

    def __init__(
        self,
        low: int = 1_000_000,
        high: int = 100_000_000,
        *,
        trials: int = 20,
        steps_per_trial: int = 10,
        drift: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(low, high, trials=trials, steps_per_trial=steps_per_trial, drift=drift)
        self._random = np.random.default_rng(seed)

    def _first(self) -> int:
        return self._at(self._random.random())

    def _next(self) -> int | None:
        return self._first()


class GridSearch(Search):
    """Searches the bucket size by trying evenly spread ones on the log axis, small ones first.

    Use it as a baseline of `Bayesian`, or to see the whole curve.

    Args:
        low: Smallest bucket size, in bytes. Defaults to 1 MB.
        high: Largest bucket size, in bytes. Defaults to 100 MB.
        trials: Number of trials. Defaults to 20.
        steps_per_trial: Steps over which the caller averages. Defaults to 10.
        drift: Relative change of the step time that starts a new search. Defaults to 0.2.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear.fusion import GridSearch
    >>> planner = GridSearch(low=1, high=100, trials=3)
    >>> for seconds in (0.3, 0.1, 0.2):
    ...     planner.observe(seconds)
    >>> planner.done, planner.best
    (True, 10)

    Reference: Zhang et al., "DeAR", section VI-G.
    """

    def _restart(self, size: int) -> None:
        super()._restart(self.low)

    def _first(self) -> int:
        return self.low

    def _next(self) -> int | None:
        return self._at(len(self._sizes) / (self.trials - 1))
