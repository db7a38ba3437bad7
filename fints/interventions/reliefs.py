"""The reliefs of a depth penalty by cause, each with its placebo, as changes of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fints.interventions.base import Cause
from fints.interventions.table import INTERVENTIONS

__all__ = ["DOSES", "RELIEFS", "Relief", "changes"]


@dataclass(frozen=True, kw_only=True)
class Relief:
    """A relief, what stands beside it as a placebo, and doses worth trying.

    `placebo` is None where a relief is a field of the configuration: weight decay, dropout and the choice of
    the best weights have no counterpart that looks like them and does nothing. There the comparison is made
    fair by the best scalar calibration of every forecast (`fints.diagnostics.calibrated_share`).
    """

    cause: Cause
    placebo: str | None
    doses: tuple[float, ...]


RELIEFS: dict[str, Relief] = {
    "gradient_equaliser": Relief(
        cause="gradient", placebo="gradient_equaliser_placebo", doses=(0.25, 0.5, 1.0)
    ),
    "decorrelation": Relief(cause="representation", placebo="decorrelation_placebo", doses=(0.03, 0.1, 0.3)),
    "hinged_decorrelation": Relief(
        cause="representation", placebo="hinged_decorrelation_placebo", doses=(0.03, 0.1, 0.3)
    ),
    "output_change_step": Relief(cause="amplification", placebo=None, doses=(0.3, 0.5, 1.0)),
    "depth_scaled_updates": Relief(cause="amplification", placebo=None, doses=(0.5, 1.0)),
    "weight_decay": Relief(cause="noise", placebo=None, doses=(0.03, 0.1, 0.3)),
    "dropout": Relief(cause="noise", placebo=None, doses=(0.1, 0.2, 0.4)),
    # Steps between two looks at the validation loss: the training is the plain one to the last bit.
    "best_weights": Relief(cause="noise", placebo=None, doses=(50, 100, 200)),
}
# The doses of confirmatory studies, of a relief and its placebo. Where one acts on a healthy network too, it
# is the largest that was tried under which the reference, 4 blocks under Post-Norm, keeps half of its share
# of the oracle (`python benchmarks/doses.py --rate 2e-3`): a stronger one is no relief. Others leave it as it
# is at any dose: a hinge, a budget for steps, steps shrunk beyond the reference's depth. That of
# `best_weights` is how many steps lie between two looks.
DOSES: dict[str, float] = {
    "gradient_equaliser": 1.0,
    "gradient_equaliser_placebo": 1.0,
    "decorrelation": 0.1,
    "decorrelation_placebo": 0.1,
    "hinged_decorrelation": 0.3,
    "hinged_decorrelation_placebo": 0.3,
    "depth_scaled_updates": 1.0,
    "output_change_step": 1.0,
    "best_weights": 100,
}
FIELDS: dict[str, Callable[[float], dict[str, Any]]] = {
    "weight_decay": lambda dose: {"training.weight_decay": dose},
    "dropout": lambda dose: {"model.dropout": dose},
    "best_weights": lambda dose: {"training.keep": "best", "training.evaluate_every": int(dose)},
}


def changes(name: str, dose: float, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what `fints.config.override` must change for one intervention or noise relief.

    >>> changes("gradient_equaliser", 0.5)
    {'training.interventions.gradient_equaliser': {'dose': 0.5}}
    >>> changes("dropout", 0.2)
    {'model.dropout': 0.2}

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if name in FIELDS and not options:
        return FIELDS[name](dose)
    if name not in INTERVENTIONS:
        raise ValueError(
            f"unknown intervention {name!r}, or options that it does not have. "
            f"Known: {', '.join((*INTERVENTIONS, *FIELDS))}."
        )
    return {f"training.interventions.{name}": {"dose": dose, **(options or {})}}
