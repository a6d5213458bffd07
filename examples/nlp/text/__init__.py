# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Texts that the examples of this folder train on: what Debian's packages ship, made ready once."""
