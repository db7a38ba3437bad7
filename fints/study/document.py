"""A report as a list of blocks, written once and rendered twice: Markdown and a page of its own.

Text may hold ``code`` between backticks and **bold** between double stars; everything else is
taken literally. The HTML needs nothing but itself: style and figures are inside it.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Block",
    "Code",
    "Heading",
    "Items",
    "Picture",
    "Table",
    "Text",
    "from_docstring",
    "to_html",
    "to_markdown",
]


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A section title; level 1 is the document's."""

    text: str
    level: int = 2


@dataclass(frozen=True, kw_only=True)
class Text:
    """One paragraph; `lead` sets it apart as the finding."""

    text: str
    lead: bool = False


@dataclass(frozen=True, kw_only=True)
class Items:
    """A bullet list."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """Lines to be typed."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of finished texts; columns named in `left` hold words, all others align right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure file relative to the report, with its finding as caption."""

    path: str
    caption: str
    alt: str


Block = Heading | Text | Items | Code | Table | Picture


def from_docstring(docstring: str) -> list[Block]:
    """Return a study's docstring as blocks: underlined lines are headings; "-", "1." and "H1." items.

    The first line is left out: it is the title. Line breaks inside a paragraph or item are not kept.
    """
    body = docstring.strip().split("\n", 1)
    lines = (body[1] if len(body) > 1 else "").splitlines()
    blocks: list[Block] = []
    items: list[str] = []
    paragraph: list[str] = []

    def close() -> None:
        if items:
            blocks.append(Items(items=tuple(items)))
            items.clear()
        if paragraph:
            blocks.append(Text(text=" ".join(paragraph)))
            paragraph.clear()

    for number, line in enumerate(lines):
        text = line.strip().replace("``", "`")
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if re.fullmatch(r"[-=~]{3,}", text):
            continue
        if text and re.fullmatch(r"[-=~]{3,}", following):
            close()
            blocks.append(Heading(text=text, level=3))
        elif not text:
            close()
        elif bullet := re.match(r"(?:[-*•]|\d+[.)])\s+(.*)|([A-Z]\d+[.:] .*)", text):
            if paragraph:
                close()
            items.append(bullet[1] or bullet[2])
        elif items:
            items[-1] += f" {text}"
        else:
            paragraph.append(text)
    close()
    return blocks


def to_markdown(blocks: Sequence[Block]) -> str:
    """Return the blocks as Markdown, tables aligned in the source too."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block], *, title: str, folder: Path) -> str:
    """Return the blocks as one page; pictures are read from `folder` and put inside it."""
    body = "\n".join(_html(block, folder) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n"
        "</main>\n</body>\n</html>\n"
    )


def _markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {block.text}"
        case Text():
            return f"**{block.text}**" if block.lead else block.text
        case Items():
            return "\n".join(f"- {item}" for item in block.items)
        case Code():
            return f"```\n{block.text}\n```"
        case Picture():
            return f"![{block.alt}]({block.path})\n\n*{block.caption}*"
        case Table():
            return _markdown_table(block) + (f"\n\n{block.note}" if block.note else "")


def _markdown_table(table: Table) -> str:
    cells = [table.columns, *table.rows]
    cells = [tuple(cell.replace("|", "\\|") for cell in row) for row in cells]
    widths = [max(3, *(len(row[place]) for row in cells)) for place in range(len(table.columns))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if name in table.left else cell.rjust(width)
            for cell, width, name in zip(row, widths, table.columns, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = (
        "-" * width if name in table.left else "-" * (width - 1) + ":"
        for width, name in zip(widths, table.columns, strict=True)
    )
    return "\n".join([line(cells[0]), f"| {' | '.join(rule)} |", *(line(row) for row in cells[1:])])


def _html(block: Block, folder: Path) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
        case Text():
            return f"<p{' class=lead' if block.lead else ''}>{_inline(block.text)}</p>"
        case Items():
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ul>"
        case Code():
            return f"<pre><code>{html.escape(block.text)}</code></pre>"
        case Picture():
            data = base64.b64encode((folder / block.path).read_bytes()).decode("ascii")
            return (
                f'<figure><img alt="{html.escape(block.alt)}" src="data:image/svg+xml;base64,{data}">'
                f"<figcaption>{_inline(block.caption)}</figcaption></figure>"
            )
        case Table():
            return _html_table(block)


def _html_table(table: Table) -> str:
    kinds = ["" if name in table.left else " class=n" for name in table.columns]
    head = "".join(f"<th{kind}>{_inline(name)}</th>" for kind, name in zip(kinds, table.columns, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_inline(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    note = f"\n<p class=note>{_inline(table.note)}</p>" if table.note else ""
    table_text = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    return f"<div class=scroll>{table_text}</div>{note}"


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)


STYLE = """\
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1a1a1a;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.2rem 1rem 3rem; }
h1 { font-size: 1.45rem; line-height: 1.25; margin: 1.2rem 0 .4rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; padding-top: .6rem; border-top: 1px solid #ddd; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, ul, pre, .lead { max-width: 46rem; }
p, ul { margin: .5rem 0; }
ul { padding-left: 1.2rem; }
.lead { font-size: 1.1rem; font-weight: 600; line-height: 1.4; margin: 0; padding: .7rem .9rem;
  border-left: 4px solid #0072B2; background: #f2f6fa; }
.note, figcaption { font-size: .85rem; color: #444; }
code { font: .9em/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { padding: .7rem .9rem; background: #f6f6f6; overflow-x: auto; }
.scroll { overflow-x: auto; margin: .8rem 0 .4rem; }
table { border-collapse: collapse; font-size: .85rem; line-height: 1.35; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
th { border-bottom: 1.5px solid #888; vertical-align: bottom; }
th:first-child, td:first-child { padding-left: 0; }
td:not(:first-child) { white-space: nowrap; }
.n { text-align: right; white-space: nowrap; }
th.n { white-space: normal; }
figure { margin: 1.4rem 0; }
figure img { display: block; width: 100%; max-width: 34rem; height: auto; }
figcaption { max-width: 40rem; margin-top: .4rem; }
@media print {
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  figure, table, pre, .lead { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; }
  table { font-size: .72rem; }
  th, td { padding: .2rem .35rem; }
  figure img { max-width: 89mm; }
}
"""
