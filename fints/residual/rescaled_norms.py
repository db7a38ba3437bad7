"""Pre-Norm and Post-Norm that remove, restore or freeze the input's scale.

They ask whether what sets Post-Norm apart is its re-scaling of variance.

Pre-Norm's trunk keeps the scale of its input, so in a volatile window each sublayer counts for less;
Post-Norm takes the scale away at every sublayer. Each scheme here changes that and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.residual.base import Branch, Residual, check_sizes, make_norm, norm_parameters
from fints.residual.single_stream import AddingStream, OneStream

__all__ = ["FrozenScalePostNorm", "WindowRescaledPreNorm", "WindowScaleRestoringPostNorm", "window_scale"]

OVER = ("past", "window")


def window_scale(x: Tensor, over: str, eps: float) -> Tensor:
    """Return the root mean square of windows x (B, T, D), without a gradient.

    ::

        s_t = sqrt(mean_{u <= t, d} x_{u, d}^2 + eps)      over "past":   (B, T, 1)
        s   = sqrt(mean_{u, d} x_{u, d}^2 + eps)           over "window": (B, 1, 1)

    The two are equal at the last token.
    """
    power = x.detach().square().mean(-1, keepdim=True)
    if over == "window":
        return (power.mean(-2, keepdim=True) + eps).sqrt()
    count = torch.arange(1, x.shape[-2] + 1, device=x.device, dtype=x.dtype).unsqueeze(-1)
    return (power.cumsum(-2) / count + eps).sqrt()


def _check_over(over: str) -> None:
    if over not in OVER:
        raise ValueError(
            f"over = {over!r} is unknown. Choose past (causal: every token may be trained on) or window "
            "(one scale a window: only its last token may be)."
        )


class WindowRescaledPreNorm(AddingStream):
    """Pre-Norm of windows whose scale is taken away once, at the entrance.

    ::

        h_0 = x / s(x),      h <- h + F_k(N_k(h)),      read-out N(h)

    with s the root mean square of the embedded window, a constant for the gradient: see `window_scale`.
    Symbols: h is `state`, N_k ``norms[layer]``, N `final_norm`. Multiplying a window by c > 0 changes
    nothing (but for eps), so if Post-Norm gains by its re-scaling alone, this gains as much.

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
    over : str
        "past" or "window".

    Notes
    -----
    Source: an arm of this package's question on Post-Norm; Pre-Norm is Xiong et al. 2020, arXiv
    2002.04745.
    Departures: with `over` "past" token t is divided by the scale of the tokens up to t, so that no
    forecast sees a later one; at the last token that is the window's scale. The one scalar a window of
    the question is `over` "window", right only where the last token alone is trained and forecast from.
    Parameters per sublayer beyond the branch's norm: 0.
    """

    paper: ClassVar[str] = "control; Pre-Norm is Xiong et al. 2020, arXiv 2002.04745"
    equation: ClassVar[str] = "h_0 = x / rms(window); h <- h + F(N(h))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "0"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        over: str = "past",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        _check_over(over)
        self.over = over
        self.sees_later_tokens = over == "window"
        self.eps = norm_eps
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, over: str = "past") -> int:
        """Return 0."""
        return 0

    def open(self, x: Tensor) -> Tensor:
        """Return x / s(x)."""
        return x / window_scale(x, self.over, self.eps)

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + F(N(h))."""
        return state + branch(self.norms[layer](state))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)


