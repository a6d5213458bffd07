# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sizes of the BERT models of the overlap benchmark, the same in every framework."""

VOCABULARY = 30522
SEQUENCE = 32
# Blocks, width and heads.
MODELS = {"bert-base": (12, 768, 12), "bert-small": (4, 512, 8)}
