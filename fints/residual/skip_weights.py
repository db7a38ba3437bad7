"""Pre-Norm with a learned weight on the branch, the skip, or both."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.residual.base import Branch, Mixing, check_sizes, make_norm, norm_parameters
from fints.residual.single_stream import AddingStream, OneStream

__all__ = ["LayerScale", "LearnableSkip", "ReZero", "SkipInit"]

BRANCH_NORMS = ("none", "pre")


class LearnableSkip(OneStream):
    """Pre-Norm whose skip and whose branch each have one learned strength a sublayer.

    ::

        h <- a_k h + b_k F_k(N_k(h)),      read-out N(h)

    Symbols: h is `state`, a_k ``a[layer]``, b_k ``b[layer]``, N_k ``norms[layer]``, N `final_norm`.
    It is Hyper-Connections with one stream and a read of 1. At the start a = b = 1: Pre-Norm.

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
    Source: Zhu et al. 2025, arXiv 2409.19606, with n = 1; a learned skip alone is older (Srivastava
    et al. 2015, arXiv 1505.00387, gates it).
    Departures: the read weight of that n = 1 is left out, since the norm after it removes it.
    Parameters per sublayer beyond the branch's norm: 2.
    """

    paper: ClassVar[str] = "Zhu et al. 2025, arXiv 2409.19606, n = 1"
    equation: ClassVar[str] = "h <- a h + b F(N(h))"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "2 a sublayer"

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
        self.a = nn.ParameterList(torch.tensor(1.0) for _ in range(num_sublayers))
        self.b = nn.ParameterList(torch.tensor(1.0) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return 2 L."""
        return 2 * num_sublayers

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return a h + b F(N(h))."""
        y = branch(self.norms[layer](state))
        return torch.addcmul(self.a[layer] * state, self.b[layer], y.to(state.dtype))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return the scalars a and b."""
        return {"a": self.a[layer], "b": self.b[layer]}

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return (1, a, b)."""
        return Mixing(state.new_ones(1), self.a[layer].view(1, 1), self.b[layer].view(1))

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1."""
        return state.new_ones(1)


