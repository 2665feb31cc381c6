"""A density ratio in steps: from noise to data through waymarks, distributions near each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skebm.distributions import Gaussian

# Ratios of noise to data for which waymarks are computed, in powers of e; narrower data than that
# part of the noise are a point to single precision.
FARTHEST, N_COPIES = 15.0, 1501
# Length of a step, at most: the square of it is the symmetric divergence in nats, and a classifier
# of two distributions 4 nats apart (2 in either direction) is right five times out of six.
LONGEST = 2.0
# Length of a radian of the path, at least.
LEAST_TURN = 0.1


class Waymarks(NamedTuple):
    r"""Distributions between data and noise, :math:`x_k = a_k x_0 + b_k x_1`.

    Attributes
    ----------
    shares : ndarray of shape (K + 1, 2)
        :math:`a_k, b_k`, from (1, 0) to (0, 1).
    centres : ndarray of shape (K + 1, d)
    whiteners : ndarray of shape (K + 1, d, d)
        :math:`y = (x - m_k) W_k` has mean 0 and covariance 1 where x has the moments of
        :math:`x_k`.
    """

    shares: np.ndarray
    centres: np.ndarray
    whiteners: np.ndarray

    @property
    def n_bridges(self) -> int:
        """K."""
        return len(self.shares) - 1


def fit_waymarks(
    data: Gaussian, noise: Gaussian, n_bridges: int | str, convex: bool = False
) -> Waymarks:
    r"""Waymarks between data and noise of the given moments, at equal distances.

    Distances are those of the normal distributions with the moments of the waymarks: the square
    root of their symmetric Kullback-Leibler divergence, added up along the path.

    Parameters
    ----------
    data, noise : Gaussian
        Of flat rows.
    n_bridges : int >= 1 or "auto"
        K; ``"auto"`` takes as many as make no step longer than 2, that is 4 nats.
    convex : bool, default=False
        Whether :math:`a_k + b_k = 1`, which stays inside walls, or :math:`a_k^2 + b_k^2 = 1`, which
        keeps variances [1]_.

    Returns
    -------
    Way

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
    angle = torch.linspace(-FARTHEST, FARTHEST, N_COPIES, dtype=torch.float64).exp().atan()
    angle = torch.cat([angle.new_zeros(1), angle, angle.new_full((1,), math.pi / 2)]).to(m0)
    step = _steps(_shares(angle, convex), *ends).sqrt()
    if n_bridges == "auto":
        n_bridges = max(1, math.ceil(float(step.sum()) / LONGEST))
    # Where moments tell no difference, turn evenly.
    done = torch.hypot(step, LEAST_TURN * angle.diff()).cumsum(0)
    done = torch.cat([done.new_zeros(1), done])
    goals = torch.linspace(0, 1, int(n_bridges) + 1).to(done) * done[-1]
    at = np.interp(goals.cpu().numpy(), done.cpu().numpy(), angle.cpu().numpy())
    shares = _shares(torch.as_tensor(at).to(m0), convex)
    a, b = shares.t()[..., None]
    variances, axes = torch.linalg.eigh(a[..., None] ** 2 * c0 + b[..., None] ** 2 * c1)
    whiteners = (axes * variances.rsqrt()[:, None]) @ axes.mT
    return Waymarks(*(part.cpu().numpy() for part in (shares, a * m0 + b * m1, whiteners)))


def _shares(angle: Tensor, convex: bool) -> Tensor:
    """Shares of data and noise, (n, 2)."""
    shares = torch.stack([angle.cos(), angle.sin()], 1)
    shares[-1, 0] = 0.0  # up to rounding
    return shares / shares.sum(1, keepdim=True) if convex else shares


