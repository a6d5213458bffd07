# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A machine with GPUs says once that they are not used."""

import pytest
import tensorflow as tf

import tfdear
from tfdear.strategy import unused_devices

CPU = tf.config.PhysicalDevice("/physical_device:CPU:0", "CPU")
GPUS = [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(2)]


@pytest.fixture
def warnings(monkeypatch):
    heard = []
    monkeypatch.setattr(
        unused_devices.logging, "warning", lambda text, *values: heard.append(text % values)
    )
    return heard


def test_nothing_is_said_of_a_cpu():
    assert unused_devices.warning_text([]) is None
    assert unused_devices.warning_text([CPU]) is None


def test_it_says_what_is_seen_and_what_to_do():
    message = unused_devices.warning_text([CPU, *GPUS])
    assert message.startswith(
        "TensorFlow sees GPU:0, GPU:1, but this build of tfdear trains on the"
    )
    assert "MultiWorkerMirroredStrategy" in message and "CUDA_VISIBLE_DEVICES=-1" in message


def test_rank_0_alone_says_it(warnings):
    unused_devices.warn(1, [CPU, *GPUS])
    assert not warnings
    unused_devices.warn(0, [CPU, *GPUS])
    assert len(warnings) == 1


def test_one_process_says_it_too(warnings, monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda: [CPU, *GPUS])
    tfdear.DearStrategy()
    assert [text for text in warnings if "GPU:0, GPU:1" in text]
