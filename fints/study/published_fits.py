"""The fits of a study in time as small parquet files that can be committed beside its file, and back.

``published/NAME/PRESET-DATASET/`` beside NAME.py holds all that its fits wrote but their weights:

========================  ==========================================================================
``fits.parquet``          a row a fit: key, design, which fit it is, what made it, its JSON files
``forecasts.parquet``     a row a (fit, date, asset): the forecast, and what else is its own
``outcomes.parquet``      what is the same in many fits, once: the outcome of each (date, asset)
``history.parquet``       training curves; ``profile.parquet`` by sublayer, ``mixing.parquet`` by reader
``study.json``            the study, and a digest of each of these files; written last
========================  ==========================================================================

A network's forecast is a number in single precision times the fit's unit, the spread of its training
targets in double precision. So it is stored, where that gives the same double again: half the room.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.committed_tables import ANEW, read_study, read_table, write_tables
from fints.study.fits import WEIGHTS, Cell
from fints.study.origin import Made, origin_of
from fints.study.plan import loss_or_infinity
from fints.study.store import fit_json, fit_table

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "FORECASTS",
    "NOTHING",
    "SHARED",
    "Committed",
    "publish_fits",
    "read_committed",
]

TABLES = ("history", "profile", "mixing")
FORECASTS = "forecasts"
# Of a fit's forecasts, what other fits of its fold have alike.
SHARED = ("date", "asset", "realised", "unit_scale")
IDENTITY = ("key", "arm", "role", "fold", "seed", "point")
KEPT = ("key", "design", "arm", "role", "fold", "seed", "point", "sources", "torch", "device")


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Committed fits of one study, preset and dataset, by design.

    `spec` is the study as its last run told it (study.json), with commit and command.
    """

    place: Path = Path()
    spec: Mapping[str, Any] = field(default_factory=dict)
    fits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def loss(self, design: str) -> float | None:
        """Return the validation loss of a fit as tuning judges it, None without such a fit."""
        row = self.fits.get(design)
        return None if row is None else loss_or_infinity(json.loads(row["result"]))

    def made(self, design: str) -> Made | None:
        """Return what made a fit, None without such a fit."""
        row = self.fits.get(design)
        return None if row is None else Made.of(row)

    def tables(self) -> dict[str, dict[str, pl.DataFrame]]:
        """Return history, profile, mixing and forecasts, each by key, and outcomes by name.

        Raises
        ------
        ValueError
            If a file is no parquet.
        """
        import polars as pl

        found: dict[str, dict[str, pl.DataFrame]] = {}
        for name in (*TABLES, FORECASTS, "outcomes"):
            path = self.place / f"{name}.parquet"
            whole = (
                read_table(path) if path.is_file() else pl.DataFrame({"key": []}, schema={"key": pl.String})
            )
            parts = whole.partition_by("key", as_dict=True, maintain_order=True, include_key=False)
            found[name] = {str(key): part for (key,), part in parts.items()}
        return found


NOTHING = Committed()


def read_committed(place: Path, *, checksum: str) -> Committed:
    """Return the committed fits of a study; where nothing is committed there are none.

    Parameters
    ----------
    place : Path
        As `publish.place_of` gives it.
    checksum : str
        Of the panel that the study is on here.

    Raises
    ------
    ValueError
        If a file is not the one that was published, the fits are of another panel, or a newer fints wrote
        them.
    """
    spec = read_study(place)
    if spec is None:
        return Committed(place=place)
    panel = spec.get("checksum")
    if panel != checksum:
        raise ValueError(
            f"the fits in {place} must be of the panel that is here (checksum {checksum}), and are of "
            f"another ({panel}): get the panel they were made on, {ANEW}."
        )
    rows = read_table(place / "fits.parquet").to_dicts()
    return Committed(place=place, spec=spec, fits={row["design"]: row for row in rows})


def publish_fits(
    place: Path,
    *,
    spec: Mapping[str, Any],
    cells: Sequence[tuple[Cell, str]],
    fits: Path,
    unit: Callable[[Cell], float] = lambda cell: 1.0,
    before: Committed = NOTHING,
) -> int:
    """Write finished fits where they can be committed, in place of those that lie there.

    Parameters
    ----------
    place : Path
        As `publish.place_of` gives it.
    spec : mapping
        The study as the run of these fits told it (study.json), with commit and command.
    cells : sequence of (Cell, str)
        Finished ones, each with its design.
    fits : Path
        Where their folders lie.
    unit : callable
        A cell to the unit of its forecasts, asked for fits without weights that are in no other fit's unit.
    before : Committed
        What lies there: fits keep their order, and those that come later stand behind them.

    Returns
    -------
    int
        The number of fits written, baselines among them.

    Raises
    ------
    DamagedFit
        If a file of a fit is not as it was written; nothing is written then.
    """
    order = {design: number for number, design in enumerate(before.fits)}
    by_design = {design: cell for cell, design in cells}
    ordered = sorted(by_design.items(), key=lambda one: (order.get(one[0], len(order)), *_natural(one[1])))
    known = (row["unit"] for row in before.fits.values() if row["unit"] is not None)
    writing = _Writing(spec, unit, known)
    for design, cell in ordered:
        writing.add(cell, design, fits / cell.key)
    write_tables(place, writing.tables(), spec)
    return len(ordered)


