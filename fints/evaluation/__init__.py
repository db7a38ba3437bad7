"""Walk-forward folds, metrics, tests and baselines: everything that judges a forecast frame."""

from __future__ import annotations

from fints.evaluation.baselines import BASELINES, baseline_forecasts, oracle_forecasts
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
from fints.evaluation.power import (
    contrast_power,
    effective_assets,
    minimum_detectable_effect,
    paired_r2_sd,
    r2_standard_error,
)
from fints.evaluation.serial import newey_west_t
from fints.evaluation.walk_forward import Fold, WalkForward

__all__ = [
    "BASELINES",
    "ClusteredMean",
    "Equivalence",
    "Fold",
    "SeriesTest",
    "WalkForward",
    "baseline_forecasts",
    "clark_west",
    "clustered_mean",
    "contrast_power",
    "coverage",
    "crps",
    "diebold_mariano",
    "effective_assets",
    "equivalence",
    "holm",
    "ic_series",
    "log_score",
    "metrics",
    "minimum_detectable_effect",
    "newey_west_t",
    "oracle_forecasts",
    "paired_contrast",
    "paired_r2_sd",
    "prevailing_mean",
    "r2_by_asset",
    "r2_mean",
    "r2_precision",
    "r2_standard_error",
    "r2_zero",
    "share_of_oracle",
]
