"""What a linear map of each depth's tokens knows of the planted signal, or of the target.

Shapes: N windows, D width, L sublayers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fints.diagnostics.profile import evaluation_mode
from fints.diagnostics.record import record
from fints.model import Transformer
from fints.training import Batches, one_thread

__all__ = ["PENALTIES", "last_tokens", "probe_rows", "ridge_probe"]

# Of the mean squared size of a standardised feature: from hardly any shrinkage to hardly any weight.
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
BATCH_SIZE = 256


def ridge_probe(
    z: Tensor,
    s: Tensor,
    held_z: Tensor,
    held_s: Tensor,
    *,
    penalties: Sequence[float] = PENALTIES,
) -> float:
    r"""Return the share of what was planted that a ridge regression finds on held-out dates.

    .. math:: 1 - \frac{\sum (p - s)^2}{\sum s^2}, \qquad p = \bar s + (z - \bar z)^\top w, \qquad
        w = \arg\min_w \frac1N \sum (s - \bar s - (z - \bar z)^\top w)^2 + \lambda \lVert w\rVert^2

    with z in units of its standard deviations, the sums over the held-out windows, and everything else from
    the others; :math:`\lambda` is the penalty with the least leave-one-out error there. With the planted
    signal for s this is a share of oracle; with the target it is an R2 against zero.

    Parameters
    ----------
    z, s
        Features (N, D) and what they shall say (N,), of dates that come before the held-out ones. NaN in s
        leaves the window out.
    held_z, held_s
        The same of the held-out dates; leave as many dates between as an outcome takes to be known.
    penalties
        To choose from.

    Raises
    ------
    ValueError
        If a side has fewer than two windows, or the held-out s is zero everywhere.
    """
    z, s, held_z, held_s = (part.detach().cpu().double() for part in (z, s, held_z, held_s))
    (z, s), (held_z, held_s) = ((a[b.isfinite()], b[b.isfinite()]) for a, b in ((z, s), (held_z, held_s)))
    if min(len(s), len(held_s)) < 2 or not bool(held_s.square().sum() > 0):
        raise ValueError(
            f"a probe needs two windows on each side and a signal; got {len(s)} and {len(held_s)} windows."
        )
    centre, spread, level = z.mean(0), z.std(0, correction=0), s.mean()
    spread = torch.where(spread > 0, spread, 1.0)
    features = (z - centre) / spread
    left, singular, right = torch.linalg.svd(features, full_matrices=False)
    along = left.T @ (s - level)
    best, best_error = torch.zeros_like(along), torch.inf
    for penalty in penalties:
        kept = singular.square() / (singular.square() + penalty * len(s))
        # The mean takes a degree of freedom too: 1/N in each diagonal entry.
        leverage = left.square() @ kept + 1 / len(s)
        residual = (s - level - left @ (kept * along)) / (1 - leverage).clamp(min=1e-6)
        error = float(residual.square().mean())
        if error < best_error:
            inverse = torch.where(singular > 0, kept / torch.where(singular > 0, singular, 1.0), 0.0)
            best, best_error = inverse * along, error
    forecast = level + (held_z - centre) / spread @ (right.T @ best)
    return float(1 - (forecast - held_s).square().sum() / held_s.square().sum())


def last_tokens(model: Transformer, batches: Batches) -> tuple[list[Tensor], Tensor]:
    """Return the last token of the trunk at each of the L + 1 depths (N, D), and of the forecast (N,)."""
    device = next(model.parameters()).device
    trunks: list[list[Tensor]] = [[] for _ in range(len(model.branches) + 1)]
    forecasts = []
    with evaluation_mode(model), one_thread(), torch.no_grad():
        for start in range(0, len(batches), BATCH_SIZE):
            inputs, _ = batches.gather(torch.arange(start, min(start + BATCH_SIZE, len(batches))))
            held = record(model, inputs.to(device))
            for kept, trunk in zip(trunks, held.trunks, strict=True):
                kept.append(trunk[:, -1].cpu())
            forecasts.append(held.forecast.mean[:, -1, 0].cpu())
    return [torch.cat(kept) for kept in trunks], torch.cat(forecasts)


def probe_rows(
    model: Transformer, before: Batches, after: Batches, *, said: Tensor, held_out: Tensor
) -> list[dict[str, Any]]:
    """Return one row a depth: what `ridge_probe` finds in the trunk that enters each sublayer.

    Parameters
    ----------
    model
        The network; left as found.
    before, after
        Windows to fit the probe on, and later ones to judge it on.
    said, held_out
        What the probe shall say of each window (N,): the planted signal, or the outcome.

    Returns
    -------
    list of dict
        ``layer`` (L for the read-out's trunk), ``share``, and ``share_network``, what the network's own
        forecast reaches on the same windows: between the best probe and that lies what the head loses.
    """
    first, _ = last_tokens(model, before)
    second, forecast = last_tokens(model, after)
    known = held_out.isfinite()
    error = (forecast.double() - held_out.double())[known].square().sum()
    own = float(1 - error / held_out.double()[known].square().sum())
    return [
        {"layer": layer, "share": ridge_probe(z, said, held_z, held_out), "share_network": own}
        for layer, (z, held_z) in enumerate(zip(first, second, strict=True))
    ]
