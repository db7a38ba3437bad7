"""Windows of past days as strided views: (A, D, F) in memory, (B, T, F) on demand.

Shapes: A assets, D days of the union calendar, F features, T days in the context, B batch.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

__all__ = ["WindowSet", "Windows"]

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Windows:
    """Features and targets of a panel on its union calendar.

    Attributes
    ----------
    dates : numpy.ndarray
        (D,) datetime64[D], ascending: every date on which any asset has a row.
    assets : list of str
        (A,) sorted.
    values : torch.Tensor
        (A, D, F) float32, NaN where missing. Stored once; a window is a view of it.
    targets : torch.Tensor
        (A, D) float32, NaN where missing.
    label_ends : numpy.ndarray
        (A, D) int64, the place in `dates` at which the target is known; a very large number where there is
        none.
    context : int
        T.
    min_present : int
        Least number of present tokens (days with any feature) of a window that gives a forecast.
    """

    dates: np.ndarray
    assets: list[str]
    values: Tensor
    targets: Tensor
    label_ends: np.ndarray
    context: int
    min_present: int

    @classmethod
    def build(
        cls,
        features: pl.DataFrame,
        targets: pl.DataFrame | None,
        names: Sequence[str],
        *,
        context: int,
        min_valid: float,
    ) -> Windows:
        """Lay out feature and target frames (of `fints.data.features` and `targets`) day by day.

        Parameters
        ----------
        features
            ``date, asset`` and the columns `names`, scaled as the network shall see them.
        targets
            ``date, asset, target, label_end``, or None to forecast only.
        context
            T, in days of the union calendar.
        min_valid
            Share of the T days that must be present.

        Raises
        ------
        ValueError
            If the frame has fewer than `context` dates or lacks a column, or `min_valid` is outside (0, 1].
        """
        if context < 1 or not 0 < min_valid <= 1:
            raise ValueError(
                f"context must be at least 1 and min_valid in (0, 1]; got context = {context}, min_valid = "
                f"{min_valid}."
            )
        lacking = [name for name in names if name not in features.columns]
        if lacking or not names:
            raise ValueError(f"windows need the feature columns {list(names)}; missing: {lacking or 'all'}.")
        dates = features["date"].unique().sort().to_numpy().astype("datetime64[D]")
        assets = features["asset"].unique().sort().to_list()
        if len(dates) < context:
            raise ValueError(
                f"context = {context} needs at least {context} days; the panel has {len(dates)}. Give a "
                "longer panel or choose a shorter context."
            )
        day, asset = _places(features, dates, assets)
        values = torch.full((len(assets), len(dates), len(names)), torch.nan)
        block = features.select(pl.col(*names).cast(pl.Float32)).fill_null(float("nan")).to_numpy()
        values[asset, day] = torch.tensor(block, dtype=torch.float32)
        outcome = torch.full((len(assets), len(dates)), torch.nan)
        label_ends = np.full((len(assets), len(dates)), NEVER)
        if targets is not None:
            known = targets.filter(pl.col("target").is_not_null()).join(
                features, on=["date", "asset"], how="semi"
            )
            day, asset = _places(known, dates, assets)
            outcome[asset, day] = torch.tensor(known["target"].to_numpy(), dtype=torch.float32)
            ends = known["label_end"].to_numpy().astype("datetime64[D]")
            label_ends[asset, day] = np.searchsorted(dates, ends)
        return cls(
            dates=dates,
            assets=assets,
            values=values,
            targets=outcome,
            label_ends=label_ends,
            context=context,
            min_present=math.ceil(min_valid * context),
        )

    def view(self) -> Tensor:
        """Return all windows (A, D - T + 1, T, F) as a view of `values`: no copy."""
        return self.values.unfold(1, self.context, 1).transpose(-1, -2)

    def select(
        self, start: dt.date | None, end: dt.date | None, *, labelled: bool, every_token: bool = False
    ) -> WindowSet:
        """Choose the windows whose decision date (last day) lies in [start, end], both included.

        A window is chosen if its last day is present and at least `min_present` of its T days are; with
        `labelled` only if its last day has a target. Targets of days before `start` are left out, so a
        validation window that reaches back into the training period does not score it. So are targets that
        end later than the horizon's usual distance after `end`: a label that runs over a halt cannot reach
        into the next period.

        Raises
        ------
        ValueError
            If `labelled` and there are no targets, or `start` lies after `end`.
        """
        if start is not None and end is not None and start > end:
            raise ValueError(f"start must not lie after end; got {start} and {end}.")
        if labelled and not self.targets.isfinite().any():
            raise ValueError(
                "labelled windows need targets, and this panel gives none: it has no more days than the "
                "horizon, or its "
                "volatility is unknown or zero everywhere. Give a longer panel or choose the target "
                "log_return."
            )
        first = 0 if start is None else int(np.searchsorted(self.dates, np.datetime64(start, "D")))
        stop = (
            len(self.dates)
            if end is None
            else int(np.searchsorted(self.dates, np.datetime64(end, "D"), "right"))
        )
        targets = self.targets.clone()
        targets[:, :first] = torch.nan
        targets[:, stop:] = torch.nan
        if end is not None:
            lags = self.label_ends - np.arange(len(self.dates))
            usual = int(lags.min()) if self.label_ends.size else 0
            targets[torch.from_numpy(self.label_ends > stop - 1 + usual)] = torch.nan
        present = ~self.values.isnan().all(-1)
        counted = torch.nn.functional.pad(present.cumsum(1), (1, 0))
        enough = counted[:, self.context :] - counted[:, : -self.context] >= self.min_present
        chosen = torch.zeros_like(present)
        chosen[:, self.context - 1 :] = enough
        chosen &= present
        chosen[:, :first] = False
        chosen[:, stop:] = False
        if labelled:
            chosen &= targets.isfinite()
        day, asset = chosen.T.nonzero(as_tuple=True)
        return WindowSet(windows=self, asset=asset, day=day, targets=targets, every_token=every_token)


@dataclass(frozen=True, eq=False)
class WindowSet:
    """Chosen windows of a panel in (date, asset) order; `gather` makes batches of them."""

    windows: Windows
    asset: Tensor
    day: Tensor
    targets: Tensor
    every_token: bool

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.day)

    @property
    def num_features(self) -> int:
        """F."""
        return self.windows.values.shape[-1]

    def keys(self) -> pl.DataFrame:
        """Return (decision) date and asset of each window, in order."""
        return pl.DataFrame(
            {
                "date": pl.Series(self.windows.dates[self.day.numpy()]).cast(pl.Date),
                "asset": pl.Series(
                    np.array(self.windows.assets, dtype=object)[self.asset.numpy()], dtype=pl.String
                ),
            }
        )

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (B, T, F) and targets (B, T) of the windows at `positions` (int64).

        NaN marks a missing feature and a token without target; the last token is the decision date. Without
        `every_token` only the last token keeps its target. Only the batch is copied.
        """
        context = self.windows.context
        asset, start = self.asset[positions], self.day[positions] - (context - 1)
        inputs = self.windows.view()[asset, start].contiguous()
        targets = self.targets.unfold(1, context, 1)[asset, start].contiguous()
        if not self.every_token:
            targets[:, :-1] = torch.nan
        return inputs, targets


def _places(frame: pl.DataFrame, dates: np.ndarray, assets: list[str]) -> tuple[Tensor, Tensor]:
    """Return the places of each row's date and asset."""
    day = np.searchsorted(dates, frame["date"].to_numpy().astype("datetime64[D]"))
    order = pl.DataFrame({"asset": assets, "place": np.arange(len(assets))})
    asset = (
        frame.select("asset").join(order, on="asset", how="left", maintain_order="left")["place"].to_numpy()
    )
    return torch.from_numpy(day), torch.tensor(asset)
