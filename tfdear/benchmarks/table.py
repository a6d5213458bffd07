# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence


def table(
    rows: Sequence[Sequence[str]],
    *,
    header: Sequence[str] = (),
    num_left: int = 1,
    equal_widths: bool = False,
) -> str:
    """Formats a table whose columns are as wide as their cells.

    Args:
        rows: The cells of every row.
        header: The cells of the first row, which is underlined. Defaults to none.
        num_left: How many columns, from the first, are flush left; the others are flush right.
            Defaults to 1.
        equal_widths: Whether the columns that are flush right are equally wide. Defaults to False.
    """
    all_rows = [header, *rows] if header else rows
    widths = [max(map(len, column)) for column in zip(*all_rows, strict=True)]
    if equal_widths:
        widths[num_left:] = [max(widths[num_left:])] * len(widths[num_left:])
    lines = []
    for row in all_rows:
        cells = [f"{cell:{'<' if i < num_left else '>'}{widths[i]}}" for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    if header:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
