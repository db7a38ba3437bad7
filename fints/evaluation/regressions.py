"""Elastic net and gradient boosting on the columns of a window, tuned on validation rows alone."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl

from fints.evaluation.baselines import Design

__all__ = ["elastic_net", "gradient_boosting"]

# Share of the absolute penalty; 1 would be the lasso, which chooses among correlated lags at random.
L1_SHARES = (0.1, 0.5, 0.9)
PENALTIES, SMALLEST_PENALTY = 10, 1e-2
# Weak learners: daily returns hold little to be learnt, and large trees learn noise first.
LEAVES = (4, 16)
TREES, LEARNING_RATE, LEAST_LEAF = 200, 0.05, 100


def elastic_net(design: Design) -> pl.DataFrame:
    r"""Forecast by the elastic net with the penalties of least validation error.

    .. math:: \min_{w} \frac{1}{2n} \lVert y - \bar y - X w \rVert^2
        + \alpha \rho \lVert w \rVert_1 + \frac{\alpha (1 - \rho)}{2} \lVert w \rVert^2

    alpha from that at which all weights are 0 down to a hundredth of it, rho in 0.1, 0.5, 0.9. Source:
    Zou, Hastie (2005); ``sklearn.linear_model.enet_path``.
    """
    from sklearn.linear_model import enet_path

    centre, mean = design.x.mean(axis=0), float(design.y.mean())
    x, y = design.x - centre, design.y - mean
    gram, cross = x.T @ x, x.T @ y
    best_loss, best = np.inf, np.zeros(x.shape[1])
    for share in L1_SHARES:
        largest = float(np.abs(cross).max()) / (len(y) * share)
        if largest == 0:
            break
        alphas = largest * np.geomspace(1, SMALLEST_PENALTY, PENALTIES)
        _, weights, _ = enet_path(
            x, y, l1_ratio=share, alphas=alphas, precompute=gram, Xy=cross, max_iter=10_000
        )
        # From the largest penalty on, so that it wins a tie.
        for w in weights.T:
            error = design.validation_y - mean - (design.validation_x - centre) @ w
            if (loss := float(np.mean(error**2))) < best_loss:
                best_loss, best = loss, w
    return design.forecast(mean + (design.test_x - centre) @ best)


def gradient_boosting(design: Design) -> pl.DataFrame:
    """Forecast by boosted trees, their size and number those of least validation error.

    Up to 200 trees of 4 or 16 leaves with at least 100 rows each, learning rate 0.05. No tree at all, the
    training mean, is one of the choices. Source: ``sklearn.ensemble.HistGradientBoostingRegressor``.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    mean = float(design.y.mean())
    best_loss = float(np.mean((design.validation_y - mean) ** 2))
    best: np.ndarray = np.full(len(design.test_x), mean)
    for leaves in LEAVES:
        model = HistGradientBoostingRegressor(
            learning_rate=LEARNING_RATE,
            max_iter=TREES,
            max_leaf_nodes=leaves,
            min_samples_leaf=min(LEAST_LEAF, max(1, len(design.y) // 10)),
            early_stopping=False,
            random_state=0,
        ).fit(design.x, design.y)
        losses = [
            float(np.mean((design.validation_y - forecast) ** 2))
            for forecast in model.staged_predict(design.validation_x)
        ]
        place = int(np.argmin(losses))
        if losses[place] < best_loss:
            best_loss = losses[place]
            best = next(itertools.islice(model.staged_predict(design.test_x), place, None))
    return design.forecast(best)
