"""The tables of a study, made from its finished fits: sorted, whole, the same whoever ran them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.fits import Cell, read_result
from fints.study.origin import origin_of
from fints.study.store import digest, fit_json, fit_table, write_json

if TYPE_CHECKING:
    import polars as pl

__all__ = ["STAMP", "arm_rows", "assemble", "mean_profile", "table_spec"]

# The spec that the tables were made from, and their digests: written last, so it vouches for them.
STAMP = "tables.json"
TABLES = ("forecasts", "baselines", "profiles", "mixing", "history", "fits", "timing")
KEYS = ("arm", "role", "fold", "seed")


def assemble(
    folder: Path, cells: Sequence[Cell], spec: Mapping[str, Any], *, into: Path | None = None
) -> None:
    """Write forecasts, profiles, mixing matrices, fits and timing of `cells` as parquet under `folder`.

    `timing.parquet` alone differs between two runs of the same study.

    Parameters
    ----------
    folder : Path
        Of the study.
    cells : sequence of Cell
        Finished ones.
    spec : mapping
        What they are cells of; `table_spec` gives it back, with what made those that it did not make
        itself ("earlier"). A study that is killed here has no tables until the next run.
    into : Path, optional
        Another folder for the tables.

    Raises
    ------
    DamagedFit
        If a file of a fit is not as it was written; there are no tables then.
    """
    import polars as pl

    into = folder if into is None else into
    (into / STAMP).unlink(missing_ok=True)
    for name in TABLES:
        (into / f"{name}.parquet").unlink(missing_ok=True)

    ordered = sorted(
        cells, key=lambda cell: (cell.arm, cell.role, cell.fold, cell.seed, str(cell.point), cell.key)
    )
    final = [cell for cell in ordered if cell.role == "final"]
    forecasts = _stack(folder, final, "forecasts.parquet")
    if forecasts is not None:
        _write(forecasts.sort("arm", "fold", "seed", "date", "asset"), into / "forecasts.parquet")
    baselines = _stack(folder, [cell for cell in ordered if cell.role == "baseline"], "forecasts.parquet")
    if baselines is not None:
        _write(
            baselines.drop("arm", "seed").sort("baseline", "fold", "date", "asset"),
            into / "baselines.parquet",
        )
    fits = [cell for cell in ordered if cell.role != "baseline"]
    profiles = _stack(folder, final, "profile.parquet")
    if profiles is not None:
        order = [name for name in ("arm", "fold", "seed", "step", "layer") if name in profiles.columns]
        _write(profiles.sort(order, maintain_order=True), into / "profiles.parquet")
    mixing = _stack(folder, final, "mixing.parquet")
    if mixing is not None:
        _write(mixing.sort("arm", "fold", "seed", "reader", "source"), into / "mixing.parquet")
    history = _stack(folder, final, "history.parquet")
    if history is not None:
        _write(history.sort("arm", "fold", "seed", "step", maintain_order=True), into / "history.parquet")
    rows = [_fit_row(cell, read_result(folder / "fits" / cell.key)) for cell in fits]
    _write(pl.DataFrame(rows, infer_schema_length=None), into / "fits.parquet")
    times = [_time_row(cell, folder / "fits" / cell.key) for cell in ordered]
    _write(pl.DataFrame(times, infer_schema_length=None), into / "timing.parquet")
    written = [into / f"{name}.parquet" for name in TABLES]
    digests = {path.name: digest(path) for path in written if path.is_file()}
    write_json(into / STAMP, {"tables": digests, "spec": {**spec, **_earlier(folder, fits, spec)}})


def table_spec(folder: Path) -> dict[str, Any]:
    """Return the spec that the tables of a study's folder were made from.

    Raises
    ------
    ValueError
        If no run has ended there, or a table is not the one that it wrote.
    """
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        tables, spec = dict(stamp["tables"]), dict(stamp["spec"])
    except FileNotFoundError:
        raise ValueError(f"no run has ended in {folder}, which holds no tables to report.") from None
    except (OSError, ValueError, TypeError, KeyError):
        raise ValueError(f"{folder / STAMP} cannot be read; run again, finished fits are kept.") from None
    for name, wanted in tables.items():
        path = folder / name
        if not path.is_file() or digest(path) != wanted:
            fault = "is not the one that the last run wrote" if path.is_file() else "is missing"
            raise ValueError(f"{path} {fault}; run again, finished fits are kept.")
    return spec


def arm_rows(fits: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return result.json of each cell with its test "metrics" and "seconds" beside."""
    rows = []
    for cell in cells:
        folder = fits / cell.key
        row = read_result(folder)
        row["metrics"] = fit_json(folder, "metrics.json")
        row["seconds"] = fit_json(folder, "timing.json")["seconds"]
        rows.append(row)
    return rows


