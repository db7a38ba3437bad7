"""``fints worker``, ``fints study ...`` and ``fints server``: studies that many machines work on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fints.terminal import AsJson, Refusal, examples, failing, print_json, print_table, refusing

__all__ = ["SERVER_EXAMPLES", "WORKER_EXAMPLES", "server", "study", "worker"]

WORKER_EXAMPLES = examples(
    "fints worker --storage postgresql+psycopg://fints@db/fints",
    "fints worker --study residual_by_depth --workers 4 \\",
    "    --storage postgresql+psycopg://fints@db/fints \\",
    "    --tracking-uri http://db:5000",
)
SERVER_EXAMPLES = examples(
    "fints server --port 5000",
    "fints server --store postgresql+psycopg://fints@db/mlflow \\",
    "    --host 0.0.0.0 --allowed-host tracking",
)

Storage = Annotated[
    str,
    typer.Option(
        envvar="FINTS_STORAGE",
        show_envvar=False,
        help="Database that the machines share, postgresql+psycopg://... (FINTS_STORAGE).",
        show_default=False,
    ),
]
Name = Annotated[
    str | None, typer.Option("--study", help="Its name, or name/preset-dataset.", show_default=False)
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        envvar="MLFLOW_TRACKING_URI", show_envvar=False, help="MLflow server (MLFLOW_TRACKING_URI)."
    ),
]

study = typer.Typer(
    rich_markup_mode=None,
    epilog=examples(
        "fints study list",
        "fints study disk",
        "fints study status --storage postgresql+psycopg://fints@db/fints",
    ),
)


def worker(
    storage: Storage,
    name: Name = None,
    tracking_uri: TrackingUri = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Fits at a time.")] = 1,
    scratch: Annotated[
        Path | None,
        typer.Option(help="Keep checkpoints of long fits here; else a folder that ends with the worker."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the dataset is here, if not where the study says.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines, draw no grid of the fits.")] = False,
) -> None:
    """Take fits of a study until none is left, from any machine."""
    import shutil
    import signal
    import tempfile

    from rich.console import Console

    from fints.study.grid import grid_of_study
    from fints.study.planned import Planned
    from fints.study.progress import Report
    from fints.study.remote_report import find_study
    from fints.study.scale import work
    from fints.study.shared_open import RESTART_S, open_existing
    from fints.study.stores import check_tracker

    with refusing(), failing():
        # A server may be away for the moment; what is no server is refused at once.
        if tracking_uri and not tracking_uri.startswith(("http://", "https://")):
            check_tracker(Path(), tracking_uri)
        store = open_existing(storage, wait=RESTART_S)
        place = scratch or Path(tempfile.mkdtemp(prefix="fints-worker-"))
        try:
            found = find_study(store, name)
            console = Console() if Console().is_terminal else Console(width=80)
            console.print(f"working on {found}", highlight=False, markup=False)
            planned = Planned(store.study(found)["spec"])
            grid = None if plain else grid_of_study(planned)
            with Report(
                console, total=planned.total, work=planned.seconds, workers=workers, grid=grid
            ) as report:
                outcome = work(
                    store,
                    found,
                    report,
                    workers=workers,
                    tracking_uri=tracking_uri,
                    scratch=place,
                    data=data,
                )
        except OSError as error:
            raise Refusal(f"--scratch {place} must be a folder with room to write: {error}.") from error
        finally:
            store.close()
            if scratch is None:
                shutil.rmtree(place, ignore_errors=True)
    if outcome.signal:
        print(f"stopped by {signal.Signals(outcome.signal).name}: what was begun is given back to the queue.")
        raise typer.Exit(128 + outcome.signal)
    for failure in outcome.failures:
        print(f"failed for good: {failure}")
    if outcome.untracked:
        print(f"tracking failed ({outcome.untracked}): MLflow is behind until the study is run again.")
    print(f"nothing is left to do: {outcome.finished} of {outcome.total} fits are finished.")
    raise typer.Exit(1 if outcome.failures or outcome.untracked else 0)


@study.command(
    epilog=examples(
        "fints study status --storage postgresql+psycopg://fints@db/fints",
        "fints study status --study residual_by_depth --json  # FINTS_STORAGE is set",
    )
)
def status(storage: Storage, name: Name = None, as_json: AsJson = False) -> None:
    """Show how far studies are that machines share: fits, failures, rate, time left, workers."""
    from fints.study.remote_report import find_study
    from fints.study.shared_open import open_existing
    from fints.study.status import study_status

    with refusing(), failing():
        store = open_existing(storage)
        try:
            names = [find_study(store, name)] if name else store.studies()
            found = [study_status(store, each) for each in names]
        finally:
            store.close()
    if as_json:
        print_json({"studies": [each.to_dict() for each in found]})
        return
    print_table(
        ["study", "done", "running", "waiting", "failed", "an hour", "left", "workers"],
        [each.row() for each in found],
        right=("done", "running", "waiting", "failed", "an hour", "left", "workers"),
    )
    for each in found:
        for line in each.failures:
            print(f"failed for good: {line}")


@study.command(
    epilog=examples(
        "fints study report --storage postgresql+psycopg://fints@db/fints",
        "fints study report --root results --json  # FINTS_STORAGE is set",
    )
)
def report(
    storage: Storage,
    name: Name = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the results; default: FINTS_HOME, else your data folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a study from its storage alone, without its file or folder."""
    from fints.data import home
    from fints.study.remote_report import find_study, report_stored
    from fints.study.shared_open import open_existing

    with refusing(), failing():
        store = open_existing(storage)
        try:
            found = find_study(store, name)
        finally:
            store.close()
        page, lines, analysis = report_stored(storage, found, root or home())
    if as_json:
        from fints.study.as_json import report_told

        print_json(report_told(analysis, page, left_out=lines))
        return
    for line in lines:
        print(line)
    print(f"report: {page}")


@study.command(
    epilog=examples(
        "fints study move ~/.local/share/fints/residual_by_depth/quick-sp500-20 \\",
        "    --storage postgresql+psycopg://fints@db/fints",
    )
)
def move(
    folder: Annotated[Path, typer.Argument(help="ROOT/STUDY/PRESET-DATASET, the folder of a study.")],
    storage: Storage,
) -> None:
    """Take a study that was begun on one machine to a shared database; its folder stays as it is."""
    from fints.study.move import move_study

    with refusing(), failing():
        for line in move_study(folder, storage):
            print(line)


def server(
    folder: Annotated[
        Path | None, typer.Option(help="Where its store and artifacts are; default: server/ in FINTS_HOME.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="FINTS_SERVER_STORE",
            show_envvar=False,
            help="Database of its runs, postgresql+psycopg://... (FINTS_SERVER_STORE); default: SQLite.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Who may ask: this machine only, unless told.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name under which workers call it; this machine's own need no naming. Repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve MLflow to the workers of a study, with the settings that make it quick.

    The queue of a shared study has pages of its own: pip install 'optuna-dashboard>=0.21', then
    optuna-dashboard with the address of the storage.
    """
    from fints.data import home
    from fints.study.server import serve

    with refusing():
        code = serve(folder or home() / "server", store=store, host=host, port=port, named=allowed_host or ())
    if code not in (0, 130, 143):
        raise Refusal(f"MLflow ended with code {code}; what it said is above.")
    raise typer.Exit(code)
