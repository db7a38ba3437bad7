"""Mix-LN: Post-Norm in the first blocks, Pre-Norm in the rest (Li et al. 2024, arXiv 2412.13795)."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from fints.residual.base import Branch, check_sizes, make_norm
from fints.residual.single_stream import OneStream

__all__ = ["MixLN"]


class MixLN(OneStream):
    """Post-Norm below, Pre-Norm above.

    ::

        h <- N_k(h + F_k(h))       in the first floor(a N) of N blocks
        h <- h + F_k(N_k(h))       in the others
        read-out N(h)

    Symbols: h is `state`, N_k ``norms[k]``, N `final_norm`, a `post_share`. Nothing is needed where the
    two meet, as the trunk leaves Post-Norm normed. Post-Norm gives late blocks the larger gradients
    and Pre-Norm early ones, so this order evens them out.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L, two a block; an odd last one is half a block and does not count in N.
    norm : str
        "layer_norm" or "rms_norm".
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it.
    post_share : float
        a, in [0, 1]. With 0 the network is Pre-Norm; with 1 it is Post-Norm followed by one more norm.

    Notes
    -----
    Source: Li et al. 2024, arXiv 2412.13795.
    Departures: none.
    Parameters per sublayer beyond the branch's norm: 0.
    """

    paper: ClassVar[str] = "Li et al. 2024, arXiv 2412.13795"
    equation: ClassVar[str] = "h <- N(h + F(h)) in the first blocks, h <- h + F(N(h)) in the others"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    own_branch_scale: ClassVar[bool] = True
    parameter_formula: ClassVar[str] = "0"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        post_share: float = 0.25,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        if not 0 <= post_share <= 1:
            raise ValueError(f"post_share must be from 0 to 1; got {post_share!r}. The paper has 0.25.")
        # In binary 0.29 of 100 is a hair below 29.
        self.post_sublayers = 2 * math.floor(post_share * (num_sublayers // 2) + 1e-9)
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, post_share: float = 0.25) -> int:
        """Return 0."""
        return 0

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return N(h + F(h)) below, h + F(N(h)) above."""
        if layer < self.post_sublayers:
            return self.norms[layer](state + branch(state))
        return state + branch(self.norms[layer](state))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)
