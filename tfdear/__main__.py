# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`python -m tfdear`: the command line, without the script that pip installs."""

import sys

from tfdear.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
