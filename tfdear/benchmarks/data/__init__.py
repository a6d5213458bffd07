# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear benchmark data`: a cache of examples beside other input pipelines, in turns."""
