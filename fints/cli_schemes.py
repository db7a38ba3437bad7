"""The verbs of ``fints schemes``: list, show, convert."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fints.cli_completion import dataset_names, scheme_names
from fints.terminal import AsJson, Refusal, examples, print_fields, print_json, print_wrapped, refusing
from fints.words import byte_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fints.config import ModelConfig
    from fints.model import Transformer

__all__ = ["schemes"]

# The sizes at which parameters are counted.
WIDTH, SUBLAYERS = 64, 24
# The batch on which a fresh network is looked at: windows, days, and inputs of unit variance.
WINDOWS, DAYS, FEATURES = 16, 24, 8
# At random, a coefficient moves by this over the root of L: streams then grow alike at every depth.
RANDOM_SPREAD = 0.5

schemes = typer.Typer(
    rich_markup_mode=None,
    invoke_without_command=True,
    epilog=examples("fints schemes", "fints schemes show deep_norm"),
)

Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the scheme; may be repeated."),
]


@schemes.callback()
def schemes_group(context: typer.Context, as_json: AsJson = False) -> None:
    """List the residual schemes, draw one, or convert a network; without a verb: list."""
    if context.invoked_subcommand is None:
        schemes_list(as_json=as_json)


@schemes.command("list", epilog=examples("fints schemes list", "fints schemes list --json"))
def schemes_list(as_json: AsJson = False) -> None:
    """List the residual schemes: equation, size, start, paper."""
    from fints.residual import RESIDUALS

    if as_json:
        rows = [{"name": name, **_described(name)} for name in RESIDUALS]
        print_json({"width": WIDTH, "sublayers": SUBLAYERS, "schemes": rows})
        return
    for name in RESIDUALS:
        row = _described(name)
        start = "the same function as" if row["equals_pre_norm_at_start"] else "another function than"
        told: tuple[str, ...] = (
            row["equation"],
            f"parameters: {row['parameter_formula']}: "
            f"{row['extra_parameters']:+,} at D {WIDTH}, L {SUBLAYERS}",
            f"{start} Pre-Norm at the start",
            row["paper"],
        )
        print(name)
        for line in told:
            print(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    "))


@schemes.command(
    "show",
    epilog=examples(
        "fints schemes show dynamic_hyper_connections --random 1 -o mix.png",
        "fints schemes show frac_connections --depth 6 --json",
        "fints schemes show --model saved --data sp500-20",
    ),
)
def schemes_show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A name of `fints schemes list`.", show_default=False, autocompletion=scheme_names
        ),
    ] = None,
    option: Options = None,
    depth: Annotated[int, typer.Option(min=1, max=200, help="Blocks of a fresh network.")] = 12,
    width: Annotated[int, typer.Option(min=1, max=16384, help="Width of a fresh network.")] = WIDTH,
    random: Annotated[
        int | None,
        typer.Option(
            metavar="SEED",
            min=0,
            max=2**63 - 1,
            help="Move the scheme's parameters at random, as training would.",
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A saved forecaster to show, in place of a name.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Dataset whose last windows it reads; default: random inputs.", autocompletion=dataset_names
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File of the picture; default: NAME.png here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw with which weight each sublayer reads what came before it.

    A fresh network that equals Pre-Norm has the same weight everywhere: --random shows what the scheme
    can become, --model what it became.
    """
    with refusing():
        path = _picture(out, name, model)
        if model is not None:
            network, x, of = _saved(model, name, option, random, data)
        elif name is not None:
            if data is not None:
                raise ValueError("--data is for a saved forecaster (--model), which knows its features.")
            network, x, of = _fresh(name, _options(option), depth=depth, width=width, seed=random)
        else:
            raise ValueError(
                "name a scheme (see: fints schemes list), or give --model FOLDER of a saved forecaster."
            )

        from fints.diagnostics.depth_mixing import depth_mixing, reach, summary
        from fints.study.mixing_figures import draw_matrix

        mixing = depth_mixing(network, x)
        scheme, options = of["scheme"], of["options"]
        chosen = _in_words(of["chosen"])
        note = f"{of['what']}\n{chosen}".strip()
        draw_matrix(mixing.mean.tolist(), path, title=scheme.replace("_", " "), note=note)
    sizes = {
        "norm": of["norm"],
        "width": of["width"],
        "num_sublayers": len(network.branches),
    }
    described = {
        "scheme": scheme,
        "options": options,
        **_described(scheme, options, **sizes),
        "equals_pre_norm_at_start": _starts_as_pre_norm(of["config"]),
        "what": of["what"],
        "width": of["width"],
        "sublayers": len(network.branches),
        "composed": mixing.composed,
    }
    if as_json:
        matrices = {"matrix": mixing.mean.tolist(), "spread": mixing.spread.tolist()}
        print_json({**described, "picture": str(path), **matrices, "readers": reach(mixing.mean)})
        return
    print_fields(
        {
            "scheme": scheme,
            "equation": described["equation"],
            "paper": described["paper"],
            "options": _in_words(options) or "none",
            "parameters": f"{described['parameter_formula']}: {described['extra_parameters']:+,} "
            f"beyond Pre-Norm's at D {of['width']}, L {len(network.branches)}",
            "network": of["what"],
            "picture": str(path),
        }
    )
    for line in summary(mixing):
        print_wrapped(line)


