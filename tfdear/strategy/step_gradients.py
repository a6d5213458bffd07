# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The gradient functions that TensorFlow keeps of a strategy's steps.

Every `all_reduce` in a step that is traced registers a gradient function under a name of its own,
and TensorFlow never forgets it, nor what it holds: the graph of the step, its model, the strategy.
A step of a strategy that was closed has no gradients any more.
"""

import contextlib
from collections.abc import Iterator

from tfdear._private import tensorflow as _tf_private

_PREFIX = "CustomGradient"  # Of the names that are made up.


class StepGradients:
    """Notes which functions are registered by the steps of one strategy."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Within it a step is called, and perhaps traced."""
        registry = _tf_private.ops.gradient_registry
        before = set(registry.list())
        try:
            yield
        finally:
            added = registry.list() - before
            self._names.update(name for name in added if name.startswith(_PREFIX))

    def forget(self) -> None:
        """Lets TensorFlow forget them."""
        for name in self._names:
            _tf_private.ops.gradient_registry._registry.pop(name, None)
        self._names.clear()
