"""Runs pytest on request, each time in a fork: libraries are imported once, the package anew.

Reads one JSON object a line, {"arguments": [...], "output": PATH}, writes pytest's exit code. What the
first fork imported besides the package and its tests, the parent imports before the second.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import sysconfig
import traceback
from pathlib import Path

import pytest
import torch  # noqa: F401  what takes the time; its threads start later, in the forks

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def library_modules() -> list[str]:
    """Return the modules loaded here that a request cannot change."""
    found = [
        name
        for name, module in sys.modules.items()
        if (getattr(module, "__file__", "") or "").startswith(LIBRARIES)
    ]
    # pytest wants to be the one that imports its plugins.
    return sorted({*found} - {"__main__", "pytest_timeout"})


def main() -> None:
    """Serve until standard input ends."""
    warm = False
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
                Path(f"{request['output']}.modules").write_text(
                    "\n".join(library_modules()), encoding="utf-8"
                )
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                # Nothing of this process may run what the parent registered for its own end.
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if not warm:
            warm = True
            for name in Path(f"{request['output']}.modules").read_text(encoding="utf-8").split():
                # A part of a library that cannot stand without what its tests set up is left to the forks.
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
