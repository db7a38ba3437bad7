"""CRSP as WRDS hands it out: older layout (PRC, RET, DLRET) and newer (DlyPrc, DlyRet; MthPrc, MthRet).

The asset is PERMNO. The price grows by the total return. Older layout: RET may hold a letter or a code in
place of a number, a negative PRC is the midpoint of bid and ask, and the delisting return stands apart, so
that

    total = (1 + RET) (1 + DLRET) - 1,

with a missing RET counting as 0 where DLRET is known. Newer layout: the return of a delisting is already
inside DlyRet (MthRet), and a flag marks midpoints.

Source: CRSP Data Descriptions Guide (RET, DLRET, PRC); CRSP, mapping of the SIZ to the CIZ format; Shumway
(1997), The Delisting Bias in CRSP Data, for -0.3 at a delisting for performance without a return.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from fints.data.dates import parse_dates
from fints.data.readers.asking import Asking
from fints.data.readers.cells import keyed
from fints.data.readers.files import PLACE, Table, Text, collect
from fints.data.readers.plain import one_header
from fints.data.readers.reading import Reading
from fints.words import counted

__all__ = ["CODES", "read_crsp", "recognises_crsp"]

# In place of a return: no comparison, no listing, no previous price, not traded there, no data, no price.
CODES = (-44.0, -55.0, -66.0, -77.0, -88.0, -99.0)
# SAS writes its missing values as a point and a letter; WRDS leaves the letter.
LETTER = r"^(\.?[A-Z]|\.)$"
SHARED = ("shrout", "numtrd", "vwretd", "vwretx", "ewretd", "ewretx", "sprtrn")


@dataclass(frozen=True)
class _Layout:
    """Names of one of CRSP's layouts, in lower case."""

    title: str
    date: tuple[str, ...]
    total: str
    price: str
    flag: str | None
    others: Mapping[str, str]


OLD = _Layout(
    "older layout",
    ("date", "caldt", "mcaldt"),
    "ret",
    "prc",
    None,
    {"retx": "retx", "vol": "vol", "bid": "bid", "ask": "ask", "bidlo": "bidlo", "askhi": "askhi"}
    | {"openprc": "openprc", "cfacpr": "cfacpr", "cfacshr": "cfacshr"},
)
DAILY = _Layout(
    "newer layout, daily",
    ("dlycaldt",),
    "dlyret",
    "dlyprc",
    "dlyprcflg",
    {"dlyretx": "retx", "dlyvol": "vol", "dlybid": "bid", "dlyask": "ask", "dlylow": "low", "dlyhigh": "high"}
    | {"dlyopen": "open", "dlyclose": "close_traded", "dlycap": "cap"},
)
MONTHLY = _Layout(
    "newer layout, monthly",
    ("mthcaldt",),
    "mthret",
    "mthprc",
    "mthprcflg",
    {"mthretx": "retx", "mthvol": "vol", "mthcap": "cap"},
)
MAY_BE_NEGATIVE = ("prc", "bidlo", "askhi")


def recognises_crsp(columns: tuple[str, ...]) -> bool:
    """Tell whether a header has a PERMNO and one of CRSP's returns."""
    names = {column.casefold() for column in columns}
    return "permno" in names and bool(names & {"ret", "dlyret", "mthret", "prc", "dlyprc", "mthprc"})


def read_crsp(source: Text | Table, asking: Asking) -> Reading:
    """Read either layout.

    Raises
    ------
    ValueError
        With file, line, value and remedy.
    """
    table = one_header(source) if isinstance(source, Text) else source
    by_name = table.by_name
    layout = next((one for one in (DAILY, MONTHLY) if one.date[0] in by_name), OLD)
    date = next((by_name[name] for name in layout.date if name in by_name), None)
    for needed, found in (("PERMNO", by_name.get("permno")), (layout.date[0], date)):
        if found is None:
            raise ValueError(f"{table.path}: CRSP's tables have a column {needed}; this file has none.")
    if layout.total not in by_name:
        raise ValueError(
            f"{table.path}: needs {layout.total.upper()}, the return with dividends; PRC alone jumps at "
            "splits. Add it to the query."
        )
    if layout is not OLD and "dlret" in by_name:
        raise ValueError(
            f"{table.path}: has {by_name['dlret']!r} beside {by_name[layout.total]!r}, which holds it "
            "already. Drop the former (drop)."
        )
    names = {layout.total: "ret", layout.price: "prc"} | dict(layout.others)
    names |= {name: name for name in SHARED}
    if layout is OLD:
        names |= {"dlret": "dlret", "dlstcd": "dlstcd"}
    values = {by_name[old]: new for old, new in names.items() if old in by_name}
    if asking.price is not None and asking.price.casefold() not in (layout.total, "ret"):
        raise ValueError(
            f"{table.path}: CRSP's price is built from {layout.total.upper()}; got price={asking.price!r}. "
            "To read other columns, name the layout 'long'."
        )
    coded = [column for column, new in values.items() if new in ("ret", "retx", "dlret")]
    assert date is not None
    # Before the frame exists: a scan of a large file wants memory of its own.
    notes = _letters(table, coded)
    frame = keyed(table, date, by_name["permno"], values, _without_letters(table, coded))
    frame, found_codes = _without_codes(frame)
    notes += found_codes
    frame, midpoints = _midpoints(table, frame, layout)
    notes += midpoints
    frame, delisted, repaired = _with_delistings(table, frame, layout, asking)
    notes += delisted
    left = [name for name in table.columns if name not in values and name not in (date, by_name["permno"])]
    if left:
        notes.append(f"left out, as no numbers to forecast with: {', '.join(left)}")
    dates, date_format = parse_dates(
        table.path, frame["date"].alias(date), frame[PLACE], table.unit, asking.repairs.dates
    )
    count = frame["asset"].n_unique()
    return Reading.of(
        table.path,
        frame.with_columns(dates.alias("date"), pl.col("asset").str.replace(r"\.0$", "")),
        unit=table.unit,
        layout="crsp",
        recognised=f"{table.style}: CRSP, {layout.title}, {counted(count, 'PERMNO')}, "
        f"price grown by {by_name[layout.total]!r}, dates in {date!r} ({date_format})",
        price="ret",
        returns="simple",
        notes=notes,
        repairs=repaired,
    )


