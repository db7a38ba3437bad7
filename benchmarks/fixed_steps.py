"""How networks are trained that are asked for causes: so many steps, the last weights, the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fints.config import Experiment, override

__all__ = ["fixed_steps", "moments"]


def fixed_steps(steps: int, fields: Mapping[str, Any]) -> Experiment:
    """Return an experiment on both features of a simulated panel, watched in its warm-up and after.

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
            "training.profile_at": moments(steps),
            "training.final_learning_rate_share": 0.1,
            "training.keep": "last",
            "training.device": "cpu",
            **fields,
        },
    )


def moments(steps: int) -> list[int]:
    """Return when a fit is watched: five times in its first sixteenth, the warm-up, and every eighth."""
    early = [steps * part // 80 for part in range(1, 6)]
    return sorted({max(1, step) for step in early} | {steps * part // 8 for part in range(1, 9)})
