"""What passes through a network, written down while it runs.

Shapes: B batch, T tokens, D width, L sublayers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fints.residual import Branch, Residual, State

__all__ = ["Trace"]


class Trace:
    """The tensors of one forward pass, one a sublayer, with their graph.

    Attributes
    ----------
    read : list of Tensor
        What each sublayer reads before any norm (B, T, D). Computed beside the pass: the loss does
        not depend on it.
    outputs : list of Tensor
        What each branch returned; ``torch.autograd.grad(loss, trace.outputs)`` gives gradients by
        depth.
    states : list
        What the scheme carries into each sublayer.
    trunks : list of Tensor
        The state entering each sublayer as one stream. Beside the pass where a scheme has many
        streams.
    final : Tensor or None
        The read-out that the head was given.
    """

    def __init__(self) -> None:
        self.read: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.states: list[State] = []
        self.trunks: list[Tensor] = []
        self.final: Tensor | None = None

    def watch(self, residual: Residual[Any], state: State, layer: int, branch: Branch) -> Branch:
        """Write down the state entering `layer`; return `branch`, which writes its output."""
        self.states.append(state)
        self.read.append(residual.read(state, layer))
        self.trunks.append(residual.merge(state, layer))

        def watched(u: Tensor) -> Tensor:
            y = branch(u)
            self.outputs.append(y)
            return y

        return watched
