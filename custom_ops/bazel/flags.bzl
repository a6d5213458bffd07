# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Flags for tfdear's own sources; .bazelrc holds those of the whole build."""

COMPILE_FLAGS = [
    "-O3",
    "-Wall",
    "-Wextra",
    # TensorFlow's interfaces prescribe parameters, and its versions deprecate different names.
    "-Wno-unused-parameter",
    "-Wno-deprecated-declarations",
    "-pthread",
    # Only what has TFDEAR_EXPORT can be seen from outside of a shared library.
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
]
