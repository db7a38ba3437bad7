"""From the features of a day to a token.

Shapes: B batch, T tokens, F features, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Embedding"]


class Embedding(nn.Module):
    """A linear map of the features and of which of them are missing.

    ::

        e_t = W [x_t with missing set to 0 ; 1(x_t missing)] + b  (+ p_t)

    NaN means missing. Since features are standardised, 0 is their training mean, and the indicator
    lets the network learn what a missing feature stands for. With learned positions p, the last
    token of a shorter window has the last position: positions count back from the decision.

    Parameters
    ----------
    num_features : int
        F.
    width : int
        D.
    context : int
        Largest T.
    learned_positions : bool
        Whether p is added.
    """

    def __init__(self, num_features: int, width: int, *, context: int, learned_positions: bool) -> None:
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1; got {num_features}.")
        self.linear = nn.Linear(2 * num_features, width)
        self.positions = nn.Parameter(torch.empty(context, width)) if learned_positions else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens (B, T, D) of x (B, T, F)."""
        missing = torch.isnan(x)
        tokens = self.linear(torch.cat([torch.where(missing, 0.0, x), missing.to(x.dtype)], dim=-1))
        # The trunk keeps the input's precision under autocast; only branches run in a lower one.
        tokens = tokens.to(x.dtype)
        return tokens if self.positions is None else tokens + self.positions[-x.shape[-2] :]
