#!/bin/sh
# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
echo "bazel coverage needs a Bazel newer than 4 (Bazelisk gets one)." >&2
exit 1
