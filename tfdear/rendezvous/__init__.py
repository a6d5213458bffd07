# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the ranks meet, and who they are."""

import os

# gRPC reads both when it is imported, which modules of this package do. Its fork handlers print a
# notice at every fork of a process that has an open channel; a child never uses the channel here,
# so they have nothing to do. And a stranger that is turned away is no news.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
