# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Errors of tfdear's own."""

__all__ = [
    "JobAbortedError",
    "MismatchError",
    "PeerError",
    "RendezvousError",
    "RendezvousTimeoutError",
    "StoreUnavailableError",
    "TfdearError",
]


class TfdearError(RuntimeError):
    """Base class of every error that is specific to tfdear.

    Catch it to tell a problem of the job (a rank that is missing, ranks that disagree) from a
    problem of the model. Errors of collectives that run inside a TensorFlow graph arrive as
    `tf.errors.OpError`, because TensorFlow carries them; their text is the same.
    """

    # What happened, in the engine's terms (see `diagnosis.Cause`); empty for errors of Python.
    kind = ""


class StoreUnavailableError(TfdearError):
    """Rank 0's service, through which the ranks meet, did not answer.

    Args:
        message: What was asked and what came back.
        refused: True when nothing listens there, or the connection was closed; False when no answer
            came in time.
    """

    def __init__(self, message: str, refused: bool = False):
        super().__init__(message)
        self.refused = refused


class PeerError(TfdearError):
    """A rank cannot be connected to, or does not connect, within the timeout.

    Args:
        message: What was tried, and what came of it.
        peer: That rank.
    """

    def __init__(self, message: str, peer: int):
        super().__init__(message)
        self.peer = peer


class RendezvousError(TfdearError):
    """The ranks could not come together at the start of the job."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """A rank did not come, or a value was not published, before a deadline."""


class MismatchError(RendezvousError):
    """The ranks came together but do not run the same thing (versions, world size, backend)."""


class JobAbortedError(TfdearError):
    """The job was aborted while this rank waited; the message names the rank that caused it."""
