"""What a study asks, as values: factors, folds, tuning, seeds, contrasts, presets.

A study file declares one `Study`; every changed field is checked when it is declared, so a
misspelt field fails before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fints.config import Experiment, override
from fints.study.factors import (
    Factors,
    check_changes,
    check_factors,
    chosen_levels,
    crossed,
    design_points,
    nearest,
    resized,
)

if TYPE_CHECKING:
    from fints.evaluation.walk_forward import WalkForward
    from fints.study.matching import Matching

__all__ = ["DEFAULT_BASELINES", "Arm", "Contrast", "Preset", "Study", "Tuning"]

OUTCOMES = ("r2_zero", "r2_mean", "ic", "rank_ic")
# Those that take seconds a fold; every report needs the second as a benchmark.
DEFAULT_BASELINES = ("zero", "prevailing_mean", "ar1", "ridge")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The design points that every arm tries, judged by validation loss alone.

    Parameters
    ----------
    space : mapping
        Dotted field of the experiment to the values tried; the points are their product, in order.
    folds : int
        Tuning uses the first `folds` folds.
    seeds : tuple of int
        Seeds of the tuning fits; the final fits use others.
    """

    space: Mapping[str, Sequence[Any]]
    folds: int = 1
    seeds: tuple[int, ...] = (1000,)

    def __post_init__(self) -> None:
        if not self.space or any(len(values) == 0 for values in self.space.values()):
            raise ValueError(f"tuning.space must give at least one value a field; got {dict(self.space)!r}.")
        if self.folds < 1:
            raise ValueError(f"tuning.folds must be at least 1; got {self.folds}.")
        _distinct("tuning.seeds", self.seeds)

    def points(self) -> list[dict[str, Any]]:
        """Return the design points in a fixed order."""
        return design_points(self.space)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A paired difference: level `compare[1]` of factor `compare[0]` minus its level `against`.

    `within` fixes levels of other factors; factors it leaves out are averaged over.
    """

    compare: tuple[str, str]
    against: str
    within: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One size of a study. What is not given is as the study says.

    Parameters
    ----------
    changes : mapping
        Dotted field of the base experiment to its value at this size.
    levels : mapping
        Factor to the levels that take part; factors left out take part whole.
    folds, tuning, seeds, baselines : optional
        Replacements of the study's own.
    claim : str
        What a report of this size may be called: "none", "exploratory" or "answer".
    opens_seal : bool
        Whether this size reads sealed dates, as the study's own `opens_seal` has it.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folds: WalkForward | None = None
    tuning: Tuning | None = None
    seeds: tuple[int, ...] | None = None
    baselines: tuple[str, ...] | None = None
    claim: str = "exploratory"
    opens_seal: bool = False

    def __post_init__(self) -> None:
        if self.claim not in ("none", "exploratory", "answer"):
            raise ValueError(f'claim must be "none", "exploratory" or "answer"; got {self.claim!r}.')


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One combination of levels and the experiment it stands for."""

    name: str
    levels: dict[str, str]
    experiment: Experiment


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question to the data; its name is that of the file that declares it.

    Parameters
    ----------
    title : str
        The question in one line.
    base : Experiment
        What all arms share.
    factors : mapping
        Factor -> level -> dotted field changes. Arms are the product of the levels.
    folds : WalkForward
        Splits of the dates.
    tuning : Tuning
        Same space and budget in every arm.
    seeds : tuple of int
        Seeds of the final fits, disjoint from the tuning seeds.
    primary : Contrast
        The one contrast that answers the question.
    contrasts : tuple of Contrast
        Secondary ones.
    outcome : str
        "r2_zero", "r2_mean", "ic" or "rank_ic", out of sample.
    smallest_effect : float
        Smallest difference of the outcome that would matter.
    dataset : str
        Name of a dataset or path of a panel.
    baselines : tuple of str
        What every arm stands beside: names of `fints.study.baselines.KNOWN`, each fitted once a fold on
        the data of the base experiment. "prevailing_mean" must be one: it is a benchmark too.
    presets : mapping
        Name to size; "smoke" and "quick" are expected.
    opens_seal : bool
        Whether sealed dates may be read: true in one study only, run once (`fints.study.seal`).
    matching : Matching, optional
        Levels of one factor are then compared at the same width, parameters and time, and the answer is
        a verdict over all of them (`fints.study.selection`); every contrast is secondary.

    Raises
    ------
    ValueError
        If a field, a level or a seed cannot be used.

    Examples
    --------
    >>> from fints.config import Experiment
    >>> from fints.evaluation import WalkForward
    >>> study = Study(
    ...     title="Does the place of the norm matter?",
    ...     base=Experiment(),
    ...     factors={"residual": {name: {"model.residual": name} for name in ("pre_norm", "post_norm")}},
    ...     folds=WalkForward(num_folds=4, test_days=126, validation_days=126, purge=1),
    ...     tuning=Tuning(space={"training.learning_rate": (1e-3, 3e-3)}, seeds=(1000,)),
    ...     seeds=(10, 11),
    ...     primary=Contrast(compare=("residual", "post_norm"), against="pre_norm"),
    ...     smallest_effect=0.001,
    ...     dataset="sp500-20",
    ...     presets={"quick": Preset()},
    ... )
    >>> [arm.name for arm in study.arms()]
    ['pre_norm', 'post_norm']
    """

    title: str
    base: Experiment
    factors: Factors
    folds: WalkForward
    tuning: Tuning
    seeds: tuple[int, ...]
    primary: Contrast
    contrasts: tuple[Contrast, ...] = ()
    outcome: str = "r2_zero"
    smallest_effect: float
    dataset: str = "sp500-20"
    baselines: tuple[str, ...] = DEFAULT_BASELINES
    presets: Mapping[str, Preset]
    opens_seal: bool = False
    matching: Matching | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome = {self.outcome!r} is unknown. {nearest(self.outcome, OUTCOMES)}")
        if not self.smallest_effect > 0:
            raise ValueError(f"smallest_effect must be above 0; got {self.smallest_effect}.")
        check_factors(self.factors)
        if not self.presets:
            raise ValueError("presets must hold at least one preset, e.g. {'smoke': Preset(...)}.")
        for contrast in (self.primary, *self.contrasts):
            self._check_contrast(contrast)
        for name in self.presets:
            try:
                self.sized(name)
            except ValueError as error:
                raise ValueError(f"preset {name!r}: {error}") from error

    def sized(self, preset: str, changes: Mapping[str, Any] | None = None) -> Study:
        """Return the study at the size of `preset`, with `changes` put on its base experiment.

        Raises
        ------
        ValueError
            If the preset is unknown or something in it cannot be used.
        """
        if preset not in self.presets:
            raise ValueError(f"unknown preset {preset!r}. {nearest(preset, self.presets)}")
        size = self.presets[preset]
        factors = chosen_levels(self.factors, size.levels)
        tuning = size.tuning or self.tuning
        seeds = self.seeds if size.seeds is None else size.seeds
        check_changes([*size.changes, *(changes or {})], factors, tuning.space)
        values = {
            "base": override(self.base, {**size.changes, **(changes or {})}),
            "factors": factors,
            "folds": size.folds or self.folds,
            "tuning": tuning,
            "seeds": seeds,
            "baselines": self.baselines if size.baselines is None else size.baselines,
            "presets": {preset: size},
            "opens_seal": self.opens_seal or size.opens_seal,
            "contrasts": tuple(item for item in self.contrasts if not _left_out(item, factors)),
        }
        missing = _left_out(self.primary, factors)
        if missing:
            raise ValueError(f"the primary contrast needs level {missing}, which this size leaves out.")
        sized = resized(self, values)
        sized._check_size()
        return sized

    def arms(self) -> list[Arm]:
        """Return every combination of levels, in the order of their declaration.

        Of those that are matched, each that its matching changes; the others would be made twice.
        """
        declared = self._declared()
        if self.matching is None:
            return declared
        from fints.study.matching import matched_arms

        return matched_arms(self.matching, declared)

    def _declared(self) -> list[Arm]:
        """Return every combination of levels as its factors say, before anything is matched."""
        return [
            Arm(name=name, levels=levels, experiment=override(self.base, changes))
            for name, levels, changes in crossed(self.factors)
        ]

    def _levels(self, factor: str) -> Mapping[str, Mapping[str, Any]]:
        if factor not in self.factors:
            raise ValueError(f"unknown factor {factor!r}. {nearest(factor, self.factors)}")
        return self.factors[factor]

    def _check_contrast(self, contrast: Contrast) -> None:
        factor, level = contrast.compare
        named = [(factor, level), (factor, contrast.against), *contrast.within.items()]
        for factor_name, level_name in named:
            if level_name not in self._levels(factor_name):
                raise ValueError(
                    f"contrast: factor {factor_name!r} has no level {level_name!r}. "
                    f"{nearest(level_name, self.factors[factor_name])}"
                )
        if level == contrast.against or factor in contrast.within:
            raise ValueError(f"contrast {contrast} must compare two levels of a factor it does not fix.")

    def _check_size(self) -> None:
        from fints.study.baselines import check_baselines

        check_baselines(self.baselines, self.base)
        _distinct("seeds", self.seeds)
        shared = set(self.seeds) & set(self.tuning.seeds)
        if shared:
            raise ValueError(f"seeds {sorted(shared)} are tuning seeds too; final fits need fresh ones.")
        if self.tuning.folds > self.folds.num_folds:
            raise ValueError(f"tuning.folds = {self.tuning.folds} exceeds the {self.folds.num_folds} folds.")
        if self.folds.purge < self.base.data.horizon:
            raise ValueError(
                f"folds.purge = {self.folds.purge} must be at least data.horizon = {self.base.data.horizon}, "
                f"or training outcomes reach into the test period."
            )
        if self.matching is not None:
            self.matching.check(self.factors)
        seen: dict[Any, str] = {}
        for arm in self._declared():
            # What a matching makes of an arm is known when networks are counted, which takes torch.
            if self.matching is not None and arm.levels[self.matching.by] != "width":
                continue
            for point in self.tuning.points():
                override(arm.experiment, point)
            for dotted in self.tuning.space:
                if any(dotted in self.factors[factor][level] for factor, level in arm.levels.items()):
                    raise ValueError(
                        f"{dotted} is set by arm {arm.name} and by the tuning space; choose one."
                    )
            key = repr(arm.experiment)
            if key in seen:
                raise ValueError(f"arms {seen[key]} and {arm.name} are the same experiment; change a level.")
            seen[key] = arm.name


def _left_out(contrast: Contrast, factors: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the first level a contrast needs and `factors` do not have, "" if there is none."""
    factor, level = contrast.compare
    needed = [(factor, level), (factor, contrast.against), *contrast.within.items()]
    return next((f"{name}={wanted}" for name, wanted in needed if wanted not in factors[name]), "")


def _distinct(name: str, seeds: Sequence[int]) -> None:
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    if not seeds or not whole or len(set(seeds)) != len(seeds):
        raise ValueError(f"{name} must be distinct whole numbers of at least 0, one or more; got {seeds!r}.")
