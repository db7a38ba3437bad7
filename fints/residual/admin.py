"""Post-Norm whose skip is as strong as what came before it (Liu et al. 2020, arXiv 2004.08249)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.residual.base import Branch, check_sizes, make_norm, norm_parameters
from fints.residual.single_stream import OneStream

__all__ = ["Admin"]


class Admin(OneStream):
    """Post-Norm with a learned scale on the skip, set from the variances of a first pass over real data.

    ::

        h <- N_k(omega_k * h + F_k(h)),      read-out h
        omega_k = sqrt(1 + sum_{j < k} Var[F_j])      at the start, after `calibrate`

    with omega_k (D,), * feature by feature, k from 0, and Var over all numbers of a batch. Symbols: h
    is `state`, omega_k ``omega[layer]``, N_k ``norms[layer]``. Until it is calibrated omega = 1: Post-Norm.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm".
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it.

    Notes
    -----
    Source: Liu et al. 2020, arXiv 2004.08249.
    Departures: none. As in the authors' code the profile is one pass, in which sublayer k already has
    its omega when sublayer k + 1 is measured; the embedding counts as variance 1. Processes that train
    one network on parts of the data must give the scale of one of them to all.
    Parameters per sublayer beyond the norm: D; there is no final norm.
    """

    paper: ClassVar[str] = "Liu et al. 2020, arXiv 2004.08249"
    equation: ClassVar[str] = "h <- N(omega * h + F(h))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = True
    own_branch_scale: ClassVar[bool] = True
    calibrates: ClassVar[bool] = True
    parameter_formula: ClassVar[str] = "D a sublayer, less the final norm"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.omega = nn.ParameterList(torch.ones(width) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return L D, less the size of the final norm, which there is none of."""
        return num_sublayers * width - norm_parameters(norm, width)

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return N(omega * h + F(h))."""
        y = branch(state)
        return self.norms[layer](torch.addcmul(y.to(state.dtype), self.omega[layer], state))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return h, which is normed already."""
        return state

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return omega (D,)."""
        return {"omega": self.omega[layer]}

    @torch.no_grad()
    def calibrate(self, x: Tensor, branches: Sequence[Branch]) -> None:
        """Set every omega from the variances of the branches' outputs, sublayer by sublayer."""
        variance = x.new_ones(())
        state = x
        for layer, branch in enumerate(branches):
            self.omega[layer].copy_(variance.sqrt().expand_as(self.omega[layer]))
            measured: list[Tensor] = []

            def watched(u: Tensor, branch: Branch = branch, measured: list[Tensor] = measured) -> Tensor:
                y = branch(u)
                measured.append(y.to(x.dtype).var(correction=0))
                return y

            state = self.step(state, layer, watched)
            variance = variance + measured[0]
