"""The answer beside the question: a report's Markdown, its figures and its fits where they can be committed.

They lie in ``NAME.md``, ``figures/NAME/`` and ``published/NAME/LABEL/`` beside NAME.py. The last is not
called `results`: a root of runs of that name may lie there too, and holds ``NAME/LABEL/`` as well. What a
preset beside the usual sizes asks, of controls or of sealed dates, is another question than the study's own:
it has a page ``NAME_PRESET.md`` and figures of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["page_name", "place_of", "publish", "root_of_runs"]

PUBLISHED = "published"
# Presets that ask the study's own question, at one size or another: the last that is published stands.
SIZES = ("smoke", "quick", "standard", "full")


def page_name(beside: Path, preset: str) -> str:
    """Return the name of the page of a preset of the study in the file `beside`, without its suffix."""
    return beside.stem if preset in SIZES else f"{beside.stem}_{preset}"


def place_of(beside: Path, label: str) -> Path:
    """Return where fits of the study in the file `beside` are committed; `label` as in `StudyFolder`."""
    return beside.parent / PUBLISHED / beside.stem / label


def root_of_runs(given: str | None, beside: Path) -> Path:
    """Return the folder that runs of the study in the file `beside` lie under: the one given, or fints' own.

    Raises
    ------
    ValueError
        If fits are published there: one would overwrite the other.
    """
    from fints.data import home

    root = (Path(given).expanduser() if given else home()).resolve()
    if root == (beside.parent / PUBLISHED).resolve():
        raise ValueError(
            f"runs must not lie where their fits are published for a commit ({root}): "
            "give another folder with --root, or FINTS_HOME."
        )
    return root


def publish(folder: Path, beside: Path, *, preset: str) -> Path:
    """Copy ``report.md`` of a study's folder to the preset's page beside the study's file `beside`.

    Figures go to ``figures/`` and the page's name beside it, SVG only; what an earlier report left there is
    removed.

    Returns
    -------
    Path
        The Markdown file.
    """
    name = page_name(beside, preset)
    figures = beside.parent / "figures" / name
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir(parents=True)
    for figure in sorted((folder / "figures").glob("*.svg")):
        shutil.copyfile(figure, figures / figure.name)
    text = (folder / "report.md").read_text(encoding="utf-8")
    page = beside.with_name(f"{name}.md")
    page.write_text(text.replace("](figures/", f"](figures/{name}/"), encoding="utf-8")
    return page