@schemes.command(
    "convert",
    epilog=examples("fints schemes convert saved --to dynamic_hyper_connections --out converted"),
)
def schemes_convert(
    saved: Annotated[Path, typer.Argument(help="Folder of a saved forecaster.", show_default=False)],
    to: Annotated[
        str, typer.Option(help="The scheme to convert to.", show_default=False, autocompletion=scheme_names)
    ],
    out: Annotated[Path, typer.Option(help="Folder of the converted forecaster.", show_default=False)],
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Save a forecaster again under another scheme that forecasts the same.

    Where no exact conversion exists it is refused with the reason. Weights alone are converted: training
    goes on with a fresh optimiser.
    """
    with refusing():
        from fints.forecaster import load

        if out.resolve() == saved.resolve():
            raise ValueError(f"--out is {saved} itself; give another folder.")
        forecaster = load(saved)
        source = forecaster.experiment_.model
        converted = forecaster.converted(to, _options(option))
        folder = converted.save(out)
    from fints.model.convert import largest_difference

    network, x, _ = _saved(saved, None, None, None, None)
    config = converted.experiment_.model
    told = {
        "from": source.residual,
        "to": config.residual,
        "options": config.residual_options,
        "parameters_before": forecaster.parameter_count_,
        "parameters_after": converted.parameter_count_,
        "largest_difference": largest_difference(network, converted.model_.cpu(), x),
        "folder": str(folder),
    }
    if as_json:
        print_json(told)
        return
    chosen = ", ".join(f"{key} {value}" for key, value in config.residual_options.items())
    print_fields(
        {
            "from": source.residual,
            "to": f"{config.residual} {chosen}".strip(),
            "parameters": f"{forecaster.parameter_count_:,}, now {converted.parameter_count_:,}",
            "difference": f"{told['largest_difference']:.1e} of the largest forecast, on random windows",
            "folder": str(folder),
        }
    )
    print_wrapped("Weights alone are converted: no state of the optimiser is carried.")


def _described(
    name: str, options: dict[str, Any] | None = None, *, norm: str = "layer_norm", **sizes: int
) -> dict[str, Any]:
    """Return what a scheme says of itself."""
    from fints.residual import RESIDUALS

    scheme = RESIDUALS[name]
    given = {"width": WIDTH, "num_sublayers": SUBLAYERS} | sizes
    return {
        "equation": scheme.equation,
        "paper": scheme.paper,
        "parameter_formula": scheme.parameter_formula,
        "extra_parameters": scheme.extra_parameters(
            given["width"], given["num_sublayers"], norm=norm, **(options or {})
        ),
        "equals_pre_norm_at_start": scheme.equals_pre_norm_at_start,
    }


def _starts_as_pre_norm(config: ModelConfig) -> bool:
    """Return whether a fresh network of these options computes what Pre-Norm does, by running both."""
    import torch

    from fints.model import build

    x = torch.randn(2, DAYS, FEATURES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = replace(config, norm_eps=1e-12, dropout=0.0, value_residual="none", forecast_from="last_token")
    plain = replace(own, residual="pre_norm", residual_options={})
    forecasts = []
    with torch.no_grad():
        for each in (own, plain):
            network = build(each, num_features=FEATURES, context=DAYS, seed=0).double().eval()
            network.calibrate(x)
            forecasts.append(network(x).mean)
    difference = (forecasts[0] - forecasts[1]).abs().max()
    return bool(difference <= 1e-8 * forecasts[1].abs().max())


def _options(given: list[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE, the value as JSON if it is, else as a text."""
    options: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name):
            raise Refusal(f"--option must be NAME=VALUE; got {text!r}.")
        try:
            options[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[name.replace("-", "_")] = value
    return options


def _in_words(options: Mapping[str, Any]) -> str:
    """Return options as text; the segments of a mixture as "pre_norm 2, frac_connections 4 (m 2)"."""

    def told(value: Any) -> str:
        if not isinstance(value, list):
            return str(value)
        parts = []
        for name, blocks, *rest in value:
            inner = _in_words(rest[0]) if rest else ""
            parts.append(f"{name} {blocks}" + (f" ({inner})" if inner else ""))
        return ", ".join(parts)

    return ", ".join(f"{name} {told(value)}" for name, value in options.items())


def _picture(out: Path | None, name: str | None, model: Path | None) -> Path:
    path = out if out is not None else Path(f"{name or (model and model.resolve().name) or 'scheme'}.png")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"a picture's name must end in .png, .svg or .pdf; got {path.name!r}.")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist; make it first.")
    return path


