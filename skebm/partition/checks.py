"""What all estimates of log Z check and choose by default: rows, bases, samplers, propriety."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from skebm.energies.path import OnColumns
from skebm.samplers import HMC, Blocks, Gibbs, GibbsWithGradients

# Why importance weights of draws of a base bound log Z from below only.
NO_UPPER = "no upper bound: the weights do not show a mode that all draws have missed"
WIDE_SCALE = 10.0  # times the standard deviations of a normal base
# With more columns than this a fitted base has a diagonal covariance.
MAX_DENSE = 1000


def template_for(energy: Energy, x: Tensor | None = None) -> Tensor:
    """An empty tensor of the dtype and on the device of an energy, or else of rows x."""
    own = [one for one in (*energy.parameters(), *energy.buffers()) if one.is_floating_point()]
    source = own[0] if own else torch.empty(0, dtype=torch.float64) if x is None else x
    return source.new_empty(0)


def row_energies(energy: Energy, x: Tensor) -> Tensor:
    """Energies (n,) of rows x in float64; to be called in ``eval()`` mode."""
    value = energy(x)
    check_shape(energy, x, value)
    return value.double()


def generator_for(generator: torch.Generator | None, device: Any = "cpu") -> torch.Generator:
    """The generator, or one of seed 0 on `device`, so that estimates are reproducible."""
    return torch.Generator(device).manual_seed(0) if generator is None else generator


def rows_of(energy: Energy, x: Tensor | Mapping[str, Tensor] | None) -> Tensor | None:
    """The rows passed as `x`, those of several starts concatenated, (n, ...); None without any.

    Raises `TypeError` unless they are tensors, `ValueError` where they are not rows of the energy's
    domain.
    """
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
    rows = torch.cat([one.to(template_for(energy, first)) for one in given.values()])
    inside = energy.domain.contains(rows)
    if not inside.all():
        row = int((~inside).nonzero()[0])
        raise ValueError(f"Row {row} of x is not in {energy.domain}, where the energy is defined.")
    return rows


def has_uniform(domain: Domain) -> bool:
    """Whether the domain has a uniform distribution: discrete, or bounded on both sides."""
    if isinstance(domain, Mixed):
        return all(has_uniform(part) for part in domain.parts)
    return not isinstance(domain, Real) or None not in (domain.lower, domain.upper)


# ------------------------------------------------------------------------------
# Default samplers and bases
# ------------------------------------------------------------------------------


def default_sampler(energy: Energy) -> Sampler:
    """An exact sampler that needs no settings, chosen by the kind of energy.

    Raises `ValueError` for domains without such a sampler.
    """
    if isinstance(energy, (BipartiteEnergy, PairwiseEnergy)):
        return Gibbs()
    if isinstance(energy.domain, (Binary, Categorical)):
        return GibbsWithGradients()
    if isinstance(energy.domain, Real):
        return HMC(n_leapfrog=5, adapt=True, scale="auto")
    if isinstance(energy.domain, Mixed):
        return Blocks(HMC(n_leapfrog=5, adapt=True, scale="auto"))
    raise ValueError(f"There is no sampler to choose by default for {energy.domain}: pass one.")


def fits_base(energy: Energy, base: Any) -> bool:
    """Whether :func:`default_base` will fit the base to rows.

    Rows that a base was fitted to are not independent of it, so estimates use other rows.
    """
    own = getattr(energy, "base", None)
    real = isinstance(energy.domain, Real) and not has_uniform(energy.domain)
    return base is None and own is None and real


def default_base(energy: Energy, x: Tensor | Mapping[str, Tensor] | None = None) -> Any:
    r"""The base of an energy, or else a distribution that covers its domain.

    The latter is the uniform distribution over discrete domains and boxes
    (:class:`~skebm.distributions.IndependentBernoulli` with logits of zero on flat binary rows, so
    that energies whose conditionals take fields can anneal from it). On unbounded real rows it is a
    normal distribution, fitted to the rows x if these are given, and otherwise of scale 1 and mean
    0 (or the nearest number inside the bounds). A fitted covariance is multiplied by
    :math:`1 + \min(1/2, d^{-1/2})` so that it covers the tails of the model. Where the model is the
    fitted normal distribution itself, this increases the second moment of the importance weights by
    a factor of at most :math:`e^{1/2}`, for any number d of columns.

    Parameters
    ----------
    energy : Energy
    x : Tensor of shape (n, ...), mapping of str to Tensor, or None, default=None
        Rows near the model, in the units of the energy's rows.

    Returns
    -------
    Distribution
        In the precision and on the device of the energy.

    Raises
    ------
    ValueError
        Where the domain mixes discrete columns with unbounded real ones, and the energy has no
        base.
    """
    base = getattr(energy, "base", None)
    if base is not None:
        return base
    rows = rows_of(energy, x)
    domain, template = energy.domain, template_for(energy, rows)
    if has_uniform(domain):
        return _uniform_base(domain, template)
    if not isinstance(domain, Real):
        raise ValueError(f"There is no base to choose by default for {domain}: pass one.")
    if rows is None:
        low = -math.inf if domain.lower is None else domain.lower
        high = math.inf if domain.upper is None else domain.upper
        return Gaussian(template.new_full(domain.shape, min(max(0.0, low), high)), 1.0)
    d = domain.n_columns
    fitted = Gaussian.fit(rows, diagonal=len(domain.shape) != 1 or d > MAX_DENSE)
    return fitted.with_covariance_times(1 + min(0.5, d**-0.5))


def wide_base(energy: Energy, base: Distribution) -> Distribution | None:
    """A wider base, which covers modes far from `base` and the rows; None if there is none.

    It is the uniform distribution, or a normal one with ten times the standard deviations.
    """
    if isinstance(energy, OnColumns):
        return energy.wider_base() if base is energy.base else None
    if not has_uniform(energy.domain):
        return base.with_covariance_times(WIDE_SCALE**2) if isinstance(base, Gaussian) else None
    if (
        isinstance(base, Uniform)
        or isinstance(base, IndependentBernoulli)
        and not base.logits.any()
    ):
        return None
    return _uniform_base(energy.domain, template_for(energy))


def _uniform_base(domain: Domain, template: Tensor) -> Distribution:
    """The uniform distribution; of independent columns on flat binary rows, for block Gibbs."""
    if isinstance(domain, Binary) and len(domain.shape) == 1:
        return IndependentBernoulli(template.new_zeros(domain.n_columns))
    return Uniform(domain, template.dtype, template.device)


# ------------------------------------------------------------------------------
# Does the base cover the model?
# ------------------------------------------------------------------------------


def check_base(energy: Energy, base: Any, x: Tensor | Mapping[str, Tensor] | None = None) -> None:
    """Raise unless a base is a `Distribution` whose support covers that of the model.

    The domains are compared, and log q is checked at the rows x and at 256 uniform draws of a
    bounded domain: it may be minus infinity only where the energy is infinite. Raises `TypeError`
    if the base is not a distribution, and `ValueError` if it does not cover the model.
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
            f"The base is a distribution on {base.domain}, which leaves out a part of "
            f"{energy.domain}, where the energy is defined. Pass a base on all of it."
        )
    rows = rows_of(energy, x)
    _check_support(energy, base, rows, "row {} of x")
    # Uniform draws of a discrete domain, or of a box, at which the support of a base is checked.
    n_support_draws = 256
    if has_uniform(energy.domain):
        template = template_for(energy, rows)
        generator = generator_for(None, template.device)
        draws = energy.domain.uniform(n_support_draws, generator, dtype=template.dtype)
        _check_support(energy, base, draws, "a state of its domain (uniform draw {})")


