"""Runs pytest on request, each time in a fork: torch is imported once, the package anew.

Reads one JSON object a line, {"arguments": [...], "output": PATH}, writes pytest's exit code.
"""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch  # noqa: F401  what takes the time; its threads start later, in the forks


def main() -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            with open(request["output"], "w", encoding="utf-8") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            code = 70
            try:
                code = int(pytest.main(request["arguments"]))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                # Nothing of this process may run what the parent registered for its own end.
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
