# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains the digits twice, with dense and with compressed gradients, and draws both curves.

    tfdear run -n 4 --nodes 2 examples/sparse_digits.py     # this machine plays two nodes of two

Between nodes only the largest hundredth of the gradients travels (`tfdear.compression.MSTopK`);
what stays behind is added to the next step's gradients. One strategy trains both networks: a
callback says from which epoch on gradients are compressed. It needs scikit-learn and matplotlib:
`pip install "tfdear[examples]"`.
"""

import argparse

import keras
from digits import load_data, make_model

import tfdear

_LEARNING_RATE = 0.02


def train(strategy: tfdear.DearStrategy, density: float | None, epochs: int, batch_size: int):
    """Trains from the same start with gradients of this density (None: dense).

    Returns the validation accuracy after every epoch.
    """
    keras.utils.set_random_seed(1)
    (images, labels), validation = load_data()
    steps = epochs * -(-len(images) // batch_size)
    with strategy.scope():
        model = make_model()
        model.compile(
            optimizer=keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(_LEARNING_RATE, steps), momentum=0.9
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        images,
        labels,
        batch_size=batch_size,
        epochs=epochs,
        validation_data=validation,
        callbacks=[tfdear.callbacks.CompressionSchedule({0: density})],
        verbose=2,
    )
    return history.history["val_accuracy"]


def draw(curves: dict[str, list[float]], path: str) -> None:
    """Draws accuracy over epochs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for name, accuracy in curves.items():
        axes.plot(range(1, len(accuracy) + 1), accuracy, label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Trains twice, prints a summary and draws the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument(
        "--no-error-feedback",
        action="store_true",
        help="drop what is not sent, to see why it should not be dropped",
    )
    parser.add_argument("--plot", default="sparse_digits.png", help="picture to draw")
    args = parser.parse_args()

    # Gradients as small as these gain nothing and would travel dense: `dense_below=0` asks for it.
    compression = tfdear.compression.MSTopK(
        density=args.density, error_feedback=not args.no_error_feedback, dense_below=0
    )
    strategy = tfdear.DearStrategy(compression=compression)
    names = {"dense": None, f"density {args.density:g}": args.density}
    curves = {
        name: train(strategy, density, args.epochs, args.batch_size)
        for name, density in names.items()
    }
    if strategy.is_chief:
        print()
        for name, accuracy in curves.items():
            print(f"{name:<22} validation accuracy {accuracy[-1]:.2%}")
        draw(curves, args.plot)
        print(f"{'curves':<22} {args.plot}")


if __name__ == "__main__":
    main()
