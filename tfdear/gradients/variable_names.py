# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Names of variables, and the part of a name that is the same on all ranks."""

import functools
import re

import keras

_COUNTED = re.compile(r"(.+)_\d+")


def path(name: str | None, initial_value: object) -> str:
    """The path of the Keras variable that a variable is created for, or the given name.

    As the name, Keras gives the last part of the path only.
    """
    # Keras's initial value is a function that holds on to its variable.
    for cell in getattr(initial_value, "__closure__", None) or ():
        if isinstance(cell.cell_contents, keras.Variable):
            return cell.cell_contents.path
    return name or "variable"


def comparable(variable_path: str) -> str:
    """A path in its model, without the numbers that Keras gave to layers.

    Keras numbers the layers of a process in the order of creation, which may differ between ranks
    whose models are the same.
    """
    return "/".join(_without_count(part) for part in _in_model(variable_path))


def without_numbers(variable_path: str) -> str:
    """A path in its model without any numbers."""
    return re.sub(r"_?\d+", "", "/".join(_in_model(variable_path)))


def _in_model(variable_path: str) -> list[str]:
    """The parts of a path except the model's name, in which scripts put dates and processes."""
    parts = variable_path.split("/")
    return parts[1:] if len(parts) > 2 else parts


def _without_count(name: str) -> str:
    match = _COUNTED.fullmatch(name)
    return match[1] if match and _is_automatic(match[1]) else name


@functools.lru_cache(maxsize=1024)
def _is_automatic(name: str) -> bool:
    """Whether Keras gives this name to the layers of some class."""
    classes = list(keras.layers.Layer.__subclasses__())
    for layer in classes:  # The list grows in the loop.
        classes += layer.__subclasses__()
    return name in {_automatic_name(layer.__name__) for layer in classes}


def _automatic_name(class_name: str) -> str:
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
