# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that uses PyTorch with its Gloo backend."""

import collections.abc
import datetime
import functools
import os
import socket
import time

import bert_shapes  # type: ignore[import-not-found]
import sleeping  # type: ignore[import-not-found]
import torch
import torch.distributed
import torch.nn.parallel

_DRAIN_BYTES = 1 << 20
# As in keras_models.
_FIRST_STEPS = 2


def prepare(hostnames: list) -> dict:
    """Rank 0: what all ranks must know before they start."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return {"port": probe.getsockname()[1]}


def start(rank: int, addresses: list, hostnames: list, prepared: dict) -> str:
    """Joins the job."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{addresses[0]}:{prepared['port']}",
        rank=rank,
        world_size=len(addresses),
        timeout=datetime.timedelta(seconds=60),
    )
    return f"PyTorch {torch.__version__} (Gloo)"


def collective(name: str, nbytes: int, repeats: int) -> float:
    """Seconds per collective on `nbytes` bytes of float32."""
    world_size = torch.distributed.get_world_size()
    # Written, as by all others: memory that never was is read from one page.
    data = torch.zeros(nbytes // 4).fill_(0)
    shard = torch.zeros(nbytes // 4 // world_size).fill_(0)
    run = {
        "all_reduce": lambda: torch.distributed.all_reduce(data),
        "reduce_scatter": lambda: torch.distributed.reduce_scatter_tensor(shard, data),
        "all_gather": lambda: torch.distributed.all_gather_into_tensor(data, shard),
    }[name]
    # A barrier, and more than a shaped link lets through at once after a pause.
    torch.distributed.all_reduce(torch.zeros(_DRAIN_BYTES // 4))
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


class _SleepingLayer(torch.autograd.Function):
    """A layer that takes the time of a trace's layer and has a gradient."""

    @staticmethod
    def forward(context, device, times, value, weight):
        context.device, context.seconds = device, times[1]
        context.gradient = torch.ones_like(weight)
        device.compute(times[0])
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        context.device.compute(context.seconds)
        return None, None, gradient, context.gradient


class _SleepingModel(torch.nn.Module):
    def __init__(self, counts, times):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(count) for count in counts)
        self.times = times
        self.device = sleeping.Device()

    def forward(self, value):
        for weight, times in zip(self.weights, self.times, strict=True):
            value = _SleepingLayer.apply(self.device, times, value, weight)
        return value


def replay(counts: list, forward: list, backward: list, repeats: int) -> dict:
    """As in `with_tfdear`, with DistributedDataParallel and its defaults."""
    model = _SleepingModel(counts, list(zip(forward, backward, strict=True)))
    parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    device = model.device
    times, wall = [], []
    start_value = torch.zeros(1, requires_grad=True)
    # DistributedDataParallel arranges its buckets after the first iteration.
    for iteration in range(repeats + 2):
        if iteration <= 2:
            torch.distributed.barrier()
            device.restart()
            started = device.cursor
        begin = device.cursor
        output = parallel(start_value)
        output.backward()
        device.wait_until(time.monotonic())
        parallel.zero_grad()
        times.append(device.cursor - begin)
        device.restart()
        wall.append(device.cursor - started)
        started = device.cursor
    return {"device": times[2:], "wall": wall[2:]}


class _Bert(torch.nn.Module):
    """BERT's word embedding, blocks and pooler, with one output per example."""

    def __init__(self, blocks: int, width: int, heads: int):
        super().__init__()
        self.embedding = torch.nn.Embedding(bert_shapes.VOCABULARY, width)
        self.normalization = torch.nn.LayerNorm(width)
        block = torch.nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.pooler = torch.nn.Linear(width, width)
        self.output = torch.nn.Linear(width, 10)

    def forward(self, tokens):
        value = self.encoder(self.normalization(self.embedding(tokens)))
        return self.output(torch.tanh(self.pooler(value[:, 0])))


def _vgg_16():
    """VGG-16 for inputs of 64 x 64, without dropout, as Keras makes it."""
    import torchvision

    model = torchvision.models.vgg16(num_classes=10, dropout=0.0)
    model.avgpool = torch.nn.Identity()
    model.classifier[0] = torch.nn.Linear(512 * 2 * 2, 4096)
    return model


_trained: dict = {}


def build(model: str, batch_size: int) -> int:
    """Makes a model to train. Returns the bytes of its gradients."""
    import torchvision

    makers: dict[str, collections.abc.Callable] = {
        "resnet-50": lambda: torchvision.models.resnet50(num_classes=10),
        "densenet-201": lambda: torchvision.models.densenet201(num_classes=10),
        "vgg-16": _vgg_16,
        **{name: functools.partial(_Bert, *sizes) for name, sizes in bert_shapes.MODELS.items()},
    }
    if model in bert_shapes.MODELS:
        inputs = torch.randint(0, bert_shapes.VOCABULARY, [batch_size, bert_shapes.SEQUENCE])
    else:
        inputs = torch.rand(batch_size, 3, 64, 64)
    labels = torch.randint(0, 10, [batch_size])
    for mode in ("together", "alone"):
        trained = makers[model]()
        if mode == "together":
            trained = torch.nn.parallel.DistributedDataParallel(
                trained, gradient_as_bucket_view=True
            )
        optimizer = torch.optim.SGD(trained.parameters(), 0.001, momentum=0.9)
        _trained[mode] = (trained, optimizer, inputs, labels)
    return sum(parameter.numel() * 4 for parameter in trained.parameters())


def train(mode: str, steps: int) -> float:
    """Seconds per step, "together" with the other ranks or "alone"."""
    model, optimizer, inputs, labels = _trained[mode]
    for step in range(_FIRST_STEPS + steps):
        if step == _FIRST_STEPS:
            begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return (time.perf_counter() - begin) / steps
