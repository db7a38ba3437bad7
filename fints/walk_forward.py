"""Forecasts as a backtest would have had them: refitted on a schedule, each from its own past."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from fints.config import fingerprint
from fints.data import Panel
from fints.data.decisions import Day, as_date
from fints.forecaster import Forecaster, predict_all
from fints.forecaster import load as load_forecaster
from fints.refits import SPEC, SUCCESSES, Refit, keep_fit, kept_fit, read_refits, write_refits

__all__ = ["Refit", "WalkForwardForecaster", "load", "load_walk_forward"]

PERIODS = {"month": "1mo", "quarter": "1q", "year": "1y"}
KEYS = ("decision_time", "asset", "horizon")


class WalkForwardForecaster(BaseEstimator):
    r"""A forecaster that is refitted on a schedule, an ensemble of seeds at each refit.

    .. math::

        p(t, i) = \frac{1}{|S|} \sum_{s \in S} p_{s, m(t)}(t, i),
        \qquad m(t) = \text{the last refit whose first day is} \le t

    A refit happens on the first date of a new period. It sees the rows *before* that date alone, so
    a model is at least one day old when it is first used: it can be trained overnight. A fit that
    diverged or ran out of memory is no member of its ensemble.

    Parameters
    ----------
    forecaster : Forecaster, optional
        What is refitted; copies of it are fitted, itself never.
    refit_every : "month", "quarter", "year" or int
        A calendar period, or a number of dates of the panel.
    train_days : int, optional
        Dates of the panel that a refit may learn from, the validation dates among them, at its end;
        None: all before it. Earlier rows still serve as history of the features.
    validation : float
        Last share of those dates that chooses the kept weights and stops early; 0 uses none.
    num_seeds : int
        Size of the ensemble S; member k has the forecaster's seed + k.

    Attributes
    ----------
    refits_ : list of Refit
        All fits, in order of time and seed.
    members_ : dict
        Date of first use -> fitted forecasters, for the fits that succeeded.

    Examples
    --------
    >>> from fints import Forecaster, WalkForwardForecaster
    >>> from fints.data import simulate
    >>> panel = simulate(num_assets=3, num_days=400, seed=0).panel
    >>> small = Forecaster(depth=1, width=8, context=8, features=("a", "b"), steps=5)
    >>> walk = WalkForwardForecaster(small, refit_every="year", num_seeds=2)
    >>> table = walk.fit(panel, start="2000-10-02").predict(panel)
    >>> [(str(first), len(members)) for first, members in sorted(walk.members_.items())]
    [('2000-10-02', 2), ('2001-01-01', 2)]
    """

    def __init__(
        self,
        forecaster: Forecaster | None = None,
        *,
        refit_every: str | int = "year",
        train_days: int | None = None,
        validation: float = 0.15,
        num_seeds: int = 1,
    ) -> None:
        self.forecaster = forecaster
        self.refit_every = refit_every
        self.train_days = train_days
        self.validation = validation
        self.num_seeds = num_seeds

    def schedule(self, panel: Panel, start: Day, end: Day | None = None) -> list[tuple[dt.date, dt.date]]:
        """Return (first date of use, last date seen) of every refit for forecasts in [start, end].

        Raises
        ------
        ValueError
            If a setting cannot be used, or the panel has no date before `start`, or none from it on.
        """
        self._check()
        first, last = as_date(start), as_date(end)
        assert first is not None
        dates = panel.dates
        place = dates.search_sorted(first)
        if place == 0 or place == len(dates):
            raise ValueError(
                f"walk-forward needs dates of the panel before start and from it on; got start = {first} and "
                f"{panel.name} from {dates[0]} to {dates[-1]}."
            )
        ahead = dates.slice(place)
        if last is not None:
            ahead = ahead.filter(ahead <= last)
            if ahead.is_empty():
                raise ValueError(f"walk-forward: no date of {panel.name} lies between {first} and {last}.")
        if isinstance(self.refit_every, str):
            period = ahead.dt.truncate(PERIODS[self.refit_every])
            begins = (period != period.shift(1)).fill_null(value=True)
        else:
            begins = pl.int_range(len(ahead), eager=True) % self.refit_every == 0
        firsts = ahead.filter(begins).to_list()
        return [(day, dates[dates.search_sorted(day) - 1]) for day in firsts]

    def fit(
        self,
        panel: Panel,
        *,
        start: Day,
        end: Day | None = None,
        folder: str | Path | None = None,
        on_refit: Callable[[Refit], None] | None = None,
    ) -> WalkForwardForecaster:
        """Make every refit that forecasts dated in [start, end] need.

        Parameters
        ----------
        panel : Panel
            Rows from `end` on are not used.
        start, end : date
            First and last decision date to be forecast; None: to the end of the panel.
        folder : path, optional
            Where each finished fit is kept. A later call takes from there what it would fit again
            with the same settings from the same rows: it resumes, and a longer panel adds only
            the refits that are new.
        on_refit : callable, optional
            Receives each `Refit` as it is made or found.

        Returns
        -------
        WalkForwardForecaster
            Itself.

        Raises
        ------
        ValueError
            As `schedule` and `Forecaster.fit`; or if no seed of a refit succeeded (its reasons are said).
        """
        schedule = self.schedule(panel, start, end)
        template = self.forecaster if self.forecaster is not None else Forecaster()
        store = None if folder is None else Path(folder)
        refits: list[Refit] = []
        members: dict[dt.date, list[Forecaster]] = {}
        for first, as_of in schedule:
            seen = panel[:as_of]
            begin = None
            if self.train_days is not None:
                begin = seen.dates[max(0, len(seen.dates) - self.train_days)]
            members[first] = []
            for k in range(self.num_seeds):
                one = clone(template).set_params(seed=template.seed + k)
                fitted, refit = self._member(one, seen, first, begin, store)
                refits.append(refit)
                if on_refit is not None:
                    on_refit(refit)
                if fitted is not None:
                    members[first].append(fitted)
            if not members[first]:
                reasons = "; ".join(f"seed {r.seed}: {r.reason}" for r in refits[-self.num_seeds :])
                raise ValueError(f"no fit of the refit at {first} succeeded ({reasons}).")
        self.refits_ = refits
        self.members_ = members
        return self

    def predict(self, panel: Panel, *, start: Day | None = None, end: Day | None = None) -> pl.DataFrame:
        """Forecast every row of `panel` from the first refit on, within [start, end].

        Returns
        -------
        polars.DataFrame
            The columns of `Forecaster.predict`. `forecast` is the mean over seeds; `scale` the
            standard deviation of the mixture of their distributions; a quantile the mean of theirs.
            With more than one seed also `seed_spread`, the standard deviation of their forecasts, null
            where a single one of them succeeded.
            `model_as_of` is the last outcome that any of them knows.

        Raises
        ------
        NotFittedError
            If `fit` was not called.
        ValueError
            If no date of the panel in [start, end] lies at or after the first refit.
        """
        together = _alone if self.num_seeds == 1 else _together
        return self._gather(panel, start, end, together)

    def evaluate_frame(self, panel: Panel, start: Day | None = None, end: Day | None = None) -> pl.DataFrame:
        """Return the mean forecast beside the outcome, both in units of the target.

        Returns
        -------
        polars.DataFrame
            `date`, `asset`, `forecast`, `realised`, `unit_scale`, as `Forecaster.evaluate_frame`.
        """

        def one(members: list[Forecaster], panel: Panel, first: dt.date, last: dt.date) -> pl.DataFrame:
            frames = [member.evaluate_frame(panel, first, last) for member in members]
            mean = pl.concat(frames).group_by("date", "asset").agg(pl.col("forecast").mean())
            rest = frames[0].select("date", "asset", "realised", "unit_scale")
            return (
                rest.join(mean, on=["date", "asset"])
                .sort("date", "asset")
                .select("date", "asset", "forecast", "realised", "unit_scale")
            )

        return self._gather(panel, start, end, one)

    def save(self, path: str | Path) -> Path:
        """Write all refits to a folder that `fints.load` reads; an older one at `path` is replaced.

        Raises
        ------
        NotFittedError
            If `fit` was not called.
        ValueError
            If `path` exists and is no saved walk-forward forecaster.
        """
        check_is_fitted(self)
        return write_refits(Path(path), self.get_params(deep=False), self.refits_, self.members_)

    def _member(
        self,
        one: Forecaster,
        seen: Panel,
        first: dt.date,
        begin: dt.date | None,
        store: Path | None,
    ) -> tuple[Forecaster | None, Refit]:
        """Fit one seed of one refit, or take it from the store; None if the fit failed."""
        as_of = seen.dates[-1]
        key = fingerprint(one.resolve(), one.seed, str(begin), self.validation, seen.checksum)
        made = Refit(first=first, as_of=as_of, seed=one.seed, outcome="", reason="")
        place = None if store is None else store / f"{made.name}-{key}"
        found = None if place is None else kept_fit(place)
        if found is not None:
            fitted, outcome, reason = found
            return fitted, replace(made, outcome=outcome, reason=reason)
        one.fit(seen, train=(begin, None), validation=self.validation)
        result = one.result_
        assert result is not None
        refit = replace(made, outcome=result.outcome, reason=result.reason)
        fitted = one if result.outcome in SUCCESSES else None
        if place is not None:
            keep_fit(place, fitted, refit)
        return fitted, refit

    def _gather(
        self,
        panel: Panel,
        start: Day | None,
        end: Day | None,
        one: Callable[[list[Forecaster], Panel, dt.date, dt.date], pl.DataFrame],
    ) -> pl.DataFrame:
        """Concatenate what `one` returns for each refit's own dates."""
        check_is_fitted(self)
        firsts = sorted(self.members_)
        begin, stop = as_date(start) or firsts[0], as_date(end) or panel.dates[-1]
        frames = []
        for place, first in enumerate(firsts):
            until = firsts[place + 1] - dt.timedelta(days=1) if place + 1 < len(firsts) else stop
            low, high = max(first, begin), min(until, stop)
            if low <= high and ((panel.dates >= low) & (panel.dates <= high)).any():
                frames.append(one(self.members_[first], panel, low, high))
        if not frames:
            raise ValueError(
                f"no date of {panel.name} between {begin} and {stop} lies at or after the first refit, "
                f"{firsts[0]}; ask for later dates, or fit with an earlier start."
            )
        return pl.concat(frames)

    def _check(self) -> None:
        every = self.refit_every
        whole = isinstance(every, int) and not isinstance(every, bool) and every >= 1
        if not whole and every not in PERIODS:
            raise ValueError(
                f"refit_every must be one of {', '.join(PERIODS)} or a number of dates; got {every!r}."
            )
        for name, value in (("train_days", self.train_days), ("num_seeds", self.num_seeds)):
            if name == "train_days" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")


