"""The answer beside the question: a report's Markdown and figures where they can be committed."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["publish"]


def publish(folder: Path, beside: Path, *, name: str | None = None) -> Path:
    """Copy ``report.md`` of a study's folder to ``NAME.md`` beside the study's file NAME.py.

    Figures go to ``figures/NAME/`` beside it, SVG only; what an earlier report left there is removed. `name`
    is another name than the file's.

    Returns
    -------
    Path
        The Markdown file.
    """
    name = beside.stem if name is None else name
    figures = beside.parent / "figures" / name
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir(parents=True)
    for figure in sorted((folder / "figures").glob("*.svg")):
        shutil.copyfile(figure, figures / figure.name)
    text = (folder / "report.md").read_text(encoding="utf-8")
    page = beside.with_name(f"{name}.md")
    page.write_text(text.replace("](figures/", f"](figures/{name}/"), encoding="utf-8")
    return page
