# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Random planning problems for the tests of schedules and planners."""

from tfdear.planning import cost_model
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.trace import Layer, Trace


def random_instance(random, layers: int) -> tuple[Trace, CommunicationCosts]:
    """A model with unlike layers, some without computation, and a network of like speed."""

    def seconds(mean):
        return random.choice([random.expovariate(1 / mean), random.expovariate(1 / mean), 0.0])

    trace = Trace(
        "random",
        tuple(
            Layer(str(i), int(10 ** random.uniform(0, 3)), seconds(1.0), seconds(2.0))
            for i in range(layers)
        ),
    )
    per_byte = (trace.forward + trace.backward + 0.1) / trace.bytes * 10 ** random.uniform(-1, 1)
    startup = 10 ** random.uniform(-2, 0.5)

    def half():
        return LinearCost(
            startup * random.uniform(0.5, 1) / 2, per_byte * random.uniform(0.5, 1) / 2
        )

    scatter, gather = half(), half()
    return trace, CommunicationCosts(
        scatter, gather, LinearCost(scatter.a + gather.a, scatter.b + gather.b)
    )


def realistic_instance(random) -> tuple[Trace, CommunicationCosts]:
    """A model as they are trained: many tensors of all sizes, start-ups of a network of today.

    Communication takes a quarter to four times of computation, an iteration 50 ms to a second, a
    start-up 20 to 300 microseconds.
    """
    count = random.randint(10, 200)
    computation = 10 ** random.uniform(-1.3, 0)
    layers = []
    for i in range(count):
        work = random.expovariate(1)
        size = int(10 ** random.uniform(2.5, 7))
        layers.append(Layer(str(i), size, work, work * random.uniform(1.5, 2.5)))
    trace = Trace("realistic", tuple(layers))
    trace = trace.scaled(computation / (trace.forward + trace.backward))
    line = computation * 10 ** random.uniform(-0.6, 0.6)
    share = random.uniform(0.4, 0.6)
    scatter = LinearCost(10 ** random.uniform(-4.7, -3.5), share * line / trace.bytes)
    gather = LinearCost(scatter.a * random.uniform(0.5, 1), (1 - share) * line / trace.bytes)
    return trace, CommunicationCosts(
        scatter, gather, LinearCost(scatter.a + gather.a, scatter.b + gather.b)
    )


def random_buckets(random, layers: int) -> list[list[int]]:
    """A random bucket list."""
    return merge(layers, [random.random() < 0.5 for _ in range(layers - 1)])


def all_bucket_lists(layers: int):
    """All 2^(layers - 1) of them."""
    for mask in range(1 << (layers - 1)):
        yield merge(layers, [bool(mask >> i & 1) for i in range(layers - 1)])


def merge(layers: int, cut_before: list[bool]) -> list[list[int]]:
    """The bucket list with a cut in front of layer i + 1 where `cut_before[i]`."""
    buckets: list[list[int]] = [[]]
    for layer in reversed(range(layers)):
        buckets[-1].append(layer)
        if layer and cut_before[layer - 1]:
            buckets.append([])
    return buckets


def resembling(kind: str, tensors: int, ratio: float, startups: float):
    """A big model: communication takes `ratio` of computation, start-ups `startups` of it."""
    layers = []
    for i in range(tensors):
        if kind == "transformer":  # A large embedding in front, matrices and many small vectors.
            size = (3072, 3072, 3072, 2359296, 2359296, 9437184)[i % 6] if i else 93 << 20
        elif kind == "convolutional":  # Kernels that grow towards the end, scales and offsets.
            size = int(2000 * 1.01**i) if i % 3 == 0 else 1024
        else:
            size = 1 << 20
        layers.append(Layer(str(i), size, 1.0 + i % 5, 2.0 + 2 * (i % 7)))
    trace = Trace(kind, tuple(layers))
    trace = trace.scaled(0.3 / (trace.forward + trace.backward))
    half = LinearCost(startups * 0.3 / tensors / 2, ratio * 0.3 / trace.bytes / 2)
    return trace, cost_model.CommunicationCosts(half, half, LinearCost(2 * half.a, 2 * half.b))
