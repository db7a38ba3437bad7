"""The tables and the verdict follow from the stored forecasts by rules fixed beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from fints.evaluation import metrics, paired_contrast
from fints.study.analysis import analyse
from fints.study.cells import fit_scores
from fints.study.verdict import MEASURES, decide, folds_to_decide, number

PRE, POST = "pre_norm-depth_8", "post_norm-depth_8"


def cells_of(folder: Path, arm: str) -> dict[tuple[int, int], float]:
    """R2 of each (fold, seed) from the file itself."""
    rows = pl.read_parquet(folder / "forecasts.parquet").filter(pl.col("arm") == arm)
    found = {}
    for (fold, seed), part in rows.partition_by("fold", "seed", as_dict=True).items():
        error, total = ((part["realised"] - part["forecast"]) ** 2).sum(), (part["realised"] ** 2).sum()
        found[fold, seed] = 1 - error / total
    return found


def test_the_primary_contrast_is_the_paired_difference_of_stored_forecasts(make_study, tmp_path):
    spec, folder = make_study(tmp_path, skill={"post_norm": 0.2})
    analysis = analyse(spec, folder)
    a, b = cells_of(folder, POST), cells_of(folder, PRE)
    by_fold = np.array([[a[fold, seed] - b[fold, seed] for seed in (0, 1)] for fold in range(4)]).mean(axis=1)
    row = analysis.contrasts.row(0, named=True)
    assert row["contrast"] == "post_norm − pre_norm at depth 8"
    assert row["estimate"] == pytest.approx(by_fold.mean(), abs=1e-14)
    assert row["se"] == pytest.approx(by_fold.std(ddof=1) / 2, abs=1e-14)
    assert (row["clusters"], row["cells"], row["unpaired"]) == (4, 8, 0)
    arm = analysis.arms.row(by_predicate=pl.col("arm") == POST, named=True)
    assert arm["r2_zero"] == pytest.approx(np.mean(list(a.values())), abs=1e-14)
    assert analysis.decision == "worse"
    assert analysis.verdict.startswith("Exploratory: pre_norm beats post_norm at depth 8 by ")


def test_a_factor_the_contrast_leaves_open_is_averaged_over(make_study, tmp_path):
    contrast = {"compare": ["residual", "post_norm"], "against": "pre_norm", "within": {}}
    spec, folder = make_study(tmp_path, primary=contrast, contrasts=[])
    row = analyse(spec, folder).contrasts.row(0, named=True)
    differences = []
    for fold in range(4):
        for seed in (0, 1):
            both = [
                cells_of(folder, f"post_norm-depth_{depth}")[fold, seed]
                - cells_of(folder, f"pre_norm-depth_{depth}")[fold, seed]
                for depth in ("2", "8")
            ]
            differences.append({"fold": fold, "seed": seed, "difference": np.mean(both)})
    expected = paired_contrast(pl.DataFrame(differences))
    assert row["estimate"] == pytest.approx(expected.estimate, abs=1e-14)
    assert row["p"] == pytest.approx(expected.p, rel=1e-8)


def test_a_failed_fit_enters_as_the_zero_forecast_whatever_it_left_behind(make_study, tmp_path):
    failed = {(POST, 1, 0): "diverged", (POST, 2, 1): "diverged"}
    spec, folder = make_study(tmp_path, failed=failed)
    analysis = analyse(spec, folder)
    cells = analysis.cells.filter(pl.col("arm") == POST)
    assert cells.filter("failed")["r2_zero"].to_list() == [0.0, 0.0]
    assert cells.filter("failed")["rank_ic"].to_list() == [0.0, 0.0]
    row = analysis.contrasts.row(0, named=True)
    assert (row["failed_compare"], row["failed_against"], row["cells"]) == (2, 0, 8)
    a, b = cells_of(folder, POST) | {(1, 0): 0.0, (2, 1): 0.0}, cells_of(folder, PRE)
    assert row["estimate"] == pytest.approx(np.mean([a[key] - b[key] for key in b]), abs=1e-14)
    assert "2 of 8 fits of post_norm failed and entered as the zero forecast" in analysis.verdict
    counted = analysis.outcomes.filter((pl.col("arm") == POST) & (pl.col("role") == "final"))
    assert dict(counted.select("outcome", "fits").iter_rows()) == {
        "diverged": 2,
        "finished": 6,
    }


def test_a_failed_fit_without_any_stored_row_counts_the_same(make_study, tmp_path):
    spec, folder = make_study(tmp_path, failed={(POST, 1, 0): "diverged"})
    before = analyse(spec, folder).contrasts
    path = folder / "forecasts.parquet"
    lost = (pl.col("arm") == POST) & (pl.col("fold") == 1) & (pl.col("seed") == 0)
    rows = pl.read_parquet(path)
    rows.filter(~lost).write_parquet(path)
    assert analyse(spec, folder).contrasts.equals(before)
    rows.with_columns(pl.when(lost).then(None).otherwise(pl.col("forecast")).alias("forecast")).write_parquet(
        path
    )
    assert analyse(spec, folder).contrasts.equals(before)


def test_the_correlation_of_a_failed_fit_is_zero_so_that_its_pair_does_not_drop_out(make_study, tmp_path):
    spec, folder = make_study(tmp_path, failed={(POST, 1, 0): "diverged"}, outcome="rank_ic")
    analysis = analyse(spec, folder)
    row = analysis.contrasts.row(0, named=True)
    assert (row["cells"], row["unpaired"]) == (8, 0)
    assert "1 of 8 fits of post_norm failed and entered as the zero forecast" in analysis.verdict
    ics = {
        (arm, fold, seed): ic
        for arm, fold, seed, ic in analysis.cells["arm", "fold", "seed", "rank_ic"].rows()
    }
    expected = [
        (0.0 if (fold, seed) == (1, 0) else ics[POST, fold, seed]) - ics[PRE, fold, seed]
        for fold in range(4)
        for seed in (0, 1)
    ]
    assert row["estimate"] == pytest.approx(np.mean(expected), abs=1e-14)
    # The days of a fit that was not judged on them are not days without a correlation.
    assert analysis.cells.filter("failed")["missing_days"].to_list() == [None]


def test_an_arm_that_failed_throughout_does_not_beat_one_worse_than_zero(make_study, tmp_path):
    failed = {(POST, fold, seed): "diverged" for fold in range(4) for seed in (0, 1)}
    spec, folder = make_study(tmp_path, skill={"pre_norm": -0.5}, failed=failed)
    analysis = analyse(spec, folder)
    row = analysis.contrasts.row(0, named=True)
    assert row["low"] > 0
    assert analysis.decision == "withheld"
    assert "beats" not in analysis.verdict
    assert "a level with failed fits is declared neither better nor equivalent" in analysis.verdict
    assert "8 of 8 fits of post_norm failed" in analysis.verdict


def test_an_arm_without_failures_may_beat_one_that_failed(make_study, tmp_path):
    failed = {(POST, fold, 0): "diverged" for fold in range(4)}
    spec, folder = make_study(tmp_path, failed=failed, skill={"pre_norm": 0.9, "post_norm": 0.1})
    assert analyse(spec, folder).decision == "worse"


@pytest.mark.parametrize("failed", [(1, 0), (0, 1)])
def test_a_failed_fit_on_either_side_withholds_equivalence(failed: tuple[int, int]):
    frame = pl.DataFrame({"fold": range(6), "seed": 0, "difference": [1e-4, -1e-4] * 3})
    contrast = paired_contrast(frame)
    assert decide(contrast, 0.1).kind == "equivalent"
    assert decide(contrast, 0.1, failed=failed).kind == "withheld"


def test_what_a_tracker_is_told_of_a_fit_is_what_the_report_says_of_it(make_study, tmp_path):
    spec, folder = make_study(tmp_path, failed={(POST, 1, 0): "diverged"})
    cells = analyse(spec, folder).cells
    rows = pl.read_parquet(folder / "forecasts.parquet")
    for row in cells.iter_rows(named=True):
        key = {name: row[name] for name in ("arm", "fold", "seed")}
        own = rows.filter(**key).drop("arm", "fold", "seed")
        told = fit_scores(own, outcome=row["outcome"], horizon=1)
        for name in ("r2_zero", "ic", "rank_ic", "mse", "forecast_sd_ratio"):
            assert told[name] == row[name], name
        assert (told["r2_zero"] == 0.0) == row["failed"]


def test_an_outcome_nobody_knows_is_refused(make_study, tmp_path):
    spec, folder = make_study(tmp_path, failed={(POST, 1, 0): "out_of_memory"})
    with pytest.raises(ValueError, match="holds out_of_memory"):
        analyse(spec, folder)


def test_arms_that_both_failed_throughout_get_no_verdict_not_equivalence(make_study, tmp_path):
    failed = {(arm, fold, seed): "diverged" for arm in (PRE, POST) for fold in range(4) for seed in (0, 1)}
    spec, folder = make_study(tmp_path, failed=failed)
    analysis = analyse(spec, folder)
    assert analysis.decision == "void"
    assert "no verdict" in analysis.verdict
    assert "8 of 8 fits of post_norm and 8 of 8 fits of pre_norm failed" in analysis.verdict


def test_a_study_in_which_every_fit_failed_still_has_a_report_of_it(make_study, tmp_path):
    arms = [f"{scheme}-depth_{depth}" for scheme in ("pre_norm", "post_norm") for depth in ("2", "8")]
    failed = {(arm, fold, seed): "diverged" for arm in arms for fold in range(4) for seed in (0, 1)}
    spec, folder = make_study(tmp_path, schemes=("pre_norm", "post_norm"), failed=failed)
    analysis = analyse(spec, folder)
    assert analysis.decision == "void"
    assert analysis.cells["r2_zero"].to_list() == [0.0] * 32


def test_a_fit_that_has_not_run_is_missing_not_zero(make_study, tmp_path):
    spec, folder = make_study(tmp_path, missing=((POST, 3, 1),))
    analysis = analyse(spec, folder)
    row = analysis.contrasts.row(0, named=True)
    assert (row["cells"], row["unpaired"], row["failed_compare"]) == (7, 1, 0)
    assert analysis.arms.row(by_predicate=pl.col("arm") == POST, named=True)["missing"] == 1
    assert analysis.cells.filter(pl.col("outcome") == "missing")["r2_zero"].to_list() == [None]


def test_every_arm_and_baseline_is_judged_on_the_same_rows(make_study, tmp_path):
    spec, folder = make_study(tmp_path)
    path = folder / "forecasts.parquet"
    rows = pl.read_parquet(path)
    unseen = (pl.col("arm") == POST) & (pl.col("asset") == "asset_0")
    rows.with_columns(
        pl.when(unseen).then(None).otherwise(pl.col("forecast")).alias("forecast")
    ).write_parquet(path)
    analysis = analyse(spec, folder)
    # The fits of that arm forecast asset_0 in no fold, so nobody is judged on it.
    assert analysis.cells["rows"].unique().to_list() == [300]
    assert analysis.baselines["rows"].unique().to_list() == [1200]
    assert analysis.scope["rows_dropped"] == 240
    own = rows.filter((pl.col("arm") == PRE) & (pl.col("fold") == 0) & (pl.col("seed") == 0))
    expected = metrics(own.filter(pl.col("asset") != "asset_0"))["r2_zero"]
    assert analysis.cells.filter(pl.col("arm") == PRE)["r2_zero"][0] == pytest.approx(expected, abs=1e-14)


def test_secondary_contrasts_are_decided_after_holm(make_study, tmp_path):
    spec, folder = make_study(
        tmp_path, skill={"post_norm": 0.2, "dynamic_hyper_connections": 0.5}, smallest_effect=1e-4
    )
    rows = analyse(spec, folder).contrasts
    assert rows["p_holm"][0] is None
    raw = rows["p"][1:].to_list()
    assert rows["p_holm"][1:].to_list() == pytest.approx(
        [min(1.0, 2 * p) if p == min(raw) else max(p, 2 * min(raw)) for p in raw]
    )
    for row in rows[1:].iter_rows(named=True):
        assert (row["decision"] in ("better", "worse")) == (row["p_holm"] < 0.05)


def test_arms_with_the_same_forecasts_are_equivalent_and_said_to_be(make_study, tmp_path):
    spec, folder = make_study(tmp_path)
    path = folder / "forecasts.parquet"
    rows = pl.read_parquet(path)
    nudged = rows.filter(pl.col("arm") == PRE).with_columns(
        arm=pl.lit(POST), forecast=pl.col("forecast") * 1.001
    )
    pl.concat([rows.filter(pl.col("arm") != POST), nudged]).sort("arm", "fold", "seed").write_parquet(path)
    analysis = analyse(spec, folder)
    assert analysis.decision == "equivalent"
    assert "no difference beyond ±1.0 percentage points of" not in analysis.verdict
    assert (
        "no difference beyond ±1.0 percentage points between post_norm and pre_norm at depth 8"
        in analysis.verdict
    )


def test_a_wide_interval_is_undecided_and_says_how_many_folds_it_needs(make_study, tmp_path):
    spec, folder = make_study(tmp_path, skill={"post_norm": 0.45}, smallest_effect=0.002)
    analysis = analyse(spec, folder)
    row = analysis.contrasts.row(0, named=True)
    assert analysis.decision == "undecided"
    assert f"needs about {row['folds_needed'] - 4:,} more folds" in analysis.verdict
    assert (
        "neither zero nor a difference below −0.20 can be excluded, one above +0.20 can" in analysis.verdict
    )


def test_one_fold_gives_no_verdict(make_study, tmp_path):
    spec, folder = make_study(tmp_path, folds=1)
    analysis = analyse(spec, folder)
    assert analysis.decision == "void"
    assert "one fold gives no error to judge by" in analysis.verdict


@pytest.mark.parametrize(
    ("claim", "opening"),
    [("exploratory", "Exploratory: "), ("answer", "pre_norm beats")],
)
def test_the_verdict_opens_with_its_standing(make_study, tmp_path, claim: str, opening: str):
    spec, folder = make_study(tmp_path, skill={"post_norm": 0.2}, claim=claim)
    assert analyse(spec, folder).verdict.startswith(opening)


def test_a_run_that_claims_nothing_says_no_direction_and_no_p(make_study, tmp_path):
    spec, folder = make_study(tmp_path, skill={"post_norm": 0.2}, claim="none")
    verdict = analyse(spec, folder).verdict
    assert verdict == "Claims nothing: a run this short only checks that the path works."


def test_the_folds_to_decide_are_the_fewest_for_both_tests():
    needed = folds_to_decide(0.7, 0.3)
    rng = np.random.default_rng(0)

    def share(kind: str, truth: float, folds: int) -> float:
        values = truth + 0.7 * rng.standard_normal((4000, folds))
        mean, se = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(folds)
        equivalent = np.abs(mean) + stats.t.ppf(0.95, folds - 1) * se < 0.3
        better = ~equivalent & (mean > stats.t.ppf(0.975, folds - 1) * se)
        found = {"equivalent": equivalent, "better": better}[kind]
        # The shortcut is the very rule: a few draws through the front door.
        for place in range(5):
            frame = pl.DataFrame({"fold": range(folds), "seed": 0, "difference": values[place]})
            assert (decide(paired_contrast(frame), 0.3).kind == kind) == found[place]
        return float(found.mean())

    # Found at the smallest effect, or shown absent at zero: 80 % of the time, and not with fewer folds.
    assert share("better", 0.3, needed) > 0.77
    assert share("equivalent", 0.0, needed) > 0.78
    assert min(share("better", 0.3, needed - 3), share("equivalent", 0.0, needed - 3)) < 0.79
    assert folds_to_decide(1e6, 1e-6) is None


def test_the_oracle_recovers_all_of_itself(make_study, tmp_path):
    spec, folder = make_study(tmp_path, simulated=True)
    analysis = analyse(spec, folder)
    oracle = analysis.baselines.row(by_predicate=pl.col("baseline") == "oracle", named=True)
    assert oracle["share_of_oracle"] == 1.0
    assert analysis.arms["share_of_oracle"].is_between(0.3, 0.8).all()
    bins = analysis.oracle.filter(pl.col("arm") == PRE)
    assert bins["oracle"].is_sorted()
    assert np.polyfit(bins["oracle"], bins["forecast"], 1)[0] == pytest.approx(0.5, abs=0.05)


def test_without_stored_baselines_only_zero_is_known(make_study, tmp_path):
    spec, folder = make_study(tmp_path, baselines=False)
    analysis = analyse(spec, folder)
    assert analysis.baselines["baseline"].to_list() == ["zero"]
    assert analysis.arms["r2_mean"].null_count() == analysis.arms.height


def test_what_was_tried_marks_the_chosen_point_of_each_arm(make_study, tmp_path):
    spec, folder = make_study(tmp_path)
    tried = analyse(spec, folder).tried
    assert tried.height == 18
    chosen = tried.filter("chosen")
    assert chosen["arm"].to_list() == [arm["name"] for arm in spec["arms"]]
    assert chosen["training.learning_rate"].unique().to_list() == [0.001]


def test_profiles_are_those_of_the_last_step_of_finished_fits(make_study, tmp_path):
    spec, folder = make_study(tmp_path, failed={(POST, 0, 0): "diverged"})
    found = analyse(spec, folder).profiles.filter(
        (pl.col("arm") == POST) & (pl.col("measure") == "gradient_norm")
    )
    rows = pl.read_parquet(folder / "profiles.parquet").filter(
        (pl.col("arm") == POST) & (pl.col("step") == 300) & ~((pl.col("fold") == 0) & (pl.col("seed") == 0))
    )
    assert found["fits"].unique().to_list() == [7]
    for layer, mean in found.select("layer", "mean").rows():
        values = rows.filter(pl.col("layer") == layer)["gradient_norm"].to_numpy()
        assert mean == pytest.approx(np.exp(np.log(values).mean()), rel=1e-12)


def test_mixing_is_the_mean_over_finished_fits(make_study, tmp_path):
    spec, folder = make_study(tmp_path, failed={(POST, 0, 0): "diverged"})
    found = analyse(spec, folder).mixing.filter(pl.col("arm") == POST)
    rows = pl.read_parquet(folder / "mixing.parquet").filter(
        (pl.col("arm") == POST) & ~((pl.col("fold") == 0) & (pl.col("seed") == 0))
    )
    assert found["fits"].unique().to_list() == [7]
    assert found.height == 17 * 18 // 2
    for reader, source, mean in found.select("reader", "source", "mean").rows():
        values = rows.filter(reader=reader, source=source)["mean"]
        assert mean == pytest.approx(values.mean(), rel=1e-12)


def test_row_order_in_the_files_changes_nothing(make_study, tmp_path):
    spec, folder = make_study(tmp_path, failed={(POST, 1, 0): "diverged"}, simulated=True)
    before = analyse(spec, folder)
    for name in ("forecasts", "fits", "profiles", "mixing", "history", "baselines"):
        path = folder / f"{name}.parquet"
        pl.read_parquet(path).sample(fraction=1.0, shuffle=True, seed=1).write_parquet(path)
    after = analyse(spec, folder)
    assert after.verdict == before.verdict
    frames = [name for name, value in vars(before).items() if isinstance(value, pl.DataFrame)]
    assert len(frames) == 10
    for name in frames:
        assert getattr(after, name).equals(getattr(before, name)), name


def test_a_folder_that_cannot_be_analysed_says_why(make_study, tmp_path):
    spec, folder = make_study(tmp_path)
    with pytest.raises(ValueError, match="run the study first"):
        analyse(spec, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="Known outcomes"):
        analyse(spec | {"outcome": "sharpe"}, folder)
    unknown = {"compare": ["residual", "deep_norm"], "against": "pre_norm", "within": {}}
    with pytest.raises(ValueError, match="no arm has the levels"):
        analyse(spec | {"contrasts": [unknown]}, folder)


def test_numbers_have_a_true_minus_and_no_negative_zero():
    assert number(-0.0004, 3) == "0.000"
    assert number(-1234.5, 1) == "−1,234.5"
    assert MEASURES["r2_zero"].decimals(0.0005) == 3
    assert MEASURES["rank_ic"].decimals(0.005) == 4
