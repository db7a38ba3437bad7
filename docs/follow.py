"""Follow a page of this documentation word by word: write its files, run its commands, compare the output.

    python docs/follow.py docs/tutorial.md --fresh      # a copy of this clone, an environment of its own
    python docs/follow.py docs/your-own-scheme.md       # an empty folder, the environment that runs this

What a reader does, in the order of the page: a block after "Save this as `NAME`" becomes that file; a ``sh``
block is run by bash, in the folder and with the variables that the one before it left; a ``python`` block is
run as a script; a ``text`` block is what the block before it prints, where a line ``...`` stands for any
lines and ``...`` in a line for any words. A last line ``^C`` is Ctrl-C, pressed once all above it has been
printed. Blocks of another kind, or of none, are not run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "Reader", "blocks", "commands_outside_installation", "shown"]

ROOT = Path(__file__).resolve().parent.parent
# For a hang: an installation takes minutes, and a loaded machine its time.
PATIENCE_S = 1200.0
SAVE = re.compile(r"[Ss]ave\s+(?:this|it|the\s+file)\s+as\s+`([\w./-]+)`")
# What makes an environment; left out where one is there already.
INSTALLATION = re.compile(r"^(python3 -m venv|source \.venv/|pip install)\b")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line where it begins, and the file it is to become."""

    language: str
    text: str
    line: int
    file: str | None


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        before = page[: match.start()].rstrip().rpartition("\n\n")[2]
        file = None if "```" in before else (SAVE.findall(before) or [None])[-1]
        found.append(Block(match[1], match[2], page.count("\n", 0, match.start()) + 1, file))
    return found


def shown(expected: str) -> re.Pattern[str]:
    """Return the pattern of what a ``text`` block shows."""
    lines = [
        r"(?:[^\n]*\n)*?"
        if line.strip() == "..."
        else r"[^\n]*?".join(map(re.escape, line.rstrip().split("..."))) + r"[ \t]*\n"
        for line in expected.splitlines()
    ]
    return re.compile("".join(lines))


def commands_outside_installation(text: str) -> str:
    """Return the commands of a block without those that make an environment."""
    return "".join(line for line in text.splitlines(keepends=True) if not INSTALLATION.match(line))


class Reader:
    """Somebody at a shell, in a folder, who types what a page says.

    Parameters
    ----------
    folder : Path
        Where the reader stands at the beginning.
    environment : dict
        The variables of the reader's shell.
    installs : bool
        Whether commands that make an environment are typed too.
    """

    def __init__(self, folder: Path, environment: dict[str, str], *, installs: bool) -> None:
        self._state = Path(tempfile.mkdtemp(prefix="fints-follow-"))
        (self._state / "folder").write_text(f"{folder}\n")
        self._environment = environment
        self._installs = installs

    def follow(self, page: str) -> Iterator[tuple[Block, float]]:
        """Do what the page says; give each block that was run, with the seconds it took.

        Raises
        ------
        RuntimeError
            If a command fails, or prints something else than the page shows.
        """
        every = blocks(page)
        for block, after in zip(every, [*every[1:], None], strict=True):
            expected = after.text if after is not None and after.language == "text" else None
            clock = time.monotonic()
            if block.file is not None:
                (self.folder / block.file).write_text(block.text, encoding="utf-8")
            elif block.language == "sh":
                code = block.text if self._installs else commands_outside_installation(block.text)
                self._type(code, expected, block)
            elif block.language == "python":
                (self._state / "block.py").write_text(block.text, encoding="utf-8")
                self._type(f"python {shlex.quote(str(self._state / 'block.py'))}\n", expected, block)
            else:
                continue
            yield block, time.monotonic() - clock

    @property
    def folder(self) -> Path:
        """Where the reader stands."""
        return Path((self._state / "folder").read_text().rstrip("\n"))

    def close(self) -> None:
        """Forget the reader's shell."""
        shutil.rmtree(self._state, ignore_errors=True)

    def _type(self, code: str, expected: str | None, block: Block) -> None:
        kept = {name: shlex.quote(str(self._state / name)) for name in ("variables", "folder")}
        script = (
            f"set -eo pipefail\n[ ! -f {kept['variables']} ] || source {kept['variables']}\n"
            f'cd "$(cat {kept["folder"]})"\n{code}\n'
            f"declare -px > {kept['variables']}\npwd > {kept['folder']}\n"
        )
        stops = expected is not None and expected.rstrip().endswith("^C")
        wanted = None if expected is None else shown(expected.rstrip().removesuffix("^C"))
        printed: list[str] = []
        said = self._state / "stderr"
        with said.open("w") as errors:
            process = subprocess.Popen(
                ["bash", "-c", script],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                # As in a terminal; what is started in the background is told to ignore Ctrl-C.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        assert process.stdout is not None
        hang = threading.Timer(PATIENCE_S, lambda: os.killpg(process.pid, signal.SIGKILL))
        hang.start()
        try:
            for line in process.stdout:
                printed.append(line)
                if stops and wanted is not None and wanted.match("".join(printed)):
                    stops = False
                    os.killpg(process.pid, signal.SIGINT)
            code_ended = process.wait()
        finally:
            hang.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        output = "".join(printed)
        place = f"the block at line {block.line}"
        told = f"It printed:\n{output}\n{said.read_text(errors='replace')[-3000:]}"
        if code_ended:
            raise RuntimeError(f"{place} ended with code {code_ended}.\n{block.text}{told}")
        pressed = expected is not None and expected.rstrip().endswith("^C")
        if stops or (wanted is not None and not pressed and not wanted.fullmatch(output)):
            raise RuntimeError(f"{place} must print what the page shows:\n{expected}{told}")


def main() -> int:
    """Follow one page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument(
        "--fresh", action="store_true", help="in a copy of the clone, installing as the page says"
    )
    given = parser.parse_args()
    page = given.page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="fints-reader-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        folder = copy_of_the_clone(place / "fints") if given.fresh else place
        reader = Reader(folder, environment(place, fresh=given.fresh), installs=given.fresh)
        clock = time.monotonic()
        try:
            for block, seconds in reader.follow(page):
                first = f"save {block.file}" if block.file else block.text.strip().splitlines()[0]
                print(f"line {block.line:4d} {seconds:7.1f} s  {first}", flush=True)
        except RuntimeError as error:
            print(f"error: {given.page}: {error}", file=sys.stderr)
            return 1
        finally:
            reader.close()
    print(f"{given.page.name} was followed in {time.monotonic() - clock:.0f} s")
    return 0


def environment(place: Path, *, fresh: bool) -> dict[str, str]:
    """Return the variables of a reader's shell: nothing of fints, and this Python as python3 or python."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FINTS_", "MLFLOW_", "PYTEST_", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"))
    }
    programs = place / "bin"
    programs.mkdir(exist_ok=True)
    if fresh:
        # The versions of the lock; a reader gets the newest that the ranges allow.
        variables["PIP_CONSTRAINT"] = str(ROOT / "requirements.lock")
        _program(programs / "python3", [sys._base_executable])
    else:
        _program(programs / "python", [sys.executable])
        _program(programs / "fints", [sys.executable, "-m", "fints"])
        variables["FINTS_HOME"] = str(place / "home")
        variables["PYTHONPATH"] = str(ROOT)
    return {**variables, "PATH": f"{programs}{os.pathsep}{variables['PATH']}"}


def copy_of_the_clone(folder: Path) -> Path:
    """Copy the files that git knows, or would take, to a folder and return it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _program(path: Path, words: list[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
