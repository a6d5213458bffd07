# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Keras callbacks."""

import abc
import collections
import os
import time
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from tfdear import data
from tfdear.base.checks import is_whole
from tfdear.compression import compressor
from tfdear.job import report
from tfdear.measure import steps

__all__ = ["CompressionSchedule", "DataCacheStatistics", "StepStatistics"]

_TIMES = ("time", "forward", "backward", "other", "communication", "exposed", "stall", "update")


class CompressionSchedule(keras.callbacks.Callback):
    """Switches compression on, off or to another density when epochs start.

    Use it for the recipe of the paper: sparse communication in the epochs in which the gradients
    are large, dense communication in the last ones. What was held back when compression ends is
    sent with the next step. In a strategy of one process it does nothing.

    Args:
        densities: The density from each epoch on, counted from 0: a fraction above 0 and at most 1,
            or None for dense. Before the first of these epochs the strategy's density is in force,
            that of its `compression`.

    Raises:
        ValueError: An epoch is negative or a density out of range, or the model was not built under
            a `DearStrategy` with `compression`.

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", section 5.

    Example:

    >>> import tfdear
    >>> schedule = tfdear.callbacks.CompressionSchedule({0: 0.01, 24: None})
    """

    def __init__(self, densities: Mapping[int, float | None]) -> None:
        super().__init__()
        for epoch, density in densities.items():
            if not is_whole(epoch) or epoch < 0:
                raise ValueError(
                    "The keys of `densities` must be epochs: whole numbers from 0 on. Received: "
                    f"densities={dict(densities)!r}"
                )
            if density is not None:
                compressor.check_density(density)
        self._densities = dict(densities)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        strategy = model.distribute_strategy
        job = getattr(strategy, "_job", None)
        if job is None or job.options.compression is None:
            without = "" if job is None else " without it"
            raise ValueError(
                "The model must be built in the scope of a tfdear.DearStrategy with `compression`. "
                f"Received: a model of {type(strategy).__name__}{without}"
            )

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        # An earlier training may have ended with another one.
        strategy = self.model.distribute_strategy
        strategy.set_density(strategy._job.options.compression.density)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        started = [first for first in self._densities if first <= epoch]
        if started:
            self.model.distribute_strategy.set_density(self._densities[max(started)])


class _Scalars(keras.callbacks.Callback):
    """Writes scalars for TensorBoard, of every so many batches and at the end of epochs."""

    def __init__(
        self, log_dir: str | os.PathLike, *, every: int = 100, all_ranks: bool = False
    ) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(
                f"`every` must be a positive number of batches. Received: every={every!r}"
            )
        self._log_dir = os.fspath(log_dir)  # Of any file system that TensorFlow knows.
        self._every = every
        self._all_ranks = all_ranks
        self._batches = 0
        self._last_batch = -1
        self._next_point = every
        self._writer: tf.summary.SummaryWriter | None = None

    def _open_writer(self, rank: int) -> None:
        if self._writer is None and (self._all_ranks or rank == 0):
            folder = f"rank_{rank}" if self._all_ranks else ""
            self._writer = tf.summary.create_file_writer(os.path.join(self._log_dir, folder))

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        # Several at once, with `steps_per_execution`.
        self._batches += batch - self._last_batch
        self._last_batch = batch
        if self._batches >= self._next_point:
            self._write_point()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._write_point()

    def _write_point(self) -> None:
        self._next_point = self._batches + self._every
        scalars = {} if self._writer is None else self._take_scalars()
        if self._writer is None or not scalars:
            return
        with self._writer.as_default():
            for name, value in scalars.items():
                if value is not None:
                    _write_scalar(name, value, self._batches)
        self._writer.flush()

    @abc.abstractmethod
    def _take_scalars(self) -> Mapping[str, float | None]:
        """By name, those since the last ones; none where there is nothing to write."""


