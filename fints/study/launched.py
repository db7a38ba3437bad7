"""What an engine runs for each worker it was asked for: ``fints worker`` in a process that dies with the job.

The order comes by standard input, so that no address stands in a command line, an environment that a
dashboard shows, or a log. The end of the input (the job has ended, however it ended) is a SIGTERM to the
worker, which gives back what it had begun.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from fints.study.addresses import without_secrets

__all__ = ["main", "serve"]

# As long as a worker may take to give back its cells and end its record in MLflow.
LEAVE_S = 60.0
LOOK_S = 0.5


def serve(order: dict[str, Any], stopped: Callable[[], bool]) -> dict[str, Any]:
    """Run a worker until it ends, or is `stopped`, and return its exit code and last words.

    Parameters
    ----------
    order : Order
        As `fints.study.launch.order_of` makes it.
    stopped : callable
        Tells whether it is to end early.
    """
    with tempfile.TemporaryFile() as said:
        # In a session of its own, so that whatever signals the job's processes leaves the worker's end to us.
        process = subprocess.Popen(
            [sys.executable, "-m", "fints.study.launched"],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        shown = 0
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            while process.poll() is None and not stopped():
                time.sleep(LOOK_S)
                shown = _show(said, shown)
        except BrokenPipeError:
            # It has ended before it read a word; what it said tells why.
            pass
        finally:
            _end(process)
            _show(said, shown)
        addresses = order["environment"].values()
        return {"code": process.returncode, "said": without_secrets(_last_words(said), *addresses)}


def main() -> None:
    """Read an order and be a worker."""
    source = os.fdopen(os.dup(0), "r", encoding="utf-8")
    order = json.loads(source.readline())
    os.environ.update(order["environment"])
    told = threading.Event()

    def leave() -> None:
        # A second signal would end the worker before it has given anything back.
        if not told.is_set():
            told.set()
            os.kill(os.getpid(), signal.SIGTERM)

    def wait_for_the_end() -> None:
        source.read()
        leave()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    # How Slurm, asked by submitit, says that the time is nearly up; the job ends right after.
    signal.signal(signal.SIGUSR2, lambda number, frame: leave())
    sys.argv = ["fints", "worker", "--study", order["study"]]
    if order["scratch"]:
        sys.argv += ["--scratch", order["scratch"]]
    runpy.run_module("fints", run_name="__main__")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _show(said: IO[bytes], shown: int) -> int:
    """Hand on to the job's log what is new, and return how much has been shown."""
    fresh = os.pread(said.fileno(), os.fstat(said.fileno()).st_size - shown, shown)
    sys.stdout.write(fresh.decode(errors="replace"))
    sys.stdout.flush()
    return shown + len(fresh)


def _last_words(said: IO[bytes]) -> str:
    """Return the error at the end of what was said, or else the last line, in one line."""
    size = os.fstat(said.fileno()).st_size
    lines = os.pread(said.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").splitlines()
    lines = [" ".join(line.split()) for line in lines if line.strip()]
    errors = [place for place, line in enumerate(lines) if line.startswith("error:")]
    return " ".join(lines[errors[-1] :] if errors else lines[-1:])


if __name__ == "__main__":
    main()
