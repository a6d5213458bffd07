# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The package's layering: who imports whom, where private names stand, how long files are."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import tfdear

_ROOT = pathlib.Path(tfdear.__file__).parent
_PUBLIC_MODULES = (
    "callbacks",
    "cost_model",
    "errors",
    "ops",
    "optimizers",
    "parallel_tensor_operator",
    "schedules",
    "simulator",
    "trace",
)
_FOR_ALL = ("base", "errors", "_build_info", "__version__")
# What each package may import besides itself and those. No cycle: a package stands below those that
# it imports.
_MAY_IMPORT = {
    "commands": {
        "benchmarks",
        "compression",
        "data",
        "engine",
        "fusion",
        "job",
        "launch",
        "measure",
        "planning",
        "rendezvous",
        "simulator",
    },
    "benchmarks": {
        "compression",
        "engine",
        "fusion",
        "job",
        "launch",
        "measure",
        "planning",
        "rendezvous",
        "simulator",
    },
    "strategy": {
        "_private",
        "compression",
        "data",
        "engine",
        "fusion",
        "gradients",
        "integrations",
        "job",
        "layers",
        "losses",
        "optimizers",
    },
    "callbacks": {"compression", "data", "engine", "job", "measure"},
    "optimizers": {"gradients"},
    "ops": {"engine", "parallel_tensor_operator"},
    "integrations": {"_private", "data", "gradients", "job", "losses"},
    "layers": {"_private", "gradients", "integrations", "planning"},
    "losses": {"_private", "data", "gradients"},
    "gradients": {"_private", "data", "engine", "planning"},
    "job": {
        "_private",
        "compression",
        "engine",
        "fusion",
        "measure",
        "monitor",
        "planning",
        "rendezvous",
    },
    "monitor": {"_private", "rendezvous"},
    "launch": {"rendezvous"},
    "rendezvous": {"_private", "engine", "measure"},
    "measure": {"engine", "planning"},
    "engine": {"planning"},
    "simulator": {"fusion", "planning"},
    "fusion": {"planning"},
    "compression": {"planning"},
    "parallel_tensor_operator": {"planning"},
    "cost_model": {"planning"},
    "schedules": {"planning"},
    "trace": {"planning"},
    "data": {"_private", "engine", "job"},
    "planning": set(),
    "_private": set(),
    "base": set(),
    "errors": set(),
}
# Folders and modules that anybody may import where TensorFlow is missing.
_WITHOUT_TENSORFLOW = (
    "base",
    "planning",
    "fusion",
    "compression",
    "launch",
    "simulator.py",
    "errors.py",
    "commands/main.py",
)
_LONGEST = 400
# Files that may be longer, each with the reason.
_LONGER = {
    "strategy/strategy.py": "the public class, of which most is documentation",
}
_LONGER_CC = {
    "engine/compression/top_k.cc": "one algorithm, whose passes share what they count",
    "kernels/cuda/top_k_cuda.cu.h": "the same on GPUs; nvcc compiles it alone, for its own test",
    "kernels/cuda/top_k_standalone_test.cu.cc": "the test of that, which needs no TensorFlow",
}
_SOURCES = sorted(
    path for path in _ROOT.rglob("*.py") if path.name not in ("_build_info.py", "__main__.py")
)


def _name(path):
    return path.relative_to(_ROOT).as_posix()


def _package(path):
    return path.relative_to(_ROOT).parts[0].removesuffix(".py")


def _imports(path, top_level_only=False):
    """The modules of ours that a file imports, as dotted names below `tfdear`."""
    tree = ast.parse(path.read_text())
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tfdear":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfdear."):
            yield node.module.removeprefix("tfdear.")
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (n.removeprefix("tfdear.") for n in names if n.startswith("tfdear."))


@pytest.mark.parametrize("path", _SOURCES, ids=_name)
def test_imports_point_one_way(path):
    package = _package(path)
    if package == "__init__":
        return
    allowed = _MAY_IMPORT[package] | {package, *_FOR_ALL}
    imported = {module.split(".")[0] for module in _imports(path)}
    assert imported <= allowed, f"{_name(path)} may not import {sorted(imported - allowed)}"


