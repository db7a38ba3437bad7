"""Pre-Norm whose branches see less the deeper they stand (Sun et al. 2025, arXiv 2502.05795)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.residual.base import Branch, check_sizes, make_norm
from fints.residual.single_stream import AddingStream

__all__ = ["LayerNormScaling"]


class LayerNormScaling(AddingStream):
    """Pre-Norm with the norm of block l divided by the square root of l.

    ::

        h <- h + F_k(N_k(h) / sqrt(l)),      read-out N(h)

    with l = (first_layer + k) // 2 + 1 the block, counted from 1 over the whole network and the same
    for its attention and its feed-forward. Symbols: h is `state`, l ``block_number[layer]``, N_k
    ``norms[layer]``, N `final_norm`, which is not scaled. The trunk's variance, which in Pre-Norm
    grows with depth, is held back; block 1 is Pre-Norm's.

    In attention the scale acts on queries, keys and values alike, so scores shrink by 1 / l: deep
    attention starts nearly uniform. That is part of the method.

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
        Global index of the first sublayer, which the equation uses: in a mixture by depth l
        goes on counting.

    Notes
    -----
    Source: Sun et al. 2025, arXiv 2502.05795.
    Departures: none. The abstract scales the variance by 1 / sqrt(l), the equation the amplitude;
    this is the equation. Not to be combined with a depth-scaled initialiser (the paper: it hurts),
    which is refused.
    Parameters per sublayer beyond the branch's norm: 0.
    """

    paper: ClassVar[str] = "Sun et al. 2025, arXiv 2502.05795"
    equation: ClassVar[str] = "h <- h + F(N(h) / sqrt(l))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    own_branch_scale: ClassVar[bool] = True
    parameter_formula: ClassVar[str] = "0"

    block_number: Tensor

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
        self.final_norm = make_norm(norm, width, norm_eps)
        # Whole numbers, exact in every precision that the network may be cast to; their root is not.
        blocks = torch.tensor([(first_layer + k) // 2 + 1 for k in range(num_sublayers)])
        self.register_buffer("block_number", blocks.to(torch.get_default_dtype()), persistent=False)

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return 0."""
        return 0

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + F(N(h) / sqrt(l))."""
        return state + branch(self.norms[layer](state) * self.block_number[layer].rsqrt())

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return the scalar 1 / sqrt(l)."""
        return {"scale": self.block_number[layer].rsqrt()}
