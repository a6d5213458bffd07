# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Builds the custom-op library with Bazel; everything else is in setup.cfg.

[Note: one library for each TensorFlow] The library works only with the minor version of TensorFlow
whose headers it was compiled with. pip cannot choose a wheel by what is installed, so the wheel
holds a library for each minor version, and `tfdear/engine/build_check.py` takes the one that fits.
Where TensorFlow is installed already, as in a developer's environment, only that one is built for,
and the wheel requires it.
"""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
LIBRARY = "_tfdear_ops.so"
BUILD_INFO = "_build_info.py"
# For backend="gloo"; where Gloo is installed.
GLOO_LIBRARY = "_tfdear_gloo.so"
TARGET = "//custom_ops:libraries"
# An unpacked source distribution lies in a temporary folder: Bazel's cache and server end with it.
UNPACKED = (ROOT / "PKG-INFO").exists()

MISSING = """
tfdear's custom-op library cannot be built; missing on this machine:
{missing}
On Debian or Ubuntu, as root:
    apt-get update && apt-get install -y --no-install-recommends {packages}
Elsewhere: Bazelisk as `bazel` on PATH and a C++17 compiler. Then run the same command again.
"""


def declared_requirements() -> list[str]:
    """Returns what setup.cfg says that tfdear needs."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config["options"]["install_requires"].split()


def supported_minors() -> list[str]:
    """Returns the minor versions of TensorFlow that setup.cfg allows, such as ["2.20", "2.21"]."""
    pattern = r"tensorflow>=2\.(\d+),<2\.(\d+)"
    (bounds,) = filter(None, (re.fullmatch(pattern, name) for name in declared_requirements()))
    return [f"2.{number}" for number in range(*map(int, bounds.groups()))]


def requirements(minors: list[str]) -> list[str]:
    """Returns what a wheel needs that has libraries for these minor versions of TensorFlow."""
    if minors == supported_minors():
        return declared_requirements()
    others = [name for name in declared_requirements() if not name.startswith("tensorflow>=")]
    return [*(f"tensorflow=={minor}.*" for minor in minors), *others]


def environment() -> dict[str, str]:
    """Returns variables with which a Python sees what is installed beside it.

    During an isolated build pip hides the environment it installs into behind PYTHONPATH.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def tensorflow_version(python: str | os.PathLike) -> str:
    """Returns the version of TensorFlow that an interpreter finds, "" if there is none."""
    code = "import importlib.metadata as m; print(m.version('tensorflow'))"
    answer = subprocess.run(
        [python, "-c", code],
        env=environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def minor_of(version: str) -> str:
    """Returns "2.21" for "2.21.0"."""
    return ".".join(version.split(".")[:2])


def minors_to_build() -> list[str]:
    """Returns the installed TensorFlow's minor version; where there is none, all supported ones."""
    installed = tensorflow_version(sys.executable)
    if not installed:
        return supported_minors()
    if minor_of(installed) not in supported_minors():
        raise SystemExit(
            f"tfdear needs TensorFlow {' or '.join(supported_minors())}. Found: {installed} in the "
            "environment of this Python. Install one of these there, or use another environment."
        )
    return [minor_of(installed)]


