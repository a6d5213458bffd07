# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Says that a machine has accelerators which this build does not use."""

from collections.abc import Sequence

import tensorflow as tf
from absl import logging


def warn(rank: int, devices: Sequence[tf.config.PhysicalDevice]) -> None:
    """Warns on rank 0 if TensorFlow sees accelerators among the visible devices."""
    message = warning_text(devices)
    if message and rank == 0:
        logging.warning("tfdear: %s", message)


def warning_text(devices: Sequence[tf.config.PhysicalDevice]) -> str | None:
    """The warning for a list of devices, None if there are CPUs only."""
    unused = [device for device in devices if device.device_type != "CPU"]
    if not unused:
        return None
    names = ", ".join(device.name.removeprefix("/physical_device:") for device in unused)
    return (
        f"TensorFlow sees {names}, but this build of tfdear trains on the CPU, on every rank. To "
        "train on GPUs, use tf.distribute.MultiWorkerMirroredStrategy. If the CPU is meant, hide "
        "the GPUs with CUDA_VISIBLE_DEVICES=-1: TensorFlow then takes none of their memory, "
        "and this warning goes away."
    )
