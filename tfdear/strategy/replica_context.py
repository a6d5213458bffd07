# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The replica context in which `strategy.run` calls its function.

[Note: All ranks hold the same values]
After a step every variable has the same value on all ranks, so a read, a checkpoint or an early
stop never needs a collective. Trainable variables get the same sums of gradients. What a step
writes into other variables is reconciled: metrics, of which every rank has its own value ([Note:
Own values]), are added up before a result is computed from them; moving statistics are averaged
when the step's function returns. Not in a branch of the step, which other ranks may not take.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import call_time, step_data
from tfdear.data import examples as examples_module
from tfdear.gradients import exact_mean, own_value
from tfdear.gradients import variable as variable_module
from tfdear.losses import loss_contract
from tfdear.strategy import ignored_options

_Reconciliation = variable_module.Reconciliation
_Variable: TypeAlias = variable_module.DearVariable
_TensorLike: TypeAlias = tf.types.experimental.TensorLike


class DearReplicaContext(_tf_private.distribute_lib.ReplicaContext):
    """One call of `strategy.run`, with these arguments and examples, on this rank."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        rank: int,
        examples: examples_module.Examples,
        arguments: object,
    ):
        super().__init__(strategy, replica_id_in_sync_group=rank)
        self._reducer = strategy.extended.reducer
        given = tf.nest.flatten(arguments)
        # A tensor of the step's data; see `step_data`.
        self.data = next((value for value in given if isinstance(value, tf.Tensor)), None)
        self.data_in_graph: dict[tf.Graph, tf.Tensor] = {}
        self.examples = examples
        self.graph = step_data.current_graph()
        # By id: metrics that were written and not yet added up, statistics not yet averaged.
        self._changed: dict[int, _Variable] = {}
        # The graph in which, if that is a branch of the step's.
        self._branch_of: dict[int, tf.Graph | None] = {}
        self._written: dict[int, _Variable] = {}
        # Operations that yield a value of this rank's own.
        self.own_reads: set[tf.Operation] = set()
        self._updating = False
        self.losses = loss_contract.Losses(self, strategy.extended, arguments)

    @property
    def devices(self) -> tuple[str, ...]:
        return self._strategy.extended.worker_devices

    @tf.autograph.experimental.do_not_convert
    def all_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value: Any,
        options: ignored_options.Options | None = None,
    ) -> Any:
        if isinstance(reduce_op, str):
            reduce_op = tf.distribute.ReduceOp(reduce_op.upper())

        def reduce(flat: Sequence[Any]) -> Any:
            return self._strategy.extended._replica_ctx_all_reduce(reduce_op, flat, options)

        @tf.custom_gradient
        def differentiable(*flat: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
            @examples_module.for_backward_pass
            def gradient(*upstream: tf.Tensor) -> Any:
                return self.all_reduce(reduce_op, upstream)  # That of a sum is a sum.

            return reduce(flat), gradient

        def collective(value: object) -> Any:
            flat = tf.nest.flatten(value)
            sparse = any(isinstance(each, tf.IndexedSlices) for each in flat)
            return tf.nest.pack_sequence_as(
                value, reduce(flat) if sparse else differentiable(*flat)
            )

        return self.losses.across_ranks(collective, value)

    @tf.autograph.experimental.do_not_convert
    def all_gather(
        self, value: Any, axis: int, options: ignored_options.Options | None = None
    ) -> Any:
        ignored_options.warn(options)
        if any(isinstance(each, tf.IndexedSlices) for each in tf.nest.flatten(value)):
            raise NotImplementedError("all_gather does not support IndexedSlices")
        gather = self._strategy.extended.step_collectives.gather
        return tf.nest.map_structure(lambda each: gather(each, axis), value)

    @property
    def reconciles(self) -> bool:
        return not self._updating

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Within it, writes are an optimizer's: the same on all ranks."""
        previous = self._updating
        self._updating = True
        try:
            yield
        finally:
            self._updating = previous

    def assign(self, variable: _Variable, value: _TensorLike, read_value: bool) -> _Variable | None:
        identical = _is_same_on_all_ranks(value)
        value = tf.convert_to_tensor(value, variable.dtype)
        if variable.reconciliation is _Reconciliation.SUM_OF_WRITES:
            _store(variable, self._total(value))
            return variable if read_value else None
        if variable.own is None:
            return self._write(variable, value, _local(variable), read_value)
        # A reset applies to a rank without examples, too.
        variable.own.write(value if identical else self.examples.gate(value, variable.own.read()))
        return self._note_change(variable, read_value)

    def assign_add(
        self, variable: _Variable, delta: _TensorLike, read_value: bool
    ) -> _Variable | None:
        delta = tf.convert_to_tensor(delta, variable.dtype)
        if variable.own is not None:
            variable.own.add(self.examples.gate(delta))
            return self._note_change(variable, read_value)
        if variable.reconciliation is _Reconciliation.SUM_OF_WRITES:
            _store(variable, _local(variable) + self._total(delta))
            return variable if read_value else None
        old = _local(variable)
        return self._write(variable, old + delta, old, read_value)

    def read_own(self, own: own_value.OwnValue) -> tf.Tensor:
        """This rank's own value of a metric's variable."""
        value = own.read()
        if not tf.executing_eagerly():
            self.own_reads.add(value.op)
        return value

    def note_read(self, variable: _Variable, value: tf.Tensor) -> None:
        """Takes notice of what a variable is in the step: until its end a rank's own, maybe."""
        if not tf.executing_eagerly() and (
            variable.is_drawn_by_rank or id(variable) in self._written
        ):
            self.own_reads.add(value.op)

    def write_part(
        self,
        variable: _Variable,
        method: str,
        write: Callable[[], object],
        arguments: Mapping[str, Any],
    ) -> _Variable | None:
        """A write that touches some elements only: `write` calls the method with the arguments."""
        if variable.own is not None:
            raise NotImplementedError(
                f"`{method}` does not work inside `strategy.run` on `{variable.name}`, of which "
                "every rank has a value of its own until it is read (VariableSynchronization."
                "ON_READ). Use `assign` or `assign_add` with a value for all of its elements."
            )
        if variable.reconciliation is _Reconciliation.SUM_OF_WRITES:
            if method not in _ADDITIONS:
                raise NotImplementedError(
                    f"`{method}` does not work inside `strategy.run` on `{variable.name}`: with "
                    "VariableAggregation.SUM, what the ranks write is added up, which here means "
                    f"nothing. These work: {', '.join(_ADDITIONS)}, `assign`, `assign_add` and "
                    "`assign_sub`; or make the variable with VariableAggregation.MEAN or "
                    "ONLY_FIRST_REPLICA."
                )
            total = self._total(_scattered(variable, arguments))
            _store(variable, _local(variable) + _ADDITIONS[method] * total)
            return variable
        old = _local(variable)
        write()
        return self._write(variable, _local(variable), old, read_value=True)

    def _total(self, written: tf.Tensor) -> tf.Tensor:
        written = self.examples.gate(written)
        return self._reducer.all_reduce([written], name="sum of writes")[0]

    def _note_change(self, variable: _Variable, read_value: bool) -> _Variable | None:
        if self._is_in_step():
            self._changed[id(variable)] = variable
            self._branch_of[id(variable)] = step_data.current_graph()
        else:
            self._add_up([variable])
        return variable if read_value else None

    def _is_in_step(self) -> bool:
        """Whether what is done here is done once, or not at all, before the step ends.

        A function that is traced here, or a loop's body, may be called again.
        """
        return call_time.is_branch(step_data.current_graph(), self.graph)

    def _write(
        self, variable: _Variable, value: tf.Tensor, old: tf.Tensor, read_value: bool
    ) -> _Variable | None:
        value = self.examples.gate(value, old)
        if variable.reconciliation is _Reconciliation.FIRST:
            _store(variable, self._strategy.extended.collectives.broadcast(value))
        elif self._is_in_step():
            _store(variable, value)
            self._written[id(variable)] = variable
        else:
            _store(variable, self._average([value])[0])
        return variable if read_value else None

    def settle(self, variable: _Variable) -> None:
        """Adds up all metrics that were written, if this one was; called before its sum is read."""
        if id(variable) not in self._changed:
            return
        within = self._branches(step_data.current_graph())
        # Branches of a condition are made before it.
        is_made = {
            key: not any(graph in within for graph in self._branches(self._branch_of[key]))
            for key in self._changed
        }
        if not is_made[id(variable)]:
            # It was written in the branch that reads. Who does not take it adds up at the end.
            self._add_up([variable])
            return
        settled = [key for key in self._changed if is_made[key]]
        changed = [self._changed[key] for key in settled]
        for key in settled:
            # Another branch of the same condition may be the one that is taken.
            if not within or self._branch_of[key] is self.graph:
                del self._changed[key]
        # In the step's own graph, where they were written: a branch that reads may not be taken.
        with tf.init_scope() if self.graph is None else self.graph.as_default():
            self._add_up(changed)

    def _branches(self, graph: tf.Graph | None) -> list[tf.Graph]:
        """A branch of the step, and those around it."""
        branches = []
        while graph is not None and graph is not self.graph:
            branches.append(graph)
            graph = getattr(graph, "outer_graph", None)
        return branches

    def _add_up(self, changed: Sequence[_Variable]) -> None:
        own = [variable.own.read() for variable in changed if variable.own is not None]
        for variable, total in zip(
            changed, self._reducer.all_reduce(own, name="metrics"), strict=True
        ):
            _store(variable, total)

    def finish(self) -> None:
        """Reconciles what is left at the end of the step."""
        if self._changed:
            self.settle(next(iter(self._changed.values())))
        if self._written:
            written = list(self._written.values())
            self._written.clear()
            values = [_local(variable) for variable in written]
            for variable, mean in zip(written, self._average(values), strict=True):
                _store(variable, mean)

    def _average(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See [Note: Means of equal values are exact]."""
        weight = tf.constant(1.0, tf.float64)
        if self.examples.count is not None:
            counted = self._strategy.extended.weighs_examples
            weight = self.examples.count if counted else self.examples.present
            weight = tf.cast(weight, tf.float64)
        terms = [exact_mean.terms(value, weight) for value in values]
        flat = [*tf.nest.flatten(terms), weight]
        *sums, total = self._reducer.all_reduce(flat, name="moving statistics")
        means = []
        for value, parts in zip(values, tf.nest.pack_sequence_as(terms, sums), strict=True):
            mean = exact_mean.mean(parts, total, value.dtype)
            # If no rank has examples, all keep the value of before the step.
            means.append(tf.where(total > 0, mean, value))
        return means


# The methods that add to some elements, and their sign: what the ranks add can be summed.
_ADDITIONS = {"scatter_add": 1, "scatter_sub": -1, "scatter_nd_add": 1, "scatter_nd_sub": -1}


def _is_same_on_all_ranks(value: _TensorLike) -> bool:
    """Whether a value comes from the program and not from a rank's examples."""
    if isinstance(value, (int, float, np.ndarray, np.generic)):
        return True
    if isinstance(value, tf.Variable):
        return False
    if tf.executing_eagerly():
        return not np.any(value)  # A reset is all that can be told from computed values.
    return tf.get_static_value(tf.convert_to_tensor(value)) is not None


def _scattered(variable: _Variable, arguments: Mapping[str, Any]) -> tf.Tensor:
    """What an addition adds to each element."""
    delta = arguments.get("sparse_delta")
    if delta is None:
        indices, updates = tf.convert_to_tensor(arguments["indices"]), arguments["updates"]
    else:
        indices, updates = tf.expand_dims(delta.indices, -1), delta.values
    updates = tf.convert_to_tensor(updates, variable.dtype)
    return tf.scatter_nd(indices, updates, tf.constant(variable.shape.as_list(), indices.dtype))


def _local(variable: _Variable) -> tf.Tensor:
    """The variable's value as this rank sees it now."""
    variable.await_updates()
    with variable_module.raw_handles():
        return tf.identity(variable.read_value())


def _store(variable: _Variable, value: tf.Tensor) -> None:
    variable.await_updates()
    with variable_module.raw_handles():
        variable.assign(value, read_value=False)
