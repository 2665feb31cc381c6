"""Mixtures of normal distributions whose covariances are of low rank plus diagonal."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Clamp, Real
from skebm.base.sampler import number_in, whole_number
from skebm.base.torchtools import distinct_masks
from skebm.distributions._fitting import (
    draw_index,
    map_chunks,
    positive,
)
from skebm.distributions.conditionals import Given, in_order
from skebm.distributions.conditionals.column import NormalMixtures
from skebm.distributions.mixture import (
    MIN_COUNT,
    NormalMixture,
    _StandardisedRows,
    clusters,
    normalised_weights,
)

# Numbers computed at once: more of them do not fit into the caches of a core.
AT_ONCE = 2**17


class LowRankMixture(NormalMixture):
    r"""A mixture of factor analysers: normal distributions of low rank plus diagonal covariance.

    .. math:: q(x) = \sum_{k=1}^{K} \pi_k \, N(x; \mu_k, W_k W_k^\top + \Psi_k)

    with :math:`W_k` of r columns and :math:`\Psi_k` diagonal, so that densities, draws and
    conditionals cost K d r, and not K d^2 as with full covariances. One component is factor
    analysis, and with equal variances probabilistic principal components; rank 0 is a mixture of
    independent columns.

    Parameters
    ----------
    weights : Tensor of shape (K,)
        :math:`\pi`, positive; they sum to 1.
    means : Tensor of shape (K, d)
        :math:`\mu_k`, finite floating-point numbers; the mixture has their precision.
    factors : Tensor of shape (K, d, r)
        :math:`W_k`, the factor loadings; r may be 0.
    variances : Tensor of shape (K, d)
        Diagonals of :math:`\Psi_k`, positive: the part of each column's variance that the factors
        do not explain.

    Attributes
    ----------
    weights, means, factors, variances : Tensor
        As given.

    References
    ----------
    Ghahramani and Hinton (1996), "The EM algorithm for mixtures of factor analyzers", Technical
    report CRG-TR-96-1, University of Toronto.

    Tipping and Bishop (1999), "Mixtures of probabilistic principal component analyzers", Neural
    Computation 11(2).

    McLachlan, Peel and Bean (2003), "Modelling high-dimensional data by mixtures of factor
    analyzers", Computational Statistics and Data Analysis 41 (alternating EM).

    Liu, Rubin and Wu (1998), "Parameter expansion to accelerate EM: the PX-EM algorithm",
    Biometrika 85(4), section 4.2 (factors of free covariance).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import LowRankMixture
    >>> factors = torch.tensor([[[1.0], [1.0], [0.0]]])
    >>> q = LowRankMixture(torch.ones(1), torch.zeros(1, 3), factors, torch.ones(1, 3))
    >>> q.log_prob(torch.zeros(1, 3))  # -3/2 log(2 pi) - log(3) / 2
    tensor([-3.3061])
    >>> x = q.sample(2000, torch.Generator().manual_seed(0))
    >>> found = LowRankMixture.fit(x, rank=1)
    >>> bool((found.covariances[0] - q.covariances[0]).abs().max() < 0.2)
    True
    """

    def __init__(self, weights: Tensor, means: Tensor, factors: Tensor, variances: Tensor):
        weight = _check_low_rank(weights, means, factors, variances)
        self.domain = Real((means.shape[1],))
        self.weights, self.means = weight.to(means), means.detach().clone()
        self.factors, self.variances = factors.detach().to(means), variances.detach().to(means)
        mean, inverse_scale = means.detach().double(), variances.detach().double().rsqrt()
        # In units of the columns' own deviations the covariance is I + L L', L = U S V', and what
        # is left of a row is z - U (I - G) U' z with G = (1 + S^2)^-1.
        axes, singular, _ = torch.linalg.svd(
            factors.detach().double() * inverse_scale[..., None], full_matrices=False
        )
        gain = (1 + singular.square()).reciprocal()
        constant = weight.log().to(mean) + inverse_scale.log().sum(1) + gain.log().sum(1) / 2
        self._constant = (constant - mean.shape[1] / 2 * math.log(math.tau)).to(means)
        self._axes, self._gain = axes.to(means), gain.to(means)
        # Relative to the overall mean, so that rounding does not grow with the distance from zero.
        centre = weight.to(mean) @ mean
        self._centre, self._inverse_scale = centre.to(means), inverse_scale.to(means)
        shift = -(mean - centre) * inverse_scale
        self._shift = shift.to(means)
        # For the score: precisions of the columns, and the axes in units of x side by side.
        self._precision = inverse_scale.square().to(means)
        self._offset = (shift * inverse_scale).to(means)
        scaled = (axes * inverse_scale[..., None]).mT
        self._scaled_axes = scaled.flatten(0, 1).contiguous().to(means)

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        n_components: int = 1,
        rank: int = 8,
        *,
        regularisation: float = 1e-3,
        prior_rows: float = 10.0,
        generator: torch.Generator | None = None,
        max_iter: int = 100,
        tol: float = 1e-2,
    ) -> LowRankMixture:
        r"""Maximise the penalised likelihood of rows by alternating expectation-maximisation.

        A step updates the responsibilities, the weights and the means, and then, with the
        responsibilities fixed, the factors and variances of each component by steps of EM whose
        factors have a free covariance. They fit the covariance

        .. math:: \frac{S_k + \nu T}{n_k + \nu} + \epsilon D

        with :math:`S_k` the expected scatter matrix of a component and :math:`n_k` its expected
        number of rows, T the diagonal matrix of the variances within the components, and D that of
        the columns' variances: a prior worth :math:`\nu` rows of independent columns. Columns may
        have any units; one that varies by no more than rounding errors gets the variance 1.

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
        rank : int >= 0, default=8
            r; at most d.
        regularisation : float in [0, 1), default=1e-3
            :math:`\epsilon`, the least variance of a column within a component, relative to that of
            the column.
        prior_rows : float >= 0, default=10
            :math:`\nu`.
        generator : torch.Generator or None, default=None
            Draws the k-means++ initialisation and the first factors; None is one of seed 0.
        max_iter : int >= 1, default=100
            Largest number of steps.
        tol : float >= 0, default=0.01
            EM stops when a step adds less than this to the log-likelihood per row, in nats.
        """
        whole_number("n_components", n_components, 1)
        whole_number("rank", rank, 0)
        whole_number("max_iter", max_iter, 1)
        number_in("regularisation", regularisation, "[0, 1)")
        number_in("tol", tol, "[0, inf)")
        number_in("prior_rows", prior_rows, "[0, inf)")
        table = _StandardisedRows.of(x, weight, regularisation, 0.0)
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(0)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        labels = clusters(table.z, table.w, n_components, seed)
        prior = IndependencePrior(prior_rows, table.ridge)
        rank = min(rank, x.shape[1])
        mixture = _maximise(table.z, table.w, labels, rank, prior, max_iter, tol, generator)
        scale = table.scale
        return cls(
            mixture.weights,
            table.mean + mixture.means * scale,
            mixture.factors * scale[:, None],
            mixture.variances * scale.square(),
        ).to(x.device, x.dtype)

    @property
    def rank(self) -> int:
        """r, columns of the factors."""
        return self.factors.shape[2]

    # ---------------------------------------------------------------- the distribution

    @property
    def covariances(self) -> Tensor:
        """Covariances of the components, (K, d, d)."""
        return self.factors @ self.factors.mT + self.variances.diag_embed()

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        kind: dict[str, Any] = {
            "generator": generator,
            "device": generator.device,
            "dtype": self.means.dtype,
        }
        k = draw_index(self.weights.double(), torch.rand(n, **kind).double())
        x = torch.randn(n, self.means.shape[1], **kind)
        hidden = torch.randn(n, self.rank, **kind)
        for number in range(self.n_components):
            rows = (k == number).nonzero()[:, 0]
            own = x[rows] * self.variances[number].sqrt()
            x[rows] = torch.addmm(own + self.means[number], hidden[rows], self.factors[number].t())
        return x

    def log_prob(self, x: Tensor) -> Tensor:
        return self._map_chunks(lambda rows: self._logits(rows)[1].logsumexp(0), x)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), at little more than the cost of one."""
        return self._map_chunks(self._log_prob_and_score, x)

    def _map_chunks(self, function: Callable[[Tensor], Any], x: Tensor) -> Any:
        return map_chunks(function, x, self.means.numel(), AT_ONCE)

    def component_log_probs(self, x: Tensor) -> Tensor:
        """log pi_k N(x; mu_k, Sigma_k), (n, K)."""
        return self._map_chunks(lambda rows: self._logits(rows)[1].t(), x)

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows along the axes (K, n, r), and log pi_k N(x; mu_k, Sigma_k), (K, n)."""
        gain, axes = self._gain.to(x)[:, None], self._axes.to(x)
        shift, inverse_scale = self._shift.to(x)[:, None], self._inverse_scale.to(x)[:, None]
        z = torch.addcmul(shift, x - self._centre.to(x), inverse_scale)
        along = torch.bmm(z, axes)
        # Not |z|^2 less what is along the axes, which cancels where factors are large.
        v = torch.baddbmm(z, along * (1 - gain), axes.mT, alpha=-1)
        square = torch.linalg.vecdot(v, v) + (gain * (1 - gain) * along.square()).sum(2)
        return along, torch.sub(self._constant.to(x)[:, None], square, alpha=0.5)

    def _log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        along, logits = self._logits(x)
        value = logits.logsumexp(0)
        share = (logits - value).exp()
        # Responsibilities first: no pass over the columns for each component.
        along = along * (1 - self._gain.to(x)[:, None]) * share[..., None]
        precision, offset = (part.to(x) for part in (self._precision, self._offset))
        diagonal = (x - self._centre.to(x)) * (share.t() @ precision) + share.t() @ offset
        along = along.transpose(0, 1).flatten(1)
        return value, torch.addmm(-diagonal, along, self._scaled_axes.to(x))

    def _widened(self, used: Tensor, weights: Tensor, factor: float) -> LowRankMixture:
        factors, variances = math.sqrt(factor) * self.factors[used], factor * self.variances[used]
        return LowRankMixture(weights, self.means[used], factors, variances)

    def convolved(self, sigma: float | Tensor) -> LowRankMixture:
        r"""The convolution with normal noise, which adds :math:`\sigma^2` to all variances.

        Parameters
        ----------
        sigma : float or Tensor of shape (d,)
            Standard deviation of the noise in each column, non-negative, in the units of x.
        """
        noise = positive(sigma, self.means[0], "sigma", zero=True).double().square()
        variances = self.variances.double() + noise
        return LowRankMixture(self.weights, self.means, self.factors, variances)

    def given(self, clamp: Clamp) -> Given:
        """Exact conditional distributions given the clamped entries, one for each row."""
        return LowRankGiven(self, clamp)

    def marginal(self, columns: Tensor) -> LowRankMixture:
        """The marginal distribution of some columns."""
        return LowRankMixture(
            self.weights,
            self.means[:, columns],
            self.factors[:, columns],
            self.variances[:, columns],
        )

    def __repr__(self) -> str:
        return (
            f"LowRankMixture({self.n_components} components of rank {self.rank}, "
            f"{self.means.shape[1]} columns)"
        )


class LowRankGiven(Given):
    """Mixtures of factor analysers: given known entries, the factors are normal in each component.

    Rows with the same known entries are processed together, in float64.
    """

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        q, mean = self.distribution, self.clamp.value.clone()
        for rows, free, weight, hidden, _ in self._parts():
            means = q.means[:, None, free].double() + hidden @ q.factors[:, free].double().mT
            mean[rows[:, None], free] = (weight.t()[..., None] * means).sum(0).to(mean.dtype)
        return mean

    def sample(self, generator: torch.Generator) -> Tensor:
        q, x = self.distribution, self.clamp.value.clone()
        kind: dict[str, Any] = {
            "generator": generator,
            "device": generator.device,
            "dtype": torch.float64,
        }
        u = torch.rand(len(x), **kind).to(x.device)
        own = torch.randn(x.shape, **kind).to(x.device)
        z = torch.randn(len(x), q.rank, **kind).to(x.device)
        for rows, free, weight, hidden, tril in self._parts():
            k = draw_index(weight, u[rows])
            place = torch.arange(len(rows), device=x.device)
            # The covariance of the factors is the inverse of L L', of which L'^-1 is a root.
            step = torch.linalg.solve_triangular(tril.mT[k], z[rows][..., None], upper=True)
            factors = hidden[k, place] + step[..., 0]
            along = torch.matmul(q.factors[:, free].double()[k], factors[..., None])[..., 0]
            deviation = q.variances[:, free].double().sqrt()[k] * own[rows[:, None], free]
            x[rows[:, None], free] = (q.means[:, free].double()[k] + along + deviation).to(x.dtype)
        return x

    def column(self, entry: int) -> NormalMixtures:
        q, found = self.distribution, []
        for rows, _, weight, hidden, tril in self._parts():
            factor = q.factors[:, entry].double()
            means = q.means[:, entry, None].double() + torch.einsum("knr,kr->kn", hidden, factor)
            root = torch.linalg.solve_triangular(tril, factor[..., None], upper=False)[..., 0]
            scale = (root.square().sum(1) + q.variances[:, entry].double()).sqrt()
            found.append((rows, NormalMixtures(weight.log(), means.t(), scale)))
        return in_order(found)

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Rows (m,) with the same f unknown columns (f,).

        Also yields the conditional weights (m, K), and the means (K, m, r) and the Cholesky factors
        of the precisions (K, r, r) of the factors.
        """
        q, mask = self.distribution, self.clamp.mask
        factors, variances = q.factors.double(), q.variances.double()
        identity = torch.eye(q.rank, dtype=torch.float64, device=factors.device)
        patterns, member = distinct_masks(mask)
        for number, known in enumerate(patterns):
            if known.all():
                continue
            rows, columns = (member == number).nonzero()[:, 0], known.nonzero()[:, 0]
            scaled = factors[:, columns] / variances[:, columns, None]
            tril = torch.linalg.cholesky(identity + scaled.mT @ factors[:, columns])
            off = self.clamp.value[rows[:, None], columns].double() - q.means[:, None, columns]
            hidden = torch.cholesky_solve(torch.matmul(off.double(), scaled).mT, tril).mT
            weight = q.weights.double().expand(len(rows), -1)
            if len(columns):
                exact = q.to(factors.device, torch.float64).marginal(columns)
                at = self.clamp.value[rows[:, None], columns].double()
                weight = exact.component_log_probs(at).softmax(1)
            yield rows, (~known).nonzero()[:, 0], weight, hidden, tril


