# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Blocks of models as Keras names their variables: functional, `Sequential` and subclassed ones."""

import dataclasses
import math

import bert_pretraining
import gnmt
import keras
import language_model
import numpy as np
import pytest
import transformer

from tfdear import fusion
from tfdear.fusion import layer_paths

layers = keras.layers
WIDTH = 8


class AttentionBlock(layers.Layer):
    """An attention, or two as in a decoder, and a feed-forward part."""

    def __init__(self, attentions=1, inner=WIDTH, **options):
        super().__init__(**options)
        self.attentions = [layers.MultiHeadAttention(2, WIDTH) for _ in range(attentions)]
        self.norms = [layers.LayerNormalization() for _ in range(attentions)]
        self.forward = keras.Sequential([layers.Dense(inner), layers.Dense(WIDTH)])

    def call(self, x):
        for attention, norm in zip(self.attentions, self.norms, strict=True):
            x = norm(x + attention(x, x))
        return x + self.forward(x)


class OwnAttention(layers.Layer):
    """One whose layers are not called as Keras's are."""

    def __init__(self):
        super().__init__()
        self.parts = [layers.Dense(WIDTH) for _ in range(4)]

    def call(self, x):
        query, key, value = (part(x) for part in self.parts[:3])
        scores = keras.ops.softmax(keras.ops.matmul(query, keras.ops.swapaxes(key, 1, 2)))
        return self.parts[3](keras.ops.matmul(scores, value))


class OwnBlock(layers.Layer):
    """A block of a decoder with two of them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = OwnAttention(), OwnAttention()
        self.inner, self.outer = layers.Dense(2 * WIDTH), layers.Dense(WIDTH)

    def call(self, x):
        return self.outer(self.inner(self.second(self.first(x))))


class Stack(layers.Layer):
    """Layers one after the other, behind a table."""

    def __init__(self, *members, table=False, **options):
        super().__init__(**options)
        self.table = layers.Embedding(10, WIDTH) if table else None
        self.members = list(members)
        self.norm = layers.LayerNormalization()

    def call(self, x):
        if self.table is not None:
            x = self.table(x)
        for member in self.members:
            x = member(x)
        return self.norm(x)


class Model(keras.Model):
    """A subclassed model of parts, with a weight of its own."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)
        self.scale = self.add_weight(shape=(300,), initializer="ones", name="scale")

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x * keras.ops.mean(self.scale)


def lstm(**options):
    return layers.LSTM(WIDTH, return_sequences=True, **options)


def functional(*parts, tokens=False):
    x = source = keras.Input((3,), dtype="int32") if tokens else keras.Input((3, WIDTH))
    for part in parts:
        x = part(x)
    return keras.Model(source, x)


def subclassed(*parts, tokens=False):
    model = Model(*parts)
    model(np.zeros((1, 3), "int32") if tokens else np.zeros((1, 3, WIDTH), "float32"))
    return model


def sequential(*parts, tokens=False):
    shape = (3,) if tokens else (3, WIDTH)
    return keras.Sequential([keras.Input(shape, dtype="int32" if tokens else None), *parts])


def variables_of(part):
    return {variable.path for variable in part.trainable_variables}


def find(model):
    """The blocks of a model as sets of paths; gradients of tables have no size."""
    variables = model.trainable_variables
    paths = [variable.path for variable in variables]
    sizes = [
        0 if path.endswith("embeddings") else 4 * math.prod(variable.shape)
        for path, variable in zip(paths, variables, strict=True)
    ]
    return [{paths[index] for index in block} for block in fusion.Blocks().find(paths, sizes)]


KINDS = [functional, subclassed, sequential]


