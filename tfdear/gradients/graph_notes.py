# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is noted of graphs for as long as they live.

Notes have tensors, which keep their graph alive. In a dictionary whose keys are graphs they would
keep each graph, and the model whose variables it uses, for ever; as an attribute they go with it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def of(graph: tf.Graph, kind: str) -> dict[Any, Any]:
    """The notes of a kind of a graph, to read and to add to."""
    name = f"_tfdear_{kind}"
    if not hasattr(graph, name):
        setattr(graph, name, {})
    return getattr(graph, name)
