# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Keras layers whose variables the ranks hold in parts."""

from tfdear._private import seams
from tfdear.layers import files
from tfdear.layers.sharded_embedding import ShardedEmbedding

seams.install(files.SEAMS)

__all__ = ["ShardedEmbedding"]
