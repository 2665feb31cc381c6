"""What is said of the columns of a table: as a frame, as HTML, and as one warning."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

import numpy as np

from skebm._validation import warn
from skebm.base import DataWarning
from skebm.estimators.tables.encoding.levels import LevelCodes
from skebm.estimators.tables.encoding.numbers import Feature

# Fraction of the texts of a column that are numbers, above which this is said.
MANY_NUMBERS = 0.5
MOST_NAMED = 5


class Note(NamedTuple):
    """What became of a column.

    Attributes
    ----------
    column, kind, becomes, why : str
    """

    column: str
    kind: str
    becomes: str
    why: str

    def with_feature(self, feature: Feature) -> Note:
        """The note of a column of which a further number is made."""
        what = feature.names[0]
        if feature.kind == "cycle":
            what = what.removesuffix("_cos").rpartition("_")[2] + " as cosine and sine"
        return self._replace(becomes=f"{self.becomes}; {what}")

    @property
    def needs_attention(self) -> bool:
        """Whether the column is left out, or may be read better than it was."""
        return self.becomes == "left out" or "to_numeric" in self.why

    def sentence(self) -> str:
        """The note as a sentence."""
        return f"{self.column!r} ({self.kind}): {self.becomes}, {self.why}."


def text_note(
    name: str, levels: tuple[Any, ...], counts: np.ndarray, made: LevelCodes | None
) -> Note:
    """The note of a column of many levels, of which columns are made, or none."""
    n = int(counts.sum())
    why = f"{int((counts > 0).sum())} levels in {n} rows"
    n_numbers = sum(int(counts[k]) for k in range(len(levels)) if _is_number(levels[k]))
    if MANY_NUMBERS * n <= n_numbers < n:
        why += (
            f", {n_numbers} of them numbers and others not: pandas.to_numeric(column, "
            "errors='coerce') makes numbers of them"
        )
    if made is None:
        return Note(name, "text", "left out", f"nearly all differ, {why}")
    n_own = len(made.names) - 1 - any(one == f"{name}_rarity" for one in made.names)
    parts = ["rarity of the level"] * (made.names[0] == f"{name}_rarity")
    parts += [f"a column for each of the {n_own} commonest levels"] * (n_own > 0)
    return Note(name, "wide categories", "; ".join(parts) or "seen in fit or not", why)


def _is_number(level: Any) -> bool:
    try:
        float(level)
    except (TypeError, ValueError):
        return False
    return True


def warn_of_notes(notes: list[Note]) -> None:
    """Warn once of the columns that are left out, or may be read better, and what to do."""
    said = [note for note in notes if note.needs_attention]
    if not said:
        return
    shown = " ".join(note.sentence() for note in said[:MOST_NAMED])
    more = len(said) - MOST_NAMED
    warn(
        f"Columns of which a density learns nothing as they are: {shown}"
        + (f" And {more} more." if more > 0 else ""),
        DataWarning,
        ("Drop or convert them; columns_ of the TableEncoder says what became of all columns.",),
    )


def html_table(notes: list[Note]) -> str:
    """The notes as a table of HTML that is folded, in the style of scikit-learn's diagrams."""
    cells = ["".join(f"<td>{html.escape(part)}</td>" for part in note) for note in notes]
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
