"""What a fitted network says of a panel: windows in, a tidy table of forecasts out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from fints.config import DataConfig, Experiment
from fints.data import Panel, StandardScaler, Windows, WindowSet, features, targets
from fints.data.decisions import between
from fints.data.history import recent
from fints.data.learning import is_large, windows_of
from fints.data.windows import window_places
from fints.model import Transformer
from fints.training import predict

__all__ = ["QUANTILES", "FittedNetwork", "check_panel", "scaled_windows", "tables"]

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
# Fixed, since another number of windows a batch may change the last bits of a forecast.
BATCH_SIZE = 256
SCORES = tuple(f"{name}_score" for name in QUANTILES)
COLUMNS = {
    "point": ("mean",),
    "gaussian": ("mean", "spread", *SCORES),
    "student_t": ("mean", "spread", "degrees", *SCORES),
}


@dataclass(frozen=True, kw_only=True)
class FittedNetwork:
    """A trained network with what turns its numbers into returns.

    `target_std` is the root mean square of the training targets, by which they were divided; `as_of`
    the last date whose outcome the weights may know.
    """

    network: Transformer
    experiment: Experiment
    scaler: StandardScaler
    target_std: float
    as_of: dt.date

    def table(self, windows: WindowSet | None, units: pl.DataFrame) -> pl.DataFrame:
        """Return the table of `Forecaster.predict` from windows and the targets of the rows wanted."""
        forecast, data = self._forecast(windows), self.experiment.data
        unitless = data.target == "cross_sectional"
        units = units.with_columns(pl.col("scale").fill_null(1.0) if unitless else pl.col("scale"))
        table = units.join(forecast, on=["date", "asset"], how="left").sort("date", "asset")
        scaled = [pl.col("mean").mul(pl.col("scale")).alias("forecast")]
        if "spread" in table.columns:
            scaled += [pl.col("spread").mul(pl.col("scale")).alias("scale_out")]
            scaled += [
                pl.col("mean")
                .add(pl.col("spread") * pl.col(f"{name}_score"))
                .mul(pl.col("scale"))
                .alias(name)
                for name in QUANTILES
            ]
        as_of = pl.lit(self.as_of, dtype=pl.Date)
        return table.select(
            pl.col("date").alias("decision_time"),
            "asset",
            pl.lit(data.horizon, dtype=pl.Int64).alias("horizon"),
            *scaled,
            as_of.alias("model_as_of"),
            pl.max_horizontal(pl.col("date"), as_of).alias("available_at"),
        ).rename({"scale_out": "scale"}, strict=False)

    def outcomes(self, panel: Panel, start: dt.date | None, end: dt.date | None) -> pl.DataFrame:
        """Return the frame of `Forecaster.evaluate_frame`."""
        check_panel(panel)
        data = self.experiment.data
        forecast = self._forecast(_windows(self, panel, start, end))
        units = targets(recent(panel, start, (), context=1), data.target, data.horizon)
        units = units.filter(between((start, end)))
        extra = [pl.col("spread").log().alias("log_scale")] if "spread" in forecast.columns else []
        extra += [pl.col("degrees")] if "degrees" in forecast.columns else []
        return (
            units.join(forecast, on=["date", "asset"], how="inner")
            .filter(pl.col("target").is_not_null())
            .sort("date", "asset")
            .select(
                "date",
                "asset",
                pl.col("mean").alias("forecast"),
                pl.col("target").alias("realised"),
                pl.col("scale").alias("unit_scale"),
                *extra,
            )
        )

    def _forecast(self, windows: WindowSet | None) -> pl.DataFrame:
        """Return what the network says of each window, in target units."""
        if windows is None or len(windows) == 0:
            columns = COLUMNS[self.experiment.model.head]
            schema = {"date": pl.Date, "asset": pl.String, **dict.fromkeys(columns, pl.Float64)}
            return pl.DataFrame(schema=schema)
        output = predict(self.network, windows, batch_size=BATCH_SIZE)
        frame = windows.keys().with_columns(
            pl.Series("mean", output["mean"][:, 0].double().numpy() * self.target_std)
        )
        if "log_scale" in output:
            frame = frame.with_columns(self._distribution(output))
        return frame

    def _distribution(self, output: Mapping[str, torch.Tensor]) -> list[pl.Series]:
        from scipy.stats import norm, t

        spread = np.exp(output["log_scale"][:, 0].double().numpy()) * self.target_std
        columns = [pl.Series("spread", spread)]
        if "degrees" in output:
            degrees = output["degrees"][:, 0].double().numpy()
            columns.append(pl.Series("degrees", degrees))
            scores = {name: t.ppf(level, degrees) for name, level in QUANTILES.items()}
        else:
            scores = {name: np.full(len(spread), norm.ppf(level)) for name, level in QUANTILES.items()}
        return columns + [pl.Series(f"{name}_score", score) for name, score in scores.items()]


def tables(
    networks: Sequence[FittedNetwork], panel: Panel, start: dt.date | None, end: dt.date | None
) -> list[pl.DataFrame]:
    """Return the table of `Forecaster.predict` of each network; those that see the same share the work."""
    check_panel(panel)
    windows: dict[tuple[DataConfig, StandardScaler], WindowSet | None] = {}
    units: dict[DataConfig, pl.DataFrame] = {}
    made = []
    for one in networks:
        data = one.experiment.data
        if (data, one.scaler) not in windows:
            windows[data, one.scaler] = _windows(one, panel, start, end)
        if data not in units:
            # Scales look back a few months and never forward; features may look back a year or more.
            near = recent(panel, start, (), context=1, end=end)
            units[data] = targets(near, data.target, data.horizon).filter(between((start, end)))
        made.append(one.table(windows[data, one.scaler], units[data]))
    return made


def _windows(
    one: FittedNetwork, panel: Panel, start: dt.date | None, end: dt.date | None
) -> WindowSet | None:
    """Return the windows, None where the panel is shorter than one."""
    data = one.experiment.data
    if len(panel.dates) < data.context:
        return None
    return scaled_windows(panel, one.scaler, data, start, end)


def scaled_windows(
    panel: Panel, scaler: StandardScaler, data: DataConfig, start: dt.date | None, end: dt.date | None
) -> WindowSet:
    """Return the windows that end in [start, end], scaled as the network shall see them."""
    # Windows of a first few days would be shorter than they must be: none of them is chosen below.
    until = end if end is None else max(end, panel.dates[min(data.context, len(panel.dates)) - 1])
    near = recent(panel, start, data.features, context=data.context, end=until)
    if is_large(near, len(data.features)):
        return windows_of(near, data, scaler).select(start, end, labelled=False)
    since = None
    if start is not None:
        # Days before the first window are only there for the features to look back on.
        first = min(near.dates.search_sorted(start), len(near.dates) - 1) - (data.context - 1)
        since = near.dates[max(0, first)]
    made = features(near, data.features, since=since)
    built = Windows.build(
        scaler.transform(made),
        None,
        data.features,
        context=data.context,
        min_valid=data.min_valid,
        scaled_by_window=window_places(data),
    )
    return built.select(start, end, labelled=False)


def check_panel(panel: object) -> None:
    """Refuse what is no panel.

    Raises
    ------
    ValueError
        With what to do.
    """
    if not isinstance(panel, Panel):
        raise ValueError(
            f"a forecaster needs a fints.data.Panel; got {type(panel).__name__}. "
            "Make one with Panel(frame) or fints.data.read(path)."
        )
