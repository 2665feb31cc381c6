"""Rows of a conditional density: conditions beside what a linear regression leaves of x."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import is_frame
from skebm.base import Real
from skebm.base.sampler import whole_number
from skebm.distributions import Gaussian
from skebm.estimators.sequences.table import first_frames, join_sequences
from skebm.estimators.tables.blocks import BitBlock, ColumnBlock, NumberBlock
from skebm.estimators.tables.columns import Coding, column_numbers
from skebm.estimators.tables.frames import frame_beside
from skebm.estimators.tables.regression import ridge
from skebm.estimators.tables.table import Table, column_blocks
from skebm.estimators.tables.units import Units, learn_units

# Least variance of what the regression leaves of a column, relative to that of the column.
LEAST_VARIANCE = 1e-6


def condition_columns(asked: Any, names: Sequence[str] | None, d: int) -> list[int]:
    """Numbers of the columns that `given` lists, in its order; `ValueError` if it is invalid."""
    found = column_numbers("given", asked, names, d)
    if len(set(found)) < len(found):
        raise ValueError(f"given={asked!r} lists a column twice.")
    if len(found) == d:
        raise ValueError(
            f"given={asked!r} takes all columns of X (n_features={d}): leave out at least one, "
            "whose density is modelled."
        )
    return found


class ResidualBlock(NumberBlock):
    r"""Whitened residuals u of a linear regression of numbers x on the conditions c before them.

    .. math:: u = L^{-1} (z - W c - b), \qquad z = (x - m) / s

    with L the Cholesky factor of the covariance of what the regression leaves.

    Parameters
    ----------
    columns, units, names
        Of x, as those of a :class:`NumberBlock`.
    regression : tuple of ndarray of shape (dc, dx), (dx,) and (dx, dx)
        W, b and L.
    """

    def __init__(
        self,
        columns: list[int],
        units: Units,
        names: list[str],
        regression: tuple[np.ndarray, np.ndarray, np.ndarray],
    ):
        super().__init__(columns, units, names)
        self.weight, self.intercept, self.factor = regression

    @property
    def log_volume(self) -> float:
        return self.units.log_volume + float(np.log(np.diag(self.factor)).sum())

    @property
    def of_differences(self) -> np.ndarray:
        """Matrix by which differences of u are multiplied to those of x, (dx, dx)."""
        found: np.ndarray = self.units.scale[:, None] * self.factor
        return found

    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        left = self.units.apply(X) - before @ self.weight - self.intercept
        found: np.ndarray = np.linalg.solve(self.factor, left.T).T
        return found

    def to_units(self, x: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
        assert before is not None
        return self.units.invert(x @ self.factor.T + before @ self.weight + self.intercept)


def conditional_table(
    X: np.ndarray,
    given: list[int],
    weight: np.ndarray | None,
    coding: Coding | None,
    names: list[str],
) -> Table:
    """The table of rows (c, u) of validated X, categories as codes.

    Numbers among the conditions are standardised, and categories one-hot.
    """
    target = [j for j in range(X.shape[1]) if j not in set(given)]
    of_c = None if coding is None else conditions_coding(coding, given)
    blocks: list[ColumnBlock] = []
    if given:
        blocks = column_blocks(X[:, given], weight, of_c, [names[j] for j in given])
    for block in blocks:
        block.columns = [given[place] for place in block.columns]
        if isinstance(block, BitBlock):
            block.is_condition = True
    x, of_x = X[:, target], [names[j] for j in target]
    units = learn_units(x, weight, True, None, of_x)
    c = Table(blocks).to_energy(X).astype(np.float64)
    regression = regress(torch.from_numpy(c), torch.from_numpy(units.apply(x)), weight)
    residuals = ResidualBlock(target, units, of_x, regression)
    domain = Real((c.shape[1] + len(target),))  # of conditions, which may have any values
    return Table([*blocks, residuals], n_given=len(blocks), domain=domain)


def regress(
    c: Tensor, z: Tensor, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, intercept, and Cholesky factor of the covariance of residuals of left-out rows."""
    w = None if weight is None else torch.as_tensor(weight, dtype=torch.float64)
    found = ridge(c, z, w)
    left = found.residuals(c, z) * found.inflation
    tril = Gaussian.fit(left, w).scale_tril
    assert tril is not None
    covariance = tril @ tril.t() + LEAST_VARIANCE * torch.eye(z.shape[1], dtype=torch.float64)
    factor = torch.linalg.cholesky(covariance)
    return found.weight.numpy(), found.intercept.numpy(), factor.numpy()


