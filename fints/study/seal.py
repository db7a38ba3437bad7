"""Sealed dates are read by one run: when that was is written down, and a second one is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.config import fingerprint
from fints.study.publish import place_of

if TYPE_CHECKING:
    from fints.study.plan import Plan

__all__ = ["break_seal", "carry_record", "record_of", "require_record", "seal_results", "sealed_note"]

# Where the fits are published: to be committed with the answer.
RECORD = "opened.json"


def record_of(beside: Path, preset: str) -> Path:
    """Return where it is written that a preset of the study in the file `beside` has read sealed dates."""
    return place_of(beside, preset) / RECORD


def break_seal(plan: Plan, beside: Path, folder: Path, *, commit: str | None, changed: bool) -> None:
    """Write down that a plan reads sealed dates now, or refuse it; without sealed dates nothing happens.

    The same plan may go on where it was interrupted: its fits are the same to the last bit. Any other one
    would choose, with what the first has shown, on dates that were to be seen once.

    Parameters
    ----------
    plan : Plan
        What is about to run.
    beside : Path
        The study's file.
    folder : Path
        Of the study's results, which gets a copy for its report.
    commit : str or None
        That of the clone.
    changed : bool
        Whether the command line changes the study or its data.

    Raises
    ------
    ValueError
        If the study is not as declared, no commit holds it, or another plan has read the sealed dates.
    """
    if not plan.study.opens_seal:
        return
    if changed:
        raise ValueError(
            f"preset {plan.preset} reads sealed dates, so it runs as declared: leave out --set and --data."
        )
    if commit is None:
        raise ValueError(
            f"preset {plan.preset} reads sealed dates, so its record must name a commit: run it from a clone."
        )
    record = record_of(beside, plan.preset)
    now = {"design": fingerprint(plan.spec()), "commit": commit}
    told = read_record(record)
    if told is None:
        told = {**now, "opened": datetime.now(UTC).isoformat(timespec="seconds"), "results": None}
        record.parent.mkdir(parents=True, exist_ok=True)
        # A second process that comes at the same moment finds the file there.
        with record.open("x", encoding="utf-8") as stream:
            stream.write(_text(told))
    elif told["design"] != now["design"]:
        raise ValueError(
            f"the sealed dates were read on {told['opened']} by commit {told['commit']}, with another study, "
            "data or code than is here now. They can be read once: see the report of that run, or check "
            f"that commit out to repeat it ({record} tells of it)."
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).write_text(_text(told), encoding="utf-8")


def require_record(plan: Plan, beside: Path) -> dict[str, Any] | None:
    """Return the record that committed fits of a plan need, None where nothing is sealed.

    Raises
    ------
    ValueError
        If they have read sealed dates and there is no record of it.
    """
    if not plan.study.opens_seal:
        return None
    record = record_of(beside, plan.preset)
    told = read_record(record)
    if told is None:
        raise ValueError(
            f"the committed fits of preset {plan.preset} have read sealed dates, and {record}, which tells "
            "when, is missing: restore it from its commit."
        )
    return told


def carry_record(plan: Plan, beside: Path, folder: Path) -> None:
    """Copy the record of a seal that was broken, if any, to `folder`, for a report from committed fits."""
    told = read_record(record_of(beside, plan.preset)) if plan.study.opens_seal else None
    if told is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).write_text(_text(told), encoding="utf-8")


def seal_results(plan: Plan, beside: Path, folder: Path) -> None:
    """Write down what the sealed dates said; refuse forecasts other than those that were written down.

    Raises
    ------
    ValueError
        If the record has other forecasts.
    """
    if not plan.study.opens_seal:
        return
    record = record_of(beside, plan.preset)
    told, found = read_record(record), _digest(folder / "forecasts.parquet")
    assert told is not None
    if told["results"] is None and _whole(plan, folder):
        record.write_text(_text({**told, "results": found}), encoding="utf-8")
    elif told["results"] not in (None, found):
        raise ValueError(
            f"the forecasts of the sealed dates are not those that {record} has written down: a second "
            "reading is no test. Check out the commit it names, on the same kind of machine, to repeat it."
        )


def sealed_note(folder: Path) -> dict[str, Any]:
    """Return what a report tells of the seal under "opened"; nothing where no seal was broken."""
    told = read_record(folder / RECORD)
    return {} if told is None else {"opened": {name: told[name] for name in ("opened", "commit")}}


def read_record(path: Path) -> dict[str, Any] | None:
    """Return a record, None if there is none.

    Raises
    ------
    ValueError
        If it cannot be read: it is not taken for a seal that is whole.
    """
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {name: told[name] for name in ("design", "commit", "opened", "results")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path} tells when sealed dates were read and cannot be read itself: restore it from its commit."
        ) from None


def _whole(plan: Plan, folder: Path) -> bool:
    """Tell whether every final fit is in the tables: half of them would be no result to hold on to."""
    import polars as pl

    fits = pl.read_parquet(folder / "fits.parquet", columns=["role"])
    return int((fits["role"] == "final").sum()) == plan.num_fits()["final"]


def _digest(path: Path) -> str:
    """Return a hash of the forecasts themselves, which a release of a library does not change."""
    import polars as pl

    keys = ["arm", "fold", "seed", "date", "asset"]
    frame = pl.read_parquet(path, columns=[*keys, "forecast"]).sort(keys)
    known = hashlib.sha256(frame.select(keys).write_csv().encode())
    known.update(frame["forecast"].fill_null(float("nan")).to_numpy().astype("<f8").tobytes())
    return known.hexdigest()[:16]


def _text(told: Mapping[str, Any]) -> str:
    return json.dumps(told, indent=1, sort_keys=True) + "\n"
