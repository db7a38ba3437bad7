"""A fit that two processes share is that of one, ends with either, and goes on from a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "shared_fit.py"
# How long torchrun lets the others find out themselves that one has died.
TORCHRUN = [
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--standalone",
    "--monitor-interval",
    "10",
]


def run(out: Path, *words: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    out.mkdir(exist_ok=True)
    prefix = TORCHRUN if processes == 2 else []
    command = [sys.executable, *prefix, str(SCRIPT), str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)


def left(out: Path, name: str = "fit.pt") -> dict[str, Any]:
    found: dict[str, Any] = torch.load(out / name, weights_only=True)
    return found


def assert_same(found: dict[str, Any], alone: dict[str, Any]) -> None:
    assert len(found["losses"]) == 12
    torch.testing.assert_close(found["losses"], alone["losses"], rtol=1e-9, atol=0.0)
    assert (
        [row["step"] for row in found["history"]] == [row["step"] for row in alone["history"]] == [4, 8, 12]
    )
    for one, other in zip(found["history"], alone["history"], strict=True):
        assert one["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-9)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-9)
    # Adam blows the rounding of a gradient up where it is almost zero.
    torch.testing.assert_close(found["weights"], alone["weights"], rtol=1e-6, atol=1e-8)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("alone") / "out"
    done = run(out, processes=1)
    assert done.returncode == 0, done.stderr
    assert (out / "rank-0.txt").read_text() == "1 [4, 8, 12]"
    return left(out)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_take_the_steps_of_one_and_the_first_alone_reports(
    alone: dict[str, Any], tmp_path: Path
) -> None:
    done = run(tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert_same(left(tmp_path / "out"), alone)
    other = left(tmp_path / "out", "other-1.pt")
    for name, weight in left(tmp_path / "out")["weights"].items():
        assert torch.equal(weight, other["weights"][name]), name
    assert (tmp_path / "out" / "rank-0.txt").read_text() == "2 [4, 8, 12]"
    assert (tmp_path / "out" / "rank-1.txt").read_text() == "2 []"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_go_on_from_the_checkpoint_of_one(alone: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    stopped = run(out, "checkpoint", "stop", processes=1)
    assert stopped.returncode == 0, stopped.stderr
    assert not (out / "fit.pt").exists()
    assert (out / "checkpoint.pt").is_file()
    done = run(out, "checkpoint")
    assert done.returncode == 0, done.stderr
    # The evaluation at which it was stopped comes again, for its checkpoint had not been written yet.
    assert (out / "rank-0.txt").read_text() == "2 [8, 12]"
    assert_same(left(out), alone)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_when_one_process_dies_the_other_ends_with_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "die")
    assert done.returncode != 0
    assert "error: rank 0 of 2: another rank has ended, so this one ends too (" in done.stderr
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "odd")
    assert done.returncode != 0
    assert "training.batch_size must be a multiple of the number of ranks, 2; got 7." in done.stderr
