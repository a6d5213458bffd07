# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the paths of a model's variables tell of its layers. Imports no TensorFlow.

[Note: Layers in paths] A path has the names of the layers around a variable, the outermost first,
and the variable's own last: "encoder/block_1/attention/query/kernel". Keras puts the name of a
subclassed or a `Sequential` model in front, and none for a functional one. Numbers in names tell
nothing: Keras counts the layers of a process.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Path = tuple[str, ...]

# Of the bytes of a layer: what is in layers that are alike, if it is a stack of these; and what is
# in an attention, if it has nothing else but a normalization.
_STACKED, _ATTENDING = 0.75, 0.95
_NUMBER = re.compile(r"_?\d+")
# The names of variables and layers that Keras gives, whatever its user's.
_RECURRENT = "recurrent_kernel"
_ATTENTION = {"query", "key", "value"}
_CELL = re.compile(r".*cell(_\d+)?")
_DIRECTION = re.compile(r"(forward|backward)(_.*)?")
_SHOWN = 12


@dataclasses.dataclass
class _Layer:
    """A layer with all that is in it."""

    path: Path
    layers: dict[str, _Layer] = dataclasses.field(default_factory=dict)
    variables: set[str] = dataclasses.field(default_factory=set)  # Its own.
    bytes: int = 0
    shape: frozenset[str] = frozenset()  # Paths in it, without numbers.

    @property
    def is_recurrent(self) -> bool:
        """Whether it is one recurrent layer, with its cells or in both directions."""
        if not self.layers:
            return _RECURRENT in self.variables
        if self.variables or not any(layer.holds_recurrent for layer in self.layers.values()):
            return False
        return any(
            all(name.fullmatch(layer) for layer in self.layers) for name in (_CELL, _DIRECTION)
        )

    @property
    def holds_recurrent(self) -> bool:
        """Whether a recurrent layer is in it, or it is one."""
        return _RECURRENT in self.variables or any(
            layer.holds_recurrent for layer in self.layers.values()
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is a layer of variables, with nothing but wrappers around, not recurrent."""
        return (
            not self.holds_recurrent
            and len(self.layers) <= 1
            and all(layer.is_plain for layer in self.layers.values())
        )

    @property
    def is_attention(self) -> bool:
        """Whether it is an attention, perhaps with a normalization."""
        return self.layers.keys() >= _ATTENTION or any(
            layer.is_attention and layer.bytes >= _ATTENDING * self.bytes
            for layer in self.layers.values()
        )

    @property
    def is_stack(self) -> bool:
        """Whether it is made of layers that are alike, and are themselves made of layers."""
        kinds: dict[frozenset[str], list[_Layer]] = {}
        for layer in self.layers.values():
            if layer.layers:
                kinds.setdefault(layer.shape, []).append(layer)
        # A block of a decoder has two attentions, to itself and to what is decoded.
        alike = [kind for kind in kinds.values() if len(kind) > (2 if kind[0].is_attention else 1)]
        stacked = sum(layer.bytes for kind in alike for layer in kind)
        return bool(alike) and stacked >= _STACKED * self.bytes

    @property
    def is_divided(self) -> bool:
        """Whether it is more than one block."""
        if not self.layers or self.is_recurrent:
            return False
        if self.holds_recurrent or self.is_stack:
            return True
        return any(layer.is_divided for layer in self.layers.values())


class Block(NamedTuple):
    """A layer, or a variable of a layer that is divided."""

    path: Path
    is_plain: bool  # Whether it holds variables only, and is not recurrent.


def divide(paths: Sequence[str], sizes: Sequence[int]) -> list[Block]:
    """Finds the block of each variable, as `tfdear.fusion.Blocks` says.

    Args:
        paths: Of the variables.
        sizes: Of their gradients, in bytes.

    Returns:
        The block of each.
    """
    parts = [tuple(path.split("/")) for path in paths]
    model = _tree(parts, sizes)
    only = next(iter(model.layers.values())) if _has_model_name(parts) else None
    if only is not None and only.layers and not only.is_recurrent:
        model = only
    blocks: dict[Path, Block] = {}
    layers = list(model.layers.values())
    for layer in layers:  # The list grows in the loop.
        if layer.is_divided:
            layers += layer.layers.values()
        else:
            blocks[layer.path] = Block(layer.path, layer.is_plain)
    return [
        next(
            (blocks[path[:end]] for end in range(1, len(path)) if path[:end] in blocks),
            Block(path, is_plain=True),
        )
        for path in parts
    ]


def check_groups(groups: object) -> tuple[tuple[str, ...], ...]:
    """Returns groups of expressions as tuples; a text alone is a group of one.

    Raises:
        ValueError: They are something else, or one is no regular expression.
    """
    checked = []
    try:
        if isinstance(groups, str) or not isinstance(groups, Iterable):
            raise ValueError("they must be a list of groups")
        for group in groups:
            expressions = (group,) if isinstance(group, str) else tuple(group)
            if not expressions:
                raise ValueError("a group is empty")
            for expression in expressions:
                re.compile(expression)
            checked.append(expressions)
    except (TypeError, ValueError, re.error) as error:
        raise ValueError(
            "`groups` must be regular expressions of paths of layers or variables, or lists of "
            f"them: {error}. Received: groups={groups!r}"
        ) from error
    return tuple(checked)


def match(groups: Sequence[Sequence[str]], paths: Sequence[str]) -> list[int | None]:
    """Finds the group that takes each variable, if any, as `tfdear.fusion.Blocks` says.

    Raises:
        ValueError: An expression matches nothing, or two groups take one variable.
    """
    taken: list[int | None] = [None] * len(paths)
    names = [_names(path) for path in _in_model(paths)]
    for number, group in enumerate(groups):
        for expression in group:
            compiled = re.compile(expression)
            matches = [any(map(compiled.fullmatch, called)) for called in names]
            if not any(matches):
                raise ValueError(
                    f"{expression!r} of the groups of fusion.Blocks matches no path of a layer or "
                    f"variable that is trained. There are {_shown(paths)}. Name layers when you "
                    "make them: Keras counts those without a name, in the order of creation."
                )
            for index in (index for index, matched in enumerate(matches) if matched):
                other = taken[index]
                if other is not None and other != number:
                    raise ValueError(
                        f"Two groups of fusion.Blocks take {paths[index]!r}: {groups[other]!r} and "
                        f"{group!r}. Each variable can be in one block only."
                    )
                taken[index] = number
    return taken


def _in_model(paths: Sequence[str]) -> list[list[Path]]:
    """Each path as it is, and without the model's name if all begin with one."""
    parts = [tuple(path.split("/")) for path in paths]
    if not _has_model_name(parts):
        return [[path] for path in parts]
    return [[path, path[1:]] for path in parts]


def _names(paths: Sequence[Path]) -> list[str]:
    """The paths of a variable and of the layers around it, as texts."""
    return ["/".join(path[:end]) for path in paths for end in range(1, len(path) + 1)]


def _has_model_name(parts: Sequence[Path]) -> bool:
    """Whether all paths begin with the same name, of more than one variable."""
    return len({path[0] for path in parts}) == 1 and all(len(path) > 1 for path in parts)


def _tree(parts: Sequence[Path], sizes: Sequence[int]) -> _Layer:
    root = _Layer(())
    inside: dict[Path, set[str]] = {}
    for path, size in zip(parts, sizes, strict=True):
        layer = root
        for depth, name in enumerate(path):
            layer.bytes += size
            below = "/".join(path[depth:])
            inside.setdefault(layer.path, set()).add(_NUMBER.sub("", below))
            if depth == len(path) - 1:
                layer.variables.add(name)
            else:
                layer = layer.layers.setdefault(name, _Layer(path[: depth + 1]))
    layers = [root]
    for layer in layers:  # The list grows in the loop.
        layer.shape = frozenset(inside.get(layer.path, ()))
        layers += layer.layers.values()
    return root


def _shown(paths: Sequence[str]) -> str:
    """The paths of some layers, for messages."""
    layers = list(dict.fromkeys(path.rpartition("/")[0] or path for path in paths))
    rest = f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else ""
    return ", ".join(layers[:_SHOWN]) + rest