def covers(outer: Domain, inner: Domain) -> bool:
    """Whether the outer domain is of the same kind as the inner one and holds all of its rows."""
    if isinstance(outer, Real) and isinstance(inner, Real):
        outer_low, inner_low = (
            -math.inf if one.lower is None else one.lower for one in (outer, inner)
        )
        outer_high, inner_high = (
            math.inf if one.upper is None else one.upper for one in (outer, inner)
        )
        return outer_low <= inner_low and outer_high >= inner_high
    if isinstance(outer, Mixed) and isinstance(inner, Mixed):
        pairs = list(zip(outer.parts, inner.parts, strict=False))
        same = len(outer.parts) == len(inner.parts)
        return same and all(
            one.row_shape == other.row_shape and covers(one, other) for one, other in pairs
        )
    return outer == inner


def _check_support(energy: Energy, base: Distribution, x: Tensor | None, where: str) -> None:
    """Raise where log q is minus infinity or nan at a row of x with a finite energy."""
    if x is None:
        return
    with sampling(energy), torch.no_grad():
        log_q = base.to(x.device, x.dtype).log_prob(x)
        uncovered = log_q.isnan() | (log_q == -math.inf)
        if uncovered.any():
            uncovered[uncovered.clone()] = row_energies(energy, x[uncovered]) < math.inf
    if uncovered.any():
        place = where.format(int(uncovered.nonzero()[0]))
        raise ValueError(
            f"The base has no probability at {place}, where the model has some: log Z cannot be "
            "estimated from this base. Pass a wider one."
        )