def _check_low_rank(weights: Any, means: Any, factors: Any, variances: Any) -> Tensor:
    """The normalised weights in float64; `ValueError` for invalid parameters."""
    weight = normalised_weights(weights, means)
    n, d = means.shape
    if not (isinstance(factors, Tensor) and factors.dim() == 3 and factors.shape[:2] == (n, d)):
        raise ValueError(f"factors must be a tensor of shape (K, d, r), here {(n, d)} and a rank.")
    if not (isinstance(variances, Tensor) and variances.shape == (n, d)):
        raise ValueError(f"variances must be a tensor of shape (K, d), here {(n, d)}.")
    if not factors.isfinite().all():
        raise ValueError("factors must be finite.")
    if not (variances.isfinite() & (variances > 0)).all():
        raise ValueError("variances must be positive and finite.")
    return weight


# ------------------------------------------------------------------------------
# Fitting
# ------------------------------------------------------------------------------


class IndependencePrior(NamedTuple):
    """A prior of each component worth `rows` rows of independent columns, and a ridge."""

    rows: float
    ridge: Tensor  # (d,), added to the estimated variances


class Scatter(NamedTuple):
    """Weighted centred rows (m, d) of a component, and the prior's share of the covariance."""

    rows: Tensor  # times the roots of their weights, divided by that of the expected number
    prior: Tensor  # (d,), diagonal
    total: Tensor  # (d,), variances

    @classmethod
    def of(cls, y: Tensor, count: Tensor, prior: IndependencePrior, pooled: Tensor) -> Scatter:
        """Make it from rows times the roots of their weights, and the pooled variances."""
        y = y * (count + prior.rows).rsqrt()
        diagonal = pooled * (prior.rows / (count + prior.rows))
        return cls(y, diagonal, y.square().sum(0) + diagonal)

    def times(self, matrix: Tensor) -> Tensor:
        """The covariance times a matrix (d, r)."""
        return self.rows.t() @ (self.rows @ matrix) + self.prior[:, None] * matrix


