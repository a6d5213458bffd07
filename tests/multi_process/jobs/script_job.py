# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Runs a script as `lab_ranks.run` runs a job, whose first argument is the device of its node."""

import pathlib
import runpy
import sys

sys.argv[:] = sys.argv[2:]
sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
