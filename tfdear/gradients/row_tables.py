# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which variables are created as whole tables that change by rows."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfdear.gradients import placement as placement_module
from tfdear.gradients.row_variable import RowVariable
from tfdear.planning.partition import Partition

_is_wanted: contextvars.ContextVar[bool] = contextvars.ContextVar("row_tables", default=False)


@contextlib.contextmanager
def of_new_variables() -> Iterator[None]:
    """Within it, variables are created as tables."""
    token = _is_wanted.set(True)
    try:
        yield
    finally:
        _is_wanted.reset(token)


class RowsInitializer:
    """The initializer of a table, by which one that Keras creates later is known."""

    def __init__(self, initializer: Any):
        self._initializer = initializer

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return self._initializer(shape, dtype=dtype, **kwargs)


def placement_of(
    given: Mapping[str, Any], value: Any, owner: object, path: str
) -> placement_module.Placement | None:
    """The placement of a new variable that is to be a table, or a slot of one; None: it is not.

    `given` are the arguments of `tf.Variable`, `value` is the initial value.
    """
    shape = getattr(value, "shape", None)
    if getattr(value, "dtype", None) != tf.float32 or shape is None or shape.rank != 2:
        return None
    if isinstance(owner, RowVariable):
        return owner.placement if tuple(shape) == owner.placement.shape else None
    cells = getattr(given.get("initial_value"), "__closure__", None) or ()
    if not _is_wanted.get() and not any(
        isinstance(cell.cell_contents, RowsInitializer) for cell in cells
    ):
        return None
    rows, columns = shape.as_list()
    label = f"`{path}` (table of {rows} x {columns})"
    return placement_module.Placement(
        Partition("column", rows, columns, 1), 0, label, exchange="auto"
    )