def _fresh(
    name: str, options: dict[str, Any], *, depth: int, width: int, seed: int | None
) -> tuple[Transformer, Tensor, dict[str, Any]]:
    """Build a network of one scheme, and a batch for it."""
    import psutil
    import torch

    from fints.config import ModelConfig
    from fints.model import build
    from fints.residual import options_of

    # Twice: what is drawn, and what it is drawn from.
    need, room = 2 * 4 * 12 * width**2 * depth, psutil.virtual_memory().available
    if need > room:
        raise ValueError(
            f"--depth {depth} and --width {width} make a network of about {byte_text(need)}, and "
            f"{byte_text(room)} of memory are free: draw a smaller one."
        )
    heads = next(heads for heads in (4, 2, 1) if width % heads == 0)
    config = ModelConfig(
        residual=name,
        residual_options=options,
        depth=depth,
        width=width,
        num_heads=heads,
        forecast_from="last_token",
    )
    network = build(config, num_features=FEATURES, context=DAYS, seed=0).eval()
    # A fit never starts from the constants of a scheme that measures them first.
    network.calibrate(torch.randn(WINDOWS, DAYS, FEATURES, generator=torch.Generator().manual_seed(1)))
    generator = torch.Generator().manual_seed(0 if seed is None else seed)
    if seed is not None:
        spread = RANDOM_SPREAD / len(network.branches) ** 0.5
        with torch.no_grad():
            for parameter in network.residual.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise.to(parameter.dtype), alpha=spread)
    what = f"{_blocks(depth)}, fresh" + (f", moved at random (seed {seed})" if seed is not None else "")
    x = torch.randn(WINDOWS, DAYS, FEATURES, generator=generator)
    return network, x, _told(config, options_of(name), what)


def _saved(
    folder: Path,
    name: str | None,
    option: list[str] | None,
    seed: int | None,
    dataset: str | None,
) -> tuple[Transformer, Tensor, dict[str, Any]]:
    """Read a saved forecaster's network, and a batch for it."""
    import torch

    from fints.forecaster import load
    from fints.residual import options_of

    if option or seed is not None:
        raise ValueError("--option and --random are for a fresh network; --model shows a saved one as it is.")
    forecaster = load(folder)
    config = forecaster.experiment_.model
    if name is not None and name != config.residual:
        raise ValueError(f"{folder} was trained with {config.residual}, not with {name}; leave the name out.")
    network: Transformer = forecaster.model_.cpu()
    if dataset is None:
        shape = (WINDOWS, forecaster.experiment_.data.context, len(forecaster.experiment_.data.features))
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        read = "random inputs"
    else:
        from fints.data import load as load_data

        windows = forecaster.windows(load_data(dataset))
        last = torch.arange(max(0, len(windows) - 4 * WINDOWS), len(windows))
        x, read = windows.gather(last)[0], f"the last windows of {dataset}"
    what = f"{_blocks(config.depth)}, trained until {forecaster.model_as_of_}, on {read}"
    return network, x, _told(config, options_of(config.residual), what)


def _told(config: ModelConfig, defaults: dict[str, Any], what: str) -> dict[str, Any]:
    return {
        "scheme": config.residual,
        "options": defaults | config.residual_options,
        "chosen": config.residual_options,
        "config": config,
        "norm": config.norm,
        "width": config.width,
        "what": what,
    }


def _blocks(depth: int) -> str:
    return f"{depth} block{'' if depth == 1 else 's'}"
