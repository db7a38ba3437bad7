"""``fints evaluate``: judge anyone's forecast table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fints.cli_completion import dataset_names
from fints.terminal import (
    AsJson,
    examples,
    print_fields,
    print_json,
    print_table,
    print_wrapped,
    refusing,
)
from fints.words import counted

if TYPE_CHECKING:
    import polars as pl

    from fints.evaluation.judge import Judgement

__all__ = ["EXAMPLES", "evaluate"]

EXAMPLES = examples(
    "fints evaluate forecasts.parquet --panel sp500-20",
    "fints evaluate mine.csv --panel prices.csv --horizon 5 --trials 40",
    "fints evaluate mine.csv --panel sp500-20 --figure judged.png",
    "fints evaluate mine.csv --date day --forecast pred --realised ret --json",
)

# The median distance of an asset's opens from its closes beyond which they are not the same prices, in logs.
LARGEST_GAP = 0.1
OTHER_SCALE = "The panel's opens are not on the scale of its price (adjusted otherwise?) and are not used."
PERCENT = {"r2_zero", "r2_mean", "r2_precision", "r2_median_asset", "coverage_50", "coverage_90"}
METRICS = {
    "r2_zero": "R² against zero (%)",
    "r2_mean": "R² against prevailing mean (%)",
    "r2_precision": "R² weighted by precision (%)",
    "r2_median_asset": "R² of the median asset (%)",
    "slope": "slope (1: right size)",
    "forecast_sd_ratio": "sd of forecast / outcome",
    "ic": "IC",
    "rank_ic": "rank IC",
    "rank_ic_ir": "rank IC / its sd, a date",
    "log_score": "log score (nats)",
    "crps": "CRPS",
    "coverage_50": "inside 50 % interval (%)",
    "coverage_90": "inside 90 % interval (%)",
    "share_of_oracle": "share of oracle",
}
TESTS = {
    "clark_west_zero": "Clark-West against zero",
    "clark_west_mean": "Clark-West against prevailing mean",
    "pesaran_timmermann": "Pesaran-Timmermann (sign)",
    "rank_ic": "mean rank IC is 0 (two-sided)",
}


def evaluate(
    forecasts: Annotated[
        Path, typer.Argument(help="A parquet or CSV table of forecasts.", show_default=False)
    ],
    panel: Annotated[
        str | None,
        typer.Option(
            help="Prices to join: a dataset's name or a file.",
            show_default=False,
            autocompletion=dataset_names,
        ),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Trading days forecast; default: the table's column, else 1.")
    ] = None,
    date: Annotated[str | None, typer.Option(help="Column of the decision date.")] = None,
    asset: Annotated[str | None, typer.Option(help="Column of the asset.")] = None,
    forecast: Annotated[str | None, typer.Option(help="Column of the forecast.")] = None,
    realised: Annotated[str | None, typer.Option(help="Column of the outcome, used without a panel.")] = None,
    returns: Annotated[str, typer.Option(help="Units of the outcome: log or simple returns.")] = "log",
    execution: Annotated[
        str | None,
        typer.Option(help="next_open, next_close or same_close; default: next_open where there are opens."),
    ] = None,
    cost_bps: Annotated[float, typer.Option(help="Cost of a trade, in basis points of its value.")] = 5.0,
    trials: Annotated[
        int, typer.Option(help="How many models and settings were tried on these dates, failed ones too.")
    ] = 1,
    figure: Annotated[Path | None, typer.Option(help="Draw to this .png or .svg file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a table of forecasts: metrics, tests, portfolios, verdict."""
    named = {"date": date, "asset": asset, "forecast": forecast, "realised": realised}
    names = {name: column for name, column in named.items() if column is not None}
    with refusing():
        told, judged, frame = _judge(
            forecasts,
            panel=panel,
            horizon=horizon,
            names=names,
            returns=returns,
            execution=execution,
            cost_bps=cost_bps,
            trials=trials,
        )
        if figure is not None:
            from fints.evaluation.figure import draw

            draw(judged, frame, figure)
    if as_json:
        print_json({**told, **judged.to_dict()})
        return
    _print(told, judged)
    if figure is not None:
        print(f"Drawn: {figure}")


