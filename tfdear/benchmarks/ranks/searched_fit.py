# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""One `fit` in which planners search for a bucket size, and their results are measured again."""

import dataclasses

import keras
import numpy as np
import search_models  # type: ignore[import-not-found]
import tensorflow as tf

import tfdear
from tfdear import fusion
from tfdear.fusion import search

# Steps after which the ranks ask rank 0 whether everything was measured.
_ASK_EVERY = 16


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What is measured in one `fit`."""

    searches: list[str]  # Planners that search, as they are written.
    sizes: list[int]  # Measured after them, in turns with the bucket sizes that they found.
    turns: int  # Measurements of each of these sizes.
    steps_per_trial: int  # Steps of each of these measurements.
    noise: float  # Added to the step times that searches are told, relative.
    seed: int  # Of the noise, the weights and the data.


class _Runs:
    """A planner that lets other planners search, one after the other; then sizes take turns."""

    needs_profile = False

    def __init__(self, assignment: Assignment):
        self._assignment = assignment
        self._random = np.random.default_rng(assignment.seed)
        self._searches = [_search(text) for text in assignment.searches]
        self._search: search.Search | None = None
        self._turns_left = assignment.turns
        self._queue: list[int] = []
        self.trials: list[list[tuple[int, float]]] = []
        self.seconds: dict[int, list[float]] = {}
        self._start_next()

    def _start_next(self) -> None:
        if len(self.trials) < len(self._searches):
            self._search = self._searches[len(self.trials)]
            self.trials.append([])
            return
        self._search = None
        if self._turns_left > 0:
            self._turns_left -= 1
            found = [ended.best for ended in self._searches]
            self._queue = [*dict.fromkeys([*found, *self._assignment.sizes])]

    @property
    def done(self) -> bool:
        return self._search is None and not self._queue

    @property
    def steps_per_trial(self) -> int:
        return (self._search or self._assignment).steps_per_trial

    @property
    def _bytes(self) -> int:
        if self._search is not None:
            return self._search.bytes
        return self._queue[0] if self._queue else fusion.FixedSize().bytes

    def buckets(self, trace, costs, schedule):
        return fusion.FixedSize(self._bytes).buckets(trace, costs, schedule)

    def observe(self, seconds_per_step: float) -> None:
        if self._search is not None:
            self.trials[-1].append((self._bytes, seconds_per_step))
            told = seconds_per_step * (1 + self._assignment.noise * self._random.standard_normal())
            self._search.observe(told)
            if self._search.done:
                self._start_next()
        elif self._queue:
            self.seconds.setdefault(self._queue.pop(0), []).append(seconds_per_step)
            if not self._queue:
                self._start_next()

    def report(self) -> dict:
        """The results, for JSON."""
        return {
            "trials": self.trials,
            "found": [ended.best for ended in self._searches],
            "seconds": sorted(self.seconds.items()),
        }


def _search(text: str) -> search.Search:
    parsed = fusion.parse(text)
    assert isinstance(parsed, search.Search)
    return parsed


class Fusion:
    """The planner of the strategy: every model that is trained gets the current assignment."""

    needs_profile = False
    steps_per_trial = 1
    done = False

    def __init__(self):
        self.assignment: Assignment | None = None
        self.runs: list[_Runs] = []

    def __deepcopy__(self, memo) -> _Runs:
        assert self.assignment is not None
        self.runs.append(_Runs(self.assignment))
        return self.runs[-1]

    def buckets(self, trace, costs, schedule):
        raise AssertionError("each model has a planner of its own")

    def observe(self, seconds_per_step):
        raise AssertionError("each model has a planner of its own")

    def report(self) -> dict | None:
        """The results of the latest `fit`, on rank 0; None while some are missing."""
        return next((run.report() for run in self.runs if run.done), None)


class _StopWhenDone(keras.callbacks.Callback):
    """Ends `fit` on all ranks when rank 0 has its report."""

    def __init__(self, strategy: tfdear.DearStrategy, fusion: Fusion):
        super().__init__()
        self._strategy, self._fusion = strategy, fusion

    def on_train_batch_end(self, batch, logs=None):
        del logs
        if batch % _ASK_EVERY == _ASK_EVERY - 1:
            found = tf.constant(int(self._fusion.report() is not None))
            self.model.stop_training = bool(self._strategy.broadcast(found))


def run(
    strategy: tfdear.DearStrategy,
    fusion: Fusion,
    model: str,
    batch_size: int,
    most_steps: int,
    assignment: Assignment,
) -> dict | None:
    """Trains a new model until everything was measured.

    Returns on rank 0 the `trials` of each search (bytes, seconds per step), the sizes that they
    `found`, and the `seconds` per step of every size, measured again; None if `most_steps` were too
    few.
    """
    keras.backend.clear_session()
    fusion.assignment, fusion.runs = assignment, []
    keras.utils.set_random_seed(assignment.seed)
    with strategy.scope():
        trained = search_models.build(model)
    batch = search_models.data(trained, batch_size * strategy.world_size, assignment.seed)
    dataset = tf.data.Dataset.from_tensors(batch).cache().repeat()
    stop = _StopWhenDone(strategy, fusion)
    trained.fit(dataset, steps_per_epoch=most_steps, verbose=0, callbacks=[stop])
    strategy.synchronize()
    return fusion.report()
