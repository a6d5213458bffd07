# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""This process among the others of its job."""