def python_with(minor: str) -> str:
    """Returns an interpreter that has this TensorFlow: this one, or that of a new environment."""
    if minor_of(tensorflow_version(sys.executable)) == minor:
        return sys.executable
    folder = ROOT / "build" / f"tensorflow-{minor}"
    python = str(folder / "bin/python")
    if not (folder / "bin/python").exists() or not tensorflow_version(python):
        call([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
        call([*pip, f"tensorflow=={minor}.*"])
    return python


def call(command: list[str], output: int | None = None, **variables: str) -> str:
    """Runs a command in the source tree and returns what it printed, if `output` is a pipe."""
    result = subprocess.run(
        command, cwd=ROOT, env=environment() | variables, stdout=output, text=True
    )
    if result.returncode != 0:
        raise SystemExit(f"`{' '.join(command)}` failed with exit code {result.returncode}.")
    return (result.stdout or "").strip()


def find_bazel() -> str | None:
    """Returns the Bazel to call: $BAZEL, else `bazel` or `bazelisk` on PATH."""
    names = [os.environ["BAZEL"]] if os.environ.get("BAZEL") else ["bazel", "bazelisk"]
    return next((path for path in map(shutil.which, names) if path), None)


def require_system_packages() -> None:
    """Raises SystemExit naming what is missing to build, and the commands that install it."""
    compiler = os.environ.get("CC") or "g++"
    needed = [
        ("Bazel (`bazel` or `bazelisk` on PATH)", "bazel-bootstrap", find_bazel() is not None),
        ("a C++ compiler (`g++` on PATH)", "g++", shutil.which(compiler) is not None),
    ]
    missing = [(what, package) for what, package, present in needed if not present]
    if missing:
        what = "\n".join(f"  - {name}" for name, _ in missing)
        packages = " ".join(package for _, package in missing)
        raise SystemExit(MISSING.format(missing=what, packages=packages))


class OpLibrary(Extension):
    """The library for one minor version of TensorFlow, in a folder of its own."""

    def __init__(self, minor: str):
        folder = f"tensorflow_{minor.replace('.', '_')}"
        super().__init__(f"tfdear._libraries.{folder}._tfdear_ops", sources=[])
        self.minor = minor


class BazelBuild(build_ext):
    """Lets Bazel build the libraries, and puts each, with its `_build_info.py`, into its folder."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library is loaded by TensorFlow, not by Python: no interpreter tag in its name."""
        return os.path.join(*fullname.split(".")) + ".so"

    def run(self) -> None:
        """Builds all of them."""
        # Before downloads rather than after them.
        require_system_packages()
        try:
            super().run()
        finally:
            if UNPACKED:
                self._call_bazel({}, "shutdown")

    def build_extension(self, extension: OpLibrary) -> None:
        """Calls Bazel, then copies what it made."""
        python = python_with(extension.minor)
        # Where a plain `bazel build` looks by itself nothing is said, so that both share one cache.
        in_tree = pathlib.Path(python).parent == ROOT / ".venv/bin"
        variables = {} if in_tree else {"TFDEAR_PYTHON": python}

        outputs = self._bazel(variables)
        version = tensorflow_version(python)
        if f'TENSORFLOW_VERSION = "{version}"' not in (outputs / BUILD_INFO).read_text():
            # Another TensorFlow went into the same environment since Bazel looked.
            self._call_bazel(variables, "sync", "--configure")
            outputs = self._bazel(variables)

        library = pathlib.Path(self.get_ext_fullpath(extension.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        for name in files_in(outputs):
            replace(outputs / name, library.with_name(name))

    def copy_extensions_to_source(self) -> None:
        """Puts the files into the source tree, for editable installations."""
        for extension in self.extensions:
            relative = pathlib.Path(self.get_ext_filename(extension.name)).parent
            (ROOT / relative).mkdir(parents=True, exist_ok=True)
            (ROOT / relative / GLOO_LIBRARY).unlink(missing_ok=True)  # Of an earlier build.
            built = pathlib.Path(self.build_lib, relative)
            for name in files_in(built):
                replace(built / name, ROOT / relative / name)

    def _bazel(self, variables: dict[str, str]) -> pathlib.Path:
        """Builds, and returns the folder that holds the outputs."""
        self._call_bazel(variables, "build", TARGET)
        return pathlib.Path(self._call_bazel(variables, "info", "bazel-bin"), "custom_ops")

    def _call_bazel(self, variables: dict[str, str], command: str, *arguments: str) -> str:
        cache = [f"--output_base={ROOT / 'build/bazel'}"] if UNPACKED else []
        options = ["--color=no", "--curses=no"]
        output = subprocess.PIPE if command == "info" else None
        line = [find_bazel(), *cache, command, *options, *arguments]
        return call(line, output, **variables)


def files_in(folder: pathlib.Path) -> list[str]:
    """Returns the names of what a build has made there, for one TensorFlow."""
    has_gloo = runpy.run_path(str(folder / BUILD_INFO))["GLOO_VERSION"]
    return [LIBRARY, BUILD_INFO] + ([GLOO_LIBRARY] if has_gloo else [])


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

    def run(self) -> None:
        """Forgets what an earlier build left, which would go into the wheel, too."""
        shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()


class BinaryDistribution(Distribution):
    """A distribution that holds machine code."""

    def has_ext_modules(self) -> bool:
        """Installs into the folder for platform-dependent packages."""
        return True


MINORS = minors_to_build()
setup(
    distclass=BinaryDistribution,
    ext_modules=[OpLibrary(minor) for minor in MINORS],
    cmdclass={"build_ext": BazelBuild, "bdist_wheel": Wheel},
    install_requires=requirements(MINORS),
)
