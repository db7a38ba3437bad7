"""A worker process of a panel study: as `fints.study.worker`, for fits that simulate their own panel.

Lines of JSON both ways. The first line in names the folder, each further one a fit; the end of the input (the
parent has ended, however it ended) ends the worker at once.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Serve fits until the input ends."""
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()

    def say(event: str, **facts: Any) -> None:
        answers.write(json.dumps({"event": event, **facts}) + "\n")

    start = json.loads(lines.get())
    folder = Path(start["folder"])
    from filelock import FileLock

    from fints.study.panel_cells import PanelFit
    from fints.study.panel_fits import run_panel_job

    with FileLock(folder / "locks" / f"worker-{start['slot']}.lock"):
        say("ready")
        while True:
            cell = PanelFit(**json.loads(lines.get()))
            try:
                run_panel_job(cell, tmp=folder / "tmp", fits=folder / "fits")
            except Exception as error:
                traceback.print_exc()
                say("failed", key=cell.key, error=f"{type(error).__name__}: {error}".splitlines()[0])
            else:
                say("done", key=cell.key)


def _read(lines: queue.Queue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
