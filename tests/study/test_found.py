"""A reader of a study learns in plain words whether any arm forecast anything, and what could be seen."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest
from scipy import stats

from fints.evaluation import clark_west, detectable_r2
from fints.study.analysis import analyse
from fints.study.found import found_by_arms
from fints.study.report import write_report

SCOPE = {"outcomes": 1000, "assets": 20, "effective_assets": 7.6}


def arms(p_zero: list[float | None], p_mean: list[float | None], r2: float = 0.002) -> pl.DataFrame:
    names = [f"arm_{place}" for place in range(len(p_zero))]
    schema = {"arm": pl.String, "r2_zero": pl.Float64, "clark_west_p": pl.Float64}
    columns = {"arm": names, "r2_zero": [r2] * len(names), "clark_west_p": p_zero}
    return pl.DataFrame(columns, schema=schema).with_columns(
        clark_west_mean_p=pl.Series(p_mean, dtype=pl.Float64), rank_ic=pl.lit(0.03)
    )


def test_the_report_of_a_study_without_skill_says_nothing_found_and_what_it_could_have_found(
    make_study, tmp_path
):
    spec, folder = make_study(
        tmp_path, skill=dict.fromkeys(("pre_norm", "post_norm"), 0.0), schemes=("pre_norm", "post_norm")
    )
    analysis = analyse(spec, folder)
    assert analysis.found.kind == "nothing"
    write_report(analysis, folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("**Nothing found:** "))
    assert "no arm forecasts better than both zero and the prevailing mean" in line
    outcomes, assets = analysis.scope["outcomes"], analysis.scope["effective_assets"]
    smallest = detectable_r2(dates=outcomes, assets=assets, alpha=0.05 / 4)
    assert f"an arm that knew a true R² of {100 * smallest:.2f} % would be found four times in five" in line
    # Above all tables, and in the page too.
    assert text.index(line) < text.index("## As declared before the run")
    assert "<strong>Nothing found:</strong>" in (folder / "report.html").read_text(encoding="utf-8")


def test_an_arm_with_skill_is_named_with_its_r2(make_study, tmp_path):
    skill = {"pre_norm": 0.0, "post_norm": 0.6}
    spec, folder = make_study(tmp_path, skill=skill, schemes=("pre_norm", "post_norm"), simulated=True)
    found = analyse(spec, folder).found
    assert (found.kind, found.arms) == ("found", ("post_norm-depth_2", "post_norm-depth_8"))
    assert re.match(
        r"\*\*Something found:\*\* 2 of 4 arms forecast better than both zero and the prevailing mean .*: "
        r"post_norm-depth_2 \(R² \d+\.\d\d %\), post_norm-depth_8 \(R² \d+\.\d\d %\)\.$",
        found.sentence,
    )


def test_the_p_value_of_an_arm_is_that_of_its_stored_forecasts_against_both_benchmarks(make_study, tmp_path):
    spec, folder = make_study(tmp_path)
    row = analyse(spec, folder).arms.row(by_predicate=pl.col("arm") == "pre_norm-depth_8", named=True)
    rows = pl.read_parquet(folder / "forecasts.parquet").filter(arm="pre_norm-depth_8")
    keys = ["fold", "date", "asset"]
    mean = rows.group_by(keys).agg(pl.col("forecast").mean(), pl.col("realised").first())
    prevailing = pl.read_parquet(folder / "baselines.parquet").filter(baseline="prevailing_mean")
    mean = mean.join(prevailing.select(*keys, prevailing_mean="forecast"), on=keys)
    assert row["clark_west_p"] == pytest.approx(clark_west(mean).p, rel=1e-6)
    assert row["clark_west_mean_p"] == pytest.approx(
        clark_west(mean, benchmark="prevailing_mean").p, rel=1e-6
    )


def test_the_larger_of_the_two_p_values_counts_and_the_arms_are_a_family():
    def kind(*given):
        return found_by_arms(arms(*given), claim="answer", scope=SCOPE).kind

    assert kind([0.001], [0.2]) == kind([0.2], [0.001]) == "nothing"
    assert kind([0.03], [0.04]) == "found"
    assert kind([0.03, 0.5], [0.03, 0.5]) == "nothing"
    assert kind([0.02, 0.5], [0.02, 0.5]) == "found"
    # Where no prevailing mean was stored, zero is the only benchmark; where nothing was tested, none.
    assert kind([0.03], [None]) == "found"
    assert kind([None], [None]) == "undecided"


@pytest.mark.slow
def test_under_the_null_something_is_found_in_a_twentieth_of_studies_at_most():
    rng = np.random.default_rng(5)
    correlated = 0.6 * rng.standard_normal((1000, 1)) + 0.8 * rng.standard_normal((1000, 6))
    p = stats.norm.sf(correlated)
    told = [found_by_arms(arms(list(row), list(row)), claim="answer", scope=SCOPE).kind for row in p]
    # Three standard errors of a share of 4.4 % among 1,000 draws.
    assert 0.02 < told.count("found") / len(told) < 0.064


def test_information_in_forecasts_of_the_wrong_size_is_not_called_an_edge():
    found = found_by_arms(arms([0.001], [0.001], r2=-0.01), claim="answer", scope=SCOPE)
    assert found.kind == "found"
    assert "The R² of arm_0 is not above zero all the same" in found.sentence


def test_more_than_can_be_known_of_a_real_panel_is_a_suspected_leak():
    table = arms([0.001, 0.4], [0.001, 0.4]).with_columns(rank_ic=pl.Series([0.23, 0.0]))
    found = found_by_arms(table, claim="answer", scope=SCOPE)
    assert found.kind == "suspected_leak"
    assert found.sentence.startswith("**Suspected leak:** 1 of 2 arms")
    assert "a mean rank IC of 0.23 (arm_0)" in found.sentence
    assert found_by_arms(table, claim="answer", scope=SCOPE, simulated=True).kind == "found"


def test_a_run_that_claims_nothing_says_nothing_of_this_either(make_study, tmp_path):
    spec, folder = make_study(tmp_path, folds=2, schemes=("pre_norm", "post_norm"), claim="none")
    analysis = analyse(spec, folder)
    assert (analysis.found.kind, analysis.found.sentence) == ("unsaid", "")
    write_report(analysis, folder)
    assert "found:**" not in (folder / "report.md").read_text(encoding="utf-8")
