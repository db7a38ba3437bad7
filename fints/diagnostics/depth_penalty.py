"""The depth penalty of one cluster, and its parts.

All losses are means of the same loss at the end of training, in evaluation mode and without early stopping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

__all__ = ["DepthPenalty", "calibrated_share", "depth_penalty", "forecast_variance_ratio", "share_of_oracle"]


@dataclass(frozen=True, kw_only=True)
class DepthPenalty:
    """How much worse a deep network is on the test, and where that comes from.

    `penalty` = `optimisation` + `generalisation`, exactly. `kind` names the part that is more than half of
    it, or "none" where the penalty is not above 0.
    """

    penalty: float
    optimisation: float
    generalisation: float
    kind: str


def depth_penalty(
    *, train: float, test: float, reference_train: float, reference_test: float
) -> DepthPenalty:
    r"""Split the penalty of a deep network against its fixed reference into its parts.

    .. math:: \underbrace{E^{\mathrm{test}} - E^{\mathrm{test}}_0}_{\text{penalty}} =
        \underbrace{(E^{\mathrm{train}} - E^{\mathrm{train}}_0)}_{\text{optimisation}} +
        \underbrace{(G - G_0)}_{\text{generalisation}}, \qquad G = E^{\mathrm{test}} - E^{\mathrm{train}}

    with the index 0 for the reference (depth 4). The optimisation part is below 0 where the deep network
    fits its training set better, and the generalisation part then is larger than the penalty.

    Parameters
    ----------
    train, test
        Losses of the deep network.
    reference_train, reference_test
        Those of the reference, on the same data with the same seed.

    Raises
    ------
    ValueError
        If a loss is not finite: a diverged fit enters as the zero forecast.
    """
    losses = (train, test, reference_train, reference_test)
    if not all(math.isfinite(loss) for loss in losses):
        raise ValueError(f"a depth penalty needs four finite losses; got {losses}.")
    penalty, optimisation = test - reference_test, train - reference_train
    generalisation = (test - train) - (reference_test - reference_train)
    kind = "optimisation" if optimisation > penalty / 2 else "generalisation"
    kind = kind if penalty > 0 else "none"
    return DepthPenalty(penalty=penalty, optimisation=optimisation, generalisation=generalisation, kind=kind)


def share_of_oracle(forecast: Tensor, signal: Tensor) -> float:
    r"""Return :math:`1 - \sum (p - s)^2 / \sum s^2` over the rows where s is known.

    Raises
    ------
    ValueError
        If the signal is zero everywhere: nothing was planted.
    """
    p, s = _known(forecast, signal)
    if not bool(s.square().sum() > 0):
        raise ValueError("a share of oracle needs a planted signal; got one that is zero everywhere.")
    return float(1 - (p - s).square().sum() / s.square().sum())


def calibrated_share(forecast: Tensor, signal: Tensor) -> tuple[float, float]:
    r"""Return the share of oracle after the best scalar, and that scalar.

    .. math:: \max_a \Bigl(1 - \frac{\sum (a p - s)^2}{\sum s^2}\Bigr) = \cos^2(p, s), \qquad
        a = \frac{\sum p s}{\sum p^2}

    Two forecasts that differ only by shrinkage are equal here: so a relief of noise fitting that merely
    makes forecasts smaller gains nothing. With the outcome for s, choose a on dates that are not judged.
    """
    p, s = _known(forecast, signal)
    size = p.square().sum()
    scalar = float((p * s).sum() / size) if bool(size > 0) else 0.0
    return share_of_oracle(scalar * p, s), scalar


def forecast_variance_ratio(forecast: Tensor, signal: Tensor) -> float:
    r"""Return :math:`\sum p^2 / \sum s^2`: above 1 the network says more than there is to know.

    Second moments about zero, since zero is the forecast without knowledge.
    """
    p, s = _known(forecast, signal)
    if not bool(s.square().sum() > 0):
        raise ValueError("a ratio to the oracle's variance needs a planted signal; got one that is zero.")
    return float(p.square().sum() / s.square().sum())


def _known(forecast: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
    if forecast.shape != signal.shape:
        raise ValueError(
            f"each forecast needs its signal; got {tuple(forecast.shape)} and {tuple(signal.shape)}."
        )
    known = signal.isfinite() & forecast.isfinite()
    return forecast[known].detach().cpu().double(), signal[known].detach().cpu().double()
