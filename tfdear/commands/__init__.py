# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The command line, a module for each command."""
