"""Fitting noise, planted in two ways: too few windows, and targets noisier than those of the test.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fints.interventions.base import Cause, Role, WindowChange, checked_dose
from fints.training import Batches, derive

__all__ = ["FewWindows", "NoisyTargets"]


class FewWindows(WindowChange):
    """Train on the last few windows alone, in as many steps.

    Windows come in the order of their dates, so the share 1 - dose of them that is kept is one period, next
    to the test: windows overlap, and a random few of them would show nearly every day.

    Parameters
    ----------
    dose : float
        Share of the windows left out, from 0 to below 1.
    seed : int
        Not used.
    """

    cause: ClassVar[Cause] = "noise"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("few_windows", dose, most=1)

    def windows(self, train: Batches) -> Batches:
        """Return the last windows."""
        return _Last(train, max(1, round((1 - self.dose) * len(train))))


class NoisyTargets(WindowChange):
    r"""Add noise to the targets that are trained on, the same at every visit.

    .. math:: r \leftarrow r + d\, \epsilon(r), \qquad \epsilon \sim N(0, 1)

    with d the dose; targets have root mean square 1. The noise of an outcome is drawn from the bits of the
    outcome itself and the seed, so it is one number wherever that outcome appears, in whichever window: it
    can be learnt by heart. Two outcomes that are equal to the last bit get the same.

    Parameters
    ----------
    dose : float
        d, from 0 on.
    seed : int
        Draws the noise.
    """

    cause: ClassVar[Cause] = "noise"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("noisy_targets", dose)
        self.seed = derive(seed, "noisy_targets")

    def windows(self, train: Batches) -> Batches:
        """Return the windows with noisy targets."""
        return _Noisy(train, self.dose, self.seed)


class _Last:
    def __init__(self, whole: Batches, number: int) -> None:
        self._whole = whole
        self._number = number
        self._first = len(whole) - number

    def __len__(self) -> int:
        return self._number

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._whole.gather(positions + self._first)


class _Noisy:
    def __init__(self, clean: Batches, size: float, seed: int) -> None:
        self._clean = clean
        self._size = size
        self._seed = seed

    def __len__(self) -> int:
        return len(self._clean)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self._clean.gather(positions)
        return inputs, targets + self._size * _normal(targets, self._seed)


def _normal(values: Tensor, seed: int) -> Tensor:
    """Return standard normal numbers, each a function of the bits of its value and the seed."""
    bits = values.contiguous().float().view(torch.int32).long()
    first, second = (_uniform(bits, derive(seed, half)) for half in ("radius", "angle"))
    # Box and Muller: the radius and the angle of two independent normals.
    return ((-2 * first.log()).sqrt() * (2 * math.pi * second).cos()).to(values.dtype)


def _uniform(bits: Tensor, seed: int) -> Tensor:
    """Return numbers in (0, 1): the finaliser of splitmix64 on each 32 bits, in wrapping 64-bit integers."""
    mixed = bits + seed
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(factor)
    mixed = mixed ^ _shifted(mixed, 31)
    return (_shifted(mixed, 12).double() + 0.5) / 2**52


def _shifted(values: Tensor, places: int) -> Tensor:
    """Shift right by `places`, filling with zeros as for unsigned integers."""
    return (values >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
