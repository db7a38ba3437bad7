"""What is held equal between arms of unlike size and speed: the width, the parameters or the time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fints.config import Experiment, override
from fints.study.factors import Factors, nearest

if TYPE_CHECKING:
    from fints.study.design import Arm

__all__ = ["MATCHED", "Matching", "comparisons", "matched_arms"]

MATCHED = ("width", "parameters", "time")
# A measured time is not known better than this: within it an arm takes as long as the reference.
TIME_TOLERANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class Matching:
    r"""Compare the levels of one factor at the same width, the same parameters and the same time.

    The study declares `by` as a factor whose levels are among "width", "parameters" and "time" and change
    nothing themselves. With P parameters, h hidden numbers of a feed-forward branch, S optimiser steps
    and tau the measured time of a step over that of the reference,

    ==============  ==========================================================================
    width           all sizes as declared
    parameters      :math:`h` is the whole number that brings P nearest to the reference's P;
                    D, heads, depth and whatever the scheme carries stay
    time            :math:`S / \tau` steps, warm-up and evaluations in proportion; an arm
                    within 5 % of the reference's time counts as equal
    ==============  ==========================================================================

    An arm that a level would not change is not made again: the one at the same width stands for it.

    Parameters
    ----------
    over : str
        The factor whose levels are compared.
    reference : str
        Its level that the others are matched to.
    step_times : mapping
        Level to the time of its step at the declared width over that of the reference.
    measured : str
        The command that measured them.
    by : str
        The factor that says what is held equal.
    """

    over: str
    reference: str
    step_times: Mapping[str, float]
    measured: str
    by: str = "matched"

    def check(self, factors: Factors) -> None:
        """Refuse factors that this does not fit.

        Raises
        ------
        ValueError
            If one of the two factors, a level or a time is not there or cannot be used.
        """
        for name in (self.over, self.by):
            if name not in factors:
                raise ValueError(f"matching: unknown factor {name!r}. {nearest(name, factors)}")
        for name, levels in factors.items():
            if name not in (self.over, self.by) and len(levels) > 1:
                raise ValueError(
                    f"matching: a comparison has one arm a level; factor {name!r} has {len(levels)} levels, "
                    "leave one of them."
                )
        for level, changes in factors[self.by].items():
            if level not in MATCHED or changes:
                raise ValueError(
                    f"matching: factor {self.by!r} has levels among {', '.join(MATCHED)} that change "
                    "nothing; "
                    f"got {level!r} with {dict(changes)!r}."
                )
        if "width" not in factors[self.by]:
            raise ValueError(
                f"matching: factor {self.by!r} needs the level 'width': the others start from it."
            )
        if self.reference not in factors[self.over]:
            raise ValueError(
                f"matching: factor {self.over!r} has no level {self.reference!r}. "
                f"{nearest(self.reference, factors[self.over])}"
            )
        for level in factors[self.over]:
            if not self.step_times.get(level, 0.0) > 0:
                raise ValueError(f"matching: step_times must hold a time above 0 for {level!r}.")
        if self.step_times[self.reference] != 1:
            raise ValueError("matching: step_times are multiples of the reference's, whose own is 1.")

    def matched(
        self, how: str, level: str, experiment: Experiment, reference: Experiment
    ) -> Experiment | None:
        """Return the experiment of `level` matched as `how` says, None where that changes nothing.

        Parameters
        ----------
        how : str
            One of "width", "parameters", "time".
        level : str
            Of the factor `over`.
        experiment, reference : Experiment
            Of that level and of the reference at the same width.
        """
        if how == "width":
            return experiment
        changed = (
            _same_parameters(experiment, reference)
            if how == "parameters"
            else self._same_time(level, experiment)
        )
        return None if changed == experiment else changed

    def _same_time(self, level: str, experiment: Experiment) -> Experiment:
        ratio, training = self.step_times[level], experiment.training
        if abs(ratio - 1) <= TIME_TOLERANCE:
            return experiment
        steps = max(1, round(training.steps / ratio))
        return override(
            experiment,
            {
                "training.steps": steps,
                "training.warmup_steps": min(round(training.warmup_steps / ratio), steps - 1),
                "training.evaluate_every": max(1, round(training.evaluate_every / ratio)),
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what a report needs of this, JSON-able."""
        return {
            "over": self.over,
            "by": self.by,
            "reference": self.reference,
            "step_times": dict(self.step_times),
            "measured": self.measured,
        }


def matched_arms(matching: Matching, declared: Sequence[Arm]) -> list[Arm]:
    """Return the arms of a study that are not the same as one at the same width."""
    twins = {_place(arm.levels): arm for arm in declared}
    arms = []
    for arm in declared:
        wide = {**arm.levels, matching.by: "width"}
        reference = twins[_place({**wide, matching.over: matching.reference})]
        changed = matching.matched(
            arm.levels[matching.by],
            arm.levels[matching.over],
            twins[_place(wide)].experiment,
            reference.experiment,
        )
        if changed is not None:
            arms.append(dataclasses.replace(arm, experiment=changed))
    return arms


def comparisons(matching: Matching, factors: Factors, arms: Sequence[Arm]) -> dict[str, Any]:
    """Return `matching` with the arm that stands for each level in each comparison, and the times of fits.

    "comparisons" maps what is held equal to level to arm, "time" an arm to the time of its fit over the
    reference's, by the measured steps of the declared width.
    """
    found = {(arm.levels[matching.over], arm.levels[matching.by]): arm for arm in arms}
    levels = list(factors[matching.over])
    reference = found[matching.reference, "width"].experiment.training.steps
    return {
        **matching.to_dict(),
        "comparisons": {
            how: {level: found.get((level, how), found[level, "width"]).name for level in levels}
            for how in factors[matching.by]
        },
        "time": {
            arm.name: matching.step_times[level] * arm.experiment.training.steps / reference
            for (level, _), arm in found.items()
        },
    }


def _place(levels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(levels.items())


def _same_parameters(experiment: Experiment, reference: Experiment) -> Experiment:
    from fints.study.estimates import parameters

    width = experiment.model.width
    wanted = parameters(reference)

    def with_hidden(hidden: int) -> Experiment:
        return override(experiment, {"model.feed_forward_ratio": hidden / width})

    hidden = max(1, round(experiment.model.feed_forward_ratio * width))
    now = parameters(experiment)
    # Every block has one more row and column of its feed-forward maps for each hidden number.
    a_number = parameters(with_hidden(hidden + 1)) - now
    best = hidden + round((wanted - now) / a_number)
    if best < 1:
        raise ValueError(
            f"no feed-forward branch of {experiment.model.residual} is narrow enough for {wanted:,} "
            "parameters: "
            f"it has {now:,} with {hidden} hidden numbers; give the reference more width."
        )
    return experiment if best == hidden else with_hidden(best)
