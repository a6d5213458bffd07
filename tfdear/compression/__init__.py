# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Compressed communication of gradients, for nodes joined by a slow network. No TensorFlow."""

from tfdear.compression.compressor import Compressor
from tfdear.compression.mstopk import MSTopK
from tfdear.planning import call_text

__all__ = ["MSTopK"]


def parse(text: str) -> Compressor | None:
    """Reads a compression as it is written in Python: "MSTopK(density=0.01)", or "None".

    Raises:
        ValueError: There is no such compression, or it does not take these arguments.
    """
    if text.strip() in ("", "None"):
        return None
    return call_text.parse(text, {name: globals()[name] for name in __all__}, "a compression")
