# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The options of a `DearStrategy`: arguments, environment variables, defaults. No TensorFlow."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from tfdear import compression as compression_module
from tfdear import fusion as fusion_module
from tfdear import planner as planner_module

_CHOICES = {
    "backend": ("auto", "gloo"),
    "schedule": ("dear", "wfbp", "sequential", "bytescheduler"),
    "collective": ("ring", "tree", "hierarchical", "torus2d"),
    "weighting": ("examples", "replica"),
}
# Every one costs each rank a socket per peer.
_MOST_CONNECTIONS = 16
# Named in the documentation of the project, refused in words until they are built.
_NOT_BUILT = {
    "backend": ("nccl", "mpi"),
}


@dataclasses.dataclass(frozen=True)
class DearOptions:
    """What a `DearStrategy` was asked for, validated.

    Args:
        backend: "gloo" or "auto" (the best that this build has: Gloo over TCP).
        schedule: "dear", "wfbp", "sequential" or "bytescheduler".
        barrier: Whether "dear" gathers nothing before everything is reduced, as published.
        fusion: A planner of `tfdear.fusion`.
        collective: "ring", "tree", "hierarchical" or "torus2d".
        compression: A compression of `tfdear.compression`, or None.
        weighting: "examples" or "replica".
        timeout: Seconds any collective may take.
        init_timeout: Seconds within which all ranks must have started.
        heartbeat: Seconds after which a silent rank counts as lost.
        shared_memory: Whether ranks of one node exchange data through shared memory where they can.
        connections: TCP connections to each peer, between which the data of gradients take turns.
        shared_seeds: Whether all ranks draw the same dropout masks.
        max_delay_ms: Random delay injected into the engine, in milliseconds, for tests.

    Raises:
        ValueError: A value is not one of those above.
    """

    backend: str = "auto"
    schedule: str = "dear"
    barrier: bool = False
    fusion: planner_module.Planner = dataclasses.field(default_factory=fusion_module.FixedSize)
    collective: str = "ring"
    compression: compression_module.MSTopK | None = None
    weighting: str = "examples"
    timeout: float = 300.0
    init_timeout: float = 300.0
    heartbeat: float = 10.0
    shared_memory: bool = True
    connections: int = 1
    shared_seeds: bool = False
    max_delay_ms: int = 0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value in _NOT_BUILT.get(name, ()):
                raise ValueError(
                    f"`{name}={value!r}` is not in this version of tfdear. Available: {choices}"
                )
            if value not in choices:
                raise ValueError(f"`{name}` must be one of {choices}. Received: {name}={value!r}")
        if self.barrier and self.schedule != "dear":
            raise ValueError(
                f'`barrier=True` belongs to `schedule="dear"`. Received: schedule={self.schedule!r}'
            )
        if isinstance(self.fusion, type) or not isinstance(self.fusion, planner_module.Planner):
            raise ValueError(
                "`fusion` must be a planner of `tfdear.fusion`, for example "
                f"tfdear.fusion.FixedSize(25 << 20). Received: fusion={self.fusion!r}"
            )
        if not isinstance(self.compression, compression_module.MSTopK | None):
            raise ValueError(
                "`compression` must be None or a compression of `tfdear.compression`, for example "
                "tfdear.compression.MSTopK(density=0.01). "
                f"Received: compression={self.compression!r}"
            )
        for name in ("timeout", "init_timeout", "heartbeat"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(
                    f"`{name}` must be a positive number of seconds. Received: {name}={value!r}"
                )

        if not isinstance(self.connections, int) or not 1 <= self.connections <= _MOST_CONNECTIONS:
            raise ValueError(
                f"`connections` must be a number from 1 to {_MOST_CONNECTIONS}. "
                f"Received: connections={self.connections!r}"
            )

    @property
    def planned_schedule(self) -> str:
        """The schedule as `tfdear.schedules` names it."""
        return "dear_barrier" if self.barrier else self.schedule


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


# How an option is read from its variable TFDEAR_<NAME>.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "backend": str,
    "schedule": str,
    "barrier": _flag,
    "fusion": planner_module.parse,
    "collective": str,
    "compression": compression_module.parse,
    "weighting": str,
    "timeout": float,
    "init_timeout": float,
    "heartbeat": float,
    "shared_memory": _flag,
    "connections": int,
    "shared_seeds": _flag,
    "max_delay_ms": int,
    "bucket_bytes": int,  # Stands for `fusion`, which wins.
}


def resolve(
    arguments: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> DearOptions:
    """Options from the arguments that were given, else the environment, else the defaults.

    Args:
        arguments: Constructor arguments; None means not given.
        environ: Where to look for `TFDEAR_BACKEND`, `TFDEAR_TIMEOUT` and so on.
            `TFDEAR_FUSION` holds a planner as it is written in Python, `TFDEAR_COMPRESSION` a
            compression, `TFDEAR_BUCKET_BYTES` stands for `FixedSize(...)`.

    Raises:
        ValueError: An argument or a variable has a value that is not allowed.
    """
    values: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    for name, parse in _PARSERS.items():
        variable = f"TFDEAR_{name.upper()}"
        option = "fusion" if name == "bucket_bytes" else name
        if option in values or variable not in environ:
            continue
        try:
            value = parse(environ[variable])
        except ValueError as error:
            raise ValueError(
                f"The environment variable {variable} cannot be read: {error}. "
                f"Received: {variable}={environ[variable]!r}"
            ) from error
        values[option] = fusion_module.FixedSize(value) if name == "bucket_bytes" else value
    return DearOptions(**values)
