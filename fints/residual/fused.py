"""Residual schemes on a CPU in few passes over their streams: the same numbers as `Residual.step`.

`fused(scheme)` is the fused form of a scheme, or None where the plain one is as fast. Its `open`, `step`
and `close` are those of `Residual`; the state is its own. Gradients are written out (`*_kernels.cpp`).
The plain `step` is the equation and the oracle: tests hold both to 1e-5, forward and backward.

Fused steps take float32 streams whose width is a multiple of 16. Under autocast a branch runs in the
lower precision and the streams stay in float32, as in the plain step.

Shapes: B batch, T tokens, n streams, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from fints.residual.attention_residuals import AttentionResiduals, BlockAttentionResiduals
from fints.residual.base import Branch, Residual, full_precision
from fints.residual.by_depth import ByDepth
from fints.residual.frac_connections import FracConnections, StaticFracConnections
from fints.residual.fused_by_depth import FusedByDepth
from fints.residual.fused_depth import FusedDepth
from fints.residual.fused_frac import FusedFrac
from fints.residual.fused_gated import FusedGated
from fints.residual.fused_single import FusedPostNorm, FusedSingle
from fints.residual.gated_streams import GatedStreams
from fints.residual.hyper_connections import DynamicHyperConnections, StaticHyperConnections
from fints.residual.manifold import ITERATIONS, ManifoldHyperConnections
from fints.residual.native import MOST_STREAMS
from fints.residual.norm_arguments import norm_arguments, whole_vectors
from fints.residual.rescaled_norms import FrozenScalePostNorm
from fints.residual.single_stream import PostNorm, PreNorm
from fints.residual.skip_weights import LayerScale, LearnableSkip, SkipInit
from fints.residual.state_attention import StateAttention
from fints.residual.stream_functions import (
    Coefficients,
    Pending,
    write_and_gate,
    write_and_map,
    write_and_read,
)
from fints.residual.streams import copies

__all__ = ["Fused", "fused"]


class Fused(ABC):
    """A scheme of n streams in its fused form; the streams are (B, T, n, D) whatever the scheme's own layout.

    Parameters
    ----------
    scheme : Residual
        Its parameters and options are read at every step; nothing is copied.
    """

    def __init__(self, scheme: Any) -> None:
        self.scheme = scheme

    @abstractmethod
    def read(self, pending: Pending, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return z = N(u) (B, T, D), the weights of the next write, and the streams written."""

    def fits(self) -> bool:
        """Return whether the kernels are made for the scheme's sizes."""
        return whole_vectors(self.scheme) and self.scheme.num_streams <= MOST_STREAMS

    def open(self, x: Tensor) -> Pending:
        """Return n copies of x."""
        return Pending(copies(x, self.scheme.num_streams))

    def step(self, pending: Pending, layer: int, branch: Branch) -> Pending:
        """Return the state after sublayer `layer`."""
        streams = pending[0]
        with full_precision(streams):
            z, weights, streams = self.read(Pending(*pending), layer)
        return Pending(streams, branch(z).to(streams.dtype), weights)

    def close(self, pending: Pending, layer: int) -> Tensor:
        """Return N(mean of the streams)."""
        n, norm = self.scheme.num_streams, norm_arguments(self.scheme.final_norm)
        with full_precision(pending[0]):
            return write_and_read(Pending(*pending), pending[0].new_full((n,), 1 / n), norm)[0]


class _Static(Fused):
    def read(self, pending: Pending, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        scheme: StaticHyperConnections = self.scheme
        norm = norm_arguments(scheme.norms[layer])
        z, streams = write_and_read(pending, scheme.A_m[layer].squeeze(1), norm)
        return z, torch.cat([scheme.A_r[layer], scheme.B[layer]]), streams


class _Dynamic(Fused):
    def read(self, pending: Pending, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        scheme: DynamicHyperConnections = self.scheme
        gain, bias, _, eps = norm_arguments(scheme.coefficient_norms[layer])
        assert gain is not None
        coefficients = Coefficients(
            A_m=scheme.A_m[layer],
            A_r=scheme.A_r[layer],
            B=scheme.B[layer],
            W=scheme.W[layer],
            s_alpha=scheme.s_alpha[layer],
            s_beta=scheme.s_beta[layer],
            gain=gain,
            bias=bias,
        )
        norm = norm_arguments(scheme.norms[layer])
        return write_and_map(pending, coefficients, norm, eps=eps, tanh=scheme.tanh)


class _Manifold(Fused):
    def read(self, pending: Pending, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        scheme: ManifoldHyperConnections = self.scheme
        u, weights, streams = write_and_gate(
            pending,
            scheme.phi[layer],
            scheme.alpha[layer],
            scheme.b[layer],
            eps=scheme.norm_eps,
            iterations=ITERATIONS,
        )
        return scheme.norms[layer](u), weights, streams


FusedScheme = Fused | FusedByDepth | FusedDepth | FusedFrac | FusedGated | FusedPostNorm | FusedSingle

_FORMS: dict[type[Residual[Any]], type[Fused]] = {
    StaticHyperConnections: _Static,
    DynamicHyperConnections: _Dynamic,
    ManifoldHyperConnections: _Manifold,
}


def fused(scheme: Residual[Any]) -> FusedScheme | None:
    """Return the fused form of a scheme, or None where there is none for it or for its sizes."""
    fused_scheme: FusedScheme
    if isinstance(scheme, AttentionResiduals | BlockAttentionResiduals | StateAttention):
        fused_scheme = FusedDepth(scheme)
    elif isinstance(scheme, FracConnections | StaticFracConnections):
        fused_scheme = FusedFrac(scheme)
    elif isinstance(scheme, PreNorm | LearnableSkip | LayerScale | SkipInit):
        fused_scheme = FusedSingle(scheme)
    elif isinstance(scheme, PostNorm | FrozenScalePostNorm):
        fused_scheme = FusedPostNorm(scheme)
    elif isinstance(scheme, GatedStreams):
        fused_scheme = FusedGated(scheme)
    elif isinstance(scheme, ByDepth):
        parts = [part for part in scheme.parts if isinstance(part, Residual)]
        fused_scheme = FusedByDepth(scheme, [fused(part) or part for part in parts])
    elif isinstance(scheme, ManifoldHyperConnections) and scheme.mix != "sinkhorn":
        return None
    elif form := _FORMS.get(type(scheme)):
        fused_scheme = form(scheme)
    else:
        return None
    fits = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in scheme.parameters())
    return fused_scheme if fits and fused_scheme.fits() else None
