# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""One rank of a benchmark: main.py FRAMEWORK. Reads calls as lines of JSON, answers each by a line.

Runs in the environment of the framework, also where tfdear is not installed: it needs the standard
library only, and finds the module FRAMEWORK in its own folder, whose functions are what can be
called. Ends when its input ends, so that no rank outlives the program that started it.
"""

import importlib
import json
import os
import sys
import traceback


def main() -> None:
    """Answers calls until the input ends."""
    # Frameworks write to the standard output, which therefore goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    framework = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["method"] == "load":
                if request["arguments"]["cores"]:
                    os.sched_setaffinity(0, request["arguments"]["cores"])
                framework = importlib.import_module(sys.argv[1])
                result = None
            else:
                result = getattr(framework, request["method"])(**request["arguments"])
            answer = {"result": result}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
    # Skips the frameworks' exit handlers, which wait for the other ranks.
    os._exit(0)


if __name__ == "__main__":
    main()
