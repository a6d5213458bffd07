# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Writes the traces that tfdear ships: the models of the DeAR paper and of the EmbRace paper.

The tensors of the first come from the models themselves: keras.applications (ResNet-50,
DenseNet-201), the layers in inception_v4.py and the encoder configurations of tf-models-official
(BERT; install tfdear[models]); those of the second, which have tables, are in table_models.py. The
times are estimates: every operation takes the longer of its multiply-adds at --flops and its reads
and writes at --bandwidth, and twice that in the backward pass.

Reference: Zhang et al., "DeAR", ICDCS 2023, Table I; Li et al., "EmbRace", ICPP 2022, Table 1.
"""

import argparse
import math
import pathlib
import sys

import keras
import tensorflow as tf

from tfdear.benchmarks.studies import table_models
from tfdear.benchmarks.studies.inception_v4 import inception_v4
from tfdear.benchmarks.studies.operations import BYTES_PER_VALUE, Operation, to_trace

# Two thirds of the peak rate in single precision and nine tenths of the memory bandwidth of the
# accelerator of the paper, an RTX 2080 Ti (13.4e12 operations and 616e9 bytes per second).
_FLOPS = 9.0e12
_BANDWIDTH = 5.5e11


def convolutional(model: keras.Model) -> list[Operation]:
    """The operations of a network for images, in the order of its forward pass."""
    operations = []
    for layer in _without_redundant_biases(model).layers:
        inputs = layer.input if isinstance(layer.input, list) else [layer.input]
        outputs = math.prod(layer.output.shape[1:])
        moved = outputs + sum(math.prod(tensor.shape[1:]) for tensor in inputs)
        kernel = getattr(layer, "kernel", None)
        multiply_adds = 0.0
        if kernel is not None:
            # Every output value sums over the whole kernel of its channel.
            multiply_adds = outputs * math.prod(kernel.shape) / kernel.shape[-1]
        operations.append(
            Operation(
                layer.name,
                [(weight.path, math.prod(weight.shape)) for weight in layer.trainable_weights],
                multiply_adds,
                0.0 if isinstance(layer, keras.layers.InputLayer) else moved,
            )
        )
    return operations


def _without_redundant_biases(model: keras.Model) -> keras.Model:
    """Drops the biases of convolutions before a batch normalization, which subtracts them again.

    keras.applications has them in ResNet-50; the paper's model has not.
    """
    redundant = {
        node.operation.name
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
        for node in layer._inbound_nodes[0].parent_nodes
        if isinstance(node.operation, keras.layers.Conv2D)
    }

    def clone(layer):
        config = layer.get_config()
        if layer.name in redundant:
            config["use_bias"] = False
        return layer.__class__.from_config(config)

    return keras.models.clone_model(model, clone_function=clone)


def bert(layers: int, hidden: int, heads: int, length: int, predictions: int) -> list[Operation]:
    """The operations of BERT with its two heads of pre-training.

    The inner width is four times the `hidden` one. An example has `length` tokens, of which the
    language model predicts `predictions` masked ones.
    """
    # Imported here: the other traces are made without tf-models-official.
    from official.nlp.configs import encoders
    from official.nlp.modeling import networks
    from official.nlp.modeling.layers import MaskedLM

    config = encoders.BertEncoderConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    encoder = encoders.build_encoder(encoders.EncoderConfig(type="bert", bert=config))
    next_sentence = networks.Classification(input_width=hidden, num_classes=2)
    masked_lm = MaskedLM(
        embedding_table=encoder.get_embedding_table(), activation="gelu", name="masked_lm"
    )
    masked_lm(tf.zeros((1, length, hidden)), masked_positions=tf.zeros((1, predictions), tf.int32))

    # The head of the language model shares the encoder's embedding table, and adds its output bias
    # last, though it creates it first.
    shared = {id(weight) for weight in encoder.trainable_weights}
    head = [weight for weight in masked_lm.trainable_weights if id(weight) not in shared]
    head.sort(key=lambda weight: "output_bias" in weight.name)
    once = [weight for weight in encoder.trainable_weights if "pooler" in weight.name]
    every_token = [weight for weight in encoder.trainable_weights if "pooler" not in weight.name]
    parts = [
        (every_token, length),
        (once + next_sentence.trainable_weights, 1),
        (head, predictions),
    ]

    operations: dict[str, Operation] = {}
    for weight, tokens in ((weight, tokens) for weights, tokens in parts for weight in weights):
        name = weight.name.split(":")[0]
        owner = name.rpartition("/")[0]
        operation = operations.setdefault(owner, Operation(owner, [], 0.0, 0.0))
        values = math.prod(weight.shape)
        operation.tensors.append((name, values))
        if name.endswith("embeddings"):  # Reads rows, multiplies nothing.
            operation.values_moved += 2 * tokens * hidden
        elif name.endswith("kernel"):
            operation.multiply_adds += tokens * values
            operation.values_moved += tokens * (hidden + values / hidden)
        elif name.endswith("gamma"):
            operation.values_moved += 2 * tokens * hidden
        elif "output_bias" in name:  # The scores of the whole vocabulary.
            operation.multiply_adds += tokens * hidden * config.vocab_size
            operation.values_moved += tokens * (hidden + config.vocab_size)
        if name.endswith("attention_output/kernel"):  # Scores, softmax, weighted sum of values.
            operation.multiply_adds += 2 * tokens * tokens * hidden
            operation.values_moved += 4 * heads * tokens * tokens
    return list(operations.values())


# By name: a function that makes the operations, and the batch size of one rank in the paper.
_MODELS = {
    "resnet-50": (lambda: convolutional(keras.applications.ResNet50(weights=None)), 64),
    "densenet-201": (lambda: convolutional(keras.applications.DenseNet201(weights=None)), 32),
    "inception-v4": (lambda: convolutional(inception_v4()), 64),
    "bert-base": (lambda: bert(12, 768, 12, length=64, predictions=10), 64),
    "bert-large": (lambda: bert(24, 1024, 16, length=64, predictions=10), 32),
}
# Their operations are those of a whole batch.
_TABLE_MODELS = {
    "lm-1b": table_models.lm,
    "gnmt-8": table_models.gnmt,
    "transformer-big": table_models.transformer_big,
    "bert-base-squad": table_models.bert_base,
}


def main() -> int:
    names = (*_MODELS, *_TABLE_MODELS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--flops", type=float, default=_FLOPS, help="operations per second")
    parser.add_argument("--bandwidth", type=float, default=_BANDWIDTH, help="bytes per second")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path(__file__).parents[2] / "planning" / "traces",
        metavar="DIR",
        help="where to write NAME.json (default: tfdear/planning/traces)",
    )
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(names)}")
    print(
        f"{'model':16} {'tensors':>8} {'values (M)':>11} {'forward (ms)':>13} {'backward (ms)':>14}"
    )
    for name in options.names or names:
        if name in _TABLE_MODELS:
            model = _TABLE_MODELS[name]()
            operations, batch_size, tables = model.operations, 1, model.tables
        else:
            make, batch_size = _MODELS[name]
            operations, tables = make(), []
        made = to_trace(name, operations, batch_size, options.flops, options.bandwidth, tables)
        made.save(options.output / f"{name}.json")
        print(
            f"{name:16} {len(made.layers):8} {made.bytes / BYTES_PER_VALUE / 1e6:11.1f} "
            f"{made.forward * 1e3:13.1f} {made.backward * 1e3:14.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
