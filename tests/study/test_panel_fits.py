"""A fit on a simulated panel: judged against the oracle on days that it never saw."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from fints.config import Experiment, override
from fints.data import simulate
from fints.data.learning import prepare
from fints.diagnostics import MEDIATORS
from fints.evaluation import share_of_oracle
from fints.forecaster import Forecaster
from fints.study.panel_cells import Days, PanelFit
from fints.study.panel_fits import _spans, train_on_panel
from fints.study.panel_windows import Chosen

DAYS = Days(train=60, validation=20, test=30)
RECIPE = {"num_assets": 4, "signal": "linear", "r2": 0.5}
PANEL = 3


def experiment(**changes: Any) -> Experiment:
    base = {
        "data.features": ["a", "b"],
        "data.target": "log_return",
        "data.context": 6,
        "model.width": 8,
        "model.depth": 1,
        "model.num_heads": 2,
        "training.batch_size": 16,
        "training.steps": 12,
        "training.warmup_steps": 2,
        "training.learning_rate": 1e-2,
        "training.evaluate_every": 12,
        "training.profile_every": 6,
        "training.keep": "last",
        "training.device": "cpu",
    }
    return override(Experiment(), base | {name.replace("__", "."): value for name, value in changes.items()})


def cell(**changes: Any) -> PanelFit:
    return PanelFit(
        key="k",
        design="d",
        arm="arm",
        role="final",
        panel=PANEL,
        seed=11,
        point={},
        experiment=experiment(**changes).to_dict(),
        simulation=RECIPE,
        days=asdict(DAYS),
        watched=True,
    )


@pytest.fixture(scope="module")
def fitted() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return train_on_panel(cell())


@pytest.fixture(scope="module")
def judged() -> dict[str, pl.DataFrame]:
    """The same network by the forecaster's route: forecasts beside outcomes and signal, by part."""
    made = simulate(num_days=DAYS.total, seed=PANEL, **RECIPE)
    spans = _spans(made.panel.dates.to_list(), DAYS)
    forecaster = Forecaster(experiment(), seed=11)
    # The scaler and the targets' unit are those of the training dates alone, whatever comes after.
    forecaster.fit(made.panel[: spans["validation"][1]], train=spans["train"], validation=spans["validation"])
    scale = forecaster.target_std_
    found = {}
    for name, span in spans.items():
        frame = forecaster.evaluate_frame(made.panel, *span).join(made.signal, on=["date", "asset"])
        found[name] = frame.with_columns(pl.col("forecast", "realised", "signal") / scale)
    return found


def mean_square(values: pl.Series) -> float:
    return float((values.to_numpy() ** 2).mean())


@pytest.mark.slow
def test_the_forecaster_and_the_study_train_the_same_network(fitted: Any, judged: Any) -> None:
    test = judged["test"].rename({"signal": "oracle"})
    assert fitted[0]["share_of_oracle"] == pytest.approx(share_of_oracle(test), rel=1e-5)
    assert len(test) == 4 * DAYS.test


@pytest.mark.slow
def test_the_excess_is_what_a_network_loses_to_the_oracle_on_the_same_windows(
    fitted: Any, judged: Any
) -> None:
    found = fitted[0]
    for name, known in (("train", "train_excess"), ("test", "test_excess_noisy")):
        part = judged[name]
        own = mean_square(part["forecast"] - part["realised"])
        oracle = mean_square(part["signal"] - part["realised"])
        assert found[known] == pytest.approx(own - oracle, rel=1e-4), name
    test = judged["test"]
    assert found["test_excess"] == pytest.approx(mean_square(test["forecast"] - test["signal"]), rel=1e-4)
    validation = judged["validation"]
    loss = mean_square(validation["forecast"] - validation["realised"])
    assert found["validation_loss"] == pytest.approx(loss, rel=1e-4)


def test_what_was_planted_is_known_for_every_day_of_a_window() -> None:
    made = simulate(num_days=DAYS.total, seed=PANEL, num_assets=4, signal="linear", r2=0.9)
    spans = _spans(made.panel.dates.to_list(), DAYS)
    learning = prepare(made.panel, experiment().data, train=spans["train"], validation=spans["validation"])
    clean = torch.from_numpy(made.signal["signal"].to_numpy().reshape(DAYS.total, -1).T.copy())
    clean = (clean / learning.target_std).flatten()
    chosen = Chosen.of(learning.windows.select(*spans["train"], labelled=True, every_token=True), 50)
    _, targets = chosen.gather(torch.arange(50))
    said = chosen.said_by_token(clean)
    assert said.shape == targets.shape
    assert torch.equal(said[:, -1], chosen.said(clean).float())
    for day in range(targets.shape[1]):
        left = (targets[:, day] - said[:, day]).square().nanmean() / said[:, day].square().mean()
        # Of a target with R2 90 %, a ninth is noise; a day's shift would leave all of it and more.
        assert float(left) < 0.3, day


@pytest.mark.slow
def test_the_scalar_of_the_calibration_comes_from_validation_outcomes(fitted: Any, judged: Any) -> None:
    p, r = (judged["validation"][name].to_numpy() for name in ("forecast", "realised"))
    scalar = (p @ r) / (p @ p)
    test = judged["test"]
    expected = mean_square(scalar * test["forecast"] - test["signal"])
    assert fitted[0]["calibrated_excess"] == pytest.approx(expected, rel=1e-4)
    assert abs(expected / fitted[0]["test_excess"] - 1) > 1e-3


def test_a_diverged_fit_is_the_zero_forecast() -> None:
    found, rows = train_on_panel(cell(training__learning_rate=1e12, training__clip_norm=1e12))
    assert found["outcome"] == "diverged"
    assert found["test_excess"] == pytest.approx(found["signal_size"])
    assert found["share_of_oracle"] == pytest.approx(0.0)
    assert rows == []


