r"""How much the forecast moves when weights move: what amplification is measured by.

f is the mean forecast of a batch, theta all parameters. Shapes: B batch, T tokens, F features, L sublayers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fints.diagnostics.profile import evaluation_mode
from fints.model import Transformer
from fints.training import derive, one_thread

__all__ = ["output_change", "output_change_by_branch", "step_output_change"]


def output_change(
    model: Transformer, x: Tensor, *, relative: float = 1e-3, draws: int = 4, seed: int = 0
) -> float:
    r"""Return the change of the forecast per unit of relative parameter change.

    .. math:: \frac{1}{\epsilon} \Bigl( \frac1K \sum_{i=1}^K
        \mathrm{ms}\bigl(\tfrac12 (f(\theta + \epsilon\delta_i) - f(\theta - \epsilon\delta_i))\bigr)
        \Bigr)^{1/2}, \qquad \lVert\delta_{i,p}\rVert = \lVert\theta_p\rVert

    with ms the mean square over all tokens of the batch, :math:`\epsilon` the `relative` change, K the
    `draws`, and :math:`\delta_i` random directions scaled tensor by tensor to the length of what they move;
    a tensor of zeros is not moved. The embedding and the head are left out: what they do is no matter of
    depth. In double precision and evaluation mode, on a copy.

    Notes
    -----
    The measure of Liu et al. 2020 (arXiv 2004.08249), Var[F(x, theta) - F(x, theta + delta)], per unit of
    the change and with central differences.
    """
    return _perturbed(model, x, relative=relative, draws=draws, seed=seed, only=None)


def output_change_by_branch(
    model: Transformer, x: Tensor, *, relative: float = 1e-3, draws: int = 4, seed: int = 0
) -> list[float]:
    """Return `output_change` with the parameters of one branch moved alone, one number a sublayer."""
    return [
        _perturbed(model, x, relative=relative, draws=draws, seed=seed, only=f"branches.{layer}.")
        for layer in range(len(model.branches))
    ]


def step_output_change(model: Transformer, x: Tensor, update: Mapping[str, Tensor]) -> float:
    r"""Return the root mean square change of the forecast in one optimiser step.

    .. math:: \mathrm{rms}(f(\theta) - f(\theta - \Delta))

    with :math:`\theta` the weights after it.

    Parameters
    ----------
    model
        After the step; left as found.
    x
        A batch of windows that stays the same.
    update
        What the step added to each parameter, by name, as a `fints.training.LayerProfiler` is given.
    """
    own = _double_copy(model)
    inputs = x.cpu().double()
    with evaluation_mode(own), one_thread(), torch.no_grad():
        after = own(inputs).mean
        with _moved(own, {name: -delta.detach().cpu().double() for name, delta in update.items()}):
            before = own(inputs).mean
    return float((after - before).square().mean().sqrt())


def _perturbed(
    model: Transformer, x: Tensor, *, relative: float, draws: int, seed: int, only: str | None
) -> float:
    if not relative > 0 or draws < 1:
        raise ValueError(f"need relative > 0 and draws >= 1; got {relative!r} and {draws!r}.")
    own = _double_copy(model)
    inputs = x.cpu().double()
    ends = ("embedding.", "head.")
    moving = {
        name: parameter.detach()
        for name, parameter in own.named_parameters()
        if (name.startswith(only) if only is not None else not name.startswith(ends))
    }
    total = 0.0
    with evaluation_mode(own), one_thread(), torch.no_grad():
        for draw in range(draws):
            generator = torch.Generator().manual_seed(derive(seed, "output_change", draw))
            step = {}
            for name, weight in moving.items():
                drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                step[name] = drawn * (relative * weight.norm() / drawn.norm())
            with _moved(own, step):
                above = own(inputs).mean
            with _moved(own, {name: -delta for name, delta in step.items()}):
                below = own(inputs).mean
            total += float(((above - below) / 2).square().mean())
    return (total / draws) ** 0.5 / relative


def _double_copy(model: Transformer) -> Transformer:
    own = copy.deepcopy(model).cpu().double()
    return own


@contextmanager
def _moved(model: nn.Module, step: Mapping[str, Tensor]) -> Iterator[None]:
    """Add `step` to the parameters inside, and put back the very numbers they had."""
    named = dict(model.named_parameters())
    before = {name: named[name].detach().clone() for name in step}
    for name, delta in step.items():
        named[name].data.add_(delta)
    try:
        yield
    finally:
        for name, weight in before.items():
            named[name].data.copy_(weight)
