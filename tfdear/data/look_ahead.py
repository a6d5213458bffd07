# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The batch after the one that a step gets, from the same pass over the data.

[Note: One batch ahead]
An iterator that looks ahead reads the batch, the next batch and whether there is one as one element
of tf.data, and gives out the batch alone. What uses the next batch finds it at the op that read the
batch (`reads_of`), or, outside of graphs, at the iterator that was used last (`LookAhead.last`).
Everything else about the iterator is as before.
"""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import first_batch, iterators, reading_order

# What all batches of a dataset share: type and rank of each tensor that they consist of; -1: it is
# not known.
Kind: TypeAlias = tuple[tuple[tf.DType, int], ...]

_READS = "_tfdear_reads"


@dataclasses.dataclass(frozen=True, eq=False)
class Read:
    """A batch and the one after it, by tensors: composite ones are in parts."""

    batch: list[tf.Tensor]
    following: list[tf.Tensor]  # Without meaning where there is none.
    has_next: tf.Tensor  # Scalar bool.

    @property
    def kind(self) -> Kind:
        """See `Kind`."""
        return kind_of(self.batch)


def kind_of(values: list[tf.Tensor] | list[tf.TensorSpec]) -> Kind:
    """The kind of a batch that consists of these tensors."""
    ranks = [-1 if value.shape.rank is None else value.shape.rank for value in values]
    return tuple((value.dtype, rank) for value, rank in zip(values, ranks, strict=True))


def reads_of(graph: tf.Graph) -> list[Read]:
    """What the ops of a graph read from iterators that look ahead, in the order of the program."""
    return getattr(graph, _READS, [])


class LookAhead:
    """The iterators of one strategy that look ahead.

    `is_needed` is asked when an iterator is made. All ranks must answer the same: whether there was
    a table, not whether there is one, as garbage is collected at other times on other ranks.
    """

    def __init__(self, is_needed: Callable[[], bool]):
        self._is_needed = is_needed
        # The kinds of batches that such iterators have had.
        self.kinds: set[Kind] = set()
        # Of the batch that was last read outside of a graph, until there are no more. It decides
        # about graphs, which must be the same on all ranks; when an iterator is gone is not.
        self.last_kind: Kind | None = None
        self._last: weakref.ref[LookAheadIterator] | None = None

    @property
    def last(self) -> Read | None:
        """What was last read outside of a graph; None: that batch is no longer there."""
        iterator = None if self._last is None else self._last()
        return None if iterator is None else iterator.last_read

    def note(self, iterator: "LookAheadIterator") -> None:
        """Notes the iterator that was used last."""
        self._last = weakref.ref(iterator)
        self.last_kind = None if iterator.last_read is None else iterator.last_read.kind

    def iterate(
        self, dataset: tf.data.Dataset, comparison: first_batch.FirstBatch | None = None
    ) -> iterators.DistributedIterator:
        """An iterator over a dataset; see `iterators.DistributedIterator`."""
        # Without calls that run at a time, elements are read when the step asks for them: what
        # was read ahead would be lost to the next iterator.
        in_step = comparison is not None and comparison.parallel_calls is None
        pairs = None if in_step or not self._is_needed() else _pairs(dataset)
        if pairs is None:
            return iterators.DistributedIterator(dataset, comparison)
        self.kinds.add(kind_of(_parts_of(dataset.element_spec)))
        return LookAheadIterator(pairs, dataset.element_spec, self, comparison)


def _parts_of(specification: object) -> list[tf.TypeSpec]:
    return tf.nest.flatten(specification, expand_composites=True)


def _pairs_spec(specification: object) -> tuple[tf.TypeSpec, ...]:
    parts = _parts_of(specification)
    return *parts, *parts, tf.TensorSpec([], tf.bool)


def _pairs(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Elements of `_pairs_spec`; None: the dataset has elements that are no tensors."""
    specification = dataset.element_spec
    parts = _parts_of(specification)
    if not parts or not all(_is_plain(part) for part in parts):
        return None
    nothing = tf.nest.map_structure(_nothing, specification)
    last = tf.data.Dataset.from_tensors((nothing, False))
    # Not `map`, which TensorFlow may run in parallel.
    marked = tf.data.Dataset.zip((dataset, tf.data.Dataset.from_tensors(True).repeat()))

    # AutoGraph would take time and find nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def with_next(batch: Any, element: Any) -> tuple[Any, Any]:
        following, is_there = element
        following = tf.nest.flatten(following, expand_composites=True)
        return tuple(following), (*batch, *following, is_there)

    before = tuple(tf.nest.flatten(nothing, expand_composites=True))
    pairs = marked.concatenate(last).scan(before, with_next).skip(1)
    expected = _pairs_spec(specification)
    same = len(pairs.element_spec) == len(expected) and all(
        isinstance(one, tf.TensorSpec)
        and one.dtype == other.dtype
        and one.shape.as_list() == other.shape.as_list()
        for one, other in zip(pairs.element_spec, expected, strict=True)
    )
    return pairs if same else None


