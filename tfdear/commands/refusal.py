# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How a command says that it cannot do what it was told."""

import sys

USAGE_EXIT_CODE = 2


def refuse(command: str, reason: object) -> int:
    """Prints why; returns the exit code for invalid arguments."""
    print(f"tfdear {command}: {reason}", file=sys.stderr)
    return USAGE_EXIT_CODE
