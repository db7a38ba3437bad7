"""The fits of a walk-forward forecaster on disk: one folder a fit, and a note of when each was made."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fints.forecaster import Forecaster
from fints.forecaster import load as load_forecaster

__all__ = ["SPEC", "SUCCESSES", "Members", "Refit", "keep_fit", "kept_fit", "read_refits", "write_refits"]

FORMAT_VERSION = 1
SPEC = "walk_forward.json"
SETTINGS = ("refit_every", "train_days", "validation", "num_seeds")
SUCCESSES = ("finished", "stopped_early")
Members = dict[dt.date, list[Forecaster]]


@dataclass(frozen=True, kw_only=True)
class Refit:
    """One fit of one seed.

    It was made before the close of `first`, from the rows dated `as_of` or earlier, and forecasts
    from `first` on until the next refit. `outcome` and `reason` are those of `FitResult`.
    """

    first: dt.date
    as_of: dt.date
    seed: int
    outcome: str
    reason: str

    @property
    def name(self) -> str:
        """The fit's folder."""
        return f"{self.first.isoformat()}-seed-{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads, JSON-able."""
        return {
            name: value.isoformat() if isinstance(value, dt.date) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Refit:
        """Rebuild a refit from `to_dict`."""
        return cls(
            first=dt.date.fromisoformat(tree["first"]),
            as_of=dt.date.fromisoformat(tree["as_of"]),
            seed=int(tree["seed"]),
            outcome=str(tree["outcome"]),
            reason=str(tree["reason"]),
        )


def write_refits(
    path: Path,
    settings: Mapping[str, Any],
    refits: Sequence[Refit],
    members: Mapping[dt.date, list[Forecaster]],
) -> Path:
    """Write all fits to `path`, whole or not at all; an older saved walk there is replaced.

    Raises
    ------
    ValueError
        If `path` exists and is no saved walk-forward forecaster.
    """
    if path.exists() and not (path / SPEC).is_file():
        raise ValueError(f"{path} exists and is not a saved walk-forward forecaster; choose another path.")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    made = {(refit.first, refit.seed): refit.name for refit in refits}
    try:
        for first, fitted in members.items():
            for member in fitted:
                member.save(fresh / made[first, member.seed])
        spec = {
            "format_version": FORMAT_VERSION,
            **{name: settings[name] for name in SETTINGS},
            "refits": [refit.to_dict() for refit in refits],
        }
        (fresh / SPEC).write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
        fresh.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        fresh.replace(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return path


def read_refits(path: Path) -> tuple[dict[str, Any], list[Refit], Members]:
    """Return settings, refits and fitted members of a folder written by `write_refits`.

    Raises
    ------
    ValueError
        If the folder is missing, foreign, damaged, or of another format.
    """
    if not (path / SPEC).is_file():
        raise ValueError(f"{path} is not a saved walk-forward forecaster: it holds no {SPEC}.")
    try:
        spec = json.loads((path / SPEC).read_text(encoding="utf-8"))
        version = spec["format_version"]
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{path} has format version {version}; this fints reads version {FORMAT_VERSION}. "
                "Install the fints that wrote it."
            )
        refits = [Refit.from_dict(row) for row in spec["refits"]]
        settings = {name: spec[name] for name in SETTINGS}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path / SPEC} is damaged ({error!r}); save the forecaster again.") from error
    members: Members = {refit.first: [] for refit in refits}
    wanted = [refit for refit in refits if refit.outcome in SUCCESSES]
    known = {SPEC, *(refit.name for refit in wanted)}
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in known)
    if strangers:
        raise ValueError(
            f"{path} must hold {SPEC} and the fits that it names only; got also {', '.join(strangers)}. "
            "Remove what does not belong."
        )
    for refit in wanted:
        members[refit.first].append(load_forecaster(path / refit.name))
    if not members or not all(members.values()):
        raise ValueError(f"{path / SPEC} is damaged (a refit has no fit); save the forecaster again.")
    return settings, refits, members


def keep_fit(place: Path, fitted: Forecaster | None, refit: Refit) -> None:
    """Keep one fit (None: it failed) at `place`; the note beside it is there when the fit is whole."""
    if fitted is not None:
        if place.exists():
            shutil.rmtree(place)
        fitted.save(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    note = place.with_suffix(".json")
    part = note.with_suffix(".part")
    part.write_text(json.dumps(refit.to_dict()) + "\n", encoding="utf-8")
    # Last and at once: where the note is, the fit is whole.
    part.replace(note)


def kept_fit(place: Path) -> tuple[Forecaster | None, str, str] | None:
    """Return a kept fit (None for one that failed), its outcome and reason; None if it is not whole."""
    note = place.with_suffix(".json")
    if not note.is_file():
        return None
    try:
        told = json.loads(note.read_text(encoding="utf-8"))
        outcome, reason = str(told["outcome"]), str(told["reason"])
        return (load_forecaster(place) if outcome in SUCCESSES else None), outcome, reason
    except (ValueError, KeyError, TypeError):
        # Fitting again gives the same bits; a damaged fit is never taken for one that failed.
        return None
