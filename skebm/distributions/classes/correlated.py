"""Mixtures of normal numbers beside bits and categories that are independent within a class."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from skebm.base import Clamp, Domain, Mixed, Real
from skebm.base.domains import parts_of
from skebm.base.sampler import whole_number
from skebm.base.torchtools import softplus
from skebm.distributions._fitting import draw_index, map_chunks
from skebm.distributions.base import Distribution
from skebm.distributions.classes.latent import (
    PRIOR_ROWS,
    LatentClasses,
    LatentClassTilt,
    ScaledRows,
)
from skebm.distributions.conditionals import Given, MixtureGiven
from skebm.distributions.conditionals.column import NormalMixtures
from skebm.distributions.mixture import GaussianMixture, expectation_maximisation


class CorrelatedClasses(Distribution):
    r"""A mixture whose numbers are correlated within a class; bits and levels are independent.

    .. math::
        q(x) = \sum_{c=1}^{K} \pi_c \, N(x_{real}; \mu_c, \Sigma_c)
        \prod_{bits} p_{ci}^{x_i} (1 - p_{ci})^{1 - x_i} \prod_{levels} p_{ci}^{x_i}

    Parameters
    ----------
    levels : LatentClasses
        Bits and levels in each of K classes; without numbers. Its weights are those of `numbers`.
    numbers : GaussianMixture
        One component for each class.

    Attributes
    ----------
    levels, numbers
        As given, with equal weights.

    References
    ----------
    Hunt and Jorgensen (2003), "Mixture model clustering for mixed data with missing information",
    Computational Statistics & Data Analysis 41 (equation 1, with blocks of the numbers together and
    of each other column alone).

    Examples
    --------
    A bit that says which of two lines a pair of numbers is near:

    >>> import torch
    >>> from skebm.base import Binary
    >>> from skebm.distributions import CorrelatedClasses, GaussianMixture, LatentClasses
    >>> levels = LatentClasses(
    ...     torch.zeros(2),
    ...     Binary((1,)),
    ...     logits=torch.tensor([[-9.0], [9.0]]),
    ...     mean=torch.zeros(2, 0),
    ...     scale=torch.ones(2, 0),
    ... )
    >>> covariances = torch.tensor([[[1.0, -0.9], [-0.9, 1.0]], [[1.0, 0.9], [0.9, 1.0]]])
    >>> numbers = GaussianMixture(torch.tensor([0.5, 0.5]), torch.zeros(2, 2), covariances)
    >>> q = CorrelatedClasses(levels, numbers)
    >>> [round(p, 2) for p in q.log_prob(torch.tensor([[1.0, 2, 2], [0.0, 2, 2]])).tolist()]
    [-3.81, -12.81]
    """

    def __init__(self, levels: LatentClasses, numbers: GaussianMixture):
        if levels.mean.shape[1] or levels.n_classes != numbers.n_components:
            raise ValueError(
                "levels must be latent classes of bits and categories alone, one for each "
                f"component of numbers, got {levels} and {numbers}."
            )
        self.domain = Mixed((*parts_of(levels.domain), numbers.domain))
        self.numbers = numbers
        self.levels = LatentClasses(
            numbers.weights.log(),
            levels.domain,
            logits=levels.logits,
            mean=levels.mean,
            scale=levels.scale,
        )

    @property
    def n_components(self) -> int:
        """K."""
        return self.numbers.n_components

    @property
    def n_discrete(self) -> int:
        """Number of entries of bits and levels, which come first in a row."""
        return self.levels.n_discrete

    @classmethod
    def fit(
        cls,
        x: Tensor,
        domain: Domain,
        weight: Tensor | None = None,
        n_components: int = 1,
        *,
        regularisation: float = 1e-3,
        prior_rows: float | None = None,
        generator: torch.Generator | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
    ) -> CorrelatedClasses:
        """Maximise the penalised likelihood of rows by expectation-maximisation, from k-means.

        Covariances have the prior of :meth:`GaussianMixture.fit`, and levels that of one row of
        their mean.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Complete rows of `domain`.
        domain : Domain
            Binary, categorical and real columns, in this order, some of them real and some not.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative importance of rows. Equal rows are one row of their total weight.
        n_components : int >= 1, default=1
            K; there are fewer where classes become empty.
        regularisation, prior_rows, generator, max_iter, tol
            As in :meth:`GaussianMixture.fit`.
        """
        whole_number("n_components", n_components, 1)
        rows = ScaledRows.of(x, domain, weight, None)
        real = tuple(part for part in parts_of(domain) if isinstance(part, Real))
        discrete = tuple(part for part in parts_of(domain) if not isinstance(part, Real))
        if not (real and discrete):
            raise ValueError(f"CorrelatedClasses is of numbers and other columns, not of {domain}.")
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(0)
        ridge = torch.where(rows.varying, float(regularisation), 1.0)
        prior = PRIOR_ROWS[0]

        def of_levels(responsibilities: Tensor) -> Tensor:
            logits = rows.logits(responsibilities, prior)
            return rows.discrete @ logits.t() - softplus(logits[:, : rows.n_bits]).sum(1)

        labels = rows.clusters(n_components, generator).argmax(1)
        found = expectation_maximisation(
            rows.real, rows.w, labels, ridge, max_iter, tol, prior_rows, of_levels
        )
        nothing = found.weights.new_zeros(len(found.weights), 0)
        levels = LatentClasses(
            found.weights.log(),
            Mixed(discrete) if len(discrete) > 1 else discrete[0],
            logits=rows.logits(found.responsibilities, prior),
            mean=nothing,
            scale=nothing,
        )
        numbers = GaussianMixture(
            found.weights,
            rows.centre + found.means * rows.scale,
            found.covariances * torch.outer(rows.scale, rows.scale),
        )
        return cls(levels, numbers).to(x.device, x.dtype)

    # ---------------------------------------------------------------- the distribution

    def log_prob(self, x: Tensor) -> Tensor:
        return map_chunks(
            lambda rows: self._log_joint(rows).logsumexp(1), x, self.n_components * x.shape[1]
        )

    def _log_joint(self, x: Tensor) -> Tensor:
        """log pi_c p(x given c), (n, K)."""
        discrete, real = x[:, : self.n_discrete], x[:, self.n_discrete :]
        of_levels = self.levels._log_joint(discrete) - self.levels.log_weights
        return of_levels + self.numbers._logits(real)[1]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        like = self.levels.log_weights
        value = torch.zeros(n, self.domain.n_columns, dtype=like.dtype, device=generator.device)
        return self.given(Clamp(torch.zeros_like(value, dtype=torch.bool), value)).sample(generator)

    def given(self, clamp: Clamp) -> ClassesGiven:
        """Exact conditional distributions given the clamped entries, one for each row."""
        return ClassesGiven(self, clamp)

    @property
    def has_log_marginal(self) -> bool:
        return True

    def _log_marginal(self, known: Clamp) -> Tensor:
        return self.given(known).log_joint.logsumexp(1)

    def __repr__(self) -> str:
        return f"CorrelatedClasses({self.n_components} classes, {self.domain.n_columns} columns)"


class ClassesGiven(Given):
    """Mixtures with other weights of the classes, levels, and numbers given known ones."""

    @functools.cached_property
    def _parts(self) -> tuple[LatentClassTilt, MixtureGiven]:
        """Levels and numbers given the known ones of the same kind."""
        q, (mask, value) = self.distribution, self.clamp
        first = q.n_discrete
        nothing = torch.zeros_like(value[:, :first])
        levels = q.levels.tilted(nothing).given(Clamp(mask[:, :first], value[:, :first]))
        return levels, MixtureGiven(q.numbers, Clamp(mask[:, first:], value[:, first:]))

    @functools.cached_property
    def log_joint(self) -> Tensor:
        """Log of the weight of each class times its density of the known entries, (n, K)."""
        levels, numbers = self._parts
        return levels.log_joint.double() + numbers.log_joint - self._log_weights

    @property
    def _log_weights(self) -> Tensor:
        found: Tensor = self.distribution.numbers.weights.double().log()
        return found

    def _with_evidence(
        self, levels: Tensor, numbers: Tensor
    ) -> tuple[LatentClassTilt, MixtureGiven]:
        """Levels and numbers, whose classes have further log-weights (n, K), of either."""
        tilt, mixture = self._parts
        return (
            LatentClassTilt(tilt.distribution, tilt.field, tilt.known, levels),
            MixtureGiven(mixture.distribution, mixture.clamp, numbers),
        )

    @functools.cached_property
    def _given_each_other(self) -> tuple[LatentClassTilt, MixtureGiven]:
        """Levels given the known numbers, and numbers given the known levels."""
        levels, numbers = (part.log_joint.double() - self._log_weights for part in self._parts)
        return self._with_evidence(numbers, levels)

    def _together(self, levels: Tensor, numbers: Tensor) -> Tensor:
        return self.clamp.apply(torch.cat([levels, numbers], 1).to(self.clamp.value))

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        levels, numbers = self._given_each_other
        return self._together(levels.mean, numbers.mean)

    def sample(self, generator: torch.Generator) -> Tensor:
        u = torch.rand(
            len(self.clamp.value), dtype=torch.float64, generator=generator, device=generator.device
        )
        drawn = draw_index(self.log_joint.softmax(1), u.to(self.clamp.value.device))
        only = torch.full_like(self.log_joint, -torch.inf).scatter(1, drawn[:, None], 0.0)
        levels, numbers = self._with_evidence(only, only)
        return self._together(levels.sample(generator), numbers.sample(generator))

    def column(self, entry: int) -> NormalMixtures | None:
        place = entry - self.distribution.n_discrete
        return self._given_each_other[1].column(place) if place >= 0 else None
