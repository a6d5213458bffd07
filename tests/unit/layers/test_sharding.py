# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Models whose tables are divided after they were made, in one process."""

import keras
import numpy as np
import pytest

import tfdear


class Words(keras.layers.Embedding):
    """Somebody's own layer."""


def make():
    ids = keras.Input((3,), dtype="int32")
    first = keras.layers.Embedding(20, 4, name="first", mask_zero=True)
    outputs = first(ids) + Words(20, 4, name="own")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(outputs))


INPUTS = np.arange(12).reshape(4, 3)


def test_tables_are_divided_and_made_whole_with_their_weights():
    with tfdear.DearStrategy().scope():
        model = make()
    expected = model.predict(INPUTS, verbose=0)
    paths = [variable.path for variable in model.weights]
    variable = model.get_layer("first").embeddings
    (layer,) = tfdear.layers.shard(model, partition="row", updates="touched")
    assert type(layer) is tfdear.layers.ShardedEmbedding and layer.table is not None
    assert (layer.partition, layer.exchange, layer.updates) == ("row", "auto", "touched")
    assert type(model.get_layer("own")) is Words
    # Whoever holds the variable of Keras, holds the new one.
    assert layer.embeddings is variable
    assert [variable.path for variable in model.weights] == paths
    np.testing.assert_array_equal(model.predict(INPUTS, verbose=0), expected)
    assert tfdear.layers.shard(model) == []
    assert tfdear.layers.unshard(model) == [layer]
    assert type(layer) is keras.layers.Embedding
    assert "updates" not in layer.get_config()
    np.testing.assert_array_equal(model.predict(INPUTS, verbose=0), expected)


def test_it_trains_as_a_sharded_layer_does():
    def losses(sharded_before):
        keras.utils.set_random_seed(1)
        with tfdear.DearStrategy().scope():
            make_layer = tfdear.layers.ShardedEmbedding if sharded_before else None
            layer = (make_layer or keras.layers.Embedding)(20, 4)
            model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
            if not sharded_before:
                tfdear.layers.shard(model)
            model.compile(keras.optimizers.Adam(0.1), "mse")
        return model.fit(INPUTS, np.ones((4, 3, 4)), epochs=3, verbose=0).history["loss"]

    assert losses(False) == losses(True)


def test_without_a_strategy_nothing_is_divided():
    model = make()
    expected = model.predict(INPUTS, verbose=0)
    (layer,) = tfdear.layers.shard(model)
    assert layer.table is None
    np.testing.assert_array_equal(model.predict(INPUTS, verbose=0), expected)


def test_what_cannot_be_divided_is_refused():
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        model = make()
        model.compile("adam", "mse")
    model.fit(INPUTS, np.ones((4, 3, 1)), verbose=0)
    for function in (tfdear.layers.shard, tfdear.layers.unshard):
        with pytest.raises(ValueError, match="has slots for the tables as they are"):
            function(model)
    with pytest.raises(ValueError, match="partition"):
        tfdear.layers.shard(model, partition="none")
    with strategy.scope():
        unbuilt = keras.Sequential([keras.layers.Embedding(5, 2, name="unbuilt")])
        with pytest.raises(ValueError, match="Layer 'unbuilt' is not built"):
            tfdear.layers.shard(unbuilt)
        adapted = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(5, 2, lora_rank=1)])
        with pytest.raises(ValueError, match="low-rank adaptation"):
            tfdear.layers.shard(adapted)
    outside = make()
    with strategy.scope(), pytest.raises(ValueError, match="outside of the scope"):
        tfdear.layers.shard(outside)
