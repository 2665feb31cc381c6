"""Chain policies: where the chains of a batch start, how far they go, and what is kept of them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, ClassVar, NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import Interval
from skebm.base import BipartiteEnergy, Domain, Energy, Real, Sampler
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.samplers._moves import by_row, has_bounds, standard_normal

# An augmentation of rows, from a generator.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]

STEPS: dict[str, list[Any]] = {
    "n_steps": [Interval(Integral, 1, None, closed="left"), None],
    "n_independence_steps": [Interval(Integral, 0, None, closed="left"), None],
}


class Steps(NamedTuple):
    """What chains do for a batch: proposals of the base, then steps of the sampler."""

    n_steps: int
    n_independence_steps: int


class ChainPolicy(BaseEstimator, abc.ABC):
    """Where chains start and how many steps they take; holds configuration and nothing else.

    A pool of rows is made by :meth:`start` and passed from batch to batch. For every batch
    :meth:`draw` returns rows to start from and their places in the pool, a sampler moves them, and
    :meth:`keep` writes them back. For policies without a memory the pool is None. Pools are on the
    generator's device.

    Every policy has `n_steps`, the number of sampler steps for a batch, and `n_independence_steps`,
    the number of draws of the energy's base that are proposed to a chain before these steps
    (independence Metropolis-Hastings). :meth:`steps` defines what None stands for.
    """

    n_steps: int | None
    n_independence_steps: int | None
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = STEPS

    def steps(self, energy: Energy, sampler: Sampler) -> Steps:
        """Numbers of steps for an energy and a sampler.

        `n_steps` is 1 by default for a bipartite energy, whose step redraws whole layers, and 10
        for any other. Proposals from the base require an energy with a base, and a sampler that
        does not exchange rows. The default is then one proposal, but none for a bipartite energy.
        If proposals are requested that cannot be made, `ValueError` is raised.
        """
        self._validate_params()
        layers = isinstance(energy, BipartiteEnergy)
        base, alone = getattr(energy, "base", None), sampler.kernel is sampler
        n_steps, n_proposals = self.n_steps, self.n_independence_steps
        if n_proposals and (base is None or not alone):
            why = "the energy has no base" if base is None else f"{sampler} exchanges them"
            raise ValueError(
                f"n_independence_steps={n_proposals} proposes draws of the energy's base to chains "
                f"that keep their rows, and {why}: pass n_independence_steps=0."
            )
        if n_proposals is None:
            n_proposals = int(base is not None and alone and not layers)
        if n_steps is None:
            n_steps = 1 if layers else 10
        return Steps(int(n_steps), int(n_proposals))

    @abc.abstractmethod
    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor | None:
        """Pool before the first batch; x (n, ...) is a batch of data."""

    @abc.abstractmethod
    def draw(
        self, energy: Energy, pool: Tensor | None, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """Rows to start from for the batch x, and the places in the pool where they were read."""

    def keep(self, pool: Tensor | None, place: Tensor | None, rows: Tensor) -> Tensor | None:
        """Pool after the chains have moved on to `rows`; here there is none to keep."""
        return None

    def fits(self, pool: Tensor | None, rows: Tensor | None) -> bool:
        """Whether a pool, and the rows where chains were, could belong to this policy."""
        return pool is None


class FromData(ChainPolicy):
    r"""Chains start at the rows of the batch, as in contrastive divergence.

    Parameters
    ----------
    n_steps : int or None, default=None
        Sampler steps for each batch, k of CD-k; None is 1 for a bipartite energy and 10 for others.
    n_independence_steps : int or None, default=None
        Independence Metropolis-Hastings proposals of draws of the energy's base before the steps;
        None is 1 where the energy has a base and is not bipartite, and 0 for others.
    noise_scale : float, default=0
        Standard deviation of Gaussian noise added to real rows, in units of x.
    augmentation : callable or None, default=None
        ``augmentation(rows, generator)``, applied to the rows at which chains start.

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

    _parameter_constraints = STEPS | {
        "noise_scale": [Interval(RealNumber, 0, None, closed="left")],
        "augmentation": [callable, None],
    }

    def __init__(
        self,
        n_steps: int | None = None,
        *,
        n_independence_steps: int | None = None,
        noise_scale: float = 0.0,
        augmentation: Augmentation | None = None,
    ):
        self.n_steps = n_steps
        self.n_independence_steps = n_independence_steps
        self.noise_scale = noise_scale
        self.augmentation = augmentation

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> None:
        """There is no pool."""
        self._validate_params()
        if self.noise_scale and not isinstance(energy.domain, Real):
            raise ValueError(f"Gaussian noise leaves {energy.domain}: pass noise_scale=0.")

    def draw(
        self, energy: Energy, pool: Tensor | None, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """The rows of the batch."""
        rows = x
        if self.noise_scale:
            domain: Any = energy.domain
            rows = x + self.noise_scale * standard_normal(x, generator)
            rows = rows.clamp(domain.lower, domain.upper) if has_bounds(domain) else rows
        return _augment(rows, self.augmentation, generator), None


class FromNoise(ChainPolicy):
    """Chains start anew for every batch, from noise.

    Parameters
    ----------
    n_steps, n_independence_steps : int or None, default=None
        As in :class:`FromData`.
    initial : Distribution or None, default=None
        Where chains begin. None is the uniform distribution over the energy's domain, and the
        standard Gaussian where a real domain has no bounds.
    augmentation : callable or None, default=None
        As in :class:`FromData`.

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

    _parameter_constraints = STEPS | {
        "initial": [Distribution, None],
        "augmentation": [callable, None],
    }

    def __init__(
        self,
        n_steps: int | None = None,
        *,
        n_independence_steps: int | None = None,
        initial: Distribution | None = None,
        augmentation: Augmentation | None = None,
    ):
        self.n_steps = n_steps
        self.n_independence_steps = n_independence_steps
        self.initial = initial
        self.augmentation = augmentation

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> None:
        """There is no pool."""
        self._validate_params()

    def draw(
        self, energy: Energy, pool: Tensor | None, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """As many draws as the batch has rows."""
        rows = _initial_rows(energy.domain, self.initial, len(x), generator, x.dtype)
        return _augment(rows, self.augmentation, generator), None


class Persistent(ChainPolicy):
    """The same chains continue from batch to batch, as in persistent contrastive divergence.

    Parameters
    ----------
    n_steps, n_independence_steps : int or None, default=None
        As in :class:`FromData`.
    n_chains : int or None, default=None
        None is the number of rows that training starts with.
    reweight : bool, default=False
        Weight the chains by Jarzynski's equality, see :class:`skebm.objectives.Walkers`; this
        requires a sampler that leaves the model invariant, and an `initial` distribution.
    initial : Distribution or None, default=None
        Where the chains begin; as in :class:`FromNoise`.

    References
    ----------
    Tieleman (2008), "Training restricted Boltzmann machines using approximations to the likelihood
    gradient", ICML. Carbone, Hua, Coste and Vanden-Eijnden (2023), "Efficient training of
    energy-based models using Jarzynski equality", NeurIPS (`reweight`).

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

    _parameter_constraints = STEPS | {
        "n_chains": [Interval(Integral, 1, None, closed="left"), None],
        "reweight": ["boolean"],
        "initial": [Distribution, None],
    }

    def __init__(
        self,
        n_steps: int | None = None,
        *,
        n_independence_steps: int | None = None,
        n_chains: int | None = None,
        reweight: bool = False,
        initial: Distribution | None = None,
    ):
        self.n_steps = n_steps
        self.n_independence_steps = n_independence_steps
        self.n_chains = n_chains
        self.reweight = reweight
        self.initial = initial

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of the initial distribution, one for each chain."""
        self._validate_params()
        n = len(x) if self.n_chains is None else self.n_chains
        # An estimator resolves None to the size of a batch.
        what = f"n_chains={n} of Persistent (by default the size of a batch)"
        check_memory(what, n * energy.domain.n_columns, x.dtype, x.device)
        return _initial_rows(energy.domain, self.initial, n, generator, x.dtype)

    def draw(
        self, energy: Energy, pool: Any, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """All chains, whatever the size of the batch."""
        return pool, None

    def keep(self, pool: Tensor | None, place: Tensor | None, rows: Tensor) -> Tensor:
        """The rows where the chains are now."""
        return rows

    def fits(self, pool: Tensor | None, rows: Tensor | None) -> bool:
        """Whether the number of chains is the same."""
        return pool is None and rows is not None and self.n_chains in (None, len(rows))


class ReplayBuffer(ChainPolicy):
    """Chains continue from rows of a large buffer; a few chains start anew at every batch.

    Parameters
    ----------
    n_steps, n_independence_steps : int or None, default=None
        As in :class:`FromData`.
    size : int, default=10000
        Rows of the buffer, at least as many as a batch has.
    restart : float in [0, 1], default=0.05
        Share of a batch's chains that start anew instead; they replace the rows of the buffer from
        which they would have continued.
    initial : Distribution or None, default=None
        Where chains begin; as in :class:`FromNoise`.
    augmentation : callable or None, default=None
        As in :class:`FromData`.

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

    _parameter_constraints = STEPS | {
        "size": [Interval(Integral, 1, None, closed="left")],
        "restart": [Interval(RealNumber, 0, 1, closed="both")],
        "initial": [Distribution, None],
        "augmentation": [callable, None],
    }

    def __init__(
        self,
        n_steps: int | None = None,
        *,
        n_independence_steps: int | None = None,
        size: int = 10_000,
        restart: float = 0.05,
        initial: Distribution | None = None,
        augmentation: Augmentation | None = None,
    ):
        self.n_steps = n_steps
        self.n_independence_steps = n_independence_steps
        self.size = size
        self.restart = restart
        self.initial = initial
        self.augmentation = augmentation

    def start(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of the initial distribution."""
        self._validate_params()
        n_numbers = self.size * energy.domain.n_columns
        check_memory(f"size={self.size} of ReplayBuffer", n_numbers, x.dtype, x.device)
        return _initial_rows(energy.domain, self.initial, self.size, generator, x.dtype)

    def draw(
        self, energy: Energy, pool: Any, x: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """As many rows as the batch has, from different places."""
        n = len(x)
        self._check_room(n, len(pool))
        place = torch.randperm(len(pool), generator=generator, device=pool.device)[:n]
        rows = pool[place]
        # As many fresh rows as chains, so that no count has to come from the device first.
        fresh = _initial_rows(energy.domain, self.initial, n, generator, pool.dtype)
        anew = torch.rand(n, generator=generator, device=pool.device) < self.restart
        rows = torch.where(by_row(anew, rows), fresh, rows)
        return _augment(rows, self.augmentation, generator), place

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


def _augment(rows: Tensor, augmentation: Augmentation | None, generator: torch.Generator) -> Tensor:
    return rows if augmentation is None else augmentation(rows, generator)


def _initial_rows(
    domain: Domain,
    initial: Distribution | None,
    n: int,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Draw n rows on which chains begin."""
    if initial is not None:
        return initial.sample(n, generator).to(dtype)
    if not isinstance(domain, Real) or (domain.lower is not None and domain.upper is not None):
        return domain.uniform(n, generator, dtype=dtype)
    if has_bounds(domain):
        raise ValueError(f"There is no uniform distribution over {domain}: pass initial=.")
    return torch.randn(n, *domain.shape, generator=generator, dtype=dtype, device=generator.device)
