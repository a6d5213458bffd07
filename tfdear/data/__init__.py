# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Input pipelines: a cache of prepared examples, and what several ranks make of data sets."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdear.data.array_record_files import ArrayRecordFiles
    from tfdear.data.data_cache import DataCache
    from tfdear.data.image_folder import ImageFolder
    from tfdear.data.record_files import TFRecordFiles

__all__ = ["ArrayRecordFiles", "DataCache", "ImageFolder", "TFRecordFiles"]

_HOMES = {
    "DataCache": "data_cache",
    "ImageFolder": "image_folder",
    "ArrayRecordFiles": "array_record_files",
    "TFRecordFiles": "record_files",
}


def __getattr__(name: str) -> type:
    # Imported on first use: the strategy needs the rest of the package alone.
    if name in _HOMES:
        return getattr(importlib.import_module(f"tfdear.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tfdear.data' has no attribute {name!r}")
