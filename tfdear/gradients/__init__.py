# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sums of gradients and updates of variables, as ops."""
