"""Mixtures of normal distributions by expectation-maximisation, rows counted by their weights.

scikit-learn's GaussianMixture takes no sample weights, and its small components may collapse.
Everything is float64; all choices are by inverse CDF on weights added up in the order of the rows,
so that a row of weight 2 is the row twice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.noise._fitting import chunked, pick

LLOYD_STEPS = 5

# A component that holds less than this of a row, and of its share of all rows, is empty.
LEAST_COUNT = 1e-3

# Rounds in which the prior stays what it is; the first starts at the clusters.
N_PRIORS = 2

# Rows by which the centre of the prior is shrunk. More would blur columns that nearly copy each
# other, which makes a nat and more of difference.
CENTRE_ROWS = 2.0


class Prior(NamedTuple):
    """An inverse-Wishart-like prior of the covariances: `rows` rows of covariance `centre`."""

    rows: float
    centre: Tensor  # (d, d)
    ridge: Tensor  # (d,), added to the diagonal of what comes out

    def covariances(self, count: Tensor, scatter: Tensor) -> Tensor:
        """Modes given scatter matrices (K, d, d) of `count` (K,) rows."""
        total = scatter + self.rows * self.centre
        return total / (count + self.rows)[:, None, None] + self.ridge.diag()

    def log_density(self, roots: Tensor, whitening: Tensor) -> float:
        """log-density at covariances of such Cholesky factors, up to a constant."""
        log_det = 2 * roots.diagonal(dim1=1, dim2=2).log().sum()
        trace = (whitening @ self.centre * whitening).sum()
        return -self.rows / 2 * float(log_det + trace)


class Found(NamedTuple):
    """Weights, means and covariances, and the penalised log-likelihood a row at each step."""

    weights: Tensor
    means: Tensor
    covariances: Tensor
    path: list[float]


def maximise(
    z: Tensor,
    w: Tensor,
    n_components: int,
    regularisation: Tensor,
    u: Tensor,
    max_iter: int,
    tol: float,
    prior_rows: float | None = None,
) -> Found:
    """Fit standardised rows z (n, d) of weights w (n,), started by the uniform numbers u.

    The prior (as in Fraley and Raftery, 2007) is worth d + 2 rows for each component. Its centre is
    the covariance within the components, itself shrunk by two rows towards I / K^(2 / d), which is
    theirs. It is set at the start and once more near the end, and fixed in between: each step
    raises the penalised likelihood.
    """
    labels = clusters(z, w, n_components, u)
    n_components = int(labels.max()) + 1
    share = torch.nn.functional.one_hot(labels, n_components).double()
    path: list[float] = []
    for last in range(N_PRIORS):
        count, means, scatter = statistics(z, w, share)
        prior = make_prior(count, scatter, regularisation, prior_rows)
        before = -math.inf
        for _ in range(max_iter):
            covariances = prior.covariances(count, scatter)
            weights = count / count.sum()
            share, log_likelihood, penalty = expectation(z, w, weights, means, covariances, prior)
            objective = (log_likelihood + penalty) / float(w.sum())
            path.append(objective)
            # Sooner where the prior is still to change.
            if objective - before < (tol if last else 10 * tol):
                break
            before = objective
            kept = w @ share > LEAST_COUNT * min(1.0, float(w.sum()) / len(weights))
            if not kept.all():
                share = share[:, kept] / share[:, kept].sum(1, keepdim=True).clamp_min(1e-300)
                before = -math.inf
            count, means, scatter = statistics(z, w, share)
    return Found(weights, means, covariances, path)


def make_prior(
    count: Tensor, scatter: Tensor, ridge: Tensor, prior_rows: float | None = None
) -> Prior:
    """The prior that the clusters say, worth `prior_rows` rows (d + 2 by default)."""
    n_components, d = scatter.shape[:2]
    rows = d + 2.0 if prior_rows is None else prior_rows
    centre = scatter.sum(0)
    # Constant columns have a ridge of one and no more: their scatter is zero.
    centre.diagonal().add_(
        CENTRE_ROWS * n_components ** (-2 / d) * (scatter.diagonal(dim1=1, dim2=2).sum(0) > 0)
    )
    return Prior(rows, centre / (count.sum() + CENTRE_ROWS), ridge)


def statistics(z: Tensor, w: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Counts (K,), means (K, d) and scatter matrices (K, d, d) of the components."""
    weight = share * w[:, None]
    count = weight.sum(0)
    means = weight.t() @ z / count[:, None]
    scatter = z.new_empty(len(count), z.shape[1], z.shape[1])
    # One by one, from the means: sums of squares would cancel where a component is far out.
    for k, column in enumerate(weight.t().contiguous()):
        off = z - means[k]
        torch.mm(off.t() * column, off, out=scatter[k])
    return count, means, (scatter + scatter.transpose(1, 2)) / 2


def factors(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Lower Cholesky factors and their inverses, (K, d, d)."""
    roots = torch.linalg.cholesky(covariances)
    identity = torch.eye(roots.shape[1], dtype=roots.dtype, device=roots.device)
    return roots, torch.linalg.solve_triangular(roots, identity.expand_as(roots), upper=False)


def expectation(
    z: Tensor, w: Tensor, weights: Tensor, means: Tensor, covariances: Tensor, prior: Prior
) -> tuple[Tensor, float, float]:
    """Responsibilities (n, K), the log-likelihood, and the log-density of the prior."""
    roots, whitening = factors(covariances)
    d = z.shape[1]
    level = weights.log() - roots.diagonal(dim1=1, dim2=2).log().sum(1) - d / 2 * math.log(math.tau)
    maps = whitening.flatten(0, 1).t().contiguous()  # (d, K d)
    shift = torch.matmul(whitening, means[..., None]).flatten()

    def logits(rows: Tensor) -> Tensor:
        white = torch.addmm(-shift, rows, maps).square_().view(len(rows), *means.shape)
        return torch.sub(level, white.sum(2), alpha=0.5)

    log_share = chunked(logits, z, maps.shape[1])
    total = log_share.logsumexp(1)
    share = log_share.sub_(total[:, None]).exp_()
    return share, float(w @ total), prior.log_density(roots, whitening)


def clusters(z: Tensor, w: Tensor, n_clusters: int, u: Tensor) -> Tensor:
    """Labels (n,) by k-means++ and a few steps of Lloyd; as many as there are distinct rows."""
    first = int(pick(w, u[:1]))
    centres = z[first][None]
    nearest = (z - centres[0]).square().sum(1)
    # Rows that are equal up to rounding are no centres of their own.
    floor = 1e-24 * (1 + z.square().sum(1).max())
    for number in range(1, n_clusters):
        nearest = torch.where(nearest > floor, nearest, 0.0)
        if not nearest.any():
            break
        chosen = int(pick(w * nearest, u[number : number + 1]))
        centres = torch.cat([centres, z[chosen][None]])
        nearest = torch.minimum(nearest, (z - z[chosen]).square().sum(1))
    for _ in range(LLOYD_STEPS):
        labels = _nearest(z, centres)
        count = w.new_zeros(len(centres)).index_add_(0, labels, w)
        total = torch.zeros_like(centres).index_add_(0, labels, z * w[:, None])
        centres = torch.where(count[:, None] > 0, total / count[:, None], centres)
    labels = _nearest(z, centres)
    return labels.unique(return_inverse=True)[1]


def _nearest(z: Tensor, centres: Tensor) -> Tensor:
    distance = centres.square().sum(1)

    def label(rows: Tensor) -> Tensor:
        return torch.addmm(distance, rows, centres.t(), alpha=-2).argmin(1)

    return chunked(label, z, len(centres))
