# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The public class, and what Keras and tf.distribute ask of it."""

from tfdear.strategy.strategy import DearStrategy

__all__ = ["DearStrategy"]
