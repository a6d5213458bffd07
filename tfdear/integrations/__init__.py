# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How other libraries' functions learn of the strategy."""
