"""Whitening transforms by the moments of a base, of which a network reconstructs the rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from skebm.distributions import (
    Distribution,
    Gaussian,
    GaussianMixture,
    KernelDensity,
    LowRankMixture,
    Stack,
)

# Fraction of the precision of a base that a reconstructing network may remove, so that the model
# stays proper.
MARGIN = 0.95
# Number of columns up to which the whitening is a matrix, and directions of one that is not.
MOST_DENSE, MOST_AXES = 100, 64


class Whitening(NamedTuple):
    """A whitening transform y = A (x - centre) with A symmetric.

    Attributes
    ----------
    centre : Tensor of shape (d,)
        Mean of the base.
    matrix : Tensor of shape (d, d)
        A. In the tails half the squared norm of y must be below -log q of the base: the model is
        then proper for any f(x) of at least minus half the squared norm.
    """

    centre: Tensor
    matrix: Tensor

    def times(self, x: Tensor) -> Tensor:
        """A x of each vector (..., d)."""
        return x @ self.matrix

    def transpose_times(self, y: Tensor) -> Tensor:
        """A' y of each vector (..., d)."""
        return y @ self.matrix


class LowRankWhitening(NamedTuple):
    r"""A whitening transform :math:`y = A (x - c)` for many columns, of cost d r.

    .. math:: A = \bigl(I - U \mathrm{diag}(g) U^\top\bigr) \, \mathrm{diag}(s)

    Attributes
    ----------
    centre : Tensor of shape (d,)
        c, the mean of the base.
    scale : Tensor of shape (d,)
        s.
    axes : Tensor of shape (d, r)
        U, orthonormal.
    shrinkage : Tensor of shape (r,)
        g, between 0 and 1.
    """

    centre: Tensor
    scale: Tensor
    axes: Tensor
    shrinkage: Tensor

    def times(self, x: Tensor) -> Tensor:
        """A x of each vector (..., d)."""
        return self._shrunk(x * self.scale)

    def transpose_times(self, y: Tensor) -> Tensor:
        """A' y of each vector (..., d)."""
        return self._shrunk(y) * self.scale

    def _shrunk(self, x: Tensor) -> Tensor:
        return x - (x @ self.axes * self.shrinkage) @ self.axes.t()


def whitening_of(base: Distribution | None) -> Whitening | LowRankWhitening | None:
    """The whitening by a normal distribution, mixture, kernels or stack; None for other bases.

    A is the inverse square root of the covariance of the base, shrunk so that no component has a
    variance above 1 in any direction. With more than 100 columns, and covariances of low rank plus
    diagonal, that covariance has at most 64 directions beyond the diagonal.
    """
    low_rank = None if base is None else _components(base)
    if low_rank is not None and low_rank.means.shape[1] > MOST_DENSE:
        return _low_rank_whitening(low_rank)
    moments = None if base is None else _moments(base)
    if moments is None:
        return None
    variances, axes = torch.linalg.eigh(moments.covariance)
    inverse_sqrt = (axes * variances.rsqrt()) @ axes.t()
    widest = torch.linalg.eigvalsh(inverse_sqrt @ moments.components @ inverse_sqrt).max()
    shrunk = inverse_sqrt * (MARGIN / widest.clamp_min(1.0)).sqrt()
    return Whitening(moments.mean.to(moments.like), shrunk.to(moments.like))


class _Moments(NamedTuple):
    """Mean (d,), covariance (d, d), covariances of the components (K, d, d), and a tensor."""

    mean: Tensor
    covariance: Tensor
    components: Tensor
    like: Tensor


