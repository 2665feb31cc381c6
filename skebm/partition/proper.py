"""Is there a log Z at all?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Domain, Energy, Mixed, PartitionEstimator, Real, sampling
from skebm.base.energy import check_energy
from skebm.partition.support import bounded, generator_for, like, row_energies

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
            "for instance q = skebm.noise.Gaussian(mean, scale), or a confinement such as c |x|^2."
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
