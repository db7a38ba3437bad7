r"""How much of the gradient is signal: per-sample gradients, their noise, and what is left without noise.

g_b is the gradient of window b's share of the batch loss by the parameters of one branch, so that the
gradient of the batch is the mean :math:`\bar g` of the B of them. Shapes: B windows, T tokens, F features.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fints.diagnostics.profile import evaluation_mode
from fints.model import Transformer
from fints.residual import (
    AttentionResiduals,
    BlockAttentionResiduals,
    DenseFormer,
    ManifoldHyperConnections,
    Residual,
    StateAttention,
)
from fints.training import one_thread
from fints.training.losses import Loss, LossSum

__all__ = [
    "BatchVariance",
    "GradientSignal",
    "batch_gradient_variance",
    "gradient_signal",
    "noise_free_signal",
    "per_sample_gradients",
]


# Schemes with a backward pass of their own that torch.func cannot batch: one window at a time.
ONE_BY_ONE: tuple[type[Residual[Any]], ...] = (
    AttentionResiduals,
    BlockAttentionResiduals,
    DenseFormer,
    ManifoldHyperConnections,
    StateAttention,
)


@dataclass(frozen=True, kw_only=True)
class GradientSignal:
    r"""Signal and noise of the gradient of each branch, (L,) each.

    Attributes
    ----------
    norm : Tensor
        :math:`\lVert\bar g\rVert`.
    noise : Tensor
        :math:`\mathrm{tr}\,\hat\Sigma = \frac{1}{B-1}\sum_b \lVert g_b - \bar g\rVert^2`.
    ratio : Tensor
        :math:`(\lVert\bar g\rVert^2 - \mathrm{tr}\,\hat\Sigma / B) / \mathrm{tr}\,\hat\Sigma`: the signal of
        one window, the first part an unbiased estimate of the squared length of the expected gradient. Its
        inverse is the noise scale of McCandlish et al. (arXiv 1812.06162), the batch size at which signal
        and noise are equal. Below 0 where a batch shows no signal.
    true_cosine : Tensor or None
        :math:`\cos(\bar g, \bar g^*)` with the gradient against the noise-free targets.
    true_ratio : Tensor or None
        :math:`\lVert\bar g^*\rVert^2 / \lVert\bar g - \bar g^*\rVert^2`: for a squared loss the exact ratio
        of signal to noise in this batch's gradient.
    """

    norm: Tensor
    noise: Tensor
    ratio: Tensor
    true_cosine: Tensor | None
    true_ratio: Tensor | None


@dataclass(frozen=True, kw_only=True)
class BatchVariance:
    r"""Spread of the gradient over batches for each branch, (L,) each.

    `variance` is :math:`\frac{1}{K-1}\sum_i \lVert\bar g_i - m\rVert^2` over K batches with mean m, and
    `relative` that over :math:`\lVert m\rVert^2`.
    """

    variance: Tensor
    relative: Tensor


def per_sample_gradients(
    model: Transformer, x: Tensor, y: Tensor, *, loss: Loss, chunk: int | None = None
) -> list[Tensor]:
    r"""Return g_b of every branch, one (B, P_k) a sublayer, in evaluation mode.

    .. math:: g_b = \frac{B}{M} \nabla_{\theta_k} \sum_{t:\, (b, t) \text{ has a target}} \ell_{bt}

    with M the targets of the whole batch. All windows at once through ``torch.func.vmap``, `chunk` of them
    at a time: the largest tensor has chunk times the network's parameters. Schemes of `ONE_BY_ONE` run
    window by window, to the same numbers.

    Raises
    ------
    ValueError
        If no window has a target.
    """
    with evaluation_mode(model), one_thread():
        with torch.no_grad():
            count = int(loss(model(x), y).number)
        if not count:
            raise ValueError(
                "per-sample gradients need at least one target; got none. Give labelled windows."
            )
        share = len(x) / count
        parts = {model.residual.part(layer) for layer in range(len(model.branches))}
        if any(isinstance(part, ONE_BY_ONE) for part in parts):
            return _looped(model, x, y, loss, share)
        return _vectorised(model, x, y, loss, share, chunk)


def _vectorised(
    model: Transformer, x: Tensor, y: Tensor, loss: Loss, share: float, chunk: int | None
) -> list[Tensor]:
    names = [
        [name for name, _ in branch.named_parameters(prefix=f"branches.{layer}")]
        for layer, branch in enumerate(model.branches)
    ]
    own = {name for group in names for name in group}
    moving = {name: p.detach() for name, p in model.named_parameters() if name in own}
    still = {name: p.detach() for name, p in model.named_parameters() if name not in own}
    still |= {name: buffer.detach() for name, buffer in model.named_buffers()}

    def one(parameters: dict[str, Tensor], window: Tensor, target: Tensor) -> Tensor:
        forecast = functional_call(model, {**parameters, **still}, (window.unsqueeze(0),))
        return loss(forecast, target.unsqueeze(0)).total * share

    with torch.enable_grad(), warnings.catch_warnings():
        # The relative positions' gradient, a few numbers, has no batched kernel and is made in a loop.
        warnings.filterwarnings("ignore", message=".*batching rule for aten::unfold_backward")
        found = vmap(grad(one), in_dims=(None, 0, 0), chunk_size=chunk)(moving, x, y)
    return [torch.cat([found[name].flatten(1) for name in group], dim=1) for group in names]


def _looped(model: Transformer, x: Tensor, y: Tensor, loss: Loss, share: float) -> list[Tensor]:
    rows = []
    for b in range(len(x)):
        rows.append(
            _flat_gradients(model, x[b : b + 1], y[b : b + 1], lambda found: found.total * share, loss)
        )
    return [torch.stack(branch) for branch in zip(*rows, strict=True)]


def gradient_signal(
    model: Transformer,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss,
    noise_free: Tensor | None = None,
    chunk: int | None = 16,
) -> GradientSignal:
    """Return signal and noise of the gradient by branch.

    Windows count as independent. Those of one asset that overlap share outcomes, and those of one date a
    market: draw them so far apart, or read `ratio` as that of these windows only. `true_ratio` needs no
    such assumption.

    Parameters
    ----------
    model
        Left as found.
    x, y
        Inputs (B, T, F) and targets (B, T), NaN where there is none; at least two windows.
    loss
        From `fints.training.make_loss`.
    noise_free
        What the targets would be without noise (B, T), from `fints.data.noise_free_targets` in the units of
        `y`; NaN where unknown, and such tokens are left out on both sides.
    chunk
        Windows at a time.
    """
    samples = per_sample_gradients(model, x, y, loss=loss, chunk=chunk)
    number = len(x)
    norm = torch.stack([g.mean(0).norm() for g in samples])
    noise = torch.stack([g.var(0).sum() for g in samples])
    ratio = (norm.square() - noise / number) / torch.where(noise > 0, noise, torch.nan)
    cosine = true_ratio = None
    if noise_free is not None:
        true_ratio, cosine = noise_free_signal(model, x, y, noise_free, loss=loss)
    return GradientSignal(norm=norm, noise=noise, ratio=ratio, true_cosine=cosine, true_ratio=true_ratio)


def noise_free_signal(
    model: Transformer, x: Tensor, y: Tensor, noise_free: Tensor, *, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Return `true_ratio` and `true_cosine` of `GradientSignal`, two passes backward in all.

    Parameters and NaN are as in `gradient_signal`.
    """
    known = noise_free.isfinite() & y.isfinite()
    noisy, clean = (
        _batch_gradients(model, x, torch.where(known, values, torch.nan), loss=loss)
        for values in (y, noise_free)
    )
    pairs = list(zip(noisy, clean, strict=True))
    cosine = torch.stack([torch.nn.functional.cosine_similarity(a, b, dim=0) for a, b in pairs])
    ratio = torch.stack([b.square().sum() / (a - b).square().sum() for a, b in pairs])
    return ratio, cosine


