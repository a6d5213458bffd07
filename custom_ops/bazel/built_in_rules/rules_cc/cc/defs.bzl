# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The C++ rules built into Bazel 4, under the name by which its own tools load them.

See built_in_rules.bzl.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
objc_import = native.objc_import
objc_library = native.objc_library
