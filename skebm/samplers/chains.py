"""Chain policies: where the chains of a batch start, and what is kept of them for the next."""

from __future__ import annotations

import abc
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import Interval
from skebm.base import Domain, Energy, Real
from skebm.distributions import Distribution
from skebm.samplers._moves import bounded, by_row, standard_normal


class ChainPolicy(BaseEstimator, abc.ABC):
    """Where chains start; holds configuration and nothing else.

    A pool of rows, made by :meth:`start`, is passed through. For every batch :meth:`draw` gives
    rows to start from and their places in the pool, a sampler moves them, and :meth:`keep` takes
    them back. Policies without a memory have the pool None. Pools are on the generator's device.
    """

    @abc.abstractmethod
    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor | None:
        """Pool before the first batch; x (n, ...) is a batch of data."""

    @abc.abstractmethod
    def draw(
        self, energy: Energy, pool: Tensor | None, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """Rows to start from for the batch x, and the places in the pool they were read from."""

    def keep(self, pool: Tensor | None, place: Tensor | None, rows: Tensor) -> Tensor | None:
        """Pool after the chains have moved on to `rows`; here there is none to keep."""
        return None

    def fits(self, pool: Tensor | None, rows: Tensor | None) -> bool:
        """Whether a pool, and rows that chains stood at, could be of this policy."""
        return pool is None


class FromData(ChainPolicy):
    r"""Chains start at the rows of the batch, as in contrastive divergence.

    Parameters
    ----------
    noise_scale : float, default=0
        Standard deviation of Gaussian noise added to real rows, in units of x.

    References
    ----------
    Hinton (2002), "Training products of experts by minimizing contrastive divergence", Neural
    Computation 14(8).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import FromData
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy, x = BernoulliRBM(4, 2, generator=generator), torch.eye(4)
    >>> rows, place = FromData().draw(energy, None, x, generator)
    >>> torch.equal(rows, x), place
    (True, None)
    """

    _parameter_constraints = {"noise_scale": [Interval(RealNumber, 0, None, closed="left")]}

    def __init__(self, n_steps=None, n_independence_steps=None, noise_scale=0.0, augmentation=None):
        self.n_steps, self.n_independence_steps, self.augmentation = (
            n_steps,
            n_independence_steps,
            augmentation,
        )
        self.noise_scale = noise_scale

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> None:
        """There is no pool."""
        self._validate_params()
        if self.noise_scale and not isinstance(energy.domain, Real):
            raise ValueError(f"Gaussian noise leaves {energy.domain}: pass noise_scale=0.")

    def draw(
        self, energy: Energy, pool: Tensor | None, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """The rows of the batch."""
        if not self.noise_scale:
            return x, None
        domain: Any = energy.domain
        rows = x + self.noise_scale * standard_normal(x, generator)
        return (rows.clamp(domain.lower, domain.upper) if bounded(domain) else rows), None


class FromNoise(ChainPolicy):
    """Chains start anew for every batch, from noise.

    Parameters
    ----------
    noise : Distribution or None, default=None
        Where rows are drawn from. None is the uniform distribution over the energy's domain, and
        the standard Gaussian where a real domain has no bounds.

    References
    ----------
    Nijkamp, Hill, Zhu and Wu (2019), "Learning non-convergent non-persistent short-run MCMC toward
    energy-based model", NeurIPS.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import FromNoise
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy, x = BernoulliRBM(4, 2, generator=generator), torch.eye(4)
    >>> rows, _ = FromNoise().draw(energy, None, x, generator)
    >>> tuple(rows.shape)
    (4, 4)
    """

    _parameter_constraints = {"initial": [Distribution, None]}

    def __init__(self, n_steps=None, n_independence_steps=None, initial=None, augmentation=None):
        self.n_steps, self.n_independence_steps, self.augmentation = (
            n_steps,
            n_independence_steps,
            augmentation,
        )
        self.initial = initial

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> None:
        """There is no pool."""
        self._validate_params()

    def draw(
        self, energy: Energy, pool: Tensor | None, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """As many rows of noise as the batch has."""
        return _noise_rows(energy.domain, self.initial, len(x), generator, x.dtype), None


class Persistent(ChainPolicy):
    """The same chains go on from batch to batch, as in persistent contrastive divergence.

    Parameters
    ----------
    n_chains : int or None, default=None
        None is the number of rows of the first batch.
    noise : Distribution or None, default=None
        Where the chains begin; as in :class:`FromNoise`.

    References
    ----------
    Tieleman (2008), "Training restricted Boltzmann machines using approximations to the likelihood
    gradient", ICML.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import Gibbs, Persistent
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy, x = BernoulliRBM(4, 2, generator=generator), torch.eye(4)
    >>> policy = Persistent(n_chains=10)
    >>> pool = policy.start(energy, x, generator)
    >>> rows, place = policy.draw(energy, pool, x, generator)
    >>> state, _ = Gibbs().run(energy, rows, 1, generator)
    >>> pool = policy.keep(pool, place, state.x)
    >>> torch.equal(policy.draw(energy, pool, x, generator)[0], state.x)
    True
    """

    _parameter_constraints = {
        "n_chains": [Interval(Integral, 1, None, closed="left"), None],
        "initial": [Distribution, None],
    }

    def __init__(
        self, n_steps=None, n_independence_steps=None, n_chains=None, reweight=False, initial=None
    ):
        self.n_steps, self.n_independence_steps, self.reweight = (
            n_steps,
            n_independence_steps,
            reweight,
        )
        self.n_chains = n_chains
        self.initial = initial

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor:
        """Noise, a row a chain."""
        self._validate_params()
        n = len(x) if self.n_chains is None else self.n_chains
        return _noise_rows(energy.domain, self.initial, n, generator, x.dtype)

    def draw(
        self, energy: Energy, pool: Any, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """All chains, whatever the size of the batch."""
        return pool, None

    def keep(self, pool: Tensor | None, place: Tensor | None, rows: Tensor) -> Tensor:
        """Where the chains are now."""
        return rows

    def fits(self, pool: Tensor | None, rows: Tensor | None) -> bool:
        """Whether there are as many chains."""
        return pool is None and rows is not None and self.n_chains in (None, len(rows))


class ReplayBuffer(ChainPolicy):
    """Chains go on from rows of a large buffer, a few of which start anew at every batch.

    Parameters
    ----------
    size : int, default=10000
        Rows of the buffer, at least as many as a batch has.
    restart : float in [0, 1], default=0.05
        Share of a batch's chains that start from noise instead; they then take the place of the
        rows they were drawn for.
    noise : Distribution or None, default=None
        As in :class:`FromNoise`.

    References
    ----------
    Du and Mordatch (2019), "Implicit generation and modeling with energy based models", NeurIPS,
    section 3.2.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import Gibbs, ReplayBuffer
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy, x = BernoulliRBM(4, 2, generator=generator), torch.eye(4)
    >>> policy = ReplayBuffer(size=100)
    >>> pool = policy.start(energy, x, generator)
    >>> rows, place = policy.draw(energy, pool, x, generator)
    >>> state, _ = Gibbs().run(energy, rows, 1, generator)
    >>> pool = policy.keep(pool, place, state.x)
    >>> torch.equal(pool[place], state.x)
    True
    """

    _parameter_constraints = {
        "size": [Interval(Integral, 1, None, closed="left")],
        "restart": [Interval(RealNumber, 0, 1, closed="both")],
        "initial": [Distribution, None],
    }

    def __init__(
        self,
        n_steps=None,
        n_independence_steps=None,
        size=10_000,
        restart=0.05,
        initial=None,
        augmentation=None,
    ):
        self.n_steps, self.n_independence_steps, self.augmentation = (
            n_steps,
            n_independence_steps,
            augmentation,
        )
        self.size = size
        self.restart = restart
        self.initial = initial

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor:
        """Noise."""
        self._validate_params()
        return _noise_rows(energy.domain, self.initial, self.size, generator, x.dtype)

    def draw(
        self, energy: Energy, pool: Any, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """As many rows as the batch has, from different places."""
        n = len(x)
        self._check_room(n, len(pool))
        place = torch.randperm(len(pool), generator=generator, device=pool.device)[:n]
        rows = pool[place]
        # As many fresh rows as chains, so that no count has to come from the device first.
        fresh = _noise_rows(energy.domain, self.initial, n, generator, pool.dtype)
        anew = torch.rand(n, generator=generator, device=pool.device) < self.restart
        return torch.where(by_row(anew, rows), fresh, rows), place

    def keep(self, pool: Any, place: Tensor | None, rows: Tensor) -> Tensor:
        """Write the rows back where they were read, in place: a copy of the buffer costs more."""
        return pool.index_copy_(0, place, rows)

    def fits(self, pool: Tensor | None, rows: Tensor | None) -> bool:
        """Whether the buffer is of this size."""
        return pool is not None and len(pool) == self.size

    @staticmethod
    def _check_room(n: int, size: int) -> None:
        if n > size:
            raise ValueError(
                f"A batch of {n} rows needs a buffer of at least as many; size={size}."
            )


def _noise_rows(
    domain: Domain,
    noise: Distribution | None,
    n: int,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Draw n rows to start from."""
    if noise is not None:
        return noise.sample(n, generator).to(dtype)
    if not isinstance(domain, Real) or (domain.lower is not None and domain.upper is not None):
        return domain.uniform(n, generator, dtype=dtype)
    if bounded(domain):
        raise ValueError(f"There is no uniform distribution over {domain}: pass noise=.")
    return torch.randn(n, *domain.shape, generator=generator, dtype=dtype, device=generator.device)
