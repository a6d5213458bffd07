# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Input pipelines of several ranks, and how many examples each has."""
