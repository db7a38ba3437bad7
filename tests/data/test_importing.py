"""Files become datasets: by name, with repairs on the card, inside the user's folder or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import polars as pl
import pytest

from fints.cli import main
from fints.data import Panel, Repairs, card, datasets, import_file, load, store

DIRTY = (
    "date,asset,close,ret\n2001-02-12,A,1.5,2\n2001-02-12,B,3,1\n2001-02-13,A,0,1\n2001-02-13,B,3.5,1\n"
    "2001-02-14,A,1.75,1\n2001-02-14,B,3.5,1\n2001-02-14,B,3.6,1\n"
)


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    path = tmp_path / "dirty.csv"
    path.write_text(DIRTY)
    return path


CLEAN = Repairs(missing_prices=True, duplicates="last", percent=("ret",))


def test_an_imported_file_is_a_dataset_whose_card_lists_source_and_repairs(
    dirty: Path, home_of_its_own: Path
) -> None:
    imported = import_file(dirty, "mine", repairs=CLEAN, title="two stocks", licence="mine")
    assert card("mine") == imported.card
    assert imported.card.path.is_relative_to(home_of_its_own / "datasets" / "mine")
    assert hashlib.sha256(dirty.read_bytes()).hexdigest() in imported.card.origin
    assert "long, assets in 'asset'" in imported.card.origin
    assert imported.card.repairs == (
        "1 price not above 0 or infinite made missing: line 4 (2001-02-13, A)",
        "divided by 100: ret",
        "1 repeated row left out, the last of each (date, asset) kept: line 7 (2001-02-14, B)",
    )
    frame = load("mine").frame
    assert frame.filter(pl.col("asset") == "B")["close"].to_list() == [3.0, 3.5, 3.6]
    assert frame["ret"].max() == 0.02
    assert load("mine").checksum == imported.card.checksum


def test_what_the_layout_did_stands_on_the_card_too(tmp_path: Path) -> None:
    (tmp_path / "crsp.csv").write_text("PERMNO,date,PRC,RET\n1,20010212,-5,C\n1,20010213,5,0.01\n")
    repairs = import_file(tmp_path / "crsp.csv", "stock").card.repairs
    assert repairs[0] == "by the layout: RET: missing by letter (1 C)"
    assert any("midpoint" in said for said in repairs)


def test_nothing_is_written_where_a_rule_is_broken(dirty: Path, home_of_its_own: Path) -> None:
    with pytest.raises(ValueError, match=r"line 7 \(2001-02-14, B\), line 8"):
        import_file(dirty, "mine")
    assert not (home_of_its_own / "datasets").exists()


def test_a_name_is_taken_once_unless_it_is_to_be_replaced(dirty: Path, tmp_path: Path) -> None:
    first = import_file(dirty, "mine", repairs=CLEAN).card
    with pytest.raises(ValueError, match=r"there is a dataset 'mine' already.* give replace"):
        import_file(dirty, "mine", repairs=CLEAN)
    assert card("mine") == first
    (tmp_path / "other.csv").write_text("date,asset,close\n2001-02-12,Z,1\n")
    import_file(tmp_path / "other.csv", "mine", replace=True)
    assert load("mine").assets == ["Z"]
    assert card("mine").repairs == ()
    for bundled in (False, True):
        with pytest.raises(ValueError, match="sp500-20"):
            import_file(dirty, "sp500-20", repairs=CLEAN, replace=bundled)


OUTSIDE = ["", ".", "..", "../out", "a/b", "a\\b", "/x", "C:x", ".hidden", "a\0b", "a\n", "-x", "x" * 101]


@pytest.mark.parametrize("name", [*OUTSIDE, "é"])
def test_no_name_leads_out_of_the_folder(dirty: Path, home_of_its_own: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a dataset's name is"):
        import_file(dirty, name, repairs=CLEAN)
    assert list(home_of_its_own.rglob("*")) == []


def test_a_link_in_the_folder_is_not_followed(dirty: Path, home_of_its_own: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (home_of_its_own / "datasets").mkdir()
    (home_of_its_own / "datasets" / "mine").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="is a link to somewhere else"):
        import_file(dirty, "mine", repairs=CLEAN)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_panel_with_a_close_beside_its_price_cannot_be_stored(home_of_its_own: Path) -> None:
    frame = pl.DataFrame({"date": ["2001-02-12"], "asset": ["A"], "open": [1.0], "close": [2.0]})
    panel = Panel(frame.with_columns(pl.col("date").str.to_date()), price="open")
    with pytest.raises(ValueError, match="a feature 'close' beside it"):
        store(panel, "mine")
    assert [found.name for found in datasets()] == ["sp500-20"]


def test_repairs_do_what_they_say_and_no_more(tmp_path: Path) -> None:
    days = [f"2001-02-{day:02d}" for day in range(1, 11)]
    still = [1.0, 1.1, 1.1, 1.1, 1.1, 1.2, 1.2, 1.3, 1.3, 1.4]
    moving = [2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.5, 2.6, 2.7, 2.8]
    rows = [f"{d},{a},{p}" for a, ps in (("A", still), ("B", moving)) for d, p in zip(days, ps, strict=True)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["date,asset,close", *rows, ""]))
    holidays = import_file(path, "one", repairs=Repairs(drop_filled_holidays=True))
    assert [str(day) for day in load("one").dates] == [day for day in days if day != "2001-02-07"]
    assert holidays.card.repairs == (
        "1 date left out on which every asset repeats its last price: 2001-02-07",
    )
    runs = import_file(path, "two", repairs=Repairs(drop_stale=3))
    kept = load("two").frame.filter(pl.col("asset") == "A")["close"].to_list()
    assert kept == [1.0, 1.1, 1.2, 1.2, 1.3, 1.3, 1.4]
    assert load("two").frame.filter(pl.col("asset") == "B").height == 10
    assert runs.card.repairs[0].startswith("3 rows left out in runs of 3 or more exact zero returns: line 4 ")


def test_the_command_imports_checks_and_shows(
    dirty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--missing-prices", "--duplicates", "last", "--percent", "ret"]
    assert main(["data", "import", str(dirty), "--as", "mine"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "line 7" in err
    assert main(["data", "import", str(dirty), "--as", "mine", *options]) == 0
    out = capsys.readouterr().out
    assert "Kept as mine: fints data show mine" in out
    assert [line for line in out.splitlines() if len(line) > 80 and str(dirty) not in line] == []
    assert main(["data", "show", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["repairs"]) == 3
    assert main(["data", "import", str(dirty), "--as", "mine", *options, "--replace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["card"]["checksum"] == shown["checksum"]
    assert main(["data", "import", str(dirty), "--as", "../mine", *options]) == 2
    assert main(["data", "check", str(dirty), *options, "--figure", str(tmp_path / "x.png")]) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    for verb in ("import", "check"):
        capsys.readouterr()
        assert main(["data", verb, "--help"]) == 0
        assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []
