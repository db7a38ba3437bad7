"""Plant wrong implementations and see the tests catch them: `python tests/mutants/run.py`.

Each mutant is a textual patch to a temporary copy of the package; the working tree is never
touched. A mutant is killed when a test it names fails on the patched copy; every named test must
pass on the unpatched one, and a patch that no longer applies is an error, not a survivor.

Prints one line a mutant and `killed/planted`; exit code 0 only if all are killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HYPER_CONNECTIONS = "fints/residual/hyper_connections.py"
EQUATION = "tests/residual/test_hyper_connections_equation.py"
START = "tests/residual/test_hyper_connections_start.py"
INTERFACE = "tests/residual/test_interface.py"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mistake seen in public code: its patch and the test that must notice."""

    mistake: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = (
    Mutant(
        mistake="static: streams are mixed, and the unmixed ones carried on",
        file=HYPER_CONNECTIONS,
        old="            u, carried = mixed.split([1, self.num_streams])\n",
        new="            u, _ = mixed.split([1, self.num_streams])\n"
        "            carried = state.reshape(self.num_streams, -1)\n",
        test=f"{EQUATION}::test_static_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="dynamic: streams are mixed, and the unmixed ones carried on",
        file=HYPER_CONNECTIONS,
        old="            u, carried = (width_connection.mT @ state).split([1, self.num_streams], dim=-2)\n",
        new="            u, carried = (width_connection.mT @ state)[..., :1, :], state\n",
        test=f"{EQUATION}::test_dynamic_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="the mix of streams does not depend on A_r",
        file=HYPER_CONNECTIONS,
        old="width_connection = torch.cat([self.A_m[layer], self.A_r[layer]], dim=1)\n",
        new="width_connection = torch.cat([self.A_m[layer], torch.eye(len(state)).to(state)], dim=1)\n",
        test=f"{EQUATION}::test_the_output_depends_on_how_streams_are_mixed",
    ),
    Mutant(
        mistake="static: A_r is transposed",
        file=HYPER_CONNECTIONS,
        old="torch.cat([self.A_m[layer], self.A_r[layer]], dim=1)\n",
        new="torch.cat([self.A_m[layer], self.A_r[layer].t()], dim=1)\n",
        test=f"{EQUATION}::test_static_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="dynamic: the static A_r is transposed",
        file=HYPER_CONNECTIONS,
        old="torch.cat([self.A_m[layer], self.A_r[layer], self.B[layer].t()], dim=1)\n",
        new="torch.cat([self.A_m[layer], self.A_r[layer].t(), self.B[layer].t()], dim=1)\n",
        test=f"{EQUATION}::test_dynamic_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="dynamic: A_r(H) is transposed as a whole",
        file=HYPER_CONNECTIONS,
        old="            u, carried = (width_connection.mT @ state).split([1, self.num_streams], dim=-2)\n",
        new="            u = width_connection[..., :1].mT @ state\n"
        "            carried = width_connection[..., 1:] @ state\n",
        test=f"{EQUATION}::test_dynamic_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="the home stream is that of the block, not of the sublayer",
        file=HYPER_CONNECTIONS,
        old="    home[layer % num_streams] = 1.0\n",
        new="    home[layer // 2 % num_streams] = 1.0\n",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="the home stream is drawn at random",
        file=HYPER_CONNECTIONS,
        old="    home[layer % num_streams] = 1.0\n",
        new="    home[int(torch.randint(num_streams, ()))] = 1.0\n",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="every sublayer reads the mean of the streams",
        file=HYPER_CONNECTIONS,
        old="    home[layer % num_streams] = 1.0\n",
        new="    home[:] = 1.0 / num_streams\n",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="the depth of the scheme's first sublayer is forgotten",
        file=HYPER_CONNECTIONS,
        old="nn.ParameterList(_home_stream(first_layer + k, num_streams)",
        new="nn.ParameterList(_home_stream(k, num_streams)",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="dynamic: weight decay on the static matrices",
        file=HYPER_CONNECTIONS,
        old='if not name.startswith("W.")}',
        new='if not name.startswith(("W.", "A_m.", "A_r.", "B."))}',
        test=f"{INTERFACE}::test_only_dynamic_maps_decay",
    ),
    Mutant(
        mistake="static: weight decay on the static matrices",
        file=HYPER_CONNECTIONS,
        old="        return {name for name, _ in self.named_parameters()}\n",
        new='        return {name for name, _ in self.named_parameters() if "norm" in name}\n',
        test=f"{INTERFACE}::test_only_dynamic_maps_decay",
    ),
)


def copy_of_the_package(folder: Path) -> None:
    """Copy what the named tests need, and nothing that an earlier run left behind."""
    shutil.copytree(ROOT / "fints", folder / "fints", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT / "tests" / "residual",
        folder / "tests" / "residual",
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
            "Rewrite its patch in tests/mutants/run.py after the source."
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
