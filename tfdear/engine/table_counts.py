# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the engine counts of each table of embeddings. No TensorFlow."""

import ctypes
import dataclasses

from tfdear.engine.c_api import load


@dataclasses.dataclass(frozen=True)
class RowCounts:
    """What was seen of the rows of a table on one rank."""

    lookups: int
    ids: int  # Looked up.
    unique_ids: int  # The different ones of each lookup.
    steps: int  # With a gradient.
    rows: int  # Of this rank's gradients.
    rows_of_ranks: int  # Of the gradients of all ranks, where they have the table whole.
    summed_steps: int  # In which they were summed on their way.
    # Of a divided table: steps whose ids were foreseen, rows of this rank's gradients that went
    # first and last, and vectors for this rank that came early and late.
    foreseen_steps: int
    prior_rows: int
    delayed_rows: int
    early_vectors: int
    late_vectors: int
    # What this rank sent to others.
    id_bytes: int
    early_vector_bytes: int
    late_vector_bytes: int
    prior_bytes: int
    delayed_bytes: int
    whole_bytes: int  # Rows where all ranks have the table whole.


def read(variable: int) -> RowCounts:
    """Those of a table, since the start, by the number of its variable."""
    counts = (ctypes.c_int64 * len(dataclasses.fields(RowCounts)))()
    load().tfdear_table_counts(variable, counts)
    return RowCounts(*counts)
