# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The public class, and what Keras and tf.distribute ask of it."""

# A script that only loads a model imports nothing else, and files name what these hold.
from tfdear import layers as _layers  # noqa: F401
from tfdear import losses as _losses  # noqa: F401
from tfdear import optimizers as _optimizers  # noqa: F401
from tfdear.strategy.strategy import DearStrategy

__all__ = ["DearStrategy"]
