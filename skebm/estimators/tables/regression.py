"""Ridge regression of several columns, with the penalty that the rows choose."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Penalties for each row, and the share of the rows that the weights may be as many as.
PENALTIES = torch.logspace(-6, 2, 17)
MOST_FREE = 0.8


class Ridge(NamedTuple):
    """A linear regression of k columns on p others, in float64.

    Attributes
    ----------
    weight : Tensor of shape (p, k)
    intercept : Tensor of shape (k,)
    error : Tensor of shape (k,)
        Mean squared errors of rows that are left out, by generalised cross-validation.
    inflation : float
        Factor by which residuals of left-out rows are larger than those of the fit.
    """

    weight: Tensor
    intercept: Tensor
    error: Tensor
    inflation: float

    def residuals(self, Z: Tensor, Y: Tensor) -> Tensor:
        """Residuals of Y, (n, k)."""
        return Y - Z @ self.weight - self.intercept


def ridge(Z: Tensor, Y: Tensor, weight: Tensor | None = None) -> Ridge:
    """Ridge regression of Y (n, k) on Z (n, p), with one penalty for all columns.

    The penalty is chosen by generalised cross-validation. If all penalties leave too many free
    parameters for the number of rows, the weights are 0.

    Parameters
    ----------
    Z, Y : Tensor of shape (n, p) and (n, k), float64
    weight : Tensor of shape (n,) or None, default=None
        Non-negative weights of the rows.

    References
    ----------
    Golub, Heath and Wahba (1979), "Generalized cross-validation as a method for choosing a good
    ridge parameter", Technometrics 21(2).
    """
    w = Z.new_ones(len(Z)) if weight is None else weight.to(Z)
    n, root = float(w.sum()), w.sqrt()[:, None]
    mean_z, mean_y = w @ Z / n, w @ Y / n
    Z, Y = (Z - mean_z) * root, (Y - mean_y) * root
    total = Y.square().sum(0)
    none = Ridge(Z.new_zeros(Z.shape[1], Y.shape[1]), mean_y, total / n, 1.0)
    if not Z.shape[1]:
        return none
    values, vectors = torch.linalg.eigh(Z.t() @ Z)
    values = values.clamp(min=0)
    cross, best = vectors.t() @ (Z.t() @ Y), None
    for penalty in PENALTIES * n:
        shrunk = cross / (values + penalty)[:, None]
        rest = total - 2 * (shrunk * cross).sum(0) + (shrunk.square() * values[:, None]).sum(0)
        free = float((values / (values + penalty)).sum()) + 1
        if free > MOST_FREE * n:
            continue
        error = n * rest.clamp(min=torch.finfo(rest.dtype).tiny) / (n - free) ** 2
        score = float(error.log().sum())
        if best is None or score < best[0]:
            best = score, vectors @ shrunk, error, n / (n - free)
    if best is None:
        return none
    _, found, error, inflation = best
    return Ridge(found, mean_y - mean_z @ found, error, inflation)
