# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The frameworks that a benchmark compares, and how each one is started."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Mapping

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks.group import BenchmarkError, Group


@dataclasses.dataclass(frozen=True)
class Peer:
    """A framework and the interpreter that has it.

    Args:
        name: How tables call it.
        framework: Module in `ranks/`.
        python: Interpreter; None: the user named none.
        flag: Command-line flag that names it.
        variables: More environment variables of its ranks.
    """

    name: str
    framework: str
    python: str | None
    flag: str
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def open(
        self,
        stack: contextlib.ExitStack,
        lab: netlab.Lab,
        pin: bool,
        tell: Callable[[str], None],
    ) -> Group | None:
        """Starts the framework's ranks, or says why they are not there.

        Raises:
            BenchmarkError: The ranks of tfdear do not start.
        """
        if self.python is None:
            tell(f"{self.name}: not there ({self.flag} names no Python)")
            return None
        try:
            group = stack.enter_context(
                Group(self.framework, self.python, lab, pin, self.variables)
            )
        except BenchmarkError as error:
            if self.framework == "with_tfdear":
                raise
            tell(f"{self.name}: not there; {self.python} cannot run it: {error}")
            return None
        tell(f"{self.name}: {group.description}")
        return group


def tfdear(connections: int = 1, shared_memory: bool = True) -> Peer:
    """Ourselves, in this interpreter, with so many connections to each rank of another node."""
    name = "tfdear" if connections == 1 else f"tfdear, {connections} connections"
    variables = {
        "TFDEAR_CONNECTIONS": str(connections),
        "TFDEAR_SHARED_MEMORY": str(int(shared_memory)),
    }
    return Peer(name, "with_tfdear", sys.executable, "", variables)


def torch(python: str | None) -> Peer:
    """PyTorch with Gloo."""
    return Peer("torch", "with_torch", python, "--torch-python")


def horovod(python: str | None) -> Peer:
    """Horovod on TensorFlow."""
    return Peer("horovod", "with_horovod", python, "--horovod-python")


def mirrored(python: str | None) -> Peer:
    """TensorFlow's MultiWorkerMirroredStrategy with Keras 2."""
    return Peer("MultiWorkerMirroredStrategy", "with_mirrored", python, "--mirrored-python")
