"""The questions that a fitted density answers about any of its columns."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import check_container, check_is_fitted, draw_seed, is_frame, warn
from skebm.base import Categorical, LikelihoodWarning, LogLikelihoods
from skebm.base.energy import check_temperature
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.estimators.queries.columns import (
    ColumnConditional,
    LevelConditional,
    NumberConditional,
    as_levels,
    ends_of_interval,
    one_or_each,
    probabilities,
)
from skebm.estimators.queries.joint import Joint, states_of_column
from skebm.estimators.tables.blocks import ColumnBlock, NumberBlock, StateBlock
from skebm.estimators.tables.columns import column_numbers
from skebm.estimators.tables.frames import as_given
from skebm.estimators.tables.table import Table, is_far
from skebm.partition.given import LogZGiven

# Relative errors of quadrature: where a density is returned, and where only its mean.
PRECISE, ROUGH = 1e-9, 1e-4
# Relative difference of a value to what the model takes it for, beyond rounding of float32.
CLIPPED = 1e-3
HOW = ("draw", "mean", "mode")


class QueriesMixin(metaclass=abc.ABCMeta):
    """Marginals, conditionals, predictions and imputations of a density of rows.

    Missing entries, NaN, None or pandas.NA, are what is not known of a row. Whether an answer is
    exact depends on the model. It is for :class:`~skebm.TractableDensity`, for all of whose
    distributions marginals and conditionals are known; for a single unknown column of any model,
    by a sum over its levels or by quadrature; for RBMs with few hidden units; and for few unknown
    bits and levels. Otherwise it is estimated from draws of the base given what is known, weighted
    by the model, and :meth:`log_marginal` gives the error.
    """

    # ---------------------------------------------------------------- what a family says

    @abc.abstractmethod
    def _joint(self) -> Joint:
        """The model as a base and a correction."""

    @abc.abstractmethod
    def _query_input(self, X: Any) -> Any:
        """Validated X, its categories as codes, nan where missing."""

    @abc.abstractmethod
    def _rows_of_input(self, X: Any) -> Tensor:
        """Rows of the energy of validated X, nan where entries are missing."""

    def _query_generator(self, random_state: Any) -> torch.Generator:
        """A generator on the device of the rows."""
        return torch.Generator().manual_seed(draw_seed(random_state))

    @property
    @abc.abstractmethod
    def _query_table(self) -> Table:
        """Columns of X and of rows of the energy."""

    def _log_z_ends(self) -> tuple[float, float]:
        """log Z, and its largest credible value."""
        model: Any = self
        found = model._log_partition()
        pessimistic = found.pessimistic
        return found.value, pessimistic if math.isfinite(pessimistic) else found.value

    @abc.abstractmethod
    def _query_reference(self) -> Tensor:
        """Some training rows of the energy."""

    def _rows_with_holes(self, X: Any) -> Tensor:
        return self._rows_of_input(self._query_input(X))

    def _joint_of_imputations(self) -> Joint:
        """What missing entries are drawn from."""
        return self._joint()

    def _fill(
        self, x: Tensor, how: str, n_draws: int, n_steps: int | None, generator: torch.Generator
    ) -> list[Tensor]:
        """Rows of the energy without missing entries: draws, or means; by default of the joint."""
        joint, known = self._joint_of_imputations(), ~x.isnan()
        x = torch.where(known, x, 0.0)
        if how == "draw":
            return list(joint.completions(x, known, n_draws, generator))
        mean = joint.means(x, known, generator)
        return [joint.modes(mean, known) if how == "mode" else mean]

    def _sums_of(self, x: Tensor) -> LogZGiven:
        """Log of the sum of exp(-E) over missing entries, in the units of the energy."""
        known = ~x.isnan()
        return self._joint().log_sums(x, known, own_generator(x))

    def _sums_of_known(self, x: Tensor) -> LogZGiven:
        """The same; minus infinity where powers of a known entry overflow.

        With a warning where so few draws are near the model that the error is not known.
        """
        value = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
        found, near = LogZGiven.exactly(value), (~is_far(x)).nonzero()[:, 0]
        if len(near):
            found.put(near, self._sums_of(x[near]))
        n_lost = int(found.std_error.isinf().sum())
        if n_lost:
            warn(
                f"Log-likelihoods of {n_lost} of {len(x)} rows with missing entries are not known: "
                "they may be far too low, as draws of the base are not near the model given what "
                "is known.",
                LikelihoodWarning,
                ("Use a base nearer to the model, or fewer missing entries.", "base"),
                ("Ask for fewer missing entries.",),
            )
        return found

    def _check_near(self, x: Tensor, numbers: Tensor | None = None) -> None:
        """Raise `ValueError` that names a known entry from which nothing else can be computed.

        `numbers` are those of the rows in X.
        """
        far = is_far(x)
        if bool(far.any()):
            row = int(far.int().argmax())
            number = row if numbers is None else int(numbers[row])
            what = "nothing can be computed given it"
            self._query_table.refuse_row(x[row : row + 1], number, what)

    # ---------------------------------------------------------------- marginals

    def log_marginal(self, X: Any) -> LogLikelihoods:
        r"""Log-likelihood of the known entries of each row, with its error.

        .. math:: \log p(x_{known}) = \log \int p(x_{known}, x_{missing})\, dx_{missing}

        with a sum over bits and levels. It is 0 where nothing is known. Values are those of
        `score_samples`; those that are estimated are low on average by about half of the squared
        standard error.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries.

        Returns
        -------
        LogLikelihoods
            ``std_error`` and ``exact`` are of the sums over missing entries. The ends are two
            standard errors away, with the pessimistic log Z at the lower one.
        """
        check_is_fitted(self)
        return self._log_marginals(self._rows_with_holes(X))

    def _log_marginals(self, x: Tensor) -> LogLikelihoods:
        log_z, pessimistic = self._log_z_ends()
        value, error, exact = self._log_sums_in_units(x)
        none = x.isnan().all(1).cpu().numpy()
        value[none], error[none], exact[none] = log_z, 0.0, True
        lower = value - pessimistic - 2 * error
        lower[none] = 0.0
        log_prob = value - log_z
        return LogLikelihoods(log_prob, error, lower, log_prob + 2 * error, exact)

    def _log_sums_in_units(self, x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log p(known entries) + log Z in the units of X, its errors, and whether it is exact."""
        with torch.no_grad():
            found = self._sums_of_known(x)
        parts = (found.value, found.std_error, found.exact)
        sums, error, exact = (part.cpu().numpy().copy() for part in parts)
        return sums - self._query_table.log_volumes((~x.isnan()).cpu().numpy()), error, exact

    def log_conditional(self, X: Any, given: Any) -> np.ndarray:
        r"""Log-likelihood of what is known of each row, given some of its columns.

        .. math:: \log p(x_{others} \mid x_{given}) = \log p(x_{others}, x_{given}) -
            \log p(x_{given})

        log Z cancels, and is not estimated unless nothing is known of a row, or of its `given`
        columns. Entries of `given` columns that are missing are not conditioned on.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries.
        given : str, int, or sequence of str or int
            Names or numbers of columns.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats; exact where :meth:`log_marginal` is.
        """
        check_is_fitted(self)
        x = self._rows_with_holes(X)
        alone = torch.full_like(x, torch.nan)
        for j in self._columns("given", given):
            place = self._query_table.entries_of(j)[1]
            alone[:, place] = x[:, place]
        self._check_near(alone)
        rows = torch.cat([x, alone])
        if bool(rows.isnan().all(1).any()):  # of nothing the sum is Z
            both = self._log_marginals(rows).log_prob
        else:
            both = self._log_sums_in_units(rows)[0]
        found: np.ndarray = both[: len(x)] - both[len(x) :]
        return found

    # ---------------------------------------------------------------- one column

    def conditional(self, X: Any, column: str | int) -> ColumnConditional:
        """Distribution of a column of each row, given the known entries of its other columns.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries. Values of the column itself are not used.
        column : str or int
            Name or number.

        Returns
        -------
        ColumnConditional
            With ``mean()``, ``mean_error()``, ``std()``, ``mode()``, ``pdf(x)``, ``cdf(x)``,
            ``ppf(q)``, ``interval(confidence)`` and ``rvs(size)``, as SciPy's distributions. Its
            ``method`` says whether it is exact, by quadrature, or from draws.
        """
        return self._conditional(X, column, PRECISE)

    def _conditional(self, X: Any, column: str | int, tolerance: float) -> ColumnConditional:
        check_is_fitted(self)
        j = self._one_column(column)
        x = self._rows_with_holes(X)
        block, place = self._query_table.entries_of(j)
        self._check_near(_without(x, place))
        joint, known, generator = self._joint(), ~x.isnan(), own_generator(x)
        name = self._name_of(j)
        with torch.no_grad():
            if isinstance(block, NumberBlock):
                entry, at = place.start, block.columns.index(j)
                values = self._query_reference()[:, entry]
                found, method = joint.number(x, known, entry, values, generator, tolerance)
                centre, scale = float(block.units.centre[at]), float(block.units.scale[at])
                return NumberConditional(name, found, centre, scale, method)
            _check_no_one_hot(block)
            parts = joint.levels(torch.where(known, x, 0.0), known, place, generator)
        p, error = parts[0].exp().cpu().numpy(), parts[1].cpu().numpy()
        return LevelConditional(name, self._levels(j, place), p, parts[2], error)

    def predict_column(self, X: Any, column: str | int) -> np.ndarray:
        """Prediction of a column from the known entries of the others.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries. Values of the column itself are not used.
        column : str or int
            Name or number.

        Returns
        -------
        ndarray of shape (n_samples,)
            Expectation of a number, and of a bit of an array its probability; of categories and
            booleans the most probable level.
        """
        check_is_fitted(self)
        j = self._one_column(column)
        block, place = self._query_table.entries_of(j)
        joint = self._joint()
        if isinstance(block, NumberBlock) and joint.energy is None and joint.base.has_given:
            x = _without(self._rows_with_holes(X), place)
            self._check_near(x)
            at, known = block.columns.index(j), ~x.isnan()
            mean = joint.means(x.nan_to_num(), known, own_generator(x))[:, place.start]
            found_mean: np.ndarray = mean.numpy() * block.units.scale[at] + block.units.centre[at]
            return found_mean
        found = self._conditional(X, column, ROUGH)
        if isinstance(found, LevelConditional) and found.levels.dtype == object:
            return found.mode()
        return found.mean()

    def quantile(self, X: Any, column: str | int, q: Any) -> np.ndarray:
        """Quantiles of a column of each row, given the known entries of its other columns.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries. Values of the column itself are not used.
        column : str or int
            Name or number.
        q : float or sequence of k floats
            Probabilities.

        Returns
        -------
        ndarray of shape (n_samples,), or (n_samples, k)
        """
        check_is_fitted(self)
        levels = probabilities("q", q)
        found = self.conditional(X, column).ppf(levels[..., None] if levels.ndim else levels)
        return found.T if levels.ndim else found

    def cdf(self, X: Any, column: str | int, value: Any = None) -> np.ndarray:
        """Probability that a column is at most a value, given the known entries of the others.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries.
        column : str or int
            Name or number.
        value : float or array-like of shape (n_samples,), default=None
            None is the value of the column in each row.

        Returns
        -------
        ndarray of shape (n_samples,)
            nan where the value is not known.
        """
        check_is_fitted(self)
        if value is None:
            j = self._one_column(column)
            x, table = self._rows_with_holes(X), self._query_table
            missing = x[:, table.entries_of(j)[1].start].isnan().numpy()
            value = np.where(missing, np.nan, table.to_units(x.nan_to_num())[:, j])
        asked = self.conditional(X, column)
        value = one_or_each("value", value, asked.n_rows)
        return np.where(np.isnan(value), np.nan, asked.cdf(np.nan_to_num(value)))

    def interval(self, X: Any, column: str | int, coverage: float = 0.9) -> np.ndarray:
        """Interval that holds a column with a probability, with equal tails.

        Parameters
        ----------
        X : {array-like, data frame} of shape (n_samples, n_features)
            NaN marks missing entries. Values of the column itself are not used.
        column : str or int
            Name or number.
        coverage : float in (0, 1), default=0.9

        Returns
        -------
        ndarray of shape (n_samples, 2)
        """
        check_is_fitted(self)
        return self.quantile(X, column, ends_of_interval(coverage))

    # ---------------------------------------------------------------- several columns

    @as_given
    def impute(
        self,
        X: Any,
        random_state: Any = None,
        *,
        how: str = "draw",
        n_draws: int | None = None,
        n_steps: int | None = None,
    ) -> Any:
        """Replace missing entries by draws given the known entries, or by their means.

        Draws of a closed form are exact. Others are by chains with the known entries clamped, and
        approximate as the chains are finite. A row without known entries becomes a sample.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features)
            NaN marks missing entries.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        how : {"draw", "mean", "mode"}, default="draw"
            ``"draw"``: the imputations of a row are a joint draw, as in multiple imputation.
            ``"mean"``: the mean of a number and the probability of a bit, which have the least
            squared error; the most probable level of a category. ``"mode"``: the more probable
            value of a bit as well.
        n_draws : int >= 1 or None, default=None
            Number of imputed tables; with ``how="draw"`` only. None returns a single table, not in
            a list.
        n_steps : int or None, default=None
            Steps of the chains, where there are any. None is 200 Gibbs steps of RBMs and Boltzmann
            machines (means are taken over the second half), and 100 steps of neural densities.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features), or a list of `n_draws` of these
            A data frame with the index, columns and types of X if X is one, otherwise an array.
            Known entries are unchanged. In frames, columns of integers and booleans are rounded.
        """
        check_is_fitted(self)
        how = check_how(how, n_draws, n_steps)
        Xv = self._query_input(X)
        x, generator = self._rows_of_input(Xv), self._query_generator(random_state)
        self._check_near(x)
        with torch.no_grad():
            made = self._fill(x, how, n_draws or 1, n_steps, generator)
        tables = [self._query_table.with_imputations(Xv, rows) for rows in made]
        return tables[0] if n_draws is None else tables

    def _check_draws(
        self, n_samples: int, temperature: float, given: Any = None, n_steps: int = 1
    ) -> None:
        """Raise an error that names what is wrong with the arguments of `sample`."""
        check_is_fitted(self)
        whole_number("n_samples", n_samples, 1)
        whole_number("n_steps", n_steps, 1)
        check_temperature(temperature)
        n_numbers = float(n_samples) * self._query_table.domain.n_columns
        check_memory(f"n_samples={n_samples}", n_numbers, torch.float64)
        if given is not None and temperature != 1:
            raise ValueError(
                f"given= takes temperature=1.0, got {temperature}: other powers of a conditional "
                "distribution are not those of the model."
            )

    def _sample_given(
        self, given: Any, n_samples: int, random_state: Any, n_steps: int | None = None
    ) -> Any:
        """Draws given the known entries of a row, or of as many rows."""
        rows = self._given_rows(given, n_samples)
        if self._query_table.coding is not None:
            self._query_table.coding.check_values("given", rows)
        X = self._query_input(rows)
        x, generator = self._rows_of_input(X), self._query_generator(random_state)
        self._check_near(x)
        self._check_as_given(X, x)
        with torch.no_grad():
            (made,) = self._fill(x, "draw", 1, n_steps, generator)
        return self._query_table.with_imputations(X, made)

    def _check_as_given(self, X: Any, x: Tensor) -> None:
        """Raise `ValueError` for values of X that the model takes for others: it clips them."""
        table = self._query_table
        asked, known = X.reshape(len(X), -1), table.to_units(torch.where(x.isnan(), 0.0, x))
        off = np.abs(known - asked) > CLIPPED * np.maximum(1.0, np.abs(asked))  # False for nan
        off[:, [j for block, _ in table.places() for j in block.columns if not block.clips]] = False
        if off.any():
            row, j = (int(place) for place in np.argwhere(off)[0])
            raise ValueError(
                f"given has {asked[row, j]:.6g} in column {self._name_of(j)!r}, which the model "
                f"would take for {known[row, j]:.6g}, an end of its range: give a value within it."
            )

    def _given_rows(self, given: Any, n_samples: int) -> Any:
        """A row as a table of `n_samples` equal ones; a frame may leave columns out."""
        names = getattr(self, "feature_names_in_", None)
        if isinstance(given, dict) or hasattr(given, "to_dict") and not is_frame(given):
            import pandas as pd

            given = pd.DataFrame([dict(given)])
        if is_frame(given):
            import pandas as pd

            if given.shape[1]:  # nothing may be given
                check_container(given)
            frame = given.to_pandas() if not hasattr(given, "iloc") else given
            known = [str(name) for name in frame.columns]
            all_names = known if names is None else [str(name) for name in names]
            unknown = sorted(set(known) - set(all_names))
            if unknown:
                raise ValueError(
                    f"given has columns {unknown}, which the model does not know: its columns are "
                    f"{all_names}."
                )
            if len(frame) not in (1, n_samples):
                raise ValueError(
                    f"given must have one row, or n_samples={n_samples} of them, not {len(frame)}."
                )
            frame = frame.reindex(columns=pd.Index(all_names))
            if len(frame) == n_samples:
                return frame
            return frame.loc[frame.index.repeat(n_samples)].reset_index(drop=True)
        row, shape = np.asarray(given), self._query_table.row_shape
        row = row[None] if row.ndim == len(shape) else row
        if row.shape[1:] != shape or len(row) not in (1, n_samples):
            raise ValueError(
                f"given must be one row of shape {shape}, or n_samples={n_samples} of them, got an "
                f"array of shape {np.shape(given)}."
            )
        return np.repeat(row, n_samples, 0) if len(row) == 1 else row

    # ---------------------------------------------------------------- columns

    def _columns(self, argument: str, asked: Any) -> list[int]:
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else [str(name) for name in names]
        if isinstance(asked, Sequence) and not isinstance(asked, str) and not len(asked):
            return []
        try:
            return column_numbers(argument, asked, names, self._query_table.n_columns)
        except ValueError as error:
            if not hasattr(self, "classes_"):
                raise
            raise ValueError(f"{error} For the class, ask predict_proba.") from error

    def _one_column(self, column: Any) -> int:
        found = self._columns("column", column)
        if len(found) != 1:
            raise ValueError(
                f"column must be the name or the number of one column, got {column!r}: ask for one "
                "after the other, or for log_conditional of several."
            )
        return found[0]

    def _name_of(self, j: int) -> str:
        names = getattr(self, "feature_names_in_", None)
        return f"x{j}" if names is None else str(names[j])

    def _levels(self, j: int, place: slice) -> np.ndarray:
        """Values of a column of bits or levels, in the order of its states."""
        table, states = self._query_table, states_of_column(place.stop - place.start)
        x = torch.zeros(len(states), table.domain.n_columns)
        x[:, place] = states
        codes = table.to_units(x)[:, j]
        coding = table.coding
        if coding is not None and j in coding.levels:
            return as_levels([coding.levels[j][round(code)] for code in codes])
        is_bool = coding is not None and coding.dtypes[j][0].lower().startswith("bool")
        if coding is not None and (is_bool or j in coding.booleans):
            return as_levels([bool(code) for code in codes])
        return codes


