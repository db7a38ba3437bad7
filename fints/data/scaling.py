"""Scaling fitted on training rows, then frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

__all__ = ["StandardScaler"]


@dataclass(frozen=True, kw_only=True)
class StandardScaler:
    """Subtract the training mean, divide by the training standard deviation, clip: z = clip((x - m) / s).

    A value: ``StandardScaler(clip=10).fit(frame, names)`` returns the fitted scaler and changes nothing.

    Attributes
    ----------
    names : tuple of str
        The features, in order.
    mean, std : tuple of float
        Over the non-null training rows; the divisor of the variance is their number. A feature constant in
        training has std 1, so it becomes 0.
    clip : float
        Bound of |z|.
    """

    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    clip: float = 10.0

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ValueError(f"clip must be above 0; got {self.clip}.")
        if not len(self.names) == len(self.mean) == len(self.std):
            raise ValueError(
                "a scaler needs one mean and one std a name; got "
                f"{len(self.names)} names, {len(self.mean)} means, {len(self.std)} stds."
            )

    def fit(self, frame: pl.DataFrame, names: Sequence[str]) -> StandardScaler:
        """Measure `names` on the training rows `frame`; sums are exact, so the order of rows cannot matter.

        Raises
        ------
        ValueError
            If a feature is absent, has no value on these rows, or is not finite.
        """
        means, deviations = [], []
        for name in names:
            if name not in frame.columns:
                raise ValueError(f"the scaler needs a column {name!r}; got {', '.join(frame.columns)}.")
            values = frame[name].cast(pl.Float64).fill_nan(None).drop_nulls().to_list()
            if not values:
                raise ValueError(
                    f"feature {name!r} has no value on the {frame.height} training rows: its history is "
                    "longer than the training period. Train on more days or leave it out."
                )
            if not all(map(math.isfinite, values)):
                raise ValueError(f"feature {name!r} must be finite or null on the training rows.")
            if min(values) == max(values):
                means.append(values[0])
                deviations.append(1.0)
                continue
            mean = math.fsum(values) / len(values)
            means.append(mean)
            deviations.append(math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)))
        return replace(self, names=tuple(names), mean=tuple(means), std=tuple(deviations))

    def transform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` with the scaler's features scaled and clipped; null stays null."""
        return frame.with_columns(
            ((pl.col(name) - mean) / std).clip(-self.clip, self.clip)
            for name, mean, std in zip(self.names, self.mean, self.std, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the scaler as JSON-able values."""
        return {"names": list(self.names), "mean": list(self.mean), "std": list(self.std), "clip": self.clip}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StandardScaler:
        """Rebuild a scaler from `to_dict`."""
        return cls(
            names=tuple(values["names"]),
            mean=tuple(values["mean"]),
            std=tuple(values["std"]),
            clip=values["clip"],
        )
