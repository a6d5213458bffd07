# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence


def table_of(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Formats rows whose cells stand behind the names of their columns, the same in every row."""
    header = [column for column, _ in rows[0]]
    return table([[cell for _, cell in row] for row in rows], header=header)


def table(
    rows: Sequence[Sequence[str]],
    *,
    header: Sequence[str] = (),
    num_left: int = 1,
    equal_widths: bool = False,
) -> str:
    """Formats a table whose columns are as wide as their cells; a header is underlined.

    The first `num_left` columns are flush left; the others are flush right, and all of them are as
    wide as the widest if `equal_widths` says so.
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