def test_the_packages_form_no_cycle():
    left = dict(_MAY_IMPORT)
    while left:
        free = [name for name, others in left.items() if not others & left.keys() - {name}]
        assert free, f"a cycle among {sorted(left)}"
        for name in free:
            del left[name]


def test_modules_form_no_cycle():
    modules = {
        ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in _SOURCES
    }
    imported = {}
    for module, path in modules.items():
        found = set()
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfdear"):
                base = node.module.removeprefix("tfdear").removeprefix(".")
                for alias in node.names:
                    full = f"{base}.{alias.name}".removeprefix(".")
                    found.add(full if full in modules else base)
        imported[module] = (found & modules.keys()) - {module}
    while imported:
        free = [module for module, others in imported.items() if not others & imported.keys()]
        assert free, f"a cycle among {sorted(imported)}"
        for module in free:
            del imported[module]


@pytest.mark.parametrize("name", _WITHOUT_TENSORFLOW)
def test_what_plans_needs_no_tensorflow(name):
    paths = [_ROOT / name] if name.endswith(".py") else sorted((_ROOT / name).rglob("*.py"))
    modules = [
        "tfdear." + ".".join(path.relative_to(_ROOT).with_suffix("").parts) for path in paths
    ]
    imports = "\n".join(f"import {module.removesuffix('.__init__')}" for module in modules)
    code = f"{imports}\nimport sys\nassert 'tensorflow' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], cwd=_ROOT.parent, check=True, timeout=60)


@pytest.mark.parametrize(
    "name", [*_PUBLIC_MODULES, "fusion", "compression", "layers", "losses", "strategy"]
)
def test_public_modules_list_their_names(name):
    path = _ROOT / name / "__init__.py" if (_ROOT / name).is_dir() else _ROOT / f"{name}.py"
    names = [
        target.id
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert "__all__" in names, f"{_name(path)} has no __all__"


def test_private_names_stay_in_their_module():
    """What begins with an underscore is used where it is defined."""
    strangers = []
    for path in _SOURCES:
        tree = ast.parse(path.read_text())
        modules = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfdear"):
                for alias in node.names:
                    modules.add(alias.asname or alias.name)
                    if alias.name.startswith("_") and alias.name not in ("_build_info", "_private"):
                        strangers.append(f"{_name(path)}: {alias.name}")
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in modules
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
            ):
                strangers.append(f"{_name(path)}: {ast.unparse(node)}")
    assert not strangers


def test_files_are_short():
    lengths = {_name(path): len(path.read_text().splitlines()) for path in _SOURCES}
    long = {name: lines for name, lines in lengths.items() if lines > _LONGEST}
    assert long.keys() == _LONGER.keys(), long
    middle = sorted(lengths.values())[len(lengths) // 2]
    assert middle <= 150, f"half of the files have more than {middle} lines"


def test_files_in_cc_are_short():
    root = _ROOT.parent / "custom_ops"
    sources = [path for suffix in ("*.h", "*.cc") for path in root.rglob(suffix)]
    lengths = {
        path.relative_to(root).as_posix(): len(path.read_text().splitlines()) for path in sources
    }
    long = {name: lines for name, lines in lengths.items() if lines > _LONGEST}
    assert long.keys() == _LONGER_CC.keys(), long
    assert sorted(lengths.values())[len(lengths) // 2] <= 150


def test_cc_tests_that_are_not_looked_through_for_races_start_no_thread():
    folder = _ROOT.parent / "tests" / "cc"
    sources = [
        build.parent / name
        for build in folder.rglob("BUILD")
        for names in re.findall(r"one_thread = \[(.*?)\]", build.read_text(), re.DOTALL)
        for name in re.findall(r'"(\w+\.cc)"', names)
    ]
    assert sources
    # Helpers whose ranks are threads, classes of the engine that have some, and threads by hand.
    starts = re.compile(
        r"\bRun(Threads|Ranks|Groups|Engines)|Engine::|ProcessGroup|LonelyGroup"
        r"|Example(Server|Client)|[Tt]hread|async"
    )
    for source in sources:
        assert not starts.search(source.read_text()), source
