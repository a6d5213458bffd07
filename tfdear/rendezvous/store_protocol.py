# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What rank 0's service and its clients agree on: names, messages, and what is told to whom."""

from __future__ import annotations

import json
from typing import Any

SERVICE = "tfdear.Store"
# Keys with which a job ends; below the first, each rank says that it comes to its end.
ENDED, ALL_ENDED = "job/ended", "job/all_ended"
_MOST_BYTES = 64 << 20  # Of a message: far above what ranks send, far below what hurts.
_PULSE_SECONDS = 1.0
_MOST_PULSES = 250  # A second, of all ranks: rank 0 hears them beside its script.


def encode(message: Any) -> bytes:
    """A message as it travels."""
    return json.dumps(message).encode()


def decode(data: bytes) -> Any:
    """What `encode` was given."""
    return json.loads(data)


def is_pushed(key: str, rank: int) -> bool:
    """Whether a rank is told of a new value without asking.

    All hear of what ends a wait or the job. Rank 0 alone collects what each rank has to say.
    """
    to_all = ("start/verdict", "monitor/", "lost/", "exchanged/", ALL_ENDED)
    to_rank_0 = ("start/", "exchange/", ENDED + "/")
    return key.startswith(to_all) or (rank == 0 and key.startswith(to_rank_0))


def pulse_seconds(heartbeat: float, world_size: int) -> float:
    """Seconds between two signs of life of a script; see [Note: signs of life] for the others."""
    return min(heartbeat / 4, max(_PULSE_SECONDS, world_size / _MOST_PULSES))


def options(heartbeat: float) -> list[tuple[str, int]]:
    """What both ends tell gRPC; see [Note: signs of life]."""
    half = max(1, int(heartbeat * 1000 / 2))
    return [
        ("grpc.max_receive_message_length", _MOST_BYTES),
        ("grpc.max_send_message_length", _MOST_BYTES),
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        # Without it, gRPC waits a minute for the answer to a ping, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", half),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Pings that measure the line: messages are too short to need it.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", half // 2),
    ]
