# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The frameworks that a benchmark compares, and how each one is started."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable

from tfdear import netlab
from tfdear.benchmarks.group import BenchmarkError, Group


@dataclasses.dataclass(frozen=True)
class Peer:
    """A framework and the interpreter that has it.

    Args:
        name: How tables call it.
        framework: Module in `ranks/`.
        python: Interpreter; None: the user named none.
        flag: Command-line flag that names it.
    """

    name: str
    framework: str
    python: str | None
    flag: str

    def open(
        self,
        stack: contextlib.ExitStack,
        lab: netlab.Lab,
        pin: bool,
        tell: Callable[[str], None],
    ) -> Group | None:
        """Starts the framework's ranks, or says why they are not there.

        Raises:
            BenchmarkError: tfdear itself does not start.
        """
        if self.python is None:
            tell(f"{self.name}: not there ({self.flag} names no Python)")
            return None
        try:
            group = stack.enter_context(Group(self.framework, self.python, lab, pin))
        except BenchmarkError as error:
            if self.framework == "with_tfdear":
                raise
            tell(f"{self.name}: not there; {self.python} cannot run it: {error}")
            return None
        tell(f"{self.name}: {group.description}")
        return group


def tfdear() -> Peer:
    """Ourselves, in this interpreter."""
    return Peer("tfdear", "with_tfdear", sys.executable, "")


def torch(python: str | None) -> Peer:
    """PyTorch with Gloo."""
    return Peer("torch", "with_torch", python, "--torch-python")


def horovod(python: str | None) -> Peer:
    """Horovod on TensorFlow."""
    return Peer("horovod", "with_horovod", python, "--horovod-python")


def mirrored(python: str | None) -> Peer:
    """TensorFlow's MultiWorkerMirroredStrategy with Keras 2."""
    return Peer("MultiWorkerMirroredStrategy", "with_mirrored", python, "--mirrored-python")
