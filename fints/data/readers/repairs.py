"""What a caller may decide about a file: nothing else is repaired, and each repair says what it did."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, fields

import polars as pl

from fints.data.dates import DateRules
from fints.data.readers.files import PLACE
from fints.data.readers.reading import Reading
from fints.words import counted

__all__ = ["Factor", "Repairs", "repair"]

PRICE_COLUMNS = ("open", "high", "low", "close", "adj close", "adj_close", "vwap", "raw_close")


@dataclass(frozen=True)
class Factor:
    """Prices of one asset to be multiplied, such as 0.01 where pence stand among pounds.

    Attributes
    ----------
    asset : str
        Its name.
    factor : float
        Above 0.
    first, last : date or None
        The rows meant, both ends included; None leaves that end open.
    """

    asset: str
    factor: float
    first: dt.date | None = None
    last: dt.date | None = None

    def __post_init__(self) -> None:
        """Refuse a factor that no unit has."""
        if not 0 < self.factor < float("inf"):
            raise ValueError(f"a factor must be a number above 0; got {self.factor!r} for {self.asset!r}.")
        if self.first and self.last and self.first > self.last:
            raise ValueError(
                f"the factor of {self.asset!r} ends before it starts: {self.first}, {self.last}."
            )

    @classmethod
    def parse(cls, text: str) -> Factor:
        """Return the factor written ASSET=FACTOR, ASSET=FACTOR@FIRST or ASSET=FACTOR@FIRST..LAST (ISO dates).

        Raises
        ------
        ValueError
            If the text is none of these.
        """
        asset, sign, rest = text.rpartition("=")
        number, _, span = rest.partition("@")
        first, _, last = span.partition("..")
        try:
            if not sign or not asset:
                raise ValueError(text)
            days = [dt.date.fromisoformat(day) if day else None for day in (first, last)]
            return cls(asset, float(number), *days)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"a factor is written ASSET=FACTOR or ASSET=FACTOR@2001-02-03..2001-02-28; got {text!r}."
            ) from error


@dataclass(frozen=True, kw_only=True)
class Repairs:
    """Decisions about a file that only its owner can take; by default none.

    Attributes
    ----------
    drop : tuple of str
        Columns to leave out.
    date_order, century, excel_dates, time_zone
        See `fints.data.dates.DateRules`.
    duplicates : {"first", "last"} or None
        Which row of a repeated (date, asset) to keep.
    drop_live_bar : bool
        Leave out the last bar of an asset where it repeats the day, or all values, of the bar before it.
    percent : tuple of str
        Columns to be divided by 100.
    factors : tuple of Factor
        Prices to be multiplied.
    missing_prices : bool
        Prices of 0 or less, and infinite ones, are missing.
    drop_filled_holidays : bool
        Leave out dates on which every asset repeats its last price (two assets at least).
    drop_stale : int or None
        Leave out the repeats in runs of at least this many exact zero returns of an asset.
    total_loss : float or None
        Written for a simple return of exactly -1, from which no price is left: between -1 and 0.
    missing_delisting : float or None
        CRSP: return at a delisting for performance (code 500, 520 to 584) that has none, such as -0.3.
    """

    drop: tuple[str, ...] = ()
    date_order: str | None = None
    century: int | None = None
    excel_dates: bool = False
    time_zone: str | None = None
    duplicates: str | None = None
    drop_live_bar: bool = False
    percent: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()
    missing_prices: bool = False
    drop_filled_holidays: bool = False
    drop_stale: int | None = None
    total_loss: float | None = None
    missing_delisting: float | None = None

    def __post_init__(self) -> None:
        """Refuse decisions that mean nothing."""
        if self.duplicates not in (None, "first", "last"):
            raise ValueError(f"duplicates must be 'first' or 'last'; got {self.duplicates!r}.")
        if self.drop_stale is not None and self.drop_stale < 1:
            raise ValueError(f"drop_stale must be at least 1 zero return; got {self.drop_stale}.")
        for name in ("total_loss", "missing_delisting"):
            value = getattr(self, name)
            if value is not None and not -1 < value < 0:
                raise ValueError(f"{name} must lie between -1 and 0, such as -0.99; got {value}.")
        assert self.dates is not None

    @property
    def dates(self) -> DateRules:
        """The part of it that dates need."""
        return DateRules(
            order=self.date_order, century=self.century, excel=self.excel_dates, time_zone=self.time_zone
        )

    @property
    def named(self) -> tuple[str, ...]:
        """The names of the decisions taken."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) != field.default)


