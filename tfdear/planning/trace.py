# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the planners and the simulator know about a model. Imports no TensorFlow."""

import dataclasses
import json
import math
import os
from typing import Any

from tfdear.base.checks import is_number, is_whole
from tfdear.planning.table import Table

_FORMAT = "tfdear-trace-1"
# Sums up to these limits are precise enough for comparisons.
_MOST_BYTES = 1 << 60
_LONGEST_SECONDS = 1e9
_BYTES_PER_VALUE = 4


@dataclasses.dataclass(frozen=True)
class Layer:
    """One gradient tensor and the computation that belongs to it.

    Use it to describe a model to a planner or to the simulator. A Keras layer with a kernel and a
    bias makes two of these; its times may be given with either.

    Args:
        name: The variable's name.
        bytes: Size of the gradient, in bytes.
        forward: Time of the forward computation that needs this variable, in seconds.
        backward: Time of the backward computation that ends with this gradient, in seconds.

    Raises:
        ValueError: A size is not a whole number of bytes, or a time is negative or not finite.

    Example:

    >>> from tfdear.trace import Layer
    >>> Layer("dense/kernel", bytes=4096, forward=1e-3, backward=2e-3).bytes
    4096
    """

    name: str
    bytes: int
    forward: float
    backward: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"`name` of a layer must be a text. Received: name={self.name!r}")
        if not is_whole(self.bytes) or not 0 <= self.bytes <= _MOST_BYTES:
            raise ValueError(
                f"`bytes` of layer {self.name!r} must be a whole number of bytes, from 0 to 2^60. "
                f"Received: bytes={self.bytes!r}"
            )
        for field in ("forward", "backward"):
            seconds = getattr(self, field)
            if not is_number(seconds) or not 0 <= seconds <= _LONGEST_SECONDS:
                raise ValueError(
                    f"`{field}` of layer {self.name!r} must be a time in seconds, from 0 to "
                    f"{_LONGEST_SECONDS:g}. Received: {field}={seconds!r}"
                )


@dataclasses.dataclass(frozen=True)
class Trace:
    """A model as the planners see it: its gradient tensors in the order of the forward pass.

    Use it as the input of `tfdear.fusion` planners, of `tfdear.schedules.timeline` and of
    `tfdear simulate`.

    Args:
        name: Name of the model.
        layers: One `Layer` per gradient tensor, in the order in which the forward pass needs them.
        tables: What is known about those layers that are tables of embeddings. Their `bytes` are
            those of the whole table, as a dense gradient has them. Defaults to none.

    Raises:
        ValueError: There is no layer, the name is not a text, or a table is no layer's or of
            another size.

    Example:

    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two layers", (Layer("a", 8, 1.0, 2.0), Layer("b", 4, 1.0, 2.0)))
    >>> trace.bytes, trace.forward, trace.backward
    (12, 2.0, 4.0)
    """

    name: str
    layers: tuple[Layer, ...]
    tables: tuple[Table, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "tables", tuple(self.tables))
        if not isinstance(self.name, str):
            raise ValueError(f"`name` of a trace must be a text. Received: name={self.name!r}")
        if not self.layers:
            raise ValueError(f"Trace {self.name!r} has no layers; it needs at least one.")
        self._check_tables()

    def _check_tables(self) -> None:
        names = [table.layer for table in self.tables]
        for table in self.tables:
            layers = [layer for layer in self.layers if layer.name == table.layer]
            if len(layers) != 1 or names.count(table.layer) != 1:
                raise ValueError(
                    f"A table must be that of one layer of trace {self.name!r}, which has no "
                    f"other. Received: {table.layer!r}, of {len(layers)} layers"
                )
            expected = _BYTES_PER_VALUE * table.rows * table.columns
            if layers[0].bytes != expected:
                raise ValueError(
                    f"Layer {table.layer!r} must have the size of its table, {table.rows} x "
                    f"{table.columns} values or {expected} bytes. Received: {layers[0].bytes}"
                )

    @property
    def forward(self) -> float:
        """Time of the forward pass, in seconds."""
        return math.fsum(layer.forward for layer in self.layers)

    @property
    def backward(self) -> float:
        """Time of the backward pass, in seconds."""
        return math.fsum(layer.backward for layer in self.layers)

    @property
    def bytes(self) -> int:
        """Size of all gradients, in bytes."""
        return sum(layer.bytes for layer in self.layers)

    def scaled(self, compute_factor: float) -> "Trace":
        """Returns the same model on a device that takes `compute_factor` times as long.

        Use it to sweep the ratio of communication to computation with one trace.

        Args:
            compute_factor: Factor on every forward and backward time; 0.5 is a device twice as
                fast.

        Returns:
            A new `Trace`.

        Raises:
            ValueError: The factor is negative or not finite.
        """
        if not 0 <= compute_factor < math.inf:
            raise ValueError(
                "`compute_factor` must be a number, zero or more. "
                f"Received: compute_factor={compute_factor!r}"
            )
        layers = tuple(
            dataclasses.replace(
                layer,
                forward=layer.forward * compute_factor,
                backward=layer.backward * compute_factor,
            )
            for layer in self.layers
        )
        return dataclasses.replace(self, layers=layers)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the trace as JSON.

        Args:
            path: File to write; an existing one is replaced.
        """
        document: dict[str, Any] = {
            "format": _FORMAT,
            "name": self.name,
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
        }
        if self.tables:
            document["tables"] = [dataclasses.asdict(table) for table in self.tables]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Trace":
        """Reads a trace that `save` wrote, or one written by hand in the same form.

        Args:
            path: A JSON file: `{"format": "tfdear-trace-1", "name": ..., "layers": [{"name": ...,
                "bytes": ..., "forward": seconds, "backward": seconds}, ...]}`, and for tables of
                embeddings `"tables": [{"layer": name, ...}]`, with the fields of `Table`.

        Returns:
            The `Trace`.

        Raises:
            ValueError: The file is not such a document; the message says where.
        """
        with open(path, encoding="utf-8") as file:
            try:
                document = json.load(file)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{os.fspath(path)} is not JSON: {error}") from error
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            received = document.get("format") if isinstance(document, dict) else type(document)
            raise ValueError(
                f"{os.fspath(path)} is not a trace: expected an object with "
                f'"format": "{_FORMAT}". Received: {received!r}'
            )
        try:
            layers = tuple(Layer(**layer) for layer in document["layers"])
            tables = tuple(Table(**table) for table in document.get("tables", ()))
            return cls(document["name"], layers, tables)
        except KeyError as error:
            raise ValueError(f"{os.fspath(path)} is no complete trace: no {error}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)} is no complete trace: {error}") from error
