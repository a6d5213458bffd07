# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `tfdear benchmark` measures: one module per benchmark, and the programs its ranks run."""
