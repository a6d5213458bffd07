# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A repository rule for the TensorFlow of a Python environment."""

# Which interpreter has the TensorFlow to build against, the first that is set or exists.
_PYTHON_VARIABLES = ["TFDEAR_PYTHON", "PYTHON_BIN_PATH"]
_DEFAULT_ENVIRONMENT = ".venv/bin/python"

_PROBE = """
import json
import tensorflow as tf
print("TFDEAR" + json.dumps({
    "compile_flags": tf.sysconfig.get_compile_flags(),
    "compiler": tf.version.COMPILER_VERSION,
    "include": tf.sysconfig.get_include(),
    "library": tf.sysconfig.get_lib(),
    "link_flags": tf.sysconfig.get_link_flags(),
    "version": tf.__version__,
}))
"""

_BUILD = """package(default_visibility = ["//visibility:public"])

# include/external holds sources of TensorFlow's dependencies that no public header includes: more
# than half of all files, and each of them would be an input of every compilation.
cc_library(
    name = "headers",
    hdrs = glob(
        ["include/**"],
        exclude = ["include/external/**"],
    ),
    defines = {defines},
    includes = ["include"],
)

# Not linked through Bazel's own means: those would write the path of its cache into the library.
# At run time TensorFlow is loaded already when Python loads the library.
cc_library(
    name = "framework",
    srcs = [],
    linkopts = {linkopts},
    deps = [":headers"],
)

# Lines of Python for _build_info.py.
exports_files(["version.py"])
"""

_NO_TENSORFLOW = """{python} has no TensorFlow that can be imported.
tfdear's custom-op library is built against the TensorFlow that will load it. Run 'make install',
or set TFDEAR_PYTHON to the interpreter of an environment that has tensorflow 2.20 or 2.21.
It said:
{error}"""

def _find_python(repository_ctx):
    for variable in _PYTHON_VARIABLES:
        python = repository_ctx.os.environ.get(variable, "")
        if python:
            return python
    root = repository_ctx.path(Label("@//:WORKSPACE")).dirname
    python = "{}/{}".format(root, _DEFAULT_ENVIRONMENT)
    if repository_ctx.path(python).exists:
        return python
    python = repository_ctx.which("python3")
    if python:
        return str(python)
    fail("There is no Python: set TFDEAR_PYTHON to an interpreter that has tensorflow.")

def _tensorflow_repository_impl(repository_ctx):
    python = _find_python(repository_ctx)
    result = repository_ctx.execute(
        [python, "-c", _PROBE],
        environment = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout = 300,
    )
    answer = [line for line in result.stdout.splitlines() if line.startswith("TFDEAR")]
    if result.return_code != 0 or not answer:
        fail(_NO_TENSORFLOW.format(error = result.stderr[-2000:], python = python))
    facts = json.decode(answer[-1][len("TFDEAR"):])

    repository_ctx.symlink(facts["include"], "include")

    # The include path is this repository's, the language standard .bazelrc's.
    defines = [flag[2:] for flag in facts["compile_flags"] if flag.startswith("-D")]
    flags = ["-D" + define for define in defines] + [
        flag
        for flag in facts["compile_flags"]
        if flag.startswith("--std") or flag.startswith("-std")
    ]
    repository_ctx.file("version.py", "\n".join([
        "TENSORFLOW_VERSION = {}".format(repr(facts["version"])),
        "TENSORFLOW_COMPILER = {}".format(repr(facts["compiler"])),
        "TENSORFLOW_COMPILE_FLAGS = {}".format(repr(tuple(flags))),
        "",
    ]))
    repository_ctx.file("BUILD", _BUILD.format(
        defines = repr(defines),
        linkopts = repr(facts["link_flags"]),
    ))

tensorflow_repository = repository_rule(
    implementation = _tensorflow_repository_impl,
    # `bazel sync --configure` asks again, after another version went into the same environment.
    configure = True,
    environ = _PYTHON_VARIABLES + ["PYTHONPATH"],
    doc = "@NAME//:headers and @NAME//:framework of the TensorFlow that Python imports.",
)
