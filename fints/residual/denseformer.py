"""DenseFormer: a weighted sum over depth after each block (Pagliardini et al. 2024, arXiv 2402.02622)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.residual.base import Branch, Mixing, Residual, check_sizes, make_norm
from fints.residual.depth_attention import weighted_sum

__all__ = ["DenseFormer"]


class DenseFormer(Residual[tuple[Tensor, ...]]):
    """Pre-Norm blocks whose outputs are averaged over depth with free weights.

    With X_0 = Y_0 the embedding, and Block_i two Pre-Norm sublayers with their skips::

        X_i = Block_i(Y_{i-1}),                   h <- h + F_k(N_k(h)) twice
        Y_i = sum_j alpha_ij X_j                  j <= i, j = i mod dilation; if i is a multiple of period
        Y_i = X_i                                 else
        read-out N(Y_last)

    i counts blocks from 1. Symbols: alpha_i ``alpha[i / period - 1]``, in the order of j; `state` is
    (X_0 ... X_{i-1}, h); N_k ``norms[k]``, N `final_norm`. The weights are plain numbers: there is no
    softmax, and they may turn negative.

    At the start alpha_ii = 1 and the others are 0, so the network computes what Pre-Norm computes, bit
    for bit. They are parameters of this module and of no linear map, so a function that redraws all
    linear maps of a network leaves them alone.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L, two a block; an odd last one is half a block, which is not averaged.
    norm : str
        "layer_norm" or "rms_norm".
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it, blocks count from 1 here.
    dilation : int
        Only every so many-th earlier block is a source, at least 1.
    period : int
        Only every so many-th block is averaged, at least 1. The paper writes dilation x period, "4x5".

    Notes
    -----
    Source: Pagliardini et al. 2024, arXiv 2402.02622.
    Departures: none.
    Parameters per sublayer beyond the branch's norm: none; in all N (N + 3) / 2 for N blocks with
    dilation 1 and period 1, else the sum of floor((i + dilation) / dilation) over the averaged i.
    """

    paper: ClassVar[str] = "Pagliardini et al. 2024, arXiv 2402.02622"
    equation: ClassVar[str] = "h <- h + F(N(h)); after block i h <- sum_j alpha_ij X_j, X_i the h before it"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "N (N + 3) / 2 for N blocks"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        dilation: int = 1,
        period: int = 1,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        for name, value in (("dilation", dilation), ("period", period)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(
                    f"{name} must be a whole number of at least 1; got {value!r}. It counts blocks."
                )
        self.dilation = dilation
        self.period = period
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.alpha = nn.ParameterList()
        for block in range(period, num_sublayers // 2 + 1, period):
            alone = torch.zeros(_count(block, dilation))
            alone[-1] = 1.0
            self.alpha.append(alone)

    @staticmethod
    def extra_parameters(
        width: int, num_sublayers: int, *, norm: str, dilation: int = 1, period: int = 1
    ) -> int:
        """Return the number of weights alpha."""
        return sum(_count(block, dilation) for block in range(period, num_sublayers // 2 + 1, period))

    def open(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return (X_0, h), both x."""
        return x, x

    def read(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return h."""
        return state[-1]

    def step(self, state: tuple[Tensor, ...], layer: int, branch: Branch) -> tuple[Tensor, ...]:
        """Return (X, h + F(N(h))); at the end of a block (X, X_i, Y_i)."""
        *past, h = state
        h = h + branch(self.norms[layer](h))
        if layer % 2 == 0:
            return *past, h
        sources = [*past, h]
        averaged = self._averaged(layer)
        if averaged is None:
            return *sources, h
        alpha, chosen = averaged
        weights = alpha.view(-1, *[1] * (h.dim() - 1))
        return *sources, weighted_sum(weights, [sources[j] for j in chosen])

    def merge(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return h."""
        return state[-1]

    def close(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state[-1])

    def no_decay(self) -> set[str]:
        """Return all names: decay would pull the weights towards a network without a skip."""
        return {name for name, _ in self.named_parameters()}

    def weights(self, state: tuple[Tensor, ...], layer: int) -> dict[str, Tensor]:
        """Return alpha (n,) of X_0 ... X_i where `layer` ends an averaged block; 0 for those left out."""
        averaged = self._averaged(layer) if layer % 2 else None
        if averaged is None:
            return {}
        return {"alpha": self._over_all(averaged, len(state))}

    def mixing(self, state: tuple[Tensor, ...], layer: int) -> Mixing:
        """Return the step with the slots X_0 ... X_{i-1}, h; at a block's end X_i and Y_i follow."""
        count = len(state)
        keep = torch.eye(count, device=state[0].device)
        read = keep[-1]
        if layer % 2 == 0:
            return Mixing(read, keep, read)
        averaged = self._averaged(layer)
        new = read if averaged is None else self._over_all(averaged, count)
        # The slot of h becomes X_i, and Y_i weighs it like the others.
        carry = torch.cat([keep, new.unsqueeze(-1)], dim=-1)
        return Mixing(read, carry, torch.cat([read, new[-1:]]))

    def merging(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return 1 for h and 0 for the past."""
        return torch.eye(len(state), device=state[0].device)[-1]

    def _averaged(self, layer: int) -> tuple[Tensor, list[int]] | None:
        """Return alpha and its j for the block that ends with `layer`; None if it is not averaged."""
        block = (layer + 1) // 2
        if block % self.period:
            return None
        chosen = list(range(block % self.dilation, block + 1, self.dilation))
        return self.alpha[block // self.period - 1], chosen

    def _over_all(self, averaged: tuple[Tensor, list[int]], count: int) -> Tensor:
        alpha, chosen = averaged
        return alpha.new_zeros(count).index_copy(0, torch.tensor(chosen, device=alpha.device), alpha)


def _count(block: int, dilation: int) -> int:
    """Return how many j <= block are congruent to it."""
    return (block + dilation) // dilation