def mean_profile(fits: Path, cells: Sequence[Cell]) -> dict[str, list[tuple[int, float]]]:
    """Return each measure of one arm's last profiles by sublayer, as the report has it."""
    import polars as pl

    from fints.study.cells import final_fits
    from fints.study.summaries import mean_profiles

    final = [cell for cell in cells if cell.role == "final"]
    profiles = _stack(fits.parent, final, "profile.parquet")
    arm = {"name": final[0].arm}
    rows = [_fit_row(cell, read_result(fits / cell.key)) for cell in final]
    spec = {
        "arms": [arm],
        "folds": [{"index": fold} for fold in sorted({cell.fold for cell in final})],
        "seeds": sorted({cell.seed for cell in final}),
    }
    table = mean_profiles(spec, profiles, final_fits(spec, pl.DataFrame(rows, infer_schema_length=None)))
    found: dict[str, list[tuple[int, float]]] = {}
    for measure, layer, mean in table.select("measure", "layer", "mean").rows():
        found.setdefault(measure, []).append((layer, mean))
    return found


def _stack(folder: Path, cells: Sequence[Cell], name: str) -> pl.DataFrame | None:
    import polars as pl

    frames = []
    for cell in cells:
        frame = fit_table(folder / "fits" / cell.key, name)
        if frame is not None:
            key = [pl.lit(cell.arm).alias("arm"), pl.lit(cell.fold, pl.Int64).alias("fold")]
            key.append(pl.lit(cell.seed, pl.Int64).alias("seed"))
            frames.append(frame.select(*key, pl.all()))
    return pl.concat(frames, how="diagonal_relaxed") if frames else None


def _earlier(folder: Path, fits: Sequence[Cell], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return under "earlier" what made the fits that other code, torch or device made, and how many each."""
    counts: dict[tuple[str, str, str], int] = {}
    for key in sorted({cell.key for cell in fits}):
        made = origin_of(folder / "fits" / key)
        if made is not None and not made.like(spec):
            name = made.sources, made.torch, made.device
            counts[name] = counts.get(name, 0) + 1
    told = [
        {"sources": sources, "torch": torch, "device": device, "fits": count}
        for (sources, torch, device), count in sorted(counts.items())
    ]
    return {"earlier": told} if told else {}


def _fit_row(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    point = {name.rsplit(".", 1)[-1]: value for name, value in cell.point.items()}
    told = ("outcome", "reason", "validation_loss", "best_step", "steps", "parameters")
    return {
        **{name: getattr(cell, name) for name in KEYS},
        **point,
        **{name: result[name] for name in told},
        "key": cell.key,
    }


def _time_row(cell: Cell, folder: Path) -> dict[str, Any]:
    timing = fit_json(folder, "timing.json")
    return {**{name: getattr(cell, name) for name in KEYS}, "key": cell.key, **timing}


def _write(frame: pl.DataFrame, path: Path) -> None:
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    # One row group, so that the bytes depend on the rows alone.
    frame.write_parquet(fresh, compression="zstd", row_group_size=max(len(frame), 1))
    os.replace(fresh, path)
