# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lets Debian's Bazel 4.2 build without a download.

Its tools load the rules for C++ and Java from @rules_cc and @rules_java, although Bazel holds these
rules itself, and every test depends on @remote_coverage_tools. Bazel would download all three, and
the copies of the rules that Debian installs are too new for it. So they become small folders of the
tree, which hand on the built-in rules. Newer Bazels (from Bazelisk) find their own.
"""

def built_in_rules():
    """Declares what a Bazel up to version 4 would download, as folders of this tree."""

    # Debian's says "no_version", not its number.
    major = native.bazel_version.split(".")[0]
    if major.isdigit() and int(major) > 4:
        return
    for name in ["rules_cc", "rules_java", "remote_coverage_tools"]:
        native.local_repository(
            name = name,
            path = "custom_ops/bazel/built_in_rules/" + name,
        )
