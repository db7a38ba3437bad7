"""Pictures of the depth-mixing matrix: with which weight each sublayer reads what came before."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from fints.study.canvas import GREY, Figure, facets_of, new_canvas, styled
from fints.study.verdict import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from fints.study.analysis import Analysis

__all__ = ["draw_matrix", "mixing"]

# Blue for above and red for below zero are told apart with any colour vision; white is exactly zero.
COLOURS = "RdBu"
# Beyond this many sources the lines between cells would hide them.
MOST_CELLS = 40
MOST_PANELS = 12
ATTENTION, FEED_FORWARD, EMBEDDING = "#444444", "#BBBBBB", "#E69F00"


def draw_matrix(matrix: Sequence[Sequence[float]], path: Path, *, title: str, note: str = "") -> None:
    """Draw one matrix, [reader, source] with the read-out last, into a file."""
    values = _lower(np.asarray(matrix, dtype=float))
    with styled():
        canvas, (axes,) = new_canvas(1, height=3.15)
        limit = _limit([values])
        image = _heat(axes, values, limit)
        axes.set_title(title, fontsize=7.5, pad=6)
        axes.set_xlabel("source: embedding, then what sublayer j adds")
        axes.set_ylabel("reader: sublayer k, then the read-out")
        _colour_bar(canvas, image, [axes], limit, [values], location="right")
        # The upper triangle is empty: there is nothing to read yet.
        lines = [line for part in note.splitlines() for line in textwrap.wrap(part, 36)]
        axes.text(
            0.985, 0.985, "\n".join(lines), transform=axes.transAxes, ha="right", va="top", fontsize=6.5
        )
        # Below the note, however long it is.
        below = 0.95 - 0.045 * len(lines)
        axes.legend(
            *_kinds(), loc="upper right", bbox_to_anchor=(1.0, below), handlelength=1.0, handleheight=0.8
        )
        metadata = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": "fints"}}
        canvas.savefig(path, dpi=300, metadata=metadata.get(path.suffix))


def mixing(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the mean matrix of every arm, one panel an arm, on one scale of colours."""
    names = [arm["name"] for arm in analysis.spec["arms"]]
    found = {name: analysis.mixing.filter(pl.col("arm") == name) for name in names}
    found = {name: rows for name, rows in found.items() if rows.height}
    if not found:
        return None
    primary = {arm for facet in facets_of(analysis, set(found)) if facet.primary for arm, *_ in facet.arms}
    # Sorting keeps the order of what is alike: those of the primary contrast stay, then the last ones.
    kept = sorted(found, key=lambda name: name in primary)[-MOST_PANELS:]
    shown = {name: rows for name, rows in found.items() if name in kept}
    matrices = {name: _matrix(rows) for name, rows in shown.items()}
    limit = _limit(list(matrices.values()))
    columns = min(2, len(matrices))
    rows = math.ceil(len(matrices) / columns)
    canvas, panels = new_canvas(rows, height=0.85 + (1.85 if columns == 2 else 2.9) * rows, columns=columns)
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=False):
        image = _heat(axes, matrix, limit, most_ticks=8)
        axes.set_title(textwrap.fill(name.replace("_", " ").replace("-", ", "), 26))
    for axes in panels[len(matrices) :]:
        axes.set_visible(False)
    for place, axes in enumerate(panels[: len(matrices)]):
        if place % columns == 0:
            axes.set_ylabel("reader k")
        if place + columns >= len(matrices):
            axes.set_xlabel("source j")
    drawn = panels[: len(matrices)]
    _colour_bar(canvas, image, drawn, limit, list(matrices.values()), location="bottom")
    canvas.legend(
        *_kinds(), loc="outside upper left", ncols=3, handlelength=1.0, handleheight=0.8, columnspacing=1.2
    )
    told = "; ".join(f"{name} {_share_text(matrix)}" for name, matrix in matrices.items())
    held = any(not bool(rows["composed"].all()) for rows in shown.values())
    caption = (
        f"Share of the read-out's weight that is the embedding's, |M| over its row: {told}. M[k, j] is the "
        "weight with which sublayer k reads source j (the embedding, then what each sublayer added); plain "
        "sums have 1 everywhere. Mean over tokens of validation windows, then over the finished fits, at "
        "the weights that forecast."
    )
    if held:
        caption += (
            " Where no source has one weight, as on a normed trunk: directional derivatives with the scales "
            "of the norms held as they are."
        )
    if len(found) > len(shown):
        caption += f" {len(found) - len(shown)} more arms are in `mixing.parquet`."
    return canvas, Figure(
        name="mixing",
        caption=caption,
        alt="Depth-mixing matrix of each arm: weight of every source in every sublayer's input",
    )


