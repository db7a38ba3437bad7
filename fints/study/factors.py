"""Factors and their levels, as every kind of study declares them: checked, chosen from, crossed to arms."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "Factors",
    "check_changes",
    "check_factors",
    "chosen_levels",
    "crossed",
    "design_points",
    "nearest",
    "resized",
]

# Factor to level to the dotted fields that the level changes.
Factors = Mapping[str, Mapping[str, Mapping[str, Any]]]
S = TypeVar("S", bound="DataclassInstance")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]*")


def check_factors(factors: Factors) -> None:
    """Refuse factors that give no arms, or arms that could not be named.

    Raises
    ------
    ValueError
        If there is no factor, a factor has no level, or a name has other characters.
    """
    if not factors or any(not levels for levels in factors.values()):
        raise ValueError("factors must hold at least one factor, each with at least one level.")
    for factor, levels in factors.items():
        for name in (factor, *levels):
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot name a factor or level; use letters, digits, '_', '.' and '+'."
                )


def check_changes(changes: Iterable[str], factors: Factors, space: Iterable[str]) -> None:
    """Refuse to change a field of the base experiment that the arms, or their tuning, vary.

    Raises
    ------
    ValueError
        If one of `changes`, dotted fields, is set by a level of `factors` or is in the tuning `space`.
    """
    owners = {
        dotted: f"factor {factor!r}"
        for factor, levels in factors.items()
        for own in levels.values()
        for dotted in own
    }
    owners |= dict.fromkeys(space, "the tuning space")
    for dotted in changes:
        for owned, owner in owners.items():
            if f"{dotted}.".startswith(f"{owned}."):
                what = "it" if dotted == owned else owned
                raise ValueError(f"{dotted} cannot be set: {what} is varied by {owner} of this study.")


def chosen_levels(factors: Factors, wanted: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the factors with, for each factor in `wanted`, those levels alone.

    Raises
    ------
    ValueError
        If there is no such factor or level.
    """
    chosen: dict[str, Any] = dict(factors)
    for factor, levels in wanted.items():
        if factor not in factors:
            raise ValueError(f"unknown factor {factor!r}. {nearest(factor, factors)}")
        for level in levels:
            if level not in factors[factor]:
                raise ValueError(
                    f"factor {factor!r} has no level {level!r}. {nearest(level, factors[factor])}"
                )
        chosen[factor] = {level: factors[factor][level] for level in levels}
    return chosen


def crossed(factors: Factors) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Yield name, levels and changed fields of every combination of levels, in the order of declaration.

    Raises
    ------
    ValueError
        If two factors change the same field.
    """
    names = list(factors)
    for levels in itertools.product(*(list(factors[factor]) for factor in names)):
        changes: dict[str, Any] = {}
        for factor, level in zip(names, levels, strict=True):
            for dotted, value in factors[factor][level].items():
                if dotted in changes:
                    raise ValueError(f"{dotted} is set by factor {factor!r} and by another factor.")
                changes[dotted] = value
        chosen = dict(zip(names, levels, strict=True))
        name = "-".join(
            f"{factor}_{level}" if level[0].isdigit() else level for factor, level in chosen.items()
        )
        yield name, chosen, changes


def design_points(space: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the product of the values of a tuning space, in a fixed order."""
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def nearest(name: str, known: Collection[str]) -> str:
    """Return what to choose instead of an unknown name."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return (f"Did you mean {near[0]!r}? " if near else "") + f"Choose one of {', '.join(known)}."


def resized(study: S, values: Mapping[str, Any]) -> S:
    """Return a copy of a frozen study with other values, without the checks that it was declared with."""
    copy = object.__new__(type(study))
    every = {item.name: getattr(study, item.name) for item in dataclasses.fields(study)}
    for name, value in {**every, **values}.items():
        object.__setattr__(copy, name, value)
    return copy