# ------------------------------------------------------------------------------
# Is the energy proper?
# ------------------------------------------------------------------------------

# Random directions, and as many along single columns.
N_RAYS = 64
# Part of d log r by which E must exceed it: E that grows just as fast is refused however it is
# rounded, Student's t with nu > d / 1000 is not.
MARGIN = 1e-3

# Of the search for directions in which an energy is flat.
N_GRADIENTS = 512  # rows at which gradients are computed for curvatures
DISTANCES = (1.0, 1e2, 1e4)  # over which gradients are subtracted
N_FLAT = 4  # directions of least curvature, and principal directions of rows, of each kind
N_STARTS, N_DESCENT = 16, 16  # of the descent over the sphere
N_AROUND, ANGLE = 4, 1e-3  # rays around one that descent has found, in radians
N_DEGREES = 400  # rays over the circle


class MonteCarloEstimator(PartitionEstimator):
    """Estimates log Z by weights of draws, which are finite even where log Z does not exist."""

    def check(self, energy: Energy, x: Tensor | Mapping[str, Tensor] | None = None) -> None:
        """Raise `TypeError` if `energy` is no `Energy`, `ValueError` if it has no log Z.

        `x` are rows near the model, along whose differences the energy is checked as well.
        """
        super().check(energy)
        check_proper(energy, x=rows_of(energy, x))


