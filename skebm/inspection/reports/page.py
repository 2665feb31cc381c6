"""Sections of a report and the page that is made of them: HTML that needs no other file."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Bars and notes take the colours of the scheme; pictures are drawn in `currentColor`.
STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #5b6570; --paper: #ffffff;
  --line: #d7dce1; --fill: #f3f5f7; --accent: #0b5394; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #a3adb7;
  --paper: #14181c; --line: #39424b; --fill: #1d2329; --accent: #7db7ec; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.2rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .4rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-top: .6rem;
  border-top: 1px solid var(--line); }
p { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .92em; }
th, td { text-align: left; vertical-align: top; padding: .28rem .8rem .28rem 0;
  border-bottom: 1px solid var(--line); max-width: 30rem; overflow-wrap: break-word; }
th { color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
pre { background: var(--fill); padding: .7rem .8rem; border-radius: 6px; overflow-x: auto;
  font-size: .88em; margin: .6rem 0; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
figure { margin: .8rem 0; }
figure svg { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .9em; max-width: 46rem; }
ol.advice { padding-left: 1.2rem; }
ol.advice li { margin: .7rem 0; }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff;
  --line: #bbb; --fill: #f4f4f4; --accent: #0b5394; }
  main { max-width: none; padding: 0; } h2 { break-after: avoid; }
  figure, table { break-inside: avoid; } .scroll, pre { overflow: visible; }
  pre { white-space: pre-wrap; } }
"""


class NotSaidError(Exception):
    """Raised by a section that cannot be written, with the reason."""


class Tabulated(NamedTuple):
    """A table of texts and numbers.

    Attributes
    ----------
    names : sequence of str
        Titles of the columns.
    rows : sequence of sequences
        Texts, or numbers, which are aligned on the right.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Picture(NamedTuple):
    """A picture as SVG, and what it shows."""

    svg: str
    caption: str


class Code(NamedTuple):
    """A program."""

    text: str


@dataclass
class Section:
    """A title, and what stands below it: sentences (str), `Tabulated`, `Picture` and `Code`.

    `facts` are the same as data, by name.
    """

    title: str
    blocks: list[Any] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def to_html(self) -> str:
        """The section as HTML."""
        inner = "\n".join(_block(block) for block in self.blocks)
        return f"<section>\n<h2>{html.escape(self.title)}</h2>\n{inner}\n</section>"


def with_error(value: float, error: float) -> str:
    """A number and its standard error, with the digits that the error leaves.

    >>> with_error(-20.3141, 0.0523)
    '-20.314 (0.052)'
    >>> with_error(1.5, 0.0)
    '1.5'
    """
    if not math.isfinite(value) or not math.isfinite(error) or error < 1e-7:
        return number(0.0 if abs(value) < 1e-7 else value)
    digits = max(0, min(6, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f} ({error:.{digits}f})"


def number(value: Any, digits: int = 4) -> str:
    """A number in few digits; texts as they are.

    >>> number(0.000123456), number(-31.41592), number(12345.6), number(math.nan)
    ('0.0001235', '-31.42', '12,346', 'not known')
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def document(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """A page of its own: no scripts, and nothing that is loaded."""
    head = "\n".join(f'<p class="soft">{html.escape(text)}</p>' for text in lead)
    body = "\n".join(section.to_html() for section in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n{head}\n{body}\n</main>\n</body>\n</html>\n"
    )


def in_frame(page: str) -> str:
    """A page within another one, whose styles do not meet."""
    style = "width:100%;height:640px;border:1px solid #8886;border-radius:6px"
    return f'<iframe title="report" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def _block(block: Any) -> str:
    if isinstance(block, Tabulated):
        return _table(block)
    if isinstance(block, Picture):
        caption = html.escape(block.caption)
        return f"<figure>\n{block.svg}\n<figcaption>{caption}</figcaption>\n</figure>"
    if isinstance(block, Code):
        return f"<pre><code>{html.escape(block.text)}</code></pre>"
    return f"<p>{html.escape(block)}</p>"


def _table(grid: Tabulated) -> str:
    kinds = [
        all(isinstance(row[j], (int, float)) and not isinstance(row[j], bool) for row in grid.rows)
        for j in range(len(grid.names))
    ]
    of = [' class="number"' if kind and grid.rows else "" for kind in kinds]
    titles = "".join(
        f"<th{kind}>{html.escape(name)}</th>" for name, kind in zip(grid.names, of, strict=True)
    )
    lines = [
        "<tr>"
        + "".join(
            f"<td{kind}>{html.escape(number(value))}</td>"
            for value, kind in zip(row, of, strict=True)
        )
        + "</tr>"
        for row in grid.rows
    ]
    rows = "\n".join(lines)
    return f'<div class="scroll"><table>\n<tr>{titles}</tr>\n{rows}\n</table></div>'
