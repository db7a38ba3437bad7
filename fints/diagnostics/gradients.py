r"""How strongly the loss pulls at each sublayer, and how far a step moves it.

A small gradient in deep layers alone is no sign of slow learning: Adam divides by the gradient's
own size. `update_to_weight` is what a step really moves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["branch_gradient_norms", "output_gradient_norms", "update_to_weight"]


def branch_gradient_norms(loss: Tensor, branches: nn.ModuleList) -> list[Tensor]:
    r"""Return :math:`\lVert \partial L / \partial \theta_k \rVert_2` a sublayer, 0-d tensors.

    :math:`\theta_k` is all the parameters of branch k together, neither its norm nor the weights
    of the residual scheme. The graph is kept and no ``.grad`` is touched.
    """
    groups = [[p for p in branch.parameters() if p.requires_grad] for branch in branches]
    flat = [parameter for group in groups for parameter in group]
    # A scheme may leave a branch unread; its gradient is then zero, not an error.
    gradients = iter(torch.autograd.grad(loss, flat, retain_graph=True, materialize_grads=True))
    return [_norm([next(gradients) for _ in group], like=loss) for group in groups]


def output_gradient_norms(loss: Tensor, outputs: list[Tensor]) -> list[Tensor]:
    r"""Return :math:`\lVert \partial L / \partial y_k \rVert_2` a sublayer, over all tokens, 0-d tensors.

    y_k is the output of branch k. The loss is a mean over tokens, so the norm falls with their
    number like its inverse root: compare at equal batches only.
    """
    gradients = torch.autograd.grad(loss, outputs, retain_graph=True, materialize_grads=True)
    return [gradient.norm() for gradient in gradients]


def update_to_weight(branches: nn.ModuleList, update: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    r"""Return :math:`\lVert \Delta\theta_k \rVert_2 / \lVert \theta_k \rVert_2` a sublayer, 0-d tensors.

    :math:`\Delta\theta` is what one optimiser step added, by parameter name, and :math:`\theta`
    the weights before it. About 1e-3 is usual for Adam. NaN for a branch whose weights were zero.

    Parameters
    ----------
    branches
        The branches, after the step.
    update
        By the parameter names of the whole model.
    prefix
        Of the branches' names in it, such as "branches.".
    """
    ratios = []
    for layer, branch in enumerate(branches):
        deltas, weights = [], []
        for name, parameter in branch.named_parameters():
            if parameter.requires_grad:
                delta = update[f"{prefix}{layer}.{name}"]
                deltas.append(delta)
                weights.append(parameter.detach() - delta)
        size = _norm(weights, like=next(branch.parameters()))
        ratios.append(_norm(deltas, like=size) / torch.where(size > 0, size, torch.nan))
    return ratios


def _norm(tensors: list[Tensor], *, like: Tensor) -> Tensor:
    if not tensors:
        return like.new_zeros(())
    return torch.stack([tensor.norm() for tensor in tensors]).norm()