def check_proper(
    energy: Energy, generator: torch.Generator | None = None, x: Tensor | None = None
) -> None:
    r"""Raise `ValueError` where :math:`e^{-E}` has no finite integral.

    The test is numerical: it can reject an energy but cannot certify one. It follows 64 rays
    :math:`o + r u` in random directions of the d unbounded columns, and 64 rays that change a
    single one of them. Origins o are random: of scale 1 in the unbounded columns, and uniform in
    the others. The integral over a cone is finite only if E grows faster than :math:`d \log r`, and
    that over a line only if E grows faster than :math:`\log r`, so the test requires of each ray

    .. math:: E(o + 2 r u) - E(o + r u) > k \log 2, \qquad k = d \text{ or } 1,

    far out: at r = 1e8, or at the largest of 1e6, 1e4 and 1e2 where E can be computed. As energies
    of flows are not monotone along a ray, it is also sufficient that
    :math:`E(o + 2 r u) - E(o + r u / 100) > k \log 200`, or the same with r / 10000 and log 20000.

    Then the test searches for directions in which E is flat: directions of least curvature (by
    differences of gradients) and of least E at r = 100 (by descent over the sphere), principal
    directions and differences of the rows `x` and, in the plane, one ray in every degree. In more
    than two columns, a narrow cone may pass undetected. Discrete domains, boxes and energies that
    are ``always_proper`` pass without a test.

    Parameters
    ----------
    energy : Energy
    generator : torch.Generator or None, default=None
        On the device of the energy; None is one of seed 0, so that results are reproducible.
    x : Tensor of shape (n, ...) or None, default=None
        Rows near the model.

    Raises
    ------
    ValueError
        Where E grows too slowly along a ray.
    FloatingPointError
        Where E is nan at a distance of 100.
    """
    check_energy(energy)
    if has_uniform(energy.domain) or energy.always_proper:
        return
    template = template_for(energy, x)
    generator = generator_for(generator, template.device)
    origin, ray, dimension = _rays(energy.domain, generator, template)
    with sampling(energy), torch.no_grad():
        _refuse(_grows(energy, origin, ray, dimension))
        lines, cones = flat_directions(energy, origin, _is_unbounded(energy.domain), generator, x)
        one = dimension.new_ones(len(lines))
        shape = (-1, *energy.domain.row_shape)
        start = origin[:1].expand(len(lines), *energy.domain.row_shape)
        grows = _grows(energy, start, lines.view(shape), one, resolve=True)
        # A ray of a cone is refused with those around it: single rays may be flat in a proper one.
        n, around, _ = cones.shape
        start = origin[:1].expand(n * around, *energy.domain.row_shape)
        every = dimension[:1].expand(n * around)
        cone = _grows(energy, start, cones.reshape(shape), every, resolve=True)
        _refuse(torch.cat([grows, cone.view(n, around).any(1)]))


def _refuse(grows: Tensor) -> None:
    """Raise `ValueError` unless the energy grows along every ray."""
    if not grows.all():
        raise ValueError(
            f"exp(-E) has no finite integral, so log Z does not exist: along {int((~grows).sum())} "
            f"of {len(grows)} rays E decreases or grows no faster than d log r. Give the domain "
            "bounds, Real(shape, lower, upper), or the energy a base, E(x) = f(x) - log q(x) with "
            "for instance q = skebm.distributions.Gaussian(mean, scale), or a confinement such as "
            "c |x|^2."
        )


def _grows(
    energy: Energy, origin: Tensor, ray: Tensor, dimension: Tensor, resolve: bool = False
) -> Tensor:
    """Whether E grows faster than `dimension` log r along each ray, (n,) of bool.

    With `resolve`, rays are not judged at distances where the rounding of the rows alone changes E
    by as much: far out a ray in single precision leaves a direction in which E is flat.
    """

    def at(radius: float, direction: Tensor) -> Tensor:
        return row_energies(energy, _reflect(energy.domain, origin + radius * direction))

    needed = dimension * (1 + MARGIN)
    rounded = ray * (1 + 8 * torch.finfo(ray.dtype).eps * torch.sin(1e3 * ray + 1).sign())
    grows = torch.ones(len(ray), dtype=torch.bool, device=ray.device)
    previous = [at(1.0, ray)]
    # Distances at which energies must grow; the last one at which they can be computed decides.
    # Fourth powers of the largest still fit into single precision.
    radii = (1e2, 1e4, 1e6, 1e8)
    for radius in radii:
        near, far = at(radius, ray), at(2 * radius, ray)
        unknown = near.isnan() | far.isnan()
        if radius == radii[0] and unknown.any():
            raise FloatingPointError(
                f"The energy is nan along {int(unknown.sum())} of {len(ray)} rays, at a "
                f"distance of {radius:.0f} from the origin: check the model's parameters, or "
                "compute in float64."
            )
        # An infinite energy is large enough, also where the nearer one is infinite as well.
        increases = (far == math.inf) | (far - near > needed * math.log(2))
        for n_radii, value in enumerate(previous[-2:][::-1], 1):
            increases |= far - value > needed * math.log(2 * radii[0] ** n_radii)
        if resolve:
            noise = 4 * (at(2 * radius, rounded) - far).abs()
            unknown |= noise > 0.1 * (far - near).abs().clamp_min(needed)
        grows = torch.where(unknown, grows, increases)
        previous.append(near)
    return grows


