# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Macros that hold tfdear's compiler flags, so that BUILD files name only files."""

load("//custom_ops/bazel:flags.bzl", "COMPILE_FLAGS")

def tfdear_cc_library(name, **kwargs):
    """A library in tfdear's flags. All of it is linked: Python calls parts by name, through ctypes."""
    native.cc_library(
        name = name,
        alwayslink = True,
        copts = COMPILE_FLAGS,
        linkstatic = True,
        **kwargs
    )

def tfdear_op_library(name, deps):
    """A shared library that tf.load_op_library loads."""
    native.cc_binary(
        name = name,
        linkopts = ["-Wl,-z,defs", "-pthread"],
        linkshared = True,
        deps = deps,
    )

def tfdear_cc_tests(sources, helpers, deps, data, shards = {}):
    """One googletest binary for each source file, named after it.

    Args:
      sources: Files that end in `_test.cc`.
      helpers: Headers and sources that every test may use.
      deps: Libraries under test.
      data: Files the tests read at run time.
      shards: Sources whose cases run in several processes at once, and in how many.
    """
    for source in sources:
        native.cc_test(
            name = source[:-len(".cc")],
            shard_count = shards.get(source),
            # Seconds each; the limit only ends a test that hangs.
            size = "medium",
            srcs = [source] + helpers,
            copts = COMPILE_FLAGS,
            data = data,
            local_defines = ["_GLIBCXX_ASSERTIONS"],
            linkopts = ["-pthread"],
            linkstatic = True,
            deps = deps + ["@googletest"],
        )

def tfdear_fuzz_targets(sources, helpers, replay, corpora, deps):
    """For each source file X_fuzz.cc a fuzzer X_fuzz, and a test X_replay of the kept inputs.

    The fuzzer needs `--config=fuzz`; the test is an ordinary one, and runs under every sanitizer.

    Args:
      sources: Files that end in `_fuzz.cc`, each with an LLVMFuzzerTestOneInput().
      helpers: Headers that every source may use.
      replay: The source with the test's main function.
      corpora: Files of inputs, those of X in corpus/X/.
      deps: Libraries under test.
    """
    for source in sources:
        subject = source[:-len("_fuzz.cc")]
        native.cc_binary(
            name = subject + "_fuzz",
            testonly = True,
            srcs = [source] + helpers,
            copts = COMPILE_FLAGS,
            linkopts = ["-fsanitize=fuzzer", "-pthread"],
            linkstatic = True,
            tags = ["manual"],
            deps = deps,
        )
        folder = "corpus/" + subject + "/"
        native.cc_test(
            name = subject + "_replay",
            size = "small",
            srcs = [source, replay] + helpers,
            args = [native.package_name() + "/" + folder],
            copts = COMPILE_FLAGS,
            data = [path for path in corpora if path.startswith(folder)],
            linkopts = ["-pthread"],
            linkstatic = True,
            deps = deps,
        )
