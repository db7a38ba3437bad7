"""--json: one strict document on standard output with the keys that the documentation names, or nothing."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest

from fints.cli import main
from fints.data import simulate
from fints.study import cli, panel_cli
from fints.words import json_text

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "tests" / "study" / "tiny.py"
CAUSES = ROOT / "studies" / "collapse_or_vanishing.py"


def documented() -> dict[str, list[set[str]]]:
    """Return, for each command of the page, the keys that are always there and those that may be."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "docs" / "json.md").read_text(encoding="utf-8"), re.M)
    found = {}
    for command, told in rows[1:]:
        always, _, sometimes = re.sub(r"\([^)]*\)", "", told).partition(";")
        found[command] = [set(re.findall(r"`(\w+)`", part)) for part in (always, sometimes)]
    return found


KEYS = documented()


def strict(text: str) -> Any:
    """Read JSON as a strict reader does."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def hold(told: dict[str, Any], command: str) -> None:
    """Hold a document to the page on `command`."""
    always, sometimes = KEYS[command]
    assert always <= told.keys() <= always | sometimes


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A panel, and forecasts of it one of which is no number."""
    panel = simulate(num_assets=3, num_days=160, seed=1).panel.frame
    panel.write_csv(tmp_path / "prices.csv")
    noise = pl.int_range(pl.len()).hash(seed=1).mod(1000) / 1e5 - 0.005
    panel.select("date", "asset", forecast=noise).write_csv(tmp_path / "forecasts.csv")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["data", "show", "sp500-20"],
        ["data", "check", "prices.csv"],
        ["data", "import", "prices.csv", "--as", "mine"],
        ["schemes", "list"],
        ["schemes", "show", "deep_norm", "--depth", "2", "--out", "mix.png"],
        ["evaluate", "forecasts.csv", "--panel", "prices.csv"],
        ["doctor"],
        ["study", "list"],
        ["study", "disk"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_prints_one_document_with_the_keys_of_the_page(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(table)
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    named = " ".join(["fints", *words[: 2 if words[0] in ("data", "schemes", "study") else 1]])
    hold(strict(told.out), f"`{named}`")


def test_the_list_of_data_holds_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json"]) == 0
    for card in strict(capsys.readouterr().out):
        hold({**card, "path": ""}, "`fints data show`")


@pytest.mark.parametrize(
    ("verbs", "file", "words", "command"),
    [
        (cli.main, TINY, ["--data", "prices.csv"], "`plan` of a study"),
        (panel_cli.main, CAUSES, ["--preset", "smoke"], "`plan` of a study on panels"),
    ],
    ids=["in time", "on panels"],
)
def test_the_plan_of_a_study_is_one_document(
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verbs: Callable[..., NoReturn],
    file: Path,
    words: list[str],
    command: str,
) -> None:
    monkeypatch.chdir(table)
    study = runpy.run_path(str(file))["STUDY"]
    with pytest.raises(SystemExit) as ended:
        verbs(study, ["plan", *words, "--json"], file=file)
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    plan = strict(told.out)
    hold(plan, command)
    assert plan["fits"]["total"] == plan["fits"]["tuning"] + plan["fits"]["final"]
    assert len(plan["arms"]) > 1


@pytest.mark.parametrize(
    "words",
    [
        ["data", "show", "absent"],
        ["schemes", "show", "absent"],
        ["evaluate", "absent.csv"],
        ["study", "disk", "absent"],
        ["study", "status", "--storage", "nowhere"],
    ],
    ids=" ".join,
)
def test_what_is_refused_prints_no_document(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([*words, "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", told.err)


def test_a_number_that_is_not_finite_is_null_however_deep() -> None:
    nan, infinite = float("nan"), float("inf")
    assert strict(json_text({"a": [nan, (infinite, {"b": -infinite})], "c": 1.5})) == {
        "a": [None, [None, {"b": None}]],
        "c": 1.5,
    }
