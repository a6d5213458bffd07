# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The models of Table 1 of the EmbRace paper, as operations of one batch. No TensorFlow.

Sizes are worked out by hand from the architectures. How many rows a batch has is Table 3 of the
paper, in units of a row: the sum over a model's tables, which is divided evenly here. The paper
does not say with how many workers the prior rows were found. With 4, the law that row_counts.py
fits to the other two columns gives the third within 6 % for three of the four models; so 4 it is.

Reference: Li et al., "EmbRace", ICPP 2022, Tables 1 and 3 and section 5.2.2.
"""

import dataclasses

from tfdear.benchmarks.studies.operations import Operation
from tfdear.planning.table import Table

_WORKERS = 4
_MEGABYTE = 1 << 20  # The paper's.


@dataclasses.dataclass
class TableModel:
    """A model with tables of embeddings."""

    operations: list[Operation]
    tables: list[Table]


def lm() -> TableModel:
    """A large language model: LSTM with projection, sampled softmax. 128 sentences."""
    words, width, hidden = 793_471, 512, 2048
    make = _Tables(words, width, ["embedding", "softmax"], megabytes=(8.7, 6.9, 2.6))
    tokens = make.ids
    table = make.operation
    operations = [
        table("embedding"),
        _lstm("lstm", width, hidden, tokens),
        _dense("projection", hidden, width, tokens),
        # Scores of every token for the words of the batch and for those that are sampled.
        table("softmax", multiply_adds=tokens * tokens * width, moved=tokens * tokens),
        Operation("softmax", [("softmax/bias", words)], 0.0, tokens),
    ]
    return TableModel(operations, make.tables)


def gnmt() -> TableModel:
    """GNMT with 4 layers of encoder and decoder: 128 pairs of sentences."""
    words, width, sentences = 32_320, 1024, 128
    names = ["encoder_embedding", "decoder_embedding"]
    make = _Tables(words, width, names, megabytes=(26.0, 12.2, 5.8))
    tokens = make.ids
    length = tokens / sentences
    scores = tokens * length  # Of attention: each token of one side for each of the other.
    operations = [
        make.operation("encoder_embedding"),
        _lstm("encoder/1/forward", width, width, tokens),
        _lstm("encoder/1/backward", width, width, tokens),
        _lstm("encoder/2", 2 * width, width, tokens),
        _lstm("encoder/3", width, width, tokens),
        _lstm("encoder/4", width, width, tokens),
        make.operation("decoder_embedding"),
        _lstm("decoder/1", width, width, tokens),
        _dense("attention/query", width, width, tokens, bias=False),
        _dense("attention/key", width, width, tokens, bias=False),
        # Additive attention: a tanh of every pair, its scores, the weighted sum.
        Operation(
            "attention", [("attention/scale", width)], 2 * scores * width, 2 * scores * width
        ),
    ]
    for layer in (2, 3, 4):  # They get the context of the attention, too.
        operations.append(_lstm(f"decoder/{layer}", 2 * width, width, tokens))
    operations.append(_dense("classifier", width, words, tokens))
    return TableModel(operations, make.tables)


def transformer_big() -> TableModel:
    """Transformer-big, without biases in its attention: 5120 tokens at most on each side."""
    words, width, inner, heads, layers = 33_712, 1024, 4096, 16, 6
    names = ["encoder_embedding", "decoder_embedding"]
    make = _Tables(words, width, names, megabytes=(35.2, 16.6, 8.9))
    tokens, length = make.ids, 26.0  # As long as the sentences of GNMT, of the same data.

    def attention(name: str) -> list[Operation]:
        return _attention(name, width, heads, tokens, length, bias=False)

    operations = [make.operation("encoder_embedding")]
    for layer in range(layers):
        name = f"encoder/{layer}"
        operations += attention(f"{name}/self_attention")
        operations += _feed_forward(name, width, inner, tokens)
    operations.append(_normalization("encoder/normalization", width, tokens))
    operations.append(make.operation("decoder_embedding"))
    for layer in range(layers):
        name = f"decoder/{layer}"
        operations += attention(f"{name}/self_attention")
        operations += attention(f"{name}/attention")
        operations += _feed_forward(name, width, inner, tokens)
    operations.append(_normalization("decoder/normalization", width, tokens))
    operations.append(_dense("output", width, words, tokens, bias=False))
    return TableModel(operations, make.tables)


def bert_base() -> TableModel:
    """BERT-base with the head that answers questions: 32 examples of 384 tokens."""
    words, width, inner, heads, layers, length = 30_522, 768, 3072, 12, 12, 384
    make = _Tables(words, width, ["word_embedding"], megabytes=(36.0, 5.5, 3.2))
    tokens = make.ids
    operations = [
        make.operation("word_embedding"),
        Operation("position_embedding", [("position_embedding", 512 * width)], 0, tokens * width),
        Operation("type_embedding", [("type_embedding", 2 * width)], 0, tokens * width),
        _normalization("embedding/normalization", width, tokens),
    ]
    for layer in range(layers):
        name = f"encoder/{layer}"
        operations += _attention(f"{name}/self_attention", width, heads, tokens, length, bias=True)
        operations += _feed_forward(name, width, inner, tokens)
    operations.append(_dense("pooler", width, width, tokens / length))
    operations.append(_dense("answer", width, 2, tokens))
    return TableModel(operations, make.tables)


class _Tables:
    """A model's tables, alike, and their rows of one batch: original, coalesced, prioritized."""

    def __init__(
        self, words: int, width: int, names: list[str], megabytes: tuple[float, float, float]
    ) -> None:
        row = 4 * width * len(names)
        self.ids, coalesced, prior = (round(size * _MEGABYTE / row) for size in megabytes)
        self._values, self._width = words * width, width
        self.tables = [
            Table(f"{name}/table", words, width, self.ids, coalesced, prior, _WORKERS)
            for name in names
        ]

    def operation(self, name: str, multiply_adds: float = 0.0, moved: float = 0.0) -> Operation:
        """A lookup, which reads rows and writes them, and what else is done with the table."""
        tensors = [(f"{name}/table", self._values)]
        return Operation(name, tensors, multiply_adds, moved + 2 * self.ids * self._width)


