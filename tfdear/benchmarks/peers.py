# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The frameworks that a benchmark compares, and how each one is started."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence

from tfdear.benchmarks.group import BenchmarkError, Group
from tfdear.benchmarks.settings import Settings


@dataclasses.dataclass(frozen=True)
class Peer:
    """A framework, a module in `ranks/`, and the interpreter that has it."""

    name: str  # In tables.
    framework: str
    python: str | None  # None where the user named none.
    flag: str  # The command-line flag that names it.
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def open(self, stack: contextlib.ExitStack, settings: Settings) -> Group | None:
        """Starts the framework's ranks, or prints why it cannot; those of tfdear must start."""
        if self.python is None:
            settings.tell(f"{self.name}: not there ({self.flag} names no Python)")
            return None
        try:
            group = stack.enter_context(
                Group(self.framework, self.python, settings.lab, settings.pin, self.variables)
            )
        except BenchmarkError as error:
            if self.framework == "with_tfdear":
                raise
            settings.tell(f"{self.name}: not there; {self.python} cannot run it: {error}")
            return None
        settings.tell(f"{self.name}: {group.description}")
        return group


def open_all(
    stack: contextlib.ExitStack, settings: Settings, peers: Sequence[Peer]
) -> dict[str, Group]:
    """Starts the frameworks that are there; their ranks by the frameworks' names."""
    groups = {peer.name: peer.open(stack, settings) for peer in peers}
    return {name: group for name, group in groups.items() if group is not None}


def open_tfdear(
    stack: contextlib.ExitStack, settings: Settings, shared_memory: bool = True
) -> Group:
    """Starts tfdear alone."""
    group = tfdear(shared_memory=shared_memory).open(stack, settings)
    assert group is not None
    return group


def tfdear(connections: int = 1, shared_memory: bool = True) -> Peer:
    """tfdear in this interpreter, with a number of connections to each rank of another node."""
    name = "tfdear" if connections == 1 else f"tfdear, {connections} connections"
    name += "" if shared_memory else ", without shared memory"
    variables = {
        "TFDEAR_CONNECTIONS": str(connections),
        "TFDEAR_SHARED_MEMORY": str(int(shared_memory)),
    }
    return Peer(name, "with_tfdear", sys.executable, "", variables)


def over_gloo() -> Peer:
    """tfdear with Gloo's connections in place of its own."""
    variables = {"TFDEAR_BACKEND": "gloo", "TFDEAR_SHARED_MEMORY": "0"}
    return Peer("tfdear over Gloo", "with_tfdear", sys.executable, "", variables)


def over_tls() -> Peer:
    """tfdear with encrypted connections."""
    variables = {"TFDEAR_TLS": "1", "TFDEAR_SHARED_MEMORY": "0"}
    return Peer("tfdear over TLS", "with_tfdear", sys.executable, "", variables)


def torch(python: str | None) -> Peer:
    """PyTorch with Gloo."""
    return Peer("torch", "with_torch", python, "--torch-python")


def horovod(python: str | None, variables: Mapping[str, str] | None = None) -> Peer:
    """Horovod on TensorFlow, with variables of its ranks' environment."""
    return Peer("horovod", "with_horovod", python, "--horovod-python", variables or {})


def mirrored(python: str | None) -> Peer:
    """TensorFlow's MultiWorkerMirroredStrategy with Keras 2."""
    return Peer("MultiWorkerMirroredStrategy", "with_mirrored", python, "--mirrored-python")
