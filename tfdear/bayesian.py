# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Bayesian optimization of the bucket size while training runs. Imports no TensorFlow."""

import math
from typing import Any

import numpy as np

from tfdear.cost_model import CommunicationCosts
from tfdear.planned import Planned
from tfdear.search import Search
from tfdear.trace import Trace

__all__ = ["Bayesian"]

_DEFAULT_START = 25 << 20


class Bayesian(Search):
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

    >>> from tfdear.fusion import Bayesian
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
        self.start = start if isinstance(start, str) else int(start)
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
