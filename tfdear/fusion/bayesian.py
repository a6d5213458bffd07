# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Bayesian optimization of the bucket size while training runs. Imports no TensorFlow."""

import math
import warnings
from typing import Any

import numpy as np

from tfdear.fusion.planned import Planned
from tfdear.fusion.planner import DEFAULT_BUCKET_BYTES
from tfdear.fusion.search import Search
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

# Trials before the Gaussian process is fitted. After one, it is uncertain far from there, which is
# where the next trials go.
_FIRST_TRIALS = 1
# Positions on the axis at which the expected improvement is computed.
_NUM_CANDIDATES = 400
_LEAST_TRIALS = 7
# Bounds of the process's length scale, as fractions of the axis.
_LENGTHS = (0.25, 1.0)
# Log times with a smaller deviation say nothing about the size.
_LEAST_DEVIATION = 1e-3

# The weight of a measured time, which is noisy, against that of the predicted one, which is smooth.
_MEASURED_WEIGHT = 0.5
# From this many trials on, predictions count.
_LEAST_TRIALS_TO_PREDICT = 3


class Bayesian(Search):
    """Searches the bucket size with Bayesian optimization while training runs.

    Use it where layer times or costs cannot be modelled well: it needs nothing but step times. It
    is scikit-optimize's `Optimizer`: a Gaussian process over the logarithm of the size, whose
    length, scale and noise are fitted to the trials, predicts the logarithm of the step time, and
    the next trial is where the expected improvement is largest. The search ends by itself.

    Args:
        low: Smallest bucket size, in bytes. Defaults to 1 MB.
        high: Largest bucket size, in bytes. Defaults to 100 MB.
        start: Bucket size of the first trial, in bytes, or "planned": the mean bucket of `Planned`,
            which wants a profile. Defaults to 25 MiB.
        xi: Improvement below which a trial is not worth it, in standard deviations of the measured
            log times; more explores more. Defaults to 0.1, as in the paper.
        trials: Largest number of trials. Defaults to 12.
        steps_per_trial: Steps over which the caller averages. Defaults to 10.
        tolerance: The search ends when the expected improvement is less than this fraction of the
            step time. Defaults to 0.005.
        drift: Relative change of the step time that starts a new search. Defaults to 0.2.

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
        start: int | str = DEFAULT_BUCKET_BYTES,
        xi: float = 0.1,
        trials: int = 12,
        steps_per_trial: int = 10,
        tolerance: float = 0.005,
        drift: float = 0.2,
    ) -> None:
        super().__init__(low, high, trials=trials, steps_per_trial=steps_per_trial, drift=drift)
        if start != "planned" and (isinstance(start, str) or not low <= start <= high):
            raise ValueError(
                '`start` must be "planned" or a number of bytes between `low` and `high`. '
                f"Received: start={start!r}, low={low!r}, high={high!r}"
            )
        for name, value in (("xi", xi), ("tolerance", tolerance)):
            if not 0 <= value < math.inf:
                raise ValueError(f"`{name}` must be zero or more. Received: {name}={value!r}")
        self.start = start if isinstance(start, str) else int(start)
        self.xi = xi
        # The number of trials that the optimizer was told, and the optimizer.
        self._told: tuple[int, Any] | None = None
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
            return self._clip(DEFAULT_BUCKET_BYTES)
        return self.start

    @property
    def best(self) -> int:
        """The best size so far, in bytes, by the measured and the predicted step times."""
        if len(self._sizes) < _LEAST_TRIALS_TO_PREDICT:
            return super().best
        logs = np.log(self._seconds)
        predicted = self._optimizer().models[-1].predict(self._positions()) * self._scale()
        score = _MEASURED_WEIGHT * (logs - logs.mean()) + (1 - _MEASURED_WEIGHT) * predicted
        return self._sizes[int(np.argmin(score))]

    def _restart(self, size: int) -> None:
        super()._restart(size)
        self._told = None

    def _next(self) -> int | None:
        optimizer = self._optimizer()
        if len(self._sizes) >= _LEAST_TRIALS and self._gain(optimizer) < self.tolerance:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._at(float(optimizer.ask()[0]))

    def _gain(self, optimizer: Any) -> float:
        """The fraction of the step time that another trial is expected to gain."""
        from skopt.acquisition import gaussian_ei

        model = optimizer.models[-1]
        best = float(model.predict(self._positions()).min())
        # Without xi, which guides the search but is no gain.
        axis = np.linspace(0.0, 1.0, 201).reshape(-1, 1)
        # A difference of logarithms is a fraction of the step time.
        return float(gaussian_ei(axis, model, best, 0.0).max()) * self._scale()

    def _optimizer(self) -> Any:
        """scikit-optimize's optimizer, told all trials."""
        if self._told is None or self._told[0] != len(self._sizes):
            self._told = (len(self._sizes), self._tell())
        return self._told[1]

    def _tell(self) -> Any:
        # Imported here: scikit-optimize takes a second to load.
        from skopt import Optimizer
        from skopt.learning import GaussianProcessRegressor
        from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern
        from skopt.space import Real

        # As the optimizer's own process, except the bounds of its length scale: without them, this
        # few trials would also fit a curve that is all noise, or one that turns at each of them.
        kernel = ConstantKernel(1.0, (0.01, 1000.0)) * Matern(0.3, _LENGTHS, nu=2.5)
        process = GaussianProcessRegressor(
            kernel, normalize_y=True, noise="gaussian", n_restarts_optimizer=2, random_state=0
        )
        optimizer = Optimizer(
            [Real(0.0, 1.0)],
            base_estimator=process,
            n_initial_points=_FIRST_TRIALS,
            acq_func="EI",
            acq_func_kwargs={"xi": self.xi},
            acq_optimizer="sampling",
            acq_optimizer_kwargs={"n_points": _NUM_CANDIDATES},
            random_state=0,
        )
        logs = np.log(self._seconds)
        standardised = (logs - logs.mean()) / self._scale()
        with warnings.catch_warnings():
            # It warns when it would try a size again and takes another, which is intended.
            warnings.simplefilter("ignore")
            optimizer.tell(self._positions().tolist(), standardised.tolist())
        return optimizer

    def _scale(self) -> float:
        """The standard deviation of the log times, the unit of `xi`."""
        return max(float(np.log(self._seconds).std()), _LEAST_DEVIATION)

    def _positions(self) -> np.ndarray:
        return np.array([[self._position(size)] for size in self._sizes])
