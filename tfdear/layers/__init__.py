# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Keras layers whose variables the ranks hold in parts."""

from tfdear.layers.sharded_embedding import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
