# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Starts a job in which one rank is killed on its way: dying_start.py PHASE VICTIM."""

import os
import signal
import sys
import time

import tfdear
from tfdear.engine import process_group
from tfdear.job import link_costs, seeds
from tfdear.rendezvous import start

PHASE, VICTIM = sys.argv[1], int(sys.argv[2])
# The call in which the victim dies.
PLACES = {
    # It has announced itself; the meeting goes on.
    "announced": (start.Meeting, "_agree"),
    # All ranks have agreed to start, and ask who rank 0 is.
    "agreed": (start.Meeting, "_read_rank_0"),
    # The others have this rank's addresses, and connect to it.
    "groups": (process_group.ProcessGroup, "connect"),
    "memory": (process_group.ProcessGroup, "probe"),
    "seeds": (seeds, "share"),
    "links": (link_costs, "_alone"),
}


def die(*arguments, **_):
    if PHASE == "announced" and VICTIM == 0:
        # Nobody can tell a rank 0 that was not reached yet from one that is late.
        store = arguments[0].store
        while len(store.told("start/rank")) < 3:
            time.sleep(0.01)
    print("dies now", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if int(os.environ["TFDEAR_RANK"]) == VICTIM:
    owner, name = PLACES[PHASE]
    assert hasattr(owner, name)
    setattr(owner, name, die)
tfdear.DearStrategy()
print("the job stands", flush=True)
