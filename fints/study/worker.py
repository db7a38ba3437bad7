"""A worker process: reads cells from standard input, fits one at a time, dies with its parent.

Lines of JSON both ways. The first line in names the dataset (and how often to give a sign of life, if
anybody wants to know), each further one a cell; the end of the input (the parent has ended, however it
ended) ends the worker at once.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from fints.study.fits import Cell, run_job

__all__ = ["main"]

# Less than any fit writes.
LEAST_FREE_BYTES = 16_384


def main() -> None:
    """Serve cells until the input ends."""
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()

    one_at_a_time = threading.Lock()

    def say(event: str, **facts: Any) -> None:
        with one_at_a_time:
            answers.write(json.dumps({"event": event, **facts}) + "\n")

    def give_signs_of_life(interval: float) -> None:
        while True:
            time.sleep(interval)
            say("alive")

    start = json.loads(lines.get())
    if interval := start.get("beats"):
        threading.Thread(target=give_signs_of_life, args=(interval,), daemon=True).start()
    folder = Path(start["folder"])
    from filelock import FileLock

    # Loaded before the first cell, so that no fit's time holds it.
    import fints.forecaster  # noqa: F401
    from fints.study.dataset import open_dataset

    with FileLock(folder / "locks" / f"worker-{start['slot']}.lock"):
        dataset = open_dataset(start["dataset"], opens_seal=start["opens_seal"])
        if dataset.checksum != start["checksum"]:
            say("unusable", error=f"dataset {start['dataset']!r} has changed since the run began; run again.")
            return
        say("ready")
        while True:
            cell = Cell(**json.loads(lines.get()))
            try:
                run_job(
                    cell,
                    dataset.panel,
                    signal=dataset.signal,
                    tmp=folder / "tmp",
                    fits=folder / "fits",
                    checkpoints=folder / "checkpoints",
                    keep_weights=start["keep_weights"],
                )
            except Exception as error:
                traceback.print_exc()
                line = f"{type(error).__name__}: {error}".splitlines()[0]
                say("failed", key=cell.key, error=line, full=_is_full(error, folder))
            else:
                say("done", key=cell.key)


def _is_full(error: Exception, folder: Path) -> bool:
    """Tell whether the disk is to blame, which is no failure of the cell."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # Polars and torch tell it in words of their own.
    return "No space left on device" in str(error) or shutil.disk_usage(folder).free < LEAST_FREE_BYTES


def _read(lines: queue.Queue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
