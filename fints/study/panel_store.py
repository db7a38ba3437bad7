"""What the fits of a panel study left: read from a run's folder and from what was committed before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.committed_tables import read_study, read_table, write_tables
from fints.study.panel_cells import PanelFit
from fints.study.publish import place_of
from fints.study.store import fit_bytes, fit_json

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Fits", "committed", "gather", "publish_fits"]

# As `place_of` gives their folder.
FITS, ROWS = "fits.parquet", "rows.parquet"


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Finished fits.

    `table` has a row a fit: its key, arm, role, panel, point, and what it is judged by; `rows` what was
    watched in the final ones: ``key, step, layer, measure, value``. `missing` counts fits not yet there.
    """

    table: pl.DataFrame
    rows: pl.DataFrame
    missing: int

    def of(self, arm: str, *, role: str = "final") -> pl.DataFrame:
        """Return the fits of an arm, by panel."""
        import polars as pl

        return self.table.filter((pl.col("arm") == arm) & (pl.col("role") == role)).sort("panel")

    def watched(self, table: pl.DataFrame, panels: Sequence[int]) -> pl.DataFrame:
        """Return what was measured after the start in those fits of `table` that are of these panels.

        Rows as in `rows`, with the panel; what has no value is left out.
        """
        import polars as pl

        own = table.filter(pl.col("panel").is_in(list(panels))).select("key", "panel")
        return self.rows.filter(pl.col("step") > 0).drop_nulls("value").join(own, on="key")


def committed(beside: Path, preset: str) -> dict[str, dict[str, Any]]:
    """Return the committed fits of a study by design: ``result`` and ``rows``.

    Raises
    ------
    ValueError
        If a file is not the one that was published, or a newer fints wrote them.
    """
    folder = place_of(beside, preset)
    if read_study(folder) is None:
        return {}
    found: dict[str, dict[str, Any]] = {
        row["design"]: {"result": {**row, "point": json.loads(row["point"])}, "rows": []}
        for row in read_table(folder / FITS).iter_rows(named=True)
    }
    by_key = {one["result"]["key"]: one["rows"] for one in found.values()}
    for row in read_table(folder / ROWS).iter_rows(named=True):
        by_key[row.pop("key")].append(row)
    return found


def gather(cells: Iterable[PanelFit], fits: Path, known: Mapping[str, Mapping[str, Any]]) -> Fits:
    """Return those of `cells` that are in the folder `fits`, or else among the committed ones."""
    import polars as pl

    table, rows, missing = [], [], 0
    for cell in cells:
        folder = fits / cell.key
        if folder.is_dir():
            result, timing = fit_json(folder, "result.json"), fit_json(folder, "timing.json")
            result |= {name: timing[name] for name in ("started", "seconds")}
            rows_written = fit_bytes(folder, "rows.json")
            own = json.loads(rows_written) if rows_written is not None else []
        elif cell.design in known:
            result, own = dict(known[cell.design]["result"]), known[cell.design]["rows"]
        else:
            missing += 1
            continue
        # The arm's name may have changed since; what it is has not.
        table.append(
            {
                **result,
                "arm": cell.arm,
                "design": cell.design,
                "point": json.dumps(result["point"], sort_keys=True),
            }
        )
        rows += [{"key": result["key"], **row} for row in own]
    schema = {
        "key": pl.String,
        "step": pl.Int64,
        "layer": pl.Int64,
        "measure": pl.String,
        "value": pl.Float64,
    }
    return Fits(
        table=pl.DataFrame(table, infer_schema_length=None) if table else pl.DataFrame(),
        rows=pl.DataFrame(rows, schema=schema, infer_schema_length=None),
        missing=missing,
    )


def publish_fits(found: Fits, beside: Path, preset: str, *, spec: Mapping[str, Any]) -> Path:
    """Write the fits where they can be committed, numbers of the watched rows in single precision.

    `spec` is the study's, kept without its arms, which are many and stand in the study's file.
    """
    import polars as pl

    folder = place_of(beside, preset)
    rows = found.rows.sort("key", "measure", "step", "layer").with_columns(pl.col("value").cast(pl.Float32))
    tables = {"fits": found.table.sort("arm", "role", "panel", "point", "seed"), "rows": rows}
    write_tables(folder, tables, {name: value for name, value in spec.items() if name != "arms"})
    return folder