@pytest.mark.parametrize("make", KINDS)
def test_every_recurrent_layer_is_a_block(make):
    recurrent = [
        layers.Bidirectional(lstm()),
        lstm(name="named"),
        layers.GRU(WIDTH, return_sequences=True),
        layers.RNN([layers.LSTMCell(WIDTH), layers.LSTMCell(WIDTH)], return_sequences=True),
        layers.TimeDistributed(layers.Dense(WIDTH)),
        lstm(),
    ]
    # In layers that hold them beside others, too.
    deep = [layers.Bidirectional(lstm()), lstm()]
    model = make(layers.Embedding(10, WIDTH), *recurrent, Stack(*deep), tokens=True)
    blocks = find(model)
    for layer in (*recurrent, *deep):
        held = [block for block in blocks if block & variables_of(layer)]
        assert len(held) == 1 and held[0] >= variables_of(layer), layer.name
        assert sum(path.endswith("recurrent_kernel") for path in held[0]) <= 2
    assert len(blocks) == 1 + 6 + 2 + (make is subclassed)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_attention_block_is_one(make, number):
    encoder = [AttentionBlock(inner=4 * WIDTH) for _ in range(number)]
    decoder = [AttentionBlock(2) for _ in range(number)]
    model = make(Stack(*encoder, table=True), Stack(*decoder), layers.Dense(50), tokens=True)
    blocks = find(model)
    for layer in (*encoder, *decoder):
        held = [block for block in blocks if block & variables_of(layer)]
        assert len(held) == 1 and held[0] >= variables_of(layer), (layer.name, held)
    # A table and what comes last, and of a subclassed model a weight of its own.
    assert len(blocks) == 1 + 2 * number + 1 + (make is subclassed)


@pytest.mark.parametrize("make", KINDS)
def test_blocks_of_attentions_that_keras_does_not_know(make):
    blocks = [OwnBlock() for _ in range(3)]
    found = find(make(Stack(*blocks), layers.Dense(50)))
    held = [[block for block in found if block & variables_of(layer)] for layer in blocks]
    assert [len(one) for one in held] == [1, 1, 1]
    assert all(one[0] >= variables_of(layer) for one, layer in zip(held, blocks, strict=True))


def test_models_in_models():
    encoder = keras.Sequential([lstm(), lstm()], name="encoder")
    decoder = keras.Sequential([layers.Dense(WIDTH), layers.Dense(WIDTH)], name="decoder")
    model = sequential(encoder, decoder)
    assert find(model) == [*map(variables_of, encoder.layers), variables_of(decoder)]


def test_a_model_of_one_layer():
    for layer in (lstm(), layers.Bidirectional(lstm()), layers.Dense(3)):
        assert find(functional(layer)) == [variables_of(layer)]
        assert find(sequential(layer.__class__.from_config(layer.get_config()))) != []
    # All other layers are frozen: no path but those of one block is known.
    block = AttentionBlock()
    model = subclassed(Stack(AttentionBlock(), block))
    paths = [path for path in sorted(variables_of(block))]
    assert len({*layer_paths.divide(paths, [4] * len(paths))}) == 1
    assert model.name == paths[0].split("/")[0]


def test_the_models_of_the_examples():
    shapes = dataclasses.replace(gnmt.SHAPES["default"], depth=4)
    model = gnmt.make_model(shapes, 2_000)
    blocks = find(model)
    recurrent = [
        layer for layer in model.layers if isinstance(layer, (layers.Bidirectional, layers.LSTM))
    ]
    assert len(recurrent) == 8
    assert all(variables_of(layer) in blocks for layer in recurrent)
    assert len(blocks) == 2 + 8 + 1 + 1  # Tables, LSTMs, attention, classifier.

    model = language_model.LanguageModel(language_model.SHAPES["default"], 50_000)
    model(np.zeros((1, 3), "int32"))
    assert variables_of(model.lstm) in find(model)

    for make, example in (
        (bert_pretraining.make_model, bert_pretraining),
        (transformer.make_model, transformer),
    ):
        model = make(example.SHAPES["default"], 2_000)
        blocks = find(model)
        attentions = [
            layer for layer in model.layers if isinstance(layer, layers.MultiHeadAttention)
        ]
        assert len(attentions) == (2 if example is bert_pretraining else 6)
        for layer in attentions:
            held = [block for block in blocks if block & variables_of(layer)]
            # With the normalizations in front of and behind it.
            assert len(held) == 1
            assert all("norm" in path for path in held[0] - variables_of(layer))
