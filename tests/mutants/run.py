"""Plant wrong implementations and see the tests catch them: `python tests/mutants/run.py`.

Each mutant is a textual patch to a temporary copy of the package; the working tree is never
touched. A mutant is killed when a test it names fails on the patched copy; every named test must
pass on the unpatched one, and a patch that no longer applies is an error, not a survivor.

The mutants are those of the tuple MUTANTS in every other file of this folder, one file a family of
schemes. Prints one line a mutant and `killed/planted`; exit code 0 only if all are killed.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
# The folder is no package: tests that load this file by its path find its neighbours here.
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))

from mutant import Mutant  # noqa: E402


def gathered() -> tuple[Mutant, ...]:
    """Return the mutants of every file beside this one."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("test_"))
    modules = [importlib.import_module(name) for name in names if name not in ("run", "mutant", "serve")]
    return tuple(mutant for module in modules for mutant in module.MUTANTS)


MUTANTS = gathered()
# The tests that mutants may name, each folder with its own conftest.
TESTED = ("residual", "model", "training")


def copy_of_the_package(folder: Path) -> None:
    """Copy what the named tests need, and nothing that an earlier run left behind."""
    shutil.copytree(ROOT / "fints", folder / "fints", ignore=shutil.ignore_patterns("__pycache__"))
    for name in TESTED:
        shutil.copytree(
            ROOT / "tests" / name,
            folder / "tests" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copy(ROOT / "pyproject.toml", folder)


def compiled(folder: Path) -> None:
    """Compile the copy once; a file is compiled again where its bytes, not its date, are other ones."""
    compileall.compile_dir(folder / "fints", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


class Tester:
    """Runs tests of the copy in `folder`, which comes first on the path."""

    def __init__(self, folder: Path) -> None:
        environment = {
            **os.environ,
            # Options for the tests of the house are unknown in the copy, which has no conftest.
            "PYTEST_ADDOPTS": "",
            # No plugin but the one that pyproject.toml has a setting of: each fork would load them all.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(folder),
            "OMP_NUM_THREADS": "1",
            # A patched kernel is built here, not among those of the machine.
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.output = folder / "output.txt"
        self.server = subprocess.Popen(
            [sys.executable, "-P", str(FOLDER / "serve.py")],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: list[str]) -> tuple[int, str]:
        """Return pytest's exit code and what it printed."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        request = {"arguments": [*options, *tests], "output": str(self.output)}
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs the tests ended with {self.server.wait()}.")
        return int(answer), self.output.read_text(encoding="utf-8")

    def close(self) -> None:
        """End the process."""
        self.server.communicate()


def imported_from(folder: Path) -> Path:
    """Return the folder that `import fints` finds from the copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", "import fints; print(fints.__file__)"]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).parent


def plant(folder: Path, mutant: Mutant) -> str:
    """Patch the copy and return the original text.

    Raises
    ------
    ValueError
        If the text to replace is not in the file: the source moved on and the mutant must too.
    """
    path = folder / mutant.file
    source = path.read_text()
    if mutant.old not in source:
        raise ValueError(
            f"the mutant {mutant.mistake!r} no longer applies: {mutant.file} does not hold\n{mutant.old}\n"
            "Rewrite its patch in tests/mutants after the source."
        )
    path.write_text(source.replace(mutant.old, mutant.new))
    return source


def survivors(mutants: tuple[Mutant, ...] = MUTANTS) -> list[Mutant]:
    """Plant each mutant in turn, print what became of it, and return those no test noticed.

    Raises
    ------
    ValueError
        If a patch no longer applies.
    RuntimeError
        If a named test fails without a patch, or a run of the tests fails for another reason.
    """
    alive = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_of_the_package(folder)
        if imported_from(folder) != folder / "fints":
            raise RuntimeError(
                f"the tests would import fints from {imported_from(folder)}, not from the copy."
            )
        compiled(folder)
        with contextlib.closing(Tester(folder)) as tester:
            code, said = tester.run(sorted({mutant.test for mutant in mutants}))
            if code != 0:
                raise RuntimeError(f"named tests fail without a mutant:\n{said}")
            for mutant in mutants:
                source = plant(folder, mutant)
                code, said = tester.run(["-x", mutant.test])
                (folder / mutant.file).write_text(source)
                # 1 is "tests failed"; any other code says that they did not run as they should.
                if code not in (0, 1) or (code == 1 and " failed" not in said):
                    raise RuntimeError(f"the tests did not run on {mutant.mistake!r} (code {code}):\n{said}")
                if code == 0:
                    alive.append(mutant)
                print(f"{'killed' if code else 'ALIVE '}  {mutant.mistake}", flush=True)
    print(f"{len(mutants) - len(alive)}/{len(mutants)} killed")
    return alive


if __name__ == "__main__":
    sys.exit(1 if survivors() else 0)
