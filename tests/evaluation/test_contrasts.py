"""Paired differences over folds and seeds against closed forms, statsmodels and simulation."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from fints.evaluation import ClusteredMean, clustered_mean, equivalence, holm, paired_contrast


def cells(values: np.ndarray) -> pl.DataFrame:
    """(folds, seeds) -> one row a cell."""
    folds, seeds = values.shape
    return pl.DataFrame(
        {
            "fold": np.repeat(np.arange(folds), seeds),
            "seed": np.tile(np.arange(seeds), folds),
            "difference": values.ravel(),
        }
    )


def test_balanced_cells_give_the_t_test_on_fold_means():
    values = np.random.default_rng(7).standard_normal((6, 3)) + 0.4
    found = paired_contrast(cells(values))
    expected = DescrStatsW(values.mean(axis=1))
    low, high = expected.tconfint_mean(0.05)
    assert found.estimate == pytest.approx(values.mean(), abs=1e-14)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.p == pytest.approx(expected.ttest_mean(0)[1], rel=1e-10)
    assert found.sd == pytest.approx(values.mean(axis=1).std(ddof=1), rel=1e-12)
    assert (found.clusters, found.cells) == (6, 18)


def test_unbalanced_cells_give_the_clustered_error_of_statsmodels():
    frame = cells(np.random.default_rng(8).standard_normal((5, 4))).filter(
        ~((pl.col("fold") == 1) & (pl.col("seed") > 0))
    )
    fit = sm.OLS(frame["difference"].to_numpy(), np.ones(frame.height)).fit(
        cov_type="cluster", cov_kwds={"groups": frame["fold"].to_numpy(), "use_correction": False}
    )
    assert paired_contrast(frame).se == pytest.approx(float(fit.bse[0]) * math.sqrt(5 / 4), rel=1e-10)


def test_seeds_of_the_same_fold_are_not_independent_evidence():
    by_fold = np.random.default_rng(9).standard_normal((5, 1)) + 1
    once, ten_times = paired_contrast(cells(by_fold)), paired_contrast(cells(np.repeat(by_fold, 10, axis=1)))
    assert ten_times.p == pytest.approx(once.p, rel=1e-10)
    assert (ten_times.low, ten_times.high) == pytest.approx((once.low, once.high), rel=1e-10)


def test_pairing_removes_what_both_arms_share():
    rng = np.random.default_rng(10)
    shared = 10 * rng.standard_normal((8, 2))
    frame = (
        cells(shared)
        .rename({"difference": "b"})
        .with_columns(a=pl.col("b") + 0.1 + 0.01 * pl.Series(rng.standard_normal(16)))
    )
    assert paired_contrast(frame).p < 1e-6
    assert clustered_mean(frame, "a").p > 0.05


def test_one_fold_gives_an_estimate_and_no_error():
    found = paired_contrast(cells(np.array([[0.1, 0.2]])))
    assert found.estimate == pytest.approx(0.15)
    assert found.se is found.p is found.low is found.sd is None
    assert not equivalence(found, 10.0).equivalent


def test_a_repeated_or_missing_cell_is_refused():
    frame = cells(np.ones((3, 2)))
    with pytest.raises(ValueError, match="must appear once"):
        paired_contrast(pl.concat([frame, frame]))
    with pytest.raises(ValueError, match="needs a value"):
        paired_contrast(frame.with_columns(difference=pl.when(pl.col("fold") > 0).then(pl.col("difference"))))


def test_identical_arms_differ_by_nothing_with_p_one():
    found = paired_contrast(cells(np.zeros((4, 2))))
    assert (found.estimate, found.se, found.p) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("folds", [4, 8])
def test_the_paired_test_keeps_its_size_with_correlated_seeds(folds: int):
    rng = np.random.default_rng(11)
    rejected = 0
    for _ in range(2000):
        values = rng.standard_normal((folds, 1)) + 0.5 * rng.standard_normal((folds, 3))
        means = values.mean(axis=1)
        t = means.mean() / (means.std(ddof=1) / math.sqrt(folds))
        rejected += 2 * stats.t.sf(abs(t), folds - 1) < 0.05
    assert 0.035 < rejected / 2000 < 0.065
    # The shortcut above is the very test: one draw through the front door.
    assert paired_contrast(cells(values)).p == pytest.approx(2 * stats.t.sf(abs(t), folds - 1), rel=1e-9)


def test_holm_steps_down_and_counts_what_could_not_be_tested():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, None, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06)]
    assert holm([]) == []


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_holm_is_that_of_statsmodels_also_where_values_are_equal(count: int):
    p = np.round(np.random.default_rng(count).uniform(0, 0.3, count), 2)
    assert holm(p.tolist()) == multipletests(p, method="holm")[1].tolist()


def test_equivalence_is_the_ninety_percent_interval_inside_the_margin():
    rng = np.random.default_rng(12)
    for _ in range(50):
        values = 0.3 * rng.standard_normal((6, 2)) + 0.1
        contrast = paired_contrast(cells(values))
        found = equivalence(contrast, 0.4)
        low, high = DescrStatsW(values.mean(axis=1)).tconfint_mean(0.10)
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
        assert found.equivalent == (low > -0.4 and high < 0.4)
        expected = DescrStatsW(values.mean(axis=1)).ttost_mean(-0.4, 0.4)[0]
        assert found.p == pytest.approx(expected, rel=1e-9)


def test_no_evidence_is_not_evidence_of_no_difference():
    wide = ClusteredMean(estimate=0.0, se=1.0, low=-3.2, high=3.2, p=1.0, clusters=4, cells=8)
    assert not equivalence(wide, 0.1).equivalent
    with pytest.raises(ValueError, match="above 0"):
        equivalence(wide, 0.0)