class LayerScale(AddingStream):
    """Pre-Norm whose branch output is scaled feature by feature, from a small start.

    ::

        h <- h + lambda_k * F_k(N_k(h)),      read-out N(h)

    with lambda_k (D,) and * feature by feature. Symbols: h is `state`, lambda_k ``scale[layer]``,
    N_k ``norms[layer]``, N `final_norm`. The small start makes a fresh network nearly the identity.

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
    initial_value : float, optional
        Every entry of lambda at the start. By depth if not given: 0.1 up to 18 blocks, 1e-5 up to
        24, 1e-6 beyond.

    Notes
    -----
    Source: Touvron et al. 2021, arXiv 2103.17239.
    Departures: none; the thresholds of depth are the paper's, for image classifiers, and count the
    blocks of this scheme (in a mixture: of its part).
    Parameters per sublayer beyond the branch's norm: D.
    """

    paper: ClassVar[str] = "Touvron et al. 2021, arXiv 2103.17239"
    equation: ClassVar[str] = "h <- h + lambda * F(N(h))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "D a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        initial_value: float | None = None,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        start = _scale_by_depth(num_sublayers) if initial_value is None else initial_value
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.scale = nn.ParameterList(torch.full((width,), float(start)) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(
        width: int, num_sublayers: int, *, norm: str, initial_value: float | None = None
    ) -> int:
        """Return L D."""
        return num_sublayers * width

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + lambda * F(N(h))."""
        y = branch(self.norms[layer](state))
        return torch.addcmul(state, self.scale[layer], y.to(state.dtype))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return lambda (D,)."""
        return {"lambda": self.scale[layer]}


class ReZero(AddingStream):
    """One learned weight a branch, zero at the start, in place of any norm.

    ::

        h <- h + alpha_k F_k(h),           read-out h       branch_norm "none"
        h <- h + alpha_k F_k(N_k(h)),      read-out N(h)    branch_norm "pre"

    Symbols: h is `state`, alpha_k ``alpha[layer]``, N_k ``norms[layer]``, N `final_norm`; without
    norms the last two are the identity. With alpha = 0 the network is the identity, bit for bit,
    and in the first step alpha alone has a gradient.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm"; used with `branch_norm` "pre".
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it.
    branch_norm : str
        "none", the paper's, or "pre".

    Notes
    -----
    Source: Bachlechner et al. 2020, arXiv 2003.04887.
    Departures: none; `branch_norm` "pre" is the form that Pre-Norm is compared with, and equals it
    when alpha = 1.
    Parameters per sublayer: 1, and no norms unless `branch_norm` is "pre".
    """

    paper: ClassVar[str] = "Bachlechner et al. 2020, arXiv 2003.04887"
    equation: ClassVar[str] = "h <- h + alpha F(h)"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "1 a sublayer, less all norms"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        branch_norm: str = "none",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        if branch_norm not in BRANCH_NORMS:
            raise ValueError(f"branch_norm = {branch_norm!r} is unknown. Choose one of none, pre.")
        final_norm = make_norm(norm, width, norm_eps)
        normed = branch_norm == "pre"
        self.norms = nn.ModuleList(
            make_norm(norm, width, norm_eps) if normed else nn.Identity() for _ in range(num_sublayers)
        )
        self.final_norm = final_norm if normed else nn.Identity()
        self.alpha = nn.ParameterList(torch.tensor(0.0) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, branch_norm: str = "none") -> int:
        """Return L, less all L + 1 norms where there are none."""
        removed = (num_sublayers + 1) * norm_parameters(norm, width) if branch_norm == "none" else 0
        return num_sublayers - removed

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + alpha F(h), or h + alpha F(N(h))."""
        y = branch(self.norms[layer](state))
        return torch.addcmul(state, self.alpha[layer], y.to(state.dtype))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return h, or N(h)."""
        return self.final_norm(state)

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return the scalar alpha."""
        return {"alpha": self.alpha[layer]}


class SkipInit(AddingStream):
    """Pre-Norm with one learned weight a branch, zero at the start.

    ::

        h <- h + alpha_k F_k(N_k(h)),      read-out N(h)

    Symbols: h is `state`, alpha_k ``alpha[layer]``, N_k ``norms[layer]``, N `final_norm`. With
    alpha = 0 the trunk is the embedding, bit for bit.

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
    initial_value : float
        alpha at the start. The paper's is 0; Sun et al. 2025 (arXiv 2502.05795) compared with
        1 / sqrt(blocks).

    Notes
    -----
    Source: De and Smith 2020, arXiv 2002.10444, for residual networks of images.
    Departures: the paper removes batch normalisation; the norm of the branch's input is kept here,
    as transformers have it, and a final norm. It is then ReZero with `branch_norm` "pre".
    Parameters per sublayer beyond the branch's norm: 1.
    """

    paper: ClassVar[str] = "De and Smith 2020, arXiv 2002.10444"
    equation: ClassVar[str] = "h <- h + alpha F(N(h))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "1 a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        initial_value: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.alpha = nn.ParameterList(torch.tensor(float(initial_value)) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, initial_value: float = 0.0) -> int:
        """Return L."""
        return num_sublayers

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + alpha F(N(h))."""
        y = branch(self.norms[layer](state))
        return torch.addcmul(state, self.alpha[layer], y.to(state.dtype))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return the scalar alpha."""
        return {"alpha": self.alpha[layer]}


def _scale_by_depth(num_sublayers: int) -> float:
    """Return the start of LayerScale for a depth in blocks, from the paper's section 2."""
    num_blocks = (num_sublayers + 1) // 2
    if num_blocks <= 18:
        return 0.1
    return 1e-5 if num_blocks <= 24 else 1e-6
