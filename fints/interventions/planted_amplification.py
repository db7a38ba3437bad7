"""Amplification, planted in two ways: networks whose output moves more for the same change of weights."""

from __future__ import annotations

from typing import Any, ClassVar

from fints.interventions.base import Cause, NetworkChange, Role, checked_dose
from fints.residual import Branch, Residual

__all__ = ["BranchGain", "SharpInputs"]


class BranchGain(NetworkChange):
    r"""Multiply what every branch returns.

    .. math:: y_k \leftarrow (1 + d)\, y_k

    with d the dose. The network leans more on its branches than on its skips, so a change in one branch is
    carried through all the branches above it.

    Parameters
    ----------
    dose : float
        d, from 0 on.
    seed : int
        Not used.
    """

    cause: ClassVar[Cause] = "amplification"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("branch_gain", dose)

    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state, and the branch with its output multiplied."""
        return state, lambda u: branch(u) * (1 + self.dose)


class SharpInputs(NetworkChange):
    r"""Multiply what every branch is given, after its norm.

    .. math:: y_k = F_k((1 + d)\, \hat u_k)

    with d the dose. Attention scores grow by :math:`(1 + d)^2` and activations bend more sharply, so the
    branch answers more strongly to a small change of its weights or of its input.

    Parameters
    ----------
    dose : float
        d, from 0 on.
    seed : int
        Not used.
    """

    cause: ClassVar[Cause] = "amplification"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("sharp_inputs", dose)

    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state, and the branch with its input multiplied."""
        return state, lambda u: branch(u * (1 + self.dose))
