# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The options of a `DearStrategy`: arguments, environment variables, defaults. No TensorFlow."""

import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from tfdear import compression as compression_module
from tfdear import fusion as fusion_module
from tfdear.base import names
from tfdear.base.checks import is_number, is_whole
from tfdear.compression.compressor import Compressor
from tfdear.fusion.planner import Planner

_CHOICES = {
    "backend": names.BACKENDS,
    "schedule": tuple(name for name in names.SCHEDULES if name != "dear_barrier"),
    "collective": names.COLLECTIVES,
    "weighting": names.WEIGHTINGS,
    "embeddings": names.EMBEDDINGS,
    "embedding_schedule": names.EMBEDDING_SCHEDULES,
}
# Options in seconds: the least and the most. Several signs of life must fit into a heartbeat.
_SECONDS = {
    "timeout": (0.1, 7 * 86400.0),
    "init_timeout": (0.1, 7 * 86400.0),
    "heartbeat": (1.0, 3600.0),
    "cleanup_timeout": (0.0, 7 * 86400.0),
}
_FLAGS = ("barrier", "shared_memory", "shared_seeds", "log_per_rank")
# Whole numbers: the least and the most. Every connection costs each rank a socket per peer.
_INTEGERS = {"connections": (0, 16), "check_every": (0, 1 << 30), "max_delay_ms": (0, 60_000)}
# Options that may differ between ranks; all others must be the same.
# The backends "auto" and "tcp" are the same here; ranks compare what they chose.
_MAY_DIFFER = ("backend", *_SECONDS, "shared_memory", "max_delay_ms")
# Named in the documentation, refused until they are built.
_NOT_BUILT = {
    "backend": ("nccl", "mpi"),
}


@dataclasses.dataclass(frozen=True)
class DearOptions:
    """The options of a `DearStrategy`, which says what they mean; a ValueError if one is wrong."""

    backend: str = "auto"
    schedule: str = "dear"
    barrier: bool = False
    fusion: Planner = dataclasses.field(default_factory=fusion_module.Planned)
    collective: str = "ring"
    compression: Compressor | None = None
    weighting: str = "examples"
    embeddings: str = "auto"
    embedding_schedule: str = "2d"
    timeout: float = 300.0
    init_timeout: float = 300.0
    heartbeat: float = 10.0
    cleanup_timeout: float = 60.0
    shared_memory: bool = True
    connections: int = 0
    shared_seeds: bool = False
    check_every: int = 0
    log_per_rank: bool = False
    max_delay_ms: int = 0  # Random delay injected into the engine, in milliseconds, for tests.

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
        if isinstance(self.fusion, type) or not isinstance(self.fusion, Planner):
            raise ValueError(
                "`fusion` must be a planner of `tfdear.fusion`, for example "
                f"tfdear.fusion.FixedSize(25 << 20). Received: fusion={self.fusion!r}"
            )
        compressor = self.compression
        if isinstance(compressor, type) or not (
            compressor is None or isinstance(compressor, Compressor)
        ):
            raise ValueError(
                "`compression` must be None or a compression of `tfdear.compression`, for example "
                "tfdear.compression.MSTopK(density=0.01). "
                f"Received: compression={self.compression!r}"
            )
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
        for name, (least, most) in _SECONDS.items():
            value = getattr(self, name)
            if not is_number(value) or not least <= value <= most:
                raise ValueError(
                    f"`{name}` must be a number of seconds from {least:g} to {most:g}. "
                    f"Received: {name}={value!r}"
                )
        for name, (least, most) in _INTEGERS.items():
            value = getattr(self, name)
            if not is_whole(value) or not least <= value <= most:
                raise ValueError(
                    f"`{name}` must be a whole number from {least} to {most}. "
                    f"Received: {name}={value!r}"
                )

    def shared(self) -> dict[str, str]:
        """What must be the same on every rank, as text, by the option's name."""
        names = (field.name for field in dataclasses.fields(self))
        return {name: _text(getattr(self, name)) for name in names if name not in _MAY_DIFFER}

    @property
    def planned_schedule(self) -> str:
        """The schedule as `tfdear.schedules` names it."""
        return "dear_barrier" if self.barrier else self.schedule


