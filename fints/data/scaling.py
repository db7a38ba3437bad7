"""Scaling fitted on training rows, then frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from fints.data.exact import Moments

__all__ = ["StandardScaler", "measure"]


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
        found = {}
        for name in names:
            if name not in frame.columns:
                raise ValueError(f"the scaler needs a column {name!r}; got {', '.join(frame.columns)}.")
            found[name] = moments = Moments()
            values = frame[name].cast(pl.Float64).fill_nan(None).drop_nulls()
            measure(moments, name, values.to_numpy())
        return self.of(found, frame.height)

    def of(self, moments: Mapping[str, Moments], rows: int) -> StandardScaler:
        """Return the scaler of features whose training values, on `rows` rows, have these moments.

        Raises
        ------
        ValueError
            If a feature has no value.
        """
        for name, one in moments.items():
            if not one.count:
                raise ValueError(
                    f"feature {name!r} has no value on the {rows} training rows: its history is "
                    "longer than the training period. Train on more days or leave it out."
                )
        return replace(
            self,
            names=tuple(moments),
            mean=tuple(one.mean for one in moments.values()),
            std=tuple(one.deviation or 1.0 for one in moments.values()),
        )

    def leaving(self, names: Sequence[str]) -> StandardScaler:
        """Return the scaler that leaves the features `names` as they are, but for the clip."""
        left = set(names)
        return replace(
            self,
            mean=tuple(0.0 if name in left else m for name, m in zip(self.names, self.mean, strict=True)),
            std=tuple(1.0 if name in left else s for name, s in zip(self.names, self.std, strict=True)),
        )

    def scale(self, place: int, values: np.ndarray) -> np.ndarray:
        """Return values of the feature ``names[place]`` scaled and clipped; NaN stays NaN."""
        scaled: np.ndarray = (values - self.mean[place]) / self.std[place]
        return np.clip(scaled, -self.clip, self.clip, out=scaled)

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


def measure(moments: Moments, name: str, values: np.ndarray) -> None:
    """Take the training values (N,) of a feature into its moments.

    Raises
    ------
    ValueError
        If one is infinite, or so large that its square is.
    """
    try:
        moments.add(values)
    except ValueError as error:
        raise ValueError(
            f"feature {name!r} must be finite or null on the training rows, and below 3e150; drop or divide "
            "the column."
        ) from error
