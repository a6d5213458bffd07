# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a job listen for data, and whether it makes sense to wait for them."""

from __future__ import annotations

from tfdear import errors
from tfdear.engine.engine import Engine
from tfdear.rendezvous.rendezvous import Rendezvous


class PeerDirectory:
    """`data_connections.Directory` of a job."""

    def __init__(self, meeting: Rendezvous, engine: Engine):
        self._meeting = meeting
        self._engine = engine
        self.world_size = meeting.world_size
        self.number = meeting.number
        self.publish = meeting.publish
        self.look_up = meeting.look_up

    def check(self, rank: int) -> None:
        """Raises when the job has ended, or this rank will not come any more."""
        self._meeting.check_alive()
        cause = self._engine.aborted()
        if cause is not None:
            raise errors.JobAbortedError(cause)
        if self._meeting.has_left(rank):
            raise errors.PeerError(
                f"{self._meeting.describe(rank)} has left the job: its script has ended", rank
            )
