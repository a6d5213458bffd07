# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A bucket for each block of a model. Imports no TensorFlow."""

import dataclasses
from collections.abc import Sequence

from tfdear.fusion import layer_paths
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Layer, Trace

# The part of the blocks' mean size under which plain layers join a block.
_TINY = 0.1


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Fuses the gradients of each block of a model: of each LSTM layer, of each attention block.

    Use it for models of language, whose blocks are alike: each travels as one, and is there when
    the next forward pass comes to it. It needs nothing measured; what is measured decides in which
    order blocks travel. `Planned(Blocks())` lets neighbouring blocks share a bucket where a
    start-up costs more than it saves.

    Blocks follow from the paths of the layers. The layers of the model are blocks, each with all
    that is in it; but a layer is divided into its own layers

    - if it holds a recurrent layer and is none. (An LSTM is one with its cell, or a stack of
      cells, and so is `Bidirectional` with its two layers);
    - if three quarters of its bytes or more are in layers that are alike and made of layers, as in
      a stack of attention blocks. (Two attentions are alike in the block of a decoder, too, which
      stays whole);
    - if one of its layers is divided.

    Weights that a divided layer has of its own are blocks. A block that is not recurrent, holds no
    layers and has less than a tenth of the blocks' mean size, such as a `LayerNormalization`, joins
    the block in front of it, or if there is none that behind it. However large a block is, it is
    one bucket; schedules cut its transfers. Gradients that are rows of a table of embeddings join
    no block.

    Args:
        groups: Blocks in place of those found, each as a regular expression or several. An
            expression takes what is in the layers, and the variables, whose whole path it matches.
            Paths are those of Keras, with the model's name in front or without. These blocks are
            as they are given, whatever their size; what none of them takes is divided as without
            groups. Defaults to none.

    Raises:
        ValueError: `groups` are not of texts, or one of them is no regular expression. When a model
            is trained: an expression matches nothing in it, or two groups take one variable.

    Example:

    >>> from tfdear import fusion
    >>> from tfdear.trace import Layer, Trace
    >>> names = ["lstm/lstm_cell/kernel", "lstm/lstm_cell/bias", "dense/kernel"]
    >>> trace = Trace("small", tuple(Layer(name, 8, 1.0, 2.0) for name in names))
    >>> fusion.Blocks().buckets(trace, None, "dear")
    [[2], [1, 0]]
    >>> fusion.Blocks(groups=["lstm|dense"]).buckets(trace, None, "dear")
    [[2, 1, 0]]

    Reference: Li et al., "EmbRace", section 4.2.1.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    needs_profile = False
    keeps_first_buckets = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", layer_paths.check_groups(self.groups))

    def __repr__(self) -> str:
        return f"Blocks(groups={self.groups!r})" if self.groups else "Blocks()"

    @property
    def blocks(self) -> "Blocks":
        """Returns itself: what buckets consist of."""
        return self

    def find(self, paths: Sequence[str], sizes: Sequence[int]) -> list[list[int]]:
        """Returns the blocks of a model, in the order of the forward pass.

        Args:
            paths: Of the variables, in that order.
            sizes: Of their gradients, in bytes; 0 for rows of embeddings.

        Returns:
            Lists of indices. Of a block that others have joined, its own come first.

        Raises:
            ValueError: An expression of `groups` matches nothing, or two groups take one variable.
        """
        given = layer_paths.match(self.groups, paths)
        found = layer_paths.divide(paths, sizes)
        groups: dict[int, list[int]] = {}
        layers: dict[layer_paths.Block, list[int]] = {}
        rows: list[list[int]] = []
        for index, size in enumerate(sizes):
            group = given[index]
            if group is not None:
                groups.setdefault(group, []).append(index)
            elif size == 0:
                rows.append([index])
            else:
                layers.setdefault(found[index], []).append(index)
        count = len(groups) + len(layers)
        tiny = _TINY * sum(sizes) / count if count else 0.0
        joined: list[list[int]] = []
        waiting: list[int] = []  # What is in front of all blocks that others can join.
        for block, members in layers.items():
            if not block.is_plain or sum(sizes[index] for index in members) >= tiny:
                joined.append([*members, *waiting])
                waiting = []
            elif joined:
                joined[-1] += members
            else:
                waiting += members
        left = [waiting] if waiting else []
        return sorted([*groups.values(), *rows, *joined, *left], key=min)

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order; costs and schedule do not matter.

        Buckets are runs of layers: a block that is in several places of the trace is as many
        buckets. In training it is one.
        """
        names = [layer.name for layer in trace.layers]
        block_of = {}
        for number, block in enumerate(self.find(names, [layer.bytes for layer in trace.layers])):
            block_of.update(dict.fromkeys(block, number))
        buckets: list[list[int]] = []
        for index in reversed(range(len(names))):
            if buckets and block_of[buckets[-1][0]] == block_of[index]:
                buckets[-1].append(index)
            else:
                buckets.append([index])
        return buckets


def merged(trace: Trace, buckets: Sequence[Sequence[int]]) -> Trace:
    """Makes a trace with a layer for each bucket of another; the last bucket becomes the first."""
    layers = []
    for bucket in reversed(buckets):
        members = [trace.layers[index] for index in bucket]
        layers.append(
            Layer(
                members[-1].name,
                sum(layer.bytes for layer in members),
                sum(layer.forward for layer in members),
                sum(layer.backward for layer in members),
            )
        )
    return Trace(trace.name, tuple(layers))
