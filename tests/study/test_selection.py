"""The verdict over many levels follows from the stored forecasts by a rule fixed beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fints.evaluation import backtest, deflated_sharpe, pairwise_differences
from fints.study import figures
from fints.study.analysis import analyse
from fints.study.report import write_report
from fints.study.trading import _prices

SCHEMES = ("pre_norm", "post_norm", "re_zero", "deep_norm")
TIMES = {"pre_norm": 1.0, "post_norm": 1.5, "re_zero": 0.8, "deep_norm": 0.82}


def matched(**times: float) -> dict[str, Any]:
    steps = {**TIMES, **times}
    return {
        "over": "residual",
        "by": "depth",
        "reference": "pre_norm",
        "step_times": steps,
        "measured": "python benchmarks/schemes.py",
        "comparisons": {"width": {scheme: f"{scheme}-depth_2" for scheme in SCHEMES}},
        "time": {f"{scheme}-depth_2": time for scheme, time in steps.items()},
    }


def made(make_study: Any, folder: Path, **changes: Any) -> tuple[dict[str, Any], Path]:
    values = {"schemes": SCHEMES, "depths": ("2",), "folds": 8, "days": 12, "seeds": (0, 1)}
    return make_study(folder, **{**values, "matching": matched(), **changes})


def table(folder: Path) -> np.ndarray:
    """R2 by fold and scheme, seeds averaged, from the file itself."""
    rows = pl.read_parquet(folder / "forecasts.parquet")
    error = (
        rows.group_by("arm", "fold", "seed")
        .agg(r2=1 - (pl.col("realised") - pl.col("forecast")).pow(2).sum() / pl.col("realised").pow(2).sum())
        .group_by("arm", "fold")
        .agg(pl.col("r2").mean())
    )
    columns = [error.filter(pl.col("arm") == f"{scheme}-depth_2").sort("fold")["r2"] for scheme in SCHEMES]
    return np.column_stack([column.to_numpy() for column in columns])


def test_every_number_is_that_of_all_pairs_together(make_study: Any, tmp_path: Path) -> None:
    spec, folder = made(make_study, tmp_path, skill={"re_zero": 0.9, "deep_norm": 0.1})
    analysis = analyse(spec, folder)
    assert analysis.selection is not None
    (one,) = analysis.selection.comparisons
    found = pairwise_differences(table(folder))
    assert one.clusters == 8
    for place, row in enumerate(one.rows):
        assert row["outcome"] == pytest.approx(table(folder)[:, place].mean(), abs=1e-12)
        assert row["behind"] == pytest.approx(found.behind_the_best()[place], abs=1e-12)
        assert row["may_be_best"] == (place in found.may_be_best())
        if place:
            assert row["difference"] == pytest.approx(found.estimate[place, 0], abs=1e-12)
            assert row["low"] == pytest.approx(found.low[place, 0], abs=1e-12)
            assert row["p"] == found.p[place, 0]
    # No contrast is primary: the verdict is over all levels, so Holm is over all contrasts.
    assert not analysis.contrasts["primary"].any()
    assert analysis.contrasts["p_holm"].null_count() == 0


def test_one_that_surely_exceeds_all_others_is_to_be_picked(make_study: Any, tmp_path: Path) -> None:
    skill = {"pre_norm": 0.0, "post_norm": 1.0, "re_zero": -1.0, "deep_norm": -2.0}
    spec, folder = made(make_study, tmp_path, skill=skill, smallest_effect=1e-6, days=40)
    analysis = analyse(spec, folder)
    assert analysis.selection is not None
    (one,) = analysis.selection.comparisons
    assert (one.kind, one.pick, one.chosen("may_be_best")) == ("best", "post_norm", ["post_norm"])
    assert "post_norm surely exceeds every other scheme" in analysis.verdict
    assert analysis.decision == "best"
    beaten = {row["baseline"]: row["p_holm"] for row in analysis.selection.baselines}
    # ar1 is noise here; zero and the mean are nested in every network and have no such test.
    assert beaten["ar1"] < 0.05
    assert beaten["zero"] is None
    assert "Some scheme beats" in analysis.verdict


def test_of_those_that_are_good_enough_the_cheapest_is_to_be_picked(make_study: Any, tmp_path: Path) -> None:
    spec, folder = made(make_study, tmp_path, smallest_effect=0.5)
    analysis = analyse(spec, folder)
    assert analysis.selection is not None
    (one,) = analysis.selection.comparisons
    assert one.kind == "good_enough"
    assert one.chosen("good_enough") == list(SCHEMES)
    # deep_norm takes 2.5 % longer than re_zero, which is no difference of time: the higher outcome counts.
    near = {row["level"]: row["outcome"] for row in one.rows if row["level"] in ("re_zero", "deep_norm")}
    assert one.pick == max(near, key=lambda level: near[level])
    dear = analyse(spec | {"matching": matched(deep_norm=0.9)}, folder).selection
    assert dear is not None
    assert dear.comparisons[0].pick == "re_zero"


def test_a_level_with_a_failed_fit_is_never_picked(make_study: Any, tmp_path: Path) -> None:
    failed = {("re_zero-depth_2", 3, 0): "diverged"}
    spec, folder = made(make_study, tmp_path, smallest_effect=0.5, failed=failed)
    analysis = analyse(spec | {"matching": matched(deep_norm=0.9)}, folder)
    assert analysis.selection is not None
    (one,) = analysis.selection.comparisons
    assert one.pick == "deep_norm"
    assert "re_zero" not in one.chosen("good_enough")
    assert "1 of 64 final fits failed" in analysis.verdict


def test_undecided_names_those_that_may_be_best_and_what_would_decide(
    make_study: Any, tmp_path: Path
) -> None:
    spec, folder = made(make_study, tmp_path, skill={"deep_norm": -2.0}, smallest_effect=0.001)
    analysis = analyse(spec, folder)
    assert analysis.selection is not None
    (one,) = analysis.selection.comparisons
    assert one.kind == "undecided"
    assert one.pick is None
    assert one.chosen("may_be_best") == ["pre_norm", "post_norm", "re_zero"]
    assert "pre_norm, post_norm and re_zero may be best, deep_norm surely is not" in analysis.verdict
    found = pairwise_differences(table(folder))
    reach = found.critical * found.se[:3, :3].max()
    assert one.folds_needed == int(np.ceil(8 * (reach / 0.001) ** 2))


def test_one_fold_gives_no_verdict(make_study: Any, tmp_path: Path) -> None:
    spec, folder = made(make_study, tmp_path, folds=1, days=70)
    analysis = analyse(spec, folder)
    assert analysis.decision == "void"
    assert "there is no verdict" in analysis.verdict


def test_the_report_tells_of_the_choice_what_it_earns_and_what_it_costs(
    make_study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Composed but left blank: drawing takes longest.
    monkeypatch.setattr(figures, "write_figure", lambda _, path: Path(f"{path}.svg").touch())
    spec, folder = made(make_study, tmp_path)
    text = write_report(analyse(spec, folder), folder).with_suffix(".md").read_text()
    for title in ("Which to pick", "What the forecasts would have earned", "What each arm costs"):
        assert f"## {title}" in text
    assert "which of 4 schemes to pick at the same width" in text
    assert "figures/selection.svg" in text
    # A study that matches nothing has none of it.
    del spec["matching"]
    text = write_report(analyse(spec, folder), folder).with_suffix(".md").read_text()
    assert "Which to pick" not in text
    assert "figures/selection.svg" not in text


def test_portfolios_earn_what_they_would_have_on_the_prices_that_the_outcomes_came_from(
    make_study: Any, tmp_path: Path
) -> None:
    spec, folder = made(make_study, tmp_path, days=30)
    analysis = analyse(spec, folder)
    assert analysis.trading is not None
    rows = pl.read_parquet(folder / "forecasts.parquet")
    one = rows.filter((pl.col("arm") == "post_norm-depth_2") & (pl.col("seed") == 0)).sort("asset", "date")
    # Prices from the definition: the outcome of t is the log return over (t, t + 1].
    closes = []
    for (asset,), part in one.partition_by("asset", as_dict=True).items():
        level = np.exp(np.concatenate([[0.0], np.cumsum(0.01 * part["realised"].to_numpy())]))
        days = [*part["date"].to_list(), part["date"].max() + (part["date"][1] - part["date"][0])]
        closes.append(pl.DataFrame({"date": days, "asset": asset, "close": 37.0 * level}))
    mean = rows.filter(pl.col("arm") == "post_norm-depth_2").group_by("date", "asset")
    wanted = backtest(
        mean.agg(pl.col("forecast").mean()).sort("date", "asset"),
        pl.concat(closes),
        execution="next_close",
        cost_bps=5.0,
    )
    row = analysis.trading.table.row(by_predicate=pl.col("name") == "post_norm-depth_2", named=True)
    assert row["net"] == pytest.approx(wanted.summary()["net_return"], rel=1e-9)
    assert row["turnover"] == pytest.approx(wanted.summary()["turnover"], rel=1e-9)
    # Four arms at three rates, and three baselines that trade.
    assert analysis.trading.trials == 4 * 3 + 3
    net = wanted.dates["net"].to_numpy()
    assert row["deflated"] == pytest.approx(deflated_sharpe(net, trials=15), rel=1e-6)


def test_a_day_without_an_outcome_leaves_a_price_as_it_is() -> None:
    frame = pl.DataFrame(
        {
            "date": [1, 2, 3, 1, 3],
            "asset": ["a", "a", "a", "b", "b"],
            "realised": [1.0, 2.0, 3.0, 1.0, 1.0],
            "unit_scale": [0.1, 0.1, 0.1, 0.2, 0.2],
        }
    ).with_columns(date=pl.date(2020, 1, pl.col("date")))
    wide = _prices(frame).pivot(on="asset", index="date", values="close").sort("date")
    np.testing.assert_allclose(np.log(wide["a"].to_numpy()), [0, 0.1, 0.3, 0.6], atol=1e-15)
    np.testing.assert_allclose(np.log(wide["b"].to_numpy()), [0, 0.2, 0.2, 0.4], atol=1e-15)


def test_outcomes_that_are_no_daily_returns_are_not_traded(make_study: Any, tmp_path: Path) -> None:
    spec, folder = made(make_study, tmp_path)
    for arm in spec["arms"]:
        arm["experiment"]["data"]["target"] = "cross_sectional"
    assert analyse(spec, folder).trading is None
