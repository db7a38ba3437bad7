"""Streams that are read and written through gates, and the reading of "gated copies" that adds nothing.

State (B, T, n, D): the streams of a token lie together, since its gates come from all of them.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.residual.base import (
    Branch,
    Mixing,
    Residual,
    check_sizes,
    full_precision,
    make_norm,
    mean_of_streams,
)
from fints.residual.streams import check_num_streams, copies, home_stream

__all__ = ["GatedCopies", "GatedStreams"]

VARIANTS = ("add_write", "convex_read", "lerp_write")
# Of the lerp write: gates of sigmoid(-3) at 21 layers, smaller as the root of depth (arXiv 2605.23259).
BASE_BIAS, BASE_LAYERS = -3.0, 21


class GatedStreams(Residual[Tensor]):
    """Streams that each token reads through gates in (0, 1) and writes through gates.

    With the streams H_i (D,), Hb_i = H_i / rms(H_i) and, at sublayer k::

        read logits   p_i = w_r . Hb_i + b_r,i
        write logits  q_i = w_w . Hb_i + b_w,i

        variant "add_write" (A)     u    = sum_i sigmoid(p_i) H_i
                                    H_i <- H_i + 2 sigmoid(q_i) y,         y = F_k(N_k(u))
        variant "convex_read" (B)   u    = sum_i sigmoid(p_i) H_i / sum_i sigmoid(p_i)
                                    H_i <- H_i + 2 sigmoid(q_i) y
        variant "lerp_write" (C)    u    = sum_i softmax(p)_i H_i
                                    H_i <- (1 - sigmoid(q_i)) H_i + sigmoid(q_i) y

        read-out N(mean_i H_i)

    In C both w . Hb_i are divided by sqrt(D), and no stream is ever longer than the longest of the
    embedding and the branches' outputs: it is a weighted mean of them. In A and B streams grow like
    Pre-Norm's trunk, of which they are n gated ones: A is Hyper-Connections with A_r = I. Symbols:
    w_r, w_w are the columns of ``W[layer]`` (D, 2); b_r, b_w the rows of ``b[layer]`` (2, n); N_k
    ``norms[layer]``, N `final_norm`; H is `state` (B, T, n, D). Gates are computed in full precision
    under autocast.

    At the start W = 0 and b_r is +1 at the home stream (first_layer + k) mod n, -1 elsewhere, so that
    training can tell the streams apart, which start equal. In A and B b_w = 0, so y is written with
    weight 1: Pre-Norm's function (in A up to the scale of u, which the norm removes). In C all write
    gates are sigmoid(-3) sqrt(21 / L): another function.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm", for the branches and the read-out.
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer.
    num_streams : int
        n, at least 1.
    variant : str
        "add_write", "convex_read" or "lerp_write".

    Notes
    -----
    Source: A and B are this package's own, after the gates of Xie et al. 2025, arXiv 2512.24880; C is
    Multi-Gate Residuals, Zheng et al. 2026, arXiv 2605.23259, with independent gates.
    Departures: of C, the read has the biases b_r, without which equal streams stay equal for ever;
    the read-out is the mean, where the paper pools once more; the paper's start for gates that
    compete in one softmax is used for independent ones at its value of a gate; L counts sublayers.
    Parameters per sublayer beyond the branch's norm: 2 D + 2 n.
    """

    paper: ClassVar[str] = "this package; variant lerp_write: Zheng et al. 2026, arXiv 2605.23259"
    equation: ClassVar[str] = "u = sum_i r_i(H) H_i; H_i <- H_i + w_i(H) F(N(u)); r in (0, 1), w in (0, 2)"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "2 D + 2 n a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        num_streams: int = 4,
        variant: str = "add_write",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        check_num_streams(num_streams)
        if variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}. Choose one of {', '.join(VARIANTS)}.")
        self.num_streams = num_streams
        self.variant = variant
        self.norm_eps = norm_eps
        self.gate_scale = width**-0.5 if variant == "lerp_write" else 1.0
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.W = nn.ParameterList(torch.zeros(width, 2) for _ in range(num_sublayers))
        write = _lerp_bias(num_sublayers) if variant == "lerp_write" else 0.0
        self.b = nn.ParameterList(
            torch.stack(
                [2 * home_stream(first_layer + k, num_streams) - 1, torch.full((num_streams,), write)]
            )
            for k in range(num_sublayers)
        )

    @staticmethod
    def extra_parameters(
        width: int, num_sublayers: int, *, norm: str, num_streams: int = 4, variant: str = "add_write"
    ) -> int:
        """Return L (2 D + 2 n)."""
        return num_sublayers * 2 * (width + num_streams)

    def open(self, x: Tensor) -> Tensor:
        """Return n copies of x."""
        return copies(x, self.num_streams)

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return u."""
        with full_precision(state):
            read, _, _ = self._gates(state, layer)
            return (read.unsqueeze(-2) @ state).squeeze(-2)

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return keep_i H_i + write_i F(N(u)) for each stream; keep is 1, or 1 - write in C."""
        with full_precision(state):
            read, keep, write = self._gates(state, layer)
            u = (read.unsqueeze(-2) @ state).squeeze(-2)
        y = branch(self.norms[layer](u)).to(state.dtype).unsqueeze(-2)
        kept = state if keep is None else keep.unsqueeze(-1) * state
        return torch.addcmul(kept, write.unsqueeze(-1), y)

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return the mean of the streams."""
        return mean_of_streams(state, -2)

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(mean of the streams)."""
        return self.final_norm(self.merge(state, layer))

    def no_decay(self) -> set[str]:
        """Return all names but those of W: only the maps from the state may be decayed."""
        return {name for name, _ in self.named_parameters() if not name.startswith("W.")}

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return the weights by which streams are read, kept and written, each (B, T, n)."""
        with full_precision(state):
            read, keep, write = self._gates(state, layer)
        return {"read": read, "keep": torch.ones_like(write) if keep is None else keep, "write": write}

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return (read, diag(keep), write); the slots are the streams."""
        weights = self.weights(state, layer)
        return Mixing(weights["read"], torch.diag_embed(weights["keep"]), weights["write"])

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1 / n for every stream."""
        return state.new_full((self.num_streams,), 1 / self.num_streams)

    def _gates(self, state: Tensor, layer: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the weights of reading, keeping (None: all 1) and writing, each (B, T, n)."""
        length = torch.linalg.vector_norm(state, dim=-1, keepdim=True)
        root_mean_square = (length.square() / state.shape[-1] + self.norm_eps).sqrt()
        p, q = (self.gate_scale * (state @ self.W[layer]) / root_mean_square).unbind(-1)
        b_r, b_w = self.b[layer].unbind(0)
        p, q = p + b_r, q + b_w
        if self.variant == "add_write":
            return p.sigmoid(), None, 2 * q.sigmoid()
        if self.variant == "convex_read":
            gates = p.sigmoid()
            return gates / gates.sum(-1, keepdim=True), None, 2 * q.sigmoid()
        return p.softmax(-1), (-q).sigmoid(), q.sigmoid()


class GatedCopies(Residual[Tensor]):
    """The literal reading of "a gate on each of n copies of h": a negative control that adds nothing.

    ::

        g  = sigmoid(W_k^T N'(h) + b_k)                 n gates, in (0, 1)
        u  = sum_i g_i h_i = (sum_i g_i) h              since each of the n copies h_i is h
        h <- h + F_k(N_k(u)),      read-out N(h)

    n equal copies carry no more than one, so their gates only multiply h by one number, and the norm
    of the branch divides that number out again: whatever W and b are, the network computes what
    Pre-Norm computes (but for eps), and W and b get no gradient to speak of. What is left is their
    cost. Streams that differ are needed for a gate to choose anything: `GatedStreams`. Symbols: W
    (D, n) is ``W[layer]``, b ``b[layer]``, N' a root-mean-square norm without a gain, N_k
    ``norms[layer]``, N `final_norm`; h is `state`, held once.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm", for the branches and the read-out.
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it.
    num_streams : int
        n, the number of copies.

    Notes
    -----
    Source: this package; the literal reading of a gated copy, kept as a control (no arXiv number).
    Departures: none; the copies, being equal, are held once.
    Parameters per sublayer beyond the branch's norm: n (D + 1).
    """

    paper: ClassVar[str] = "this package: a negative control, the literal reading of gated copies"
    equation: ClassVar[str] = "u = (sum_i g_i(h)) h; h <- h + F(N(u)); g in (0, 1)"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "n (D + 1) a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        num_streams: int = 4,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        check_num_streams(num_streams)
        self.norm_eps = norm_eps
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.W = nn.ParameterList(torch.zeros(width, num_streams) for _ in range(num_sublayers))
        self.b = nn.ParameterList(torch.zeros(num_streams) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, num_streams: int = 4) -> int:
        """Return L n (D + 1)."""
        return num_sublayers * num_streams * (width + 1)

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return u = (sum_i g_i) h."""
        return self._gates(state, layer).sum(-1, keepdim=True) * state

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + F(N(u))."""
        return state + branch(self.norms[layer](self.read(state, layer)))

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return h."""
        return state

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def no_decay(self) -> set[str]:
        """Return all names but those of W: only the maps from the state may be decayed."""
        return {name for name, _ in self.named_parameters() if not name.startswith("W.")}

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return the gates g (B, T, n)."""
        return {"g": self._gates(state, layer)}

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return (sum_i g_i, 1, 1); the one slot is h."""
        gates = self._gates(state, layer)
        one = gates.new_ones(1)
        return Mixing(gates.sum(-1, keepdim=True), one.view(1, 1), one)

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1."""
        return state.new_ones(1)

    def _gates(self, state: Tensor, layer: int) -> Tensor:
        with full_precision(state):
            length = torch.linalg.vector_norm(state, dim=-1, keepdim=True)
            root_mean_square = (length.square() / state.shape[-1] + self.norm_eps).sqrt()
            return (state @ self.W[layer] / root_mean_square + self.b[layer]).sigmoid()


def _lerp_bias(num_sublayers: int) -> float:
    """Return the b for which sigmoid(b) = sigmoid(-3) sqrt(21 / L)."""
    inverse = math.sqrt(num_sublayers / BASE_LAYERS) * (1 + math.exp(-BASE_BIAS))
    # L = 0: there is no gate to start.
    return -math.log(inverse - 1) if num_sublayers else 0.0
