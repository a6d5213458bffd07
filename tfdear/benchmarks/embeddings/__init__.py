# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear benchmark embeddings`: ways to exchange tables of embeddings, on one line."""
