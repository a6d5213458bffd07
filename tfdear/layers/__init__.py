# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Keras layers whose variables the ranks hold in parts."""

from tfdear._private import seams
from tfdear.layers import files
from tfdear.layers.reversible_embedding import ShardedReversibleEmbedding
from tfdear.layers.sharded_embedding import ShardedEmbedding
from tfdear.layers.sharding import shard, unshard

seams.install(files.SEAMS)

__all__ = ["ShardedEmbedding", "ShardedReversibleEmbedding", "shard", "unshard"]