def load_walk_forward(path: str | Path) -> WalkForwardForecaster:
    """Load what `WalkForwardForecaster.save` wrote.

    Raises
    ------
    ValueError
        If the folder is missing, foreign, damaged, or of a newer format.
    """
    settings, refits, members = read_refits(Path(path))
    one = next(iter(members.values()))[0]
    walk = WalkForwardForecaster(Forecaster(one.experiment_, seed=refits[0].seed), **settings)
    walk.refits_ = refits
    walk.members_ = members
    return walk


def load(path: str | Path) -> Forecaster | WalkForwardForecaster:
    """Load what `Forecaster.save` or `WalkForwardForecaster.save` wrote.

    Nothing is unpickled: the folder holds JSON and safetensors, and any other kind is refused.

    Raises
    ------
    ValueError
        If the folder is missing, foreign, damaged, or of a newer format.
    """
    return load_walk_forward(path) if (Path(path) / SPEC).is_file() else load_forecaster(path)


def _alone(members: list[Forecaster], panel: Panel, first: dt.date, last: dt.date) -> pl.DataFrame:
    return members[0].predict(panel, start=first, end=last)


def _together(members: list[Forecaster], panel: Panel, first: dt.date, last: dt.date) -> pl.DataFrame:
    """Return the ensemble's forecasts dated in [first, last]."""
    stacked = pl.concat(predict_all(members, panel, first, last))
    forecast = pl.col("forecast")
    columns = [forecast.mean()]
    if "scale" in stacked.columns:
        within = (pl.col("scale") ** 2).mean()
        columns += [(within + forecast.var(ddof=0)).sqrt().alias("scale")]
        columns += [pl.col(name).mean() for name in ("q05", "q50", "q95")]
    columns += [forecast.std(ddof=1).alias("seed_spread")]
    columns += [pl.col("model_as_of").max(), pl.col("available_at").max()]
    return stacked.group_by(*KEYS, maintain_order=True).agg(columns).sort(*KEYS[:2])
