"""Many draws of a distribution given the known entries of each row.

What draws of a row share, such as the weights of the components given what is known of it, is
computed once.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from skebm.base import Clamp
from skebm.distributions import Distribution
from skebm.distributions.conditionals import Given, KernelGiven, MixtureGiven, ScalesGiven
from skebm.distributions.low_rank import LowRankGiven
from skebm.distributions.stack import AffineGiven, StackGiven
from skebm.distributions.transformed.signed_log import SignedLogGiven


def draws_given(
    q: Distribution, clamp: Clamp, counts: Tensor, generator: torch.Generator
) -> Tensor:
    """Independent draws of flat rows given their known entries, one row after the other.

    Parameters
    ----------
    q : Distribution
    clamp : Clamp
        Which entries of n rows are known, (n, d), and their values.
    counts : Tensor of shape (n,)
        Numbers of draws of each row.
    generator : torch.Generator

    Returns
    -------
    Tensor of shape (counts.sum(), d)
        Known entries are at their values.
    """
    given = q.given(clamp)
    if isinstance(given, Given) and _missing.dispatch(type(given)) is not _missing.dispatch(object):
        value: Tensor = given.clamp.value
        drawn = _missing(given, _Counts(counts), generator).to(value)
        return _repeat_clamp(given.clamp, counts).apply(drawn)
    found: Tensor = q.given(_repeat_clamp(clamp, counts)).sample(generator)
    return found


def _repeat_clamp(clamp: Clamp, counts: Tensor) -> Clamp:
    """A clamp of as many rows as there are draws."""
    return Clamp(*(part.repeat_interleave(counts, 0) for part in clamp))


class _Counts:
    """Where draws of n rows are, one row after the other.

    Attributes
    ----------
    each : Tensor of shape (n,)
        Numbers of draws.
    rows : Tensor of shape (N,)
        The row of each draw.
    """

    def __init__(self, each: Tensor):
        self.each = each
        self.rows = torch.arange(len(each), device=each.device).repeat_interleave(each)
        self._starts = each.cumsum(0) - each

    def of_rows(self, some: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the draws of some rows, (k,), and which of these rows each is of."""
        each = self.each[some]
        own = torch.arange(len(some), device=each.device).repeat_interleave(each)
        within = torch.arange(len(own), device=each.device) - (each.cumsum(0) - each)[own]
        return self._starts[some][own] + within, own

    def uniform(self, generator: torch.Generator) -> Tensor:
        """A uniform number for each draw, (N,), in float64."""
        there = generator.device
        u = torch.rand(len(self.rows), dtype=torch.float64, generator=generator, device=there)
        return u.to(self.each.device)

    def normal(self, width: int, generator: torch.Generator) -> Tensor:
        """Standard normal numbers for each draw, (N, width), in float64."""
        size, there = (len(self.rows), width), generator.device
        z = torch.randn(size, dtype=torch.float64, generator=generator, device=there)
        return z.to(self.each.device)


def index_by_row(weight: Tensor, rows: Tensor, u: Tensor) -> Tensor:
    """An index for each of N draws, by the weights (n, K) of its row, (N,), and uniform numbers.

    As `draw_index` of ``weight[rows]``, of which N rows would be computed.
    """
    n, size = weight.shape
    below = weight.cumsum(1)
    below /= below[:, -1:].clone()
    below += torch.arange(n, device=weight.device)[:, None]
    place = torch.searchsorted(below.flatten(), rows + u, right=True) - rows * size
    return place.clamp_(0, size - 1)


@functools.singledispatch
def _missing(given: Given, counts: _Counts, generator: torch.Generator) -> Tensor:
    """Draws of all entries, (N, d); those that are known may be anything."""
    raise TypeError(f"{type(given).__name__} has no parts that draws share.")


@_missing.register
def _(given: StackGiven, counts: _Counts, generator: torch.Generator) -> Tensor:
    clamp, u = given.clamp, counts.uniform(generator)
    chosen = index_by_row(given._shares, counts.rows, u)
    found = clamp.value.new_empty(len(chosen), clamp.value.shape[1])
    for number, part in enumerate(given.distribution.parts):
        places = (chosen == number).nonzero()[:, 0]
        each = counts.rows[places].bincount(minlength=len(clamp.value))
        some = each.nonzero()[:, 0]
        if len(some):
            own = Clamp(clamp.mask[some], clamp.value[some])
            found[places] = draws_given(part, own, each[some], generator).to(found)
    return found


