"""The fused form of Frac-Connections; see `fints.residual.fused`."""

from __future__ import annotations

import torch
from torch import Tensor

from fints.residual.base import Branch, full_precision
from fints.residual.frac_connections import FracConnections, StaticFracConnections
from fints.residual.frac_functions import Coefficients, PendingFractions, write_and_mix
from fints.residual.native import MOST_STREAMS
from fints.residual.norm_arguments import norm_arguments, whole_vectors

__all__ = ["FusedFrac"]


class FusedFrac:
    """Frac-Connections whose steps write, mix and norm in one pass.

    Parameters
    ----------
    scheme : FracConnections or StaticFracConnections
        Its parameters and options are read at every step; nothing is copied.
    """

    def __init__(self, scheme: FracConnections | StaticFracConnections) -> None:
        self.scheme = scheme

    def fits(self) -> bool:
        """Return whether the kernels are made for the scheme's sizes: fractions of whole vectors."""
        m = self.scheme.num_fractions
        return m <= MOST_STREAMS and whole_vectors(self.scheme, m)

    def open(self, x: Tensor) -> PendingFractions:
        """Return x, on which nothing is due."""
        return PendingFractions(x)

    def step(self, pending: PendingFractions, layer: int, branch: Branch) -> PendingFractions:
        """Return the state after sublayer `layer`."""
        norm = norm_arguments(self.scheme.norms[layer])
        with full_precision(pending[0]):
            coefficients, eps = self._coefficients(layer)
            z, carried, b = write_and_mix(PendingFractions(*pending), coefficients, norm, eps=eps)
        return PendingFractions(carried, branch(z).to(carried.dtype), b)

    def close(self, pending: PendingFractions, layer: int) -> Tensor:
        """Return N(h)."""
        x, y, b = pending
        with full_precision(x):
            if y is not None:
                assert b is not None
                fractions = (-1, self.scheme.num_fractions, x.shape[-1] // self.scheme.num_fractions)
                written = torch.addcmul(
                    x.reshape(fractions), b.reshape(-1, b.shape[-1], 1), y.reshape(fractions)
                )
                x = written.view(x.shape)
        h: Tensor = self.scheme.final_norm(x)
        return h

    def _coefficients(self, layer: int) -> tuple[Coefficients, float]:
        """Return those of a sublayer, and the eps of their norm."""
        scheme = self.scheme
        constants = Coefficients(scheme.Y[layer], scheme.A[layer], scheme.B[layer])
        if isinstance(scheme, StaticFracConnections):
            return constants, 0.0
        norm = norm_arguments(scheme.coefficient_norms[layer])
        mapped = constants._replace(
            W=scheme.W[layer],
            s_alpha=scheme.s_alpha[layer],
            s_beta=scheme.s_beta[layer],
            gain=norm.gain,
            bias=norm.bias,
        )
        return mapped, norm.eps
