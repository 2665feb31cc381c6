"""Why rows are anomalous: what each column contributes, which pairs contradict each other."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from skebm.base.sampler import whole_number
from skebm.estimators.outlier.reasons.text import MISSING, contrast_values, short

NATS = "nats"
# Contribution from which a column, or a pair, is a reason: odds of 7 to 1 that an entry is wrong.
LEAST_NATS = 2.0
# The same where units are not known, as a share of the largest contribution of the row.
LEAST_SHARE = 0.5


class Contradiction(NamedTuple):
    """Two columns of a row that contradict each other.

    Attributes
    ----------
    row : int
        Number of the row.
    first, second : str
        Names of the columns.
    contribution : float
        By how many nats the contribution of either column is at least lower when the other has the
        value that is expected there.
    """

    row: int
    first: str
    second: str
    contribution: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Contributions of the columns to the anomaly of rows, as returned by `explain`.

    Attributes
    ----------
    contributions : ndarray of shape (n_samples, n_features)
        Higher is more anomalous, in `unit`.
    values : ndarray of shape (n_samples, n_features)
        Values of the rows.
    expected : ndarray of shape (n_samples, n_features) or None
        Values that the model expects given the other columns: the conditional mean of a continuous
        column, the most probable value of a discrete one. None for ``method="score"``.
    feature_names : list of str
        Names of the columns.
    unit : str
        Unit of the contributions; empty for a statistic of unknown units.
    pairs : list of Contradiction
        Pairs of columns that contradict each other, of which either may be wrong: with the expected
        value in one of the two, the other is no longer anomalous. A tuple for each, with the number
        of the `row`, the names `first` and `second`, and the `contribution` in nats;
        ``pandas.DataFrame(pairs)`` is a table of them. Only for ``method="auto"`` and a statistic
        that is a log density, and empty otherwise.

    See Also
    --------
    skebm.EnergyOutlierDetector.explain : Compute an explanation.
    skebm.inspection.ExplanationDisplay : Plot an explanation.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import EnergyOutlierDetector
    >>> x, y = np.random.default_rng(0).normal(size=(2, 500, 1))
    >>> detector = EnergyOutlierDetector(random_state=0).fit(np.column_stack([x, x + 1, y]))
    >>> found = detector.explain([[0.5, 1.5, 6.0], [0.5, 3.0, 0.3]])
    >>> found.to_frame(1)["feature"].tolist()[0]
    'x2'
    >>> [(pair.row, pair.first, pair.second) for pair in found.pairs]
    [(1, 'x0', 'x1')]
    >>> found.sentences()[1][:41]
    'x0 (0.5) and x1 (3) contradict each other'
    """

    contributions: np.ndarray
    values: np.ndarray
    expected: np.ndarray | None
    feature_names: list[str]
    unit: str
    pairs: list[Contradiction] = field(default_factory=list)

    def to_frame(self, n_features: int | None = None) -> Any:
        """Columns of each row, the most anomalous first, as a data frame.

        Parameters
        ----------
        n_features : int or None, default=None
            Number of columns for each row; None is all.

        Returns
        -------
        pandas.DataFrame
            With columns row, feature, value, expected (where known) and contribution.
        """
        import pandas as pd

        order = self._order()[:, :n_features]
        rows = np.arange(len(order))[:, None]
        found = {
            "row": np.broadcast_to(rows, order.shape).ravel(),
            "feature": np.asarray(self.feature_names, dtype=object)[order.ravel()],
            "value": self.values[rows, order].ravel(),
        }
        if self.expected is not None:
            found["expected"] = self.expected[rows, order].ravel()
        found["contribution"] = self.contributions[rows, order].ravel()
        return pd.DataFrame(found).infer_objects()

    def sentences(self, n_reasons: int = 3) -> list[str]:
        """The reasons of each row in one sentence.

        Reasons are pairs that contradict each other, and other columns whose contribution is at
        least 2 nats, the largest first; where the unit is not nats, columns whose contribution is
        positive and at least half of the largest one. A row without a reason says so. Numbers have
        three digits, or as many as it takes to tell a value from the expected one.

        Parameters
        ----------
        n_reasons : int, default=3
            Maximum number of reasons in a sentence.

        Returns
        -------
        list of str
            One for each row.

        Examples
        --------
        >>> import numpy as np
        >>> from skebm import Explanation
        >>> found = Explanation(
        ...     contributions=np.array([[8.21, 0.3]]),
        ...     values=np.array([[91_000.0, 42.0]]),
        ...     expected=np.array([[23_400.0, 41.3]]),
        ...     feature_names=["income", "age"],
        ...     unit="nats",
        ... )
        >>> found.sentences()
        ['income is 91,000 where 23,400 is expected given the other columns (+8.2 nats)']
        """
        whole_number("n_reasons", n_reasons, 1)
        return [self._sentence(row, n_reasons) for row in range(len(self.contributions))]

    def plot(
        self, ax: Any = None, *, n_features: int = 8, row_names: Sequence[str] | None = None
    ) -> Any:
        """Draw the contributions of at most six rows as bars, a panel for each row.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, array-like of them, or None, default=None
            As many as there are rows. None makes a new figure.
        n_features : int, default=8
            Largest number of columns to draw for each row, the most anomalous ones.
        row_names : sequence of str or None, default=None
            Titles of the panels; None counts the rows from 0.

        Returns
        -------
        skebm.inspection.ExplanationDisplay
            With the figure as ``figure_``.
        """
        # Displays are above the estimators, and import matplotlib: skebm imports them when asked.
        display = importlib.import_module("skebm").inspection.ExplanationDisplay
        return display(self, n_features, row_names).plot(ax)

    def _order(self) -> np.ndarray:
        """Columns of each row, the most anomalous first, those that are not known (nan) last."""
        return np.argsort(-self.contributions, axis=1, kind="stable")

    def _sentence(self, row: int, n_reasons: int) -> str:
        """Pairs and columns that are reasons, or that there are none."""
        contributions = self.contributions[row]
        found = [(pair.contribution, self._of_pair(pair)) for pair in self.pairs if pair.row == row]
        named = {name for pair in self.pairs if pair.row == row for name in pair[1:3]}
        least = LEAST_NATS
        if self.unit != NATS:
            least = LEAST_SHARE * float(np.nanmax(contributions, initial=0.0))
        for j in self._order()[row]:
            c = float(contributions[j])
            if c >= least and c > 0 and self.feature_names[j] not in named:
                found.append((c, self._of_column(row, int(j))))
        if not found:
            return "no column stands out"
        # The sort is stable: a pair comes before a column of the same contribution.
        found.sort(key=lambda reason: -reason[0])
        return "; ".join(text for _, text in found[:n_reasons])

    def _of_pair(self, pair: Contradiction) -> str:
        """What contradicts what."""
        both = [
            f"{name} ({short(self.values[pair.row, self.feature_names.index(name)])})"
            for name in (pair.first, pair.second)
        ]
        return f"{both[0]} and {both[1]} contradict each other ({self._amount(pair.contribution)})"

    def _of_column(self, row: int, j: int) -> str:
        """The value of a column, what is expected there, and how much that contributes."""
        value, amount = self.values[row, j], self._amount(float(self.contributions[row, j]))
        own, other = short(value), ""
        if self.expected is not None:
            own, other = contrast_values(value, self.expected[row, j])
        where = ""
        if other not in ("", MISSING, own):
            usual = "is expected given the other columns" if self.unit == NATS else "is usual"
            where = f" where {other} {usual}"
        return f"{self.feature_names[j]} is {own}{where} ({amount})"

    def _amount(self, contribution: float) -> str:
        if math.isinf(contribution):
            return "impossible"
        if self.unit == NATS:
            return f"{contribution:+,.{int(abs(contribution) < 100)}f} nats"
        return f"contribution {short(contribution)}"
