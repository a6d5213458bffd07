# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Losses whose weights the ranks hold in parts; and how the losses of ranks make one gradient."""

from tfdear.losses.sampled_softmax import SampledSoftmax

__all__ = ["SampledSoftmax"]
