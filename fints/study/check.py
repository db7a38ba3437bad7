"""Does a preset's budget find a signal that is there? The positive control of `plan --check`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING

from fints.config import override
from fints.study.cells import FINISHED

if TYPE_CHECKING:
    from fints.study.plan import Plan

__all__ = ["WANTED_SHARE", "share_of_oracle"]

WANTED_SHARE = 0.5
# Fits before the panel's last 400 days, chooses on the first 190 of those, is judged on the rest.
HELD_DAYS, VALIDATION_DAYS = 400, 190


def share_of_oracle(plan: Plan, say: Callable[[str], None]) -> tuple[float, bool]:
    r"""Train the plan's budget on the simple planted signal and return what it recovers.

    Pre-Norm at depth 2, 20 assets, R2 20 %, the design points of the plan's tuning; the point with
    the lowest validation loss is judged on later dates by

    .. math:: 1 - E(p - s)^2 / E s^2

    with p the forecast and s the planted signal, both in log return.

    Returns
    -------
    float, bool
        The share, and whether it is at least one half.
    """
    import polars as pl

    from fints.data import simulate
    from fints.evaluation import share_of_oracle as share
    from fints.forecaster import Forecaster

    simulation = simulate(num_assets=20, num_days=1500, r2=0.20, signal="linear", seed=20)
    panel = simulation.panel
    dates: list[date] = panel.dates.to_list()
    train = (dates[0], dates[-HELD_DAYS - 2])
    validation = (dates[-HELD_DAYS], dates[-HELD_DAYS + VALIDATION_DAYS - 2])
    test = (dates[-HELD_DAYS + VALIDATION_DAYS], dates[-1])
    base = override(
        plan.study.base,
        {
            "data.features": panel.feature_columns,
            "data.target": "log_return",
            "data.horizon": 1,
            "model.residual": "pre_norm",
            "model.residual_options": {},
            "model.depth": 2,
        },
    )
    seen = panel[: validation[1] + (dates[1] - dates[0])]
    fitted: list[tuple[float, int, Forecaster]] = []
    for point in plan.study.tuning.points():
        forecaster = Forecaster(override(base, point), seed=plan.study.tuning.seeds[0])
        forecaster.fit(seen, train=train, validation=validation)
        result = forecaster.result_
        assert result is not None
        loss = result.best_validation_loss
        words = ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in point.items())
        say(
            f"  {words}: {result.outcome}, validation loss "
            f"{loss if loss is None else round(loss, 5)}, {result.seconds:.0f} s"
        )
        if loss is not None and result.outcome in FINISHED:
            fitted.append((loss, len(fitted), forecaster))
    if not fitted:
        return 0.0, False
    frame = min(fitted)[2].evaluate_frame(panel, *test)
    judged = frame.join(simulation.signal, on=["date", "asset"], how="inner").select(
        pl.col("forecast") * pl.col("unit_scale"), pl.col("signal").alias("oracle")
    )
    found = share(judged)
    return (0.0, False) if found is None else (found, found >= WANTED_SHARE)
