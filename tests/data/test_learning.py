"""What a fit learns from is the same bits by frames, in memory and from a store, in blocks of any size."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from fints import Forecaster
from fints.config import DataConfig, Experiment, override
from fints.data import Panel, StandardScaler, Windows, features, grid, simulate, targets, windows
from fints.data.learning import Learning, has_window, is_large, prepare, windows_of
from fints.data.window_store import SETTING
from fints.data.windows import by_past_scale

NAMES = (
    "return_1",
    "momentum_20_5",
    "volatility_7",
    "log_volatility_21",
    "rank_return_5",
    "rank_log_volatility_7",
    "volume",
    "rank_volume",
)
SMALL = {
    "model.width": 16,
    "model.depth": 1,
    "model.num_heads": 2,
    "data.context": 8,
    "data.features": list(NAMES),
    "training.steps": 12,
    "training.warmup_steps": 2,
    "training.evaluate_every": 6,
    "training.batch_size": 32,
}


def by_frames(
    panel: Panel, data: DataConfig, train_end: dt.date, validation: tuple[dt.date, dt.date]
) -> tuple[Windows, StandardScaler, float, dt.date]:
    """The definition, one long frame after another."""
    raw, labels = features(panel, data.features), targets(panel, data.target, data.horizon)
    reaches = (pl.col("date") < validation[0]) & (pl.col("label_end") >= validation[0])
    labels = labels.with_columns(
        pl.when(~reaches.fill_null(value=False)).then(pl.col(name)).alias(name)
        for name in ("target", "label_end")
    )
    learnt = pl.col("date") <= train_end
    scaler = StandardScaler(clip=data.clip).fit(raw.filter(learnt), data.features)
    outcomes = labels.filter(learnt)["target"].drop_nulls().to_list()
    std = math.sqrt(math.fsum(value * value for value in outcomes) / len(outcomes))
    used = labels.filter(learnt | pl.col("date").is_between(*validation), pl.col("target").is_not_null())
    made = Windows.build(
        scaler.transform(raw),
        labels.with_columns(pl.col("target") / std),
        data.features,
        context=data.context,
        min_valid=data.min_valid,
    )
    return made, scaler, std, used["label_end"].max()


def assert_same(found: Windows, expected: Windows) -> None:
    """Bits of the features; targets to the last bit that one rounding of their scale may move."""
    assert found.assets == expected.assets
    assert (found.dates == expected.dates).all()
    assert found.values.numpy().tobytes() == expected.values.numpy().tobytes()
    torch.testing.assert_close(found.targets, expected.targets, rtol=1.2e-7, atol=0, equal_nan=True)
    np.testing.assert_array_equal(found.label_ends, expected.label_ends)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("target", ["log_return", "volatility_scaled", "cross_sectional"])
def test_blocks_of_any_size_give_what_whole_frames_give(
    random_panel: Callable[[int], Panel],
    seed: int,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(seed)
    for module, name, most in ((grid, "ROWS_AT_ONCE", 300), (grid, "CELLS_AT_ONCE", 2000)):
        monkeypatch.setattr(module, name, int(draw.integers(20, most)))
    monkeypatch.setattr(windows, "CELLS_AT_ONCE", int(draw.integers(20, 5000)))
    panel = random_panel(seed if target != "cross_sectional" else seed + 100)
    data = DataConfig(
        features=NAMES,
        target=target,
        horizon=int(draw.integers(1, 5)),
        context=int(draw.integers(1, 12)),
    )
    place = len(panel.dates) * 8 // 10
    validation = (panel.dates[place], panel.dates[-1])
    train_end = panel.dates[place] - dt.timedelta(days=1)
    try:
        expected, scaler, std, as_of = by_frames(panel, data, train_end, validation)
    except (ValueError, ZeroDivisionError):
        with pytest.raises(ValueError, match=r"hold no outcome|has no value"):
            prepare(panel, data, validation=validation)
        return
    monkeypatch.setenv("FINTS_HOME", str(tmp_path))
    for mebibytes in ("1024", "0"):
        monkeypatch.setenv(SETTING, mebibytes)
        assert is_large(panel, len(NAMES)) == (mebibytes == "0")
        found = prepare(panel, data, validation=validation)
        assert isinstance(found, Learning)
        assert found.scaler == scaler
        assert found.target_std == pytest.approx(std, rel=1e-15)
        assert (found.train, found.validation, found.as_of) == ((None, train_end), validation, as_of)
        assert_same(found.windows, expected)
        for start, end in ((panel.dates[0], train_end), (panel.dates[0], panel.dates[9]), validation):
            chosen = expected.select(start, end, labelled=True)
            assert has_window(panel, data, start, end) == (len(chosen) > 0)
        again = windows_of(panel, data, scaler)
        assert again.values.numpy().tobytes() == expected.values.numpy().tobytes()
        assert again.targets.isnan().all()
    assert len([path for path in (tmp_path / "windows").iterdir() if path.is_dir()]) == 1


def test_a_forecaster_fits_and_forecasts_the_same_bits_from_a_store(
    random_panel: Callable[[int], Panel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINTS_HOME", str(tmp_path))
    panel = random_panel(4)
    experiment = override(Experiment(), SMALL)
    cut = panel.dates[len(panel.dates) * 2 // 3]
    late, day = pl.col("date") > cut, panel.dates[-20]
    shocked = Panel(panel.frame.with_columns(pl.when(late).then(pl.col("close") * 1000).otherwise("close")))
    history, tables, shocks = [], [], []
    for mebibytes in ("1024", "0"):
        monkeypatch.setenv(SETTING, mebibytes)
        fitted = Forecaster(experiment).fit(panel[:cut])
        history.append(fitted.result_.history)
        tables.append(fitted.predict(panel))
        shocks.append(fitted.predict(shocked).filter(pl.col("decision_time") <= cut))
        assert_frame_equal(
            fitted.predict(panel, start=day),
            tables[-1].filter(pl.col("decision_time") >= day),
            check_exact=True,
        )
    assert history[0] == history[1]
    assert tables[0]["forecast"].count() > 100
    assert_frame_equal(tables[0], tables[1], check_exact=True)
    for shock in shocks:
        assert_frame_equal(shock, tables[0].filter(pl.col("decision_time") <= cut), check_exact=True)


def simulated(**changes: object) -> tuple[Panel, Learning]:
    panel = simulate(
        num_assets=4, num_days=90, noise="garch", feature_scale="proportional", log_volatility_column=True
    ).panel
    data = DataConfig(features=("log_volatility", "a", "b"), target="log_return", context=8, **changes)  # type: ignore[arg-type]
    return panel, prepare(panel, data)


def test_an_unscaled_feature_enters_as_it_is_and_the_others_as_ever() -> None:
    (panel, plain), (_, left) = simulated(), simulated(unscaled=("b",))
    as_it_is = torch.from_numpy(panel.frame["b"].to_numpy().reshape(90, 4).T.copy()).float()
    assert torch.equal(left.windows.values[..., 2], as_it_is)
    assert torch.equal(left.windows.values[..., :2], plain.windows.values[..., :2])
    assert left.scaler.clip == plain.scaler.clip


def test_a_feature_scaled_by_window_is_over_its_root_mean_square_so_far() -> None:
    (_, plain), (_, scaled) = simulated(), simulated(window_scaled=("a",))
    own = [made.windows.select(None, None, labelled=True, every_token=True) for made in (plain, scaled)]
    chosen = torch.tensor([0, 17, len(own[0]) - 1])
    (before, targets_before), (after, targets_after) = (one.gather(chosen) for one in own)
    for window in range(3):
        for day in range(8):
            past = before[window, : day + 1, 1].double()
            expected = float(past[-1] / past.square().mean().sqrt())
            assert float(after[window, day, 1]) == pytest.approx(expected, rel=1e-5)
    assert torch.equal(after[..., [0, 2]], before[..., [0, 2]])
    assert torch.equal(targets_after.nan_to_num(), targets_before.nan_to_num())


def test_scaling_by_window_takes_away_the_scale_and_looks_past_missing_days() -> None:
    values = torch.randn(5, 9, dtype=torch.float64)
    values[0, 0] = values[1, 4] = torch.nan
    values[2, :3] = 0.0
    found = by_past_scale(values)
    torch.testing.assert_close(by_past_scale(0.01 * values), found, equal_nan=True)
    assert torch.equal(found.isnan(), values.isnan())
    assert (found[2, :3] == 0).all()
    kept = values[1][~values[1].isnan()]
    torch.testing.assert_close(found[1][~values[1].isnan()], by_past_scale(kept[None])[0])
    # A later day moves no earlier one.
    later = values.clone()
    later[:, 6:] *= 100
    assert torch.equal(by_past_scale(later)[:, :6].nan_to_num(), found[:, :6].nan_to_num())


@pytest.mark.parametrize("name", ["unscaled", "window_scaled"])
def test_only_a_feature_of_the_experiment_can_be_scaled_otherwise(name: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.{name} = \('c',\) cannot be used: name features of"):
        DataConfig(features=("a", "b"), **{name: ("c",)})  # type: ignore[arg-type]


@pytest.mark.parametrize("unscaled", [(), ("return_1",)])
def test_a_forecaster_scales_windows_when_it_forecasts_as_when_it_learnt(
    unscaled: tuple[str, ...], tmp_path: Path
) -> None:
    panel = simulate(num_assets=3, num_days=80).panel
    small = override(
        Experiment(),
        SMALL | {"data.features": ["return_1", "a"], "data.target": "log_return", "training.steps": 3},
    )
    changed = override(small, {"data.window_scaled": ["a"], "data.unscaled": list(unscaled)})
    fitted = Forecaster(changed).fit(panel)
    # Windows of an input on another scale are the same windows; the scaler is of the first.
    louder = Panel(panel.frame.with_columns(a=3.0 * pl.col("a")), name="louder")
    fitted.scaler_ = replace(
        fitted.scaler_, mean=(fitted.scaler_.mean[0], 0.0), std=(fitted.scaler_.std[0], 1.0)
    )
    quiet, loud = (fitted.predict(one)["forecast"].drop_nulls() for one in (panel, louder))
    np.testing.assert_allclose(loud, quiet, rtol=1e-4, atol=1e-7)
    assert float(np.std(quiet.to_numpy())) > 1e-5
