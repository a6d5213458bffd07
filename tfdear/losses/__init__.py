# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How the losses of all ranks make one gradient."""
