# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Macros that hold tfdear's compiler flags, so that BUILD files name only files."""

load("//custom_ops/bazel:flags.bzl", "COMPILE_FLAGS")

def tfdear_cc_library(name, visibility = ["//:__subpackages__"], copts = [], **kwargs):
    """A folder's C++ files. They may include what `deps` may; the build refuses the rest."""
    native.cc_library(
        name = name,
        srcs = native.glob(["*.cc"]),
        hdrs = native.glob(["*.h"]),
        copts = COMPILE_FLAGS + copts,
        linkstatic = True,
        visibility = visibility,
        **kwargs
    )

def tfdear_shared_library(name, deps, **kwargs):
    """A library that others load. Of its symbols they see those of exported_symbols.lds."""
    symbols = "//custom_ops:exported_symbols.lds"
    native.cc_binary(
        name = name,
        additional_linker_inputs = [symbols],
        linkopts = [
            "-Wl,-z,defs",
            "-Wl,--version-script=$(location %s)" % symbols,
            "-pthread",
        ],
        linkshared = True,
        deps = deps,
        **kwargs
    )

def tfdear_cc_tests(deps, shards = {}, one_thread = [], tags = []):
    """One googletest binary for each X_test.cc of a folder, named after it.

    Args:
      deps: Libraries under test, and helpers.
      shards: Sources whose cases run in several processes at once, and in how many.
      one_thread: Sources whose cases start no thread: there are no races to look for.
      tags: Of all of them.
    """
    for source in native.glob(["*_test.cc"]):
        native.cc_test(
            name = source[:-len(".cc")],
            shard_count = shards.get(source),
            # Seconds each; the limit only ends a test that hangs.
            size = "medium",
            srcs = [source],
            copts = COMPILE_FLAGS,
            data = ["//tests/cc:lsan_suppressions.txt"],
            local_defines = ["_GLIBCXX_ASSERTIONS"],
            linkopts = ["-pthread"],
            linkstatic = True,
            tags = tags + (["one_thread"] if source in one_thread else []),
            deps = deps + ["@googletest"],
        )

def tfdear_fuzz_targets(sources, helpers, replay, corpora, deps, tags = []):
    """For each source file X_fuzz.cc a fuzzer X_fuzz, and a test X_replay of the kept inputs.

    The fuzzer needs `--config=fuzz`; the test is an ordinary one, and runs under every sanitizer.

    Args:
      sources: Files that end in `_fuzz.cc`, each with an LLVMFuzzerTestOneInput().
      helpers: Headers that every source may use.
      replay: The source with the test's main function.
      corpora: Files of inputs, those of X in corpus/X/.
      deps: Libraries under test.
      tags: Of the tests.
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
            tags = tags,
            deps = deps,
        )
