# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What everything else may use. Standard library only."""
