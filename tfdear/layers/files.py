# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Makes plain Keras read what has sharded layers, and sharded layers of them again.

In a file a sharded layer is `keras.layers.Embedding`. What else it was is in the part of the file
that says how it is built, where plain Keras does not look.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams

SEAMS = seams.Seams()
_KEY = "tfdear"

# The plain class that stands for a sharded one in files.
_plain_classes: dict[type, type] = {}


def stands_in_for(plain: type | None) -> Any:
    """Decorates a sharded layer: a file has the plain class in its place.

    None: this Keras has no such class, and the file has the sharded one.
    """

    def register(cls: Any) -> Any:
        if plain is not None:
            _plain_classes[cls] = plain
        return cls

    return register


def sharded_classes() -> dict[type, type]:
    """The sharded class for each plain one."""
    return {plain: sharded for sharded, plain in _plain_classes.items()}


def own_part(layer: Any) -> dict[str, Any]:
    """What of a sharded layer's configuration its plain class does not have."""
    return {name: getattr(layer, name) for name in layer.OWN_ARGUMENTS}


@SEAMS.wrap(_keras_private.SERIALIZE_WITH_PUBLIC_CLASS)
def _serialize_as_plain(
    original: seams.Original, cls: Any, inner_config: Mapping[str, Any] | None = None
) -> object:
    plain = _plain_classes.get(cls) if isinstance(cls, type) else None
    config = inner_config or {}
    if plain is None or config.get("combiner") is not None:  # It computes something else.
        return original(cls, inner_config)
    return original(plain, {key: config[key] for key in config if key not in cls.OWN_ARGUMENTS})


@SEAMS.wrap(_keras_private.TO_SNAKE_CASE)
def _name_as_plain(original: seams.Original, name: str) -> str:
    # Entries of weights are named after classes; so are layers without a name.
    for sharded, plain in _plain_classes.items():
        if name == sharded.__name__:
            return original(plain.__name__)
    return original(name)


@SEAMS.wrap(_keras_private.DESERIALIZE)
def _make_sharded(
    original: seams.Original, config: Any, custom_objects: Any = None, *args: Any, **kwargs: Any
) -> object:
    own = _own_part_in(config)
    if own is not None and getattr(tf.distribute.get_strategy().extended, "is_dear", False):
        for sharded, plain in _plain_classes.items():
            if config.get("class_name") == plain.__name__:
                config = {
                    **config,
                    "module": sharded.__module__,
                    "class_name": sharded.__name__,
                    "registered_name": keras.saving.get_registered_name(sharded),
                    "config": {**config["config"], **own},
                }
    return original(config, custom_objects, *args, **kwargs)


def _own_part_in(config: Any) -> Mapping[str, Any] | None:
    built = config.get("build_config") if isinstance(config, Mapping) else None
    return built.get(_KEY) if isinstance(built, Mapping) else None


def build_config(layer: Any, config: dict[str, Any] | None) -> dict[str, Any]:
    """What a file says of how a sharded layer is built."""
    return {**(config or {}), _KEY: own_part(layer)}
