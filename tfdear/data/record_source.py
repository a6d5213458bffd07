# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a cache reads: raw records by number."""

import hashlib
from typing import Protocol

import numpy as np
import tensorflow as tf


class RecordSource(Protocol):
    """What a `DataCache` reads: raw records, each of which has a number."""

    def __len__(self) -> int: ...

    @property
    def element_spec(self) -> object:
        """The specification of a raw record: nested dense tensors."""

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Reads records.

        Args:
            numbers: Of the records, an array of int64.

        Returns:
            The flat tensors of the records, with a first dimension of records, and for each record
            why it could not be read, or an empty string: a tensor of strings.
        """

    @property
    def records_per_read(self) -> int:
        """How many records in a row are worth one access to what holds them."""

    def fingerprint(self) -> str:
        """A text that differs where records do, as far as can be told without reading them."""

    def modification_times(self) -> np.ndarray:
        """When what holds the records was changed last, in nanoseconds: of files, or of folders."""

    def name(self, number: int) -> str:
        """What messages call a record."""


def fingerprint_of(*parts: str | bytes | np.ndarray) -> str:
    """A text that differs where parts do."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape} ".encode())
            # Of strings the contents, not where they are.
            texts = part.ravel().tolist() if part.dtype == object else [part.tobytes()]
        else:
            texts = [part.encode() if isinstance(part, str) else part]
        for text in texts:
            digest.update(f"{len(text)} ".encode() + text)
    return digest.hexdigest()
