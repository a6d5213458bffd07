# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The Java rules built into Bazel 4, under the name by which its own tools load them.

See built_in_rules.bzl. tfdear has no Java; Bazel resolves its Java toolchains all the same.
"""

java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_runtime = native.java_runtime
java_test = native.java_test
java_toolchain = native.java_toolchain
