"""Plant wrong implementations and see the tests catch them: `python tests/mutants/run.py`.

Each mutant is a textual patch to a temporary copy of the package; the working tree is never
touched. A mutant is killed when a test it names fails on the patched copy; every named test must
pass on the unpatched one, and a patch that no longer applies is an error, not a survivor.

The mutants are those of the tuple MUTANTS in every other file of this folder, one file a family of
schemes. Prints one line a mutant and `killed/planted`; exit code 0 only if all are killed.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
# The folder is no package: tests that load this file by its path find its neighbours here.
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))

from mutant import Mutant  # noqa: E402


def gathered() -> tuple[Mutant, ...]:
    """Return the mutants of every file beside this one."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("test_"))
    modules = [importlib.import_module(name) for name in names if name not in ("run", "mutant")]
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


def run_pytest(folder: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy; the folder itself comes first on the path of `python -m`."""
    environment = {
        **os.environ,
        # Options for the tests of the house are unknown in the copy, which has no conftest.
        "PYTEST_ADDOPTS": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


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
        baseline = run_pytest(folder, sorted({mutant.test for mutant in mutants}))
        if baseline.returncode != 0:
            raise RuntimeError(f"named tests fail without a mutant:\n{baseline.stdout}{baseline.stderr}")
        for mutant in mutants:
            source = plant(folder, mutant)
            result = run_pytest(folder, ["-x", mutant.test])
            (folder / mutant.file).write_text(source)
            # 1 is "tests failed"; any other code says that they did not run as they should.
            if result.returncode not in (0, 1) or (result.returncode == 1 and " failed" not in result.stdout):
                raise RuntimeError(
                    f"the tests did not run on {mutant.mistake!r}:\n{result.stdout}{result.stderr}"
                )
            if result.returncode == 0:
                alive.append(mutant)
            print(f"{'killed' if result.returncode else 'ALIVE '}  {mutant.mistake}", flush=True)
    print(f"{len(mutants) - len(alive)}/{len(mutants)} killed")
    return alive


if __name__ == "__main__":
    sys.exit(1 if survivors() else 0)
