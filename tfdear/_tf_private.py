# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Every private TensorFlow name that tfdear uses, each with its reason.

A strategy cannot be written on TensorFlow's public API alone: the base classes that `tf.distribute`
itself builds on are private. Keeping all such imports here shows what a new TensorFlow release has
to be checked for.
"""

# ruff: noqa: F401

# Base class of `strategy.extended`, replica contexts and update scopes: the strategy contract.
# --- Rendezvous and liveness (rendezvous.py) ---
# Starts TensorFlow's server with the coordination service, which has no public entry point.
# Its `TFE_EnableCollectiveOps` is replaced, while it runs once, by one that frees the interpreter.
from tensorflow.python import pywrap_tfe

# The reduction that `all_reduce` is asked for (SUM or MEAN).
from tensorflow.python.distribute import distribute_lib, reduce_util

# The seed of the whole program, to give all ranks the same one.
from tensorflow.python.eager import context

# The graph that ops are added to while a function is traced.
# Turns a status code of TensorFlow's C API into the exception that Python would have raised.
from tensorflow.python.framework import errors_impl, ops

# Base class of the variables that reads wait on.
# Tells whether ops are being built for XLA, which cannot compile collectives of this package.
from tensorflow.python.ops import control_flow_util, resource_variable_ops

# The step that writes a SavedModel's graph, where await ops are taken out.
from tensorflow.python.saved_model import save as saved_model_save

# True while TensorFlow builds the graph of a SavedModel.
from tensorflow.python.saved_model import save_context

# Initial values that come out of a checkpoint, which must not be broadcast.
from tensorflow.python.trackable import base as trackable
