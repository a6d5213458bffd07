# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`DearStrategy`: data-parallel training whose communication hides behind computation."""

import types
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from tfdear.compression import compressor as compressor_module
from tfdear.data import empty_batch
from tfdear.engine import events as events_module
from tfdear.engine import library
from tfdear.fusion import planner as planner_module
from tfdear.gradients import collectives as collectives_module
from tfdear.integrations.keras import residuals, seams
from tfdear.job import job as job_module
from tfdear.job import options as options_module
from tfdear.job import recorder, report
from tfdear.losses import loss_contract
from tfdear.strategy import extended as extended_module
from tfdear.strategy import ignored_options, step_gradients, table_report, unused_devices


# A MirroredStrategy to isinstance checks only (tf_keras has some): none of its code is used.
class DearStrategy(tf.distribute.MirroredStrategy):
    """Trains one model on several processes, with gradients exchanged behind computation.

    Use it in place of `tf.distribute.MultiWorkerMirroredStrategy`: build and compile the model in
    its `scope()`, and call `fit` with datasets of the global batch size. Every process runs the
    same script; started alone, a process trains by itself. Gradients are reduce-scattered while the
    backward pass runs and all-gathered while the next forward pass runs; each variable's optimizer
    update happens as soon as its gradient is there, and whatever reads the variable waits for it,
    so results are those of synchronous SGD.

    What Keras itself prints (progress bars, `model.summary()`) is shown by rank 0 alone;
    `keras.config.enable_interactive_logging()` brings it back on a rank.

    Arguments that are None come from the environment variable `TFDEAR_<NAME>`, else the default.
    Those that shape what the ranks do together are compared at the start, and must be equal.
    With `TFDEAR_TIMELINE=FILE`, every rank writes a timeline when it closes the strategy, or its
    script ends.

    It can be created at any time, also after other TensorFlow objects. A process has one of several
    ranks at a time: `close()` it, or use it in a `with` statement, before another one is created. A
    script need not close it: it ends with the process.

    Args:
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`. Defaults to None: the
            launcher's environment, `TF_CONFIG`, torchrun, Open MPI or Slurm variables, else one
            process.
        backend: What carries data between nodes: "tcp", connections of tfdear's own, whose ends
            have shown that they know the job's secret; "gloo", for comparison, on networks that
            nobody else reaches, in builds that have it; or "auto", which is "tcp". Defaults to
            "auto".
        schedule: "dear" as above, "wfbp" (all-reduce under the backward pass), "sequential"
            (all-reduce after it) or "bytescheduler" (all-reduce of partitions, the earliest layer
            first). They differ in time, not in the result. Defaults to "dear".
        barrier: Whether "dear" gathers nothing before everything is reduced, as in the paper.
            Defaults to False.
        fusion: How gradients are fused into buckets, a planner of `tfdear.fusion`. Defaults to
            `tfdear.fusion.Planned()`; the first steps, in which it measures, have buckets of 25
            MiB (with `compression`, which keeps them: a sixteenth of the gradients).
        collective: How gradients are summed: "ring" (every rank sums its shard), "tree" (one rank
            sums a bucket, the ranks in turns), "hierarchical" (in shards within each node, then
            each shard between the nodes) or "torus2d" (the same along rows and columns of a grid,
            in rings). The last two need the same number of ranks on every node. Defaults to "ring".
        compression: How gradients are compressed between nodes, a compressor of
            `tfdear.compression`. Defaults to None: they are not.
        weighting: "examples": a mean loss is the mean over the global batch, however its examples
            are spread over the ranks; "replica": all ranks weigh the same, as in TensorFlow's own
            strategies. Defaults to "examples".
        embeddings: How tables of layers with `exchange="auto"` are exchanged
            (`tfdear.layers.ShardedEmbedding`): "all_to_all", which divides them among the ranks,
            "all_gather" or "all_reduce", which leave them whole and gather the rows of gradients,
            or sum them on their way, or "auto", which nearly always divides them. "all_gather" and
            "all_reduce" hold for plain layers, too, whose rows are else exchanged in the cheaper
            way, in every step anew. Results are the same bit for bit. Defaults to "auto".
        embedding_schedule: The order in which rows and vectors of tables travel. "2d": what the
            next batch needs goes first, the rest later, and vectors that a step leaves as they are
            go early; "horizontal": as they come, but before dense gradients; "none": as they come.
            Results are the same bit for bit. Defaults to "2d".
        timeout: Seconds any collective may take before every rank raises, and operations of a step
            may wait while nothing happens. Defaults to 300.
        init_timeout: Seconds within which all ranks must have started. Defaults to 300.
        heartbeat: Seconds of silence after which a rank counts as lost. Defaults to 10.
        cleanup_timeout: Seconds for which the script may clean up after the job was aborted: a rank
            whose main thread does not move for that long is ended, with code 70. Writing a Keras
            file or a `tf.train.Checkpoint` is waited for. Defaults to 60.
        shared_memory: Whether ranks of one node exchange data through shared memory, where all of
            them can; else by `backend`. Sums are the same bit for bit. Defaults to True.
        connections: TCP connections to each peer, over which the data of gradients are spread, and
            what a `DataCache` reads of other nodes; for networks that give one connection less than
            the link has, such as those of clouds and bundles of links. Equal on all ranks. Sums are
            the same bit for bit. Defaults to 0: as many as a measurement at the start says, 1
            unless more are much faster.
        shared_seeds: Whether all ranks draw the same dropout masks. Defaults to False.
        log_per_rank: Whether `TensorBoard` and `CSVLogger` write on every rank, each into a folder
            `rank_0`, `rank_1`, ... beside where they would write. Defaults to False: rank 0 alone.
        check_every: Steps after which variables are compared over the ranks again: steps of `fit`,
            and calls of `run` from Python (not those in a loop inside a `tf.function`). They always
            are when `fit`, `evaluate` and a script's own loop start. Defaults to 0: only then.

    Raises:
        TypeError: There is no such argument.
        ValueError: An argument or environment variable has a value that is not allowed, or the
            nodes have different numbers of ranks and the collective or the compression works in two
            levels, or these two do not go together; or a strategy of several ranks is open in this
            process.
        ImportError: The library is missing, or does not fit TensorFlow; or backend "gloo" is asked
            for, and this build or machine lacks it.
        TfdearError: The ranks do not fit together, or did not all start in time; or the job of an
            earlier strategy of this process has failed.

    Reference: Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained
    All-Reduce Pipelining", ICDCS 2023, section III.

    Example:

    ```python
    import keras, tfdear

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    ```
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        *,
        backend: str | None = None,
        schedule: str | None = None,
        barrier: bool | None = None,
        fusion: planner_module.Planner | str | None = None,
        collective: str | None = None,
        compression: compressor_module.Compressor | str | None = None,
        weighting: str | None = None,
        embeddings: str | None = None,
        embedding_schedule: str | None = None,
        timeout: float | None = None,
        init_timeout: float | None = None,
        heartbeat: float | None = None,
        cleanup_timeout: float | None = None,
        shared_memory: bool | None = None,
        connections: int | None = None,
        shared_seeds: bool | None = None,
        log_per_rank: bool | None = None,
        check_every: int | None = None,
        **unknown: object,
    ):
        options = options_module.resolve(
            {
                "backend": backend,
                "schedule": schedule,
                "barrier": barrier,
                "fusion": fusion,
                "collective": collective,
                "compression": compression,
                "weighting": weighting,
                "embeddings": embeddings,
                "embedding_schedule": embedding_schedule,
                "timeout": timeout,
                "init_timeout": init_timeout,
                "heartbeat": heartbeat,
                "cleanup_timeout": cleanup_timeout,
                "shared_memory": shared_memory,
                "connections": connections,
                "shared_seeds": shared_seeds,
                "log_per_rank": log_per_rank,
                "check_every": check_every,
                **unknown,  # Refused, with a hint.
            }
        )
        library.load()
        seams.verify()  # Before the ranks meet.
        self._job = job_module.Job(options, cluster_resolver)
        try:
            self._set_up()
        except BaseException as error:  # An interrupt, too: a notebook lives on.
            self._job.close(error)
            raise

    def _set_up(self) -> None:
        # All ranks would show the same progress bars and summaries.
        self._has_silenced_keras = (
            self._job.rank > 0 and keras.config.is_interactive_logging_enabled()
        )
        if self._has_silenced_keras:
            keras.config.disable_interactive_logging()
        unused_devices.warn(self._job.rank, tf.config.get_visible_devices())
        self._events = self._job.event_reader()
        self._statistics = report.StrategyStatistics(self._job)
        seams.install(self._job.world_size)
        device = tf.config.list_logical_devices("CPU")[0].name
        self._gradients = step_gradients.StepGradients()
        extended = extended_module.DearExtended(self, self._job, device)
        tf.distribute.Strategy.__init__(self, extended)
        if self.world_size > 1:
            self._tables = table_report.TableReport(self._job.engine, extended.reducer.travel)
        timeline_file = options_module.timeline_file()
        if self.world_size == 1:
            ignored_options.warn_of_records(
                options_module.TIMELINE_VARIABLE, options_module.TRACE_VARIABLE
            )
        elif timeline_file:
            self._timeline = recorder.TimelineRecorder(
                self._job, timeline_file, extended.gather_lists
            )

    # Its end.

    def close(self) -> None:
        """Ends the job in this process, which may create another strategy then.

        Use it in notebooks, tests and scripts that train several times, to start again with other
        arguments; all ranks call it, outside of steps. It waits until no update is in flight and
        all ranks are there, or their scripts have ended; writes what is written at the end, such as
        timelines; and frees connections, threads and memory. Caches of examples
        (`tfdear.data.DataCache`) that belong to the strategy are closed with it. Variables stay and
        can be read and saved, but for tables of which every rank holds a part. Steps, collectives,
        and whatever creates variables or distributes data under the strategy, raise from then on.
        Another call does nothing.

        A job that has failed is closed, too, without waiting for anybody; this process cannot take
        part in another one.

        Raises:
            RendezvousTimeoutError: A rank did not come within the strategy's timeout; the text says
                which.
            TfdearError: The job failed meanwhile, or updates did. The strategy is closed all the
                same.
            RuntimeError: It is called in a step.

        Example:

        ```python
        for schedule in ("dear", "sequential"):
            strategy = tfdear.DearStrategy(schedule=schedule)
            with strategy.scope():
                model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            strategy.close()
        ```
        """
        context = tf.distribute.get_replica_context()
        if tf.inside_function() or (context is not None and context.strategy is self):
            raise RuntimeError("a DearStrategy cannot be closed in a step or a `tf.function`.")
        self._end()

    def __enter__(self) -> "DearStrategy":
        """The strategy itself, which the end of the `with` statement closes; see `close`.

        Its scope is entered by `scope()`, as ever.
        """
        self._job.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Closes it. An error tells the other ranks that this one has failed; it waits for none."""
        if isinstance(error, SystemExit):
            return  # Exit handlers do the rest, as in a script without a `with` statement.
        try:
            self._end(error)
        except Exception:
            if error is None:
                raise
            logging.exception("tfdear: after %s, the strategy did not end in order", kind)

    def _end(self, failure: BaseException | None = None) -> None:
        try:
            self._job.close(failure)
        finally:
            self._gradients.forget()
            if self._has_silenced_keras:
                self._has_silenced_keras = False
                keras.config.enable_interactive_logging()

    # This process in the job.

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return self._job.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._job.world_size

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""
        return self._job.node.local_rank

    @property
    def local_size(self) -> int:
        """Number of processes on this node."""
        return self._job.node.local_size

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        return self._job.node.node_rank

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self._job.node.num_nodes

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0, which writes what is written once."""
        return self._job.rank == 0

    @property
    def num_replicas_in_sync(self) -> int:
        """The world size. A step that reads it is taken to scale its loss by itself."""
        losses = loss_contract.current_losses()
        if losses is not None:
            losses.note_scaling()
        return self._job.world_size

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """This process and its job, as a `tf.distribute.cluster_resolver.ClusterResolver`.

        Use it in scripts written for `tf.distribute.MultiWorkerMirroredStrategy`, which ask for
        `task_type`, `task_id` and `cluster_spec()`. It is the resolver that was passed in, else one
        that says what was found in the environment: tasks are "worker"s, also "chief" where
        `TF_CONFIG` says so. One process without any of that has the task type None, which by
        TensorFlow's convention is a chief.
        """
        return self._job.cluster_resolver

    # Steps.

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Calls `fn` on this rank's part of a step; see `tf.distribute.Strategy.run`."""
        self._job.check_open()
        ignored_options.warn(options)
        if self.world_size > 1 and loss_contract.current_step() is None:
            self.extended.consistency.check_step()
        with self._gradients.collect():
            outputs = super().run(fn, args, kwargs, options)
        if self.world_size > 1:
            empty_batch.mark(outputs, self.extended.number_of_examples((args, kwargs)))
        return outputs

    def set_density(self, density: float | None) -> None:
        """Switches compression on, off or to another density, from the next step on.

        Use it between two steps, with the same density on all ranks;
        `tfdear.callbacks.CompressionSchedule` does it at the start of epochs. When compression is
        switched off, the next step sends what was held back.

        Args:
            density: Fraction of the elements to send, above 0 and at most 1. None: all, dense.

        Raises:
            ValueError: The density is out of range, or the strategy was made without `compression`.
        """
        self._job.check_open()
        density = 1.0 if density is None else density
        compressor_module.check_density(density)
        if self._job.options.compression is None:
            raise ValueError(
                "The density belongs to a strategy with compression. Create it with "
                "`compression=tfdear.compression.MSTopK(...)`."
            )
        if self._job.compresses:
            self._job.engine.set_density(density)
        elif density < 1 and self.num_nodes > 1:
            logging.warning(
                "tfdear: density %g has no effect: by the costs that were measured at the start, "
                "buckets of no size gained from %s(density=%g). Start with the density that is to "
                "be used, or say with `dense_below` from how many bytes buckets are compressed.",
                density,
                type(self._job.options.compression).__name__,
                self._job.options.compression.density,
            )

    @property
    def compression_state(self) -> tf.train.experimental.PythonState:
        """What compression holds back on this rank, for `tf.train.Checkpoint`.

        Use it in custom loops, in a checkpoint that every rank writes and restores under a path of
        its own; Keras's own ways of saving do without. Restore before the first step, or between
        two steps, on all ranks.

        Example:

        ```python
        checkpoint = tf.train.Checkpoint(model=model, residual=strategy.compression_state)
        checkpoint.write(f"checkpoints/rank_{strategy.rank}")
        ```
        """
        return residuals.CompressionState(self._job)

    def broadcast_variables(self, variables: object, root: int = 0) -> None:
        """Gives all ranks the values that one rank's variables have.

        Use it on all ranks after weights were loaded or assigned on one of them, or where `fit`
        found that ranks hold different values.

        Args:
            variables: A Keras model (whose optimizer's variables are included), a variable, or a
                nested structure of variables; in the same order on all ranks.
            root: The rank whose values all get. Defaults to 0.

        Raises:
            ValueError: There is no rank `root`.

        Example:

        ```python
        if strategy.is_chief:
            model.load_weights("pretrained.weights.h5")
        strategy.broadcast_variables(model)
        ```
        """
        self._job.check_open()
        if not isinstance(root, int) or not 0 <= root < self.world_size:
            raise ValueError(
                f"`root` must be a rank, from 0 to {self.world_size - 1}. Received: root={root!r}"
            )
        if self.world_size > 1:
            self.extended.consistency.broadcast(variables, root)

    def synchronize(self) -> None:
        """Waits until no update is in flight.

        Use it around a timed section. Reads of variables wait by themselves.

        Raises:
            TfdearError: Updates failed, or were still in flight after the strategy's timeout.
        """
        self._job.check_open()
        if self.world_size > 1:
            self._job.engine.synchronize(self._job.options.timeout)

    # Measurement.

    def events(self) -> list[events_module.Event]:
        """Takes the engine's latest events (at most 131072), oldest first.

        Use it to check or draw a schedule; `statistics()` sums them up. A call returns what
        happened since the last one.
        """
        self._job.check_open()
        return self._events.read() if self.world_size > 1 else []

    def statistics(self) -> dict:
        """Sums up what this rank's steps did since the last call.

        Use it to see how much of the communication was hidden behind computation, and what is left
        to gain. All values are this rank's.

        Returns:
            A dictionary.
            Sums over the time since the last call: `steps`, seconds of `reduce_scatter`,
            `all_gather`, `all_reduce`, `sparse_gather`, `reduce`, `broadcast`, `update`,
            `communication` and its `exposed` part; `overlap` (fraction hidden; None without
            communication), `stall` (seconds in which ops waited and the process did not compute,
            and of splits of rows of tables), `bytes` (payload of the gradients), `compressed_bytes`
            (what this rank coded of them, with compression), `algbw` and `busbw` (bytes per second,
            by phase), `lost_events`; `bytes_sent` (by this rank since the start).
            `transports`: what carries each process group's messages: "tcp", "gloo" or
            "shared_memory"; `connections` to each peer for the gradients, where it is not memory.
            `per_step`: for each step that was completed, the same and `time`, `forward`,
            `backward` and `other`; the two latest steps appear in the next call. `average`: their
            means. `plan`: the latest step's buckets, with sizes in bytes, and its collectives; on
            rank 0, for a plan from measured times, `predicted_time` of an iteration and the
            `lower_bound` that no plan can beat in that model (`docs/fusion.md`). `costs`: `a`
            (seconds) and `b` (seconds per byte) by phase, or None; `link_costs`: by class of links.
            `bounds`: the least time of a step by schedule, `speedup` (DeAR's largest speedup) and
            where their communication times come from; `fraction_of_bound`: how much of the bound of
            the schedule in use was reached (1: all). These are None where nothing was measured.
            `embeddings`: for each table whose gradient comes by rows, by the name of its layer:
            `rows`, `columns` and `partition` ("column", "row"; None: all ranks have it whole);
            `exchange` ("all_to_all", "all_gather" or "all_reduce") and `costs`, what each exchange
            of the rows that were counted takes by the measured costs, in seconds; `steps`, and
            `summed_steps` in which the rows of a whole table were summed on their way; means of
            this rank's ids in a lookup (`original`), of the different ones of them (`coalesced`)
            and of these over the rows (`density`), since the last call. None: there were none.
            `hint`: how the next step's ids are known ("none": they are not), and `foreseen_steps`
            in which they were right; means of rows sent first (`prior`) and last (`delayed`), and
            of vectors sent early and late (`early_vectors`, `late_vectors`).
            `bytes`: what this rank sent to others since the last call, by part: `ids`,
            `early_vectors` and `late_vectors`, rows of gradients that went first (`prior`; all that
            were not split) and last (`delayed`), and rows where all ranks have the table `whole`.

        Reference: Zhang et al., "DeAR", section VI-E, equations 6 to 8; Li et al., "EmbRace",
        section 5.4.
        """
        self._job.check_open()
        tables = {} if self.world_size == 1 else self._tables.take()
        return {**self._statistics.take(), "embeddings": tables}

    # Collectives.

    @tf.autograph.experimental.do_not_convert
    def all_reduce(self, value: Any, group: str = "world") -> Any:
        """Sums tensors over the ranks of a group.

        Use it for values of your own, outside or inside `run`. All ranks must call it, with the
        same shapes. Gradients flow through it, as through `reduce_scatter`, `all_gather`,
        `all_to_all` and `broadcast`: they are collectives, too, so where one rank takes a gradient,
        all do. In a step, a rank without examples contributes nothing to these.

        Args:
            value: A tensor or a nested structure of tensors (floating or int32/int64).
            group: "world", "intra_node" or "inter_node". Defaults to "world".

        Returns:
            The sums, in the structure of `value`.

        Raises:
            TypeError: A tensor's type cannot be summed.
            tf.errors.InvalidArgumentError: Ranks called different collectives.
        """
        self._job.check_open()
        collectives_module.lane_of(group)  # A wrong name is an error with one rank, too.
        if self.world_size == 1:
            return value
        sums = self.extended.step_collectives.all_reduce(tf.nest.flatten(value), group)
        return tf.nest.pack_sequence_as(value, sums)

    @tf.autograph.experimental.do_not_convert
    def reduce_scatter(self, value: tf.Tensor, group: str = "world") -> tf.Tensor:
        """Sums a tensor over the ranks and returns this rank's rows.

        Args:
            value: A tensor with n rows, the same shape on all ranks.
            group: "world", "intra_node" or "inter_node". Defaults to "world".

        Returns:
            Rows [rank * n // size, (rank + 1) * n // size) of the sum.
        """
        self._job.check_open()
        collectives_module.lane_of(group)  # A wrong name is an error with one rank, too.
        if self.world_size == 1:
            return tf.convert_to_tensor(value)
        return self.extended.step_collectives.reduce_scatter(value, group)

    @tf.autograph.experimental.do_not_convert
    def all_gather(self, value: tf.Tensor, group: str = "world") -> tf.Tensor:
        """Concatenates the ranks' tensors along the first dimension, in the order of the ranks.

        Args:
            value: A tensor; ranks may have different numbers of rows.
            group: "world", "intra_node" or "inter_node". Defaults to "world".
        """
        self._job.check_open()
        collectives_module.lane_of(group)  # A wrong name is an error with one rank, too.
        if self.world_size == 1:
            return tf.convert_to_tensor(value)
        return self.extended.step_collectives.all_gather(value, group)

    @tf.autograph.experimental.do_not_convert
    def all_to_all(
        self, value: tf.Tensor, splits: tf.types.experimental.TensorLike, group: str = "world"
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends `splits[r]` consecutive rows to every rank r.

        Use it for layers that divide their work over the ranks. Like the other collectives here it
        keeps the order in which the script calls them, and delays none of tfdear's own: gradients,
        numbers of examples and metrics pass it.

        Args:
            value: A tensor whose rows are sorted by the rank that gets them.
            splits: Number of rows for each rank.
            group: "world", "intra_node" or "inter_node". Defaults to "world".

        Returns:
            The rows received, in the order of the ranks, and how many came from each.
        """
        self._job.check_open()
        collectives_module.lane_of(group)  # A wrong name is an error with one rank, too.
        if self.world_size == 1:
            return tf.convert_to_tensor(value), tf.cast(splits, tf.int64)
        return self.extended.step_collectives.all_to_all(value, splits, group)

    @tf.autograph.experimental.do_not_convert
    def broadcast(self, value: tf.Tensor, root: int = 0, group: str = "world") -> tf.Tensor:
        """Returns the tensor of one rank on all ranks.

        The gradient of `root`'s tensor is the sum over the ranks, that of all others is zero.

        Args:
            value: A tensor, the same shape on all ranks.
            root: The rank in the group whose tensor it is. Defaults to 0.
            group: "world", "intra_node" or "inter_node". Defaults to "world".
        """
        self._job.check_open()
        collectives_module.lane_of(group)  # A wrong name is an error with one rank, too.
        if self.world_size == 1:
            return tf.convert_to_tensor(value)
        return self.extended.step_collectives.broadcast(value, root, group)

    @tf.autograph.experimental.do_not_convert
    def barrier(self, group: str = "world") -> None:
        """Returns when every rank has called it.

        Args:
            group: "world", "intra_node" or "inter_node". Defaults to "world".
        """
        self._job.check_open()
        lane = collectives_module.lane_of(group)
        if self.world_size > 1:
            self.extended.collectives.barrier(lane)
