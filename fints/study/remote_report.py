"""The report of a shared study on a machine that has only the address of its storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fints.study.addresses import one_line
from fints.study.assemble import assemble
from fints.study.scale import study_cells
from fints.study.shared import SharedStore
from fints.study.shared_open import open_shared
from fints.study.store import StudyFolder, parts_of, write_json

__all__ = ["fetch_tables", "find_study", "report_stored"]


def fetch_tables(storage: str, name: str, folder: StudyFolder) -> list[str]:
    """Bring a study's finished fits into `folder` and make its tables of them; return what is to be told.

    Raises
    ------
    ValueError
        If the storage cannot be used, does not have the study, or has no final fit of it.
    """
    store = open_shared(storage)
    try:
        told = store.study(name)
        spec = {**told["spec"], **{word: told["facts"][word] for word in ("commit", "command")}}
        standing = study_cells(store, name)
        lines: list[str] = []
        cells = []
        with folder.held():
            write_json(folder.path / "study.json", spec)
            write_json(folder.baselines, told["baselines"])
            folder.set_aside_damaged()
            for key, cell in standing.finished.items():
                try:
                    store.get_fit(name, key, folder.fit(key), tmp=folder.tmp)
                    cells.append(cell)
                except ValueError as error:
                    lines.append(f"left out: {cell}: {one_line(error)}")
            if not any(cell.role == "final" for cell in cells):
                raise ValueError(
                    f"no final fit of {name} is finished in {store.shown}: nothing to report yet."
                )
            assemble(folder.path, cells, spec)
        return lines
    finally:
        store.close()


def report_stored(storage: str, name: str, root: Path) -> tuple[Path, list[str], Any]:
    """Write the report of a stored study under `root`; return its page, what to tell, and the analysis."""
    from fints.study.analysis import analyse
    from fints.study.assemble import table_spec
    from fints.study.report import write_report

    folder = StudyFolder(root.expanduser().resolve(), *parts_of(name))
    lines = fetch_tables(storage, name, folder)
    analysis = analyse(table_spec(folder.path), folder.path)
    return write_report(analysis, folder.path), lines, analysis


def find_study(store: SharedStore, wanted: str | None) -> str:
    """Return the one study that `wanted` means: its whole name, or that of its file if it is unmistakable.

    Raises
    ------
    ValueError
        If there is none or more than one, with the names that there are.
    """
    names = store.studies()
    found = [name for name in names if wanted is None or wanted in (name, name.partition("/")[0])]
    if len(found) == 1:
        return found[0]
    known = ", ".join(found or names) or "none"
    fault = "has more than one" if found else "does not have it"
    asked = "one study" if wanted is None else f"study {wanted!r}"
    raise ValueError(
        f"--study must name one study: {asked} was asked for and {store.shown} {fault}: {known}."
    )