def _steps(shares: Tensor, data: tuple[Tensor, Tensor], noise: tuple[Tensor, Tensor]) -> Tensor:
    """Symmetric divergence of each waymark from the next, in nats, as if they were normal."""
    (m0, c0), (m1, c1) = data, noise
    # Axes in which the noise has covariance 1 and that of the data is diagonal.
    root = torch.linalg.cholesky(c1)
    half = torch.linalg.solve_triangular(root, c0, upper=False)
    both = torch.linalg.solve_triangular(root, half.mT, upper=False)
    spread, axes = torch.linalg.eigh((both + both.mT) / 2)
    means = torch.linalg.solve_triangular(root, torch.stack([m0, m1], 1), upper=False)
    middle = shares @ (means.mT @ axes)
    v = shares.square() @ torch.stack([spread.clamp_min(1e-30), torch.ones_like(spread)])
    v, w = v[:-1], v[1:]
    far = middle.diff(dim=0).square() * (1 / v + 1 / w)
    return ((w - v).square() / (v * w) + far).sum(1) / 2


class Telescope(nn.Module):
    r"""A sum of log-ratios of waymarks, each with a network of its own.

    .. math:: f(x) = -\sum_{k=0}^{K-1} r_k(x) , \qquad
        r_k(x) = \log \frac{g_k(x)}{g_{k+1}(x)} + u_k\bigl((x - m_k) W_k\bigr) ,

    :math:`r_k` being the logarithm of :math:`p_k / p_{k+1}`, so that on top of noise :math:`p_K`
    the energy is that of :math:`p_0`. :math:`g_k` is the normal distribution with the moments
    :math:`(m_k, W_k^{-2})` of a waymark, which :math:`u_k` corrects: as networks of bounded slope
    take no square away, the model is proper on top of normal noise.

    Parameters
    ----------
    networks : sequence of nn.Module
        :math:`u_k`, of rows of order one, (n, ...) to (n,).
    waymarks : Waymarks

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
    >>> torch.allclose(-energy(x), data.log_prob(x), atol=1e-4)  # before it is trained
    True
    """

    shares: Tensor
    centres: Tensor
    whiteners: Tensor
    levels: Tensor

    def __init__(self, networks: Sequence[nn.Module], waymarks: Waymarks):
        super().__init__()
        if len(networks) != waymarks.n_bridges:
            raise ValueError(
                f"{waymarks.n_bridges} bridges need as many networks, not {len(networks)}."
            )
        self.networks = nn.ModuleList(networks)
        like = next(self.networks.parameters())
        parts = {name: torch.as_tensor(getattr(waymarks, name)) for name in Waymarks._fields}
        # log det W, the part of log g that does not depend on x.
        parts["levels"] = torch.linalg.slogdet(parts["whiteners"]).logabsdet
        for name, value in parts.items():
            self.register_buffer(name, value.to(like), persistent=False)

    @property
    def n_bridges(self) -> int:
        """K."""
        return len(self.networks)

    def _white(self, x: Tensor, k: int) -> Tensor:
        return (x.flatten(1) - self.centres[k]) @ self.whiteners[k]

    def _log_normal(self, y: Tensor, k: int) -> Tensor:
        """log g_k of whitened rows, up to what is the same for all k."""
        return self.levels[k] - y.square().sum(1) / 2

    def _correction(self, y: Tensor, k: int, like: Tensor) -> Tensor:
        return self.networks[k](y.view_as(like))

    def forward(self, x: Tensor) -> Tensor:
        """f(x), (n,)."""
        first, last = self._white(x, 0), self._white(x, self.n_bridges)
        value = self._log_normal(last, self.n_bridges) - self._log_normal(first, 0)
        for k in range(self.n_bridges):
            value = value - self._correction(self._white(x, k), k, x)
        return value

    def log_ratio(self, x: Tensor, k: int) -> Tensor:
        """r_k(x), (n,)."""
        here, there = self._white(x, k), self._white(x, k + 1)
        normal = self._log_normal(here, k) - self._log_normal(there, k + 1)
        return normal + self._correction(here, k, x)

    def waymark(self, data: Tensor, noise: Tensor, k: int) -> Tensor:
        """Rows of p_k, of rows of the data and of the noise."""
        a, b = self.shares[k]
        return a * data + b * noise
