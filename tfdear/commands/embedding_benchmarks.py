# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The modes of `tfdear benchmark embeddings`, each with its command line's options."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tfdear import simulator
from tfdear.benchmarks.embeddings.methods import METHODS
from tfdear.benchmarks.embeddings.train import VARIANTS, Sizes
from tfdear.commands import benchmark_runs

_DESCRIPTION = "Ways to exchange tables of embeddings, in turns on one line."
# A quarter of the words of the paper's language model.
_SIZES = Sizes(words=198_368, columns=512, units=256, samples=512, windows=16, length=20)
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
    replayed = add(modes, replay, "a model with tables, with sleep as computation")
    replayed.add_argument(
        "--trace",
        default="gnmt-8",
        help="a trace with tables that comes with tfdear (lm-1b, gnmt-8, transformer-big, "
        "bert-base-squad), or a JSON file (default: gnmt-8)",
    )
    _add_methods(replayed, [name for name in METHODS if name not in ("dense", "block_sparse")])
    replayed.add_argument(
        "--scale",
        type=float,
        default=0.25,
        help="of dense gradients' sizes; 0: the tables' traffic alone, without computation "
        "(default: 0.25)",
    )
    replayed.add_argument(
        "--ratio",
        type=float,
        default=1.0,
        help="computation over the dense gradients' time on the line (default: 1)",
    )
    replayed.add_argument(
        "--counts",
        metavar="ORIGINAL,COALESCED,PRIOR",
        help="rows of a rank's batch, of all tables together (default: the trace's, those of the "
        "paper)",
    )
    replayed.add_argument("--iterations", type=int, default=3, help="steps per turn (default: 3)")
    replayed.set_defaults(repeats=3)
    trained = add(modes, train, "training of a language model with two tables")
    trained.add_argument(
        "--variants",
        nargs="+",
        choices=tuple(VARIANTS),
        default=tuple(VARIANTS),
        metavar="VARIANT",
        help=f"of {', '.join(VARIANTS)} (default: all)",
    )
    for option, number in {**dataclasses.asdict(_SIZES), "iterations": 3}.items():
        trained.add_argument(f"--{option}", type=int, default=number, help=f"default: {number}")
    trained.set_defaults(repeats=3)


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

    _check_positive(options, "rows", "columns", "iterations")
    _check_methods(options)
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
            horovod_python=options.horovod_python,
        )


def replay(options: argparse.Namespace) -> dict[str, Any]:
    """A model with tables, with sleep as computation."""
    from tfdear.benchmarks.embeddings import replay

    _check_positive(options, "iterations")
    _check_methods(options)
    if not 0 <= options.scale < math.inf:
        raise ValueError(f"--scale must be 0 or more. Received: {options.scale:g}")
    if not 0 < options.ratio < math.inf:
        raise ValueError(f"--ratio must be above 0. Received: {options.ratio:g}")
    counts = None if options.counts is None else _counts(options.counts)
    trace = simulator.load(options.trace)
    if not trace.tables:
        raise ValueError(f"trace {trace.name!r} has no tables")
    with benchmark_runs.settings_of(options, options.rate, options.iterations) as settings:
        return replay.measure(
            settings,
            methods=options.methods,
            trace=trace,
            scale=options.scale,
            ratio=options.ratio,
            counts=counts,
            horovod_python=options.horovod_python,
        )


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Training of a language model with two tables."""
    from tfdear.benchmarks.embeddings import train

    numbers = [field.name for field in dataclasses.fields(Sizes)]
    _check_positive(options, "iterations", *numbers)
    with benchmark_runs.settings_of(options, options.rate, options.iterations) as settings:
        return train.measure(
            settings,
            variants=options.variants,
            sizes=Sizes(**{name: getattr(options, name) for name in numbers}),
            horovod_python=options.horovod_python,
        )


def _counts(text: str) -> tuple[int, int, int]:
    """Reads "2560,794,318"."""
    try:
        original, coalesced, prior = map(int, text.split(","))
    except ValueError:
        original = coalesced = prior = -1
    if not 0 <= prior <= coalesced <= original or coalesced < 1:
        raise ValueError(
            "--counts are three whole numbers, none larger than the one before, such as "
            f"2560,794,318. Received: {text!r}"
        )
    return original, coalesced, prior


def _check_methods(options: argparse.Namespace) -> None:
    if all(METHODS[name].foreign for name in options.methods):
        raise ValueError(
            "--methods needs one of tfdear's, whose job measures what exchanges cost. "
            f"Received: {' '.join(options.methods)}"
        )


def _check_positive(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1. Received: {getattr(options, name)}")
