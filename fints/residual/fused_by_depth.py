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

    The state is that of the part which the next sublayer belongs to.

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

    def open(self, x: Tensor) -> Any:
        """Return what the first part opens."""
        return self.forms[0].open(x)

    def step(self, state: Any, layer: int, branch: Branch) -> Any:
        """Return the state after sublayer `layer`, or what the next part opens after a part's last one."""
        return self.crossed(self.within(state, layer, branch), layer)

    def within(self, state: Any, layer: int, branch: Branch) -> Any:
        """Return the state of its own part after sublayer `layer`."""
        i, local = self._locate(layer)
        return self.forms[i].step(state, local, branch)

    def crossed(self, after: Any, layer: int) -> Any:
        """Return what the next part opens, if `layer` is the last of its part; else the state as it is."""
        i, local = self._locate(layer)
        if i + 1 < len(self.forms) and layer + 1 == self.scheme.starts[i + 1]:
            h = self.scheme.boundary_norms[i](self._merged(i, after, local + 1))
            after = self.forms[i + 1].open(h)
        return after

    def close(self, state: Any, layer: int) -> Tensor:
        """Return the read-out of the last part."""
        i, local = self._locate(layer)
        z: Tensor = self.forms[i].close(state, local)
        return z

    def _locate(self, layer: int) -> tuple[int, int]:
        i = sum(start <= layer for start in self.scheme.starts) - 1
        return i, layer - self.scheme.starts[i]

    def _merged(self, i: int, state: Any, layer: int) -> Tensor:
        # The final norm of a part below another is the identity, so that its read-out is what it hands on.
        form = self.forms[i]
        h: Tensor = form.merge(state, layer) if isinstance(form, Residual) else form.close(state, layer)
        return h
