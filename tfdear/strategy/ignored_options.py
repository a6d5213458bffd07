# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Says once, in a warning, that an option of `tf.distribute` has no effect under DearStrategy."""

import os
from typing import Any, TypeAlias

import tensorflow as tf
from absl import logging

Options: TypeAlias = (
    tf.distribute.RunOptions
    | tf.distribute.InputOptions
    | tf.distribute.experimental.CommunicationOptions
)

_ALTERNATIVES = {
    "RunOptions": "They are for TPUs and shapes that XLA compiles.",
    "InputOptions": "A process has one device, the CPU, to which its data need not be copied.",
    "Options": (
        "Use the options of DearStrategy: `fusion` in place of `bytes_per_pack`, `timeout` in "
        "place of `timeout_seconds`, `backend` in place of `implementation`."
    ),
}
_warned: set[str] = set()


def warn(options: Options | None) -> None:
    """Warns, once for each kind, of options that differ from their defaults."""
    changed = [] if options is None else _changed(options)
    kind = type(options).__name__
    if not changed or kind in _warned:
        return
    _warned.add(kind)
    what = ", ".join(f"{name}={value!r}" for name, value in changed)
    name = "CommunicationOptions" if kind == "Options" else kind
    logging.warning(
        "tfdear: %s has no effect under DearStrategy: %s. %s",
        name,
        what,
        _ALTERNATIVES.get(kind, ""),
    )


def _changed(options: Options) -> list[tuple[str, Any]]:
    names = getattr(options, "_fields", None) or tuple(vars(options))
    default = type(options)()
    given = [(name, getattr(options, name)) for name in names]
    return [(name, value) for name, value in given if value != getattr(default, name)]


def warn_of_records(*variables: str) -> None:
    """Warns of environment variables that ask for a record of communication, where none is."""
    for name in variables:
        if os.environ.get(name):
            logging.warning(
                "tfdear: %s=%s has no effect: one process does not communicate, so nothing is "
                "recorded. Start several ranks: tfdear run -n 2 ...",
                name,
                os.environ[name],
            )
