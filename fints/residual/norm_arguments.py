"""What a kernel needs to know of the norm that follows it; see `norm.h`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from fints.residual.native import LANES

__all__ = ["NormArguments", "norm_arguments", "whole_vectors"]


class NormArguments(NamedTuple):
    """A norm over the last axis: LayerNorm if `centred`, else RMSNorm; none at all without a gain."""

    gain: Tensor | None
    bias: Tensor | None
    centred: bool
    eps: float


def norm_arguments(norm: nn.Module) -> NormArguments:
    """Return the arguments of a LayerNorm, an RMSNorm or an Identity."""
    if isinstance(norm, nn.Identity):
        return NormArguments(None, None, centred=False, eps=0.0)
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm), norm
    assert norm.eps is not None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return NormArguments(norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps)


def whole_vectors(scheme: nn.Module, parts: int = 1) -> bool:
    """Return whether each of so many parts of the scheme's width is made of whole vectors.

    The width is read off `norms` and `final_norm`, which is the identity below another part of a mixture.
    """
    norms = [*scheme.get_submodule("norms").parameters(), *scheme.get_submodule("final_norm").parameters()]
    return all(parameter.shape[-1] % (parts * LANES) == 0 for parameter in norms)
