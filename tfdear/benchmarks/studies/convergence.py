# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Does compressed training learn as well? A small Transformer on English text, compressed or not.

    python tfdear/benchmarks/studies/convergence.py --json convergence.json --plot convergence.png

The text is Python's own documentation of its language (`pydoc_data.topics`, 465 thousand
characters); the model predicts the next character. Four ranks, as two nodes of two, train it from
the same start: dense, with the defaults of `MSTopK` (error feedback, the momentum correction of the
optimizer's momentum, a warm-up), without the correction, and without error feedback. The last tenth
of the text is for validation.

The optimizer is SGD with momentum. AdamW (`--optimizer adamw --learning-rate 0.002`) divides by the
size of recent gradients, so a value that arrives late in one piece has less effect than one that
arrives little by little: error feedback cannot correct that.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tfdear.benchmarks import report

_CONTEXT = 32
_WIDTH = 64
_HEADS = 4
_BLOCKS = 1
_VALIDATION_WINDOWS = 512


def train(arguments) -> None:
    """One rank's work; rank 0 writes the validation perplexity after every epoch, by seed."""
    import tfdear

    strategy = tfdear.DearStrategy()
    curves = [learn(strategy, arguments, seed) for seed in range(1, arguments.seeds + 1)]
    if strategy.is_chief:
        pathlib.Path(arguments.result).write_text(json.dumps(curves))


def learn(strategy, arguments, seed: int) -> list[float]:
    """Trains once, with weights and windows of this seed; returns the perplexity of every epoch."""
    import keras
    import numpy as np

    from tfdear.benchmarks.ranks import learning_tasks
    from tfdear.benchmarks.ranks.learning_tasks import windows

    keras.utils.set_random_seed(seed)
    training, validation, alphabet = learning_tasks.load_text()
    random = np.random.RandomState(seed - 1)
    total = arguments.steps * arguments.epochs
    starts = random.randint(0, len(training) - _CONTEXT - 1, size=total * arguments.batch_size)
    space = np.linspace(0, len(validation) - _CONTEXT - 2, _VALIDATION_WINDOWS).astype(int)
    with strategy.scope():
        # 65 thousand weights: enough to learn the text.
        model = learning_tasks.make_transformer(alphabet, _CONTEXT, _WIDTH, _HEADS, _BLOCKS)
        rate = learning_tasks.cosine_decay(arguments.learning_rate, total)
        model.compile(
            keras.optimizers.AdamW(rate, weight_decay=0.01)
            if arguments.optimizer == "adamw"
            else keras.optimizers.SGD(rate, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    perplexities = []
    for of_epoch in np.split(starts, arguments.epochs):
        model.fit(
            *windows(training, of_epoch, _CONTEXT),
            batch_size=arguments.batch_size,
            shuffle=False,
            verbose=2 if strategy.is_chief else 0,
        )
        loss = model.evaluate(*windows(validation, space, _CONTEXT), batch_size=64, verbose=0)
        perplexities.append(math.exp(loss))
    return perplexities


# TFDEAR_COMPRESSION of each curve. The buckets of a model this small would by default be dense.
VARIANTS = {
    "dense": "None",
    "MSTopK": "MSTopK({density}, dense_below=0)",
    "without momentum correction": "MSTopK({density}, dense_below=0, momentum=0.0)",
    "without error feedback": "MSTopK({density}, dense_below=0, error_feedback=False)",
}


def run_variant(name: str, arguments: argparse.Namespace) -> list[list[float]]:
    """Trains one variant on four ranks; returns the perplexity after every epoch, by seed."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "perplexities.json"
        environment = {
            **os.environ,
            "TFDEAR_COMPRESSION": VARIANTS[name].format(density=arguments.density),
        }
        command = [sys.executable, "-m", "tfdear", "run", "-n", "4", "--nodes", "2", "--"]
        command += [__file__, "--result", str(result)]
        for option in ("optimizer", "steps", "epochs", "batch_size", "learning_rate", "seeds"):
            command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
        subprocess.run(command, env=environment, check=True)
        return json.loads(result.read_text())


def mean(perplexities: Sequence[float]) -> float:
    """The perplexity of the mean loss."""
    return statistics.geometric_mean(perplexities)


def draw(curves: dict[str, list[list[float]]], density: float, path: str) -> None:
    """Draws perplexity over epochs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for name, seeds in curves.items():
        perplexities = [mean(epoch) for epoch in zip(*seeds, strict=True)]
        axes.plot(range(1, len(perplexities) + 1), perplexities, label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation perplexity")
    axes.set_title(f"Small Transformer, 2 nodes x 2 ranks, density {density:g}")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000, help="steps per epoch (default 1000)")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks (default 64)")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each (default 1)")
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="default: all"
    )
    parser.add_argument("--json", help="file to write the numbers to")
    parser.add_argument("--plot", help="picture to draw")
    # One rank's work.
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.result:
        train(arguments)
        return
    curves = {name: run_variant(name, arguments) for name in arguments.variants}
    last = {name: [curve[-1] for curve in seeds] for name, seeds in curves.items()}
    dense = last.get("dense", [math.nan] * arguments.seeds)
    print(f"{'':<28}{'perplexity':>12}{'over dense':>12}  by seed")
    for name, perplexities in last.items():
        ratios = [p / d for p, d in zip(perplexities, dense, strict=True)]
        print(
            f"{name:<28}{mean(perplexities):>12.3f}{mean(perplexities) / mean(dense):>12.3f}  "
            + " ".join(f"{ratio:.3f}" for ratio in ratios)
        )
    if arguments.json:
        report.write(arguments.json, {"density": arguments.density, "perplexities": curves})
    if arguments.plot:
        draw(curves, arguments.density, arguments.plot)


if __name__ == "__main__":
    main()
