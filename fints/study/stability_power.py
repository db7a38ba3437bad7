"""What a plan tells of the power of a study of stability."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fints.evaluation.power import contrast_power
from fints.evaluation.predictions import LEAST_CLUSTERS, equivalence_power
from fints.study.panel_design import PanelStudy
from fints.words import counted

__all__ = ["power_of_stability"]

# Of a width less the mean of two others, over that of a difference of two.
HALF_FACTOR = math.sqrt(0.75)
UNKNOWN_SPREADS = (0.15, 0.3, 0.6)


def power_of_stability(study: PanelStudy) -> list[str]:
    """Return the lines of a plan on what a study of stability can find.

    The spread over panels of a gap of widths is the pilot's; as long as none was run, power is told at
    several. That of a contrast of several cells is what it would be if cells of a panel were independent: the
    panels that they share make it smaller.
    """
    number, settings = len(study.panels), study.settings
    if number < LEAST_CLUSTERS:
        return [f"power    none: a verdict needs {LEAST_CLUSTERS} panels, there are {number}"]
    smallest, spread = settings["smallest"], settings["pilot_spread"]
    panels = counted(number, "panel")
    width, alpha = smallest["width"], 0.05 / len(settings["depths"])
    asked = {
        f"stage 0: {width:g} decades wider": lambda sd: contrast_power(
            width, sd=sd, clusters=number, alpha=alpha
        ),
        f"a gap that grows by {width:g} with vol-of-vol": lambda sd: contrast_power(
            width, sd=_dose_factor(settings["doses"]) * sd, clusters=number
        ),
        f"no gap where there is none, within {width:g}": lambda sd: equivalence_power(
            width, sd=sd, clusters=number
        ),
        f"all of a gap of {width:g} is more than half of it": lambda sd: contrast_power(
            width / 2, sd=HALF_FACTOR * sd, clusters=number
        ),
    }
    spreads = [spread["width"]] if "width" in spread else list(UNKNOWN_SPREADS)
    told = ", ".join(f"{sd:g}" for sd in spreads)
    of = "which the pilot found" if "width" in spread else "no pilot has told yet which"
    lines = [f"power    with {panels}, where gaps of widths deviate over panels by {told} ({of})"]
    for words, power in asked.items():
        lines.append(f"         {words}: {', '.join(f'{power(sd):.0%}' for sd in spreads)}")
    if "moved" in spread:
        sd, least = spread["moved"], smallest["moved"]
        chance = contrast_power(least, sd=sd, clusters=number)
        lines.append(f"         do(c) moves Pre-Norm by a quarter more (deviation {sd:g}): {chance:.0%}")
    if "null" in spread:
        sd, least = spread["null"], smallest["null"]
        chance = equivalence_power(least, sd=sd, clusters=number)
        lines.append(
            f"         no difference without signal, within {least:g} (deviation {sd:g}): {chance:.0%}"
        )
    return lines


def _dose_factor(doses: Mapping[str, float]) -> float:
    """Return the deviation of the slope over doses times their range, over that of one gap."""
    values = list(doses.values())
    middle = sum(values) / len(values)
    size = math.sqrt(sum((value - middle) ** 2 for value in values))
    return (max(values) - min(values)) / size
