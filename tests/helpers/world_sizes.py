# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Numbers of ranks: three divide nothing evenly, and two do for the oldest versions."""

import pytest

TWO = pytest.param(2, marks=(pytest.mark.long, pytest.mark.oldest))
THREE = pytest.param(3, marks=pytest.mark.newest_only)