def _text(value: object) -> str:
    """An option's value as text: equal for equal values, on every rank."""
    if type(value).__repr__ is not object.__repr__:
        return repr(value)
    # A planner with a state, or one that the user wrote.
    attributes = sorted(
        f"{name.lstrip('_')}={part!r}"
        for name, part in vars(value).items()
        if isinstance(part, bool | int | float | str | tuple | None)
    )
    return f"{type(value).__name__}({', '.join(attributes)})"


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


# How an option is read from its variable TFDEAR_<NAME>.
_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_CHOICES, str),
    **dict.fromkeys(_FLAGS, _flag),
    **dict.fromkeys(_SECONDS, float),
    **dict.fromkeys(_INTEGERS, int),
    "fusion": fusion_module.parse,
    "compression": compression_module.parse,
    "bucket_bytes": int,  # Stands for `fusion`, which wins.
}


# Variables that are not options of a strategy.
TIMELINE_VARIABLE = "TFDEAR_TIMELINE"
TRACE_VARIABLE = "TFDEAR_TRACE"
CHECK_DATA_VARIABLE = "TFDEAR_CHECK_DATA"
_STALL_VARIABLE = "TFDEAR_STALL_SECONDS"


def timeline_file(environ: Mapping[str, str] = os.environ) -> str | None:
    """The timeline file, of which every rank writes one at the end of its script, or None."""
    return environ.get(TIMELINE_VARIABLE) or None


def trace_file(environ: Mapping[str, str] = os.environ) -> str | None:
    """The file to which rank 0 writes the trace of its model, or None."""
    return environ.get(TRACE_VARIABLE) or None


def checks_data(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether all batches are compared over the ranks, not the first of every epoch alone."""
    text = environ.get(CHECK_DATA_VARIABLE, "0")
    if text not in ("0", "1"):
        raise ValueError(
            f"{CHECK_DATA_VARIABLE} must be 0 or 1. Received: {CHECK_DATA_VARIABLE}={text!r}"
        )
    return text == "1"


def stall_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds after which a collective is compared with those of the other ranks."""
    text = environ.get(_STALL_VARIABLE, "2")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{_STALL_VARIABLE} must be a positive number of seconds. Received: "
            f"{_STALL_VARIABLE}={text!r}"
        )
    return seconds


def warn_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds after which a collective is warned of: 30, unless the variable says when."""
    return stall_seconds(environ) if _STALL_VARIABLE in environ else 30.0


def resolve(
    arguments: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> DearOptions:
    """Options from the arguments that were given, else the environment, else the defaults.

    An argument of None is not given. A planner or a compression may be the text that its variable
    takes, `TFDEAR_FUSION` or `TFDEAR_COMPRESSION`: as it is written in Python.
    `TFDEAR_BUCKET_BYTES` stands for `FixedSize(...)`.
    """
    known = [field.name for field in dataclasses.fields(DearOptions)]
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or (
                ["fusion"] if "bucket" in name else []
            )
            hint = f" Did you mean {near[0]!r}?" if near else f" Options: {', '.join(known)}."
            raise TypeError(f"DearStrategy has no option {name!r}.{hint}")
    values: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    for name in ("fusion", "compression"):
        if isinstance(values.get(name), str):
            try:
                values[name] = _PARSERS[name](values[name])
            except ValueError as error:
                raise ValueError(f"`{name}` cannot be read: {error}") from error
    for name, parse in _PARSERS.items():
        variable = f"TFDEAR_{name.upper()}"
        option = "fusion" if name == "bucket_bytes" else name
        if variable not in environ:
            continue
        if option in values:
            if name == "bucket_bytes":
                logging.warning(
                    "tfdear: %s has no effect: the planner %r was chosen otherwise.",
                    variable,
                    values["fusion"],
                )
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