class _Writing:
    """Tables that grow by one fit after another."""

    def __init__(
        self, spec: Mapping[str, Any], unit: Callable[[Cell], float], units: Iterable[float]
    ) -> None:
        self._spec, self._unit = spec, unit
        self._rows: list[dict[str, Any]] = []
        self._tables: dict[str, list[pl.DataFrame]] = {name: [] for name in (*TABLES, FORECASTS)}
        self._outcomes: list[pl.DataFrame] = []
        self._units: dict[float, None] = dict.fromkeys([1.0, *units])

    def add(self, cell: Cell, design: str, folder: Path) -> None:
        """Add a finished fit."""
        import polars as pl

        told = fit_json(folder, "result.json")
        result = {name: value for name, value in told.items() if name not in IDENTITY}
        timing = fit_json(folder, "timing.json")
        # Whose machine it was is nobody's business.
        timing.pop("host", None)
        scored = cell.role != "baseline"
        made = origin_of(folder) or Made(
            key=cell.key,
            # Those of a baseline are not those of the fits, and stand in its key alone.
            sources=self._spec["sources"] if scored else "",
            torch=self._spec["torch"],
            device=self._spec["device"],
        )
        schemas: dict[str, list[list[str]]] = {}
        for name in TABLES:
            frame = fit_table(folder, f"{name}.parquet")
            if frame is not None:
                schemas[name] = _schema(frame)
                self._tables[name].append(frame.select(pl.lit(made.key).alias("key"), pl.all()))
        unit, outcomes = None, None
        forecasts = fit_table(folder, f"{FORECASTS}.parquet")
        if forecasts is not None:
            schemas[FORECASTS] = _schema(forecasts)
            shared = [name for name in forecasts.columns if name in SHARED]
            outcomes = self._name(forecasts.select(shared))
            own = forecasts.drop("realised", "unit_scale", strict=False)
            unit, frame = self._in_units(own, cell, folder)
            self._tables[FORECASTS].append(frame.select(pl.lit(made.key).alias("key"), pl.all()))
        self._rows.append(
            {
                **{name: getattr(cell, name) for name in ("arm", "role", "fold", "seed")},
                **made.to_dict(),
                "design": design,
                "point": _text(cell.point),
                "result": _text(result),
                "timing": _text(timing),
                "metrics": _text(fit_json(folder, "metrics.json")) if scored else None,
                "schemas": _text(schemas),
                "unit": unit,
                "outcomes": outcomes,
            }
        )

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return all tables by name, those without a row left out."""
        import polars as pl

        whole = {
            name: pl.concat(frames, how="diagonal_relaxed") for name, frames in self._tables.items() if frames
        }
        if self._outcomes:
            whole["outcomes"] = pl.concat(
                [
                    frame.select(pl.lit(str(number)).alias("key"), pl.all())
                    for number, frame in enumerate(self._outcomes)
                ],
                how="diagonal_relaxed",
            )
        more = ("result", "timing", "metrics", "schemas", "unit", "outcomes")
        numbers = {"fold": pl.Int64, "seed": pl.Int64, "unit": pl.Float64}
        schema = {name: numbers.get(name, pl.String) for name in (*KEPT, *more)}
        return {"fits": pl.DataFrame(self._rows, schema=schema, orient="row"), **whole}

    def _name(self, outcomes: pl.DataFrame) -> str:
        """Return the name of these outcomes, which are kept once."""
        for number, known in enumerate(self._outcomes):
            if known.schema == outcomes.schema and known.equals(outcomes):
                return str(number)
        self._outcomes.append(outcomes)
        return str(len(self._outcomes) - 1)

    def _in_units(self, frame: pl.DataFrame, cell: Cell, folder: Path) -> tuple[float | None, pl.DataFrame]:
        """Return a unit in which forecasts are numbers in single precision, if any, and the table in it."""
        import polars as pl

        for unit in self._candidates(cell, folder):
            single = frame.select((pl.col("forecast") / unit).cast(pl.Float32))["forecast"]
            if (single.cast(pl.Float64) * unit).equals(frame["forecast"]):
                self._units.setdefault(unit)
                return unit, frame.with_columns(single.alias("scaled")).drop("forecast")
        return None, frame

    def _candidates(self, cell: Cell, folder: Path) -> Iterator[float]:
        """Yield units that a fit's forecasts may be in: its own, those of others, the one computed."""
        told = folder / WEIGHTS / "forecaster.json"
        if told.is_file():
            yield float(json.loads(told.read_text(encoding="utf-8"))["target_std"])
        yield from list(self._units)
        if not told.is_file() and cell.role != "baseline":
            yield self._unit(cell)


def _natural(cell: Cell) -> tuple[Any, ...]:
    return (cell.role == "baseline", cell.arm, cell.role != "tuning", cell.fold, cell.seed, _text(cell.point))


def _schema(frame: pl.DataFrame) -> list[list[str]]:
    return [[name, str(kind)] for name, kind in frame.schema.items()]


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
