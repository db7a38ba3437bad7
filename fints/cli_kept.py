"""``fints study list | disk | delete``: the studies that a results folder keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fints.cli_completion import study_names
from fints.cli_scale import study
from fints.terminal import (
    AsJson,
    Yes,
    confirmed,
    examples,
    failing,
    print_json,
    print_table,
    print_wrapped,
    refusing,
)
from fints.words import byte_text, counted

__all__ = ["study"]

Root = Annotated[
    Path | None, typer.Option(help="Folder of the results; default: FINTS_HOME, else your data folder.")
]


@study.command("list", epilog=examples("fints study list", "fints study list --root results --json"))
def study_list(root: Root = None, as_json: AsJson = False) -> None:
    """List the studies that were run on this machine."""
    from fints.data import home
    from fints.study.kept import kept_studies

    with refusing():
        kept = kept_studies(root or home())
    if as_json:
        print_json({"root": str((root or home()).resolve()), "studies": [one.to_dict() for one in kept]})
        return
    if not kept:
        print_wrapped(f"No study has been run in {root or home()} yet.")
        return
    rows = [(one.name, str(one.fits), f"{one.changed:%Y-%m-%d %H:%M} UTC") for one in kept]
    print_table(["study", "fits", "changed"], rows, right=("fits",))


@study.command("disk", epilog=examples("fints study disk", "fints study disk residual_by_depth --json"))
def study_disk(
    name: Annotated[
        str | None,
        typer.Argument(
            help="NAME or NAME/LABEL; default: all.", show_default=False, autocompletion=study_names
        ),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Show what studies take on the disk, by what it is."""
    from fints.data import home
    from fints.study.kept import PARTS, find_kept, kept_studies, sizes

    place = root or home()
    with refusing():
        kept = kept_studies(place) if name is None else find_kept(place, name)
        taken = {one.name: sizes(one) for one in kept}
    store = sum(path.stat().st_size for path in place.glob("mlflow.db*"))
    if as_json:
        rows = [{"study": one, **parts, "total": sum(parts.values())} for one, parts in taken.items()]
        print_json({"root": str(place.resolve()), "studies": rows, "mlflow_store": store})
        return
    # A study has a block of its own: eleven columns would not fit.
    for one, parts in taken.items():
        print(f"{one}: {byte_text(sum(parts.values()))}")
        told = [f"{part} {byte_text(parts[part])}" for part in PARTS if parts[part]]
        print_wrapped("  " + ", ".join(told))
    total = sum(sum(parts.values()) for parts in taken.values())
    print_wrapped(f"{counted(len(taken), 'study', 'studies')}: {byte_text(total)} in {place}")
    if store:
        print_wrapped(f"MLflow's store of all studies there (mlflow.db): {byte_text(store)}")


@study.command(
    "delete",
    epilog=examples(
        "fints study delete residual_by_depth/smoke-sp500-20",
        "fints study delete residual_by_depth --tracking --yes",
    ),
)
def study_delete(
    name: Annotated[
        str,
        typer.Argument(
            help="NAME/LABEL, or NAME: all of that name.", show_default=False, autocompletion=study_names
        ),
    ],
    tracking: Annotated[
        bool, typer.Option("--tracking", help="Also its runs and models in the MLflow store there.")
    ] = False,
    root: Root = None,
    yes: Yes = False,
) -> None:
    """Delete a study's fits, tables and report from this machine."""
    from fints.data import home
    from fints.study.kept import delete_study, find_kept, sizes

    with refusing():
        kept = find_kept(root or home(), name)
        taken = {one.name: sizes(one) for one in kept}
    if not tracking:
        taken = {one: {**parts, "mlflow": 0} for one, parts in taken.items()}
    what = ", ".join(
        f"{one.name} ({counted(one.fits, 'fit')}, {byte_text(sum(taken[one.name].values()))})" for one in kept
    )
    if not confirmed(f"Delete {what} from {kept[0].folder.root}?", yes):
        return
    freed = 0
    for one in kept:
        with refusing(), failing():
            freed += delete_study(one, tracking=tracking)
    print_wrapped(f"deleted: {what}; {byte_text(freed)} are free again.")
    if not tracking:
        print_wrapped(
            "Its runs in MLflow are left: --tracking deletes those of the store in the results folder; those "
            "of a server are deleted on its pages."
        )
