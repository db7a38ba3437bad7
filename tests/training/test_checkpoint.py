from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest
import torch

from fints.training.checkpoint import UnusableCheckpoint, read_checkpoint, write_checkpoint

CONTENT = {
    "weights": {"a": torch.arange(4.0)},
    "step": 3,
    "rows": [{"loss": 0.1, "none": None}],
    "betas": (0.9, 0.95),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "fit.pt"
    write_checkpoint(target, "mine", CONTENT)
    return target


def test_what_was_written_is_read(path):
    read = read_checkpoint(path, "mine")
    assert torch.equal(read["weights"]["a"], CONTENT["weights"]["a"])
    assert {key: read[key] for key in ("step", "rows", "betas")} == {
        key: CONTENT[key] for key in ("step", "rows", "betas")
    }


def test_an_interrupted_write_leaves_the_old_checkpoint_and_no_litter(path, monkeypatch):
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_checkpoint(path, "mine", {"step": 4})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_checkpoint_cut_short_is_refused_by_name(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"fit\.pt cannot be read .* Delete the file to start the fit anew"):
        read_checkpoint(path, "mine")


def test_a_single_flipped_bit_in_a_weight_is_noticed(path):
    whole = bytearray(path.read_bytes())
    place = whole.index(torch.arange(4.0).numpy().tobytes())
    whole[place + 6] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"damaged: its part .* fails its checksum"):
        read_checkpoint(path, "mine")


def test_whatever_happened_to_the_bytes_they_are_refused_by_name_or_read_as_they_were(path):
    whole, draw = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(300):
        torn = bytearray(whole)
        place = draw.randrange(len(torn))
        for spot in range(place, min(len(torn), place + draw.choice((1, 8, 64)))):
            torn[spot] = draw.choice((0, 255, draw.randrange(256)))
        path.write_bytes(torn[: draw.choice((len(torn), draw.randrange(len(torn))))])
        try:
            read = read_checkpoint(path, "mine")
        except UnusableCheckpoint as error:
            refused += 1
            assert "Delete the file" in str(error)  # noqa: PT017
        else:
            assert torch.equal(read["weights"]["a"], CONTENT["weights"]["a"])
            assert read["rows"] == CONTENT["rows"]
    assert refused > 200


def test_a_checkpoint_of_another_fit_is_refused(path):
    with pytest.raises(ValueError, match=r"fit\.pt belongs to another fit: .* Delete the file"):
        read_checkpoint(path, "another")


def test_a_file_of_another_kind_or_version_is_refused(path):
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="is not a checkpoint of a fit"):
        read_checkpoint(path, "mine")
    torch.save({"format": "fints.training.checkpoint", "version": 99, "identity": "mine"}, path)
    with pytest.raises(ValueError, match="format version 99; this fints reads version 1"):
        read_checkpoint(path, "mine")
    path.write_text("step,loss\n1,2\n")
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(path, "mine")


class _Trap:
    """Runs when it is unpickled."""

    fired = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (setattr, (_Trap, "fired", True))


@pytest.mark.parametrize("archive", [True, False])
def test_code_in_a_checkpoint_is_refused_and_never_runs(path, archive):
    if archive:
        head = {"format": "fints.training.checkpoint", "version": 1, "identity": "mine"}
        torch.save(head | {"content": _Trap()}, path)
    else:
        path.write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(path, "mine")
    assert not _Trap.fired