def _matrix(rows: pl.DataFrame) -> np.ndarray:
    size = int(rows["reader"].to_numpy().max()) + 1
    values = np.full((size, size), np.nan)
    values[rows["reader"].to_numpy(), rows["source"].to_numpy()] = rows["mean"].to_numpy()
    return values


def _lower(values: np.ndarray) -> np.ndarray:
    return np.where(np.tril(np.ones_like(values)) > 0, values, np.nan)


def _limit(matrices: Sequence[np.ndarray]) -> float:
    """Return where the colours end: the largest weight, or 3 times the 95th percentile if that is less."""
    sizes = np.concatenate([np.abs(values[np.isfinite(values)]) for values in matrices])
    if not sizes.size or sizes.max() == 0:
        return 1.0
    bulk = 3 * float(np.quantile(sizes, 0.95))
    return float(min(sizes.max(), bulk)) if bulk > 0 else float(sizes.max())


def _heat(axes: Axes, values: np.ndarray, limit: float, *, most_ticks: int = 14) -> Any:
    """Draw a lower triangle with a strip of kinds along both sides."""
    from matplotlib.colors import to_rgb

    size = len(values)
    image = axes.imshow(
        values, cmap=COLOURS, vmin=-limit, vmax=limit, interpolation="nearest", aspect="equal"
    )
    axes.grid(visible=False)
    if size <= MOST_CELLS:
        axes.set_xticks([place + 0.5 for place in range(size - 1)], minor=True)
        axes.set_yticks([place + 0.5 for place in range(size - 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=0.3)
        axes.set_axisbelow(False)
        axes.tick_params(which="minor", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    # The strips lie outside the matrix: kinds of sources below it, kinds of readers to its left.
    width = max(0.15, 0.022 * size)
    gap = 0.4 * width
    kinds = np.array([to_rgb((ATTENTION, FEED_FORWARD)[place % 2]) for place in range(size - 1)])
    left, below = -0.5 - gap - width, size - 0.5 + gap
    for strip, extent in (
        (kinds[:, None], (left, left + width, size - 1.5, -0.5)),
        (np.vstack([[to_rgb(EMBEDDING)], kinds])[None], (-0.5, size - 0.5, below + width, below)),
    ):
        axes.imshow(strip, extent=extent, interpolation="nearest", aspect="equal")
    # What a sublayer reads of its own output and of later ones does not exist.
    steps = [(-0.5, -0.5)]
    for place in range(size):
        steps += [(place + 0.5, place - 0.5), (place + 0.5, place + 0.5)]
    axes.plot(*zip(*steps, strict=True), color=GREY, linewidth=0.5)
    layers = range(
        0, size - 1, next(step for step in (2, 4, 8, 10, 20, 50, 100) if size / step <= most_ticks)
    )
    axes.set_xticks([layer + 1 for layer in layers], [str(layer) for layer in layers])
    axes.set_yticks([*layers, size - 1], [*map(str, layers), "out"])
    axes.tick_params(length=0, pad=1)
    axes.set_xlim(-0.5 - gap - width, size - 0.5)
    axes.set_ylim(size - 0.5 + gap + width, -0.5)
    return image


def _colour_bar(
    canvas: Canvas,
    image: Any,
    panels: Sequence[Axes],
    limit: float,
    matrices: Sequence[np.ndarray],
    *,
    location: Literal["right", "bottom"],
) -> None:
    """Draw the scale of colours, with an arrow where weights lie beyond it."""
    seen = [values[np.isfinite(values)] for values in matrices]
    over = any((values > limit).any() for values in seen)
    under = any((values < -limit).any() for values in seen)
    kind = {(False, False): "neither", (True, False): "max", (False, True): "min"}.get((over, under), "both")
    bar = canvas.colorbar(
        image, ax=list(panels), location=location, shrink=0.7, aspect=28, pad=0.02, extend=kind
    )
    bar.set_label("weight of a source")
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(length=2, width=0.4)


def _kinds() -> tuple[list[Any], list[str]]:
    """Return handles and labels of the strips' colours."""
    from matplotlib.patches import Patch

    kinds = {"embedding": EMBEDDING, "attention": ATTENTION, "feed-forward": FEED_FORWARD}
    return [Patch(color=colour, linewidth=0) for colour in kinds.values()], list(kinds)


def _share_text(matrix: np.ndarray) -> str:
    last = np.abs(matrix[-1])
    total = float(np.nansum(last))
    if not math.isfinite(last[0]) or total == 0:
        return "–"
    return f"{number(100 * float(last[0]) / total, 1)} % ({number(100 / len(last), 1)} % if all alike)"
