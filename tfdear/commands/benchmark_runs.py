# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The benchmarks that `tfdear benchmark` starts, each with its command line's options."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from typing import Any

from tfdear import fusion as fusion_package
from tfdear import simulator
from tfdear.benchmarks import lab as netlab
from tfdear.compression import compressor
from tfdear.fusion import planner


def tell(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def _lab(options: argparse.Namespace, paths: int = 1):
    _check_ranks(options.ranks)
    rate = None if options.rate == "none" else options.rate
    return netlab.temporary(options.ranks, rate, paths)


def _check_ranks(ranks: int) -> None:
    if ranks < 2:
        raise ValueError(f"--ranks must be at least 2. Received: {ranks}")


@contextlib.contextmanager
def _one_node(ranks: int):
    """A lab whose nodes are all the same one."""
    _check_ranks(ranks)
    with netlab.temporary(1, None) as lab:
        yield dataclasses.replace(lab, nodes=lab.nodes * ranks)


def replay(options: argparse.Namespace) -> dict[str, Any]:
    """Schedules and planners, with sleep as computation."""
    from tfdear.benchmarks import peers, replay

    trace = simulator.load(options.trace)
    with _lab(options) as lab:
        return replay.measure(
            lab,
            [peers.tfdear(), peers.torch(options.torch_python)],
            trace,
            options.ratio,
            options.schedules,
            dict(zip(options.planners, map(fusion_package.parse, options.planners), strict=True)),
            options.repeats,
            options.iterations,
            options.pin,
            tell,
        )


def fusion(options: argparse.Namespace) -> dict[str, Any]:
    """All planners on one workload, with sleep as computation."""
    from tfdear.benchmarks import fusion as fusion_benchmark

    trace = simulator.load(options.trace)
    for text in options.planners:
        fusion_package.parse(text)
    with _lab(options) as lab:
        return fusion_benchmark.measure(
            lab,
            trace,
            options.ratio,
            options.schedules,
            {text: functools.partial(fusion_package.parse, text) for text in options.planners},
            options.repeats,
            options.iterations,
            options.pin,
            tell,
        )


def search(options: argparse.Namespace) -> dict[str, Any]:
    """Searches for a bucket size in real training."""
    from tfdear.benchmarks import search

    if not 0 <= options.noise < 1:
        raise ValueError(f"--noise must be from 0 to 1. Received: {options.noise:g}")
    if options.first_seed < 0:
        raise ValueError(f"--first-seed must be 0 or more. Received: {options.first_seed}")
    for text in options.searches:
        if not isinstance(
            fusion_package.parse(text.replace("{seed}", "0")), planner.SearchingPlanner
        ):
            raise ValueError(f"--searches takes planners that search. Received: {text}")
    with _lab(options) as lab:
        return search.measure(
            lab,
            options.models,
            options.searches,
            range(options.first_seed, options.first_seed + options.seeds),
            options.noise,
            options.grid,
            options.repeats,
            options.steps,
            options.pin,
            tell,
        )


def sparse(options: argparse.Namespace) -> dict[str, Any]:
    """Sparse sums compared with dense ones."""
    from tfdear.benchmarks import sparse

    compressor.check_density(options.density)
    with _lab(options) as lab:
        return sparse.measure(
            lab,
            options.ranks_per_node,
            options.elements,
            options.density,
            options.sums,
            options.repeats,
            options.pin,
            tell,
        )


def training(options: argparse.Namespace) -> dict[str, Any]:
    """Training with dense and compressed gradients."""
    from tfdear.benchmarks import training

    _check_ranks(options.ranks)
    for name in options.sums:
        training.variables(name)

    def lab(rate: str):
        return functools.partial(netlab.temporary, options.ranks, None if rate == "none" else rate)

    rates = [*options.rates, *(["none"] if options.learning_steps > 0 else [])]
    return training.measure(
        {rate: lab(rate) for rate in rates},
        options.ranks_per_node,
        options.task,
        options.batch_size,
        options.sums,
        options.steps,
        options.repeats,
        options.learning_steps,
        options.pin,
        tell,
    )


def overlap(options: argparse.Namespace) -> dict[str, Any]:
    """Real training, compared with other frameworks."""
    from tfdear.benchmarks import overlap, peers

    with _one_node(options.ranks) if options.one_node else _lab(options) as lab:
        return overlap.measure(
            lab,
            [
                peers.torch(options.torch_python),
                peers.horovod(options.horovod_python),
                peers.mirrored(options.mirrored_python or options.horovod_python),
            ],
            options.model,
            options.batch_size,
            [(schedule, text) for schedule in options.schedules for text in options.planners],
            options.repeats,
            options.steps,
            options.pin,
            tell,
        )


def collectives(options: argparse.Namespace) -> dict[str, Any]:
    """Time and bandwidth of the collectives."""
    from tfdear.benchmarks import collectives, peers

    frameworks = [
        *(peers.tfdear(count) for count in [1, *options.connections]),
        peers.torch(options.torch_python),
        peers.horovod(options.horovod_python),
    ]
    with _lab(options, options.paths) as lab:
        return collectives.measure(
            lab, frameworks, options.sizes, options.repeats, options.pin, tell
        )
