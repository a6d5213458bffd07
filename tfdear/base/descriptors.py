# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How many files and connections this process may have open."""

import resource

# More than ranks of any job need; some programs go through all that may be open.
_MOST = 65536


def raise_limit() -> None:
    """Takes what a process may take by itself: a rank has several connections to each other one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """How many may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft
