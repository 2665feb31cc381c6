"""Mixtures of normal distributions."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.base.energy import check_temperature
from skebm.base.sampler import number_in, whole_number
from skebm.distributions._fitting import (
    check_row_weights,
    check_sigma,
    distinct_weights,
    draw_index,
    k_means,
    log_integrals_at_temperature,
    map_chunks,
    moments,
    positive,
    positive_weight_rows,
    share_of_a_row,
    usable_scale,
    varies,
    weights_at_temperature,
)
from skebm.distributions.base import Distribution, Envelope
from skebm.distributions.conditionals import Given, MixtureGiven

# Iterations of k-means; EM goes on from there.
KMEANS_STEPS = 5

# A component with an expected count below this, and below this fraction of the mean weight of a
# row, is removed.
MIN_COUNT = 1e-3


class Prior(NamedTuple):
    """A prior of the covariances like the inverse Wishart, worth `rows` rows of `centre`."""

    rows: float
    centre: Tensor  # (d, d)
    ridge: Tensor  # (d,), added to the diagonal of the estimates

    def covariances(self, count: Tensor, scatter: Tensor) -> Tensor:
        """Posterior modes given scatter matrices (K, d, d) of `count` (K,) rows."""
        total = scatter + self.rows * self.centre
        return total / (count + self.rows)[:, None, None] + self.ridge.diag()

    def log_density(self, scale_tril: Tensor, inverse_tril: Tensor) -> float:
        """Log-density, up to a constant, from Cholesky factors and their inverses."""
        log_det = 2 * scale_tril.diagonal(dim1=1, dim2=2).log().sum()
        trace = (inverse_tril @ self.centre * inverse_tril).sum()
        return -self.rows / 2 * float(log_det + trace)


class EMResult(NamedTuple):
    """Weights, means and covariances, and the penalised log-likelihood per row of each step.

    `responsibilities` (n, K) are those under the model of the other attributes.
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor
    path: list[float]
    responsibilities: Tensor


def expectation_maximisation(
    z: Tensor,
    w: Tensor,
    labels: Tensor,
    regularisation: Tensor,
    max_iter: int,
    tol: float,
    prior_rows: float | None = None,
    others: Callable[[Tensor], Tensor] | None = None,
) -> EMResult:
    """EM for standardised rows z (n, d) of weights w (n,), initialised by clusters 0 to K - 1.

    Rows may have columns of other kinds, independent of z within a component: `others` fits them
    to responsibilities (n, K), and returns their log-probabilities within the components, (n, K).

    The prior (as in Fraley and Raftery, 2007) is worth d + 2 rows for each component. Its centre is
    the pooled covariance within the components, itself shrunk by two rows towards I / K^(2 / d),
    the size of a component of a uniform partition. It is set at the start and again when EM has
    nearly converged, and is fixed in between, so that each step raises the penalised likelihood.
    """
    responsibilities = torch.nn.functional.one_hot(labels).double()
    path: list[float] = []
    # Runs of EM with a fixed prior; the prior of the first comes from the clusters.
    n_priors = 2
    for last in range(n_priors):
        count, means, scatter = component_statistics(z, w, responsibilities)
        prior = make_prior(count, scatter, regularisation, prior_rows)
        before = -math.inf
        for _ in range(max_iter):
            covariances = prior.covariances(count, scatter)
            weights = count / count.sum()
            beside = None if others is None else others(responsibilities)
            responsibilities, log_likelihood, penalty = expectation_step(
                z, w, weights, means, covariances, prior, beside
            )
            objective = (log_likelihood + penalty) / float(w.sum())
            path.append(objective)
            # A coarser tolerance as long as the prior is going to change.
            if objective - before < (tol if last else 10 * tol):
                break
            before = objective
            kept = w @ responsibilities > MIN_COUNT * min(1.0, float(w.sum()) / len(weights))
            if not kept.all():
                remaining = responsibilities[:, kept]
                responsibilities = remaining / remaining.sum(1, keepdim=True).clamp_min(1e-300)
                before = -math.inf
            count, means, scatter = component_statistics(z, w, responsibilities)
    return EMResult(weights, means, covariances, path, responsibilities)


def make_prior(
    count: Tensor, scatter: Tensor, ridge: Tensor, prior_rows: float | None = None
) -> Prior:
    """The prior given the statistics of clusters, worth `prior_rows` rows (d + 2 by default)."""
    n_components, d = scatter.shape[:2]
    rows = d + 2.0 if prior_rows is None else prior_rows
    centre = scatter.sum(0)
    # Rows by which the centre of the prior is shrunk. More would distort columns that nearly
    # duplicate each other, which costs a nat and more.
    centre_rows = 2.0
    # Constant columns, whose scatter is zero, get their variance of one from the ridge alone.
    centre.diagonal().add_(
        centre_rows * n_components ** (-2 / d) * (scatter.diagonal(dim1=1, dim2=2).sum(0) > 0)
    )
    return Prior(rows, centre / (count.sum() + centre_rows), ridge)


def component_statistics(
    z: Tensor, w: Tensor, responsibilities: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Expected counts (K,), means (K, d) and scatter matrices (K, d, d) of the components."""
    weight = responsibilities * w[:, None]
    count = weight.sum(0)
    means = weight.t() @ z / count[:, None]
    scatter = z.new_empty(len(count), z.shape[1], z.shape[1])
    # Centred at each mean: uncentred sums of squares would cancel for a component far from zero.
    for k, column in enumerate(weight.t().contiguous()):
        centred = z - means[k]
        torch.mm(centred.t() * column, centred, out=scatter[k])
    return count, means, (scatter + scatter.transpose(1, 2)) / 2


def cholesky_factors(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Lower Cholesky factors and their inverses, (K, d, d)."""
    scale_tril = torch.linalg.cholesky(covariances)
    identity = torch.eye(scale_tril.shape[1], dtype=scale_tril.dtype, device=scale_tril.device)
    return scale_tril, torch.linalg.solve_triangular(
        scale_tril, identity.expand_as(scale_tril), upper=False
    )


def expectation_step(
    z: Tensor,
    w: Tensor,
    weights: Tensor,
    means: Tensor,
    covariances: Tensor,
    prior: Prior,
    beside: Tensor | None = None,
) -> tuple[Tensor, float, float]:
    """The E-step: responsibilities (n, K), the log-likelihood and the log-density of the prior.

    `beside` (n, K) are log-probabilities of other columns within the components.
    """
    scale_tril, inverse_tril = cholesky_factors(covariances)
    d = z.shape[1]
    constant = (
        weights.log()
        - scale_tril.diagonal(dim1=1, dim2=2).log().sum(1)
        - d / 2 * math.log(math.tau)
    )
    maps = inverse_tril.flatten(0, 1).t().contiguous()  # (d, K d)
    shift = torch.matmul(inverse_tril, means[..., None]).flatten()

    def logits(rows: Tensor) -> Tensor:
        white = torch.addmm(-shift, rows, maps).square_().view(len(rows), *means.shape)
        return torch.sub(constant, white.sum(2), alpha=0.5)

    log_joint = map_chunks(logits, z, maps.shape[1])
    if beside is not None:
        log_joint += beside
    total = log_joint.logsumexp(1)
    responsibilities = log_joint.sub_(total[:, None]).exp_()
    return responsibilities, float(w @ total), prior.log_density(scale_tril, inverse_tril)


def clusters(z: Tensor, w: Tensor, n_clusters: int, seed: int) -> Tensor:
    """Labels (n,) by k-means from k-means++; at most one cluster per distinct row."""
    labels = k_means(z, w, n_clusters, seed, max_iter=KMEANS_STEPS, tol=0.0)
    return torch.as_tensor(labels, device=z.device).unique(return_inverse=True)[1]


# Most entries of Cholesky factors that are gathered at once when sampling.
GATHER_ENTRIES = 2_000_000


class _StandardisedRows(NamedTuple):
    """The input of EM: standardised rows z, weights w, their units, and the ridge."""

    z: Tensor
    w: Tensor
    mean: Tensor
    scale: Tensor
    ridge: Tensor

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor | None, regularisation: float, sigma: Tensor | float
    ) -> _StandardisedRows:
        return cls._of(*positive_weight_rows(x, weight), x.dtype, regularisation, sigma)

    @classmethod
    def _of(
        cls,
        rows: Tensor,
        w: Tensor,
        dtype: torch.dtype,
        regularisation: float,
        sigma: Tensor | float,
    ) -> _StandardisedRows:
        sigma = check_sigma(sigma, rows)
        mean, variance = moments(rows, w)
        varying = varies(rows, dtype)
        scale = usable_scale(variance, varying)
        z = torch.where(varying, (rows - mean) / scale, 0.0)
        noise = (sigma.to(scale) / scale).square()
        ridge = torch.where(varying, float(regularisation), 1.0) + noise
        return cls(z, w, mean, scale, ridge)


def estimates(
    table: _StandardisedRows, labels: Tensor, prior_rows: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and covariances of components whose rows are known, labelled from 0."""
    responsibilities = torch.nn.functional.one_hot(labels).double()
    count, means, scatter = component_statistics(table.z, table.w, responsibilities)
    prior = make_prior(count, scatter, table.ridge, prior_rows)
    return count / count.sum(), means, prior.covariances(count, scatter)


class NormalMixture(Distribution):
    """A mixture of normal distributions, in whatever form it holds their covariances."""

    weights: Tensor  # (K,)
    means: Tensor  # (K, d)
    _constant: Tensor  # (K,), log of the weights times the largest densities

    @property
    def n_components(self) -> int:
        """K."""
        return len(self.weights)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-density: component scores weighted by the responsibilities."""
        return self.log_prob_and_score(x)[1]

    def tempered(self, temperature: float) -> Envelope:
        """The mixture of the components at a temperature, weighted to lie above the power."""
        check_temperature(temperature)
        log_weights = self.weights.double().log()
        log_normalisers = log_weights - self._constant.double()
        bounds = log_integrals_at_temperature(log_normalisers, self.means.shape[1], temperature)
        weights, log_bound = weights_at_temperature(log_weights, bounds, temperature)
        used = weights > 0  # others have underflowed
        return Envelope(self._widened(used, weights[used], temperature), log_bound)

    @abc.abstractmethod
    def _widened(self, used: Tensor, weights: Tensor, factor: float) -> Distribution:
        """A mixture of some components with other weights, and covariances times `factor`."""


class GaussianMixture(NormalMixture):
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
    scale_tril : Tensor of shape (K, d, d)
        Lower Cholesky factors of the covariances.

    References
    ----------
    Dempster, Laird and Rubin (1977), "Maximum likelihood from incomplete data via the EM
    algorithm", JRSS B 39(1).

    Fraley and Raftery (2007), "Bayesian regularization for normal mixture estimation and
    model-based clustering", Journal of Classification 24(2) (the prior of a fit).

    Arthur and Vassilvitskii (2007), "k-means++: the advantages of careful seeding", SODA (the
    initialisation).

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
        weight = _check_parameters(weights, means, covariances)
        self.domain = Real((means.shape[1],))
        self.means = means.detach().clone()
        self.weights = weight.to(means)
        mean = means.detach().double()
        scale_tril, inverse_tril = cholesky_factors(
            _positive_definite(covariances.detach().double())
        )
        # Relative to the overall mean, so that rounding does not grow with the distance from zero.
        centre = weight.to(mean) @ mean
        self.scale_tril, self._centre = scale_tril.to(means), centre.to(means)
        shift = torch.matmul(inverse_tril, (mean - self._centre)[..., None]).flatten()
        constant = weight.log().to(mean) - scale_tril.diagonal(dim1=1, dim2=2).log().sum(1)
        self._constant = (constant - mean.shape[1] / 2 * math.log(math.tau)).to(means)
        # All inverse factors side by side, (d, K d): one product whitens rows for all components.
        self._maps, self._shift = inverse_tril.flatten(0, 1).t().contiguous().to(means), -shift
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
        r"""Maximise the penalised likelihood of rows by expectation-maximisation.

        .. math:: \hat\Sigma_k = \frac{S_k + \nu T}{n_k + \nu} + \epsilon D
            + \mathrm{diag}(\sigma^2)

        with :math:`S_k` the expected scatter matrix of a component and :math:`n_k` its expected
        number of rows, D the diagonal matrix of the columns' variances, and a prior worth
        :math:`\nu` rows, after Fraley and Raftery. Its centre T is the pooled covariance within the
        components and two rows of :math:`D / K^{2/d}`, so that a component of few rows has about
        the shape of the others. T is set at the start and again when EM has nearly converged.
        Columns may have any units; one that varies by no more than rounding errors gets the
        variance 1.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero: the importance of rows, on any scale. Equal rows are one row
            of their total weight.
        n_components : int >= 1, default=1
            K; the result has fewer components where there are fewer distinct rows, or where
            components become empty.
        regularisation : float in [0, 1), default=1e-3
            :math:`\epsilon`, the least variance of a component relative to that of the column.
        sigma : Tensor of shape (d,) or float, default=0
            :math:`\sigma`, noise levels in units of x: the mixture is fitted to the distribution of
            noisy rows. This differs from :meth:`convolved` of a mixture fitted to the rows, because
            the components adapt to the noise.
        prior_rows : float >= 0 or None, default=None
            :math:`\nu`; None is d + 2.
        generator : torch.Generator or None, default=None
            Draws the k-means++ initialisation; None is one of seed 0.
        n_init : int >= 1, default=1
            Initialisations; the result of the largest penalised likelihood is kept.
        max_iter : int >= 1, default=200
            Largest number of steps with the same T.
        tol : float >= 0, default=1e-4
            EM stops when a step adds less than this to the objective per row, in nats.
        """
        whole_number("n_components", n_components, 1)
        whole_number("n_init", n_init, 1)
        whole_number("max_iter", max_iter, 1)
        number_in("regularisation", regularisation, "[0, 1)")
        number_in("tol", tol, "[0, inf)")
        number_in("prior_rows", 0.0 if prior_rows is None else prior_rows, "[0, inf)")
        table = _StandardisedRows.of(x, weight, regularisation, sigma)
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(0)
        best: EMResult | None = None
        for _ in range(n_init if n_components > 1 else 1):
            seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
            labels = clusters(table.z, table.w, n_components, seed)
            if not labels.any():  # all rows belong to one component: no steps are needed
                return cls._in_units(*estimates(table, labels, prior_rows), table, x)
            result = expectation_maximisation(
                table.z, table.w, labels, table.ridge, max_iter, tol, prior_rows
            )
            if best is None or result.path[-1] > best.path[-1]:
                best = result
        assert best is not None
        return cls._in_units(best.weights, best.means, best.covariances, table, x)

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
        r"""One component for each label, with the estimates of :meth:`fit`.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows.
        labels : Tensor of shape (n,)
            Any integers; the components are ordered by them.
        weight, regularisation, sigma, prior_rows
            As in :meth:`fit`. A label whose rows have zero weight gets no component.
        """
        number_in("regularisation", regularisation, "[0, 1)")
        number_in("prior_rows", 0.0 if prior_rows is None else prior_rows, "[0, inf)")
        if labels.shape != x.shape[:1]:
            raise ValueError(f"labels must be of shape ({len(x)},), got {tuple(labels.shape)}.")
        w = check_row_weights(x, weight)
        rows, labels, w = x.detach().double()[w > 0], labels[w > 0], w[w > 0]
        both = torch.cat([rows, labels[:, None].to(rows)], 1)
        number, w = distinct_weights(both, w)
        rows, labels, w = rows[number], labels[number], w * (len(number) / w.sum())
        table = _StandardisedRows._of(rows, w, x.dtype, regularisation, sigma)
        index = labels.unique(return_inverse=True)[1]
        return cls._in_units(*estimates(table, index, prior_rows), table, x)

    def with_broad_component(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        sigma: Tensor | float = 0.0,
        share: float | None = None,
    ) -> GaussianMixture:
        """The mixture and one component more, with the moments of rows.

        Rows between and beside narrow components are then at most -log `share` nats less likely
        than under one normal distribution. A mixture of one component stays as it is.

        Parameters
        ----------
        x, weight, sigma
            As in :meth:`fit`.
        share : float in (0, 1) or None, default=None
            Weight of the component. None is 1 / (n + 1), that of one row.
        """
        if self.n_components == 1:
            return self
        broad = GaussianMixture.fit(x, weight, 1, sigma=sigma)
        if share is None:
            share = share_of_a_row(len(positive_weight_rows(x, weight)[0]))
        pairs = zip(self.components(), broad.components(), strict=True)
        log_weight, means, covariances = (torch.cat(pair) for pair in pairs)
        weights = log_weight.exp() * (1 - share)
        weights[-1] = share
        return GaussianMixture(weights, means, covariances).to(x.device, x.dtype)

    @classmethod
    def _in_units(
        cls,
        weights: Tensor,
        means: Tensor,
        covariances: Tensor,
        table: _StandardisedRows,
        x: Tensor,
    ) -> GaussianMixture:
        """A mixture fitted to standardised rows, in the units and the precision of x."""
        means = table.mean + means * table.scale
        covariances = covariances * torch.outer(table.scale, table.scale)
        # Factorised in float64: in single precision a nearly singular matrix may be indefinite.
        return cls(weights, means, covariances).to(x.device, x.dtype)

    @property
    def n_parameters(self) -> int:
        """Number of free parameters of the weights, the means and the covariances."""
        n, d = self.means.shape
        return n - 1 + n * d + n * d * (d + 1) // 2

    def bic(self, x: Tensor, weight: Tensor | None = None) -> float:
        """Bayesian information criterion on the training rows; lower is better."""
        rows, w = positive_weight_rows(x, weight)
        log_likelihood = float(w @ self.log_prob(rows.to(x.dtype)).double())
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
        k = draw_index(self.weights.double(), torch.rand(n, **kind).double())
        d = self.means.shape[1]
        x = torch.randn(n, d, **kind)
        # Gathering a factor for each row is faster than selecting the rows of each component.
        if n * d * d <= GATHER_ENTRIES:
            means, scale_tril = self.means.index_select(0, k), self.scale_tril.index_select(0, k)
            return torch.baddbmm(means[:, None], x[:, None], scale_tril.mT)[:, 0]
        for number in range(self.n_components):
            rows = (k == number).nonzero()[:, 0]
            x[rows] = self.means[number] + x[rows] @ self.scale_tril[number].t()
        return x

    def log_prob(self, x: Tensor) -> Tensor:
        return map_chunks(lambda rows: self._logits(rows)[1].logsumexp(1), x, self._maps.shape[1])

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), at little more than the cost of one."""
        return map_chunks(self._log_prob_and_score, x, self._maps.shape[1])

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened rows (n, K, d), and log pi_k N(x; mu_k, Sigma_k), (n, K)."""
        z = torch.addmm(self._shift.to(x), x - self._centre.to(x), self._maps.to(x))
        z = z.view(len(x), *self.means.shape)
        return z, torch.sub(self._constant.to(x), z.square().sum(2), alpha=0.5)

    def _log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = self._logits(x)
        value = logits.logsumexp(1)
        responsibilities = (logits - value[:, None]).exp()
        return value, -(z * responsibilities[..., None]).flatten(1) @ self._maps.to(x).t()

    def _widened(self, used: Tensor, weights: Tensor, factor: float) -> GaussianMixture:
        covariances = self.components()[2][used].to(self.means)
        return GaussianMixture(weights, self.means[used], factor * covariances)

    def convolved(self, sigma: float | Tensor) -> GaussianMixture:
        r"""The convolution with normal noise, which adds :math:`\sigma^2` to all variances.

        Parameters
        ----------
        sigma : float or Tensor of shape (d,)
            Standard deviation of the noise in each column, non-negative, in the units of x.
        """
        noise = positive(sigma, self.means[0], "sigma", zero=True).double()
        _, _, covariances = self.components()
        return GaussianMixture(self.weights, self.means, covariances + noise.square().diag())

    def given(self, clamp: Clamp) -> Given:
        """Exact conditional distributions given the clamped entries, one for each row."""
        return MixtureGiven(self, clamp)

    def marginal(self, columns: Tensor) -> GaussianMixture:
        """The marginal distribution of some columns."""
        covariances = self.components()[2][:, columns[:, None], columns]
        return GaussianMixture(self.weights, self.means[:, columns], covariances)

    def __repr__(self) -> str:
        return f"GaussianMixture({self.n_components} components, {self.means.shape[1]} columns)"


