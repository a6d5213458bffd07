# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The modes of `tfdear benchmark embeddings`, each with its command line's options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tfdear.benchmarks.embeddings.methods import METHODS
from tfdear.commands import benchmark_runs

_DESCRIPTION = "Ways to exchange tables of embeddings, in turns on one line."
_Add = Callable[..., argparse.ArgumentParser]


def add_parser(kinds: argparse._SubParsersAction, add: _Add) -> None:
    """Adds the benchmark; `add` adds a mode, with the options that all benchmarks have."""
    parser = kinds.add_parser("embeddings", help=_DESCRIPTION, description=_DESCRIPTION)
    modes = parser.add_subparsers(required=True, metavar="mode")
    swept = add(modes, sweep, "all communication for one table, by sparsity of its gradient")
    _add_methods(swept, [name for name, method in METHODS.items() if not method.raw])
    swept.add_argument("--rows", type=int, default=64_640, help="of the table (default: 64640)")
    swept.add_argument("--columns", type=int, default=1024, help="of the table (default: 1024)")
    swept.add_argument(
        "--sparsity",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[0.0, 20.0, 40.0, 60.0, 80.0, 90.0, 97.0, 99.0, 99.7, 99.9],
        help="rows that a rank's batch has not, in percent (default: 0,20,40,60,80,90,97,99,99.7,"
        "99.9)",
    )
    swept.add_argument("--iterations", type=int, default=2, help="steps per turn (default: 2)")
    swept.set_defaults(repeats=3)


def _add_methods(parser: argparse.ArgumentParser, default: list[str]) -> None:
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=tuple(METHODS),
        default=default,
        metavar="METHOD",
        help=f"of {', '.join(METHODS)} (default: {', '.join(default)})",
    )


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """All communication for one table, by sparsity of its gradient."""
    from tfdear.benchmarks.embeddings import sweep

    for name in ("rows", "columns", "iterations"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1. Received: {getattr(options, name)}")
    for percent in options.sparsity:
        if not 0 <= percent < 100:
            raise ValueError(f"--sparsity must be from 0 to below 100. Received: {percent:g}")
    with benchmark_runs.settings_of(options, options.rate, options.iterations) as settings:
        return sweep.measure(
            settings,
            methods=options.methods,
            rows=options.rows,
            columns=options.columns,
            sparsity=options.sparsity,
        )
