# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Programs that ranks of a benchmark run, each in the environment of its framework."""
