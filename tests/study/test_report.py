"""The report is one function of the stored files: verdict first, self-contained, byte for byte the same."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from fints.study import canvas, mixing_figures
from fints.study.analysis import analyse
from fints.study.canvas import Facet, facets_of
from fints.study.document import Heading, Items, Table, Text, from_docstring, to_html, to_markdown
from fints.study.profile_figures import nulls, training
from fints.study.report import write_report
from fints.study.still_open import still_open

FIGURES = [
    "contrasts",
    "gradient",
    "mixing",
    "oracle",
    "outcome",
    "similarity",
    "training",
    "tuning",
    "update",
]


def contents(folder: Path) -> dict[str, bytes]:
    paths = [folder / "report.md", folder / "report.html", *sorted((folder / "figures").iterdir())]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def reported(make_study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    spec, _ = make_study(folder, skill={"post_norm": 0.2}, simulated=True)
    analysis = analyse(spec, folder)
    write_report(analysis, folder)
    return analysis, folder


def test_the_same_files_give_the_same_bytes_wherever_they_lie(make_study, tmp_path):
    written = []
    for place in ("one", "two"):
        spec, folder = make_study(
            tmp_path / place, schemes=("pre_norm", "post_norm"), folds=2, simulated=True
        )
        if place == "two":
            # Workers finish in another order.
            path = folder / "forecasts.parquet"
            pl.read_parquet(path).sample(fraction=1.0, shuffle=True, seed=1).write_parquet(path)
        write_report(analyse(spec, folder), folder)
        written.append(contents(folder))
    assert sorted(written[0]) == sorted(written[1])
    assert sorted(written[0]) == sorted(
        [
            "report.md",
            "report.html",
            *(f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "svg")),
        ]
    )
    for name, data in written[0].items():
        assert data == written[1][name], name


def test_writing_twice_changes_nothing_and_clears_figures_of_an_older_report(reported):
    analysis, folder = reported
    before = contents(folder)
    (folder / "figures" / "depth_old.svg").write_text("<svg/>")
    write_report(analysis, folder)
    assert contents(folder) == before


def test_the_first_line_is_the_verdict(reported):
    analysis, folder = reported
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.splitlines()[0] == f"**{analysis.verdict}**"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.index("class=lead") < page.index("<h1>")


def test_the_markdown_links_figures_that_exist_and_their_captions_are_findings(reported):
    _, folder = reported
    text = (folder / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"!\[(.+?)\]\((.+?)\)\n\n\*(.+?)\*\n", text)
    assert sorted(Path(path).stem for _, path, _ in links) == FIGURES
    for _, path, caption in links:
        assert (folder / path).is_file()
        assert re.search(r"\d|No arm", caption), caption


def test_the_page_needs_nothing_outside_itself(reported):
    _, folder = reported
    page = (folder / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) == len(FIGURES)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page.replace("url(#", "")


def test_each_scheme_stands_beside_its_own_null_and_profiles_say_whose_weights_they_are(reported):
    analysis, folder = reported
    text = (folder / "report.md").read_text(encoding="utf-8")
    captions = dict(re.findall(r"\(figures/(\w+)\.svg\)\n\n\*(.+?)\*\n", text))
    assert re.search(
        r"pre_norm 0\.\d+ \(.*?null 0\.968\); post_norm 0\.\d+ \(.*?null 0\.707\)", captions["similarity"]
    )
    facet = Facet(title="", arms=(("pre_norm-depth_8", "pre_norm", 0), ("post_norm-depth_8", "post_norm", 1)))
    assert list(nulls(analysis, facet)) == ["null √(k/(k+1))", "null √½, normed trunk"]
    for name in ("similarity", "gradient", "update"):
        assert "Weights after the last step, where forecasts may come from an earlier one" in captions[name]
    assert "their levels do not compare" in captions["training"]


@pytest.mark.parametrize("depth", ["2", "8"])
def test_captions_tell_of_the_panel_of_the_primary_contrast_and_too_many_panels_keep_it(
    reported, monkeypatch, depth
):
    analysis, _ = reported
    primary = {**analysis.spec["primary"], "within": {"depth": depth}}
    named = replace(analysis, spec={**analysis.spec, "primary": primary})
    _, figure = training(named)
    assert f" at depth {depth}: pre_norm " in figure.caption
    available = set(analysis.profiles["arm"])
    assert [facet.title for facet in facets_of(named, available)] == ["depth 2", "depth 8"]
    monkeypatch.setattr(canvas, "MOST_FACETS", 1)
    assert [facet.title for facet in facets_of(named, available)] == [f"depth {depth}"]
    monkeypatch.setattr(mixing_figures, "MOST_PANELS", 3)
    _, figure = mixing_figures.mixing(named)
    assert f"pre_norm-depth_{depth} " in figure.caption
    assert "3 more arms" in figure.caption
    assert f"depth_{'8' if depth == '2' else '2'}" not in figure.caption


def test_every_arm_has_its_mixing_matrix_and_the_caption_says_what_the_embedding_has_left(reported):
    analysis, folder = reported
    text = (folder / "report.md").read_text(encoding="utf-8")
    caption = dict(re.findall(r"\(figures/(\w+)\.svg\)\n\n\*(.+?)\*\n", text))["mixing"]
    for arm in analysis.spec["arms"]:
        own = analysis.mixing.filter(arm=arm["name"])
        layers = 2 * arm["experiment"]["model"]["depth"]
        assert own.height == (layers + 1) * (layers + 2) // 2
        last = own.filter(reader=layers).sort("source")["mean"].abs()
        share = f"{100 * last[0] / last.sum():.1f} % ({100 / (layers + 1):.1f} % if all alike)"
        assert f"{arm['name']} {share}" in caption
    assert "the scales of the norms held as they are" in caption


def test_what_is_undecided_is_told_with_the_fits_that_would_decide_it_and_the_command_for_a_gpu(
    make_study, tmp_path
):
    spec, folder = make_study(tmp_path, schemes=("pre_norm", "post_norm"), folds=2)
    analysis = analyse({**spec, "larger": "python studies/residual_by_depth.py run --preset full"}, folder)
    undecided = analysis.contrasts.filter(pl.col("decision") == "undecided")
    assert undecided.height
    write_report(analysis, folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    chapter = text.partition("## What is still open\n")[2].partition("\n## ")[0]
    for row in undecided.iter_rows(named=True):
        more = max(1, row["folds_needed"] - 2)
        fits = more * len(spec["arms"]) * len(spec["seeds"])
        assert f"- {row['contrast']}: about {more:,} more folds ({fits:,} final fits of all arms)." in chapter
    assert "python studies/residual_by_depth.py run --preset full" in chapter
    decided = replace(analysis, contrasts=analysis.contrasts.with_columns(decision=pl.lit("equivalent")))
    assert "No verdict of this size is left undecided." in to_markdown(still_open(decided))
    assert still_open(replace(analysis, claim="none")) == []


def test_a_run_that_claims_nothing_says_so_twice(make_study, tmp_path):
    spec, folder = make_study(tmp_path, schemes=("pre_norm", "post_norm"), folds=2, claim="none")
    write_report(analyse(spec, folder), folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.startswith("**Claims nothing: ")
    assert "No number below is a result." in text


class Balance(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed(reported):
    _, folder = reported
    parser = Balance()
    parser.feed((folder / "report.html").read_text(encoding="utf-8"))
    assert parser.open == []


def test_no_time_or_path_of_this_run_is_in_it(reported):
    _, folder = reported
    for name, data in contents(folder).items():
        if name.endswith((".md", ".html", ".svg")):
            text = data.decode("utf-8")
            assert str(folder) not in text
            assert not re.search(r"\d\d:\d\d:\d\d", text), name
            assert "dc:date" not in text


def test_it_says_how_to_make_it_again_and_what_was_tried(reported):
    analysis, folder = reported
    text = (folder / "report.md").read_text(encoding="utf-8")
    for needed in (
        analysis.spec["command"],
        f"git checkout {analysis.spec['commit']}",
        analysis.spec["checksum"],
        "66 fits in all: 18 to tune, 48 to judge",
        "Dates from 2018-01-01 on are sealed; no fit read them.",
        "enters as the zero forecast",
        "Smallest effect of interest: 1.0 percentage points.",
        "## Power",
        "### Hypotheses",
    ):
        assert needed in text, needed


def test_markdown_tables_are_whole_and_without_a_stray_number(reported):
    _, folder = reported
    text = (folder / "report.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.M)
    assert len(tables) >= 6
    for table in tables:
        lines = table.splitlines()
        assert len({line.count("|") for line in lines}) == 1
        assert len({len(line) for line in lines}) == 1
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b|_right|e-\d\d", text)
    assert not re.search(r"\d\.\d{7,}", text)


def test_a_study_without_commit_command_or_numbered_factor_still_has_a_report(make_study, tmp_path):
    spec, folder = make_study(tmp_path, folds=2)
    for arm in spec["arms"]:
        arm["levels"]["depth"] = {"2": "shallow", "8": "deep"}[arm["levels"]["depth"]]
    spec["factors"]["depth"] = ["shallow", "deep"]
    for contrast in (spec["primary"], *spec["contrasts"]):
        contrast["within"] = {"depth": {"2": "shallow", "8": "deep"}[contrast["within"]["depth"]]}
    for name in ("commit", "command"):
        del spec[name]
    # A study of an older version has no mixing matrices.
    for name in ("profiles", "mixing", "history", "baselines"):
        (folder / f"{name}.parquet").unlink()
    write_report(analyse(spec, folder), folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "a commit that was not recorded" in text
    assert "python studies/residual_by_depth.py run --preset quick" in text
    assert "No profile was stored" in text
    assert sorted(path.stem for path in (folder / "figures").glob("*.svg")) == [
        "contrasts",
        "outcome",
        "tuning",
    ]


@pytest.mark.parametrize("outcome", ["r2_mean", "ic", "rank_ic"])
def test_every_outcome_has_a_report_and_units_of_its_own(make_study, tmp_path, outcome: str):
    spec, folder = make_study(tmp_path, schemes=("pre_norm", "post_norm"), folds=2, outcome=outcome)
    write_report(analyse(spec, folder), folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert ("percentage points" in text.splitlines()[0]) == outcome.startswith("r2")


def test_a_docstring_becomes_headings_lists_and_paragraphs():
    blocks = from_docstring(
        """Title.

        Question
        --------
        One line
        and its rest.

        1. first
           goes on
        2. second

        H1. a claim about ``x``
        H2. another
        """
    )
    assert blocks == [
        Heading(text="Question", level=3),
        Text(text="One line and its rest."),
        Items(items=("first goes on", "second")),
        Items(items=("H1. a claim about `x`", "H2. another")),
    ]


def test_text_from_outside_cannot_become_markup(tmp_path):
    table = Table(columns=("a|b", "n"), rows=(("<b>x</b>", "1 < 2"),), left=("a|b",))
    page = to_html(
        [Text(text="<script>alert(1)</script> `a<b` & **c**"), table], title="<t>", folder=tmp_path
    )
    assert "<script>" not in page
    assert "<code>a&lt;b</code> &amp; <strong>c</strong>" in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<title>&lt;t&gt;</title>" in page
    assert to_markdown([table]).splitlines()[0] == r"| a\|b     |     n |"
