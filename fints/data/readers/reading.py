"""What the reader of a layout hands over: a long frame, the place of each row, and what was done to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from fints.data.panel import Panel
from fints.data.panel_rules import PERCENT_MEDIAN, Fault, find_faults, normalise
from fints.data.panel_shapes import growth_index
from fints.data.readers.files import PLACE
from fints.words import counted

__all__ = ["Reading"]

# Other layouts say in which units their returns are: a year may well bring 20 %.
UNITS_OPEN = ("long", "one asset", "wide")


@dataclass(frozen=True, eq=False)
class Reading:
    """A file read but not yet judged.

    Attributes
    ----------
    path : Path
        The file.
    frame : polars.DataFrame
        Long, with the panel's column names and types; it may still break the panel's rules.
    places : polars.Series
        Where each row stands in the file: a line of a CSV (the header is line 1), a row of another file.
    unit : str
        "line" or "row".
    layout : str
        The layout, such as "long", "wide" or "crsp".
    recognised : str
        What the file was taken for, in words.
    price : str
        Name of the price column in `frame`; of the column of returns where `returns` is set.
    returns : {"simple", "log"} or None
        The kind of the returns that stand in place of prices.
    notes : tuple of str
        What the layout's own rules did to values (missing codes, percent), a sentence each.
    repairs : tuple of str
        What was changed because the caller asked for it, a sentence each.
    """

    path: Path
    frame: pl.DataFrame
    places: pl.Series
    unit: str
    layout: str
    recognised: str
    price: str
    returns: str | None = None
    notes: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()

    def faults(self) -> list[Fault]:
        """Return every broken rule of a panel, the most basic first."""
        return find_faults(self.frame, self.price)

    def panel(self, name: str) -> Panel:
        """Return the panel.

        Raises
        ------
        ValueError
            If a rule of `Panel` is broken, with file, rows, values and remedy.
        """
        faults = self.faults()
        if faults:
            raise ValueError(self.explain(faults[0]))
        return Panel(self.frame, price=self.price, name=name)

    def explain(self, fault: Fault) -> str:
        """Return one line: file, first places with their values, what is wrong, what to do."""
        shown = []
        for row in fault.rows[:3]:
            key = self.frame.row(row, named=True)
            value = f" = {key[self.price]:g}" if fault.kind == "bad_price" else ""
            shown.append(f"{self.unit} {self.places[row]} ({key['date']}, {key['asset']}){value}")
        count = f" in {counted(len(fault.rows), 'row')}" if len(fault.rows) > 1 else ""
        option = {
            "duplicate": " or say which one (duplicates; drop_live_bar for a last bar that repeats its day)",
            "bad_price": ", or say that such prices are missing (missing_prices)",
            "infinite": " (missing_prices, for prices)",
        }.get(fault.kind, "")
        if fault.kind == "duplicate" and self.layout == "one asset":
            option += "; if the file holds several assets, call the column that names them 'asset'"
        if fault.kind == "bad_price" and self.layout in UNITS_OPEN and self._small():
            option += "; if these are returns, say so (returns)"
        return f"{self.path}: {fault.found}{count}, first {', '.join(shown)}. {fault.remedy}{option}."

    def _small(self) -> bool:
        """Tell whether prices are as small as returns are."""
        median = self.frame[self.price].abs().median()
        return isinstance(median, float) and median < PERCENT_MEDIAN

    def compounded(self, total_loss: float | None, *, price: str = "close") -> Reading:
        """Return the reading with a price that grows by its returns (`fints.data.panel_shapes.growth_index`).

        A simple return of -1 leaves nothing to grow from: `total_loss`, such as -0.99, is written in its
        place if given.

        Raises
        ------
        ValueError
            If a return is infinite or not above -1, or the median of a plain table says percent: with file,
            row, value and remedy.
        """
        assert self.returns is not None
        column, placed = self.price, self.placed
        if price in placed.columns:
            raise ValueError(f"{self.path}: a column {price!r} exists already beside the returns. Drop it.")
        values = pl.col(column)
        self._refuse(placed, values.is_infinite(), "which no return is", "Make it missing or correct it")
        median = placed[column].abs().median()
        if self.layout in UNITS_OPEN and isinstance(median, float) and median > PERCENT_MEDIAN:
            large = values.abs() > PERCENT_MEDIAN
            remedy = "Say so (percent), and they are divided by 100"
            self._refuse(placed, large, f"the median {median:.3g}: these look like percent", remedy)
        said: tuple[str, ...] = ()
        if self.returns == "simple":
            if total_loss is not None:
                lost = placed.filter(values == -1).height
                kept = pl.when(values == -1).then(total_loss).otherwise(values)
                placed = placed.with_columns(kept.alias(column))
                said = (f"{counted(lost, 'return')} of exactly -1 (total loss) set to {total_loss:g}",)
            remedy = "Say what to write instead (total_loss, such as -0.99) or drop the row"
            self._refuse(placed, values == -1, "a total loss, after which no price is left", remedy)
            remedy = "If it is a code for missing, clear it; if returns are logarithmic, say so"
            self._refuse(placed, values < -1, "and no simple return is below -1", remedy)
        grown = growth_index(placed, column, self.returns, price)
        return replace(self.with_frame(grown, *said), price=price, returns=None)

    def _refuse(self, placed: pl.DataFrame, broken: pl.Expr, found: str, remedy: str) -> None:
        rows = placed.filter(broken.fill_null(False))
        if rows.height:
            first = rows.row(0, named=True)
            value = f"{self.price} is {first[self.price]:g}"
            raise ValueError(
                f"{self.path}: {self.unit} {first[PLACE]} ({first['date']}, {first['asset']}): {value}, "
                f"{found}. {remedy}."
            )

    def with_frame(self, placed: pl.DataFrame, *said: str) -> Reading:
        """Return the reading with other rows, from a frame with a column `PLACE`, and repairs that say so."""
        return replace(
            self,
            frame=placed.drop(PLACE),
            places=placed[PLACE],
            repairs=(*self.repairs, *said),
        )

    @property
    def placed(self) -> pl.DataFrame:
        """The frame with its places in a column `PLACE`."""
        return self.frame.with_columns(self.places.alias(PLACE))

    @classmethod
    def of(
        cls,
        path: Path,
        placed: pl.DataFrame,
        *,
        unit: str,
        layout: str,
        recognised: str,
        price: str,
        returns: str | None = None,
        notes: Sequence[str] = (),
        repairs: Sequence[str] = (),
    ) -> Reading:
        """Make a reading from a frame with a column `PLACE`; the rest gets the panel's types.

        Raises
        ------
        ValueError
            If a column is missing or of the wrong type.
        """
        frame = normalise(placed.drop(PLACE), price=price, name=str(path))
        if returns not in (None, "simple", "log"):
            raise ValueError(f"returns must be 'simple' or 'log'; got {returns!r}.")
        places = placed[PLACE]
        said = tuple(notes), tuple(repairs)
        return cls(path, frame, places, unit, layout, recognised, price, returns, *said)
