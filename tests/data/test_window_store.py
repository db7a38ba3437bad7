"""A store is whole or not there, used again while nothing changes, and never believed when it is damaged."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from fints.config import DataConfig
from fints.data import Panel, window_store
from fints.data.feature_table import FeatureTable
from fints.data.learning import prepare
from fints.data.window_store import SETTING

NAMES = ("return_1", "volatility_7", "rank_return_5")
DATA = DataConfig(features=NAMES, target="log_return", context=5)

BUILD = """
import os, sys
import polars as pl
from fints.config import DataConfig
from fints.data import Panel
from fints.data.feature_table import FeatureTable
from fints.data.learning import prepare

whole = FeatureTable.scaled

def killed(self, scaler):
    for block in whole(self, scaler):
        yield block
        os._exit(9)

FeatureTable.scaled = killed
prepare(Panel(pl.read_parquet(sys.argv[1])), DataConfig(features=%r, target="log_return", context=5))
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every panel is a large one, in a home of its own."""
    monkeypatch.setenv("FINTS_HOME", str(tmp_path))
    monkeypatch.setenv(SETTING, "0")
    return tmp_path / "windows"


@pytest.fixture(scope="module")
def panel(random_panel: Callable[[int], Panel]) -> Panel:
    return random_panel(4)


def stores(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def computes_nothing(*_: object) -> None:
    raise AssertionError("computed what is stored")


def test_a_store_is_used_again_and_nothing_is_computed(
    panel: Panel, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(panel, DATA)
    monkeypatch.setattr(FeatureTable, "block", computes_nothing)
    again = prepare(Panel(panel.frame.sample(fraction=1, shuffle=True, seed=1)), DATA)
    assert first.scaler == again.scaler
    assert first.windows.values.numpy().tobytes() == again.windows.values.numpy().tobytes()
    assert len(stores(root)) == 1


def test_whatever_changes_the_numbers_has_another_store(
    panel: Panel, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(panel, DATA)
    moved = Panel(panel.frame.with_columns(pl.col("close") * pl.lit(1.5).pow(pl.col("volume").fill_null(0))))
    prepare(moved, DATA)
    prepare(panel, DataConfig(features=NAMES[::-1], target="log_return", context=5))
    prepare(panel, DataConfig(features=NAMES, target="log_return", context=5, clip=2.0))
    prepare(panel, DATA, validation=0.4)
    assert len(stores(root)) == 5
    # What is learnt from other targets or windows is scaled the same.
    prepare(panel, DataConfig(features=NAMES, target="log_return", horizon=1, context=9))
    assert len(stores(root)) == 5
    monkeypatch.setattr(window_store, "_code", lambda: "another version")
    prepare(panel, DATA)
    assert len(stores(root)) == 6


def test_no_write_reaches_the_file(panel: Panel) -> None:
    values = prepare(panel, DATA).windows.values
    place = tuple(values.isfinite().nonzero()[0].tolist())
    before = values[place].item()
    values[place] = 123.0
    assert prepare(panel, DATA).windows.values[place].item() == before


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_is_read(
    panel: Panel, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel.frame.write_parquet(tmp_path / "panel.parquet")
    command = [sys.executable, "-c", BUILD % (NAMES,), tmp_path / "panel.parquet"]
    run = subprocess.run(command, check=False, timeout=300)
    assert run.returncode == 9
    (left,) = stores(root)
    assert left.name.startswith(window_store.BUILDING)
    # Another panel's build, whose process is gone too: it goes with the next build.
    stranger = root / f"{window_store.BUILDING}0123"
    shutil.copytree(left, stranger)
    values = prepare(panel, DATA).windows.values
    (whole,) = stores(root)
    assert whole.name == left.name.removeprefix(window_store.BUILDING)
    monkeypatch.setenv(SETTING, "1024")
    assert prepare(panel, DATA).windows.values.numpy().tobytes() == values.numpy().tobytes()


def test_a_disk_without_room_is_one_sentence(
    panel: Panel, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(ValueError, match=r"the disk is full: .* needs 0\.00 GiB .*FINTS_HOME") as caught:
        prepare(panel, DATA)
    assert "\n" not in str(caught.value)
    assert stores(root) == []


def test_a_disk_that_fills_up_leaves_nothing(
    panel: Panel, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(window_store.os, "fsync", full)
    with pytest.raises(ValueError, match=r"the disk is full.*No space left on device"):
        prepare(panel, DATA)
    assert stores(root) == []


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: _flip(folder / "values.f32"), "does not match the checksum"),
        (lambda folder: (folder / "values.f32").write_bytes(b"short"), "has 5 bytes"),
        (lambda folder: (folder / "values.f32").unlink(), "No such file"),
        (lambda folder: (folder / "store.json").write_text("{"), "JSONDecodeError"),
        (
            lambda folder: (folder / "store.json").write_text(
                json.dumps(json.loads((folder / "store.json").read_text()) | {"format_version": 99})
            ),
            "another table",
        ),
    ],
)
def test_a_damaged_store_is_refused_by_name(panel: Panel, root: Path, damage, said: str) -> None:
    prepare(panel, DATA)
    (folder,) = stores(root)
    damage(folder)
    with pytest.raises(ValueError, match=said) as caught:
        prepare(panel, DATA)
    assert str(folder) in str(caught.value)
    assert "Delete that folder" in str(caught.value)
    shutil.rmtree(folder)
    prepare(panel, DATA)


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan"])
def test_a_setting_that_is_no_size_is_refused(
    panel: Panel, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(SETTING, text)
    with pytest.raises(ValueError, match=f"{SETTING} must be a number of MiB"):
        prepare(panel, DATA)
