"""qlib's binary store: ``calendars/day.txt``, ``instruments/all.txt``, ``features/SYMBOL/FIELD.day.bin``.

A .bin file is little-endian float32 throughout; its first number is the place in the calendar, from 0, of its
second. NaN is missing. qlib's ``close`` is adjusted (``factor`` times the quoted price).

Source: microsoft/qlib, scripts/dump_bin.py and qlib/data/storage/file_storage.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fints.data.dates import parse_dates
from fints.data.readers.asking import Asking
from fints.data.readers.files import PLACE
from fints.data.readers.reading import Reading
from fints.words import counted

__all__ = ["read_qlib", "recognises_qlib"]

FREQUENCIES = ("day", "week", "month")


def recognises_qlib(folder: Path) -> bool:
    """Tell whether a folder has qlib's subfolders."""
    return (folder / "calendars").is_dir() and (folder / "features").is_dir()


def read_qlib(folder: Path, asking: Asking) -> Reading:
    """Read every field of every instrument.

    Raises
    ------
    ValueError
        With file, place, value and remedy.
    """
    frequency = next((one for one in FREQUENCIES if (folder / "calendars" / f"{one}.txt").is_file()), None)
    if frequency is None:
        raise ValueError(
            f"{folder}: needs calendars/day.txt (or week, month); got "
            f"{', '.join(_files(folder / 'calendars')) or 'an empty folder'}."
        )
    calendar = _calendar(folder / "calendars" / f"{frequency}.txt")
    listed = _instruments(folder / "instruments" / "all.txt")
    price = (asking.price or "close").casefold().removeprefix("$")
    frames, extra = [], []
    for path in sorted(folder / "features" / name for name in _names(folder / "features")):
        symbol = listed.get(path.name.casefold(), path.name.upper())
        if path.name.casefold() not in listed:
            extra.append(symbol)
        frames.append(_instrument(path, symbol, calendar, frequency, price))
    if not frames:
        raise ValueError(f"{folder}: features/ has no instrument with a file .{frequency}.bin.")
    long = pl.concat(frames, how="diagonal")
    missing = sorted(set(listed.values()) - {frame["asset"][0] for frame in frames if frame.height})
    notes = []
    if extra:
        notes.append(f"not in instruments/all.txt: {', '.join(extra[:5])}{' ...' if len(extra) > 5 else ''}")
    if missing:
        notes.append(f"listed without numbers: {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    return Reading.of(
        folder,
        long,
        unit="calendar line",
        layout="qlib",
        recognised=f"folder of qlib: {counted(len(frames), 'instrument')}, "
        f"{counted(len(calendar), 'date')} by {frequency}, price in {price!r}",
        price=price,
        notes=notes,
    )


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _calendar(path: Path) -> pl.Series:
    lines = _lines(path)
    places = pl.Series("place", [number for number, _ in lines], dtype=pl.Int64)
    days, _ = parse_dates(
        path, pl.Series("date", [text for _, text in lines], dtype=pl.String), places, "line"
    )
    back = (days.diff().dt.total_days() <= 0).fill_null(False).arg_true()
    if len(back):
        place = int(back[0])
        raise ValueError(
            f"{path}: line {places[place]}: {lines[place][1]!r} does not follow {lines[place - 1][1]!r}. "
            "The calendar must ascend."
        )
    return days


def _instruments(path: Path) -> dict[str, str]:
    """Return the name of each instrument by its folder's name; one may be listed several times."""
    if not path.is_file():
        return {}
    return {text.split("\t")[0].strip().casefold(): text.split("\t")[0].strip() for _, text in _lines(path)}


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as text ({error}).") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{path}: is empty.")
    return lines


def _instrument(path: Path, symbol: str, calendar: pl.Series, frequency: str, price: str) -> pl.DataFrame:
    """Return the rows of one instrument on which any field has a number; all, if none has a price."""
    fields: dict[str, np.ndarray] = {}
    for file in sorted(path.glob(f"*.{frequency}.bin")):
        fields[file.name.removesuffix(f".{frequency}.bin")] = _field(file, len(calendar))
    if price not in fields:
        raise ValueError(
            f"{path}: has no {price}.{frequency}.bin; there are {', '.join(fields) or 'no fields'}. Name "
            "the price with price=."
        )
    frame = pl.DataFrame({"date": calendar, "asset": symbol} | fields, nan_to_null=True)
    frame = frame.with_row_index(PLACE, offset=1).with_columns(pl.col(PLACE).cast(pl.Int64))
    if frame[price].is_not_null().any():
        frame = frame.filter(pl.any_horizontal(pl.col(*fields).is_not_null()))
    return frame


def _field(path: Path, num_dates: int) -> np.ndarray:
    """Return a field over the whole calendar, NaN where the file has nothing."""
    size = path.stat().st_size
    if size < 4 or size % 4:
        raise ValueError(
            f"{path}: has {counted(size, 'byte')}; float32 numbers, the first a place in the calendar, need "
            "a multiple of 4. The file was cut short: dump it again."
        )
    if size > 4 * (num_dates + 1):
        raise ValueError(
            f"{path}: has {counted(size // 4 - 1, 'number')}, the calendar {counted(num_dates, 'date')}. "
            "The calendar is not this "
            "file's."
        )
    values = np.fromfile(path, dtype="<f4").astype(np.float64)
    start, values = values[0], values[1:]
    if not (start >= 0 and start == np.floor(start) and start + len(values) <= num_dates):
        raise ValueError(
            f"{path}: number 1 is {start:g}, the place of the first value in the calendar of "
            f"{counted(num_dates, 'date')}, with {counted(len(values), 'value')} to follow: they do not "
            "fit. Dump it again."
        )
    whole = np.full(num_dates, np.nan)
    whole[int(start) : int(start) + len(values)] = values
    return whole
