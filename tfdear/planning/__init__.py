# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What an iteration takes, and the order of its collectives. No TensorFlow."""