def as_frame_of_targets(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method that returns rows x for conditions return a frame for a frame of these."""

    @functools.wraps(method)
    def returning(self: Any, C: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(self, C, *args, **kwargs)
        names = self._recipe.table.targets[0].names
        if isinstance(found, tuple):
            return type(found)(frame_beside(C, part, names) for part in found)
        return frame_beside(C, found, names)

    return returning


def conditions_coding(coding: Coding, given: list[int]) -> Coding | None:
    """The coding of the columns of c alone; None where none of them is categorical."""
    others = [coding.names[j] for j in coding.levels if j not in set(given)]
    if others:
        raise ValueError(
            f"Columns {others} are categories, and not among the conditions: the density is that "
            "of numbers. List them in given, or drop them."
        )
    levels = {place: coding.levels[j] for place, j in enumerate(given) if j in coding.levels}
    booleans = [place for place, j in enumerate(given) if j in set(coding.booleans)]
    ranges = {place: coding.ranges[j] for place, j in enumerate(given) if j in coding.ranges}
    own_names, dtypes = [coding.names[j] for j in given], [coding.dtypes[j] for j in given]
    found = Coding(levels, own_names, dtypes, coding.kind, booleans, ranges)
    return found if levels else None


# ------------------------------------------------------------------------------
# Sequences
# ------------------------------------------------------------------------------


def lagged(X: Any, order: int, lengths: Any = None) -> Any:
    """Each frame of sequences, in one row with the `order` frames before it.

    With such rows, a density of frames given their past is a conditional density:
    ``ConditionalDensity(given=range(order * d))`` for frames of d columns.

    Parameters
    ----------
    X : array-like of shape (n_frames, d), or data frame
        Frames in order of time, the sequences one below the other.
    order : int
        Number of frames before each frame, at least 1.
    lengths : array-like of int or None, default=None
        Number of frames of each sequence, which add up to n_frames; None is one sequence.

    Returns
    -------
    ndarray of shape (n_rows, (order + 1) d), or pandas DataFrame
        A row begins with the frame `order` steps before and ends with the frame itself. A sequence
        of T frames gives T - `order` rows, and none if T is at most `order`. Columns of a data
        frame are named ``"a(t-2)"``, ``"a(t-1)"``, ``"a"``, and the index is that of the frame.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm.estimators import lagged
    >>> lagged(np.arange(5.0)[:, None], order=2)
    array([[0., 1., 2.],
           [1., 2., 3.],
           [2., 3., 4.]])
    >>> lagged(np.arange(5.0)[:, None], order=1, lengths=[2, 3])
    array([[0., 1.],
           [2., 3.],
           [3., 4.]])
    """
    whole_number("order", order, 1)
    X, checked = join_sequences(X, lengths, None)
    frame = is_frame(X)
    if not frame:
        X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError(
                f"Frames are rows of a two-dimensional array, got {X.ndim} dimensions."
            )
    place = np.arange(len(X))
    now = place[place - first_frames(len(X), checked) >= order]
    steps = [now - k for k in range(order, -1, -1)]
    if not frame:
        return np.hstack([X[at] for at in steps])
    if not hasattr(X, "iloc"):
        raise TypeError("lagged takes arrays and pandas data frames: pass X.to_pandas().")
    import pandas as pd

    parts = []
    for k, at in zip(range(order, -1, -1), steps, strict=True):
        part = X.iloc[at].set_axis(X.index[now], axis=0)
        parts.append(part.rename(columns=lambda name, k=k: f"{name}(t-{k})" if k else str(name)))
    return pd.concat(parts, axis=1)
