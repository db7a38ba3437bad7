"""How networks are trained that are asked for causes: so many steps, the last weights, the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fints.config import Experiment, override

__all__ = ["fixed_steps"]


def fixed_steps(steps: int, fields: Mapping[str, Any]) -> Experiment:
    """Return an experiment on both features of a simulated panel, watched at its start and eight times.

    Parameters
    ----------
    steps
        Of the fit.
    fields
        Further dotted fields.
    """
    return override(
        Experiment(),
        {
            "data.features": ["a", "b"],
            "data.target": "log_return",
            "training.steps": steps,
            "training.evaluate_every": steps,
            "training.profile_every": max(1, steps // 8),
            "training.final_learning_rate_share": 0.1,
            "training.keep": "last",
            "training.device": "cpu",
            **fields,
        },
    )