def _judge(
    path: Path,
    *,
    panel: str | None,
    horizon: int | None,
    names: dict[str, str],
    returns: str,
    execution: str | None,
    cost_bps: float,
    trials: int,
) -> tuple[dict[str, Any], Judgement, pl.DataFrame]:
    """Read, join and judge; returns what is said about the input, the judgement and the judged frame."""
    from fints.evaluation import EXECUTIONS, forecast_table, join_outcomes, prevailing_mean
    from fints.evaluation.judge import judge

    if returns not in ("log", "simple"):
        raise ValueError(f"--returns must be log or simple; got {returns!r}.")
    if not (math.isfinite(cost_bps) and cost_bps >= 0):
        raise ValueError(f"--cost-bps must be a finite number of at least 0; got {cost_bps}.")
    if execution is not None and execution not in EXECUTIONS:
        raise ValueError(f"--execution must be one of {', '.join(EXECUTIONS)}; got {execution!r}.")
    table = forecast_table(_read(path), names=names, horizon=horizon)
    days = table.horizon if table.horizon is not None else 1
    notes: list[str] = []
    prices: pl.DataFrame | None = None
    if panel is not None:
        outcomes, prices, notes = _outcomes(panel, days, returns, table.frame)
        if "realised" in table.frame.columns:
            notes += _disagreement(table.frame, outcomes)
        table = join_outcomes(table, outcomes)
        source = f"{returns} return over the next {_days(days)}, close to close, from {panel}"
    elif "realised" not in table.frame.columns:
        raise ValueError(
            "the table has no outcomes: give --panel (prices to join), or --realised with the column that "
            "holds the return over the forecast's horizon."
        )
    else:
        mean = prevailing_mean(table.frame, horizon=days)
        table_frame = table.frame.with_columns(prevailing_mean=mean.fill_null(0.0))
        source = f"column {table.read_as['realised']!r} of the table"
        notes.append(
            "Without a panel there are no portfolios, and the prevailing mean knows this table's dates only."
        )
    frame = table.frame if panel is not None else table_frame
    frame, law = _with_law(frame)
    notes += law
    how = execution or ("next_open" if prices is not None and "open" in prices.columns else "next_close")
    if execution is None and prices is not None and how == "next_close":
        absent = "Without opens" if OTHER_SCALE in notes else "The panel has no opens"
        notes.append(f"{absent}: positions are taken at the next close, not at the next open.")
    judged = judge(
        frame,
        horizon=days,
        prices=prices,
        execution=how,
        cost_bps=cost_bps,
        trials=trials,
    )
    spans = frame.drop_nulls("realised")["date"]
    told: dict[str, Any] = {
        "forecasts": str(path),
        "read_as": table.read_as,
        "outcomes": source,
        "from": str(spans.min()),
        "to": str(spans.max()),
        "left_out": table.left_out,
        "execution": how if prices is not None else None,
        "notes": notes,
    }
    return told, judged, frame


def _read(path: Path) -> pl.DataFrame:
    import polars as pl

    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    kind = path.suffix.lower()
    try:
        if kind in (".parquet", ".pq"):
            return pl.read_parquet(path)
        if kind in (".csv", ".txt"):
            return pl.read_csv(path, infer_schema_length=None)
        if kind in (".arrow", ".feather", ".ipc"):
            return pl.read_ipc(path)
    except pl.exceptions.PolarsError as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"{path.name} is empty or damaged, or not what its ending says: {first}.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{path.name} must be a file that can be read, and cannot: {reason}.") from error
    raise ValueError(f"{path.name}: a table is .parquet, .csv or .arrow; got {kind or 'no ending'!r}.")


