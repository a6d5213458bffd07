# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear benchmark data`, with its command line's options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tfdear.base.sizes import bytes_of
from tfdear.benchmarks import lab, observed_files
from tfdear.commands import benchmark_runs

_CASES = ("local", "remote", "source", "memory")
_HELP = "a cache of examples beside other input pipelines"
_BYTES = {
    "local-bytes": ("256MB", "of all examples of a pipeline, in case local"),
    "remote-bytes": ("324MB", "of all examples, in case remote"),
    "source-bytes": ("50MB", "of all examples, in case source"),
    "memory-bytes": ("512MB", "of all examples, in case memory"),
}
_Add = Callable[..., argparse.ArgumentParser]


def add_parser(kinds: argparse._SubParsersAction, add: _Add) -> None:
    """Adds the benchmark; `add` adds it with the options that all benchmarks have."""
    parser = add(kinds, data, _HELP)
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=_CASES,
        default=list(_CASES),
        help="local: examples in this node's memory; remote: in other nodes'; source: a slow one, "
        "whose bytes are counted; memory: what the ranks of a node take (default: all)",
    )
    parser.add_argument(
        "--sizes", default="12KB,27KB,150KB", help="of an example (default: 12KB,27KB,150KB)"
    )
    parser.add_argument(
        "--size",
        default="27KB",
        help="of an example, in all cases but local (default: 27KB, 96 x 96 pixels)",
    )
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank (default: 64)")
    parser.add_argument(
        "--nodes", default="2,4", help="in case remote, with a rank each (default: 2,4)"
    )
    parser.add_argument(
        "--rates",
        default="1gbit,none",
        help="what each node may send, in case remote, instead of --rate (default: 1gbit,none)",
    )
    parser.add_argument(
        "--source-rate",
        default="100mbit",
        help="what the source gives to all ranks together (default: 100mbit)",
    )
    for option, (number, text) in _BYTES.items():
        parser.add_argument(f"--{option}", default=number, help=f"{text} (default: {number})")
    parser.add_argument(
        "--grain-python", metavar="PYTHON", help="a Python that has Grain and ArrayRecord"
    )


def data(options: argparse.Namespace) -> dict[str, Any]:
    """A cache of examples beside other input pipelines."""
    from tfdear.benchmarks.data import local, memory, remote, source
    from tfdear.benchmarks.data.figures import Findings

    sizes = [_bytes(text, "--sizes") for text in options.sizes.split(",")]
    nbytes = _bytes(options.size, "--size")
    total = {name: _bytes(getattr(options, name.replace("-", "_")), f"--{name}") for name in _BYTES}
    nodes = [_whole(text, "--nodes", 2) for text in options.nodes.split(",")]
    rates = [None if text == "none" else text for text in options.rates.split(",")]
    for rate in (*rates, options.source_rate):
        if rate is not None:
            lab.parse_rate(rate)
    if options.ranks < 2:
        raise ValueError(f"--ranks must be at least 2. Received: {options.ranks}")
    findings = Findings()
    tell = benchmark_runs.tell
    shape = {"batch_size": _whole(options.batch_size, "--batch-size", 1)}
    shape["repeats"] = options.repeats
    if "local" in options.cases:
        local.measure(
            findings,
            tell,
            sizes=sizes,
            cached_bytes=total["local-bytes"],
            grain_python=options.grain_python,
            **shape,
        )
    if "remote" in options.cases:
        for rate in rates:
            # Not shaped, several nodes of one machine measure the machine.
            for number in nodes if rate is not None else nodes[:1]:
                remote.measure(
                    findings,
                    tell,
                    nodes=number,
                    rate=rate,
                    nbytes=nbytes,
                    cached_bytes=total["remote-bytes"],
                    **shape,
                )
    missing = observed_files.missing()
    if "source" in options.cases and missing is not None:
        tell(f"source: not there; {missing}")
    elif "source" in options.cases:
        source.measure(
            findings,
            tell,
            ranks=options.ranks,
            source_rate=options.source_rate,
            source_bytes=total["source-bytes"],
            nbytes=nbytes,
            **shape,
        )
    if "memory" in options.cases:
        memory.measure(findings, tell, nbytes=nbytes, cached_bytes=total["memory-bytes"], **shape)
    tell(findings.table())
    return findings.document()


def _bytes(text: str, option: str) -> int:
    nbytes = bytes_of(text, option)
    if nbytes < 16:
        raise ValueError(f"{option} must be at least 16 bytes. Received: {text!r}")
    return nbytes


def _whole(text: str | int, option: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"{option} takes whole numbers from {least}. Received: {text!r}")
    return number
