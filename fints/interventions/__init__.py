"""Interventions: one change to a fit, by name and dose, each aimed at one cause.

Reliefs are to cure, placebos look like their relief and cure nothing, diseases are planted to see whether
the cause is found. None is applied unless the configuration names it.
"""

from __future__ import annotations

from fints.interventions.amplification import DepthScaledUpdates, OutputChangeStep
from fints.interventions.applied import Applied
from fints.interventions.base import (
    BackwardChange,
    Intervention,
    NetworkChange,
    Penalty,
    UpdateChange,
    WindowChange,
)
from fints.interventions.gradient import GradientEqualiser, GradientEqualiserPlacebo
from fints.interventions.planted_amplification import BranchGain, RisingUpdates, SharpInputs
from fints.interventions.planted_collapse import LowRankOutputs, TokenPull
from fints.interventions.planted_overfitting import FewWindows, NoisyTargets
from fints.interventions.planted_vanishing import SaturatedBranches, ShrunkGradients
from fints.interventions.reliefs import DOSES, RELIEFS, Relief, changes
from fints.interventions.representation import (
    Decorrelation,
    DecorrelationPlacebo,
    HingedDecorrelation,
    HingedDecorrelationPlacebo,
    alignment,
    token_alignment,
)
from fints.interventions.scale import ScaledInputs, forecasts_by_scale, moved_by_scale
from fints.interventions.skip import SkippedSublayers
from fints.interventions.table import INTERVENTIONS, cannot_be_stacked, intervene

__all__ = [
    "DOSES",
    "INTERVENTIONS",
    "RELIEFS",
    "Applied",
    "BackwardChange",
    "BranchGain",
    "Decorrelation",
    "DecorrelationPlacebo",
    "DepthScaledUpdates",
    "FewWindows",
    "GradientEqualiser",
    "GradientEqualiserPlacebo",
    "HingedDecorrelation",
    "HingedDecorrelationPlacebo",
    "Intervention",
    "LowRankOutputs",
    "NetworkChange",
    "NoisyTargets",
    "OutputChangeStep",
    "Penalty",
    "Relief",
    "RisingUpdates",
    "SaturatedBranches",
    "ScaledInputs",
    "SharpInputs",
    "ShrunkGradients",
    "SkippedSublayers",
    "TokenPull",
    "UpdateChange",
    "WindowChange",
    "alignment",
    "cannot_be_stacked",
    "changes",
    "forecasts_by_scale",
    "intervene",
    "moved_by_scale",
    "token_alignment",
]
