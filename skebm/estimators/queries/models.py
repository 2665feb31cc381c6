"""Questions to models whose energy corrects a base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base import sampling
from skebm.distributions import Distribution, Uniform
from skebm.estimators.base import OfModel
from skebm.estimators.queries.joint import Joint, mixture_near
from skebm.estimators.queries.mixin import QueriesMixin
from skebm.estimators.tables.table import Table
from skebm.partition.checks import has_uniform
from skebm.training.rows import Rows


class ModelQueriesMixin(QueriesMixin, OfModel):
    """Marginals and conditionals of an energy, by its base, and scores of rows with holes."""

    # ---------------------------------------------------------------- scores

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-likelihood of each row, log p(x) = -E(x) - log Z, in nats.

        The values are exact if log Z is. If log Z is estimated, its error is the same for all rows
        (see `log_partition_bounds_`). With ``partition=None`` the values are -E(x). To rank rows,
        use :meth:`energy`, which needs no log Z. Of rows with missing entries it is the
        log-likelihood of the known ones, whose error :meth:`log_marginal` gives.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            NaN marks missing entries.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        check_is_fitted(self)  # also of an empty stream
        return self._over_blocks(X, self._log_densities_of_block)

    def _log_densities_of_block(self, X: Any) -> np.ndarray:
        rows = self._rows_to_score(X)
        found = -self._energies(rows, likely=True) - self.log_partition_
        known = rows.present_entries()
        if known is not None and self.partition is not None:
            found[~known.any(1).cpu().numpy()] = 0.0  # where rounding of two sums is left
        return found

    def _rows_to_score(self, X: Any) -> Rows:
        check_is_fitted(self)
        return self._rows_of(self._query_input(X))

    def _energies(self, rows: Rows, *, likely: bool = False) -> np.ndarray:
        """Energies of rows; missing entries are summed out."""

        def of_complete(some: Rows) -> np.ndarray:
            return super(ModelQueriesMixin, self)._energies(some, likely=likely)

        def of_known(x: Tensor, index: Tensor) -> np.ndarray:
            sums = self._sums_of_known(x).value.cpu().numpy()
            volumes: np.ndarray = self._recipe.table.log_volumes((~x.isnan()).cpu().numpy())
            return volumes - sums

        return self._by_completeness(rows, of_complete, of_known)

    def _by_completeness(
        self,
        rows: Rows,
        of_complete: Callable[[Rows], np.ndarray],
        of_known: Callable[[Tensor, Tensor], np.ndarray],
    ) -> np.ndarray:
        """What is found of complete rows, and of rows x with missing entries, nan, of some numbers.

        In the order of the rows; without gradients of the latter.
        """
        known = rows.present_entries()
        if known is None:
            return of_complete(rows)
        complete, parts = known.all(1), []
        if complete.any():
            some = rows.subset(complete.nonzero().ravel())
            some.known = None
            parts.append(of_complete(some))
        index = (~complete).nonzero().ravel()
        x = torch.where(known[index], rows.take(index), torch.nan)
        with torch.no_grad():
            parts.append(of_known(x, index))
        found = np.concatenate(parts)
        order = torch.cat([complete.nonzero().ravel(), index]).argsort()
        return found[order.cpu().numpy()]

    # ---------------------------------------------------------------- what questions need

    def _draw_rows(
        self, n_samples: int, random_state: Any, temperature: float, given: Any, n_steps: int
    ) -> np.ndarray:
        """Rows of the model at a temperature, or given some of their columns."""
        self._check_draws(n_samples, temperature, given, n_steps)
        if given is not None:
            return self._sample_given(given, n_samples, random_state, n_steps)
        drawn = self._draw(n_samples, self._generator(random_state), n_steps, temperature)
        return self._recipe.table.invert(drawn)

    def _joint(self) -> Joint:
        energy, table = self.energy_, self._recipe.table
        base = self._query_base(energy)

        def row_energy(x: Tensor) -> Tensor:
            with torch.no_grad(), sampling(energy):
                return table.row_energy(energy, x)

        def correction(x: Tensor) -> Tensor:
            with torch.no_grad(), sampling(energy):
                found: Tensor = energy.correction(x)
                return found

        corrects = energy.corrects(base)
        return Joint(
            base,
            table.groups,
            row_energy,
            correction if corrects else None,
            self._exact_sums(),
            energy.discontinuities,
        )

    def _exact_sums(self) -> Any:
        """Sums over missing entries that the energy has in closed form, or None."""
        return None

    def _query_base(self, energy: Any) -> Distribution:
        """The base of the energy, or a distribution near the model if that has no conditionals."""
        base: Distribution | None = getattr(energy, "base", None)
        if base is None:
            base = self._partition_inputs(("base",))["base"]
        if base is not None and base.has_given and base.has_log_marginal:
            return base
        domain, like = energy.domain, next(energy.parameters())
        if has_uniform(domain) and not isinstance(base, Distribution):
            return Uniform(domain, like.dtype, like.device)
        near = self._query_reference()
        if isinstance(base, Distribution):  # a flow may be far from the rows
            generator = torch.Generator(like.device).manual_seed(0)
            near = torch.cat([near, base.sample(len(near), generator).to(near)])
        return mixture_near(near).to(like.device, like.dtype)

    def _query_input(self, X: Any) -> Any:
        return self._validate(X, ensure_all_finite="allow-nan")

    def _rows_of_input(self, X: Any) -> Tensor:
        rows = self._rows_of(X)
        return rows.block(0, len(rows))

    def _query_generator(self, random_state: Any) -> torch.Generator:
        return self._generator(random_state)

    @property
    def _query_table(self) -> Table:
        table: Table = self._recipe.table
        return table

    def _query_reference(self) -> Tensor:
        return torch.as_tensor(self._reference)
