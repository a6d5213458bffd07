# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The benchmarks that `tfdear benchmark` starts, each with its command line's options."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from tfdear import fusion as fusion_package
from tfdear import simulator
from tfdear.benchmarks import lab
from tfdear.benchmarks.settings import Settings
from tfdear.compression import compressor
from tfdear.fusion import planner


def tell(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


@contextlib.contextmanager
def settings_of(
    options: argparse.Namespace,
    rate: str,
    iterations: int = 1,
    paths: int = 1,
    one_node: bool = False,
) -> Iterator[Settings]:
    """The settings with a lab of one rank per node, or of all ranks on one."""
    _check_ranks(options)
    nodes = 1 if one_node else options.ranks
    with lab.temporary(nodes, None if one_node or rate == "none" else rate, paths) as made:
        ranks = made.with_ranks(options.ranks // nodes)
        yield Settings(ranks, options.pin, options.repeats, tell, iterations)


def _check_ranks(options: argparse.Namespace) -> None:
    if options.ranks < 2:
        raise ValueError(f"--ranks must be at least 2. Received: {options.ranks}")


def replay(options: argparse.Namespace) -> dict[str, Any]:
    """Schedules and planners, with sleep as computation."""
    from tfdear.benchmarks import peers, replay

    trace = simulator.load(options.trace)
    with settings_of(options, options.rate, options.iterations) as settings:
        return replay.measure(
            settings,
            peers=[peers.tfdear(), peers.torch(options.torch_python)],
            trace=trace,
            ratios=options.ratio,
            names=options.schedules,
            planners={text: fusion_package.parse(text) for text in options.planners},
        )


def fusion(options: argparse.Namespace) -> dict[str, Any]:
    """All planners on one workload, with sleep as computation."""
    from tfdear.benchmarks import fusion as fusion_benchmark

    trace = simulator.load(options.trace)
    for text in options.planners:
        fusion_package.parse(text)
    with settings_of(options, options.rate, options.iterations) as settings:
        return fusion_benchmark.measure(
            settings,
            trace=trace,
            ratio=options.ratio,
            names=options.schedules,
            planners=list(dict.fromkeys(options.planners)),
        )


def search(options: argparse.Namespace) -> dict[str, Any]:
    """Searches for a bucket size in real training."""
    from tfdear.benchmarks import search

    if not 0 <= options.noise < 1:
        raise ValueError(f"--noise must be from 0 to 1. Received: {options.noise:g}")
    if options.first_seed < 0:
        raise ValueError(f"--first-seed must be 0 or more. Received: {options.first_seed}")
    for text in options.searches:
        parsed = fusion_package.parse(text.replace("{seed}", "0"))
        if not isinstance(parsed, planner.SearchingPlanner):
            raise ValueError(f"--searches takes planners that search. Received: {text}")
    with settings_of(options, options.rate, options.steps) as settings:
        return search.measure(
            settings,
            models=options.models,
            searches=options.searches,
            seeds=range(options.first_seed, options.first_seed + options.seeds),
            noise=options.noise,
            grid=options.grid,
        )


def sparse(options: argparse.Namespace) -> dict[str, Any]:
    """Sparse sums compared with dense ones."""
    from tfdear.benchmarks import sparse

    compressor.check_density(options.density)
    with settings_of(options, options.rate) as settings:
        return sparse.measure(
            settings,
            ranks_per_node=options.ranks_per_node,
            count=options.elements,
            density=options.density,
            sums=options.sums,
        )


def training(options: argparse.Namespace) -> dict[str, Any]:
    """Training with dense and compressed gradients."""
    from tfdear.benchmarks import training

    _check_ranks(options)
    for name in options.sums:
        training.variables(name)
    rates = [*options.rates, *(["none"] if options.learning_steps > 0 else [])]
    return training.measure(
        {rate: functools.partial(settings_of, options, rate, options.steps) for rate in rates},
        ranks_per_node=options.ranks_per_node,
        task=options.task,
        batch_size=options.batch_size,
        sums=options.sums,
        learning_steps=options.learning_steps,
    )


def overlap(options: argparse.Namespace) -> dict[str, Any]:
    """Real training, compared with other frameworks."""
    from tfdear.benchmarks import overlap, peers

    one_node = options.one_node
    with settings_of(options, options.rate, options.steps, one_node=one_node) as settings:
        return overlap.measure(
            settings,
            peers=[
                peers.torch(options.torch_python),
                peers.horovod(options.horovod_python),
                peers.mirrored(options.mirrored_python or options.horovod_python),
            ],
            model=options.model,
            batch_size=options.batch_size,
            configurations=[(s, text) for s in options.schedules for text in options.planners],
        )


def start(options: argparse.Namespace) -> dict[str, Any]:
    """How large jobs start, without TensorFlow."""
    from tfdear.benchmarks import starting

    with lab.temporary(2, None) as made:
        settings = Settings(made, pin=False, repeats=1, tell=tell)
        return starting.measure(settings, world_sizes=options.worlds)


def collectives(options: argparse.Namespace) -> dict[str, Any]:
    """Time and bandwidth of the collectives."""
    from tfdear.benchmarks import collectives, peers

    one_node = options.one_node
    frameworks = [
        *(peers.tfdear(count) for count in [1, *options.connections]),
        *([peers.tfdear(shared_memory=False)] if one_node else []),
        *([peers.over_gloo()] if options.gloo else []),
        *([peers.over_tls()] if options.tls else []),
        peers.torch(options.torch_python),
        peers.horovod(options.horovod_python),
    ]
    with settings_of(options, options.rate, paths=options.paths, one_node=one_node) as settings:
        return collectives.measure(settings, peers=frameworks, sizes=options.sizes)
