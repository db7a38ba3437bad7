"""The verbs of ``fints schemes``: list."""

from __future__ import annotations

import textwrap

import typer

from fints.terminal import AsJson, print_json

__all__ = ["schemes"]

# The sizes at which parameters are counted.
WIDTH, SUBLAYERS = 64, 24

schemes = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@schemes.callback()
def schemes_group(context: typer.Context, as_json: AsJson = False) -> None:
    """List the residual schemes, or draw one; without a verb: list."""
    if context.invoked_subcommand is None:
        schemes_list(as_json=as_json)


@schemes.command("list")
def schemes_list(as_json: AsJson = False) -> None:
    """List the residual schemes: equation, size, start, paper."""
    from fints.residual import RESIDUALS

    rows = [
        {
            "name": name,
            "equation": scheme.equation,
            "paper": scheme.paper,
            "parameter_formula": scheme.parameter_formula,
            "extra_parameters": scheme.extra_parameters(WIDTH, SUBLAYERS, norm="layer_norm"),
            "equals_pre_norm_at_start": scheme.equals_pre_norm_at_start,
        }
        for name, scheme in RESIDUALS.items()
    ]
    if as_json:
        print_json({"width": WIDTH, "sublayers": SUBLAYERS, "schemes": rows})
        return
    for row in rows:
        start = "the same function as" if row["equals_pre_norm_at_start"] else "another function than"
        told = (
            row["equation"],
            f"parameters: {row['parameter_formula']}: "
            f"{row['extra_parameters']:+,} at D {WIDTH}, L {SUBLAYERS}",
            f"{start} Pre-Norm at the start",
            row["paper"],
        )
        print(row["name"])
        for line in told:
            print(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    "))
