"""Telescoping density-ratio estimation: the ratio of data to noise through bridge distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skebm.distributions import Gaussian


class Waymarks(NamedTuple):
    r"""Bridge distributions between data and noise, :math:`x_k = a_k x_0 + b_k x_1`.

    Attributes
    ----------
    coefficients : ndarray of shape (K + 1, 2)
        :math:`a_k, b_k`, from (1, 0) to (0, 1).
    centres : ndarray of shape (K + 1, d)
        Means :math:`m_k`.
    whitening_matrices : ndarray of shape (K + 1, d, d)
        Symmetric inverse square roots :math:`W_k` of the covariances: :math:`y = (x - m_k) W_k` has
        mean 0 and covariance 1 where x has the moments of :math:`x_k`.
    """

    coefficients: np.ndarray
    centres: np.ndarray
    whitening_matrices: np.ndarray

    @property
    def n_bridges(self) -> int:
        """K."""
        return len(self.coefficients) - 1


def fit_waymarks(
    data: Gaussian, noise: Gaussian, n_bridges: int | str, convex: bool = False
) -> Waymarks:
    r"""Waymarks between data and noise of the given moments, at equal distances.

    The distance of two waymarks is the square root of the symmetric Kullback-Leibler divergence of
    normal distributions with their moments, summed along the path.

    Parameters
    ----------
    data, noise : Gaussian
        Moments of flat rows.
    n_bridges : int >= 1 or "auto"
        K; ``"auto"`` is the smallest number without a step longer than 2, that is 4 nats.
    convex : bool, default=False
        Whether :math:`a_k + b_k = 1`, which stays within bounds, or :math:`a_k^2 + b_k^2 = 1`,
        which preserves variances [1]_.

    Returns
    -------
    Waymarks

    References
    ----------
    .. [1] Rhodes, Xu and Gutmann (2020), "Telescoping density-ratio estimation", NeurIPS,
       section 3.1 (linear combinations as waymarks).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import fit_waymarks
    >>> from skebm.distributions import Gaussian
    >>> waymarks = fit_waymarks(
    ...     Gaussian(torch.zeros(8), 0.05), Gaussian(torch.zeros(8), 1.0), "auto"
    ... )
    >>> waymarks.n_bridges  # (sqrt(2 * 8) * log 20) / 2, rounded up
    6
    """
    ends = [
        (mean[0], covariance[0]) for _, mean, covariance in (data.components(), noise.components())
    ]
    (m0, c0), (m1, c1) = ends
    # Largest absolute logarithm of b / a on the grid of the path, and its number of points;
    # narrower data than that, relative to the noise, are a point in single precision.
    max_log_ratio, n_grid = 15.0, 1501
    angle = torch.linspace(-max_log_ratio, max_log_ratio, n_grid, dtype=torch.float64).exp().atan()
    angle = torch.cat([angle.new_zeros(1), angle, angle.new_full((1,), math.pi / 2)]).to(m0)
    step = _symmetric_divergences(_coefficients(angle, convex), *ends).sqrt()
    # Longest step. Its square is the symmetric divergence in nats; a classifier of two
    # distributions 4 nats apart (2 in either direction) is right five times out of six.
    max_step = 2.0
    if n_bridges == "auto":
        n_bridges = max(1, math.ceil(float(step.sum()) / max_step))
    # Least length of a radian of the path.
    min_length_per_radian = 0.1
    # Where the moments do not change along the path, waymarks are evenly spaced in the angle.
    length = torch.hypot(step, min_length_per_radian * angle.diff()).cumsum(0)
    length = torch.cat([length.new_zeros(1), length])
    targets = torch.linspace(0, 1, int(n_bridges) + 1).to(length) * length[-1]
    at = np.interp(targets.cpu().numpy(), length.cpu().numpy(), angle.cpu().numpy())
    coefficients = _coefficients(torch.as_tensor(at).to(m0), convex)
    a, b = coefficients.t()[..., None]
    variances, axes = torch.linalg.eigh(a[..., None] ** 2 * c0 + b[..., None] ** 2 * c1)
    whitening = (axes * variances.rsqrt()[:, None]) @ axes.mT
    return Waymarks(*(part.cpu().numpy() for part in (coefficients, a * m0 + b * m1, whitening)))


def _coefficients(angle: Tensor, convex: bool) -> Tensor:
    """Coefficients of data and noise, (n, 2)."""
    coefficients = torch.stack([angle.cos(), angle.sin()], 1)
    coefficients[-1, 0] = 0.0  # exactly, not up to rounding
    return coefficients / coefficients.sum(1, keepdim=True) if convex else coefficients


def _symmetric_divergences(
    coefficients: Tensor, data: tuple[Tensor, Tensor], noise: tuple[Tensor, Tensor]
) -> Tensor:
    """Symmetric divergence of each waymark from the next, in nats, for normal distributions."""
    (m0, c0), (m1, c1) = data, noise
    # Axes in which the noise has covariance 1 and the covariance of the data is diagonal.
    tril = torch.linalg.cholesky(c1)
    half = torch.linalg.solve_triangular(tril, c0, upper=False)
    both = torch.linalg.solve_triangular(tril, half.mT, upper=False)
    variances, axes = torch.linalg.eigh((both + both.mT) / 2)
    means = torch.linalg.solve_triangular(tril, torch.stack([m0, m1], 1), upper=False)
    mean = coefficients @ (means.mT @ axes)
    v = coefficients.square() @ torch.stack(
        [variances.clamp_min(1e-30), torch.ones_like(variances)]
    )
    v, w = v[:-1], v[1:]
    of_means = mean.diff(dim=0).square() * (1 / v + 1 / w)
    return ((w - v).square() / (v * w) + of_means).sum(1) / 2


class Telescope(nn.Module):
    r"""A telescoping sum of log density ratios between waymarks, with a network for each.

    .. math:: f(x) = -\sum_{k=0}^{K-1} r_k(x) , \qquad
        r_k(x) = \log \frac{g_k(x)}{g_{k+1}(x)} + u_k\bigl((x - m_k) W_k\bigr) ,

    where :math:`r_k` is the logarithm of :math:`p_k / p_{k+1}`; with the noise :math:`p_K` as base,
    the energy is therefore that of :math:`p_0`. :math:`g_k` is the normal distribution with the
    moments :math:`(m_k, W_k^{-2})` of a waymark, and :math:`u_k` corrects the ratio of two of them.
    With normal noise the model is proper, because networks of bounded gradient grow more slowly
    than quadratic terms.

    Parameters
    ----------
    networks : sequence of nn.Module
        :math:`u_k`, from whitened rows (n, ...) to (n,).
    waymarks : Waymarks
        The bridge distributions.

    References
    ----------
    Rhodes, Xu and Gutmann (2020), "Telescoping density-ratio estimation", NeurIPS, section 3.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec, Telescope, fit_waymarks
    >>> from skebm.distributions import Gaussian
    >>> data, noise = Gaussian(torch.zeros(2), 0.1), Gaussian(torch.zeros(2), 1.0)
    >>> generator = torch.Generator().manual_seed(0)
    >>> networks = [MLP((8,)).build(Spec((2,), generator)) for _ in range(3)]
    >>> energy = NeuralEnergy(Telescope(networks, fit_waymarks(data, noise, 3)), Real((2,)), noise)
    >>> x = data.sample(5, generator)
    >>> torch.allclose(-energy(x), data.log_prob(x), atol=1e-4)  # before training
    True
    """

    coefficients: Tensor
    centres: Tensor
    whitening_matrices: Tensor
    log_dets: Tensor

    def __init__(self, networks: Sequence[nn.Module], waymarks: Waymarks):
        super().__init__()
        if len(networks) != waymarks.n_bridges:
            raise ValueError(
                f"{waymarks.n_bridges} bridges need a network each, but there are {len(networks)}."
            )
        self.networks = nn.ModuleList(networks)
        like = next(self.networks.parameters())
        parts = {name: torch.as_tensor(getattr(waymarks, name)) for name in Waymarks._fields}
        # log det W, the part of log g that does not depend on x.
        parts["log_dets"] = torch.linalg.slogdet(parts["whitening_matrices"]).logabsdet
        for name, value in parts.items():
            self.register_buffer(name, value.to(like), persistent=False)

    @property
    def n_bridges(self) -> int:
        """K."""
        return len(self.networks)

    def _whiten(self, x: Tensor, k: int) -> Tensor:
        return (x.flatten(1) - self.centres[k]) @ self.whitening_matrices[k]

    def _log_normal(self, y: Tensor, k: int) -> Tensor:
        """log g_k of whitened rows, up to a constant that is the same for all k."""
        return self.log_dets[k] - y.square().sum(1) / 2

    def _correction(self, y: Tensor, k: int, like: Tensor) -> Tensor:
        return self.networks[k](y.view_as(like))

    def forward(self, x: Tensor) -> Tensor:
        """f(x), (n,)."""
        first, last = self._whiten(x, 0), self._whiten(x, self.n_bridges)
        value = self._log_normal(last, self.n_bridges) - self._log_normal(first, 0)
        for k in range(self.n_bridges):
            value = value - self._correction(self._whiten(x, k), k, x)
        return value

    def log_ratio(self, x: Tensor, k: int) -> Tensor:
        """r_k(x), (n,)."""
        y, y_next = self._whiten(x, k), self._whiten(x, k + 1)
        normal = self._log_normal(y, k) - self._log_normal(y_next, k + 1)
        return normal + self._correction(y, k, x)

    def waymark(self, data: Tensor, noise: Tensor, k: int) -> Tensor:
        """Draws of p_k, (n, ...), from rows of the data and of the noise."""
        a, b = self.coefficients[k]
        return a * data + b * noise