def _without_letters(table: Table, coded: list[str]) -> dict[str, pl.Expr]:
    schema = table.frame.collect_schema()
    return {
        column: pl.when(~pl.col(column).str.contains(LETTER)).then(pl.col(column))
        for column in coded
        if schema[column] == pl.String
    }


def _letters(table: Table, coded: list[str]) -> list[str]:
    """Count the letters that stand for missing returns."""
    columns = list(_without_letters(table, coded))
    if not columns:
        return []
    letters = [
        pl.col(column).filter(pl.col(column).str.contains(LETTER)).value_counts() for column in columns
    ]
    found = collect(table.frame.select(counts.implode() for counts in letters), table)
    said = []
    for column in columns:
        counts = sorted((one[column], one["count"]) for one in found[column][0].to_list())
        shown = ", ".join(f"{count} {letter}" for letter, count in counts)
        said += [f"{column}: missing by letter ({shown})"] if shown else []
    return said


def _without_codes(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    said = []
    for column in ("ret", "retx", "dlret"):
        if column in frame.columns:
            coded = pl.col(column).is_in(CODES)
            number = frame.filter(coded).height
            if number:
                said.append(f"{column}: missing by code -44 to -99 ({number})")
                frame = frame.with_columns(pl.when(~coded).then(pl.col(column)).alias(column))
    return frame, said


def _midpoints(table: Table, frame: pl.DataFrame, layout: _Layout) -> tuple[pl.DataFrame, list[str]]:
    """Take the sign off prices that are midpoints, and mark them; a price of 0 is missing."""
    if "prc" not in frame.columns:
        return frame, []
    marked = pl.col("prc") < 0
    if layout.flag is not None and layout.flag in table.by_name:
        flags = collect(table.frame.select(PLACE, table.by_name[layout.flag]), table).sort(PLACE)
        frame = frame.with_columns(flags.to_series(1).alias("\0flag"))
        marked = marked | (pl.col("\0flag").cast(pl.String) == "BA")
    signed = [column for column in MAY_BE_NEGATIVE if column in frame.columns]
    number = frame.filter(marked).height
    frame = frame.with_columns(
        marked.cast(pl.Float64).alias("midpoint"),
        *(pl.when(pl.col(column) != 0).then(pl.col(column).abs()).alias(column) for column in signed),
    ).drop("\0flag", strict=False)
    return frame, [
        f"prc is the midpoint of bid and ask in {counted(number, 'row')} (column midpoint)"
    ] if number else []


def _with_delistings(
    table: Table, frame: pl.DataFrame, layout: _Layout, asking: Asking
) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Compound the return of a delisting into the row it stands in."""
    notes: list[str] = []
    repaired: list[str] = []
    if "dlret" not in frame.columns:
        if asking.repairs.missing_delisting is not None:
            raise ValueError(f"{table.path}: has no DLRET, so missing_delisting does not apply.")
        if layout is OLD:
            notes.append("no DLRET: returns leave out what happened at a delisting; add it to the query")
        return frame.drop("dlstcd", strict=False), notes, repaired
    known = frame.filter(pl.col("dlret").is_not_null())
    again = known.filter(pl.col("asset").is_first_distinct().not_())
    if again.height:
        row = again.row(0, named=True)
        raise ValueError(
            f"{table.path}: {table.unit} {row[PLACE]} (asset {row['asset']}): DLRET is {row['dlret']:g} for "
            "the second time; it belongs on the row of the delisting alone. Clear it elsewhere."
        )
    if "dlstcd" in frame.columns:
        performance = (pl.col("dlstcd") == 500) | pl.col("dlstcd").is_between(520, 584)
        bare = performance & pl.col("dlret").is_null() & ~pl.col("dlret").is_not_null().any().over("asset")
        bare &= pl.col("dlstcd").is_not_null() & (pl.col(PLACE) == pl.col(PLACE).max().over("asset"))
        number = frame.filter(bare).height
        guess = asking.repairs.missing_delisting
        if guess is not None:
            frame = frame.with_columns(pl.when(bare).then(guess).otherwise(pl.col("dlret")).alias("dlret"))
            repaired.append(f"{counted(number, 'delisting')} for performance without DLRET given {guess:g}")
        elif number:
            notes.append(
                f"{counted(number, 'delisting')} for performance without DLRET: returns are too good "
                "(missing_delisting)"
            )
    total = (1 + pl.col("ret").fill_null(0)) * (1 + pl.col("dlret")) - 1
    compounded = frame.filter(pl.col("dlret").is_not_null()).height
    frame = frame.with_columns(
        pl.when(pl.col("dlret").is_not_null()).then(total).otherwise(pl.col("ret")).alias("ret")
    )
    if compounded:
        notes.append(f"{counted(compounded, 'delisting return')} compounded into ret")
    return frame.drop("dlret", "dlstcd", strict=False), notes, repaired
