"""The fused form of mixtures by depth; see `fints.residual.fused`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fints.residual.base import Branch, Residual
from fints.residual.by_depth import ByDepth

__all__ = ["FusedByDepth"]


class FusedByDepth:
    """A mixture whose parts run in their own fused forms, those without one plain.

    The state is that of the part which the next sublayer belongs to, as a tuple.

    Parameters
    ----------
    scheme : ByDepth
        Its parameters and options are read at every step; nothing is copied.
    forms : sequence
        The fused form of each of its parts, or the part itself.
    """

    def __init__(self, scheme: ByDepth, forms: Sequence[Any]) -> None:
        self.scheme = scheme
        self.forms = forms

    def fits(self) -> bool:
        """Return whether any part has a fused form."""
        return any(not isinstance(form, Residual) for form in self.forms)

    def open(self, x: Tensor) -> tuple[Any, ...]:
        """Return what the first part opens."""
        return _wrapped(self.forms[0].open(x))

    def step(self, state: tuple[Any, ...], layer: int, branch: Branch) -> tuple[Any, ...]:
        """Return the state after sublayer `layer`, or what the next part opens after a part's last one."""
        i, local = self._locate(layer)
        after = self.forms[i].step(_unwrapped(state), local, branch)
        if i + 1 < len(self.forms) and layer + 1 == self.scheme.starts[i + 1]:
            h = self.scheme.boundary_norms[i](self._merged(i, after, local + 1))
            after = self.forms[i + 1].open(h)
        return _wrapped(after)

    def close(self, state: tuple[Any, ...], layer: int) -> Tensor:
        """Return the read-out of the last part."""
        i, local = self._locate(layer)
        z: Tensor = self.forms[i].close(_unwrapped(state), local)
        return z

    def _locate(self, layer: int) -> tuple[int, int]:
        i = sum(start <= layer for start in self.scheme.starts) - 1
        return i, layer - self.scheme.starts[i]

    def _merged(self, i: int, state: Any, layer: int) -> Tensor:
        # The final norm of a part below another is the identity, so that its read-out is what it hands on.
        form = self.forms[i]
        h: Tensor = form.merge(state, layer) if isinstance(form, Residual) else form.close(state, layer)
        return h


def _wrapped(state: Any) -> tuple[Any, ...]:
    # Always a tuple: what recomputes a pass takes all states apart as the first one.
    return (state,) if isinstance(state, Tensor) else tuple(state)


def _unwrapped(state: tuple[Any, ...]) -> Any:
    return state[0] if len(state) == 1 else state
