"""Known panels in foreign layouts, damaged or not: the panel comes back, or the error names row and value.

python tests/data/fuzz_readers.py --cases 10000
"""

from __future__ import annotations

import argparse
import collections
import csv
import datetime as dt
import importlib.util
import io
import random
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fints.data import check, read


def _layouts() -> ModuleType:
    name = "reader_layouts"
    if name not in sys.modules:
        path = Path(__file__).with_name("readers") / "layouts.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


layouts = _layouts()

TICKERS = ["AAPL", "OPEN", "LOW", "NA", "AAPL.US", "4IG.HU", "BRK-B", "Close", "X", "nan", "É"]
PERMNOS = ["10001", "14593", "93436", "10107"]
INDUSTRIES = ["NoDur", "Hlth", "HiTec", "Other", "SMALL LoBM", "Mkt-RF"]
DAMAGES = [
    "none",
    "none",
    "none",
    "text",
    "not positive",
    "infinite",
    "repeated row",
    "bad date",
    "short row",
    "long row",
    "no header",
    "cut",
    "blank lines",
    "other order",
    "noise",
]
SEEN: collections.Counter[tuple[str, str, str]] = collections.Counter()


@st.composite
def known_panels(draw: st.DrawFn, layout: str) -> layouts.Known:
    """A panel with late listings, early delistings, halts, assets of one row, and one day of +130 %."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_dates = draw(st.integers(1, 12))
    if layout == "goyal_welch":
        months = [(2000 + place // 12, place % 12 + 1) for place in range(num_dates)]
        dates = [(dt.date(y + m // 12, m % 12 + 1, 1) - dt.timedelta(days=1)) for y, m in months]
    else:
        steps = generator.choice([1, 1, 1, 3, 4, 30], size=num_dates)
        start = dt.date(draw(st.sampled_from([1926, 1969, 2001, 2024])), 2, 3)
        dates = [start + dt.timedelta(days=int(step)) for step in np.cumsum(steps)]
    names = {
        "crsp": PERMNOS,
        "french": INDUSTRIES,
        "goyal_welch": ["SP500"],
        "qlib": ["SH600000", "AAPL", "A"],
    }
    pool = names.get(layout, TICKERS)
    assets = pool[: 1 if layout == "goyal_welch" else draw(st.integers(1, min(4, len(pool))))]
    prices: dict[str, list[float | None]] = {}
    for asset in assets:
        moves = np.clip(0.03 * generator.standard_normal(num_dates), -0.15, 0.15)
        if num_dates > 6 and generator.random() < 0.2:
            moves[num_dates // 2] = np.log(2.3)
        path = np.round(generator.uniform(5, 500) * np.exp(np.cumsum(moves)), 4)
        seen = np.ones(num_dates, dtype=bool)
        seen[: generator.integers(0, num_dates)] = generator.random() < 0.7
        seen[generator.integers(1, num_dates + 1) :] = generator.random() < 0.7
        seen &= generator.random(num_dates) < 0.95
        seen[generator.integers(0, num_dates)] = True
        prices[asset] = [float(price) if there else None for price, there in zip(path, seen, strict=True)]
    return layouts.Known(dates, assets, prices)


def same(found: pl.DataFrame, known: layouts.Known, written: layouts.Written) -> bool:
    """Tell whether the panel read is the one written: equal keys and, within its rounding, prices."""
    wanted = known.relative() if written.relative else known.frame()
    got = found.select("date", "asset", "close").drop_nulls().sort("date", "asset")
    if written.relative:
        # A first return may be missing by code: the price starts a day later, at the same level.
        late = wanted.filter(pl.col("date") == pl.col("date").min().over("asset"))
        lost = wanted.join(got, on=["date", "asset"], how="anti")
        if lost.join(late, on=["date", "asset"], how="anti").height:
            return False
        wanted = wanted.join(lost, on=["date", "asset"], how="anti").sort("date", "asset")
    if got.select("date", "asset").rows() != wanted.select("date", "asset").rows():
        return False
    difference = (got["close"] / wanted["close"] - 1).abs().max()
    return difference is None or difference <= written.tolerance


def damaged(kind: str, written: layouts.Written, choose: random.Random) -> tuple[list[str], bool]:
    """Damage the file; return what an error must name, and whether the panel may come back all the same."""
    path = written.path
    if path.is_dir() or path.suffix.lower() not in (".csv", ".txt"):
        if kind == "noise":
            files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
            _noise(choose.choice(files), choose)
        return [], kind != "noise"
    raw = path.read_text(encoding="utf-8-sig")
    lines = raw.replace("\r\n", "\n").split("\n")
    rows = []
    for place in range(written.first - 1, len(lines)):
        if not lines[place].strip():
            if path.suffix == ".CSV":
                break
            continue
        rows.append(place)
    place = choose.choice(rows)
    cells = next(csv.reader([lines[place]], delimiter=written.separator))
    must: list[str] = [f"line {place + 1}"]
    may_pass = False
    if kind == "text":
        column = choose.choice(written.numbers)
        value = choose.choice(["abc", "1.2.3", "#REF!", "1e", "--5"])
        cells[column] = value
        lines[place] = joined(cells, written.separator)
        must.append(value)
    elif kind in ("not positive", "infinite"):
        column = choose.choice(written.price)
        value = "-5" if written.relative else choose.choice(["0", "-5"])
        value = "inf" if kind == "infinite" else "-500" if path.suffix == ".CSV" else value
        cells[column] = value
        lines[place] = joined(cells, written.separator)
    elif kind == "repeated row":
        lines.insert(place, lines[place])
        must = []
        # A row without a price repeats nothing.
        may_pass = all(cells[column] == "" for column in written.price)
    elif kind == "bad date":
        value = choose.choice(["2001-13-45", "someday", "20011345", "12/31/99"])
        cells[written.date] = value
        lines[place] = joined(cells, written.separator)
        must = []
        if len(rows) > 1 and place != rows[0] and path.suffix != ".CSV":
            must = [f"line {place + 1}"]
        may_pass = not any(cells[1:])
    elif kind == "short row":
        lines[place] = joined(cells[:-1], written.separator)
    elif kind == "long row":
        lines[place] = joined([*cells, "1"], written.separator)
    elif kind == "no header":
        del lines[written.first - 2]
        must, may_pass = [], written.first > 2
    elif kind == "cut":
        last = rows[-1]
        lines = [*lines[:last], written.separator.join(lines[last].split(written.separator)[:-1])]
        must = [f"line {last + 1}"] if len(cells) > 2 else []
        may_pass = len(cells) <= 2
    elif kind == "blank lines":
        if path.suffix != ".CSV":
            lines[place:place] = ["", "  "]
        lines += ["", ""]
        may_pass = True
    elif kind == "other order":
        if path.suffix != ".CSV":
            some = [lines[one] for one in rows]
            choose.shuffle(some)
            for one, line in zip(rows, some, strict=True):
                lines[one] = line
        may_pass = True
    elif kind == "noise":
        path.write_text("\n".join(lines), encoding="utf-8")
        _noise(path, choose)
        return [], False
    else:
        return [], True
    path.write_text("\n".join(lines), encoding="utf-8")
    return must, may_pass


def joined(cells: list[str], separator: str) -> str:
    made = io.StringIO()
    csv.writer(made, delimiter=separator, lineterminator="").writerow(cells)
    return made.getvalue()


def _noise(path: Path, choose: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(choose.randint(1, 4)):
        if not raw:
            break
        at = choose.randrange(len(raw))
        what = choose.random()
        if what < 0.5:
            raw[at] = choose.randrange(256)
        elif what < 0.75:
            del raw[at : at + choose.randint(1, 9)]
        else:
            raw[at:at] = bytes(choose.randrange(256) for _ in range(choose.randint(1, 4)))
    path.write_bytes(bytes(raw))


def one_case(layout: str, known: layouts.Known, kind: str, seed: int) -> None:
    """Write, damage, read, and hold the outcome to the claim."""
    choose = random.Random(seed)
    if kind == "no header" and layout == "yfinance" and len(known.assets) == 1:
        kind = "none"  # What would be left is a file of one ticker that names it nowhere.
    with tempfile.TemporaryDirectory() as folder:
        written = layouts.WRITERS[layout](known, Path(folder), choose)
        must, may_pass = damaged(kind, written, choose)
        try:
            panel = read(written.path, **written.arguments)
        except ValueError as error:
            said = str(error)
            assert kind not in ("none", "blank lines", "other order"), f"{layout}, {kind}: refused: {said}"
            inside = written.path if written.path.is_file() else Path(folder)
            assert str(inside) in said, f"{layout}, {kind}: the error names no file: {said}"
            assert "\n" not in said, f"{layout}, {kind}: more than one line: {said!r}"
            unsaid = [what for what in must if what not in said]
            assert not unsaid, f"{layout}, {kind}: the error names no {unsaid}: {said}"
            SEEN[layout, kind, "refused"] += 1
            if seed % 16 == 0:
                report = check(written.path, layout=written.arguments.get("layout", "auto"))
                assert kind == "noise" or "block" in written.arguments or not report.ok
            return
        if kind == "noise":
            SEEN[layout, kind, "read"] += 1
            return
        assert may_pass, f"{layout}, {kind}: the damage was not told; must name {must}"
        assert same(panel.frame, known, written), f"{layout}, {kind}: another panel:\n{panel.frame}\n{known}"
        SEEN[layout, kind, "equal"] += 1


def cases(number: int, *, derandomize: bool) -> None:
    """Run this many cases."""

    @settings(
        max_examples=number,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        layout = data.draw(st.sampled_from(sorted(layouts.WRITERS)))
        kind = data.draw(st.sampled_from(DAMAGES))
        one_case(layout, data.draw(known_panels(layout)), kind, data.draw(st.integers(0, 2**32)))

    run()


def main() -> None:
    """Run, and print how often each layout came back, was refused, or (noise) was read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--same", action="store_true", help="the same cases every time")
    arguments = parser.parse_args()
    start = time.perf_counter()
    cases(arguments.cases, derandomize=arguments.same)
    print(f"{'layout':<12}{'equal':>8}{'refused':>9}{'noise read':>12}")
    for layout in sorted(layouts.WRITERS):
        counts = [
            sum(count for (of, _, outcome), count in SEEN.items() if of == layout and outcome == what)
            for what in ("equal", "refused", "read")
        ]
        print(f"{layout:<12}{counts[0]:>8}{counts[1]:>9}{counts[2]:>12}")
    print(f"{sum(SEEN.values()):,} cases in {time.perf_counter() - start:.0f} s: none read as another panel")


if __name__ == "__main__":
    main()
