# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What counts as a number. To Python, True and False do; here they do not."""

from typing import TypeGuard


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number, whole or not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
