"""The interface of a residual scheme.

A scheme is one object for the whole network. It owns the state between sublayers, every norm
(the final one too) and every skip weight. A *branch* is attention or feed-forward with neither
norm nor skip, and `Residual.step` is literally the paper's equation around it. The body of a
network is then, whatever the scheme::

    state = residual.open(x)
    for layer, branch in enumerate(branches):
        state = residual.step(state, layer, branch)
    y = residual.close(state, len(branches))

Shapes: B batch, T tokens, D width, n streams, L sublayers; `layer` counts sublayers from 0.
"""

from __future__ import annotations

import contextlib
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    "NORMS",
    "Branch",
    "Mixing",
    "Residual",
    "State",
    "full_precision",
    "make_norm",
    "mean_of_streams",
    "norm_parameters",
]

Branch = Callable[[Tensor], Tensor]
State = Tensor | tuple[Tensor, ...]
StateT = TypeVar("StateT", bound=State)

NORMS: dict[str, Callable[..., nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


class Mixing(NamedTuple):
    """One sublayer of a scheme that is linear in its branch's output y (D,).

    The scheme carries n slots S_i (D,): streams, past outputs, whatever it mixes. With the mixing
    weights of one state held fixed, sublayer k is::

        h    = sum_i read_i S_i
        S'_j = sum_i carry_ij S_i + write_j y

    The first index of `carry` is the source, the second the destination; n' may differ from n, since
    a scheme may gain a slot at each sublayer. Leading axes are (B, T) where a token has weights of
    its own, else there are none. A factor on the branch's output (a learned skip weight, a norm of
    the output) is part of y.
    """

    read: Tensor
    """(..., n)"""
    carry: Tensor
    """(..., n, n')"""
    write: Tensor
    """(..., n')"""


class Residual(nn.Module, ABC, Generic[StateT]):
    """A residual scheme for a network of L sublayers.

    Every scheme is built as ``Scheme(width, num_sublayers, *, norm, norm_eps, first_layer=0,
    **named options)``. `first_layer` is the global index of the scheme's first sublayer, for
    equations that depend on depth when the scheme holds only a part of a network; the `layer`
    of every method counts from 0 within the scheme. `StateT` is what the scheme carries.

    ``residual.parameters()`` is exactly the scheme: what it adds to the branches.

    Under autocast a branch runs in the lower precision and the state stays in that of `x`, in
    every scheme, so that schemes are not told apart by rounding on the trunk.
    """

    paper: ClassVar[str]
    """Where the scheme is defined: authors, year, arXiv number."""
    equation: ClassVar[str]
    """One sublayer in one line; F is the branch, N its norm."""
    equals_pre_norm_at_start: ClassVar[bool]
    """Whether a freshly built network computes what Pre-Norm computes."""
    normalises_trunk: ClassVar[bool]
    """Whether the trunk is normed at each sublayer, so that it does not grow with depth."""
    own_branch_scale: ClassVar[bool] = False
    """Whether the paper fixes the scale of fresh branches, so that no other scaling may be added."""
    calibrates: ClassVar[bool] = False
    """Whether `calibrate` sets anything."""
    sees_later_tokens: bool = False
    """Whether a token's state depends on later tokens, so that the last one alone may be forecast from."""
    parameter_formula: ClassVar[str]
    """The parameters beyond those of Pre-Norm as a formula, e.g. "n (n + 2) a sublayer"."""

    # Each scheme adds its own options, so the signatures differ.
    extra_parameters: ClassVar[Callable[..., int]]
    """``extra_parameters(width, num_sublayers, *, norm, **options)``: how many parameters the scheme
    has beyond those of Pre-Norm, which are L + 1 norms; below 0 where it has fewer."""

    @abstractmethod
    def open(self, x: Tensor) -> StateT:
        """Return the state that enters the first sublayer, from the embedding x (B, T, D)."""

    @abstractmethod
    def read(self, state: StateT, layer: int) -> Tensor:
        """Return h (B, T, D), what sublayer `layer` reads before any norm."""

    @abstractmethod
    def step(self, state: StateT, layer: int, branch: Branch) -> StateT:
        """Return the state after sublayer `layer`; `branch` runs exactly once."""

    @abstractmethod
    def merge(self, state: StateT, layer: int) -> Tensor:
        """Return the state entering sublayer `layer` as one stream (B, T, D).

        ``merge(open(x), 0)`` is x: bit for bit when n is a power of 2, else to rounding.
        """

    @abstractmethod
    def close(self, state: StateT, layer: int) -> Tensor:
        """Return the read-out (B, T, D) after `layer` sublayers: merge and final norm, as the paper says."""

    @abstractmethod
    def no_decay(self) -> set[str]:
        """Return the names of the own parameters that must not be decayed towards zero."""

    def weights(self, state: StateT, layer: int) -> dict[str, Tensor]:
        """Return the named mixing weights at `layer`; empty where the equation has none."""
        return {}

    def mixing(self, state: StateT, layer: int) -> Mixing | None:
        """Return sublayer `layer` as a linear map at the weights of this state; None if it is not one."""
        return None

    def merging(self, state: StateT, layer: int) -> Tensor | None:
        """Return the weights (..., n) with which `merge` adds the slots of `mixing`, None like it."""
        return None

    def part(self, layer: int) -> Residual[Any]:
        """Return the scheme that holds sublayer `layer`: itself, or a part if it is a mixture by depth."""
        return self

    def init_branch(self, branch: nn.Module, layer: int) -> None:
        """Rescale the freshly drawn weights of a branch, where the paper says so; otherwise nothing."""

    def calibrate(self, x: Tensor, branches: Sequence[Branch]) -> None:
        """Set constants from real data before training, where the paper says so; otherwise nothing.

        `x` (B, T, D) is an embedded batch of training windows; `branches` are those of the network,
        in the mode that they train in. What is set is part of the state dict.
        """


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """Return a norm over the last axis: "layer_norm" (gain and bias) or "rms_norm" (gain).

    Raises
    ------
    ValueError
        If `kind` is unknown or `eps` is negative.
    """
    if kind not in NORMS:
        near = difflib.get_close_matches(str(kind), NORMS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown norm {kind!r}.{hint} Choose one of {', '.join(NORMS)}.")
    if not eps >= 0:
        raise ValueError(f"norm_eps must be at least 0; got {eps!r}. Usual values are 1e-6 to 1e-5.")
    return NORMS[kind](width, eps=eps)


def norm_parameters(kind: str, width: int) -> int:
    """Return how many parameters a norm of `make_norm` has."""
    return {"layer_norm": 2 * width, "rms_norm": width}[kind]


def check_sizes(width: int, num_sublayers: int, first_layer: int) -> None:
    """Refuse sizes that no scheme can be built with.

    Raises
    ------
    ValueError
        If a size is not a whole number, `width` is below 1 or a count below 0.
    """
    for name, value, least in (
        ("width", width, 1),
        ("num_sublayers", num_sublayers, 0),
        ("first_layer", first_layer, 0),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")


def mean_of_streams(streams: Tensor, dim: int) -> Tensor:
    """Return the mean over axis `dim`, summed in pairs.

    In pairs the sum of 2, 4 or 8 equal streams only doubles, which is exact, so merging what was
    opened gives it back bit for bit; a running sum rounds at 3, 5, 6 and 7 times.
    """
    terms = list(streams.unbind(dim))
    num_streams = len(terms)
    while len(terms) > 1:
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
    return terms[0] / num_streams


def full_precision(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context in which autocast, if on, is off for the device of `x`."""
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)