def _without(x: Tensor, place: slice) -> Tensor:
    """Rows x (n, d) of which some entries are not known."""
    found = x.clone()
    found[:, place] = torch.nan
    return found


def own_generator(x: Tensor) -> torch.Generator:
    """A generator of a fixed seed: a question has one answer."""
    return torch.Generator(x.device).manual_seed(0)


def _check_no_one_hot(block: ColumnBlock) -> None:
    """Raise `ValueError` for a column that is one of several for the levels of a category."""
    if isinstance(block, StateBlock) and isinstance(block.domain, Categorical):
        raise ValueError(
            "One-hot columns are no columns of their own: pass the categories instead, as a column "
            "of a frame."
        )


def check_how(how: str, n_draws: int | None, n_steps: int | None) -> str:
    """The parameter `how` of `impute`; `ValueError` that names an argument that is wrong.

    "sample" is another word for "draw".
    """
    how = "draw" if how == "sample" else how
    if n_steps is not None:
        whole_number("n_steps", n_steps, 1)
    if how not in HOW:
        raise ValueError(f'how must be "draw", "mean" or "mode", got {how!r}.')
    if n_draws is not None:
        whole_number("n_draws", n_draws, 1)
        if how != "draw":
            raise ValueError(f'n_draws={n_draws} is for how="draw": there is one {how}.')
    return how
