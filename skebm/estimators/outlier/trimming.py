"""Rows of a table that are far from most others, by a normal distribution of its core."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from skebm._validation import n_rows
from skebm.distributions import Gaussian, SignedLog
from skebm.estimators.encoding import TableEncoder

# Share of the rows that the normal distribution is fitted to, and most fits.
CORE, MOST_FITS = 0.5, 20
# Widths of a column, by its quartiles, beyond which it counts no more in the first core.
MOST_WIDTHS = 5.0
# With "auto", how many times as far above the median as the upper quartile is an energy may be.
FAR = 6.0
FEWEST_ROWS = 20


def far_rows(X: Any, trim: float | str) -> np.ndarray:
    """Which rows of a table are left out of a fit, (n,) of bool.

    Energies are those of a normal distribution of the table as numbers, fitted to the half of the
    rows that have the least energy in turns, from those that are central column by column.

    Parameters
    ----------
    X : {array-like, frame} of shape (n_samples, n_features)
    trim : float or "auto"
        Share of the rows, or ``"auto"``: those whose energy is six times as far above the median as
        the upper quartile.

    References
    ----------
    Rousseeuw and Van Driessen (1999), "A fast algorithm for the minimum covariance determinant
    estimator", Technometrics 41(3) (the turns).
    """
    n = n_rows(X)
    if n < FEWEST_ROWS:
        raise ValueError(
            f"n_samples={n}: trim={trim!r} takes at least {FEWEST_ROWS} rows. Give more rows, or "
            "trim=None."
        )
    energy = core_energy(torch.as_tensor(TableEncoder().fit_transform(X))).numpy()
    if trim == "auto":
        middle, high = np.quantile(energy, [0.5, 0.75])
        return np.asarray(energy > middle + FAR * (high - middle))
    far = np.zeros(n, dtype=bool)
    far[np.argsort(-energy, kind="stable")[: int(float(trim) * n)]] = True
    return far


def core_energy(z: torch.Tensor) -> torch.Tensor:
    """Minus the log density of rows z (n, d) by the normal distribution of their core, (n,)."""
    centre, scale = SignedLog.units(z, z.new_ones(len(z)))
    energy = ((z - centre) / scale).clamp_(-MOST_WIDTHS, MOST_WIDTHS).square().sum(1)
    core = None
    for _ in range(MOST_FITS):
        new = energy <= energy.kthvalue(max(1, int(CORE * len(z)))).values
        if core is not None and torch.equal(core, new):
            break
        core = new
        energy = -Gaussian.fit(z[core]).log_prob(z)
    return energy
