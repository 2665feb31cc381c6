"""Is there a log Z at all?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm.base import (
    Binary,
    BipartiteEnergy,
    Categorical,
    Domain,
    Energy,
    Mixed,
    PairwiseEnergy,
    PartitionEstimator,
    Real,
    Sampler,
    sampling,
)
from skebm.base.energy import check_energy, check_shape
from skebm.distributions import Distribution, Gaussian, IndependentBernoulli, Uniform
from skebm.samplers import HMC, Gibbs, GibbsWithGradients

# Why weights of base draws bound log Z from below alone.
NO_UPPER = "no upper end: weights of draws that all missed a mode look as good as any"
WIDER = 10.0  # times the standard deviations of a normal base
# Uniform draws of a discrete domain, or of a box, at which a base is looked at.
N_COPIES = 256
# Beyond so many columns a base that is fitted has independent ones.
MAX_DENSE = 1000


def like(energy: Energy, x: Tensor | None = None) -> Tensor:
    """An empty tensor in the precision and on the device of an energy, or else of rows x."""
    own = [one for one in (*energy.parameters(), *energy.buffers()) if one.is_floating_point()]
    found = own[0] if own else torch.empty(0, dtype=torch.float64) if x is None else x
    return found.new_empty(0)


def row_energies(energy: Energy, x: Tensor) -> Tensor:
    """Energies (n,) in float64; call it in ``eval()`` mode."""
    value = energy(x)
    check_shape(energy, x, value)
    return value.double()


def generator_for(generator: torch.Generator | None, device: Any = "cpu") -> torch.Generator:
    """The generator, or one of seed 0 on a device, so that estimates repeat."""
    return torch.Generator(device).manual_seed(0) if generator is None else generator


def check_delta(delta: Any) -> None:
    """Raise `ValueError` for what is no probability of failing."""
    if not isinstance(delta, RealNumber) or not 0 < float(delta) <= 1:
        raise ValueError(f"delta must be in (0, 1], got {delta!r}.")


def rows_of(energy: Energy, x: Tensor | Mapping[str, Tensor] | None) -> Tensor | None:
    """The rows passed as `x`, several starts in a row; `ValueError` for what is no row."""
    if x is None:
        return None
    given = dict(x) if isinstance(x, Mapping) else {"x": x}
    shape = energy.domain.row_shape
    for name, rows in given.items():
        if not isinstance(rows, Tensor):
            raise TypeError(f"Rows near the model must be a tensor, not {type(rows).__name__}.")
        if rows.dim() == 0 or rows.shape[1:] != shape or len(rows) == 0:
            raise ValueError(
                f"Rows near the model must be of shape (n, {', '.join(map(str, shape))}) with n of "
                f"at least 1, but {name} is of shape {tuple(rows.shape)}."
            )
    if not given:
        raise ValueError("x names no rows: pass a tensor, or a mapping from names to tensors.")
    first = next(iter(given.values()))
    rows = torch.cat([one.to(like(energy, first)) for one in given.values()])
    inside = energy.domain.contains(rows)
    if not inside.all():
        row = int((~inside).nonzero()[0])
        raise ValueError(f"Row {row} of x is not in {energy.domain}, where the energy is defined.")
    return rows


def bounded(domain: Domain) -> bool:
    """Whether there is a uniform distribution over the domain."""
    if isinstance(domain, Mixed):
        return all(bounded(part) for part in domain.parts)
    return not isinstance(domain, Real) or None not in (domain.lower, domain.upper)


# ------------------------------------------------------------------------------
# Where to start
# ------------------------------------------------------------------------------


def default_sampler(energy: Energy) -> Sampler:
    """A sampler that is exact and needs no settings, by the kind of energy."""
    if isinstance(energy, (BipartiteEnergy, PairwiseEnergy)):
        return Gibbs()
    if isinstance(energy.domain, (Binary, Categorical)):
        return GibbsWithGradients()
    if isinstance(energy.domain, Real):
        return HMC(n_leapfrog=5, adapt=True, scale="auto")
    raise ValueError(f"There is no sampler to choose by default for {energy.domain}: pass one.")


def is_fitted(energy: Energy, base: Any) -> bool:
    """Whether the base will be one that :func:`default_base` fits to rows.

    Rows that it was fitted to are no independent draws any more, so estimates take others.
    """
    own = getattr(energy, "base", None)
    real = isinstance(energy.domain, Real) and not bounded(energy.domain)
    return base is None and own is None and real


def default_base(energy: Energy, x: Tensor | Mapping[str, Tensor] | None = None) -> Any:
    r"""The base of an energy, or else one that covers its domain.

    That is the uniform distribution over discrete domains and boxes
    (:class:`~skebm.distributions.IndependentBernoulli` of zeros on flat binary rows, so that
    energies whose conditionals take fields can anneal from it), and a normal one on unbounded real
    rows: of mean 0 (the nearest number inside the bounds) and scale 1, or fitted to rows x. A
    fitted covariance is taken times :math:`1 + \min(1/2, d^{-1/2})`: tails must be covered, and
    where the model is the fitted normal distribution itself, this costs the second moment of
    importance weights a factor of no more than :math:`e^{1/2}`, in any number d of columns.

    Parameters
    ----------
    energy : Energy
    x : Tensor of shape (n, ...), mapping of str to Tensor, or None, default=None
        Rows near the model.
    """
    base = getattr(energy, "base", None)
    if base is not None:
        return base
    rows = rows_of(energy, x)
    domain, kind = energy.domain, like(energy, rows)
    if bounded(domain):
        return _uniform(domain, kind)
    if not isinstance(domain, Real):
        raise ValueError(f"There is no base to choose by default for {domain}: pass one.")
    if rows is None:
        low = -math.inf if domain.lower is None else domain.lower
        high = math.inf if domain.upper is None else domain.upper
        return Gaussian(kind.new_full(domain.shape, min(max(0.0, low), high)), 1.0)
    d = domain.n_columns
    fitted = Gaussian.fit(rows, diagonal=len(domain.shape) != 1 or d > MAX_DENSE)
    return fitted.widened(1 + min(0.5, d**-0.5))


def wide_base(energy: Energy, base: Distribution) -> Distribution | None:
    """A base that reaches modes which `base` and rows near it may miss; None where there is none.

    Uniform, or a normal distribution of ten times the standard deviations.
    """
    if not bounded(energy.domain):
        return base.widened(WIDER**2) if isinstance(base, Gaussian) else None
    if (
        isinstance(base, Uniform)
        or isinstance(base, IndependentBernoulli)
        and not base.logits.any()
    ):
        return None
    return _uniform(energy.domain, like(energy))


def _uniform(domain: Domain, kind: Tensor) -> Distribution:
    """The uniform distribution, of independent columns on flat bits: blocks can anneal from it."""
    if isinstance(domain, Binary) and len(domain.shape) == 1:
        return IndependentBernoulli(kind.new_zeros(domain.n_columns))
    return Uniform(domain, kind.dtype, kind.device)


# ------------------------------------------------------------------------------
# Does the base cover the model?
# ------------------------------------------------------------------------------


def check_base(energy: Energy, base: Any, x: Tensor | Mapping[str, Tensor] | None = None) -> None:
    """Raise unless a base is a `Distribution` with probability wherever the model has mass.

    Domains are compared, and log q is looked at on the rows x and on 256 uniform draws of a
    bounded domain: it may be minus infinity only where the energy is infinite.
    """
    if not isinstance(base, Distribution):
        raise TypeError(
            f"base must be a distribution such as skebm.distributions.Gaussian(mean, scale), "
            f"Uniform(domain) or IndependentBernoulli(logits), not {base!r}."
        )
    shape = energy.domain.row_shape
    if base.domain.row_shape != shape:
        raise ValueError(
            f"The base draws rows of shape {base.domain.row_shape}, but the energy is defined on "
            f"rows of shape {shape}."
        )
    if not covers(base.domain, energy.domain):
        raise ValueError(
            f"The base lives on {base.domain}, which leaves out a part of {energy.domain}, where "
            "the energy is defined. Pass a base on all of it."
        )
    rows = rows_of(energy, x)
    kind = like(energy, rows)
    _check_support(energy, base, rows, "row {} of x")
    if bounded(energy.domain):
        generator = generator_for(None, kind.device)
        draws = energy.domain.uniform(N_COPIES, generator, dtype=kind.dtype)
        _check_support(energy, base, draws, "a state of its domain (uniform draw {})")


def covers(outer: Domain, inner: Domain) -> bool:
    """Whether all rows of one domain are in the other, of the same kind."""
    if isinstance(outer, Real) and isinstance(inner, Real):
        below, above = ((-math.inf if one.lower is None else one.lower) for one in (outer, inner))
        high, least = (math.inf if one.upper is None else one.upper for one in (outer, inner))
        return below <= above and high >= least
    if isinstance(outer, Mixed) and isinstance(inner, Mixed):
        pairs = list(zip(outer.parts, inner.parts, strict=False))
        same = len(outer.parts) == len(inner.parts)
        return same and all(
            one.row_shape == other.row_shape and covers(one, other) for one, other in pairs
        )
    return outer == inner


def _check_support(energy: Energy, base: Distribution, x: Tensor | None, where: str) -> None:
    if x is None:
        return
    with sampling(energy), torch.no_grad():
        log_q = base.to(x.device, x.dtype).log_prob(x)
        lost = log_q.isnan() | (log_q == -math.inf)
        if lost.any():
            lost[lost.clone()] = row_energies(energy, x[lost]) < math.inf
    if lost.any():
        place = where.format(int(lost.nonzero()[0]))
        raise ValueError(
            f"The base has no probability at {place}, where the model has some: its log Z cannot "
            "be told from this base. Pass a wider one."
        )


# Random directions, and as many single columns.
N_RAYS = 64
# Distances at which energies must grow, the last that they can be computed at counts: fourth powers
# of the largest still fit into single precision.
RADII = (1e2, 1e4, 1e6, 1e8)


class WeighingMethod(PartitionEstimator):
    """A way to log Z by weights of draws: it gives a number even where there is no log Z."""

    def check(self, energy: Energy) -> None:
        """Raise for what is no energy, and for one that has no log Z."""
        super().check(energy)
        check_proper(energy)


def check_proper(energy: Energy, generator: torch.Generator | None = None) -> None:
    r"""Raise `ValueError` where :math:`e^{-E}` has no finite integral.

    A probe, which can refuse and cannot certify. It looks along 64 random rays :math:`o + r u`,
    from origins of scale 1, in the d unbounded columns (the others are uniform), and along 64 that
    change one column only. The integral over a cone is finite only if E grows faster than
    :math:`d \log r`, that over a column only if it grows faster than :math:`\log r`, so

    .. math:: E(o + 2 r u) - E(o + r u) > k \log 2, \qquad k = d \text{ or } 1,

    is asked of each, far out: at r of a hundred million, or at the last of 1e6, 1e4 and 1e2 where
    E can be computed; or, as the energies of flows go up and down on their way, the same of
    :math:`E(o + 2 r u) - E(o + r u / 100)` and log 200, or of r / 10000. A model that is improper
    in a narrow cone alone passes. Discrete domains and boxes always pass.

    Parameters
    ----------
    energy : Energy
    generator : torch.Generator or None, default=None
        On the device of the energy; None is one of seed 0, so that verdicts repeat.
    """
    check_energy(energy)
    if bounded(energy.domain):
        return
    kind = like(energy)
    generator = generator_for(generator, kind.device)
    origin, ray, needed = _rays(energy.domain, generator, kind)
    grows = torch.ones(len(ray), dtype=torch.bool, device=kind.device)
    with sampling(energy), torch.no_grad():
        before = [row_energies(energy, _at(energy.domain, origin + ray))]
        for radius in RADII:
            near = row_energies(energy, _at(energy.domain, origin + radius * ray))
            far = row_energies(energy, _at(energy.domain, origin + 2 * radius * ray))
            lost = near.isnan() | far.isnan()
            if radius == RADII[0] and lost.any():
                raise FloatingPointError(
                    f"The energy is nan along {int(lost.sum())} of {len(ray)} rays, {radius:.0f} "
                    "from the origin: check the model's parameters, or compute in float64."
                )
            # An infinite energy is as large as can be; where both are, the model has ended before.
            up = (far == math.inf) | (far - near > needed * math.log(2))
            for back, value in enumerate(before[-2:][::-1], 1):
                up |= far - value > needed * math.log(2 * RADII[0] ** back)
            grows = torch.where(lost, grows, up)
            before.append(near)
    if not grows.all():
        raise ValueError(
            f"exp(-E) has no finite integral, so log Z does not exist: along {int((~grows).sum())} "
            f"of {len(ray)} rays E falls, or grows too slowly (d log r at most). Give the domain "
            "bounds, Real(shape, lower, upper), or the energy a base, E(x) = f(x) - log q(x) with "
            "for instance q = skebm.distributions.Gaussian(mean, scale), or a confinement such as "
            "c |x|^2."
        )


def _rays(
    domain: Domain, generator: torch.Generator, kind: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Origins and unit directions (n, ...), and the dimension of what each stands for, (n,)."""
    origin = _origins(domain, generator, kind)
    free = _free(domain).to(kind.device).nonzero().flatten()
    d = len(free)
    ray = kind.new_zeros(2 * N_RAYS, domain.n_columns)
    cone = torch.randn(N_RAYS, d, generator=generator, dtype=kind.dtype, device=kind.device)
    ray[:N_RAYS, free] = cone / cone.norm(dim=1, keepdim=True)
    columns = free[torch.randperm(d, generator=generator, device=kind.device)]
    number = torch.arange(N_RAYS, device=kind.device)
    # There and back, column after column.
    sign = 1.0 - 2.0 * (number % 2)
    ray[N_RAYS + number, columns[number // 2 % d]] = sign.to(ray)
    needed = torch.tensor([float(d), 1.0], device=kind.device).repeat_interleave(N_RAYS)
    return origin, ray.view(origin.shape), needed


def _origins(domain: Domain, generator: torch.Generator, kind: Tensor) -> Tensor:
    if isinstance(domain, Mixed):
        parts = [_origins(part, generator, kind).flatten(1) for part in domain.parts]
        return torch.cat(parts, 1)
    if bounded(domain):
        return domain.uniform(2 * N_RAYS, generator, dtype=kind.dtype)
    shape = (2 * N_RAYS, *domain.row_shape)
    return torch.randn(shape, generator=generator, dtype=kind.dtype, device=kind.device)


def _free(domain: Domain) -> Tensor:
    """Which columns of a row have no bound on one side or on both, (d,)."""
    if isinstance(domain, Mixed):
        return torch.cat([_free(part) for part in domain.parts])
    return torch.full((domain.n_columns,), not bounded(domain))


def _at(domain: Domain, x: Tensor) -> Tensor:
    """Rows folded back at the one wall of a half-bounded domain."""
    if isinstance(domain, Mixed):
        blocks = zip(domain.parts, domain.split(x), strict=True)
        return torch.cat([_at(part, block).flatten(1) for part, block in blocks], 1)
    if not isinstance(domain, Real) or bounded(domain):
        return x
    if domain.lower is not None:
        return domain.lower + (x - domain.lower).abs()
    return x if domain.upper is None else domain.upper - (x - domain.upper).abs()