def repair(reading: Reading, repairs: Repairs) -> Reading:
    """Return the reading with the repairs made that concern a long frame, each told in `Reading.repairs`.

    Raises
    ------
    ValueError
        If a repair names a column or an asset that is not there.
    """
    # Rows go before returns are compounded: a repeated return would count twice.
    steps: list[tuple[bool, Callable[[Reading, Repairs], Reading]]] = [
        (repairs.missing_prices, _missing_prices),
        (bool(repairs.percent), _percent),
        (bool(repairs.factors), _factors),
        (repairs.drop_live_bar, _drop_live_bar),
        (repairs.duplicates is not None, _duplicates),
        (reading.returns is not None, _compound),
        (repairs.drop_filled_holidays, _drop_filled_holidays),
        (repairs.drop_stale is not None, _drop_stale),
    ]
    for wanted, step in steps:
        if wanted:
            reading = step(reading, repairs)
    if reading.frame.is_empty():
        raise ValueError(f"{reading.path}: the repairs leave no row. Ask for fewer.")
    return reading


def _compound(reading: Reading, repairs: Repairs) -> Reading:
    return reading.compounded(repairs.total_loss)


def _missing_prices(reading: Reading, repairs: Repairs) -> Reading:
    price = pl.col(reading.price)
    if reading.returns is not None:
        raise ValueError(f"{reading.path}: holds returns, not prices: missing_prices does not apply.")
    broken = (price <= 0) | price.is_infinite()
    rows = reading.placed.filter(broken)
    frame = reading.placed.with_columns(pl.when(broken).then(None).otherwise(price).alias(reading.price))
    return reading.with_frame(
        frame, f"{counted(rows.height, 'price')} not above 0 or infinite made missing{_first(reading, rows)}"
    )


def _percent(reading: Reading, repairs: Repairs) -> Reading:
    unknown = [column for column in repairs.percent if column not in reading.frame.columns]
    if unknown:
        raise ValueError(
            f"{reading.path}: no column {unknown[0]!r} to divide by 100; there are "
            f"{', '.join(map(repr, reading.frame.columns[2:]))}."
        )
    frame = reading.placed.with_columns(pl.col(*repairs.percent) / 100)
    return reading.with_frame(frame, f"divided by 100: {', '.join(repairs.percent)}")


def _factors(reading: Reading, repairs: Repairs) -> Reading:
    frame, said = reading.placed, []
    if reading.returns is not None:
        raise ValueError(f"{reading.path}: holds returns, not prices: a factor does not apply.")
    columns = [
        column
        for column in frame.columns
        if column == reading.price or column.casefold().replace(" ", "_") in PRICE_COLUMNS
    ]
    for factor in repairs.factors:
        meant = pl.col("asset") == factor.asset
        if factor.first is not None:
            meant &= pl.col("date") >= factor.first
        if factor.last is not None:
            meant &= pl.col("date") <= factor.last
        number = frame.filter(meant).height
        if not number:
            raise ValueError(
                f"{reading.path}: no row of asset {factor.asset!r} between {factor.first or 'the start'} "
                f"and {factor.last or 'the end'} to multiply. Check the name and the dates."
            )
        frame = frame.with_columns(
            pl.when(meant).then(pl.col(column) * factor.factor).otherwise(pl.col(column)).alias(column)
            for column in columns
        )
        said.append(
            f"{factor.asset}: {', '.join(columns)} times {factor.factor:g} in {counted(number, 'row')}, "
            f"{factor.first or 'start'} to {factor.last or 'end'}"
        )
    return reading.with_frame(frame, *said)


