"""Workers that an engine starts: looked after, asked for again when lost, told in secret what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fints.study.launch import (
    MOST_STARTS,
    Crew,
    Ended,
    Launcher,
    Order,
    launcher_of,
    options_of,
    order_of,
    without_addresses,
)
from fints.study.launched import serve

KILLED = Ended(-9, "")
LEFT = Ended(0, "nothing is left to do: 8 of 8 fits are finished.")


class Scripted(Launcher):
    """An engine on which what ends at each look is known."""

    engine = "paper"
    one_machine = True

    def __init__(self, *looks: dict[int, Ended]) -> None:
        self.looks: Iterator[dict[int, Ended]] = iter(looks)
        self.started: list[list[int]] = []
        self.stopped = False

    def start(self, orders: Mapping[int, Order]) -> None:
        self.started.append(sorted(orders))

    def ended(self) -> dict[int, Ended]:
        return next(self.looks, {})

    def stop(self) -> None:
        self.stopped = True


def look(launcher: Scripted, turns: int, *, workers: int = 2, others: int = 0) -> list[str]:
    """Let a crew look `turns` times, and return what it said."""
    said: list[str] = []
    with Crew(launcher, [{}] * workers, say=said.append, others=lambda: others) as crew:
        for _ in range(turns):
            crew.next_event(0.0)
    assert launcher.stopped
    return said


def test_a_lost_worker_is_asked_for_again_and_not_for_ever() -> None:
    launcher = Scripted(*({0: KILLED} for _ in range(MOST_STARTS)))
    said = look(launcher, MOST_STARTS)
    assert launcher.started == [[0, 1], *[[0]] * (MOST_STARTS - 1)]
    assert said[0] == "2 workers asked of paper"
    assert said[1] == "worker 1 of 2 on paper ended with code -9; another one is asked for"
    assert said[-1] == "worker 1 of 2 on paper ended with code -9"


def test_a_worker_that_refused_or_was_told_to_end_is_not_asked_for_again() -> None:
    launcher = Scripted({0: Ended(2, "error: no such study."), 1: Ended(143, "stopped by SIGTERM.")})
    said = look(launcher, 1)
    assert launcher.started == [[0, 1]]
    assert said[1:] == [
        "worker 1 of 2 on paper ended with code 2: no such study",
        "worker 2 of 2 on paper ended with code 143: stopped by SIGTERM",
    ]


def test_workers_that_leave_when_nothing_is_left_are_no_news() -> None:
    assert look(Scripted({0: LEFT, 1: LEFT}), 1) == ["2 workers asked of paper"]


def test_when_all_have_ended_and_fits_are_left_the_run_ends_and_says_what_one_said() -> None:
    launcher = Scripted({0: Ended(2, "error: torch must be as where the study was planned."), 1: LEFT})
    with pytest.raises(RuntimeError) as caught:
        look(launcher, 2)
    assert str(caught.value) == (
        "all 2 workers on paper have ended and fits are left (one said: torch must be as where the study was "
        "planned). What is finished is kept; run again to go on."
    )
    assert launcher.stopped


def test_a_run_goes_on_without_its_workers_while_others_work_on_the_study() -> None:
    look(Scripted({0: Ended(2, "error: x"), 1: Ended(2, "error: x")}), 5, others=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "local", "entries": ["partition=a"]}, "local has no options"),
        ({"storage": None}, "needs --storage"),
        ({"workers": None}, "needs --workers N"),
        ({"workers": 0}, "needs --workers N"),
        ({"typed": ["run", "--storage", "postgresql+psycopg://me:s3cret@db/x"]}, "set FINTS_STORAGE"),
        ({"typed": ["run", "--tracking-uri=http://me:s3cret@db/x"]}, "set FINTS_STORAGE"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(
    given: dict[str, object], told: str, tmp_path: Path
) -> None:
    usual = {"name": "ray", "entries": [], "workers": 2, "storage": "postgresql+psycopg://db/x", "typed": []}
    with pytest.raises(ValueError, match="--launcher") as caught:
        launcher_of(**{**usual, **given}, folder=tmp_path)  # type: ignore[arg-type]
    assert told in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_engine_that_is_not_installed_is_one_line_that_names_the_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"fints.study.launch_{name}", raising=False)
    with pytest.raises(ValueError, match=f"\\(or fints with its extra `{name}`\\)") as caught:
        launcher_of(name, [], workers=1, storage="sqlite:///x", typed=[], folder=tmp_path)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_an_option_is_a_number_a_list_or_a_text_and_an_unknown_one_is_refused_with_those_that_there_are() -> (
    None
):
    known = {"partition": None, "time": 240, "setup": None}
    given = ["partition=long", "time=60", 'setup=["module load a"]']
    assert options_of(given, known, "slurm") == {"partition": "long", "time": 60, "setup": ["module load a"]}
    assert options_of([], known, "slurm") == known
    for wrong in ("tiem=60", "time", "=60"):
        with pytest.raises(ValueError, match=r"\(partition, setup, time\); got"):
            options_of([wrong], known, "slurm")


def test_an_order_has_the_addresses_given_and_nothing_started_meanwhile_inherits_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FINTS_STORAGE", "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "other")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "word")
    monkeypatch.setenv("PGPASSWORD", "word")
    before = dict(os.environ)
    order = order_of("s/quick", "storage", None)
    assert order["study"] == "s/quick"
    told = {
        name: value for name, value in order["environment"].items() if value in ("storage", "word", "other")
    }
    assert told == {"FINTS_STORAGE": "storage", "MLFLOW_TRACKING_PASSWORD": "word", "PGPASSWORD": "word"}
    assert order_of("s", "storage", "uri")["environment"]["MLFLOW_TRACKING_URI"] == "uri"
    with without_addresses():
        assert not {"other", "word"} & set(os.environ.values())
    assert dict(os.environ) == before


def test_a_launched_worker_that_cannot_start_says_why_in_a_line_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    order = order_of("s", "mysql://me:s3cret@db/x", None)
    ended = Ended(**serve(order, lambda: False))
    assert ended.code == 2
    assert ended.said.startswith("error: --storage mysql://me:***@db/x cannot be opened")
    assert "s3cret" not in ended.said + capsys.readouterr().out
