"""Build the API reference from the docstrings: a page a package, readable without a network.

    pip install '/path/to/fints[docs]'
    python docs/build_reference.py --out reference

Every public name must have a docstring, and pdoc must have nothing to warn of; else this ends with 1.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["MODULES", "public", "undocumented"]

# What a user imports from; the files of a package are its own affair, but for one adapter an engine.
MODULES = (
    "fints",
    "fints.config",
    "fints.data",
    "fints.residual",
    "fints.model",
    "fints.training",
    "fints.evaluation",
    "fints.diagnostics",
    "fints.interventions",
    "fints.backtest",
    "fints.backtest.alphalens",
    "fints.backtest.backtesting_py",
    "fints.backtest.bt",
    "fints.backtest.qlib",
    "fints.backtest.skfolio",
    "fints.backtest.vectorbt",
    "fints.backtest.zipline",
    "fints.study",
)


def public() -> Iterator[tuple[str, Any]]:
    """Give every public name and what it stands for: modules, what they list, methods of listed classes."""
    for name in MODULES:
        module = importlib.import_module(name)
        yield name, module
        for listed in module.__all__:
            value = getattr(module, listed)
            if not callable(value) or not inspect.getmodule(value).__name__.startswith("fints"):
                continue
            yield f"{name}.{listed}", value
            if inspect.isclass(value):
                for own, member in vars(value).items():
                    if not own.startswith("_") and (
                        inspect.isfunction(member) or isinstance(member, property)
                    ):
                        yield f"{name}.{listed}.{own}", getattr(value, own)


def undocumented() -> list[str]:
    """Return the public names without a docstring; an override has that of the interface."""
    return [name for name, value in public() if not (inspect.getdoc(value) or "").strip()]


def build(out: Path) -> None:
    """Write the pages into a folder; a warning is an error."""
    import pdoc
    import pdoc.render

    for name in MODULES:
        _resolve(importlib.import_module(name))
    pdoc.render.configure(docformat="numpy", math=False, search=True, show_source=False, footer_text="fints")
    listed = "|".join(name.replace(".", r"\.") for name in MODULES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Types imported for type checkers only, and those of named tuples, are shown as they are written.
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        pdoc.pdoc(*MODULES, rf"!(?!(?:{listed})$).*", output_directory=out)


def _resolve(module: ModuleType) -> None:
    """Put names that are resolved on first use where a reader of the module's dictionary finds them."""
    for name in module.__all__:
        setattr(module, name, getattr(module, name))


def main() -> int:
    """Build, or say what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("reference"))
    given = parser.parse_args()
    if missing := undocumented():
        print(f"error: no docstring: {', '.join(missing)}", file=sys.stderr)
        return 1
    build(given.out)
    pages = sorted(given.out.rglob("*.html"))
    print(f"{len(pages)} pages; begin at {given.out / 'fints.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
