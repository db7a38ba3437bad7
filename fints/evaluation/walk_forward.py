"""Walk-forward folds: made on unique dates, expanded to rows afterwards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

__all__ = ["Fold", "WalkForward"]

Period = tuple[dt.date, dt.date]
Part = Literal["train", "validation", "test"]
_PARTS: tuple[Part, ...] = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One train, validation and test period; each holds its first and last decision date, inclusive.

    A decision date is the day whose close is the last thing a forecast has seen. The periods are
    already purged: a label of `train` ends before `validation` begins, a label of `validation`
    ends before `test` begins. The labels of `test` reach past its last date.
    """

    index: int
    train: Period
    validation: Period
    test: Period

    def __post_init__(self) -> None:
        dates = (*self.train, *self.validation, *self.test)
        for name, first, last in zip(_PARTS, dates[::2], dates[1::2], strict=True):
            if first > last:
                raise ValueError(f"fold {self.index}: {name} must begin before it ends; got {first}, {last}.")
        if not self.train[1] < self.validation[0] or not self.validation[1] < self.test[0]:
            raise ValueError(
                f"fold {self.index}: train, validation and test must follow one another without overlap; "
                f"got {', '.join(f'{name} {_span(self.period(name))}' for name in _PARTS)}."
            )

    def select(self, frame: pl.DataFrame, part: Part) -> pl.DataFrame:
        """Return the rows of `frame` whose `date` lies in one period."""
        first, last = self.period(part)
        return frame.filter(pl.col("date").is_between(first, last, closed="both"))

    def period(self, part: Part) -> Period:
        """Return the first and last decision date of a period by its name."""
        if part not in ("train", "validation", "test"):
            raise ValueError(f"a fold has the parts train, validation, test; got {part!r}.")
        return getattr(self, part)

    def to_dict(self) -> dict[str, Any]:
        """Return the fold with ISO dates, ready for JSON."""
        tree: dict[str, Any] = {"index": self.index}
        for name in _PARTS:
            tree[name] = [day.isoformat() for day in self.period(name)]
        return tree

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Fold:
        """Rebuild a fold from `to_dict`."""
        train, validation, test = (
            (dt.date.fromisoformat(tree[name][0]), dt.date.fromisoformat(tree[name][1])) for name in _PARTS
        )
        return cls(index=int(tree["index"]), train=train, validation=validation, test=test)


@dataclass(frozen=True, kw_only=True)
class WalkForward:
    """Adjacent test periods at the end of the sample, each after its own past.

    ::

        fold 0   train ......... | gap | validation | gap | test
        fold 1   train ................... | gap | validation | gap | test

    All numbers count unique dates of the panel, never rows: a panel of 20 assets is split at the
    same days for all of them. A gap has ``purge + embargo`` dates.

    Parameters
    ----------
    num_folds, test_days, validation_days
        How many test periods, how long each is, and how long the validation period before each is.
    train_days
        Length of a rolling training period; None lets it grow from the first date (expanding).
    purge
        Dates dropped before validation and before test so that no label reaches into them. A
        forecast over `h` days made on date ``i`` is known on date ``i + h``: choose ``purge = h``.
    embargo
        Further dates dropped at the same two places. Plain walk-forward needs none, since nothing
        is trained on data after a test period; it widens the gap for features that are published late.
    end
        Last date that may be used; later ones (a sealed period) are invisible.

    Notes
    -----
    A forecast dated `t` uses the close of `t`. Whoever trades on it earns from the next price on:
    the test period's first outcome begins at the close of its first date, not before it.
    """

    num_folds: int
    test_days: int
    validation_days: int
    purge: int
    train_days: int | None = None
    embargo: int = 0
    end: dt.date | None = None

    def __post_init__(self) -> None:
        smallest = {"num_folds": 1, "test_days": 1, "validation_days": 1, "purge": 0, "embargo": 0}
        if self.train_days is not None:
            smallest["train_days"] = 1
        for name, least in smallest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"walk-forward: {name} must be a whole number >= {least}; got {value!r}.")
        if self.end is not None and (isinstance(self.end, dt.datetime) or not isinstance(self.end, dt.date)):
            raise ValueError(f"walk-forward: end must be a datetime.date or None; got {self.end!r}.")

    @property
    def gap(self) -> int:
        """Dates dropped before validation and again before test."""
        return self.purge + self.embargo

    @property
    def dates_needed(self) -> int:
        """Fewest unique dates that give every fold all its periods (an expanding train: one date)."""
        past = (self.train_days or 1) + self.validation_days + 2 * self.gap
        return past + self.num_folds * self.test_days

    def split(self, dates: Iterable[dt.date]) -> list[Fold]:
        """Return the folds of these dates, oldest first; order and repetition of `dates` do not matter.

        Raises
        ------
        ValueError
            If there are fewer unique dates than `dates_needed`.
        """
        unique = sorted(set(dates))
        usable = unique if self.end is None else [day for day in unique if day <= self.end]
        if len(usable) < self.dates_needed:
            until = "" if self.end is None else f" up to {self.end} (of {len(unique)} in all)"
            past = "a growing train of at least 1" if self.train_days is None else f"train {self.train_days}"
            raise ValueError(
                f"walk-forward needs {self.dates_needed} unique dates "
                f"({past} + validation {self.validation_days} + two gaps of {self.gap} "
                f"+ {self.num_folds} tests of {self.test_days}); got {len(usable)}{until}. "
                "Use fewer or shorter folds, or a longer panel."
            )
        folds = []
        for index in range(self.num_folds):
            test = len(usable) - (self.num_folds - index) * self.test_days
            validation_end = test - 1 - self.gap
            validation = validation_end - self.validation_days + 1
            train_end = validation - 1 - self.gap
            train = 0 if self.train_days is None else train_end - self.train_days + 1
            folds.append(
                Fold(
                    index=index,
                    train=(usable[train], usable[train_end]),
                    validation=(usable[validation], usable[validation_end]),
                    test=(usable[test], usable[test + self.test_days - 1]),
                )
            )
        return folds


def _span(period: Period) -> str:
    return f"{period[0]} to {period[1]}"