def _check_parameters(weights: Any, means: Any, covariances: Any) -> Tensor:
    """The normalised weights in float64; `ValueError` for invalid parameters."""
    weight = normalised_weights(weights, means)
    n, d = means.shape
    if not (isinstance(covariances, Tensor) and covariances.shape == (n, d, d)):
        raise ValueError(f"covariances must be a tensor of shape (K, d, d), here {(n, d, d)}.")
    return weight


def normalised_weights(weights: Any, means: Any) -> Tensor:
    """The weights of a mixture in float64; `ValueError` for invalid ones or invalid means."""
    if not (isinstance(means, Tensor) and means.is_floating_point() and means.dim() == 2):
        raise ValueError("means must be a floating-point tensor of shape (K, d).")
    n = len(means)
    if not (isinstance(weights, Tensor) and weights.shape == (n,) and n > 0):
        raise ValueError("weights must be a tensor of shape (K,), one for each of the means.")
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
    """Symmetrised covariances (K, d, d); `ValueError` unless they are positive definite."""
    size = covariances.abs().amax((1, 2), keepdim=True)
    skew = (covariances - covariances.transpose(1, 2)).abs()
    if not covariances.isfinite().all() or not (skew <= 1e-4 * size).all():
        raise ValueError("covariances must be finite and symmetric.")
    covariances = (covariances + covariances.transpose(1, 2)) / 2
    scale_tril, failed = torch.linalg.cholesky_ex(covariances)
    # The conditional variance of a column that others determine is nothing but rounding error.
    variance = covariances.diagonal(dim1=1, dim2=2)
    conditional = scale_tril.diagonal(dim1=1, dim2=2).square() / variance
    bad = (failed != 0) | ~(conditional > 1e-13).all(1)
    if bad.any():
        raise ValueError(
            f"covariances must be positive definite, but number {int(bad.nonzero()[0])} is not: "
            "add to its diagonal."
        )
    return covariances
