"""The part of a report that picks one of many levels: tables of the verdict, of earnings and of costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fints.config import Experiment
from fints.study.canvas import COLOURS, Figure, digits_of, folds_text, new_canvas
from fints.study.document import Block, Heading, Table, Text
from fints.study.estimates import fit_bytes, parameters, size
from fints.study.selection import HELD_EQUAL, SELECTION_RULE, Comparison
from fints.study.trading import COST_BPS
from fints.study.verdict import Measure, number, p_text
from fints.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from fints.study.analysis import Analysis

__all__ = ["selection_blocks", "selection_figure"]

PERCENT = 100.0


def selection_blocks(analysis: Analysis) -> list[Block]:
    """Return the sections on what to pick, what it earns and what it costs; none without a matching."""
    selection = analysis.selection
    if selection is None:
        return []
    blocks: list[Block] = [Heading(text="Which to pick")]
    for one in selection.comparisons:
        blocks += [Heading(text=f"At the {HELD_EQUAL[one.how]}", level=3), _comparison(analysis, one)]
    blocks += [Text(text=SELECTION_RULE), *_against(analysis)]
    blocks += [Heading(text="What the forecasts would have earned"), *_trading(analysis)]
    return [*blocks, Heading(text="What each arm costs"), _costs(analysis)]


def _comparison(analysis: Analysis, one: Comparison) -> Table:
    measure, digits = analysis.measure, digits_of(analysis)
    assert analysis.selection is not None
    reference = analysis.spec["matching"]["reference"]
    unit = f" ({measure.difference_unit})" if measure.difference_unit else ""
    rows = []
    for row in one.rows:
        words = [
            word
            for word, said in (("may be best", "may_be_best"), ("good enough", "good_enough"))
            if row[said]
        ]
        if row["level"] == one.pick:
            words.append("**pick**")
        rows.append(
            (
                row["level"],
                measure.text(row["outcome"], digits),
                measure.text(row["difference"], digits + 1),
                _range(measure, row["low"], row["high"], digits + 1),
                _p(row["p"]),
                measure.text(row["behind"], digits + 1),
                _p(row["confidence"]),
                number(row["time"], 2),
                ", ".join(words) or "surely not best",
            )
        )
    return Table(
        columns=(
            "scheme",
            measure.short + (f" ({measure.unit})" if measure.unit else ""),
            f"less {reference}{unit}",
            "95 %, together",
            "p, together",
            f"behind the best by at most{unit}",
            "p, confidence set",
            "time of a fit",
            "by the rule",
        ),
        rows=tuple(rows),
        left=("scheme", "by the rule"),
        note=(
            f"Over {counted(one.clusters, 'fold')}, seeds averaged in their fold. Intervals and p values "
            "hold "
            "for all pairs of the comparison together, those that are not shown too. Confidence set: the "
            "level at "
            "which the forecast drops out of Hansen's set. Time: measured steps, as a multiple of "
            f"{reference}'s."
        ),
    )


def _against(analysis: Analysis) -> list[Block]:
    assert analysis.selection is not None
    found = analysis.selection.baselines
    if not found:
        return []
    rows = [
        (row["baseline"].replace("_", " "), _p(row["p"]), _p(row["p_holm"]), _p(row["confidence"]))
        for row in found
    ]
    how = HELD_EQUAL[analysis.selection.comparisons[0].how]
    return [
        Table(
            columns=("baseline", "p, none beats it", "p, Holm", "p, confidence set"),
            rows=tuple(rows),
            left=("baseline",),
            note=f"Against the schemes at the {how}, by daily squared error. First: Hansen's test of "
            "superior "
            "ability that no scheme is better, adjusted over the baselines; zero and the mean are nested in "
            "every network, so that Clark-West in the table of arms tests against them. Last: the level at "
            "which "
            "the baseline drops out of the confidence set of schemes and baselines together.",
        )
    ]


def _trading(analysis: Analysis) -> list[Block]:
    trading = analysis.trading
    if trading is None:
        return [
            Text(
                text="No portfolio is shown: it takes outcomes that are next-day log returns, on three dates "
                "or "
                "more."
            )
        ]
    rows = []
    for row in trading.table.iter_rows(named=True):
        rows.append(
            (
                str(row["name"]).replace("_", " ") + (" (baseline)" if row["arm"] is None else ""),
                _percent(row["gross"]),
                _percent(row["net"]),
                _percent(row["volatility"]),
                _plain(row["turnover"]),
                _plain(row["break_even_bps"], 1),
                _plain(row["sharpe"]),
                "–" if row["low"] is None else f"{number(row['low'], 2)} to {number(row['high'], 2)}",
                "–" if row["deflated"] is None else number(row["deflated"], 3),
            )
        )
    lucky = (
        ""
        if trading.overfitting is None
        else " Chosen by its Sharpe ratio in one half of the dates, the best of these rows falls below the "
        f"median in the other half with a probability of {PERCENT * trading.overfitting:.0f} % (CSCV)."
    )
    return [
        Table(
            columns=(
                "forecast",
                "gross (% a year)",
                "net (% a year)",
                "volatility (% a year)",
                "turnover a day",
                "break-even cost (bp)",
                "Sharpe, net",
                "95 % interval",
                "deflated",
            ),
            rows=tuple(rows),
            left=("forecast",),
            note=(
                "Long-short by rank, traded at the close after the one that the forecast has seen, "
                f"{COST_BPS:g} "
                "basis points of traded value each way; each arm by the mean forecast of its seeds. "
                "Deflated: "
                f"probability that the true Sharpe ratio exceeds the best of {trading.trials} worthless "
                "strategies (every design point of every arm, and the baselines); 0.95 would be "
                f"evidence.{lucky}"
            ),
        )
    ]


def _costs(analysis: Analysis) -> Table:
    spec = analysis.spec
    matching = spec["matching"]
    rows, known = [], {arm["name"]: Experiment.from_dict(arm["experiment"]) for arm in spec["arms"]}
    home = known[matching["comparisons"]["width"][matching["reference"]]]
    for arm in spec["arms"]:
        one = known[arm["name"]]
        count, memory = parameters(one), fit_bytes(one)
        rows.append(
            (
                *(arm["levels"][name] for name in analysis.factors),
                f"{count:,}",
                number(PERCENT * (count / parameters(home) - 1), 1),
                str(max(1, round(one.model.feed_forward_ratio * one.model.width))),
                f"{one.training.steps:,}",
                number(matching["step_times"][arm["levels"][matching["over"]]], 2),
                number(matching["time"][arm["name"]], 2),
                size(memory),
            )
        )
    return Table(
        columns=(
            *analysis.factors,
            "parameters",
            f"less {matching['reference']} (%)",
            "hidden",
            "steps",
            "time of a step",
            "time of a fit",
            "memory of a fit",
        ),
        rows=tuple(rows),
        left=tuple(analysis.factors),
        note=f"Hidden: numbers between the two maps of a feed-forward branch. Times: multiples of "
        f"{matching['reference']}'s, measured by `{matching['measured']}` at the same width. Memory: "
        "weights, "
        "optimiser and activations, by formula. What is not listed is the same in another comparison.",
    )


def selection_figure(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw every level against the reference, a panel a comparison, with intervals that hold together."""
    selection, measure = analysis.selection, analysis.measure
    if selection is None:
        return None
    shown = [one for one in selection.comparisons if one.kind != "void"]
    if not shown:
        return None
    factor = measure.factor
    reference = analysis.spec["matching"]["reference"]
    counts = [len(_others(one, reference)) for one in shown]
    canvas, panels = new_canvas(len(shown), height=0.6 + 0.42 * len(shown) + 0.2 * sum(counts))
    margin = analysis.spec["smallest_effect"] * factor
    ends = [-margin, margin]
    for axes, one in zip(panels, shown, strict=True):
        rows = _others(one, reference)
        axes.axvspan(-margin, margin, color="#E4E4E4", linewidth=0)
        axes.axvline(0, color="black", linewidth=0.8)
        for place, row in enumerate(rows):
            colour = COLOURS[0] if row["may_be_best"] else COLOURS[1]
            if row["low"] is not None and abs(row["high"]) != float("inf"):
                axes.plot([row["low"] * factor, row["high"] * factor], [place, place], color=colour)
                ends += [row["low"] * factor, row["high"] * factor]
            axes.plot(
                [row["difference"] * factor],
                [place],
                linestyle="none",
                marker="o" if row["may_be_best"] else "s",
                color=colour,
            )
            ends.append(row["difference"] * factor)
        axes.set_yticks(range(len(rows)), [row["level"] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_title(HELD_EQUAL[one.how])
    room = 0.06 * (max(ends) - min(ends))
    for axes in panels:
        axes.set_xlim(min(ends) - room, max(ends) + room)
    panels[-1].set_xlabel(f"{measure.label} less that of {reference}\n{measure.difference_unit}".strip())
    told = []
    for one in shown:
        best = one.chosen("may_be_best")
        out = len(one.rows) - len(best)
        told.append(f"{HELD_EQUAL[one.how]}: {out or 'none'} of {len(one.rows)} surely not the best")
    caption = (
        f"Of each comparison's schemes, {'; '.join(told)}. Difference to {reference} with 95 % intervals "
        "that "
        f"hold for all pairs of a comparison together, over {folds_text(analysis)}; grey: too small to "
        "matter; "
        "squares: surely exceeded by another scheme."
    )
    return canvas, Figure(
        name="selection",
        caption=caption,
        alt=f"Difference of each scheme to {reference} with simultaneous intervals, one panel a comparison",
    )


def _others(one: Comparison, reference: str) -> Sequence[dict[str, Any]]:
    return [row for row in one.rows if row["level"] != reference and row["difference"] is not None]


def _percent(value: float | None) -> str:
    return "–" if value is None else number(PERCENT * value, 1)


def _plain(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else number(value, digits)


def _range(measure: Measure, low: float | None, high: float | None, digits: int) -> str:
    if low is None or high is None:
        return "–"
    if abs(high) == float("inf"):
        return "unbounded"
    return f"{measure.text(low, digits)} to {measure.text(high, digits)}"


def _p(p: float | None) -> str:
    return "–" if p is None else p_text(p).removeprefix("p = ").removeprefix("p ")
