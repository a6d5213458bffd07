# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The model that any other must beat: how often each token occurs, and nothing of its place."""

from __future__ import annotations

import numpy as np


def log_frequencies(training: np.ndarray, number: int) -> np.ndarray:
    """Returns the logarithm of the share of each token, of shape (number,).

    Args:
        training: ids of all tokens.
        number: of different tokens. One more of each is counted than there is, so that those
            which training lacks have a share, too.
    """
    counts = np.bincount(training, minlength=number) + 1.0
    return np.log(counts / counts.sum())


def cross_entropy(training: np.ndarray, held_out: np.ndarray, number: int) -> float:
    """Returns the mean loss per held-out token, in nats, of the frequencies in training.

    Args:
        training: ids of all tokens.
        held_out: ids of the tokens that are predicted.
        number: of different tokens.
    """
    return float(-log_frequencies(training, number)[held_out].mean())
