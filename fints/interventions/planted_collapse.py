"""Representation collapse, planted in two ways.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fints.interventions.base import Cause, NetworkChange, Role, checked_dose
from fints.residual import Branch, Residual
from fints.training import derive

__all__ = ["LowRankOutputs", "TokenPull", "past_mean"]


class TokenPull(NetworkChange):
    r"""Pull every token towards the mean of its window so far, at each sublayer.

    .. math:: y_k \leftarrow y_k + d\, (\bar u_k - u_k), \qquad
        \bar u_{k,t} = \frac1{t+1}\sum_{t' \le t} u_{k,t'}

    with d the dose and u_k what sublayer k reads before any norm. Under Pre-Norm the trunk becomes
    :math:`(1 - d) h + d \bar h + F`, so differences between tokens shrink by 1 - d a sublayer. Only the past
    is averaged: the forecast of a token sees no later one.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Not used.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("token_pull", dose, most=1)

    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state, and the branch with the pull added to its output."""
        u = residual.read(state, layer)
        pull = self.dose * (past_mean(u) - u)
        return state, lambda v: branch(v) + pull


class LowRankOutputs(NetworkChange):
    r"""Project what every branch returns onto the same few directions.

    .. math:: y_k \leftarrow (1 - d)\, y_k + d\, y_k Q Q^\top

    with d the dose and Q (D, rank) orthonormal, drawn from the seed and the same in every sublayer. Tokens
    still differ, but depth adds no direction that was not there.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Draws Q.
    rank : int
        Columns of Q.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int, rank: int = 2) -> None:
        self.dose = checked_dose("low_rank_outputs", dose, most=1)
        if rank < 1:
            raise ValueError(f"the rank of low_rank_outputs must be at least 1; got {rank!r}.")
        self.rank = rank
        self.seed = derive(seed, "low_rank_outputs")

    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state, and the branch with its output projected."""

        def projected(u: Tensor) -> Tensor:
            y = branch(u)
            basis = self._basis(y.shape[-1]).to(y)
            return (1 - self.dose) * y + self.dose * ((y @ basis) @ basis.mT)

        return state, projected

    def _basis(self, width: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randn(width, min(self.rank, width), generator=generator, dtype=torch.float64)
        return torch.linalg.qr(drawn).Q


def past_mean(u: Tensor) -> Tensor:
    """Return the mean of each token of u (B, T, D) and those before it."""
    count = torch.arange(1, u.shape[-2] + 1, device=u.device, dtype=u.dtype)
    return u.cumsum(-2) / count.unsqueeze(-1)
