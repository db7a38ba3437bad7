"""How good is a forecast distribution? Scores of a mean, a scale and, for a Student t, its degrees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from fints.evaluation.rows import columns, known_rows

__all__ = ["coverage", "crps", "log_score"]


def log_score(frame: pl.DataFrame) -> float:
    """Return the mean log density of the outcomes, in nats; higher is better.

    The density is Gaussian with mean `forecast` and standard deviation ``exp(log_scale)``; with a
    column `degrees` it is a Student t of that location, scale and degrees of freedom.
    """
    z, scale, law = _standardised(frame)
    return float(np.mean(law.logpdf(z) - np.log(scale)))


def crps(frame: pl.DataFrame) -> float:
    r"""Return the mean continuous ranked probability score, in units of the outcome; lower is better.

    Gaussian, with z = (r - p) / sigma:

    .. math:: \sigma [ z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi} ]

    Student t with nu > 1 degrees of freedom:

    .. math:: \sigma \Big[ z (2 F(z) - 1) + 2 f(z) \frac{\nu + z^2}{\nu - 1}
        - \frac{2 \sqrt{\nu}}{\nu - 1} \frac{B(1/2, \nu - 1/2)}{B(1/2, \nu / 2)^2} \Big]

    Source: Gneiting, Raftery (2007), equation 21; Jordan, Krueger, Lerch (2019), appendix A.
    """
    from scipy.special import betaln

    z, scale, law = _standardised(frame)
    if "degrees" not in frame.columns:
        score = z * (2 * law.cdf(z) - 1) + 2 * law.pdf(z) - 1 / math.sqrt(math.pi)
        return float(np.mean(scale * score))
    degrees = law.kwds["df"]
    if not (degrees > 1).all():
        raise ValueError(f"CRPS of a Student t exists for degrees above 1; got {degrees.min()!r}.")
    spread = (
        2
        * np.sqrt(degrees)
        / (degrees - 1)
        * np.exp(betaln(0.5, degrees - 0.5) - 2 * betaln(0.5, degrees / 2))
    )
    score = z * (2 * law.cdf(z) - 1) + 2 * law.pdf(z) * (degrees + z**2) / (degrees - 1) - spread
    return float(np.mean(scale * score))


def coverage(frame: pl.DataFrame, level: float) -> float:
    """Return the share of outcomes inside the central interval of probability `level`."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level!r}.")
    z, _, law = _standardised(frame)
    return float(np.mean(np.abs(law.cdf(z) - 0.5) <= level / 2))


def _standardised(frame: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return z, the scale and the law of z (a frozen scipy distribution)."""
    from scipy import stats

    names = ["log_scale"] + (["degrees"] if "degrees" in frame.columns else [])
    rows = known_rows(frame, *names)
    if any(rows[name].null_count() for name in names):
        raise ValueError(f"{' and '.join(names)} must be given on every row that has a forecast.")
    forecast, realised, log_scale = columns(rows, "forecast", "realised", "log_scale")
    scale = np.exp(log_scale)
    law = stats.t(df=rows["degrees"].to_numpy()) if "degrees" in names else stats.norm()
    return (realised - forecast) / scale, scale, law
