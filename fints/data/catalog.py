"""Datasets by name: those shipped with fints, then those in the user's folder."""

from __future__ import annotations

import datetime as dt
import difflib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fints.data.panel import Panel
from fints.data.sources import read
from fints.data.synthetic import Simulation

__all__ = [
    "Card",
    "card",
    "datasets",
    "home",
    "is_bundled",
    "is_dataset",
    "load",
    "planted_signal",
    "seal",
    "store",
    "store_simulation",
]

SUFFIXES = (".csv", ".csv.gz", ".txt", ".parquet", ".feather", ".arrow", ".xlsx")
SIGNAL = "signal.parquet"
# So many equal prices on equal dates are no coincidence.
SEALED_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known of a dataset: where it comes from, what may be done with it, what is wrong with it.

    Attributes
    ----------
    name, title, origin, licence : str
        `origin` says who made the numbers and how this file was made from them.
    span : tuple of date
        First and last date.
    assets : tuple of str
        Their names.
    rows : int
        Number of rows.
    faults : tuple of str
        Known faults, a sentence each.
    checksum : str
        `Panel.checksum` of the content.
    sealed_from : date or None
        From this date on no study reads the panel, except a final one.
    path : Path
        The parquet file.
    repairs : tuple of str
        What was done to the values when they were imported, a sentence each.
    """

    name: str
    title: str
    origin: str
    licence: str
    span: tuple[dt.date, dt.date]
    assets: tuple[str, ...]
    rows: int
    faults: tuple[str, ...]
    checksum: str
    sealed_from: dt.date | None
    path: Path
    repairs: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the card as JSON-able values, without the path; repairs where there are any."""
        fields: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "origin": self.origin,
            "licence": self.licence,
            "span": [day.isoformat() for day in self.span],
            "assets": list(self.assets),
            "rows": self.rows,
            "faults": list(self.faults),
            "checksum": self.checksum,
            "sealed_from": None if self.sealed_from is None else self.sealed_from.isoformat(),
        }
        return fields | ({"repairs": list(self.repairs)} if self.repairs else {})


