# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Measurements of one question each, started by hand."""
