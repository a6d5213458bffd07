# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The layers of a model: sizes and times. No TensorFlow."""

from tfdear.planning.table import Table
from tfdear.planning.trace import Layer, Trace

__all__ = ["Layer", "Table", "Trace"]