def _is_plain(part: tf.TypeSpec) -> bool:
    return (
        isinstance(part, tf.TensorSpec)
        and part.shape.rank is not None
        and part.dtype not in (tf.variant, tf.resource)
    )


def _nothing(spec: tf.TypeSpec) -> Any:
    """A value without rows, where these are not a fixed number."""

    def zeros(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
        return tf.zeros([size or 0 for size in shape], dtype)

    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape[spec.ragged_rank + 1 :]
        value = zeros(tf.TensorShape([None]).concatenate(inner), spec.dtype)
        for _ in range(spec.ragged_rank):
            value = tf.RaggedTensor.from_row_splits(value, tf.zeros([1], spec.row_splits_dtype))
        return value
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(
            tf.zeros([0, spec.shape.rank], tf.int64),
            tf.zeros([0], spec.dtype),
            tf.zeros([spec.shape.rank], tf.int64),
        )
    return zeros(spec.shape, spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


def _split(specification: object, parts: tuple[tf.Tensor, ...]) -> tuple[object, Read]:
    """The batch, and what was read with it."""
    count = len(parts) // 2
    read = Read(list(parts[:count]), list(parts[count:-1]), parts[-1])
    if not tf.executing_eagerly():
        graph = read.has_next.graph
        setattr(graph, _READS, [*reads_of(graph), read])
    return tf.nest.pack_sequence_as(specification, read.batch, expand_composites=True), read


class _LooksAhead:
    """Gives out batches of an iterator over pairs of batches."""

    _batch_spec: object

    @property
    def element_spec(self) -> object:
        return self._batch_spec

    @property
    def _type_spec(self) -> "LookAheadSpec":
        return LookAheadSpec(self._batch_spec)

    def _next_internal(self) -> object:
        with reading_order.kept():
            pair = super()._next_internal()  # type: ignore[misc]
        batch, read = _split(self._batch_spec, pair)
        self._note(read)
        return batch

    def _note(self, read: Read) -> None:
        pass

    def get_next_as_optional(self) -> "_LookAheadOptional":
        iterator = _tf_private.iterator_ops.OwnedIterator(
            components=(self._iterator_resource,),  # type: ignore[attr-defined]
            element_spec=_pairs_spec(self._batch_spec),
        )
        with reading_order.kept():
            variant = iterator.get_next_as_optional()._variant_tensor
        return _LookAheadOptional(variant, self._batch_spec)


class LookAheadIterator(_LooksAhead, iterators.DistributedIterator):
    """An iterator over a strategy's dataset that reads one batch ahead."""

    def __init__(
        self,
        pairs: tf.data.Dataset,
        specification: object,
        owner: LookAhead,
        comparison: first_batch.FirstBatch | None = None,
    ):
        self._batch_spec = specification
        self._owner = owner
        self.last_read: Read | None = None
        super().__init__(pairs, comparison)

    def _note(self, read: Read) -> None:
        if tf.executing_eagerly():
            self.last_read = read
            self._owner.note(self)

    def __next__(self) -> object:
        try:
            return super().__next__()
        except StopIteration:
            self.last_read = None
            self._owner.note(self)
            raise


class _IteratorInGraph(_LooksAhead, _tf_private.iterator_ops.OwnedIterator):
    """A `LookAheadIterator` that a `tf.function` was given."""

    def __init__(self, components: Any, specification: object):
        self._batch_spec = specification
        super().__init__(components=components, element_spec=_pairs_spec(specification))


class LookAheadSpec(tf.data.IteratorSpec):
    """What a `tf.function` knows of a `LookAheadIterator`."""

    __slots__ = ()

    def _from_components(self, components: Any) -> _IteratorInGraph:
        return _IteratorInGraph(components, self._element_spec)

    @staticmethod
    def from_value(value: Any) -> "LookAheadSpec":
        return LookAheadSpec(value.element_spec)


class _LookAheadOptional(_tf_private.optional_ops._OptionalImpl):
    """An optional batch that was read with the next one."""

    def get_value(self, name: str | None = None) -> object:
        pair = _tf_private.optional_ops._OptionalImpl(
            self._variant_tensor, _pairs_spec(self._element_spec)
        )
        return _split(self._element_spec, pair.get_value(name))[0]

    @property
    def _type_spec(self) -> "_LookAheadOptionalSpec":
        return _LookAheadOptionalSpec(self._element_spec)


class _LookAheadOptionalSpec(tf.OptionalSpec):
    __slots__ = ()

    @property
    def value_type(self) -> type:
        return _LookAheadOptional

    def _from_components(self, flat_value: Any) -> _LookAheadOptional:
        return _LookAheadOptional(flat_value[0], self._element_spec)

    @staticmethod
    def from_value(value: Any) -> "_LookAheadOptionalSpec":
        return _LookAheadOptionalSpec(value.element_spec)