class StepStatistics(_Scalars):
    """Writes where the time of training steps goes, for TensorBoard.

    Use it to watch over a training whether communication stays hidden. The scalars are means over
    the steps since the last ones: seconds of a step and of its parts under `step_seconds/`, of the
    collectives under `communication_seconds/`, the hidden fraction as `overlap`, achieved bus
    bandwidths in gigabytes per second under `busbw/`, and the fraction of the schedule's bound that
    was reached as `fraction_of_bound`. It takes nothing from `strategy.statistics()`. In a job of
    one rank there is nothing to write.

    Args:
        log_dir: Directory of the event files; may be that of `keras.callbacks.TensorBoard`.
        every: Number of batches between two points. Defaults to 100. An epoch's end is a point too.
        all_ranks: Whether every rank writes, into `log_dir/rank_N`. Defaults to False: rank 0
            alone, into `log_dir`.

    Raises:
        ValueError: `every` is not positive, or the model was not built under a `DearStrategy`.

    Example:

    ```python
    model.fit(x, y, callbacks=[tfdear.callbacks.StepStatistics("logs")])
    ```
    """

    def __init__(
        self, log_dir: str | os.PathLike, *, every: int = 100, all_ranks: bool = False
    ) -> None:
        super().__init__(log_dir, every=every, all_ranks=all_ranks)
        self._source: report.StrategyStatistics | None = None
        self._job: object = None  # Of which it is; another training may be of another job.

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        strategy = model.distribute_strategy
        job = getattr(strategy, "_job", None)
        if job is None:
            raise ValueError(
                "The model must be built and compiled in the scope of a tfdear.DearStrategy. "
                f"Received: a model of {type(strategy).__name__}"
            )
        if job.world_size == 1 or not (self._all_ranks or job.rank == 0):
            self._source = self._job = None
        elif self._job is not job:
            self._source, self._job = report.StrategyStatistics(job), job
            self._open_writer(job.rank)

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        # Earlier steps are no part of this training.
        if self._source is not None:
            self._source.forget()

    def _take_scalars(self) -> Mapping[str, float | None]:
        if self._source is None:
            return {}
        summary = self._source.take()
        average = summary["average"]
        if average is None:
            return {}
        scalars = {f"step_seconds/{name}": average[name] for name in _TIMES}
        for phase in steps.PHASES:
            if average[phase] > 0:
                scalars[f"communication_seconds/{phase}"] = average[phase]
        scalars |= {f"busbw/{phase}": rate * 1e-9 for phase, rate in summary["busbw"].items()}
        return scalars | {
            "overlap": average["overlap"],
            "fraction_of_bound": summary["fraction_of_bound"],
        }


class DataCacheStatistics(_Scalars):
    """Writes what the caches of a training do, for TensorBoard.

    Use it to see whether training waits for its data, and where they come from. Of the caches that
    `fit` reads, together, the scalars are, since the last ones: the fraction of time in which the
    rank waited for examples as `data/wait`; examples prepared per second as `data/prepared`; bytes
    per second read of the source, of the local disk and of other nodes, and sent to those, as
    `data_bytes/source`, `data_bytes/disk`, `data_bytes/fetched` and `data_bytes/served`; the
    fraction of examples that were in memory as `data/hits`. And in all: examples left out as
    `data/skipped`, records on disk that were damaged as `data/damaged`.

    Args:
        log_dir: Directory of the event files; may be that of `keras.callbacks.TensorBoard`.
        every: Number of batches between two points. Defaults to 100. An epoch's end is a point too.
        all_ranks: Whether every rank writes, into `log_dir/rank_N`. Defaults to False: rank 0
            alone, into `log_dir`.

    Raises:
        ValueError: `every` is not positive.

    Example:

    ```python
    model.fit(cache.batches(96), callbacks=[tfdear.callbacks.DataCacheStatistics("logs")])
    ```
    """

    def __init__(
        self, log_dir: str | os.PathLike, *, every: int = 100, all_ranks: bool = False
    ) -> None:
        super().__init__(log_dir, every=every, all_ranks=all_ranks)
        self._caches: Sequence[data.DataCache] = ()
        self._last: dict[str, float] = {}

    def set_data_caches(self, caches: Sequence["data.DataCache"]) -> None:
        """Called by `fit` with the caches that it reads."""
        self._caches = caches

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._open_writer(getattr(model.distribute_strategy, "rank", 0))

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        self._last = self._numbers()

    def _numbers(self) -> dict[str, float]:
        numbers: collections.Counter[str] = collections.Counter()
        for cache in self._caches:
            numbers.update(cache.statistics())
        return {**numbers, "time": time.monotonic()}

    def _take_scalars(self) -> Mapping[str, float | None]:
        if not self._caches:
            return {}
        now, last = self._numbers(), self._last
        self._last = now
        since = {name: value - last[name] for name, value in now.items()}
        seconds = max(since["time"], 1e-6)
        scalars = {
            "data/wait": since["wait_seconds"] / seconds,
            "data/prepared": since["prepared"] / seconds,
            "data/hits": since["hits"] / max(since["hits"] + since["misses"], 1),
            "data/skipped": now["skipped"],
            "data/damaged": now["damaged"],
        }
        for name in ("source", "disk", "fetched", "served"):
            scalars[f"data_bytes/{name}"] = since[f"{name}_bytes"] / seconds
        return scalars


def _write_scalar(name: str, value: float, step: int) -> None:
    # As `tf.summary.scalar`, which is part of TensorBoard and may be missing on a machine that
    # only trains.
    metadata = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(name, tf.constant(value, tf.float32), step=step, metadata=metadata)