def _outcomes(
    name: str, horizon: int, returns: str, forecasts: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Return outcomes for every row of the panel, the prices to trade at, and notes."""
    import polars as pl

    from fints.data import load, targets
    from fints.data.catalog import seal
    from fints.evaluation import prevailing_mean

    panel = load(name)
    notes = []
    sealed = seal(panel)
    if sealed is not None and (late := forecasts.filter(pl.col("date") >= sealed).height):
        notes.append(
            f"{counted(late, 'forecast')} dated from {sealed} on, which this panel keeps sealed for a final "
            "look: "
            "whoever judges on them has used them up."
        )
    scaled = targets(panel, "volatility_scaled", horizon).select("date", "asset", "scale")
    labels = targets(panel, "log_return", horizon).drop("scale").rename({"target": "realised"})
    if returns == "simple":
        labels = labels.with_columns(pl.col("realised").exp() - 1)
    labels = labels.with_columns(prevailing_mean=prevailing_mean(labels).fill_null(0.0))
    outcomes = labels.join(scaled, on=["date", "asset"], how="left").select(
        "date", "asset", "realised", "prevailing_mean", variance=pl.col("scale") ** 2
    )
    opens = next((name for name in panel.feature_columns if name.casefold() == "open"), None)
    if opens is not None:
        # On another scale (not adjusted as the price is), they would earn every split as a return.
        gap = (pl.col(opens) / pl.col(panel.price)).log().abs().median().over("asset").max()
        widest = panel.frame.filter(pl.col(opens) > 0).select(gap).item()
        if widest is None or widest > LARGEST_GAP:
            notes.append(OTHER_SCALE)
            opens = None
    columns = {"close": panel.price, **({} if opens is None else {"open": opens})}
    prices = panel.frame.select("date", "asset", **{new: pl.col(old) for new, old in columns.items()})
    return outcomes, prices, notes


def _disagreement(forecasts: pl.DataFrame, outcomes: pl.DataFrame) -> list[str]:
    import polars as pl

    both = (
        forecasts.select("date", "asset", told="realised").join(outcomes, on=["date", "asset"]).drop_nulls()
    )
    off = both.filter((pl.col("told") - pl.col("realised")).abs() > 1e-6 + 0.01 * pl.col("realised").abs())
    if not off.height:
        return []
    date, asset, told, found = off.sort("date", "asset").select("date", "asset", "told", "realised").row(0)
    return [
        f"{off.height:,} of {counted(both.height, 'outcome')} of the table differ from the panel's, first "
        f"{date} "
        f"{asset}: {told:.6g} and {found:.6g}. The panel's are used. Are units, horizon and dates the same?"
    ]


def _with_law(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Turn the table's `scale` into `log_scale` where its law is known: a Gaussian, or a t with `degrees`."""
    import polars as pl

    if "scale" not in frame.columns or frame["scale"].null_count() == frame.height:
        return frame, []
    known = frame.filter(pl.col("scale") > 0)
    if known.height < frame.height:
        return frame, ["The column scale is not above 0 on every row: the distribution is not scored."]
    if "degrees" not in frame.columns and {"q05", "q95"} <= set(frame.columns):
        width = (pl.col("q95") - pl.col("q05")) / (2 * 1.6448536269514722 * pl.col("scale"))
        if frame.filter((width - 1).abs() > 1e-3).height:
            inside = pl.col("realised").is_between(pl.col("q05"), pl.col("q95"))
            share = frame.drop_nulls("realised").select(inside.mean()).item()
            return frame, [
                f"{100 * share:.1f} % of outcomes lie between q05 and q95 (90 % should). These quantiles are "
                "not a Gaussian's and there is no column degrees: no log score, no CRPS."
            ]
    return frame.with_columns(log_scale=pl.col("scale").log()), []


def _print(told: dict[str, Any], judged: Judgement) -> None:
    span = f"{told['from']} to {told['to']}"
    renamed = [f"{name} = {column}" for name, column in told["read_as"].items() if name != column]
    fields: dict[str, Any] = {
        "forecasts": f"{told['forecasts']}: {counted(judged.rows, 'row')}, "
        f"{counted(judged.dates, 'date')} ({span}), {counted(judged.assets, 'asset')}",
        "outcomes": told["outcomes"],
    }
    if renamed:
        fields["read as"] = ", ".join(renamed)
    if told["left_out"]:
        fields["left out"] = ", ".join(f"{count:,} {reason}" for reason, count in told["left_out"].items())
    print_fields(fields)
    print()
    print_table(["metric", "value", "95 % interval"], _metric_rows(judged), right=("value", "95 % interval"))
    print()
    print_table(["test", "statistic", "p"], _test_rows(judged), right=("statistic", "p"))
    if judged.portfolios:
        first = judged.portfolios[0]
        print(f"\nPortfolios: {first['execution'].replace('_', ' ')}, {first['cost_bps']:g} bp a trade")
        columns, rows = _portfolio_rows(judged)
        print_table(columns, rows, right=tuple(columns[1:]))
    print()
    counts = "counts as" if judged.assets == 1 else "count as"
    print_wrapped(
        f"Power: {counted(judged.assets, 'asset')} {counts} {judged.effective_assets:.1f} independent; a "
        f"true R² of {100 * judged.detectable_r2:.2g} % is found with 80 % probability."
    )
    if judged.portfolios and judged.portfolios[0]["trials"] == 1:
        print_wrapped("Sharpe ratios are those of one trial: if you tried more on these dates, say --trials.")
    for note in told["notes"]:
        print_wrapped(f"Note: {note}")
    for warning in judged.warnings:
        print_wrapped(f"Warning: {warning}")
    print()
    print_wrapped(judged.verdict)


def _metric_rows(judged: Judgement) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, title in METRICS.items():
        if name not in judged.estimates:
            continue
        one = judged.estimates[name]
        factor = 100.0 if name in PERCENT else 1.0
        if one.value is None:
            rows.append((title, "–", ""))
            continue
        spread = 0.0 if one.low is None or one.high is None else one.high - one.low
        digits = _digits(factor * (spread or one.value))
        interval = (
            ""
            if one.low is None or one.high is None
            else f"{_number(factor * one.low, digits)} to {_number(factor * one.high, digits)}"
        )
        rows.append((title, _number(factor * one.value, digits), interval))
    return rows


def _test_rows(judged: Judgement) -> list[tuple[str, ...]]:
    return [
        (
            title,
            "–" if (t := judged.tests[name].statistic) is None else _number(t, 2),
            "–" if (p := judged.tests[name].p) is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
        )
        for name, title in TESTS.items()
        if name in judged.tests
    ]


def _portfolio_rows(judged: Judgement) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return one column a portfolio: what is said of each is too much for one row of 80."""
    lines: dict[str, tuple[str, float, int]] = {
        "return a year, gross (%)": ("gross_return", 100, 2),
        "return a year, net (%)": ("net_return", 100, 2),
        "volatility a year (%)": ("volatility", 100, 2),
        "Sharpe ratio, gross": ("sharpe_gross", 1, 2),
        "Sharpe ratio, net": ("sharpe_net", 1, 2),
        "probabilistic Sharpe": ("probabilistic_sharpe", 1, 3),
        "deflated Sharpe": ("deflated_sharpe", 1, 3),
        "largest drawdown (%)": ("drawdown", 100, 1),
        "turnover a date": ("turnover", 1, 2),
        "leverage": ("leverage", 1, 2),
        "break-even cost (bp)": ("break_even_bps", 1, 2),
    }
    columns = ["", *(one["portfolio"].replace("_", " ") for one in judged.portfolios)]
    rows = []
    for title, (name, factor, digits) in lines.items():
        values = (one[name] for one in judged.portfolios)
        rows.append((title, *("–" if v is None else _number(factor * v, digits) for v in values)))
        if name == "sharpe_net":
            ranges = (
                "–"
                if one["sharpe_low"] is None
                else f"{_number(one['sharpe_low'], 2)} to {_number(one['sharpe_high'], 2)}"
                for one in judged.portfolios
            )
            rows.append(("  95 % interval", *ranges))
    return columns, rows


def _digits(size: float) -> int:
    """Return decimals that show two digits of a number of this size."""
    return max(0, min(6, 1 - math.floor(math.log10(abs(size))))) if size else 2


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def _days(count: int) -> str:
    return "day" if count == 1 else counted(count, "day")
