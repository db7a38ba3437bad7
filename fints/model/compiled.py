"""The fast pass of a network, which computes what `Transformer.forward` does.

Shapes: B batch, T tokens, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fints.model.branches import CausalSelfAttention, FeedForward
from fints.model.checkpointing import passed_through
from fints.model.heads import Forecast
from fints.model.native_branches import attend, feed_forward, has_native_form
from fints.model.regions import (
    attention_region,
    block_region,
    branch_region,
    compiled_region,
    view_of,
)
from fints.residual import (
    Branch,
    DynamicHyperConnections,
    ManifoldHyperConnections,
    PostNorm,
    PreNorm,
    Residual,
    State,
    StaticHyperConnections,
)
from fints.residual.fused import fused
from fints.residual.native import find_compiler, kernels

if TYPE_CHECKING:
    from fints.model.transformer import Transformer

__all__ = ["CompiledPass"]

# Schemes whose step is one function of a sublayer's own parameters, whatever the sublayer.
_UNIFORM: tuple[type[Residual[Any]], ...] = (
    PreNorm,
    PostNorm,
    StaticHyperConnections,
    DynamicHyperConnections,
    ManifoldHyperConnections,
)


class CompiledPass:
    """A network's forward pass made fast; call it as the network.

    On a CPU, residual schemes of streams run in their fused form (`fints.residual.fused`) and the
    feed-forward in its own; every other scheme runs its plain step. What this needs is compiled once
    a machine. The compiler of torch gained nothing there on top: most of the time goes into matrix
    products, which it leaves as they are.

    On another device, or with a `backend`, the network runs in regions of `fints.model.regions` that
    torch compiles: a block where a scheme's step is one function at every depth, otherwise (sources that
    grow with depth, mixtures by depth) a branch with the plain step around it. So two regions are compiled
    at most, whatever the depth, once to train and once to evaluate.

    Gradients, dropout, checkpointing and autocast are as in the plain pass. A traced pass is plain.

    Parameters
    ----------
    network : Transformer
        On its device. Its mode, and whether it checkpoints, are read at each call.
    backend : str or callable, optional
        Of torch.compile.

    Raises
    ------
    ValueError
        If what is to be compiled needs a C++ compiler and there is none.
    """

    def __init__(self, network: Transformer, *, backend: str | Callable[..., Any] | None = None) -> None:
        self.network = network
        device = next(network.parameters()).device.type
        scheme = network.residual
        self.native = device == "cpu" and backend is None
        self.fused = fused(scheme) if self.native else None
        if self.native:
            kernels()
        elif device == "cpu" and backend == "inductor":
            find_compiler()
        self.blocks = not self.native and isinstance(scheme, _UNIFORM) and network.value_residual == "none"
        self.structure = f"{network.branches[0]} {network.branches[1]}"
        if self.blocks:
            self.structure += f" {view_of(scheme, 0, 2)} {_plain(scheme)}"
        self.backend = backend or "inductor"
        self._views: list[Residual[Any]] = []

    def __call__(self, x: Tensor) -> Forecast:
        """Return the forecast of x (B, T, F), as the network does."""
        network = self.network
        network.check_tokens(x)
        scheme = network.residual if self.fused is None else self.fused
        embedded = network.embedding(x)
        state: Any = scheme.open(embedded)
        state = passed_through(
            self._block if self.blocks else self._sublayer,
            embedded,
            state,
            len(network.branches),
            checkpointed=network.activation_checkpointing,
            stride=2 if self.blocks else 1,
        )
        result: Forecast = network.head(scheme.close(state, len(network.branches)))
        return result

    def _block(self, state: State, layer: int, first_value: Tensor | None) -> tuple[State, Tensor | None]:
        if not self._views:
            # Not before the first call: a fit may set a scheme's constants after this is built.
            scheme, number = self.network.residual, len(self.network.branches)
            self._views = [view_of(scheme, first, 2) for first in range(0, number, 2)]
        branches = tuple(self.network.branches[layer : layer + 2])
        return self._region(block_region, state)(self._views[layer // 2], branches, state), first_value

    def _region(self, function: Callable[..., Any], state: Any) -> Callable[..., Any]:
        first = state if isinstance(state, Tensor) else state[0]
        kind = first.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        mode = (self.network.training, torch.is_grad_enabled(), precision)
        return compiled_region(
            function, (self.structure, *mode, first.shape, first.dtype), backend=self.backend
        )

    def _sublayer(self, state: Any, layer: int, first_value: Tensor | None) -> tuple[Any, Tensor | None]:
        branch = self.network.branches[layer]
        handed: list[Tensor | None] = []

        def attend_natively(u: Tensor) -> Tensor:
            assert isinstance(branch, CausalSelfAttention)
            hand_on = layer == 0 and self.network.value_residual != "none"
            y, value = attend(branch, u, first_value, hand_on=hand_on)
            handed.append(value)
            return y

        def attend_in_region(u: Tensor) -> Tensor:
            y, value = self._region(attention_region, u)(branch, u, first_value)
            handed.append(value)
            return y

        def run(u: Tensor) -> Tensor:
            result: Tensor = self._region(branch_region, u)(branch, u)
            return result

        call: Branch
        if isinstance(branch, CausalSelfAttention) and self.native:
            call = attend_natively
        elif isinstance(branch, CausalSelfAttention) and self.network.value_residual != "none":
            call = attend_in_region
        elif not self.native:
            call = run
        elif isinstance(branch, FeedForward) and has_native_form(branch):
            call = partial(feed_forward, branch)
        else:
            call = branch
        scheme = self.network.residual if self.fused is None else self.fused
        state = scheme.step(state, layer, call)
        return state, handed[0] if handed and layer == 0 else first_value


def _plain(scheme: Residual[Any]) -> dict[str, Any]:
    """Return the options that a scheme keeps as plain values."""
    return {name: value for name, value in sorted(vars(scheme).items()) if not name.startswith("_")}
