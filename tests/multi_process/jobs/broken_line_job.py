# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sums 64 MiB again and again until that fails; notes when it did, and with which words."""

import json
import pathlib
import sys
import time

import tensorflow as tf

import tfdear

folder = pathlib.Path(sys.argv[2])
strategy = tfdear.DearStrategy()
values = tf.ones([16 << 20])
strategy.all_reduce(tf.ones([1]))
(folder / f"ready_{strategy.rank}").touch()
try:
    while True:
        strategy.all_reduce(values)
except Exception as error:
    raised = {"time": time.monotonic(), "error": str(error)}
    (folder / f"raised.{strategy.rank}").write_text(json.dumps(raised))
    raise