def flat_directions(
    energy: Energy,
    origin: Tensor,
    unbounded: Tensor,
    generator: torch.Generator,
    x: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Unit directions (n, d) of lines, and (m, k, d) of cones: k rays near each other.

    They are directions of the columns `unbounded` (d,) of rows. Lines are the directions of least
    curvature, those of the rows x and those found by descent, with both signs. Cones lie around the
    directions found by descent; in the plane, each ray of a circle is one as well.
    """
    columns = unbounded.to(origin.device).nonzero().flatten()
    center = origin[:1].flatten(1)
    lines = [_of_rows(x.to(origin).flatten(1)[:, columns], generator)] if x is not None else []
    lowest = center.new_zeros(0, len(columns))
    if isinstance(energy.domain, Real) and energy.domain.lower is energy.domain.upper is None:
        lines.append(_of_least_curvature(energy, center, origin.shape[1:]))
        lowest = _of_least_energy(energy, center, origin.shape[1:], generator)
    both = torch.cat([*lines, lowest]) if lines else lowest
    both = torch.cat([both, -both])
    noise = torch.randn(
        len(lowest), N_AROUND, len(columns), generator=generator, dtype=origin.dtype,
        device=origin.device,
    )  # fmt: skip
    cones = _unit(lowest[:, None] + ANGLE * _unit(noise))
    if len(columns) == 2:
        angle = torch.linspace(0, 2 * math.pi, N_DEGREES + 1, dtype=origin.dtype)[:-1] + 0.003
        circle = torch.stack([angle.cos(), angle.sin()], 1).to(origin)
        cones = torch.cat([cones, circle[:, None].expand(-1, N_AROUND, -1)])
    return _embed(both, columns, center.shape[1]), _embed(cones, columns, center.shape[1])


def _embed(direction: Tensor, columns: Tensor, n_columns: int) -> Tensor:
    """Directions of all columns, zero in those that are bounded."""
    whole = direction.new_zeros(*direction.shape[:-1], n_columns)
    whole[..., columns] = direction
    return whole


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def _of_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """Principal directions of least and largest variance of rows (n, d), and differences."""
    if len(x) < 2:
        return x[:0]
    x = x[torch.randperm(len(x), generator=generator, device=x.device)[:256]]
    differences = x[1 : 1 + 2 * N_FLAT] - x[0]
    vectors = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh
    every = torch.cat([vectors[:N_FLAT], vectors[-N_FLAT:], differences])
    every = every[every.norm(dim=1) > 0]
    return _unit(every)


def _gradients(energy: Energy, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor] | None:
    """Energies and gradients at flat rows; None where the energy has no gradient."""
    with torch.enable_grad():
        rows = x.detach().view(-1, *shape).requires_grad_(True)
        value = energy(rows)
        if not value.requires_grad:
            return None
        (grad,) = torch.autograd.grad(value, rows, torch.ones_like(value), allow_unused=True)
    return None if grad is None else (value.detach(), grad.flatten(1).nan_to_num(0.0, 0.0, 0.0))


def _of_least_curvature(energy: Energy, center: Tensor, shape: torch.Size) -> Tensor:
    """Eigenvectors of the least eigenvalues of differences of gradients, at several distances."""
    d = center.shape[1]
    n_distances = min(N_GRADIENTS // (2 * d), len(DISTANCES))
    eye, directions = torch.eye(d, dtype=center.dtype, device=center.device), [center[:0]]
    for distance in DISTANCES[:n_distances]:
        both = _gradients(
            energy, torch.cat([center + distance * eye, center - distance * eye]), shape
        )
        if both is None:
            break
        grad = both[1].double()
        hessian = (grad[:d] - grad[d:]) / (2 * distance)
        largest = hessian.abs().max().clamp_min(1e-300)  # squares of gradients may overflow
        vectors = torch.linalg.eigh((hessian + hessian.T) / largest).eigenvectors
        directions.append(vectors[:, :N_FLAT].T.to(center))
    return torch.cat(directions)


def _of_least_energy(
    energy: Energy, center: Tensor, shape: torch.Size, generator: torch.Generator
) -> Tensor:
    """Minima of E(o + 100 u) over directions u, by normalised gradient steps of falling angle."""
    d = center.shape[1]
    u = _unit(
        torch.randn(N_STARTS, d, generator=generator, dtype=center.dtype, device=center.device)
    )
    best, least = u, torch.full((N_STARTS,), math.inf, device=center.device, dtype=center.dtype)
    for step in range(N_DESCENT):
        both = _gradients(energy, center + 100 * u, shape)
        if both is None:
            return u[:0]
        value, grad = both
        better = value < least
        best = torch.where(better[:, None], u, best)
        least = torch.where(better, value.to(least), least)
        tangent = grad - (grad * u).sum(1, keepdim=True) * u
        u = _unit(u - 0.7 * 0.7**step * _unit(tangent))
    return best


def _rays(
    domain: Domain, generator: torch.Generator, template: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Origins and unit directions (n, ...), and the dimension that each direction tests, (n,)."""
    origin = _origins(domain, generator, template)
    options: dict[str, Any] = {"dtype": template.dtype, "device": template.device}
    unbounded = _is_unbounded(domain).to(template.device).nonzero().flatten()
    d = len(unbounded)
    ray = template.new_zeros(2 * N_RAYS, domain.n_columns)
    direction = torch.randn(N_RAYS, d, generator=generator, **options)
    ray[:N_RAYS, unbounded] = direction / direction.norm(dim=1, keepdim=True)
    columns = unbounded[torch.randperm(d, generator=generator, device=template.device)]
    number = torch.arange(N_RAYS, device=template.device)
    # One column after the other, each in both directions.
    sign = 1.0 - 2.0 * (number % 2)
    ray[N_RAYS + number, columns[number // 2 % d]] = sign.to(ray)
    dimension = torch.tensor([float(d), 1.0], device=template.device).repeat_interleave(N_RAYS)
    return origin, ray.view(origin.shape), dimension


def _origins(domain: Domain, generator: torch.Generator, template: Tensor) -> Tensor:
    """Rows (2 N_RAYS, ...) that the rays start from: uniform, or normal where unbounded."""
    if isinstance(domain, Mixed):
        parts = [_origins(part, generator, template).flatten(1) for part in domain.parts]
        return torch.cat(parts, 1)
    if has_uniform(domain):
        return domain.uniform(2 * N_RAYS, generator, dtype=template.dtype)
    shape = (2 * N_RAYS, *domain.row_shape)
    return torch.randn(shape, generator=generator, dtype=template.dtype, device=template.device)


def _is_unbounded(domain: Domain) -> Tensor:
    """Which columns of a row lack a lower or an upper bound, (d,) of bool."""
    if isinstance(domain, Mixed):
        return torch.cat([_is_unbounded(part) for part in domain.parts])
    return torch.full((domain.n_columns,), not has_uniform(domain))


def _reflect(domain: Domain, x: Tensor) -> Tensor:
    """Rows reflected into a domain with a bound on one side."""
    if isinstance(domain, Mixed):
        blocks = zip(domain.parts, domain.split(x), strict=True)
        return torch.cat([_reflect(part, block).flatten(1) for part, block in blocks], 1)
    if not isinstance(domain, Real) or has_uniform(domain):
        return x
    if domain.lower is not None:
        return domain.lower + (x - domain.lower).abs()
    return x if domain.upper is None else domain.upper - (x - domain.upper).abs()
