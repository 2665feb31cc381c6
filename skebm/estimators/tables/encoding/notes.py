"""What is said of the columns of a table: as a frame, as HTML, and as one warning."""

from __future__ import annotations

import html
import re
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import warn
from skebm.base import DataWarning
from skebm.estimators.tables.columns import is_number
from skebm.estimators.tables.encoding.levels import LevelCodes
from skebm.estimators.tables.encoding.numbers import Deviation, Feature

# Fraction of the texts of a column that are numbers, above which this is said.
MANY_NUMBERS = 0.5
# Distinct texts, as a fraction of the rows, above which nothing is lost by leaving a column out.
ALL_DISTINCT = 0.9
MOST_NAMED = 5
# Text that begins as dates do, in any order of year, month and day.
DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(\D|$)")
# The kind of a categorical column of many levels.
WIDE = "wide categories"


class Note(NamedTuple):
    """What became of a column.

    Attributes
    ----------
    column, kind, becomes, why : str
    lost : {"", "texts", "numbers", "dates"}
        What is lost by it: texts that recur, or numbers or dates that are text.
    """

    column: str
    kind: str
    becomes: str
    why: str
    lost: str = ""

    def with_feature(self, feature: Feature | Deviation) -> Note:
        """The note of a column of which a further number is made."""
        what = feature.names[0]
        if isinstance(feature, Feature) and feature.kind == "cycle":
            what = what.removesuffix("_cos").rpartition("_")[2] + " as cosine and sine"
        return self._replace(becomes=f"{self.becomes}; {what}")

    def sentence(self) -> str:
        """The note as a sentence."""
        why = f" ({self.why})" if self.why else ""
        return f"{self.column!r}, {self.kind}: {self.becomes}{why}."


def text_note(
    name: str, levels: tuple[Any, ...], counts: np.ndarray, made: LevelCodes | None
) -> Note:
    """The note of a column of many levels, of which columns are made, or none."""
    n = int(counts.sum())
    n_levels = int((counts > 0).sum())
    why = f"{n_levels} levels in {n} rows"
    n_numbers = sum(int(counts[k]) for k in range(len(levels)) if is_number(levels[k]))
    is_dates = all(DATE.match(str(levels[k])) for k in np.flatnonzero(counts))
    if is_dates:
        why += ", of dates that are not of the form 2024-12-31"
    if made is None:
        lost = "texts" * (n_levels < ALL_DISTINCT * n)
        if MANY_NUMBERS * n <= n_numbers < n:
            why, lost = f"{why}, {n_numbers} of {n} are numbers", "numbers"
        lost = "dates" if is_dates else lost
        return Note(name, "text", "left out", f"most occur once, {why}", lost)
    n_own = len(made.names) - 1 - any(one == f"{name}_rarity" for one in made.names)
    parts = ["rarity of the level"] * (made.names[0] == f"{name}_rarity")
    parts += [f"a column for each of the {n_own} commonest levels"] * (n_own > 0)
    return Note(name, WIDE, "; ".join(parts) or "seen in fit or not", why, "dates" * is_dates)


def say(notes: list[Note], verbose: int) -> None:
    """Warn once of the columns of which something is lost; if `verbose`, print all notes."""
    if verbose:
        print("\n".join(["Columns:", *(note.sentence() for note in notes)]))
    remedies = {
        "texts": "most texts occur once; drop or shorten them",
        "numbers": "most texts are numbers; use pandas.to_numeric(column, errors='coerce')",
        "dates": "the texts are dates; use pandas.to_datetime(column)",
    }
    said = []
    for lost, remedy in remedies.items():
        concerned = [note for note in notes if note.lost == lost]
        if concerned:
            said.append(f"{_list_names(concerned)}: {remedy}")
    if said:
        warn(
            f"A density learns little of these columns. {'. '.join(said)}.",
            DataWarning,
            ("columns_ of the TableEncoder says what became of each.",),
        )


def _list_names(notes: list[Note]) -> str:
    """Names of columns, of which the first few are listed."""
    names = ", ".join(repr(note.column) for note in notes[:MOST_NAMED])
    more = len(notes) - MOST_NAMED
    return names + (f" and {more} more" if more > 0 else "")


def html_table(notes: list[Note]) -> str:
    """The notes as a table of HTML that is folded, in the style of scikit-learn's diagrams."""
    cells = ["".join(f"<td>{html.escape(part)}</td>" for part in note[:4]) for note in notes]
    head = "".join(f"<th>{name}</th>" for name in ("Column", "Kind", "Becomes", "Why"))
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        '<div class="estimator-table"><details><summary>Columns</summary>'
        f'<table class="parameters-table"><tbody><tr>{head}</tr>{body}</tbody></table>'
        "</details></div>"
    )


class WithTable:
    """The table of fitted attributes of a diagram of scikit-learn, with a table after it."""

    def __init__(self, attributes: Any, table: str):
        self.attributes, self.table = attributes, table

    def __len__(self) -> int:
        return len(self.attributes) + 1

    def _repr_html_inner(self) -> str:
        return str(self.attributes._repr_html_inner()) + self.table
