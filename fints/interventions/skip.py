"""Sublayers left out: what a network does without them, also after it has trained on so (healing)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from fints.interventions.base import Cause, NetworkChange, Role, checked_dose
from fints.residual import Branch, Residual

__all__ = ["SkippedSublayers"]


class SkippedSublayers(NetworkChange):
    r"""Multiply what a run of neighbouring branches returns, down to nothing.

    .. math:: y_k \leftarrow (1 - d)\, y_k, \qquad k \in [\mathrm{first}, \mathrm{first} + \mathrm{number})

    with d the dose; at 1 the sublayers are skipped, and what the scheme does to its streams is kept. Trained
    on for a few steps, a network that is skipped so heals, as in Gromov et al. 2024, arXiv 2403.17887.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Not used.
    first, number : int
        The sublayers.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "ablation"

    def __init__(self, *, dose: float, seed: int, first: int = 0, number: int = 1) -> None:
        self.dose = checked_dose("skipped_sublayers", dose, most=1)
        if first < 0 or number < 1:
            raise ValueError(f"skipped_sublayers needs first >= 0 and number >= 1; got {first}, {number}.")
        self.layers = range(first, first + number)

    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state, and the branch, diminished where it is one of these."""
        if layer not in self.layers:
            return state, branch

        def diminished(u: Tensor) -> Tensor:
            return branch(u) * (1 - self.dose)

        return state, diminished