def _maximise(
    z: Tensor,
    w: Tensor,
    labels: Tensor,
    rank: int,
    prior: IndependencePrior,
    max_iter: int,
    tol: float,
    generator: torch.Generator,
) -> LowRankMixture:
    """EM for standardised rows z (n, d) of weights w (n,), initialised by clusters 0 to K - 1."""
    responsibilities = torch.nn.functional.one_hot(labels).double()
    mixture: LowRankMixture | None = None
    before = -math.inf
    for _ in range(max_iter):
        kept = w @ responsibilities > MIN_COUNT * min(1.0, float(w.sum()) / len(w))
        if not kept.all():
            remaining = responsibilities[:, kept]
            responsibilities = remaining / remaining.sum(1, keepdim=True).clamp_min(1e-300)
            mixture, before = None, -math.inf
        mixture = _m_step(mixture, z, responsibilities * w[:, None], rank, prior, generator)
        logits = mixture.component_log_probs(z)
        total = logits.logsumexp(1)
        responsibilities = (logits - total[:, None]).exp()
        value = float(w @ total / w.sum())
        if value - before < tol:
            break
        before = value
    assert mixture is not None
    return mixture


def _m_step(
    mixture: LowRankMixture | None,
    z: Tensor,
    weight: Tensor,
    rank: int,
    prior: IndependencePrior,
    generator: torch.Generator,
) -> LowRankMixture:
    """Parameters given the expected weights (n, K) of rows in components, and the last ones."""
    count = weight.sum(0)
    means = weight.t() @ z / count[:, None]
    factors, variances = z.new_empty(*means.shape, rank), torch.empty_like(means)
    pooled = weight.sum(1) @ z.square() - count @ means.square()
    pooled = pooled.clamp_min(0) / count.sum()
    # Steps of the factors for each update of the responsibilities.
    n_factor_steps = 2
    # A row counts for a component if it belongs to it with at least this probability.
    least_share = 1e-4
    for k, h in enumerate(weight.t()):
        rows = (h > least_share * h.max()).nonzero()[:, 0]
        y = (z[rows] - means[k]) * h[rows].sqrt()[:, None]
        scatter = Scatter.of(y, count[k], prior, pooled)
        if mixture is None:
            own = _principal(scatter, rank, prior.ridge, generator)
        else:
            own = mixture.factors[k], mixture.variances[k]
        for _ in range(n_factor_steps if rank else 1):
            own = _factor_step(scatter, *own, prior.ridge)
        factors[k], variances[k] = own
    return LowRankMixture(count / count.sum(), means, factors, variances)


