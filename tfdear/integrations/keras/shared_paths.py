# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which paths all ranks write to."""

import os

import keras

from tfdear.integrations.keras import lookup


def is_path(filepath: object) -> bool:
    """Whether it names a file or a folder."""
    return isinstance(filepath, (str, os.PathLike))


def is_shared(model: keras.Model, filepath: object) -> bool:
    """Whether other ranks may write the same model to the same local path."""
    is_local = is_path(filepath) and "://" not in str(filepath)
    return is_local and lookup.dear_strategy_of(model) is not None
