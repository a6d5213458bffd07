# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Functions of Keras that know only TensorFlow's own strategies."""