def home() -> Path:
    """Return the folder of everything fints keeps for a user: FINTS_HOME, else the platform's data folder."""
    if chosen := os.environ.get("FINTS_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "fints"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data).expanduser() if data else Path.home() / ".local" / "share") / "fints"


def datasets() -> list[Card]:
    """Return the cards of all datasets, the bundled ones first, each group by name."""
    return [_read_card(folder) for folder in _folders().values()]


def is_dataset(name: str) -> bool:
    """Tell whether a dataset, bundled or the user's, has this name."""
    return name in _folders()


def is_bundled(name: str) -> bool:
    """Tell whether a dataset of this name comes with fints."""
    return name in _bundled()


def card(name: str) -> Card:
    """Return the card of a dataset.

    Raises
    ------
    ValueError
        If there is none of that name; the known ones are listed.
    """
    folders = _folders()
    if name not in folders:
        raise ValueError(_unknown(name, list(folders)))
    return _read_card(folders[name])


def load(name_or_path: str | os.PathLike[str]) -> Panel:
    """Load a panel by the name of a dataset, or from a CSV or parquet file.

    >>> panel = load("sp500-20")
    >>> panel.assets[:3], str(panel.dates[0]), len(panel["2008-09-15":"2008-09-19"])
    (['AAPL', 'AMD', 'BAC'], '1995-01-03', 100)

    Raises
    ------
    ValueError
        If there is neither such a dataset nor such a file, the file cannot be read as a panel, or a dataset
        differs from the checksum on its card.
    """
    text = os.fspath(name_or_path)
    folders = _folders()
    if text in folders:
        described = _read_card(folders[text])
        panel = read(described.path, layout="long", name=described.name)
        if panel.checksum != described.checksum:
            raise ValueError(
                f"dataset {text}: {described.path} has checksum {panel.checksum}, its card says "
                f"{described.checksum}. "
                "The file was changed: restore it, or correct the card if the change was meant."
            )
        return panel
    path = Path(text).expanduser()
    if path.exists() or text.lower().endswith(SUFFIXES):
        return read(path)
    raise ValueError(_unknown(text, list(folders)))


def store(
    panel: Panel,
    name: str,
    *,
    title: str = "",
    origin: str = "",
    licence: str = "",
    faults: tuple[str, ...] = (),
    sealed_from: dt.date | None = None,
    repairs: tuple[str, ...] = (),
) -> Card:
    """Keep a panel as a dataset of the user's folder, so that ``load(name)`` and ``--data name`` find it.

    Raises
    ------
    ValueError
        If the name is that of a bundled dataset or cannot be a folder's name, or a feature has the price's.
    """
    if not name or name != Path(name).name or name.startswith(".") or set(name) & set('\\/:*?"<>|\0\n'):
        raise ValueError(f"a dataset's name must be usable as a folder's name; got {name!r}.")
    if panel.price != "close" and "close" in panel.feature_columns:
        raise ValueError(
            f"{name}: a dataset's price is its 'close', but the panel has {panel.price!r} as price and a "
            "feature "
            "'close' beside it. Drop or rename the feature."
        )
    if name in _bundled():
        raise ValueError(f"{name!r} is a bundled dataset; choose another name.")
    folder = home() / "datasets" / name
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link to somewhere else; remove it or choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "panel.parquet"
    kept = panel.frame if panel.price == "close" else panel.frame.rename({panel.price: "close"})
    # Whole or not at all: a reader never finds half a file.
    fresh = folder / ".panel.parquet"
    kept.write_parquet(fresh, compression="zstd")
    fresh.replace(path)
    # The signal of a simulation that had this name says nothing about these prices.
    (folder / SIGNAL).unlink(missing_ok=True)
    described = describe(
        Panel(kept, name=name),
        path,
        title=title,
        origin=origin,
        licence=licence,
        faults=faults,
        sealed_from=sealed_from,
        repairs=repairs,
    )
    (folder / "card.json").write_text(json.dumps(described.to_dict(), indent=2) + "\n", encoding="utf-8")
    return described


def store_simulation(simulation: Simulation, name: str, *, licence: str = "") -> Card:
    """Keep a simulated panel as a dataset, with the signal planted in it beside the prices.

    A study on such a dataset also shows what the oracle would have forecast, and how much of it
    each arm recovers. The card says which call makes it again; `licence` is that of a real panel it was made
    from.

    Raises
    ------
    ValueError
        As `store`.
    """
    described = store(
        simulation.panel,
        name,
        title=f"simulated, R2 of the oracle {simulation.oracle_r2:.3g}",
        origin=simulation.recipe,
        licence=licence,
    )
    kept = simulation.signal.select("date", "asset", "signal").sort("date", "asset")
    kept.write_parquet(described.path.with_name(SIGNAL), compression="zstd")
    return described


def planted_signal(name: str) -> pl.DataFrame | None:
    """Return `date`, `asset`, `signal` of a simulated dataset, None where no signal is known.

    The signal is the expected log return over the asset's next day, known at the close of `date`.

    Raises
    ------
    ValueError
        If the file beside the panel has other columns, repeats a key or holds a missing number.
    """
    folders = _folders()
    if name not in folders or not (path := folders[name] / SIGNAL).is_file():
        return None
    frame = pl.read_parquet(path)
    wanted = {"date": pl.Date, "asset": pl.String, "signal": pl.Float64}
    if dict(frame.schema) != wanted:
        raise ValueError(f"{path} must have the columns date, asset and signal; got {dict(frame.schema)}.")
    if frame.select("date", "asset").is_duplicated().any() or not frame["signal"].is_finite().all():
        raise ValueError(f"{path} must hold one finite number a date and asset; store the simulation again.")
    return frame.sort("date", "asset")


def seal(panel: Panel) -> dt.date | None:
    """Return the first sealed date of the bundled dataset that `panel` holds rows of, None if there is none.

    A seal is on the prices, not on a name: a copy in another file, under another name or with fewer
    assets is recognised by `SEALED_ROWS` rows of the same date, asset and price after the seal.
    """
    for folder in _bundled().values():
        described = _read_card(folder)
        if described.sealed_from is None:
            continue
        if panel.checksum == described.checksum:
            return described.sealed_from
        sealed = read(described.path, layout="long").frame.filter(pl.col("date") >= described.sealed_from)
        same = panel.frame.select("date", "asset", close=panel.price).join(
            sealed.select("date", "asset", "close"), on=["date", "asset", "close"], how="semi"
        )
        if len(same) >= SEALED_ROWS:
            return described.sealed_from
    return None


def describe(
    panel: Panel,
    path: Path,
    *,
    title: str = "",
    origin: str = "",
    licence: str = "",
    faults: tuple[str, ...] = (),
    sealed_from: dt.date | None = None,
    repairs: tuple[str, ...] = (),
) -> Card:
    """Return a card whose assets, rows, span and checksum are those of `panel`."""
    return Card(
        name=panel.name,
        title=title,
        origin=origin,
        licence=licence,
        span=(panel.dates[0], panel.dates[-1]),
        assets=tuple(panel.assets),
        rows=len(panel),
        faults=faults,
        checksum=panel.checksum,
        sealed_from=sealed_from,
        path=path,
        repairs=repairs,
    )


def _bundled() -> dict[str, Path]:
    package = Path(__file__).resolve().parent.parent
    # An installed wheel carries the datasets inside the package; a clone keeps them beside it.
    for root in (package / "_datasets", package.parent / "data"):
        if found := _in(root):
            return found
    return {}


def _folders() -> dict[str, Path]:
    bundled = _bundled()
    return bundled | {
        name: folder for name, folder in _in(home() / "datasets").items() if name not in bundled
    }


def _in(root: Path) -> dict[str, Path]:
    if not root.is_dir():
        return {}
    return {folder.name: folder for folder in sorted(root.iterdir()) if (folder / "panel.parquet").is_file()}


def _read_card(folder: Path) -> Card:
    path, file = folder / "panel.parquet", folder / "card.json"
    if not file.is_file():
        return describe(read(path, layout="long", name=folder.name), path, title="no card")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        sealed = fields.get("sealed_from")
        first, last = (dt.date.fromisoformat(day) for day in fields["span"])
        return Card(
            name=folder.name,
            title=fields.get("title", ""),
            origin=fields.get("origin", ""),
            licence=fields.get("licence", ""),
            span=(first, last),
            assets=tuple(fields["assets"]),
            rows=int(fields["rows"]),
            faults=tuple(fields.get("faults", ())),
            checksum=fields["checksum"],
            sealed_from=None if sealed is None else dt.date.fromisoformat(sealed),
            path=path,
            repairs=tuple(fields.get("repairs", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{file}: a card is a JSON table with span (two ISO dates), assets, rows, checksum; {error!r}. "
            "Correct it, or delete it and fints describes the panel itself."
        ) from error


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"no dataset and no file {name!r}.{hint} Datasets: {', '.join(known) or 'none'}. A file must end in "
        f"{', '.join(SUFFIXES)}; your own datasets live in {home() / 'datasets'}."
    )
