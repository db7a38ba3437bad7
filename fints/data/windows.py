"""Windows of past days as strided views: (A, D, F) in memory, (B, T, F) on demand.

Shapes: A assets, D days of the union calendar, F features, T days in the context, B batch.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import torch
from torch import Tensor

from fints.config import DataConfig
from fints.words import counted

__all__ = ["WindowSet", "Windows"]

NEVER = np.iinfo(np.int32).max
# Cells of a block: what is computed of all windows is computed in pieces that stay small.
CELLS_AT_ONCE = 1 << 20


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
        (A, D, F) float32, NaN where missing, in memory or mapped from a file. Stored once; a window is a
        view of it.
    targets : torch.Tensor
        (A, D) float32, NaN where missing.
    label_ends : numpy.ndarray
        (A, D) int32, the place in `dates` at which the target is known; a very large number where there is
        none.
    context : int
        T.
    min_present : int
        Least number of present tokens (days with any feature) of a window that gives a forecast.
    scaled_by_window : tuple of int
        Features that each window divides by their root mean square over its days so far (`by_past_scale`).
    """

    dates: np.ndarray
    assets: list[str]
    values: Tensor
    targets: Tensor
    label_ends: np.ndarray
    context: int
    min_present: int
    scaled_by_window: tuple[int, ...] = ()

    @classmethod
    def build(
        cls,
        features: pl.DataFrame,
        targets: pl.DataFrame | None,
        names: Sequence[str],
        *,
        context: int,
        min_valid: float,
        scaled_by_window: tuple[int, ...] = (),
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
        scaled_by_window
            As the attribute.

        Raises
        ------
        ValueError
            If the frame has fewer than `context` dates or lacks a column, or `min_valid` is outside (0, 1].
        """
        check_context(context, min_valid)
        lacking = [name for name in names if name not in features.columns]
        if lacking or not names:
            raise ValueError(f"windows need the feature columns {list(names)}; missing: {lacking or 'all'}.")
        dates = features["date"].unique().sort().to_numpy().astype("datetime64[D]")
        assets = features["asset"].unique().sort().to_list()
        check_context(context, min_valid, len(dates))
        day, asset = _places(features, dates, assets)
        values = torch.full((len(assets), len(dates), len(names)), torch.nan)
        block = features.select(pl.col(*names).cast(pl.Float32)).fill_null(float("nan")).to_numpy()
        values[asset, day] = torch.tensor(block, dtype=torch.float32)
        outcome = torch.full((len(assets), len(dates)), torch.nan)
        label_ends = np.full((len(assets), len(dates)), NEVER, np.int32)
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
            scaled_by_window=scaled_by_window,
        )

    def view(self) -> Tensor:
        """Return all windows (A, D - T + 1, T, F) as a view of `values`: no copy."""
        return self.values.unfold(1, self.context, 1).transpose(-1, -2)

    @cached_property
    def present(self) -> Tensor:
        """(A, D) whether an asset has any feature on a day."""
        found = torch.empty(self.values.shape[:2], dtype=torch.bool)
        for block in self._blocks():
            found[block] = ~self.values[block].isnan().all(-1)
        return found

    def _blocks(self) -> Iterator[slice]:
        """Yield slices of assets."""
        step = max(1, CELLS_AT_ONCE // self.values[0].numel())
        return (slice(first, first + step) for first in range(0, len(self.values), step))

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
            days = np.arange(len(self.dates), dtype=np.int32)
            blocks = list(self._blocks())
            usual = min((int((self.label_ends[block] - days).min()) for block in blocks), default=0)
            for block in blocks:
                targets[block][torch.from_numpy(self.label_ends[block] > stop - 1 + usual)] = torch.nan
        chosen = torch.zeros_like(self.present)
        for block in self._blocks():
            present = self.present[block]
            counted = torch.nn.functional.pad(present.cumsum(1, dtype=torch.int32), (1, 0))
            enough = counted[:, self.context :] - counted[:, : -self.context] >= self.min_present
            chosen[block, self.context - 1 :] = enough
            chosen[block] &= present
            if labelled:
                chosen[block] &= targets[block].isfinite()
        chosen[:, :first] = False
        chosen[:, stop:] = False
        return WindowSet(windows=self, cell=_cells_by_date(chosen), targets=targets, every_token=every_token)


@dataclass(frozen=True, eq=False)
class WindowSet:
    """Chosen windows of a panel in (date, asset) order; `gather` makes batches of them.

    `cell` (N,) is asset x D + day of each window's last day, in the smallest integers that hold it.
    """

    windows: Windows
    cell: Tensor
    targets: Tensor
    every_token: bool

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.cell)

    @property
    def num_features(self) -> int:
        """F."""
        return self.windows.values.shape[-1]

    def keys(self) -> pl.DataFrame:
        """Return (decision) date and asset of each window, in order."""
        asset, day = np.divmod(self.cell.numpy(), len(self.windows.dates))
        return pl.DataFrame(
            {
                "date": pl.Series(self.windows.dates[day]).cast(pl.Date),
                "asset": pl.Series(self.windows.assets, dtype=pl.String).gather(asset),
            }
        )

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (B, T, F) and targets (B, T) of the windows at `positions` (B,), int64.

        NaN marks a missing feature and a token without target; the last token is the decision date. Without
        `every_token` only the last token keeps its target. Only the batch is copied.
        """
        values, outcomes = self._by_start
        start = self.cell.index_select(0, positions).sub_(self.windows.context - 1)
        inputs, targets = values.index_select(0, start), outcomes.index_select(0, start)
        if not self.every_token:
            targets[:, :-1] = torch.nan
        inputs = inputs.view(-1, self.windows.context, self.num_features)
        for place in self.windows.scaled_by_window:
            inputs[..., place] = by_past_scale(inputs[..., place])
        return inputs, targets

    @cached_property
    def _by_start(self) -> tuple[Tensor, Tensor]:
        """Views (R, T F) of the features and (R, T) of the targets, a row a cell that a window may begin at.

        The days of an asset follow one another in memory, so a window is one piece of it. A row that begins
        among the last days of an asset runs into the next one: no chosen window begins there.
        """
        context, width = self.windows.context, self.num_features
        rows = self.targets.numel() - context + 1
        values = self.windows.values.as_strided((rows, context * width), (width, 1))
        return values, self.targets.as_strided((rows, context), (1, 1))


def by_past_scale(values: Tensor) -> Tensor:
    r"""Return windows (B, T) of a feature over their scale so far; NaN stays NaN, and 0 where all are 0.

    .. math:: x_t \Big/ \sqrt{\tfrac{1}{|\{u \le t\}|} \textstyle\sum_{u \le t} x_u^2}

    over the days u of the window that are not missing. No day sees a later one, so that every token may be
    trained on; at the last day the scale is that of the whole window.
    """
    known = ~values.isnan()
    power = torch.where(known, values, 0.0).square().cumsum(-1)
    scale = (power / known.cumsum(-1)).sqrt()
    return values / torch.where(power > 0, scale, 1.0)


def window_places(data: DataConfig) -> tuple[int, ...]:
    """Return the places of the features that are scaled by window."""
    return tuple(data.features.index(name) for name in data.window_scaled)


def check_context(context: int, min_valid: float, num_days: int | None = None) -> None:
    """Refuse windows that cannot be.

    Raises
    ------
    ValueError
        If a number is out of its range, or there are fewer days than a window has.
    """
    if context < 1 or not 0 < min_valid <= 1:
        raise ValueError(
            f"context must be at least 1 and min_valid in (0, 1]; got context = {context}, min_valid = "
            f"{min_valid}."
        )
    if num_days is not None and num_days < context:
        raise ValueError(
            f"context = {context} needs at least {counted(context, 'day')}; the panel has {num_days}. Give "
            "a longer panel or choose a shorter context."
        )


def _cells_by_date(chosen: Tensor) -> Tensor:
    """Return the cells (a, d) of a mask (A, D) as a D + d, those of each date together."""
    number, days = chosen.shape
    dtype = torch.int32 if number * days <= np.iinfo(np.int32).max else torch.int64
    step = max(1, CELLS_AT_ONCE // max(1, number))
    pieces = []
    for first in range(0, days, step):
        day, asset = chosen[:, first : first + step].T.nonzero(as_tuple=True)
        pieces.append((asset * days + day + first).to(dtype))
    return torch.cat(pieces)


def _places(frame: pl.DataFrame, dates: np.ndarray, assets: list[str]) -> tuple[Tensor, Tensor]:
    """Return the places of each row's date and asset."""
    day = np.searchsorted(dates, frame["date"].to_numpy().astype("datetime64[D]"))
    order = pl.DataFrame({"asset": assets, "place": np.arange(len(assets))})
    asset = (
        frame.select("asset").join(order, on="asset", how="left", maintain_order="left")["place"].to_numpy()
    )
    return torch.from_numpy(day), torch.tensor(asset)
