"""Interventions by name, so that a configuration or a study's factor can hold them as plain JSON."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from fints.config import ModelConfig
from fints.interventions.amplification import DepthScaledUpdates, OutputChangeStep
from fints.interventions.applied import Applied
from fints.interventions.base import BackwardChange, Intervention, NetworkChange, Penalty
from fints.interventions.gradient import GradientEqualiser, GradientEqualiserPlacebo
from fints.interventions.planted_amplification import BranchGain, RisingUpdates, SharpInputs
from fints.interventions.planted_collapse import LowRankOutputs, TokenPull
from fints.interventions.planted_overfitting import FewWindows, NoisyTargets
from fints.interventions.planted_vanishing import SaturatedBranches, ShrunkGradients
from fints.interventions.representation import (
    Decorrelation,
    DecorrelationPlacebo,
    HingedDecorrelation,
    HingedDecorrelationPlacebo,
)
from fints.interventions.skip import SkippedSublayers
from fints.model import Transformer

__all__ = ["INTERVENTIONS", "cannot_be_stacked", "intervene", "named_changes"]

# Schemes whose stacked pass can be looked at by sublayer (`fints.model.stacked.StackedPass.watchable`).
WATCHABLE = ("pre_norm", "post_norm")

# In the order in which they are applied: diseases belong to the network, reliefs come on top.
INTERVENTIONS: dict[str, type[Intervention]] = {
    "token_pull": TokenPull,
    "low_rank_outputs": LowRankOutputs,
    "shrunk_gradients": ShrunkGradients,
    "saturated_branches": SaturatedBranches,
    "branch_gain": BranchGain,
    "sharp_inputs": SharpInputs,
    "rising_updates": RisingUpdates,
    "few_windows": FewWindows,
    "noisy_targets": NoisyTargets,
    "skipped_sublayers": SkippedSublayers,
    "gradient_equaliser": GradientEqualiser,
    "gradient_equaliser_placebo": GradientEqualiserPlacebo,
    "decorrelation": Decorrelation,
    "decorrelation_placebo": DecorrelationPlacebo,
    "hinged_decorrelation": HingedDecorrelation,
    "hinged_decorrelation_placebo": HingedDecorrelationPlacebo,
    "output_change_step": OutputChangeStep,
    "depth_scaled_updates": DepthScaledUpdates,
}


def intervene(network: Transformer, named: Mapping[str, Any], *, seed: int) -> Applied | None:
    """Apply the interventions of a configuration to a network.

    Parameters
    ----------
    network : Transformer
        Freshly built or loaded.
    named : mapping
        ``{"NAME": {"dose": 0.5, ...}}``, as in `TrainingConfig.interventions`.
    seed : int
        Of what they draw. A fitted network that is loaded needs the one it was trained with.

    Returns
    -------
    Applied or None
        The `steering` of a fit; None if no dose is above 0, and the network is then as it was.

    Raises
    ------
    ValueError
        If a name, an option or a value cannot be used.
    """
    changes = [change for change in named_changes(named, seed=seed) if change.dose > 0]
    return Applied(changes, network) if changes else None


def named_changes(named: Mapping[str, Any], *, seed: int) -> list[Intervention]:
    """Return the interventions of a configuration in the order in which they are applied.

    Parameters, and what is refused, as `intervene`.
    """
    for name in named:
        if name not in INTERVENTIONS:
            near = difflib.get_close_matches(str(name), INTERVENTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown intervention {name!r}.{hint} Known: {', '.join(INTERVENTIONS)}.")
    return [
        _made(name, kind, named[name], seed=seed) for name, kind in INTERVENTIONS.items() if name in named
    ]


def cannot_be_stacked(named: Mapping[str, Any], model: ModelConfig) -> str | None:
    """Return why networks with these interventions are not trained as one with stacked parameters.

    None if they can be. Parameters as `intervene`, and the configuration of the network.

    Raises
    ------
    ValueError
        As `intervene`.
    """
    for name in named:
        (change,) = named_changes({name: named[name]}, seed=0)
        if change.dose == 0:
            continue
        if isinstance(change, NetworkChange):
            return f"{name} changes the pass of a network (training.interventions)"
        at_sublayers = isinstance(change, BackwardChange | Penalty)
        if at_sublayers and (model.residual not in WATCHABLE or model.value_residual != "none"):
            schemes = " and ".join(WATCHABLE)
            return (
                f"{name} acts at sublayers, where stacked networks can be reached under {schemes} without a "
                "value residual alone (training.interventions)"
            )
    return None


def _made(name: str, kind: type[Intervention], options: Any, *, seed: int) -> Intervention:
    known = [option for option in inspect.signature(kind).parameters if option != "seed"]
    if not isinstance(options, Mapping) or "dose" not in options:
        raise ValueError(
            f'the intervention {name} needs a table with a dose, such as {{"dose": 1.0}}; got {options!r}.'
        )
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r} of {name}. Options: {', '.join(known)}.")
    return kind(seed=seed, **options)
