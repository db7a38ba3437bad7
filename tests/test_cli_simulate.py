"""``fints data simulate`` keeps what `fints.data.simulate` and `semi_synthetic` make, under a name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable

import pytest

from fints.cli import main
from fints.cli_simulate import OF_BOTH
from fints.cli_simulate import simulate as verb
from fints.data import card, load, planted_signal, semi_synthetic, simulate

Said = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def go(*words: str) -> Said:
        code = main(["data", "simulate", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return go


def test_the_dataset_is_the_panel_of_the_call_that_its_card_names(run) -> None:
    dials = "--num-assets 3 --num-days 80 --r2 0.1 --noise garch --degrees 4 --news score --seed 7"
    code, out, err = run("--as", "mine", *dials.split())
    assert (code, err) == (0, "")
    made = simulate(num_assets=3, num_days=80, r2=0.1, noise="garch", degrees=4.0, news="score", seed=7)
    assert load("mine").checksum == made.panel.checksum
    assert planted_signal("mine").equals(made.signal.sort("date", "asset"))
    assert card("mine").origin == made.recipe
    again = eval(made.recipe.replace("fints.data.simulate", "simulate"))
    assert again.panel.checksum == made.panel.checksum
    assert f"{made.realised_oracle_r2:.4%} realised" in out
    assert """--data mine --set 'data.features=["a", "b"]'""" in " ".join(out.split())


def test_on_a_dataset_the_returns_are_signed_and_its_licence_stays(run) -> None:
    words = "--as semi --on sp500-20 --signal interaction --r2 0.02 --seed 3 --json"
    code, out, err = run(*words.split())
    assert (code, err) == (0, "")
    said = json.loads(out)
    made = semi_synthetic(load("sp500-20"), signal="interaction", r2=0.02, seed=3)
    assert load("semi").checksum == made.panel.checksum == said["checksum"]
    assert said["oracle_r2"] == 0.02
    assert [row["bin"] for row in said["by_volatility"]] == [1, 2, 3, 4, 5]
    assert said["licence"] == card("sp500-20").licence
    assert said["span"][1] == "2017-12-29"


def test_the_verb_has_every_dial_of_the_simulator_and_no_other() -> None:
    dials = set(inspect.signature(verb).parameters) - {"name", "on", "as_json"}
    assert dials == set(inspect.signature(simulate).parameters)
    assert set(inspect.signature(semi_synthetic).parameters) - {"panel"} == OF_BOTH


def test_a_name_that_holds_other_numbers_is_refused_and_the_same_numbers_are_not(run) -> None:
    words = ["--as", "mine", "--num-days", "30", "--num-assets", "2", "--seed"]
    assert run(*words, "1")[0] == 0
    assert run(*words, "1")[0] == 0
    code, _, err = run(*words, "2")
    assert code == 2
    assert "there is a dataset 'mine' of other numbers already" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--on", "sp500-20", "--noise", "garch", "--num-days", "9"],
            "--noise, --num-days: the noise of --on",
        ),
        (["--noise", "garch", "--degrees", "4"], 'with news = "score" any degrees above 2 will do'),
        (["--on", "nowhere"], "no dataset and no file 'nowhere'"),
        (["--signal", "reversal"], "signal = 'reversal' is unknown"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(run, words: list[str], said: str) -> None:
    code, out, err = run("--as", "mine", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