def batch_gradient_variance(
    model: Transformer, batches: Sequence[tuple[Tensor, Tensor]], *, loss: Loss
) -> BatchVariance:
    """Return how much the gradient of each branch differs between batches (x, y) of windows.

    Raises
    ------
    ValueError
        If there are fewer than two batches.
    """
    if len(batches) < 2:
        raise ValueError(f"a variance over batches needs at least two; got {len(batches)}.")
    found = [_batch_gradients(model, x, y, loss=loss) for x, y in batches]
    stacked = [torch.stack(branch) for branch in zip(*found, strict=True)]
    variance = torch.stack([g.var(0).sum() for g in stacked])
    size = torch.stack([g.mean(0).square().sum() for g in stacked])
    return BatchVariance(variance=variance, relative=variance / torch.where(size > 0, size, torch.nan))


def _batch_gradients(model: Transformer, x: Tensor, y: Tensor, *, loss: Loss) -> list[Tensor]:
    """Return the gradient of the batch's mean loss by the parameters of each branch, flat."""
    with evaluation_mode(model), one_thread():
        return _flat_gradients(model, x, y, LossSum.mean, loss)


def _flat_gradients(
    model: Transformer, x: Tensor, y: Tensor, of: Callable[[LossSum], Tensor], loss: Loss
) -> list[Tensor]:
    groups = [list(branch.parameters()) for branch in model.branches]
    with torch.enable_grad():
        value = of(loss(model(x), y))
        flat = [parameter for group in groups for parameter in group]
        gradients = iter(torch.autograd.grad(value, flat, materialize_grads=True))
    return [torch.cat([next(gradients).flatten() for _ in group]) for group in groups]
