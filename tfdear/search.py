# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Planners that search for the best bucket size by trying sizes. Imports no TensorFlow."""

import abc
import math
from typing import Any

import numpy as np

from tfdear.cost_model import CommunicationCosts
from tfdear.trace import Trace

__all__ = ["Bayesian", "GridSearch", "RandomSearch"]

_DEFAULT_START = 25 << 20

# [Note: Drift] After the search has ended, this many observations give the usual step time; as
# many later ones together must leave it before the search begins again. One slow observation (a
# checkpoint, a neighbour on the machine) is no drift.
_DRIFT_WINDOW = 3


class _Search(abc.ABC):
    """The part that is common to all searches: the trials, the best of them, the end, the drift."""

    def __init__(
        self, low: int, high: int, trials: int, steps_per_trial: int, drift: float
    ) -> None:
        if not 1 <= low < high:
            raise ValueError(
                "`low` and `high` must be numbers of bytes with 1 <= low < high. "
                f"Received: low={low!r}, high={high!r}"
            )
        for name, value in (("trials", trials), ("steps_per_trial", steps_per_trial)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"`{name}` must be a positive whole number. Received: {name}={value!r}"
                )
        if not 0 < drift < math.inf:
            raise ValueError(
                "`drift` must be a positive fraction of the step time, such as 0.2. "
                f"Received: drift={drift!r}"
            )
        self.low = low
        self.high = high
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
        """The best bucket size so far, in bytes; before the first trial, the one to begin with."""
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
        # Here, not above: that module gives the searches its name too.
        from tfdear.fusion import FixedSize

        return FixedSize(self.bytes).buckets(trace, costs, schedule)

    def observe(self, seconds_per_step: float) -> None:
        """Ends a trial with its step time, which chooses the next one.

        Call it on one rank, with the mean over `steps_per_trial` steps, and give the buckets that
        follow to the others. Call it at the same pace when `done`: a drift of the step time
        begins a new search.

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
        """Begins again when the step time has left the usual one; see [Note: Drift]."""
        self._since_done.append(seconds)
        if len(self._since_done) < 2 * _DRIFT_WINDOW:
            return
        usual = float(np.median(self._since_done[:_DRIFT_WINDOW]))
        recent = np.array(self._since_done[-_DRIFT_WINDOW:]) / usual
        del self._since_done[2 * _DRIFT_WINDOW - 1 : -_DRIFT_WINDOW]
        # All of them on the same side, not only their mean.
        if recent.min() > 1 + self.drift or recent.max() < 1 - self.drift:
            self._begin_with(self.best)

    def _begin_with(self, size: int) -> None:
        """Forgets the trials: what they measured is no longer so."""
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


class Bayesian(_Search):
    """Searches the bucket size with Bayesian optimization while training runs.

    Use it where layer times or costs cannot be modelled well: it needs nothing but step times. A
    Gaussian process over the logarithm of the size predicts the logarithm of the step time, and the
    next trial is where the expected improvement is largest. The search ends by itself.

    Args:
        low: Smallest bucket size, in bytes. Defaults to 1 MB.
        high: Largest bucket size, in bytes. Defaults to 100 MB.
        start: Bucket size of the first trial, in bytes, or "planned": the mean bucket of `Planned`,
            which wants a profile. The next two are a third and three times that. Defaults to
            25 MiB.
        xi: Improvement below which a trial is not worth it, in standard deviations of the measured
            log times; more explores more. Defaults to 0.1, as in the paper.
        trials: Largest number of trials. Defaults to 12.
        steps_per_trial: Steps over which the caller averages. Defaults to 10.
        noise: Relative standard deviation of such an average. Defaults to 0.01.
        tolerance: The search ends when the expected improvement is less than this fraction of the
            step time. Defaults to 0.005.
        drift: Relative change of the step time that begins a new search. Defaults to 0.2.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear.search import Bayesian
    >>> planner = Bayesian()
    >>> while not planner.done:
    ...     megabytes = planner.bytes / 1e6
    ...     planner.observe(0.1 + 0.2 / megabytes + 0.002 * megabytes)  # best at 10 MB
    >>> 5e6 < planner.best < 20e6
    True

    Reference: Zhang et al., "DeAR", section IV-B; Snoek et al., "Practical Bayesian Optimization of
    Machine Learning Algorithms", NeurIPS 2012.
    """

    def __init__(
        self,
        low: int = 1_000_000,
        high: int = 100_000_000,
        *,
        start: int | str = _DEFAULT_START,
        xi: float = 0.1,
        trials: int = 12,
        steps_per_trial: int = 10,
        noise: float = 0.01,
        tolerance: float = 0.005,
        drift: float = 0.2,
    ) -> None:
        super().__init__(low, high, trials, steps_per_trial, drift)
        if start != "planned" and (isinstance(start, str) or not low <= start <= high):
            raise ValueError(
                '`start` must be "planned" or a number of bytes between `low` and `high`. '
                f"Received: start={start!r}, low={low!r}, high={high!r}"
            )
        for name, value in (("xi", xi), ("noise", noise), ("tolerance", tolerance)):
            if not 0 <= value < math.inf:
                raise ValueError(f"`{name}` must be zero or more. Received: {name}={value!r}")
        self.start = start
        self.xi = xi
        self.noise = noise
        self.tolerance = tolerance

    @property
    def needs_profile(self) -> bool:
        """Whether `buckets` wants measured layer times and costs: to start from `Planned`."""
        return self.start == "planned"

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None = None, schedule: str = "dear"
    ) -> list[list[int]]:
        if self.start == "planned" and self._bytes is None and costs is not None:
            from tfdear.fusion import Planned

            mean = trace.bytes / len(Planned().buckets(trace, costs, schedule))
            self._bytes = self._clip(mean)
        return super().buckets(trace, costs, schedule)

    def _first(self) -> int:
        if isinstance(self.start, str):
            return self._clip(_DEFAULT_START)
        return self.start

    def _next(self) -> int | None:
        # One point tells nothing about where to go, and the ends of the axis, where the process
        # knows least, are rarely any good.
        if len(self._sizes) < 3:
            return self._clip(self._sizes[0] * (1 / 3 if len(self._sizes) == 1 else 3))
        from skopt.acquisition import gaussian_ei

        axis = np.linspace(0.0, 1.0, 201).reshape(-1, 1)
        model, scale = self._model()
        known = np.array([self._position(size) for size in self._sizes]).reshape(-1, 1)
        best = float(model.predict(known).min())
        improvement = gaussian_ei(axis, model, best, self.xi)
        # Without xi, for the end: xi says where to look, not what there is to gain. In logarithms
        # a difference is a fraction of the step time.
        gain = float(gaussian_ei(axis, model, best, 0.0).max()) * scale
        if len(self._sizes) >= 4 and gain < self.tolerance:
            return None
        return self._at(float(axis[int(np.argmax(improvement)), 0]))

    def _model(self) -> tuple[Any, float]:
        """Fits the process to the standardised log times; returns it and their scale."""
        # Here, not above: scikit-optimize takes a second to load.
        from skopt.learning import GaussianProcessRegressor
        from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern

        logs = np.log(self._seconds)
        # At least the noise: two trials that differ by less say nothing about the scale.
        scale = max(float(logs.std()), self.noise, 1e-6)
        # Fixed, since so few trials cannot tell them: a length of half the axis (a decade), and
        # twice the deviation of the trials, which have not seen all of it.
        kernel = ConstantKernel(4.0, "fixed") * Matern(0.5, "fixed", nu=2.5)
        model = GaussianProcessRegressor(
            kernel,
            alpha=max((self.noise / scale) ** 2, 1e-8),
            optimizer=None,
            random_state=0,
        )
        positions = np.array([[self._position(size)] for size in self._sizes])
        model.fit(positions, (logs - logs.mean()) / scale)
        return model, scale


class RandomSearch(_Search):
    """Searches the bucket size by trying random ones, evenly spread over the log axis.

    Use it as a baseline of `Bayesian`.

    Args:
        low: Smallest bucket size, in bytes. Defaults to 1 MB.
        high: Largest bucket size, in bytes. Defaults to 100 MB.
        trials: Number of trials. Defaults to 20.
        steps_per_trial: Steps over which the caller averages. Defaults to 10.
        drift: Relative change of the step time that begins a new search. Defaults to 0.2.
        seed: Seed of the random numbers. Defaults to 0.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear.search import RandomSearch
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
        super().__init__(low, high, trials, steps_per_trial, drift)
        self._random = np.random.default_rng(seed)

    def _first(self) -> int:
        return self._at(self._random.random())

    def _next(self) -> int | None:
        return self._first()


class GridSearch(_Search):
    """Searches the bucket size by trying evenly spread ones on the log axis, small ones first.

    Use it as a baseline of `Bayesian`, or to see the whole curve.

    Args:
        low: Smallest bucket size, in bytes. Defaults to 1 MB.
        high: Largest bucket size, in bytes. Defaults to 100 MB.
        trials: Number of trials. Defaults to 20.
        steps_per_trial: Steps over which the caller averages. Defaults to 10.
        drift: Relative change of the step time that begins a new search. Defaults to 0.2.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear.search import GridSearch
    >>> planner = GridSearch(low=1, high=100, trials=3)
    >>> for seconds in (0.3, 0.1, 0.2):
    ...     planner.observe(seconds)
    >>> planner.done, planner.best
    (True, 10)

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
    ) -> None:
        super().__init__(low, high, trials, steps_per_trial, drift)

    def _begin_with(self, size: int) -> None:
        super()._begin_with(self.low)

    def _first(self) -> int:
        return self.low

    def _next(self) -> int | None:
        return self._at(len(self._sizes) / (self.trials - 1))