def _moments(base: Distribution) -> _Moments | None:
    """Moments of a distribution with normal components, in float64; None for any other."""
    if isinstance(base, Stack):
        parts = [_moments(part) for part in base.parts]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        weights = base.weights.double()
        means = torch.stack([part.mean for part in known])
        within = torch.stack([part.covariance for part in known])
        components = torch.cat([part.components for part in known])
        like = known[0].like
    elif isinstance(base, KernelDensity):
        weights, means, like = base.weights.double(), base.centres.double(), base.centres
        components, mixing = base.kernel_covariances, base.mixing_weights
        share = weights.new_ones(1) if mixing is None else mixing.double()
        within = (share @ components.flatten(1)).view_as(components[:1])
    elif isinstance(base, LowRankMixture):
        weights, means, like = base.weights.double(), base.means.double(), base.means
        factors = base.factors.double()
        within = components = factors @ factors.mT + base.variances.double().diag_embed()
    elif isinstance(base, GaussianMixture) or (
        isinstance(base, Gaussian) and base.scale_tril is not None
    ):
        log_weights, means, components = base.components()
        weights, within = log_weights.exp(), components
        like = base.mean if isinstance(base, Gaussian) else base.means
    else:
        return None
    mean = weights @ means
    off = means - mean
    between = (off * weights[:, None]).t() @ off
    share = weights if len(within) == len(weights) else weights.new_ones(1)
    inner = (share @ within.flatten(1)).view_as(between)
    return _Moments(mean, inner + between, components, like)


# ------------------------------------------------------------------------------
# Many columns
# ------------------------------------------------------------------------------


class _Components(NamedTuple):
    """Components of covariance W W' + diag(variances): W is a list of K tensors (d, r)."""

    weights: Tensor
    means: Tensor
    factors: list[Tensor]
    variances: Tensor
    like: Tensor


def _components(base: Distribution) -> _Components | None:
    """The components of mixtures of low rank, and of stacks of them, in float64; else None."""
    if isinstance(base, LowRankMixture):
        factors = list(base.factors.double())
        weights, means = base.weights.double(), base.means.double()
        return _Components(weights, means, factors, base.variances.double(), base.means)
    if not isinstance(base, Stack):
        return None
    parts = [_components(part) for part in base.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    shares = zip(base.weights.double(), known, strict=True)
    return _Components(
        torch.cat([share * part.weights for share, part in shares]),
        torch.cat([part.means for part in known]),
        [factors for part in known for factors in part.factors],
        torch.cat([part.variances for part in known]),
        known[0].like,
    )


def _low_rank_whitening(base: _Components) -> LowRankWhitening:
    mean, root = base.weights @ base.means, base.weights.sqrt()
    within = [share * factors for share, factors in zip(root, base.factors, strict=True)]
    between = (base.means - mean).t() * root
    loadings, variances = torch.cat([*within, between], 1), base.weights @ base.variances
    axes, singular, other = torch.linalg.svd(
        loadings / variances.sqrt()[:, None], full_matrices=False
    )
    # What is beyond the first directions belongs to the diagonal.
    first = loadings @ other[:MOST_AXES].t()
    variances = variances + loadings.square().sum(1) - first.square().sum(1)
    scale = variances.rsqrt()
    axes, singular, _ = torch.linalg.svd(first * scale[:, None], full_matrices=False)
    whitening = LowRankWhitening(mean, scale, axes, 1 - (1 + singular.square()).rsqrt())
    components = zip(base.factors, base.variances, strict=True)
    widest = max(_widest(whitening, factors, own) for factors, own in components)
    whitening = whitening._replace(scale=scale * (MARGIN / max(widest, 1.0)) ** 0.5)
    return LowRankWhitening(*(part.to(base.like) for part in whitening))


def _widest(whitening: LowRankWhitening, factors: Tensor, variances: Tensor) -> float:
    """Largest variance of a component in any direction after the whitening, by Lanczos."""

    def variance(direction: np.ndarray) -> np.ndarray:
        v = whitening.transpose_times(torch.as_tensor(direction.ravel()).to(factors))
        v = factors @ (factors.t() @ v) + variances * v
        product: np.ndarray = whitening.times(v).cpu().numpy()
        return product

    d = len(variances)
    operator = LinearOperator((d, d), matvec=variance, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(d)
    # To a hundredth of what MARGIN leaves.
    largest = eigsh(operator, 1, which="LA", v0=start, tol=1e-4, return_eigenvectors=False)
    return float(largest[0])