def test_no_outcome_of_one_part_falls_into_the_next() -> None:
    days = simulate(num_days=DAYS.total, seed=PANEL, **RECIPE).panel.dates.to_list()
    place = {day: number for number, day in enumerate(days)}
    spans = _spans(days, DAYS)
    assert place[spans["train"][1]] + 1 < place[spans["validation"][0]]
    assert place[spans["validation"][1]] + 1 < place[spans["test"][0]]
    assert place[spans["test"][1]] + 1 == DAYS.total - 1


@pytest.mark.slow
def test_what_is_watched_is_there_at_the_start_and_at_every_moment(fitted: Any) -> None:
    rows = pl.DataFrame(fitted[1], infer_schema_length=None)
    names = {name for own in MEDIATORS.values() for name in own} - {"train_test_gap"}
    for step in (0, 6, 12):
        here = set(rows.filter(pl.col("step") == step)["measure"])
        assert names - here == ({"step_output_change"} if step == 0 else set())
    probes = rows.filter(pl.col("measure") == "probe_share").sort("layer")
    assert probes["layer"].to_list() == [0, 1, 2]
    # A linear signal of today's feature is read off the embedding.
    assert probes["value"][0] > 0.9
    assert np.isfinite(rows["value"].drop_nulls().to_numpy()).all()


def test_a_tuning_fit_says_nothing_of_the_test_days() -> None:
    found, rows = train_on_panel(replace(cell(), role="tuning", watched=False))
    assert set(found) == {"outcome", "reason", "steps", "parameters", "validation_loss", "timing"}
    assert rows == []


@pytest.mark.parametrize("target", ["volatility_scaled", "cross_sectional"])
def test_a_fit_is_judged_against_what_was_planted_in_units_of_its_target(target: str) -> None:
    # A volatility is known after 63 returns.
    longer = replace(cell(data__target=target, training__steps=60), watched=False)
    days = asdict(Days(train=160, validation=20, test=30))
    found, _ = train_on_panel(replace(longer, days=days, simulation=RECIPE | {"num_assets": 12}))
    # In its own unit the signal is a half of the target's mean square, and a linear one is soon learnt.
    assert 0.3 < found["signal_size"] < 0.7
    assert found["share_of_oracle"] > 0.6
    noisy = found["test_excess_noisy"] - found["test_excess"]
    assert abs(noisy) < 0.2


def test_a_target_over_more_than_a_day_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs data\.horizon = 1; got 5"):
        train_on_panel(cell(data__horizon=5))


def test_the_best_weights_are_chosen_by_validation_on_a_training_that_stays_the_same() -> None:
    asked = {"training__steps": 60, "training__evaluate_every": 10, "training__learning_rate": 0.05}
    few = {"training__interventions": {"few_windows": {"dose": 0.9}}}
    last, best = (train_on_panel(cell(**asked, **few, training__keep=keep)) for keep in ("last", "best"))
    during = [[row for row in rows if row["step"] is not None] for _, rows in (last, best)]
    assert during[0] == during[1]
    # Overfitted on purpose: an earlier look was better, and what is judged is those weights.
    assert best[0]["validation_loss"] < last[0]["validation_loss"]
    assert best[0]["test_excess"] < last[0]["test_excess"]
    assert (best[0]["outcome"], best[0]["steps"]) == (last[0]["outcome"], last[0]["steps"])


@pytest.mark.parametrize("named", [{"few_windows": {"dose": 0.75}}, {"noisy_targets": {"dose": 2.0}}])
def test_the_training_loss_is_that_of_the_windows_and_outcomes_that_were_trained_on(named: Any) -> None:
    from fints.study.panel_fits import _begun, _trained_on

    plain, changed = _begun(cell()), _begun(cell(training__interventions=named))
    whole, outcomes = _trained_on(plain)
    assert torch.equal(outcomes, whole.outcomes())
    own, given = _trained_on(changed)
    assert changed.steering is not None
    windows = changed.steering.windows(changed.parts["train"])
    inputs, targets = windows.gather(torch.arange(len(windows)))
    assert torch.equal(own.gather(torch.arange(len(own)))[0], inputs)
    assert torch.equal(given, targets[:, -1].double())
    if "few_windows" in named:
        assert len(own) == round(len(whole) / 4)
        assert torch.equal(own.said(changed.clean), whole.said(plain.clean)[-len(own) :])
        assert torch.equal(given, own.outcomes())
    else:
        assert torch.equal(own.said(changed.clean), whole.said(plain.clean))
        assert (given - own.outcomes()).std() == pytest.approx(2.0, rel=0.2)
    # A diverged fit is the zero forecast, whose excess on them is known.
    told, _ = train_on_panel(cell(training__interventions=named, training__learning_rate=1e30))
    assert told["outcome"] == "diverged"
    said = own.said(changed.clean)
    expected = float(given.square().mean() - (said - given).square().mean())
    assert told["train_excess"] == pytest.approx(expected)


def test_windows_of_a_training_loss_are_spread_over_those_that_were_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fints.study import panel_fits

    whole, _ = panel_fits._trained_on(panel_fits._begun(cell()))
    monkeypatch.setattr(panel_fits, "TRAIN_WINDOWS", 50)
    named = {"few_windows": {"dose": 0.5}}
    some, given = panel_fits._trained_on(panel_fits._begun(cell(training__interventions=named)))
    half = len(whole) // 2
    places = torch.arange(50) * half // 50 + half
    assert torch.equal(given, whole.outcomes()[places])
    assert len(some) == 50
