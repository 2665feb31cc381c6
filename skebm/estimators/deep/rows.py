"""Rows of a deep machine: columns of X with the hidden layers beside them, which are missing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.energies.deep import HIDDEN_LOGIT
from skebm.estimators.tables.table import Layout
from skebm.training.rows import Rows

# Mean of hidden units before anything is known of them: that of untrained ones.
FIRST_MEAN = 1 / (1 + math.exp(-HIDDEN_LOGIT))


class HiddenEntries(Layout):
    """Entries of training rows for h2, h4, ..., which are always missing.

    Parameters
    ----------
    n_visible : int
        Number of entries before them.
    n_beside : int
        Number of these hidden units.

    Attributes
    ----------
    completes : bool
        Whether columns of X are missing in the rows that were prepared last.
    """

    def __init__(self, n_visible: int, n_beside: int):
        self.n_visible, self.n_entries = n_visible, n_beside
        self.completes = False

    def prepare(self, rows: Rows) -> None:
        """Add the hidden units to rows whose columns are completed."""
        self.completes = rows.known is not None
        self.extend(rows)

    def extend(self, rows: Rows) -> None:
        """Add the hidden units to rows, in place."""
        if not self.n_entries:
            return
        x = rows.x if isinstance(rows.x, Tensor) else rows.block(0, len(rows))
        size, d = (len(rows), rows.n_columns + self.n_entries), rows.n_columns
        full, known = x.new_full(size, FIRST_MEAN), x.new_zeros(size, dtype=torch.bool)
        full[:, :d] = x
        known[:, :d] = True if rows.known is None else rows.known.to(x.device)
        rows.x, rows.known, rows.convert, rows.n_columns = full, known, None, size[1]

    def without(self, rows: Rows) -> Rows:
        """Rows of the columns of X alone, which share their memory."""
        d = self.n_visible
        if rows.n_columns == d:
            return rows
        assert isinstance(rows.x, Tensor)
        weight = None if rows.weight is None else rows.counts
        found = Rows(rows.x[:, :d], weight, dtype=rows.dtype, device=rows.device)
        if self.completes and rows.known is not None:
            found.known = rows.known[:, :d]
        found.n_copies = rows.n_copies
        return found