def _dense(name: str, inputs: int, outputs: int, tokens: float, *, bias: bool = True) -> Operation:
    tensors = [(f"{name}/kernel", inputs * outputs)]
    if bias:
        tensors.append((f"{name}/bias", outputs))
    moved = tokens * (inputs + outputs) + inputs * outputs
    return Operation(name, tensors, tokens * inputs * outputs, moved)


def _lstm(name: str, inputs: int, hidden: int, tokens: float) -> Operation:
    gates = 4 * hidden
    tensors = [
        (f"{name}/kernel", inputs * gates),
        (f"{name}/recurrent_kernel", hidden * gates),
        (f"{name}/bias", gates),
    ]
    moved = tokens * (inputs + gates + 2 * hidden) + (inputs + hidden) * gates
    return Operation(name, tensors, tokens * (inputs + hidden) * gates, moved)


def _normalization(name: str, width: int, tokens: float) -> Operation:
    tensors = [(f"{name}/gamma", width), (f"{name}/beta", width)]
    return Operation(name, tensors, 0.0, 2 * tokens * width)


def _attention(
    name: str, width: int, heads: int, tokens: float, length: float, *, bias: bool
) -> list[Operation]:
    def projection(part: str) -> Operation:
        return _dense(f"{name}/{part}", width, width, tokens, bias=bias)

    # Scores, softmax, weighted sum: they come before the last projection.
    pairs = tokens * length
    output = projection("output")
    output.multiply_adds += 2 * pairs * width
    output.values_moved += 4 * heads * pairs
    inputs = [projection(part) for part in ("query", "key", "value")]
    return [*inputs, output, _normalization(f"{name}/normalization", width, tokens)]


def _feed_forward(name: str, width: int, inner: int, tokens: float) -> list[Operation]:
    return [
        _dense(f"{name}/inner", width, inner, tokens),
        _dense(f"{name}/outer", inner, width, tokens),
        _normalization(f"{name}/normalization", width, tokens),
    ]
