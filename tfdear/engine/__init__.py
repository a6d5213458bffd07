# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The C++ engine's face: its library, names, plans and events."""
