"""Rows of a conditional density: conditions beside what a linear regression leaves of x."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import is_frame, no_column
from skebm.base import Real
from skebm.base.sampler import whole_number
from skebm.distributions import Gaussian
from skebm.estimators.sequences.table import first_frames, join_sequences
from skebm.estimators.tables.columns import Coding, ColumnTable
from skebm.estimators.tables.frames import frame_beside
from skebm.estimators.tables.regression import ridge
from skebm.estimators.tables.table import Table, is_far, learn_units
from skebm.training.rows import Rows

# Least variance of what the regression leaves of a column, relative to that of the column.
LEAST_VARIANCE = 1e-6


def column_numbers(asked: Any, names: Sequence[str] | None, d: int) -> list[int]:
    """Numbers of the columns that `given` lists, in the same order; `ValueError` if it is invalid.

    Parameters
    ----------
    asked : int, str, or array-like of such or of d booleans
    names : sequence of str or None
        Names of the d columns, where they have any.
    """
    one = isinstance(asked, str | int | np.integer) and not isinstance(asked, bool)
    several = [asked] if one else list(asked)
    if len(several) == d and all(isinstance(part, bool | np.bool_) for part in several):
        several = [j for j in range(d) if several[j]]
    found = []
    for part in several:
        if isinstance(part, str):
            if names is None or part not in list(names):
                raise no_column("given", part, names)
            found.append(list(names).index(part))
            continue
        number = isinstance(part, int | np.integer) and not isinstance(part, bool)
        if not number or not -d <= part < d:
            raise ValueError(
                f"given={asked!r} must hold names or numbers of columns of X, which has "
                f"n_features={d}, or be a mask of as many booleans."
            )
        found.append(int(part) % d)
    if len(set(found)) < len(found):
        raise ValueError(f"given={asked!r} lists a column twice.")
    if len(found) == d:
        raise ValueError(
            f"given={asked!r} takes all columns of X (n_features={d}): leave out at least one, "
            "whose density is modelled."
        )
    return found


class ConditionalTable(Table):
    r"""Rows (c, u) of conditions c and whitened residuals u of a linear regression of x on c.

    .. math:: u = L^{-1} (z - W c - b), \qquad z = (x - m) / s

    with L the Cholesky factor of the covariance of what the regression leaves. Numbers among the
    conditions are standardised, and categories one-hot.

    Parameters
    ----------
    given, target : list of int
        Numbers of the columns of c and of x.
    conditions : ColumnTable or None
        Of c; None where there is none.
    units : Units
        Of x.
    weight, intercept, factor : ndarray of shape (dc, dx), (dx,) and (dx, dx)
        W, b and L.
    names : list of str
        Of all columns.
    """

    def __init__(
        self,
        given: list[int],
        target: list[int],
        conditions: ColumnTable | None,
        units: Any,
        regression: tuple[np.ndarray, np.ndarray, np.ndarray],
        names: list[str],
    ):
        self.given, self.target, self.conditions = given, target, conditions
        self.units, self.names = units, names
        self.weight, self.intercept, self.factor = regression
        self.n_conditions = len(self.weight)
        self.domain = Real((self.n_conditions + len(target),))
        self.log_volume = units.log_volume + float(np.log(np.diag(self.factor)).sum())

    @classmethod
    def learn(
        cls,
        X: np.ndarray,
        given: list[int],
        weight: np.ndarray | None,
        coding: Coding | None,
        names: list[str],
    ) -> ConditionalTable:
        """Learn scales and the regression from validated X, categories as codes."""
        target = [j for j in range(X.shape[1]) if j not in set(given)]
        of_c = None if coding is None else conditions_coding(coding, given)
        conditions = None
        if given:
            own = [names[j] for j in given]
            conditions = ColumnTable.learn(X[:, given], weight, of_c, own)
        x = X[:, target]
        units = learn_units(x, weight, True, None, [names[j] for j in target])
        c = np.zeros((len(X), 0)) if conditions is None else conditions.convert(X[:, given])
        regression = regress(torch.from_numpy(c), torch.from_numpy(units.apply(x)), weight)
        return cls(given, target, conditions, units, regression, names)

    def rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
    ) -> Rows:
        return Rows.of(X, self.convert, dtype=dtype, device=device, weight=weight)

    def convert(self, X: np.ndarray) -> np.ndarray:
        """Validated X as rows (c, u), float64."""
        c = self.encoded(X[:, self.given])
        left = self.units.apply(X[:, self.target]) - c @ self.weight - self.intercept
        return np.hstack([c, np.linalg.solve(self.factor, left.T).T])

    def encoded(self, C: np.ndarray) -> np.ndarray:
        """Conditions, categories as codes, as rows c, (n, dc) float64."""
        if self.conditions is None:
            return np.zeros((len(C), 0))
        return self.conditions.convert(C)

    def prepare(self, rows: Rows) -> None:
        """Raise `ValueError` for rows with values that are too large."""
        far = rows.map(is_far)
        if far.any():
            row = int(far.nonzero()[0, 0])
            self.refuse_row(rows.block(row, row + 1), row, "it cannot be trained on")

    def column_at(self, entry: int) -> str:
        """Name of the column of an entry of a row (c, u)."""
        if entry < self.n_conditions and self.conditions is not None:
            return self.conditions.column_at(entry)
        return repr(self.names[self.target[entry - self.n_conditions]])

    def invert(self, x: Tensor) -> np.ndarray:
        """x of rows (c, u), (n, dx), in the units of the data."""
        rows = x.detach().cpu().double().numpy()
        c, u = rows[:, : self.n_conditions], rows[:, self.n_conditions :]
        found: np.ndarray = self.units.invert(u @ self.factor.T + c @ self.weight + self.intercept)
        return found

    def row_energy(self, energy: Any, x: Tensor) -> Tensor:
        value: Tensor = energy(x)
        return value.masked_fill(value.isnan() & is_far(x), torch.inf)


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
        given = set(self._blueprint.table.given)
        names = [name for j, name in enumerate(self._blueprint.table.names) if j not in given]
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
    own_names, dtypes = [coding.names[j] for j in given], [coding.dtypes[j] for j in given]
    return Coding(levels, own_names, dtypes, coding.kind, booleans) if levels else None


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
