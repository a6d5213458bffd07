# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Builds the custom-op library with Bazel; everything else is in setup.cfg."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1, in a build without isolation
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent
LIBRARY = "_tfdear_ops.so"
BUILD_INFO = "_build_info.py"
TARGETS = ["//custom_ops:_tfdear_ops.so", "//custom_ops:build_info"]
# What a build needs when the environment has no TensorFlow yet, as in setup.cfg.
TENSORFLOW_REQUIREMENT = "tensorflow>=2.20,<2.22"

MISSING = """
tfdear's custom-op library cannot be built; missing on this machine:
{missing}
On Debian or Ubuntu, as root:
    apt-get update && apt-get install -y --no-install-recommends {packages}
Elsewhere: Bazelisk as `bazel` on PATH, a C++17 compiler, and Gloo 0.5 or later under /usr or under
the folder that TFDEAR_GLOO_ROOT names. Then run the same command again.
"""


def target_environment() -> dict[str, str]:
    """Returns the environment in which `sys.executable` sees what is installed beside it.

    During an isolated build pip hides the environment it installs into behind PYTHONPATH.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def tensorflow_version(environment: dict[str, str]) -> str:
    """Returns the version of TensorFlow that `sys.executable` finds, "" if there is none."""
    code = "import importlib.metadata as m; print(m.version('tensorflow'))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def find_bazel() -> str | None:
    """Returns the Bazel to call: $BAZEL, else `bazel` or `bazelisk` on PATH."""
    names = [os.environ["BAZEL"]] if os.environ.get("BAZEL") else ["bazel", "bazelisk"]
    return next((path for path in map(shutil.which, names) if path), None)


def require_system_packages() -> None:
    """Raises SystemExit naming what is missing to build, and the commands that install it."""
    gloo = pathlib.Path(os.environ.get("TFDEAR_GLOO_ROOT") or "/usr", "include/gloo/config.h")
    compiler = os.environ.get("CC") or "g++"
    needed = [
        ("Bazel (`bazel` or `bazelisk` on PATH)", "bazel-bootstrap", find_bazel() is not None),
        (f"Gloo ({gloo})", "libgloo-dev", gloo.exists()),
        ("a C++ compiler (`g++` on PATH)", "g++", shutil.which(compiler) is not None),
    ]
    missing = [(what, package) for what, package, present in needed if not present]
    if missing:
        what = "\n".join(f"  - {name}" for name, _ in missing)
        packages = " ".join(package for _, package in missing)
        raise SystemExit(MISSING.format(missing=what, packages=packages))


def build_requirements() -> list[str]:
    """Returns what pip must fetch for an isolated build, beside setuptools.

    The library must be built against the TensorFlow that will load it. One that is installed
    already is that one; only where there is none is the newest fetched for the build, which is the
    one that pip installs afterwards.
    """
    if tensorflow_version(target_environment()):
        return []
    # Before the download rather than after it.
    require_system_packages()
    return [TENSORFLOW_REQUIREMENT]


class BazelBuild(build_ext):
    """Lets Bazel build the library, and puts it and `_build_info.py` beside the Python files."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library is loaded by TensorFlow, not by Python: no interpreter tag in its name."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, extension: Extension) -> None:
        """Calls Bazel, then copies what it made."""
        require_system_packages()
        environment = target_environment()
        version = tensorflow_version(environment)
        if not version:
            # An isolated build into an environment without TensorFlow: use the one that pip
            # fetched for this build (see `build_requirements`).
            environment = dict(os.environ)
            version = tensorflow_version(environment)
        if not version:
            raise SystemExit(
                f"{sys.executable} has no TensorFlow to build against.\n"
                f'Run: {sys.executable} -m pip install "{TENSORFLOW_REQUIREMENT}"'
            )
        # Where a plain `bazel build` looks by itself nothing is said, so that both share one cache.
        if pathlib.Path(sys.executable).parent != ROOT / ".venv/bin":
            environment["TFDEAR_PYTHON"] = sys.executable

        outputs = self._bazel(environment)
        if f'TENSORFLOW_VERSION = "{version}"' not in (outputs / BUILD_INFO).read_text():
            # Another TensorFlow went into the same environment since Bazel looked.
            self._call_bazel(environment, "sync", "--configure")
            outputs = self._bazel(environment)

        library = pathlib.Path(self.get_ext_fullpath(extension.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        replace(outputs / LIBRARY, library)
        replace(outputs / BUILD_INFO, library.with_name(BUILD_INFO))

    def copy_extensions_to_source(self) -> None:
        """Puts both files into the source tree, for editable installations."""
        for extension in self.extensions:
            built = pathlib.Path(self.build_lib, self.get_ext_filename(extension.name))
            for name in (LIBRARY, BUILD_INFO):
                replace(built.with_name(name), ROOT / "tfdear" / name)

    def _bazel(self, environment: dict[str, str]) -> pathlib.Path:
        """Builds, and returns the folder that holds the outputs."""
        self._call_bazel(environment, "build", *TARGETS)
        return pathlib.Path(self._call_bazel(environment, "info", "bazel-bin"), "custom_ops")

    def _call_bazel(self, environment: dict[str, str], command: str, *arguments: str) -> str:
        line = [find_bazel(), command, "--color=no", "--curses=no", *arguments]
        output = subprocess.PIPE if command == "info" else None
        result = subprocess.run(line, cwd=ROOT, env=environment, stdout=output, text=True)
        if result.returncode != 0:
            raise SystemExit(f"`{' '.join(line)}` failed with exit code {result.returncode}.")
        return (result.stdout or "").strip()


def replace(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies to a new file and renames it: a process that has the old library open keeps it."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, temporary)
    temporary.chmod(0o755 if target.suffix == ".so" else 0o644)
    temporary.replace(target)


class Wheel(bdist_wheel):
    """A wheel for one platform and any Python 3: the library does not call into Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Drops the interpreter from the tag."""
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """A distribution that holds machine code."""

    def has_ext_modules(self) -> bool:
        """Installs into the folder for platform-dependent packages."""
        return True


setup(
    distclass=BinaryDistribution,
    ext_modules=[Extension("tfdear._tfdear_ops", sources=[])],
    cmdclass={"build_ext": BazelBuild, "bdist_wheel": Wheel},
    setup_requires=build_requirements(),
)
