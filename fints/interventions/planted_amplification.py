"""Amplification, planted: networks whose output moves more for the same change of weights, or in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from fints.interventions.base import Cause, NetworkChange, Role, UpdateChange, checked_dose
from fints.residual import Branch, Residual
from fints.training import Weights

__all__ = ["BranchGain", "RisingUpdates", "SharpInputs"]


class BranchGain(NetworkChange):
    r"""Multiply what every branch returns.

    .. math:: y_k \leftarrow (1 + d)\, y_k

    with d the dose. The network leans more on its branches than on its skips, so a change in one branch is
    carried through all the branches above it. For schemes that norm their trunk: under Pre-Norm the final
    norm takes the gain out again, and hardly more comes of it than a network whose embedding counts less.

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


class RisingUpdates(UpdateChange):
    r"""Lengthen every update of the branches, the more the deeper they are.

    .. math:: \Delta_k \leftarrow \Delta_k \left(1 + d\, \frac{k + 1}{L}\right)

    with d the dose and L sublayers. The function and its gradients are those of the healthy network; a step
    changes the output more than its learning rate says.

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
        self.dose = checked_dose("rising_updates", dose)

    def update(
        self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor
    ) -> None:
        """Take the step and lengthen it."""
        number = weights.num_branches
        branches = [weights.under(f"branches.{k}.").values() for k in range(number)]
        before = [[value.clone() for value in values] for values in branches]
        take()
        for k, (values, earlier) in enumerate(zip(branches, before, strict=True)):
            factor = self.dose * (k + 1) / number
            for value, old in zip(values, earlier, strict=True):
                value.add_(factor * (value - old))
