"""``fints data simulate``: a panel whose best possible forecast is known, kept as a dataset of yours."""

from __future__ import annotations

from typing import Annotated

import typer

from fints.terminal import (
    AsJson,
    Refusal,
    examples,
    print_fields,
    print_json,
    print_table,
    print_wrapped,
    refusing,
)
from fints.words import byte_text

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES = examples(
    "fints data simulate --as planted --r2 0.005 --noise garch",
    "fints data simulate --as deep --signal memory_chain --depth-demand 4",
    "fints data simulate --as null --on sp500-20",
)

# Memory that drawing takes for each asset and day, in bytes: 135 measured at 20 assets and 320,000 days.
BYTES_A_CELL = 150
# The dials that a panel signed at random has too.
OF_BOTH = {"r2", "signal", "depth_demand", "signal_scale", "seed"}


def simulate(
    name: Annotated[str, typer.Option("--as", help="Name of the dataset.", show_default=False)],
    on: Annotated[
        str | None,
        typer.Option(
            help="Sign the returns of this dataset or file at random, in place of drawing noise. Takes --r2 "
            "(0 by default), --signal, --depth-demand, --signal-scale, --seed."
        ),
    ] = None,
    num_assets: Annotated[int | None, typer.Option(help="Assets.")] = None,
    num_days: Annotated[int | None, typer.Option(help="Business days from 2000-01-03.")] = None,
    r2: Annotated[float | None, typer.Option("--r2", help="The oracle's R2, in [0, 1).")] = None,
    signal: Annotated[
        str | None,
        typer.Option(
            help="linear, interaction, gated_filter or memory_chain; with --on also reversal or "
            "gated_reversal."
        ),
    ] = None,
    depth_demand: Annotated[int | None, typer.Option(help="Links of the memory chain, 1 to 8.")] = None,
    signal_scale: Annotated[
        str | None,
        typer.Option(help="constant (matched pooled) or proportional to volatility (matched conditional)."),
    ] = None,
    drift: Annotated[str | None, typer.Option(help="The signal's strength: constant, slow, broken.")] = None,
    break_at: Annotated[float | None, typer.Option(help="Share of days before the break.")] = None,
    break_factor: Annotated[float | None, typer.Option(help="Strength after the break over before.")] = None,
    noise: Annotated[str | None, typer.Option(help="gaussian, student_t or garch.")] = None,
    vol_of_vol: Annotated[
        float | None, typer.Option(help="Of the conditional variance, under garch.")
    ] = None,
    degrees: Annotated[float | None, typer.Option(help="Of freedom of the innovations.")] = None,
    news: Annotated[
        str | None, typer.Option(help="What moves the variance: square, or score for 4 degrees and fewer.")
    ] = None,
    leverage: Annotated[float | None, typer.Option(help="Losses' share of alpha taken from gains.")] = None,
    common_share: Annotated[float | None, typer.Option(help="Of the factor in the noise.")] = None,
    regime_ratio: Annotated[float | None, typer.Option(help="Turbulent over calm volatility.")] = None,
    jump_share: Annotated[float | None, typer.Option(help="Of jumps in the noise variance.")] = None,
    jumps_a_year: Annotated[float | None, typer.Option(help="Of one asset, on average.")] = None,
    volatility_daily: Annotated[float | None, typer.Option(help="Unconditional, of the noise.")] = None,
    shock_at: Annotated[float | None, typer.Option(help="Share of days before the shock.")] = None,
    shock_factor: Annotated[
        float | None, typer.Option(help="Volatility after the shock over before.")
    ] = None,
    volatility_column: Annotated[
        bool | None, typer.Option("--volatility-column", help="Show the next day's volatility as a column.")
    ] = None,
    log_volatility_column: Annotated[
        bool | None, typer.Option("--log-volatility-column", help="Show its logarithm as a column.")
    ] = None,
    feature_scale: Annotated[
        str | None,
        typer.Option(help="Of the features: constant, proportional to volatility, or that over an ewma."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="At least 0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a panel with a known oracle and keep it; defaults are those of fints.data.simulate."""
    given = {
        dial: value
        for dial, value in locals().items()
        if value is not None and dial not in ("name", "on", "as_json")
    }
    from fints.data import card, load, oracle_by_volatility, semi_synthetic, store_simulation
    from fints.data import simulate as draw
    from fints.data.catalog import is_bundled, is_dataset

    with refusing():
        if is_bundled(name):
            raise Refusal(f"{name!r} is a bundled dataset; choose another name.")
        _refuse_huge(num_assets, num_days)
        licence = ""
        if on is None:
            made = draw(**given)
        else:
            if foreign := sorted(set(given) - OF_BOTH):
                options = ", ".join(f"--{dial.replace('_', '-')}" for dial in foreign)
                raise Refusal(f"{options}: the noise of --on is that of {on}; leave it out.")
            made = semi_synthetic(load(on), **given)
            licence = card(on).licence if is_dataset(on) else ""
        if is_dataset(name) and card(name).checksum != made.panel.checksum:
            raise Refusal(
                f"there is a dataset {name!r} of other numbers already: choose another name, or delete the "
                f"folder {card(name).path.parent}."
            )
        kept = store_simulation(made, name, licence=licence)
        quintiles = oracle_by_volatility(made)
    if as_json:
        print_json(
            kept.to_dict()
            | {
                "path": str(kept.path),
                "oracle_r2": made.oracle_r2,
                "realised_oracle_r2": made.realised_oracle_r2,
                "by_volatility": quintiles.to_dicts(),
            }
        )
        return
    print_fields(
        {
            "name": kept.name,
            "made by": made.recipe,
            "span": f"{kept.span[0]} to {kept.span[1]}",
            "assets": str(len(kept.assets)),
            "rows": f"{kept.rows:,}",
            "oracle r2": f"{made.oracle_r2:.4%} by construction, {made.realised_oracle_r2:.4%} realised",
            "path": str(kept.path),
        }
    )
    print_table(
        ["volatility", "from", "to", "oracle R2", "realised"],
        [
            (
                f"quintile {row['bin']}",
                f"{row['volatility_from']:.3%}",
                f"{row['volatility_to']:.3%}",
                f"{row['oracle_r2']:.3%}",
                f"{row['realised_oracle_r2']:.3%}",
            )
            for row in quintiles.iter_rows(named=True)
        ],
        right=("from", "to", "oracle R2", "realised"),
    )
    if features := made.panel.feature_columns:
        listed = ", ".join(f'"{feature}"' for feature in features)
        print_wrapped(f"In a study: --data {name} --set 'data.features=[{listed}]'")


def _refuse_huge(num_assets: int | None, num_days: int | None) -> None:
    """Refuse what this machine could only begin to draw."""
    import psutil

    cells = (num_assets or 20) * (num_days or 1500)
    room = psutil.virtual_memory().available
    if cells * BYTES_A_CELL > room:
        raise Refusal(
            f"--num-assets times --num-days must fit into memory: {cells:,} prices take about "
            f"{byte_text(cells * BYTES_A_CELL)}, and {byte_text(room)} are free."
        )
