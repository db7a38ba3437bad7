"""The mediators of the four causes, measured in a network on one batch.

==================  =========================================================================
cause               mediators, mean over sublayers or one number a sublayer
==================  =========================================================================
representation      effective rank, root mean squared cosine and share of spread within windows of centred
                    tokens of u, by sublayer
gradient            norm of the gradient that the branch is trained with, and its signal, by sublayer
noise               gap between training and test loss
amplification       output change per unit of relative parameter change, and per optimiser step
==================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fints.diagnostics.gradient_signal import gradient_signal, noise_free_signal
from fints.diagnostics.output_change import output_change, step_output_change
from fints.diagnostics.profile import evaluation_mode
from fints.diagnostics.record import record
from fints.diagnostics.similarity import effective_rank
from fints.diagnostics.tokens import squared_cosine, window_share
from fints.model import Transformer
from fints.training import Steering, one_thread
from fints.training.losses import Loss

__all__ = ["MEDIATORS", "mediators"]

MEDIATORS = {
    "representation": ("effective_rank", "centred_cosine", "window_share"),
    "gradient": ("gradient_norm", "gradient_signal"),
    "noise": ("train_test_gap",),
    "amplification": ("output_change", "step_output_change"),
}


def mediators(
    model: Transformer,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss,
    steering: Steering | None = None,
    update: Mapping[str, Tensor] | None = None,
    noise_free: Tensor | None = None,
    train_loss: float | None = None,
    test_loss: float | None = None,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Return the mediators of a network on one batch that stays the same, by name.

    Parameters
    ----------
    model
        Left as found.
    x, y
        A batch of at least two windows (B, T, F) and their targets (B, T).
    loss
        From `fints.training.make_loss`.
    steering
        That of the fit: the gradients are then those that it trains with. Without it they are the plain ones.
    update
        What the last optimiser step added to each parameter, by name; without it there is no
        ``step_output_change``.
    noise_free
        What the targets would be without noise (B, T), where that is known: ``gradient_signal`` is then the
        exact ratio of signal to noise in this batch's gradient; else that estimated from its windows.
    train_loss, test_loss
        At the end of training, in evaluation mode; without both there is no ``train_test_gap``.
    seed
        Of the directions that the weights are moved in.

    Returns
    -------
    dict of list
        One number a sublayer, or one in all.
    """
    with evaluation_mode(model), one_thread(), torch.no_grad():
        read = record(model, x).read
    if noise_free is None:
        signal = gradient_signal(model, x, y, loss=loss).ratio
    else:
        signal, _ = noise_free_signal(model, x, y, noise_free, loss=loss)
    found = {
        "effective_rank": [float(effective_rank(u)) for u in read],
        "centred_cosine": [float(squared_cosine(u)) for u in read],
        "window_share": [float(window_share(u)) for u in read],
        "gradient_norm": _trained_norms(model, x, y, loss=loss, steering=steering),
        "gradient_signal": signal.tolist(),
        "output_change": [output_change(model, x, seed=seed)],
    }
    if update is not None:
        found["step_output_change"] = [step_output_change(model, x, update)]
    if train_loss is not None and test_loss is not None:
        found["train_test_gap"] = [test_loss - train_loss]
    return found


def _trained_norms(
    model: Transformer, x: Tensor, y: Tensor, *, loss: Loss, steering: Steering | None
) -> list[float]:
    """Return the norm of each branch's gradient as a step of the fit leaves it; no ``.grad`` is kept."""
    held = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in held:
        parameter.grad = None
    with evaluation_mode(model), one_thread(), torch.enable_grad():
        if steering is None:
            loss(model(x), y).mean().backward()
        else:
            steering.gradients(model, lambda: loss(model(x), y), step=0)
    norms = []
    for branch in model.branches:
        gradients = [p.grad.norm() for p in branch.parameters() if p.grad is not None]
        norms.append(float(torch.stack(gradients).norm()) if gradients else 0.0)
    for parameter, before in held:
        parameter.grad = before
    return norms
