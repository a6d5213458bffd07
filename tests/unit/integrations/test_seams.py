# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Private names of Keras and TensorFlow: registered, verified, wrapped all or not at all."""

import ast
import configparser
import pathlib
import types

import keras
import numpy as np
import pytest

import tfdear
from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private
from tfdear.integrations.keras import seams as keras_seams

_ROOT = pathlib.Path(tfdear.__file__).parent
# Studies look into models that others made.
_SOURCES = [path for path in _ROOT.rglob("*.py") if "studies" not in path.parts]
_REGISTRIES = (_tf_private.REGISTRY, _keras_private.REGISTRY)
# Documented, whatever their names say.
_STANDARD_LIBRARY = {"_SubParsersAction", "_asdict", "_current_frames", "_exit"}
_REGISTRY_FILES = {_ROOT / "_private/tensorflow.py", _ROOT / "_private/keras.py"}


@pytest.mark.parametrize("registry", _REGISTRIES, ids=lambda registry: registry.package)
def test_installed_version_fits(registry):
    registry.verify()
    config = configparser.ConfigParser()
    config.read(_ROOT.parent / "setup.cfg")
    assert registry.requirement in config["options"]["install_requires"].split()


def _names_of(collections):
    return [name for collection in collections for name, _ in collection.wrappers]


def test_one_process_changes_only_how_models_are_built_and_sharded_tables():
    in_one_process = _names_of(keras_seams.IN_ONE_PROCESS)
    collections = (*keras_seams.OF_KERAS, *keras_seams.OF_TENSORFLOW)
    names = [name for name in _names_of(collections) if name not in in_one_process]
    assert len(names) > 20
    before = {str(name): name.get() for name in names}
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    for name in names:
        assert name.get() is before[str(name)]
        assert name.get().__module__.startswith(("keras.", "tensorflow.")), name
        assert not hasattr(name.get(), "_tfdear_wraps"), name
    assert [str(name) for name, _ in keras_seams.IN_ONE_PROCESS[0].wrappers] == [
        str(_keras_private.MAYBE_SYMBOLIC_BUILD)
    ]


def _package(monkeypatch, **functions):
    module = types.ModuleType("some_package")
    vars(module).update(functions)
    monkeypatch.setitem(__import__("sys").modules, "some_package", module)
    return module


def test_faults_name_function_signatures_versions_and_remedy(monkeypatch):
    _package(monkeypatch, scale=lambda value, strategy: value, kept=lambda value: value)
    registry = seams.Registry("Keras", "keras>=3.10,<3.16", ("3.10.0", "3.15.1"))
    registry.name("some_package", "scale", "(value)")
    registry.name("some_package", "kept", "(value)")
    registry.name("some_package", "Trainer.fit", "(self)")
    registry.name("some_package", "kept", sets="_seed")
    with pytest.raises(ImportError) as error:
        registry.verify()
    text = str(error.value)
    assert "some_package.scale: expected (value), found (value, strategy)" in text
    assert "some_package.Trainer.fit, expected (self): it is not there" in text
    assert "some_package.kept: expected that it sets `_seed`" in text
    assert text.count("some_package.kept") == 1
    assert f"Keras {keras.__version__}" in text and "3.10.0 and 3.15.1" in text
    assert "-m pip install 'keras>=3.10,<3.16'" in text


def test_nothing_is_wrapped_unless_all_names_are_there(monkeypatch):
    module = _package(monkeypatch, scale=lambda value: value)
    original = module.scale
    collection = seams.Seams()
    scale = seams.PrivateName("some_package", "scale", "(value)")
    missing = seams.PrivateName("some_package", "gone", "(value)")

    @collection.wrap(scale)
    def double(original, value):
        return 2 * original(value)

    collection.wrap(missing)(double)
    with pytest.raises(AttributeError):
        seams.install(collection)
    assert module.scale is original
    collection.wrappers.pop()
    seams.install(collection)
    seams.install(collection)  # Wraps once.
    assert module.scale(3) == 6


def _private_modules(tree):
    """Dotted names below Keras's and TensorFlow's private packages that a file mentions."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if " " not in node.value else []
        for name in names:
            private = ("tensorflow.python", "keras.src", "tf.__internal__")
            if name.startswith(private) or "__internal__" in name:
                yield f"line {node.lineno}: {name}"


def test_private_modules_are_named_in_the_registries_only():
    found = {path: list(_private_modules(ast.parse(path.read_text()))) for path in _SOURCES}
    assert all(found.pop(name) for name in _REGISTRY_FILES)
    assert {name: mentions for name, mentions in found.items() if mentions} == {}


def _own_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            yield node.attr


def test_private_attributes_of_others_are_in_the_registries():
    trees = {path: ast.parse(path.read_text()) for path in _SOURCES}
    known = {name for tree in trees.values() for name in _own_names(tree)}
    for registry in _REGISTRIES:
        for name in registry.names:
            known |= {*name.path.split("."), name.sets}
    strangers = {
        f"{path.name}, line {node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in _STANDARD_LIBRARY
        and node.attr not in known
    }
    assert not strangers, "Add to _private/tensorflow.py or _private/keras.py:\n" + "\n".join(
        sorted(strangers)
    )
