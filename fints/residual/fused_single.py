"""The fused form of schemes of one stream; see `fints.residual.fused`."""

from __future__ import annotations

from torch import Tensor

from fints.residual.base import Branch, full_precision
from fints.residual.native import LANES
from fints.residual.norm_arguments import norm_arguments, whole_vectors
from fints.residual.rescaled_norms import FrozenScalePostNorm
from fints.residual.single_functions import PendingSum, add_and_norm
from fints.residual.single_stream import PostNorm, PreNorm
from fints.residual.skip_weights import LayerScale, LearnableSkip, SkipInit

__all__ = ["FusedPostNorm", "FusedSingle", "OneNorm"]

OneNorm = PreNorm | LearnableSkip | LayerScale | SkipInit


class FusedSingle:
    """A scheme h <- a h + b F(N(h)) that adds a branch's output and norms for the next one in one pass.

    Parameters
    ----------
    scheme : PreNorm, LearnableSkip, LayerScale or SkipInit
        Its parameters are read at every step; nothing is copied.
    """

    def __init__(self, scheme: OneNorm) -> None:
        self.scheme = scheme

    def fits(self) -> bool:
        """Return whether the kernels are made for the scheme's width."""
        return whole_vectors(self.scheme)

    def open(self, x: Tensor) -> PendingSum:
        """Return x, on which nothing is due."""
        return PendingSum(x)

    def step(self, pending: PendingSum, layer: int, branch: Branch) -> PendingSum:
        """Return the state after sublayer `layer`, whose output is due."""
        with full_precision(pending[0]):
            skip, scale = self._factors(layer - 1)
            norm = norm_arguments(self.scheme.norms[layer])
            u, h = add_and_norm(PendingSum(*pending), skip, scale, norm)
        return PendingSum(h, branch(u).to(h.dtype))

    def close(self, pending: PendingSum, layer: int) -> Tensor:
        """Return N(h)."""
        with full_precision(pending[0]):
            skip, scale = self._factors(layer - 1)
            norm = norm_arguments(self.scheme.final_norm)
            return add_and_norm(PendingSum(*pending), skip, scale, norm)[0]

    def _factors(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Return a and b of the sublayer whose output is due; None is 1."""
        scheme = self.scheme
        if layer < 0 or isinstance(scheme, PreNorm):
            return None, None
        if isinstance(scheme, LearnableSkip):
            return scheme.a[layer], scheme.b[layer]
        return None, scheme.scale[layer] if isinstance(scheme, LayerScale) else scheme.alpha[layer]


class FusedPostNorm:
    """Post-Norm that adds a branch's output and norms the sum in one pass.

    Parameters
    ----------
    scheme : PostNorm or FrozenScalePostNorm
        Its parameters, and the scales of the second, are read at every step; nothing is copied.
    """

    def __init__(self, scheme: PostNorm | FrozenScalePostNorm) -> None:
        self.scheme = scheme

    def fits(self) -> bool:
        """Return whether the kernels are made for the scheme's width."""
        return all(parameter.numel() % LANES == 0 for parameter in self.scheme.parameters())

    def open(self, x: Tensor) -> PendingSum:
        """Return x, on which nothing is due."""
        return PendingSum(x)

    def step(self, pending: PendingSum, layer: int, branch: Branch) -> PendingSum:
        """Return the state after sublayer `layer`, whose output is due."""
        h = self.close(pending, layer)
        return PendingSum(h, branch(h).to(h.dtype))

    def close(self, pending: PendingSum, layer: int) -> Tensor:
        """Return N(h + y) of the sublayer before `layer`."""
        if pending[1] is None:
            return pending[0]
        with full_precision(pending[0]):
            scheme, norm = self.scheme, norm_arguments(self.scheme.norms[layer - 1])
            fixed = 1 / scheme.sigma[layer - 1].item() if isinstance(scheme, FrozenScalePostNorm) else -1.0
            return add_and_norm(PendingSum(*pending), None, None, norm, fixed)[0]
