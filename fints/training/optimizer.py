"""AdamW or SGD: which parameters decay, and the learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from fints.config import TrainingConfig

__all__ = ["learning_rate", "make_optimizer", "optimizer_over", "parameter_groups"]

# Modules whose `weight` is a linear map of their input; embeddings (tables) are not.
LINEAR_MAPS = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters of `model` into those that decay and those that do not.

    Decayed are the weights of linear maps, and of the residual scheme the tensors of two or more
    axes that ``model.residual.no_decay()`` does not name (its dynamic maps). Never decayed are
    biases, norm gains, tables (positions, embeddings), scales, and what `no_decay` names: the
    static matrices of Hyper-Connections start at the identity, and decay would pull them off it.

    Parameters
    ----------
    model
        Its attribute `residual`, where there is one, is a `fints.residual.Residual`.
    weight_decay
        The decay of the first group.

    Returns
    -------
    list of dict
        Two groups for the optimiser, each with "params", "weight_decay" and "names", in the
        order of `model.named_parameters()`.
    """
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, LINEAR_MAPS)}
    residual = getattr(model, "residual", None)
    if residual is not None:
        exempt = residual.no_decay()
        own = dict(residual.named_parameters())
        unknown = sorted(set(exempt) - set(own))
        if unknown:
            raise ValueError(
                f"{type(residual).__name__}.no_decay() must name its own parameters; "
                f"got {', '.join(unknown)}. Its parameters: {', '.join(own) or 'none'}."
            )
        decayed |= {id(parameter) for name, parameter in own.items() if parameter.dim() >= 2}
        decayed -= {id(own[name]) for name in exempt}
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": weight_decay, "names": []},
        {"params": [], "weight_decay": 0.0, "names": []},
    ]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = groups[0 if id(parameter) in decayed else 1]
            group["params"].append(parameter)
            group["names"].append(name)
    return groups


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    r"""Return the optimiser that `config.optimizer` names over `parameter_groups`, in its fused kernel.

    "adamw" is AdamW with `config.betas`. "sgd" is stochastic gradient descent with a momentum of
    :math:`\beta_1` (the first of them) and the decay :math:`\lambda` of its group:

    .. math:: m \leftarrow \beta_1 m + g + \lambda\theta, \qquad \theta \leftarrow \theta - \eta\, m

    A steady gradient thus moves :math:`\eta / (1 - \beta_1)` times its size, and unlike AdamW's its step
    keeps the size that the gradient has in each layer.

    Raises
    ------
    ValueError
        If no parameter of `model` is trainable.
    """
    groups = [
        {"params": group["params"], "weight_decay": group["weight_decay"]}
        for group in parameter_groups(model, config.weight_decay)
        if group["params"]
    ]
    if not groups:
        raise ValueError("a fit needs a trainable parameter; got a model whose requires_grad is all off.")
    return optimizer_over(groups, config)


def optimizer_over(groups: list[dict[str, Any]], config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimiser that `config.optimizer` names over groups of "params" and "weight_decay"."""
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.betas[0], fused=True)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def learning_rate(step: int, config: TrainingConfig) -> float:
    r"""Return the learning rate of `step`, which counts from 0.

    .. math:: \eta_s = \eta \frac{s+1}{W} \;\text{ for } s < W, \qquad
        \eta_s = \eta \Bigl(f + (1-f) \tfrac12 \bigl(1 + \cos\pi\tfrac{s-W}{S-W}\bigr)\Bigr) \;\text{ after}

    with W warm-up steps, S steps and the final share f. The first step already moves, and so does
    the last: the cosine would reach f at step S, which is not taken.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / (config.steps - config.warmup_steps))
    share = config.final_learning_rate_share
    return config.learning_rate * (share + (1 - share) * 0.5 * (1 + math.cos(math.pi * progress)))