@_missing.register
def _(given: AffineGiven, counts: _Counts, generator: torch.Generator) -> Tensor:
    q, inner = given.distribution, given._inner
    drawn = draws_given(q.distribution, inner.clamp, counts.each, generator)
    return (drawn - q.centre) / q.scale


@_missing.register
def _(given: SignedLogGiven, counts: _Counts, generator: torch.Generator) -> Tensor:
    q, inner = given.distribution, given._inner
    drawn = draws_given(q.distribution, inner.clamp, counts.each, generator)
    found: Tensor = q.centre + q.scale * q.within_range(drawn).sinh()
    return found


@_missing.register
def _(given: MixtureGiven, counts: _Counts, generator: torch.Generator) -> Tensor:
    d = given.clamp.value.shape[1]
    u, z = counts.uniform(generator), counts.normal(d, generator)
    for rows, free, weight, means, scale_tril in given._parts():
        places, own = counts.of_rows(rows)
        k = index_by_row(weight, own, u[places])
        step = torch.matmul(scale_tril[k], z[places[:, None], free][..., None])[..., 0]
        z[places[:, None], free] = means[k, own] + step
    return z


@_missing.register
def _(given: KernelGiven, counts: _Counts, generator: torch.Generator) -> Tensor:
    q, d = given.distribution, given.clamp.value.shape[1]
    u, z = counts.uniform(generator), counts.normal(d, generator)
    all_rows = torch.arange(len(counts.each), device=z.device)
    centres, h = q.centres.double(), q.bandwidth.double()
    for weight, rows in zip(given._weights(), given._rows(), strict=True):
        places, own = counts.of_rows(all_rows[rows])
        k = index_by_row(weight, own, u[places])
        width = h if q.factors is None else h * q.factors.double()[k, None]
        z[places] = centres[k] + z[places] * width
    return z


@_missing.register
def _(given: ScalesGiven, counts: _Counts, generator: torch.Generator) -> Tensor:
    d, centres = given.clamp.value.shape[1], given.distribution.centres.double()
    u, noise = counts.uniform(generator), counts.normal(d, generator)
    for rows, free, weight, z, white, tril in given._parts():
        places, own = counts.of_rows(rows)
        size = weight.shape[2]
        chosen = index_by_row(weight.transpose(0, 1).flatten(1), own, u[places])
        scale, k = chosen // size, chosen % size
        residual = z[scale, own] - white[scale, k]
        whitened = torch.cat([residual, noise[places[:, None], free]], 1)
        step = torch.matmul(tril[:, z.shape[2] :][scale], whitened[..., None])[..., 0]
        noise[places[:, None], free] = centres[k[:, None], free] + step
    return noise


@_missing.register
def _(given: LowRankGiven, counts: _Counts, generator: torch.Generator) -> Tensor:
    q, d = given.distribution, given.clamp.value.shape[1]
    u, own_noise = counts.uniform(generator), counts.normal(d, generator)
    z = counts.normal(q.rank, generator)
    means, factors, deviation = q.means.double(), q.factors.double(), q.variances.double().sqrt()
    identity = torch.eye(q.rank, dtype=torch.float64, device=z.device)
    for rows, free, weight, hidden, tril in given._parts():
        places, own = counts.of_rows(rows)
        k = index_by_row(weight, own, u[places])
        # The covariance of the factors is the inverse of L L', of which L'^-1 is a root.
        root = torch.linalg.solve_triangular(tril.mT, identity.expand_as(tril), upper=True)
        of_row = hidden[k, own] + torch.matmul(root[k], z[places][..., None])[..., 0]
        along = torch.matmul(factors[:, free][k], of_row[..., None])[..., 0]
        at = places[:, None]
        own_noise[at, free] = (
            means[:, free][k] + along + deviation[:, free][k] * own_noise[at, free]
        )
    return own_noise
