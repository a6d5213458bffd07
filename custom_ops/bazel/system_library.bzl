# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A repository rule for C++ libraries that are installed on the machine."""

_BUILD = """package(default_visibility = ["//visibility:public"])

cc_library(
    name = "{name}",
    hdrs = glob({hdrs}),
    includes = {includes},
    linkopts = {linkopts},
)

# One line of Python for _build_info.py.
exports_files(["version.py"])
"""

_ABSENT = """package(default_visibility = ["//visibility:public"])

cc_library(name = "{name}")

exports_files(["version.py"])
"""

_MISSING = """{what} is missing: there is no {path}.
On Debian or Ubuntu run: apt-get install {package}
For a copy elsewhere set {variable}=PREFIX, where PREFIX/include/{header} exists.{without}"""
_WITHOUT = """
To build without it set {variable}=none."""

def _version(repository_ctx, root):
    """Reads the library's version from macros in one of its headers, "" if it has none."""
    if not repository_ctx.attr.version_header:
        return ""
    path = "{}/include/{}".format(root, repository_ctx.attr.version_header)
    words = [line.split(" ") for line in repository_ctx.read(path).splitlines()]
    numbers = {word[1]: word[2] for word in words if len(word) == 3 and word[0] == "#define"}
    return ".".join([numbers.get(macro, "?") for macro in repository_ctx.attr.version_macros])

def _system_library_impl(repository_ctx):
    attr = repository_ctx.attr
    given = repository_ctx.os.environ.get(attr.root_variable, "")
    root = given or "/usr"
    for header in attr.headers:
        path = "{}/include/{}".format(root, header)
        if not repository_ctx.path(path).exists:
            if attr.optional and (not given or given == "none"):
                repository_ctx.file("installed.bzl", "INSTALLED = False\n")
                repository_ctx.file("version.py", '{}_VERSION = ""\n'.format(attr.name.upper()))
                repository_ctx.file("BUILD", _ABSENT.format(name = attr.name))
                return
            fail(_MISSING.format(
                header = header,
                package = attr.debian_package,
                path = path,
                variable = attr.root_variable,
                what = attr.name,
                without = _WITHOUT.format(variable = attr.root_variable) if attr.optional else "",
            ))

    linkopts = ["-l" + library for library in attr.libraries]
    if given:
        # Outside the compiler's own search path: the headers become part of this repository, and
        # the library is found again at run time where it was found now.
        for header in attr.headers:
            repository_ctx.symlink("{}/include/{}".format(root, header), "include/" + header)
        linkopts = ["-L{}/lib".format(root), "-Wl,-rpath,{}/lib".format(root)] + linkopts

    version = _version(repository_ctx, root)
    repository_ctx.file("installed.bzl", "INSTALLED = True\n")
    repository_ctx.file("version.py", '{}_VERSION = "{}"\n'.format(attr.name.upper(), version))
    repository_ctx.file("BUILD", _BUILD.format(
        hdrs = repr(["include/**"] if given else []),
        includes = repr(["include"] if given else []),
        linkopts = repr(linkopts),
        name = attr.name,
    ))

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "debian_package": attr.string(doc = "What to install when it is missing."),
        "headers": attr.string_list(doc = "Folders below PREFIX/include."),
        "libraries": attr.string_list(doc = "Names for -l, in link order."),
        "optional": attr.bool(doc = "Whether @NAME//:installed.bzl says so when it is missing."),
        "root_variable": attr.string(doc = "Environment variable that gives another PREFIX."),
        "version_header": attr.string(doc = "Header that holds the version macros."),
        "version_macros": attr.string_list(doc = "Their names, most significant first."),
    },
    configure = True,
    doc = "@NAME//:NAME for a library found below /usr, or below the prefix in root_variable.",
    environ = ["TFDEAR_GLOO_ROOT", "TFDEAR_GTEST_ROOT"],
    local = True,
)
