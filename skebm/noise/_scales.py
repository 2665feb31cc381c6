"""Kernels of several scales: products of whitened rows, covariances by leave-one-out EM.

Everything here is float64. A distance is a product of rows and centres that carry two columns more,
so that one matrix product makes the log-density of all pairs. (Exponentials in float32 would save a
fifth, and be three times slower where they are denormal.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.noise import _fitting
from skebm.noise._bandwidth import best_factor, left_out
from skebm.noise.gaussian import _ledoit_wolf

# The first and the last of the scales at the start, in units of the one bandwidth of largest
# likelihood. It lies above the middle: it has to reach rows that are far from all others.
START = (0.25, 2.5)

# Variance that each kernel has at least, as a share of that of the columns.
FLOOR = 1e-5

# Rows by which a covariance is shrunk to a multiple of the identity, and each of the shares.
SHRINKAGE_ROWS = 10.0
SHARE_ROWS = 1.0

# A scale that holds less than this of a row stays what it is.
LEAST_COUNT = 1e-6

# Rows that are left out in turn and most steps: some rows for the way, more for the end.
STAGES = ((500, 20), (2000, 8))

# A stage ends when a step adds less than this to the log-likelihood a row, in nats.
TOLERANCE = 2e-3

# Pairs of a row and a centre in a step, and those at once (of each scale).
MAX_PAIRS = 40_000_000
PAIRS = 2**18


class Kernels(NamedTuple):
    """Kernels around m centres, ready for products.

    `maps` whitens: (M, d, d) of inverse Cholesky factors, or (d,) of inverse bandwidths.
    """

    maps: Tensor
    origin: Tensor  # (d,), zero of the centres
    centres: Tensor  # (m, d)
    right: Tensor  # (M, d + 2, m)

    def whiten(self, rows: Tensor) -> Tensor:
        """(M, n, d)."""
        if self.maps.dim() == 1:
            return (rows * self.maps)[None]
        return torch.matmul(rows, self.maps.transpose(1, 2))

    def logits(self, rows: Tensor) -> Tensor:
        """Logarithms of w_j a_m N(x_i; c_j, S_m), (M, n, m)."""
        z = self.whiten(rows)
        half = z.square().sum(2, keepdim=True) / -2
        return torch.bmm(torch.cat([z, torch.ones_like(half), half], 2), self.right)

    def precisions(self, off: Tensor) -> Tensor:
        """sum_m S_m^-1 off_m of (M, n, d)."""
        if self.maps.dim() == 1:
            return off[0] * self.maps.square()
        return torch.bmm(torch.bmm(off, self.maps.transpose(1, 2)), self.maps).sum(0)


def prepare(centres: Tensor, weight: Tensor, maps: Tensor, log_share: Tensor) -> Kernels:
    """Kernels of weights (m,), made to sum to 1, around centres (m, d), of log-shares (M,)."""
    weight = weight / weight.sum()
    origin = weight @ centres
    centres = centres - origin
    diagonal = maps[None] if maps.dim() == 1 else maps.diagonal(dim1=1, dim2=2)
    level = log_share + diagonal.log().sum(1) - centres.shape[1] / 2 * math.log(math.tau)
    found = Kernels(maps, origin, centres, maps)
    c = found.whiten(centres)
    height = level[:, None] + weight.log() - c.square().sum(2) / 2
    right = torch.cat([c, height[..., None], torch.ones_like(height)[..., None]], 2)
    return found._replace(right=right.transpose(1, 2))


def inverses(roots: Tensor) -> Tensor:
    """Inverses of lower triangular matrices, (M, d, d)."""
    identity = torch.eye(roots.shape[1], dtype=roots.dtype, device=roots.device)
    return torch.linalg.solve_triangular(roots, identity.expand_as(roots), upper=False)


def evaluate(
    kernels: Kernels,
    x: Tensor,
    slope: bool,
    without: Tensor | None = None,
    stays: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Log-densities (n,) and, if asked for, slopes (n, d), in the precision of x.

    A row may do `without` a centre, of which log-shares `stays` (m,) of its weight stay, and `rest`
    (m,) of all weights.
    """
    size = max(1, min(_fitting.CHUNK, PAIRS) // kernels.right[:, 0].numel())
    parts = []
    for number, rows in enumerate(x.split(size)):
        here = rows.double() - kernels.origin
        logits = kernels.logits(here)
        if without is not None and stays is not None and rest is not None:
            out = without[number * size : number * size + len(rows)]
            at = torch.arange(len(rows), device=rows.device)
            logits[:, at, out] = logits[:, at, out] + stays[out]
            logits -= rest[out][:, None]
        found = _sums(kernels, here, logits, slope)
        parts.append(tuple(part.to(x.dtype) for part in found))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _sums(kernels: Kernels, rows: Tensor, logits: Tensor, slope: bool) -> tuple[Tensor, ...]:
    top = logits.detach().amax(2).amax(0)
    share = logits.sub_(top[:, None]).exp_()
    if not slope:
        return (top + share.sum(2).sum(0).log(),)
    centres = torch.nn.functional.pad(kernels.centres, (0, 1), value=1.0)
    sums = torch.mm(share.flatten(0, 1), centres).view(*share.shape[:2], rows.shape[1] + 1)
    count = sums[..., -1:]
    total = count.sum(0)
    slopes = kernels.precisions(sums[..., :-1] - count * rows) / total
    return top + total[:, 0].log(), slopes


# ------------------------------------------------------------------------------
# Learning
# ------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """What a step needs of rows that are each left out of the kernels in turn."""

    log_likelihood: float  # in nats a row
    amount: Tensor  # (M,), rows of each scale
    scatter: Tensor  # (M, d, d), of rows around centres


def learn(
    z: Tensor, w: Tensor, n_scales: int, factor: float | None
) -> tuple[Tensor, Tensor, list[float]]:
    """Covariances (M, d, d) and shares (M,) for standardised rows z (n, d) counted by w (n,).

    They start as multiples of the correlations of the columns, shrunk so that these have an
    inverse, and are learned where these are the identity. The likeliest on the way are kept. Third
    come the log-likelihoods of the rows there, in nats a row.
    """
    # Weights that are no counts but shares weigh as many rows as there are, against the prior.
    unit = max(1.0, len(w) / float(w.sum()))
    root = _root(z, w * unit)
    z = torch.linalg.solve_triangular(root, z.t(), upper=False).t().contiguous()
    if factor is None:
        factor = best_factor(z, w, STAGES[0][0])
    low, high = (math.log(factor * end) for end in START)
    sizes = torch.linspace(low, high, n_scales, dtype=z.dtype, device=z.device).exp()
    covariances = torch.diag_embed(sizes.square()[:, None].expand(-1, z.shape[1]))
    shares = torch.full_like(sizes, 1 / n_scales)
    path: list[float] = []
    for n_rows, n_steps in STAGES:
        index, count = left_out(w, max(min(n_rows, MAX_PAIRS // len(z)), 1))
        usable = w.sum() - w[index].clamp(max=1) > 0
        index, count = index[usable], count[usable] * unit
        if not len(index) or not z.shape[1]:
            break
        best, here = -math.inf, (covariances, shares)
        for _ in range(n_steps):
            found = statistics(z, w, index, count, *here)
            path.append(found.log_likelihood)
            gain = found.log_likelihood - best
            if gain > 0:  # the prior may lower what the rows alone would raise
                best, (covariances, shares) = found.log_likelihood, here
            if gain < TOLERANCE:
                break
            here = update(found, *here)
    return root @ covariances @ root.t(), shares, path


def _root(z: Tensor, w: Tensor) -> Tensor:
    """Lower Cholesky factor of the shrunk correlations of standardised rows."""
    if not z.shape[1]:
        return z.new_zeros(0, 0)
    correlation = (z * w[:, None]).t() @ z / w.sum()
    # Two rows seem to agree perfectly, so that nothing would be shrunk.
    shrinkage = max(_ledoit_wolf(z, w, correlation), 1 / float(w.sum()))
    correlation = correlation * (1 - shrinkage)
    correlation.diagonal().fill_(1.0)
    return torch.linalg.cholesky(correlation)


def statistics(
    z: Tensor, w: Tensor, index: Tensor, count: Tensor, covariances: Tensor, shares: Tensor
) -> Statistics:
    """Those of the rows `index`, each counted `count` times; all rows are centres."""
    kernels = prepare(z, w, inverses(torch.linalg.cholesky(covariances)), shares.log())
    stays = ((w[index] - 1).clamp(min=0) / w[index]).log()
    others = (1 - w[index].clamp(max=1) / w.sum()).log()
    ones = torch.nn.functional.pad(kernels.centres, (0, 1), value=1.0)
    n_scales, d = len(shares), z.shape[1]
    value, amount = 0.0, z.new_zeros(n_scales)
    scatter, reached = torch.zeros_like(covariances), z.new_zeros(n_scales, len(z))
    for part in torch.arange(len(index), device=z.device).split(max(1, PAIRS // len(z))):
        rows = kernels.centres[index[part]]
        logits = kernels.logits(rows)
        logits[:, torch.arange(len(part), device=z.device), index[part]] += stays[part]
        top = logits.amax(2).amax(0)
        share = logits.sub_(top[:, None]).exp_()
        sums = torch.mm(share.flatten(0, 1), ones).view(n_scales, len(part), d + 1)
        total = sums[..., d].sum(0)
        value += float(count[part] @ (top + total.log() - others[part]))
        scale = count[part] / total
        reached += torch.matmul(scale, share)
        sums *= scale[:, None]
        amount += sums[..., d].sum(1)
        cross = torch.matmul(rows.t(), sums[..., :d] - rows * sums[..., d:] / 2)
        scatter -= cross + cross.transpose(1, 2)
    for m, column in enumerate(reached):
        scatter[m] += (kernels.centres.t() * column) @ kernels.centres
    return Statistics(value / float(count.sum()), amount, scatter)


def update(
    found: Statistics,
    covariances: Tensor,
    shares: Tensor,
    shrinkage_rows: float = SHRINKAGE_ROWS,
    share_rows: float = SHARE_ROWS,
    floor: float = FLOOR,
) -> tuple[Tensor, Tensor]:
    """Covariances and shares of largest likelihood given the statistics, and the prior rows."""
    count, d = found.amount, found.scatter.shape[1]
    identity = torch.eye(d, dtype=count.dtype, device=count.device)
    safe = count.clamp_min(LEAST_COUNT)[:, None, None]
    trace = found.scatter.diagonal(dim1=1, dim2=2).sum(1).clamp_min(0)[:, None, None]
    centre = trace / (d * safe) * identity
    shrunk = (found.scatter + shrinkage_rows * centre) / (safe + shrinkage_rows)
    wider = (shrunk + shrunk.transpose(1, 2)) / 2 + floor * identity
    covariances = torch.where((count > LEAST_COUNT)[:, None, None], wider, covariances)
    shares = (count + share_rows) / (count.sum() + len(count) * share_rows)
    return covariances, shares
