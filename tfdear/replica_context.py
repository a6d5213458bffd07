# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `strategy.run` calls its function in: one replica of the step, and its tie to the others.

[Note: All ranks hold the same values]
After a step every variable has the same value on all ranks, so a read, a checkpoint or an early
stop never needs a collective. Trainable variables get the same sums of gradients. What a step
writes into other variables is reconciled: changes of metrics are added up before they are read,
moving statistics are averaged when the step's function returns.
"""

import contextlib

import numpy as np
import tensorflow as tf

from tfdear import _tf_private
from tfdear import variable as variable_module

_Reconciliation = variable_module.Reconciliation


class DearReplicaContext(_tf_private.distribute_lib.ReplicaContext):
    """One call of `strategy.run` on this rank.

    Args:
        strategy: The `DearStrategy`.
        rank: This process's rank.
        examples: Scalar int64, how many examples this rank has in the step, or None if unknown.
    """

    def __init__(self, strategy, rank, examples):
        super().__init__(strategy, replica_id_in_sync_group=rank)
        self._reducer = strategy.extended.reducer
        self.data = None  # A tensor of the step's data; see `step_data`.
        self.data_in_graph = {}
        self._examples = examples
        self._graph = _graph()
        self._shares = {}
        # Metrics: id -> (variable, this rank's change, whether to zero), not yet added up.
        self._changes = {}
        self._written = {}  # Statistics: id -> variable, written and not yet averaged.
        self._updating = False

    @property
    def devices(self):
        return self._strategy.extended.worker_devices

    @property
    def reconciles(self) -> bool:
        return not self._updating

    @property
    def has_examples(self) -> tf.Tensor | None:
        """Scalar bool: whether this rank has examples in this step; None if unknown."""
        if self._examples is None or not self._sees(self._examples):
            return None
        return self._examples > 0

    def share_of_examples(self) -> tf.Tensor | None:
        """This rank's share of the step's examples, scalar float32, or None if unknown."""
        if self._examples is None or not self._sees(self._examples):
            return None
        graph = _graph()
        while True:
            if id(graph) in self._shares:
                return self._shares[id(graph)]
            if graph is None or graph is self._graph:
                break
            graph = getattr(graph, "outer_graph", None)
        (total,) = self._reducer.all_reduce([self._examples], name="number of examples")
        share = tf.cast(self._examples, tf.float32) / tf.cast(total, tf.float32)
        self._shares[id(_graph())] = share
        return share

    def _sees(self, tensor) -> bool:
        # A function traced inside an eager step is called again with other batches: the number of
        # examples of the step that traced it must not be baked in.
        return not (self._graph is None and _graph() is not None)

    def gate_gradient(self, gradient):
        """The gradient, or zeros on a rank without examples."""
        if gradient is None or self.has_examples is None:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            values = self._gate(gradient.values, tf.zeros_like(gradient.values))
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return self._gate(gradient, tf.zeros_like(gradient))

    @contextlib.contextmanager
    def contributing(self):
        """Within it, this rank takes part in reductions even if it has no examples in this step."""
        examples, self._examples = self._examples, None
        try:
            yield
        finally:
            self._examples = examples

    @contextlib.contextmanager
    def updating(self):
        """Within it, writes are an optimizer's: the same on all ranks."""
        previous = self._updating
        self._updating = True
        try:
            yield
        finally:
            self._updating = previous

    def _gate(self, new, old):
        """`new`, or `old` on a rank without examples, whose values mean nothing (0 / 0)."""
        if self.has_examples is None:
            return new
        return tf.where(self.has_examples, new, old)

    def assign(self, variable, value, read_value):
        value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
        if variable.reconciliation is _Reconciliation.SUM_OF_WRITES:
            _store(variable, self._total(value))
            return variable if read_value else None
        if variable.reconciliation is not _Reconciliation.SUM:
            return self._write(variable, value, read_value)
        self.settle(variable)
        if tf.executing_eagerly():
            to_zero = not np.any(value)
        elif tf.get_static_value(value) is not None:
            # A reset: not a rank's contribution, but the same on all ranks.
            _store(variable, value)
            return variable if read_value else None
        else:
            to_zero = False
        return self._change(variable, value - _local(variable), read_value, to_zero)

    def assign_add(self, variable, delta, read_value):
        delta = tf.cast(tf.convert_to_tensor(delta), variable.dtype)
        if variable.reconciliation is _Reconciliation.SUM:
            self.settle(variable)
            return self._change(variable, delta, read_value)
        if variable.reconciliation is _Reconciliation.SUM_OF_WRITES:
            _store(variable, _local(variable) + self._total(delta))
            return variable if read_value else None
        return self._write(variable, _local(variable) + delta, read_value)

    def _total(self, written):
        written = self._gate(written, tf.zeros_like(written))
        return self._reducer.all_reduce([written], name="sum of writes")[0]

    def _change(self, variable, change, read_value, to_zero=False):
        change = self._gate(change, tf.zeros_like(change))
        if _graph() is self._graph:
            self._changes[id(variable)] = (variable, change, to_zero)
        else:  # The change exists only in this inner graph.
            self._add_up([(variable, change, to_zero)])
        return variable if read_value else None

    def _write(self, variable, value, read_value):
        value = self._gate(value, _local(variable))
        if variable.reconciliation is _Reconciliation.FIRST:
            _store(variable, self._strategy.extended.collectives.broadcast(value))
        elif _graph() is not self._graph:
            _store(variable, self._average([variable], [value])[0])
        else:
            _store(variable, value)
            self._written[id(variable)] = variable
        return variable if read_value else None

    def settle(self, variable) -> None:
        """Before a read: adds up the ranks' changes of all metrics, if this one has any."""
        if id(variable) not in self._changes:
            return
        pending = list(self._changes.values())
        self._changes.clear()
        # In the step's own graph, where the changes are: a branch that reads may not be taken.
        outside = tf.init_scope() if self._graph is None else self._graph.as_default()
        with outside:
            self._add_up(pending)

    def _add_up(self, pending) -> None:
        changes = [change for _, change, _ in pending]
        resets = [False] * len(pending)
        if tf.executing_eagerly():
            # A value alone does not tell a reset from a rank's batch without a hit: it is one if
            # all ranks wrote zeros.
            zeros = tf.constant([to_zero for _, _, to_zero in pending], tf.int32)
            *sums, zeros = self._reducer.all_reduce([*changes, zeros], name="metrics")
            resets = (zeros.numpy() == self._strategy.num_replicas_in_sync).tolist()
        else:
            sums = self._reducer.all_reduce(changes, name="metrics")
        for (metric, _, _), total, reset in zip(pending, sums, resets, strict=True):
            value = _local(metric)
            _store(metric, tf.zeros_like(value) if reset else value + total)

    def finish(self) -> None:
        """At the end of the step: reconciles what is left."""
        if self._changes:
            variable, *_ = next(iter(self._changes.values()))
            self.settle(variable)
        if self._written:
            written = list(self._written.values())
            self._written.clear()
            values = [_local(variable) for variable in written]
            for variable, mean in zip(written, self._average(written, values), strict=True):
                _store(variable, mean)

    def _average(self, variables, values):
        weights = None
        if self._strategy.extended.weighs_examples and self._shares:
            weights = self.share_of_examples()
        if weights is None:
            weights = tf.constant(1.0 / self._strategy.num_replicas_in_sync)
        # A rank without examples sends what it had (`_gate`), or weighs nothing.
        shares = [value * tf.cast(weights, value.dtype) for value in values]
        return self._reducer.all_reduce(shares, name="moving statistics")


def _graph():
    return None if tf.executing_eagerly() else _tf_private.ops.get_default_graph()


def _local(variable):
    """The variable's value as this rank sees it now."""
    variable.await_updates()
    with variable_module.raw_handles():
        return tf.identity(variable.read_value())


def _store(variable, value) -> None:
    variable.await_updates()
    with variable_module.raw_handles():
        variable.assign(value, read_value=False)
