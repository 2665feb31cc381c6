"""Mixtures of normal distributions."""

from __future__ import annotations

import math
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.distributions._fitting import (
    checked_sigma,
    checked_weight,
    chunked,
    live_rows,
    moments,
    pick,
    positive,
    usable_scale,
    varies,
)
from skebm.distributions.base import Distribution
from skebm.distributions.conditionals import Given, MixtureGiven

LLOYD_STEPS = 5

# A component that holds less than this of a row, and of its share of all rows, is empty.
LEAST_COUNT = 1e-3

# Rounds in which the prior stays what it is; the first starts at the clusters.
N_PRIORS = 2

# Rows by which the centre of the prior is shrunk. More would smear columns that nearly copy each
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

    def log_density(self, scale_tril: Tensor, whitening: Tensor) -> float:
        """log-density at covariances of such Cholesky factors, up to a constant."""
        log_det = 2 * scale_tril.diagonal(dim1=1, dim2=2).log().sum()
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
    scale_tril = torch.linalg.cholesky(covariances)
    identity = torch.eye(scale_tril.shape[1], dtype=scale_tril.dtype, device=scale_tril.device)
    return scale_tril, torch.linalg.solve_triangular(
        scale_tril, identity.expand_as(scale_tril), upper=False
    )


def expectation(
    z: Tensor, w: Tensor, weights: Tensor, means: Tensor, covariances: Tensor, prior: Prior
) -> tuple[Tensor, float, float]:
    """Responsibilities (n, K), the log-likelihood, and the log-density of the prior."""
    scale_tril, whitening = factors(covariances)
    d = z.shape[1]
    level = (
        weights.log()
        - scale_tril.diagonal(dim1=1, dim2=2).log().sum(1)
        - d / 2 * math.log(math.tau)
    )
    maps = whitening.flatten(0, 1).t().contiguous()  # (d, K d)
    shift = torch.matmul(whitening, means[..., None]).flatten()

    def logits(rows: Tensor) -> Tensor:
        white = torch.addmm(-shift, rows, maps).square_().view(len(rows), *means.shape)
        return torch.sub(level, white.sum(2), alpha=0.5)

    log_share = chunked(logits, z, maps.shape[1])
    total = log_share.logsumexp(1)
    share = log_share.sub_(total[:, None]).exp_()
    return share, float(w @ total), prior.log_density(scale_tril, whitening)


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


# Entries of the roots that draws may gather at once.
ROOM = 2_000_000


class _Frame(NamedTuple):
    """Rows as EM sees them: standardised, with what is added to the variances."""

    z: Tensor
    w: Tensor
    mean: Tensor
    scale: Tensor
    ridge: Tensor

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor | None, regularisation: float, sigma: Tensor | float
    ) -> _Frame:
        rows, w = live_rows(x, weight)
        sigma = checked_sigma(sigma, rows)
        mean, variance = moments(rows, w)
        live = varies(variance, mean, x.dtype)
        scale = usable_scale(variance, mean, x.dtype)
        z = torch.where(live, (rows - mean) / scale, 0.0)
        added = (sigma.to(scale) / scale).square()
        ridge = torch.where(live, float(regularisation), 1.0) + added
        return cls(z, w, mean, scale, ridge)