class WindowScaleRestoringPostNorm(Residual[tuple[Tensor, Tensor]]):
    """Post-Norm whose trunk is given the window's scale back after every norm.

    ::

        h <- s N_k(h + F_k(h)),      read-out h / s,      h_0 = x

    with s the root mean square of the embedded window, a constant for the gradient: see `window_scale`.
    Symbols: (h, s) is `state`, N_k ``norms[layer]``. Branches and skips see the input's scale, as in
    Pre-Norm; the read-out is Post-Norm's, so that the head is given the same scale in both. If Post-Norm
    gains by its re-scaling alone, this loses that gain.

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
    over : str
        "past" or "window".

    Notes
    -----
    Source: an arm of this package's question on Post-Norm, which is Vaswani et al. 2017, arXiv
    1706.03762.
    Departures: `over` "past", as in `WindowRescaledPreNorm`.
    Parameters per sublayer beyond the norm: 0; there is no final norm.
    """

    paper: ClassVar[str] = "control; Post-Norm is Vaswani et al. 2017, arXiv 1706.03762"
    equation: ClassVar[str] = "h <- rms(window) N(h + F(h))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = True
    own_branch_scale: ClassVar[bool] = True
    parameter_formula: ClassVar[str] = "0 a sublayer, less the final norm"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        over: str = "past",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        _check_over(over)
        self.over = over
        self.sees_later_tokens = over == "window"
        self.eps = norm_eps
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, over: str = "past") -> int:
        """Return minus the size of the final norm, which there is none of."""
        return -norm_parameters(norm, width)

    def open(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (x, s(x))."""
        return x, window_scale(x, self.over, self.eps)

    def read(self, state: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Return h."""
        return state[0]

    def step(self, state: tuple[Tensor, Tensor], layer: int, branch: Branch) -> tuple[Tensor, Tensor]:
        """Return (s N(h + F(h)), s)."""
        h, s = state
        return s * self.norms[layer](h + branch(h)), s

    def merge(self, state: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Return h."""
        return state[0]

    def close(self, state: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Return h / s."""
        h, s = state
        return h / s

    def no_decay(self) -> set[str]:
        """Return all names: they are gains and biases of norms."""
        return {name for name, _ in self.named_parameters()}


class FrozenScalePostNorm(OneStream):
    """Post-Norm whose norms divide by one constant each, measured on training data before training.

    ::

        z = h + F_k(h)
        h <- g_k * (z - mean_d z) / sigma_k + b_k,      read-out h            "layer_norm"
        h <- g_k * z / sigma_k,                         read-out h            "rms_norm"
        sigma_k^2 = mean of z's variance (mean square) over all tokens + eps  after `calibrate`

    Symbols: h is `state`, g_k and b_k the weight and bias of ``norms[layer]``, sigma_k
    ``sigma[layer]``, saved in the state dict; until it is calibrated sigma = 1. Centring and gain are
    Post-Norm's, and so is the scale of an average token; what is gone is that each token is re-scaled
    by its own.

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
    Source: an arm of this package's question on Post-Norm, which is Vaswani et al. 2017, arXiv
    1706.03762.
    Departures: the constants are those of the training windows, or of 2,048 spread evenly over them,
    which `fints.training.fit` gives to `Transformer.calibrate`. Sublayers are measured in one pass,
    each with the constants of those before it.
    Parameters per sublayer beyond the norm: 0; there is no final norm.
    """

    paper: ClassVar[str] = "control; Post-Norm is Vaswani et al. 2017, arXiv 1706.03762"
    equation: ClassVar[str] = "h <- g (h + F(h) - mean) / sigma + b, sigma fixed"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = True
    own_branch_scale: ClassVar[bool] = True
    calibrates: ClassVar[bool] = True
    parameter_formula: ClassVar[str] = "0 a sublayer, less the final norm"

    sigma: Tensor

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
        self.eps = norm_eps
        self.register_buffer("sigma", torch.ones(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return minus the size of the final norm, which there is none of."""
        return -norm_parameters(norm, width)

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return the sum of h and F(h), centred, over sigma, with gain and bias."""
        centred, gain, bias = self._parts(state + branch(state), layer)
        gain = gain / self.sigma[layer]
        return centred * gain if bias is None else torch.addcmul(bias, centred, gain)

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return h."""
        return state

    @torch.no_grad()
    def calibrate(self, x: Tensor, branches: Sequence[Branch]) -> None:
        """Set every sigma from what it divides, sublayer by sublayer."""
        h = x
        for layer, branch in enumerate(branches):
            centred, gain, bias = self._parts(h + branch(h), layer)
            self.sigma[layer] = (centred.square().mean() + self.eps).sqrt()
            h = centred / self.sigma[layer] * gain
            h = h if bias is None else h + bias

    def _parts(self, z: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return z, centred where the norm centres, with the norm's gain and bias."""
        norm = self.norms[layer]
        if isinstance(norm, nn.LayerNorm):
            return z - z.mean(-1, keepdim=True), norm.weight, norm.bias
        assert isinstance(norm, nn.RMSNorm)
        return z, norm.weight, None
