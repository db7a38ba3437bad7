"""Every tensor of one pass that a measure may be taken of, by the name that stands beside the number.

==============  ==================================================================================
tensor          at sublayer k
==============  ==================================================================================
``u``           what sublayer k reads, before any norm
``u_hat``       what its branch is given, after the norm
``trunk``       the state entering it as one stream (the mean where there are several)
``sum_stream``  the sum of the streams entering it: the trunk times their number
``y``           what its branch returns: the increment
==============  ==================================================================================

Shapes: B batch, T tokens, F features, D width, n streams, L sublayers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fints.model import Transformer
from fints.model.heads import Forecast
from fints.residual import (
    Branch,
    DynamicHyperConnections,
    GatedStreams,
    ManifoldHyperConnections,
    Residual,
    StaticHyperConnections,
)

__all__ = ["TENSORS", "Record", "record", "streams"]

TENSORS = ("u", "u_hat", "trunk", "sum_stream", "y")
TOKEN_MAJOR = (DynamicHyperConnections, ManifoldHyperConnections, GatedStreams)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The tensors of one pass, with their graph.

    `read`, `given` and `outputs` have one (B, T, D) a sublayer: u, u_hat and y. `trunks` and `states` have
    one more, after the last sublayer. `forecast` is what the head said.
    """

    read: list[Tensor]
    given: list[Tensor]
    outputs: list[Tensor]
    trunks: list[Tensor]
    states: list[Any]
    forecast: Forecast


def record(model: Transformer, x: Tensor) -> Record:
    """Run `model` on x (B, T, F) in the mode it is in, and keep what passes through."""
    residual = model.residual
    read: list[Tensor] = []
    given: list[Tensor] = []
    outputs: list[Tensor] = []
    trunks: list[Tensor] = []
    states: list[Any] = []

    def watch(branch: Branch) -> Branch:
        def watched(u: Tensor) -> Tensor:
            given.append(u)
            y = branch(u)
            outputs.append(y)
            return y

        return watched

    model.check_tokens(x)
    state: Any = residual.open(model.embedding(x))
    first_value: Tensor | None = None
    number = len(model.branches)
    for layer in range(number):
        states.append(state)
        read.append(residual.read(state, layer))
        trunks.append(residual.merge(state, layer))
        state, first_value = model.sublayer(state, layer, first_value, watch)
    states.append(state)
    trunks.append(residual.merge(state, number))
    forecast = model.head(residual.close(state, number))
    return Record(read=read, given=given, outputs=outputs, trunks=trunks, states=states, forecast=forecast)


def streams(residual: Residual[Any], state: Any, layer: int) -> Tensor | None:
    """Return the streams (B, T, n, D) that enter sublayer `layer`, or leave the last one.

    One where the scheme carries one tensor without streams; None where it carries several tensors, past
    outputs or two trunks, which no sum makes one.
    """
    if not isinstance(state, Tensor):
        return None
    part = residual.part(layer)
    if isinstance(part, StaticHyperConnections):
        return state.movedim(0, -2)
    if isinstance(part, TOKEN_MAJOR):
        return state
    return state.unsqueeze(-2) if state.dim() == 3 else None
