"""Walk-forward folds, metrics, tests, portfolios and baselines: everything that judges a forecast frame."""

from __future__ import annotations

from fints.evaluation.baselines import BASELINES, baseline_forecasts, oracle_forecasts
from fints.evaluation.bootstrap import block_length, bootstrap_interval
from fints.evaluation.causes import CausesVerdict, judge_causes
from fints.evaluation.claims import Judged, judge_claims
from fints.evaluation.conditional import ConditionalTest, giacomini_white, pesaran_timmermann
from fints.evaluation.contrasts import (
    ClusteredMean,
    Equivalence,
    clustered_mean,
    equivalence,
    holm,
    paired_contrast,
)
from fints.evaluation.date_tests import SeriesTest, clark_west, diebold_mariano
from fints.evaluation.distribution import coverage, crps, log_score
from fints.evaluation.forecast_table import ForecastTable, forecast_table, join_outcomes
from fints.evaluation.intervals import mean_interval, median_r2_interval, r2_interval
from fints.evaluation.judge import Estimate, Judgement, judge
from fints.evaluation.metrics import (
    ic_series,
    metrics,
    prevailing_mean,
    r2_by_asset,
    r2_mean,
    r2_precision,
    r2_zero,
    share_of_oracle,
)
from fints.evaluation.overfitting import Overfitting, probability_of_overfitting
from fints.evaluation.pairwise import Pairwise, pairwise_differences
from fints.evaluation.portfolio import EXECUTIONS, PORTFOLIOS, Backtest, backtest, target_weights
from fints.evaluation.power import (
    contrast_power,
    detectable_r2,
    effective_assets,
    forecast_power,
    minimum_detectable_effect,
    paired_r2_sd,
    r2_standard_error,
)
from fints.evaluation.serial import mean_error, mean_t, newey_west_t
from fints.evaluation.sharpe import (
    annual_sharpe,
    deflated_sharpe,
    expected_best_sharpe,
    probabilistic_sharpe,
    sharpe,
    sharpe_interval,
)
from fints.evaluation.superiority import (
    ConfidenceSet,
    loss_table,
    model_confidence_set,
    stepwise_superior,
    superior_ability,
)
from fints.evaluation.walk_forward import Fold, WalkForward

__all__ = [
    "BASELINES",
    "EXECUTIONS",
    "PORTFOLIOS",
    "Backtest",
    "CausesVerdict",
    "ClusteredMean",
    "ConditionalTest",
    "ConfidenceSet",
    "Equivalence",
    "Fold",
    "Estimate",
    "ForecastTable",
    "Judged",
    "Judgement",
    "Overfitting",
    "Pairwise",
    "SeriesTest",
    "WalkForward",
    "annual_sharpe",
    "backtest",
    "baseline_forecasts",
    "block_length",
    "bootstrap_interval",
    "clark_west",
    "clustered_mean",
    "contrast_power",
    "coverage",
    "crps",
    "deflated_sharpe",
    "detectable_r2",
    "diebold_mariano",
    "effective_assets",
    "equivalence",
    "expected_best_sharpe",
    "forecast_power",
    "forecast_table",
    "giacomini_white",
    "holm",
    "ic_series",
    "join_outcomes",
    "judge",
    "judge_causes",
    "judge_claims",
    "log_score",
    "loss_table",
    "mean_error",
    "mean_interval",
    "mean_t",
    "median_r2_interval",
    "metrics",
    "minimum_detectable_effect",
    "model_confidence_set",
    "newey_west_t",
    "oracle_forecasts",
    "paired_contrast",
    "paired_r2_sd",
    "pairwise_differences",
    "pesaran_timmermann",
    "prevailing_mean",
    "probabilistic_sharpe",
    "probability_of_overfitting",
    "r2_by_asset",
    "r2_interval",
    "r2_mean",
    "r2_precision",
    "r2_standard_error",
    "r2_zero",
    "share_of_oracle",
    "sharpe",
    "sharpe_interval",
    "stepwise_superior",
    "superior_ability",
    "target_weights",
]
