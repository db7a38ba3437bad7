"""What schemes with n streams share: the check of n, home streams, copies, the scale of fresh branches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["check_num_streams", "copies", "home_stream", "output_factor", "scale_output"]


def check_num_streams(num_streams: int) -> None:
    """Refuse a number of streams that is not a whole number of at least 1.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not isinstance(num_streams, int) or isinstance(num_streams, bool) or num_streams < 1:
        raise ValueError(
            f"num_streams must be a whole number of at least 1; got {num_streams!r}. Usual are 2, 4 and 8."
        )


def home_stream(layer: int, num_streams: int) -> Tensor:
    """Return e_{layer mod n} (n,), where `layer` counts the sublayers of the whole network."""
    home = torch.zeros(num_streams)
    home[layer % num_streams] = 1.0
    return home


def copies(x: Tensor, num_streams: int) -> Tensor:
    """Return n copies (B, T, n, D) of x (B, T, D)."""
    # Contiguous, because a batched product of an expanded tensor runs token by token.
    return x.unsqueeze(-2).expand(*x.shape[:-1], num_streams, x.shape[-1]).contiguous()


def output_factor(out_init_scale: str, num_streams: int) -> float:
    """Return by what the option `out_init_scale` multiplies fresh output weights.

    Raises
    ------
    ValueError
        If the option has another value than "none", "mul_sqrt_n" or "div_sqrt_n".
    """
    factors = {"none": 1.0, "mul_sqrt_n": math.sqrt(num_streams), "div_sqrt_n": 1 / math.sqrt(num_streams)}
    if out_init_scale not in factors:
        raise ValueError(f"unknown out_init_scale {out_init_scale!r}. Choose one of {', '.join(factors)}.")
    return factors[out_init_scale]


def scale_output(branch: nn.Module, factor: float) -> None:
    """Multiply the weight of ``branch.output`` by `factor`; a factor of 1 asks nothing of the branch.

    Raises
    ------
    ValueError
        If the branch has no linear map called `output`.
    """
    if factor == 1.0:
        return
    output = dict(branch.named_children()).get("output")
    if not isinstance(output, nn.Linear):
        raise ValueError(
            "out_init_scale needs a branch whose last linear map is its child `output`; "
            f"got {type(branch).__name__} with children {[name for name, _ in branch.named_children()]}. "
            'Name it so, or leave out_init_scale at "none".'
        )
    with torch.no_grad():
        output.weight.mul_(factor)