def _drop_live_bar(reading: Reading, repairs: Repairs) -> Reading:
    frame = reading.placed.sort("asset", "date", PLACE, maintain_order=True)
    values = [column for column in frame.columns if column not in ("date", "asset", PLACE)]
    last = pl.col(PLACE) == pl.col(PLACE).last().over("asset")
    repeated = pl.col("date") == pl.col("date").shift(1).over("asset")
    if len(values) > 1:
        repeated |= pl.all_horizontal(
            pl.col(column).eq_missing(pl.col(column).shift(1).over("asset")) for column in values
        ) & (pl.col("date").shift(1).over("asset").is_not_null())
    live = (last & repeated).fill_null(False)
    rows = frame.filter(live)
    return reading.with_frame(
        frame.filter(~live), f"{counted(rows.height, 'last bar')} left out as live{_first(reading, rows)}"
    )


def _duplicates(reading: Reading, repairs: Repairs) -> Reading:
    frame = reading.placed.sort(PLACE, maintain_order=True)
    keep = (
        pl.struct("date", "asset").is_first_distinct()
        if repairs.duplicates == "first"
        else pl.struct("date", "asset").is_last_distinct()
    )
    rows = frame.filter(~keep)
    return reading.with_frame(
        frame.filter(keep),
        f"{counted(rows.height, 'repeated row')} left out, the {repairs.duplicates} of each (date, asset) "
        f"kept{_first(reading, rows)}",
    )


def _moves(reading: Reading) -> pl.DataFrame:
    price = pl.col(reading.price)
    traded = reading.placed.sort("asset", "date", maintain_order=True)
    known = traded.filter(price.is_not_null()).with_columns(
        (price == price.shift(1).over("asset")).fill_null(False).alias("\0still")
    )
    return known.select("date", "asset", PLACE, "\0still")


def _drop_filled_holidays(reading: Reading, repairs: Repairs) -> Reading:
    still = _moves(reading).group_by("date").agg(pl.col("\0still").all(), pl.len().alias("\0assets"))
    filled = still.filter(pl.col("\0still") & (pl.col("\0assets") > 1)).select("date").sort("date")
    frame = reading.placed.join(filled, on="date", how="anti", maintain_order="left")
    shown = ", ".join(str(day) for day in filled["date"].head(5))
    return reading.with_frame(
        frame,
        f"{counted(filled.height, 'date')} left out on which every asset repeats its last price"
        + (f": {shown}{' ...' if filled.height > 5 else ''}" if shown else ""),
    )


def _drop_stale(reading: Reading, repairs: Repairs) -> Reading:
    least = repairs.drop_stale
    moves = _moves(reading).with_columns(pl.col("\0still").rle_id().over("asset").alias("\0run"))
    long = (pl.len().over("asset", "\0run") >= least) & pl.col("\0still")
    stale = moves.filter(long).select("date", "asset", PLACE)
    frame = reading.placed.join(stale, on=["date", "asset", PLACE], how="anti", maintain_order="left")
    return reading.with_frame(
        frame,
        f"{counted(stale.height, 'row')} left out in runs of {least} or more exact zero "
        f"returns{_first(reading, stale)}",
    )


def _first(reading: Reading, rows: pl.DataFrame) -> str:
    if rows.is_empty():
        return ""
    shown = [
        f"{reading.unit} {row[PLACE]} ({row['date']}, {row['asset']})"
        for row in rows.sort(PLACE, maintain_order=True).head(3).iter_rows(named=True)
    ]
    return f": {', '.join(shown)}{' ...' if rows.height > 3 else ''}"