def _principal(
    scatter: Scatter, rank: int, ridge: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Factors (d, r) along principal components of the columns in units of their deviations.

    Also the variances that they leave, (d,).
    """
    scale = (scatter.total + ridge).sqrt()
    # Directions beyond the rank, and products with the rows, of the initial principal components.
    oversampled, n_powers = 8, 2
    d, size = len(scale), min(rank + oversampled, len(scale))
    kind: dict[str, Any] = {"generator": generator, "device": generator.device}
    basis = torch.randn(d, size, dtype=scale.dtype, **kind).to(scale.device)
    for _ in range(n_powers):
        basis = torch.linalg.qr(scatter.times(basis / scale[:, None]) / scale[:, None]).Q
    image = scatter.times(basis / scale[:, None]) / scale[:, None]
    variance, axes = torch.linalg.eigh(basis.t() @ image)
    variance, axes = variance.flip(0)[:rank], axes.flip(1)[:, :rank]
    left = (d - variance.sum()) / max(1, d - rank)
    factors = scale[:, None] * (basis @ axes * (variance - left).clamp_min(0).sqrt())
    variances = scale.square() - factors.square().sum(1)
    # Least fraction of the variance of a column that is its own to begin with.
    least_own = 0.05
    return factors, variances.clamp_min(least_own * scale.square())


def _factor_step(
    scatter: Scatter, factors: Tensor, variances: Tensor, ridge: Tensor
) -> tuple[Tensor, Tensor]:
    """A step of EM for the factors (d, r) and variances (d,) of a component."""
    scaled = factors / variances[:, None]
    identity = torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)
    posterior = torch.cholesky_inverse(torch.linalg.cholesky(identity + factors.t() @ scaled))
    regression = scaled @ posterior
    cross = scatter.times(regression)
    root = torch.linalg.cholesky(posterior + regression.t() @ cross)
    new = torch.cholesky_solve(cross.t(), root).t()
    variances = (scatter.total - (new * cross).sum(1)).clamp_min(0) + ridge
    # The factors' covariance, free for the step, goes into the factors.
    return new @ root, variances
