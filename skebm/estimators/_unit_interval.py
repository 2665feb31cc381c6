"""Tables whose columns are brought to [0, 1]."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import MinMax, column_ranges
from skebm.training.rows import Rows


class UnitInterval(BaseEstimator):
    """Scales columns that leave [0, 1] (``rescale="auto"``) or refuses them (False)."""

    rescale: Any

    def _rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
        reset: bool = False,
    ) -> Rows:
        low, high = column_ranges(X)
        if reset:
            self.scaling_ = self._learn_scaling(low, high)
        else:
            self._warn_of_clipping(low, high)
        return Rows.of(X, self.scaling_.apply, dtype=dtype, device=device, weight=weight)

    def _learn_scaling(self, low: np.ndarray, high: np.ndarray) -> MinMax:
        scaling = MinMax.fit(low, high)
        if len(scaling.columns):
            what = f"columns {self._names(scaling.columns)} leave [0, 1]"
            if not self.rescale:
                raise ValueError(
                    f"X has {what}, and rescale=False. Binarise or scale them to [0, 1], or pass "
                    'rescale="auto".'
                )
            warnings.warn(
                f"RBMEstimator models values in [0, 1], but {what}: they are min-max scaled "
                "(rescale=False raises instead).",
                UserWarning,
                stacklevel=2,
            )
        return scaling

    def _warn_of_clipping(self, low: np.ndarray, high: np.ndarray) -> None:
        outside = self.scaling_.outside(low, high)
        if not len(outside):
            return
        what = f"columns {self._names(outside)} hold values outside the range of the training data"
        if not self.rescale:
            raise ValueError(f"X: {what} ([0, 1]), and rescale=False.")
        warnings.warn(f"X: {what}; they are clipped to it.", UserWarning, stacklevel=2)

    def _likely_energies(self, rows: Rows) -> np.ndarray:
        """Energies, with a warning where rows have an energy but no probability; one pass."""

        def both(energy: Any, x: Tensor) -> Tensor:
            value = energy(x)
            return torch.stack([value, energy.domain.contains(x).to(value)], 1)

        value, inside = self._map(rows, both).double().numpy().T
        if not inside.all():
            warnings.warn(
                f"{int((inside == 0).sum())} of {len(rows)} rows are not binary. Taken as "
                "probabilities, their value is a lower bound on the mean log-likelihood of their "
                "random binarisations, not a likelihood of their own.",
                UserWarning,
                stacklevel=3,
            )
        return value

    def _names(self, columns: np.ndarray) -> str:
        """Names or numbers of columns for a message, the first ten."""
        names = getattr(self, "feature_names_in_", None)
        shown = [str(i) if names is None else repr(names[i]) for i in columns[:10].tolist()]
        return ", ".join(shown) + (f" and {len(columns) - 10} more" if len(columns) > 10 else "")