class GaussianMixture(Distribution):
    r"""A mixture of normal distributions over flat rows.

    .. math:: q(x) = \sum_{k=1}^{K} \pi_k \, N(x; \mu_k, \Sigma_k)

    Parameters
    ----------
    weights : Tensor of shape (K,)
        :math:`\pi`, positive; they sum to 1.
    means : Tensor of shape (K, d)
        :math:`\mu_k`, finite floating-point numbers; the mixture has their precision.
    covariances : Tensor of shape (K, d, d)
        :math:`\Sigma_k`, symmetric and positive definite.

    Attributes
    ----------
    weights : Tensor of shape (K,)
    means : Tensor of shape (K, d)
        As given.
    roots : Tensor of shape (K, d, d)
        Lower Cholesky factors of the covariances.

    References
    ----------
    Dempster, Laird and Rubin (1977), "Maximum likelihood from incomplete data via the EM
    algorithm", JRSS B 39(1).

    Fraley and Raftery (2007), "Bayesian regularization for normal mixture estimation and
    model-based clustering", Journal of Classification 24(2) (the prior of a fit).

    Arthur and Vassilvitskii (2007), "k-means++: the advantages of careful seeding", SODA (its
    start).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import GaussianMixture
    >>> q = GaussianMixture(
    ...     torch.tensor([0.25, 0.75]),
    ...     torch.tensor([[-4.0], [4.0]]),
    ...     torch.ones(2, 1, 1),
    ... )
    >>> q.log_prob(torch.tensor([[4.0]]))  # log(0.75 / sqrt(2 pi))
    tensor([-1.2066])
    >>> generator = torch.Generator().manual_seed(0)
    >>> found = GaussianMixture.fit(q.sample(2000, generator), n_components=2)
    >>> found.means.round().sort(dim=0).values
    tensor([[-4.],
            [ 4.]])
    """

    def __init__(self, weights: Tensor, means: Tensor, covariances: Tensor):
        weight = _checked(weights, means, covariances)
        self.domain = Real((means.shape[1],))
        self.means = means.detach().clone()
        self.weights = weight.to(means)
        mean = means.detach().double()
        scale_tril, whitening = factors(_positive_definite(covariances.detach().double()))
        # Around their centre, so that rounding does not grow with the distance from zero.
        centre = weight.to(mean) @ mean
        self.scale_tril, self._centre = scale_tril.to(means), centre.to(means)
        shift = torch.matmul(whitening, (mean - self._centre)[..., None]).flatten()
        level = weight.log().to(mean) - scale_tril.diagonal(dim1=1, dim2=2).log().sum(1)
        self._level = (level - mean.shape[1] / 2 * math.log(math.tau)).to(means)
        # All inverse factors side by side, (d, K d): one product whitens rows for all components.
        self._maps, self._shift = whitening.flatten(0, 1).t().contiguous().to(means), -shift
        self._shift = self._shift.to(means)

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        n_components: int = 1,
        *,
        regularisation: float = 1e-3,
        sigma: Tensor | float = 0.0,
        prior_rows: float | None = None,
        generator: torch.Generator | None = None,
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-4,
    ) -> GaussianMixture:
        r"""Maximise the likelihood of rows, penalised by a prior of the covariances, by EM.

        .. math:: \hat\Sigma_k = \frac{S_k + \nu T}{n_k + \nu} + \epsilon D
            + \mathrm{diag}(\sigma^2)

        with :math:`S_k` the scatter matrix of a component and :math:`n_k` its number of rows, D the
        diagonal matrix of the columns' variances, and :math:`\nu` rows of a prior, after Fraley and
        Raftery. Its centre T is the covariance within the components, pooled, together
        with two rows of :math:`D / K^{2/d}`: a component of few rows has about the shape of the
        others. T is set at the start and once more on the way. Columns may have any units; one that
        does not vary by more than rounding errors gets the variance 1.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero. A row of weight 2 is the row twice.
        n_components : int >= 1, default=1
            K; fewer come out where there are fewer distinct rows, or where some end up empty.
        regularisation : float in [0, 1), default=1e-3
            :math:`\epsilon`, the share of a column's variance that each component has at least.
        sigma : Tensor of shape (d,) or float, default=0
            :math:`\sigma`, standard deviations in units of x: the mixture is that of noisy rows,
            which is not the same as :meth:`convolved` of the mixture of rows, as components find
            their place at the scale of the noise.
        prior_rows : float >= 0 or None, default=None
            :math:`\nu`; None is d + 2.
        generator : torch.Generator or None, default=None
            Chooses the start, by k-means++; None is one of seed 0.
        n_init : int >= 1, default=1
            Starts, of which the one of the largest penalised likelihood is kept.
        max_iter : int >= 1, default=200
            Most steps under one T.
        tol : float >= 0, default=1e-4
            Ends when a step adds less than this to the objective a row, in nats.
        """
        _check_counts(n_components=n_components, n_init=n_init, max_iter=max_iter)
        _check_share(regularisation, "regularisation", 1.0)
        _check_share(tol, "tol", math.inf)
        _check_share(0.0 if prior_rows is None else prior_rows, "prior_rows", math.inf)
        frame = _Frame.of(x, weight, regularisation, sigma)
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(0)
        best: Found | None = None
        for _ in range(n_init if n_components > 1 else 1):
            u = torch.rand(
                n_components, generator=generator, dtype=torch.float64, device=generator.device
            ).to(x.device)
            found = maximise(
                frame.z, frame.w, n_components, frame.ridge, u, max_iter, tol, prior_rows
            )
            if best is None or found.path[-1] > best.path[-1]:
                best = found
        assert best is not None
        return cls._of(best.weights, best.means, best.covariances, frame, x)

    @classmethod
    def from_labels(
        cls,
        x: Tensor,
        labels: Tensor,
        weight: Tensor | None = None,
        *,
        regularisation: float = 1e-3,
        sigma: Tensor | float = 0.0,
        prior_rows: float | None = None,
    ) -> GaussianMixture:
        r"""One component for the rows of each label, by the formula of :meth:`fit`.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows.
        labels : Tensor of shape (n,)
            Of any integers; components are in their order.
        weight, regularisation, sigma, prior_rows
            As of :meth:`fit`. Labels of no weight have no component.
        """
        _check_share(regularisation, "regularisation", 1.0)
        _check_share(0.0 if prior_rows is None else prior_rows, "prior_rows", math.inf)
        if labels.shape != x.shape[:1]:
            raise ValueError(f"labels must be of shape ({len(x)},), got {tuple(labels.shape)}.")
        if weight is not None:
            kept = checked_weight(x, weight) > 0
            x, labels, weight = x[kept], labels[kept], weight[kept]
        frame = _Frame.of(x, weight, regularisation, sigma)
        place = labels.unique(return_inverse=True)[1]
        share = torch.nn.functional.one_hot(place).double()
        count, means, scatter = statistics(frame.z, frame.w, share)
        prior = make_prior(count, scatter, frame.ridge, prior_rows)
        return cls._of(count / count.sum(), means, prior.covariances(count, scatter), frame, x)

    @classmethod
    def _of(
        cls, weights: Tensor, means: Tensor, covariances: Tensor, frame: _Frame, x: Tensor
    ) -> GaussianMixture:
        """Of standardised rows, in the units and the precision of x."""
        means = frame.mean + means * frame.scale
        covariances = covariances * torch.outer(frame.scale, frame.scale)
        # In float64 up to the end: single precision would lose what the prior has saved.
        return cls(weights, means, covariances).to(x.device, x.dtype)

    @property
    def n_components(self) -> int:
        """K."""
        return len(self.weights)

    @property
    def n_parameters(self) -> int:
        """Free numbers in the weights, the means and the covariances."""
        n, d = self.means.shape
        return n - 1 + n * d + n * d * (d + 1) // 2

    def bic(self, x: Tensor, weight: Tensor | None = None) -> float:
        """Bayesian information criterion on rows that it was fitted to; lower is better."""
        w = checked_weight(x, weight)
        log_likelihood = float(w @ self.log_prob(x).double())
        return self.n_parameters * math.log(float(w.sum())) - 2 * log_likelihood

    # ---------------------------------------------------------------- the distribution

    @property
    def covariances(self) -> Tensor:
        """Covariances of the components, (K, d, d)."""
        return self.scale_tril @ self.scale_tril.transpose(1, 2)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (K,), means (K, d) and covariances (K, d, d), in float64."""
        scale_tril = self.scale_tril.double()
        return (
            self.weights.double().log(),
            self.means.double(),
            scale_tril @ scale_tril.transpose(1, 2),
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        kind: dict[str, Any] = {
            "generator": generator,
            "device": generator.device,
            "dtype": self.means.dtype,
        }
        k = pick(self.weights.double(), torch.rand(n, **kind).double())
        d = self.means.shape[1]
        x = torch.randn(n, d, **kind)
        if n * d * d <= ROOM:  # a root for each row is faster than a search for the rows of each
            means, scale_tril = self.means.index_select(0, k), self.scale_tril.index_select(0, k)
            return torch.baddbmm(means[:, None], x[:, None], scale_tril.mT)[:, 0]
        for number in range(self.n_components):
            rows = (k == number).nonzero()[:, 0]
            x[rows] = self.means[number] + x[rows] @ self.scale_tril[number].t()
        return x

    def log_prob(self, x: Tensor) -> Tensor:
        return chunked(lambda rows: self._logits(rows)[1].logsumexp(1), x, self._maps.shape[1])

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-density: those of the components by their responsibilities."""
        return self.log_prob_and_score(x)[1]

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), at little more than the cost of one."""
        return chunked(self._log_prob_and_score, x, self._maps.shape[1])

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened rows (n, K, d), and the logarithms of the summands of the density, (n, K)."""
        z = torch.addmm(self._shift.to(x), x - self._centre.to(x), self._maps.to(x))
        z = z.view(len(x), *self.means.shape)
        return z, torch.sub(self._level.to(x), z.square().sum(2), alpha=0.5)

    def _log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = self._logits(x)
        value = logits.logsumexp(1)
        share = (logits - value[:, None]).exp()
        return value, -(z * share[..., None]).flatten(1) @ self._maps.to(x).t()

    def convolved(self, sigma: float | Tensor) -> GaussianMixture:
        r"""The mixture of x + sigma z: :math:`\sigma^2` is added to all variances.

        Parameters
        ----------
        sigma : float or Tensor of shape (d,)
            Standard deviation of what is added to each column, non-negative.
        """
        noise = positive(sigma, self.means[0], "sigma", zero=True).double()
        _, _, covariances = self.components()
        return GaussianMixture(self.weights, self.means, covariances + noise.square().diag())

    def given(self, clamp: Clamp) -> Given:
        """Exact conditionals of the other entries, for each row of what is known."""
        return MixtureGiven(self, clamp)

    def __repr__(self) -> str:
        return f"GaussianMixture({self.n_components} components, {self.means.shape[1]} columns)"


