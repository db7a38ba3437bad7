"""The answer that is committed beside the question."""

from __future__ import annotations

import re
from pathlib import Path

from fints.study.publish import publish


def test_a_published_report_finds_its_figures_and_leaves_no_old_one(tmp_path: Path) -> None:
    folder, studies = tmp_path / "folder", tmp_path / "studies"
    (folder / "figures").mkdir(parents=True)
    studies.mkdir()
    for name in ("outcome", "gradient"):
        (folder / "figures" / f"{name}.svg").write_text(f"<svg>{name}</svg>")
    (folder / "report.md").write_text("![a](figures/outcome.svg)\n\n![b](figures/gradient.svg)\n")
    page = publish(folder, studies / "why.py", preset="standard")
    assert page == studies / "why.md"
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    assert [(studies / link).read_text() for link in links] == ["<svg>outcome</svg>", "<svg>gradient</svg>"]
    (folder / "figures" / "gradient.svg").unlink()
    (folder / "report.md").write_text("![a](figures/outcome.svg)\n")
    publish(folder, studies / "why.py", preset="full")
    # Another question than the study's own stands beside its answer, not in its place.
    other = publish(folder, studies / "why.py", preset="controls")
    assert other == studies / "why_controls.md"
    assert "](figures/why_controls/outcome.svg)" in other.read_text()
    assert [file.name for file in (studies / "figures" / "why").iterdir()] == ["outcome.svg"]