def _checked(weights: Any, means: Any, covariances: Any) -> Tensor:
    """The weights in float64, their sum exactly one; refuses what is no mixture."""
    if not (isinstance(means, Tensor) and means.is_floating_point() and means.dim() == 2):
        raise ValueError("means must be a floating-point tensor of shape (K, d).")
    n, d = means.shape
    if not (isinstance(weights, Tensor) and weights.shape == (n,) and n > 0):
        raise ValueError("weights must be a tensor of shape (K,), one for each of the means.")
    if not (isinstance(covariances, Tensor) and covariances.shape == (n, d, d)):
        raise ValueError(f"covariances must be a tensor of shape (K, d, d), here {(n, d, d)}.")
    if not means.isfinite().all():
        raise ValueError("means must be finite.")
    weight = weights.detach().double()
    if not (weight > 0).all() or not abs(float(weight.sum()) - 1) < 1e-3:
        raise ValueError(
            "weights must be positive and sum to 1: divide them by their sum, and leave out "
            "components of weight zero."
        )
    return weight / weight.sum()


def _positive_definite(covariances: Tensor) -> Tensor:
    size = covariances.abs().amax((1, 2), keepdim=True)
    skew = (covariances - covariances.transpose(1, 2)).abs()
    if not covariances.isfinite().all() or not (skew <= 1e-4 * size).all():
        raise ValueError("covariances must be finite and symmetric.")
    covariances = (covariances + covariances.transpose(1, 2)) / 2
    scale_tril, failed = torch.linalg.cholesky_ex(covariances)
    # What rounding leaves of a column that others determine is no variance.
    left = scale_tril.diagonal(dim1=1, dim2=2).square() / covariances.diagonal(dim1=1, dim2=2)
    bad = (failed != 0) | ~(left > 1e-13).all(1)
    if bad.any():
        raise ValueError(
            f"covariances must be positive definite, but number {int(bad.nonzero()[0])} is not: "
            "add to its diagonal."
        )
    return covariances


def _check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")


def _check_share(value: Any, name: str, below: float) -> None:
    if not isinstance(value, RealNumber) or not 0 <= float(value) < below:
        raise ValueError(f"{name} must be a number in [0, {below:g}), got {value!r}.")
