"""Conditional distributions given some entries of a row: exact means and draws of the others."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from skebm.base import Clamp, Conditional
from skebm.base.torchtools import distinct_masks
from skebm.distributions._fitting import CHUNK, draw_index
from skebm.distributions.conditionals.column import NormalMixtures


class Given(Conditional):
    """The distribution of n rows given some entries of each.

    Parameters
    ----------
    distribution : Distribution
        The distribution of a row.
    clamp : Clamp
        Which entries are known, (n, ...), and their values; other values are ignored.

    Attributes
    ----------
    mean : Tensor of shape (n, ...)
        Conditional mean of each row, with the known entries at their values.
    """

    def __init__(self, distribution: Any, clamp: Clamp):
        mask, value = clamp
        shape = tuple(distribution.domain.row_shape)
        if mask.dtype != torch.bool or mask.shape != value.shape or mask.shape[1:] != shape:
            raise ValueError(
                f"clamp must have a boolean mask and values, both of shape (n, "
                f"{', '.join(map(str, shape))}), not a mask of {mask.dtype} of shape "
                f"{tuple(mask.shape)} and values of shape {tuple(value.shape)}."
            )
        value = torch.where(mask, value, 0.0)
        if not value.isfinite().all():
            raise ValueError("Known values must be finite: take NaN out of the mask of the clamp.")
        self.distribution, self.clamp = distribution, Clamp(mask, value)

    def given(self, clamp: Clamp) -> Given:
        """The conditional given further entries."""
        both = Clamp(self.clamp.mask | clamp.mask, clamp.apply(self.clamp.value))
        return type(self)(self.distribution, both)

    def column(self, entry: int) -> NormalMixtures | None:
        """The distribution of an unknown entry of flat rows; None where it is no such mixture."""
        return None


class IndependentGiven(Given):
    """Independent entries, whose conditional distributions are their marginals."""

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self.clamp.apply(self.distribution.expectation.to(self.clamp.value))

    def sample(self, generator: torch.Generator) -> Tensor:
        value = self.clamp.value
        return self.clamp.apply(self.distribution.sample(len(value), generator).to(value))

    def column(self, entry: int) -> NormalMixtures | None:
        mixture = getattr(self.distribution, "components", None)
        if mixture is None:
            return None
        log_weight, means, covariances = mixture()
        log_weight = log_weight.expand(len(self.clamp.value), -1)
        return NormalMixtures(log_weight, means[:, entry], covariances[:, entry, entry].sqrt())


class MixtureGiven(Given):
    """Mixtures of normal distributions, components weighted by their density of the known entries.

    Rows with the same known entries are processed together, in float64.

    Parameters
    ----------
    distribution : GaussianMixture
    clamp : Clamp
    log_evidence : Tensor of shape (n, K) or None, default=None
        What other columns of a row say of its component, up to a constant for each row.
    """

    def __init__(self, distribution: Any, clamp: Clamp, log_evidence: Tensor | None = None):
        super().__init__(distribution, clamp)
        self.log_evidence = log_evidence

    def given(self, clamp: Clamp) -> MixtureGiven:
        both = super().given(clamp)
        return MixtureGiven(self.distribution, both.clamp, self.log_evidence)

    @functools.cached_property
    def log_joint(self) -> Tensor:
        """Log of the weight of each component times its density of the known entries, (n, K)."""
        n_components = self.distribution.n_components
        found = torch.empty(
            len(self.clamp.value), n_components, dtype=torch.float64, device=self.clamp.value.device
        )
        for rows, _, _, _, logits in self._known_parts():
            found[rows] = logits.t()
        return found

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        mean = self.clamp.value.clone()
        for rows, free, weight, means, _ in self._parts():
            value = (weight.t()[..., None] * means).sum(0)
            mean[rows[:, None], free] = value.to(mean.dtype)
        return mean

    def sample(self, generator: torch.Generator) -> Tensor:
        x = self.clamp.value.clone()
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(len(x), dtype=torch.float64, **kind).to(x.device)
        z = torch.randn(x.shape, dtype=torch.float64, **kind).to(x.device)
        for rows, free, weight, means, scale_tril in self._parts():
            k = draw_index(weight, u[rows])
            step = torch.matmul(scale_tril[k], z[rows[:, None], free][..., None])[..., 0]
            place = torch.arange(len(rows), device=x.device)
            x[rows[:, None], free] = (means[k, place] + step).to(x.dtype)
        return x

    def column(self, entry: int) -> NormalMixtures:
        found = []
        for rows, free, weight, means, scale_tril in self._parts():
            place = (free == entry).nonzero().ravel()
            scale = scale_tril[:, place].norm(dim=2).t()
            found.append((rows, NormalMixtures(weight.log(), means[:, :, place[0]].t(), scale)))
        return in_order(found)

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Chunks of m rows with the same f unknown columns, at least one.

        Yields the row numbers (m,), the columns (f,), the conditional mixing weights (m, K), means
        (K, m, f) and Cholesky factors of the covariances (K, f, f).
        """
        means = self.distribution.components()[1]
        for rows, order, tril, white, logits in self._known_parts(complete=False):
            k = white.shape[1]
            free, weight = order[k:], logits.softmax(0).t().contiguous()
            shift = torch.matmul(tril[:, k:, :k], white).transpose(1, 2)
            yield rows, free, weight, means[:, None, free] + shift, tril[:, k:, k:]

    def _known_parts(
        self, *, complete: bool = True
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Chunks of m rows with the same k known columns; `complete` is whether all may be known.

        Yields the row numbers (m,), all columns with the known ones first (d,), the Cholesky
        factors of the covariances in this order (K, d, d), the whitened known columns (K, k, m),
        and the log of the weights of the components times their densities of these (K, m).
        """
        log_weight, means, covariances = self.distribution.components()
        n_components, d = means.shape
        patterns, member = distinct_masks(self.clamp.mask)
        for number, known in enumerate(patterns):
            if known.all() and not complete:
                continue
            order = torch.cat([known.nonzero()[:, 0], (~known).nonzero()[:, 0]])
            k = int(known.sum())
            # With the known columns first, the lower blocks of the Cholesky factor are the
            # regression on the whitened known columns and the factor of the conditional covariance.
            tril = torch.linalg.cholesky(covariances[:, order][:, :, order])
            constant = log_weight - tril[:, :k, :k].diagonal(dim1=1, dim2=2).log().sum(1)
            constant = constant - k / 2 * math.log(math.tau)
            rows = (member == number).nonzero()[:, 0]
            for part in rows.split(max(1, CHUNK // (d * max(d, n_components)))):
                value = self.clamp.value[part[:, None], order[:k]].double()
                centred = (value - means[:, None, order[:k]]).transpose(1, 2)  # (K, k, m)
                white = torch.linalg.solve_triangular(tril[:, :k, :k], centred, upper=False)
                logits = constant[:, None] - white.square().sum(1) / 2
                if self.log_evidence is not None:
                    logits = logits + self.log_evidence[part].t()
                yield part, order, tril, white, logits


class KernelGiven(Given):
    """Kernel densities of one scale, kernels weighted by their density of the known entries."""

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        q, value = self.distribution, self.clamp.value
        parts = [weight @ q.centres.double() for weight in self._weights()]
        return self.clamp.apply(torch.cat([*parts, value[:0].double()]).to(value.dtype))

    def sample(self, generator: torch.Generator) -> Tensor:
        q, value = self.distribution, self.clamp.value
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(len(value), dtype=torch.float64, **kind).to(value.device)
        z = torch.randn(value.shape, dtype=torch.float64, **kind).to(value.device)
        parts = zip(self._weights(), self._rows(), strict=True)
        chosen = [draw_index(weight, u[rows]) for weight, rows in parts]
        index = torch.cat([*chosen, u[:0].long()])
        h = q.bandwidth.double()
        if q.factors is not None:
            h = h * q.factors.double()[index, None]
        return self.clamp.apply((q.centres[index].double() + z * h).to(value.dtype))

    def column(self, entry: int) -> NormalMixtures:
        q, device = self.distribution, self.clamp.value.device
        h = q.bandwidth.double()[entry]
        scale = h.expand(len(q.centres)) if q.factors is None else h * q.factors.double()
        found = []
        for weight, rows in zip(self._weights(), self._rows(), strict=True):
            centres = q.centres[:, entry].double()
            mixtures = NormalMixtures(weight.log(), centres, scale)
            found.append((torch.arange(len(self.clamp.value), device=device)[rows], mixtures))
        return in_order(found)

    def _rows(self) -> list[slice]:
        size = max(1, CHUNK // len(self.distribution.centres))
        return [slice(start, start + size) for start in range(0, len(self.clamp.value), size)]

    def _weights(self) -> Iterator[Tensor]:
        """Conditional weights of the kernels for each chunk of rows, (m, number of kernels)."""
        centres, origin, h = self.distribution.centres_in_bandwidths()
        log_weight, factors = self.distribution.weights.double().log(), self.distribution.factors
        for rows in self._rows():
            known = self.clamp.mask[rows].double()
            z = (self.clamp.value[rows].double() - origin) / h * known
            distance = known @ centres.square().t() - 2 * z @ centres.t()  # up to a constant
            if factors is None:
                yield (log_weight - distance / 2).softmax(1)
                continue
            f, n_known = factors.double(), known.sum(1, keepdim=True)
            distance = (distance + z.square().sum(1, keepdim=True)) / f.square()
            yield (log_weight - n_known * f.log() - distance / 2).softmax(1)


class ScalesGiven(Given):
    """Kernel densities of several scales, weighted by their density of the known entries.

    Within a kernel the unknown entries have a linear regression on the known ones. Rows with the
    same known entries are processed together, in float64.
    """

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        mean = self.clamp.value.clone()
        for rows, free, weight, z, white, tril in self._parts():
            centres = self.distribution.centres[:, free].double()
            residual = weight.sum(2, keepdim=True) * z - torch.bmm(weight, white)
            shift = torch.bmm(residual, tril[:, z.shape[2] :, : z.shape[2]].mT)
            value = weight.sum(0) @ centres + shift.sum(0)
            mean[rows[:, None], free] = value.to(mean.dtype)
        return mean

    def sample(self, generator: torch.Generator) -> Tensor:
        x = self.clamp.value.clone()
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(len(x), dtype=torch.float64, **kind).to(x.device)
        noise = torch.randn(x.shape, dtype=torch.float64, **kind).to(x.device)
        for rows, free, weight, z, white, tril in self._parts():
            k, m = z.shape[2], weight.shape[2]
            chosen = draw_index(weight.transpose(0, 1).flatten(1), u[rows])
            scale, j = chosen // m, chosen % m
            place = torch.arange(len(rows), device=x.device)
            residual = z[scale, place] - white[scale, j]
            whitened = torch.cat([residual, noise[rows[:, None], free]], 1)
            step = torch.matmul(tril[scale][:, k:], whitened[..., None])[..., 0]
            centres = self.distribution.centres[j[:, None], free].double()
            x[rows[:, None], free] = (centres + step).to(x.dtype)
        return x

    def column(self, entry: int) -> NormalMixtures:
        found = []
        for rows, free, weight, z, white, tril in self._parts():
            k, place = z.shape[2], int((free == entry).nonzero()[0, 0])
            regression, own = tril[:, k + place, :k], tril[:, k + place, k:].norm(dim=1)
            shift = torch.einsum("snk,sk->sn", z, regression)[..., None]
            shift = shift - torch.einsum("smk,sk->sm", white, regression)[:, None]
            means = shift + self.distribution.centres[:, entry].double()
            log_weight = weight.log().transpose(0, 1).flatten(1)
            scale = own[:, None].expand(-1, weight.shape[2]).flatten()
            mixtures = NormalMixtures(log_weight, means.transpose(0, 1).flatten(1), scale)
            found.append((rows, mixtures))
        return in_order(found)

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Chunks of n rows with the same k known and f unknown columns.

        Yields the row numbers (n,), the unknown columns (f,), the conditional weights of all
        kernels (M, n, m), the whitened known columns of the rows (M, n, k) and of the centres
        (M, m, k), and the Cholesky factors of the covariances with the known columns first
        (M, d, d).
        """
        q = self.distribution
        covariances, weight = q.kernel_covariances, q.weights.double()
        origin = weight @ q.centres.double()
        centres = q.centres.double() - origin
        patterns, member = distinct_masks(self.clamp.mask)
        for number, known in enumerate(patterns):
            if known.all():
                continue
            order = torch.cat([known.nonzero()[:, 0], (~known).nonzero()[:, 0]])
            k = int(known.sum())
            tril = torch.linalg.cholesky(covariances[:, order][:, :, order])
            top = tril[:, :k, :k]
            log_mixing = q.mixing_weights.double().log()
            constant = log_mixing - top.diagonal(dim1=1, dim2=2).log().sum(1)
            white = torch.linalg.solve_triangular(top, centres[:, order[:k]].t(), upper=False).mT
            offset = constant[:, None] + weight.log() - white.square().sum(2) / 2
            rows = (member == number).nonzero()[:, 0]
            for part in rows.split(max(1, CHUNK // (len(tril) * len(centres)))):
                value = self.clamp.value[part[:, None], order[:k]].double() - origin[order[:k]]
                z = torch.linalg.solve_triangular(top, value.t(), upper=False).mT
                logits = torch.baddbmm(offset[:, None], z, white.mT)
                logits -= z.square().sum(2, keepdim=True) / 2
                flat = logits.transpose(0, 1).flatten(1).softmax(1)
                conditional = flat.view(len(part), len(tril), -1).transpose(0, 1)
                yield part, order[k:], conditional, z, white, tril


def in_order(parts: list[tuple[Tensor, NormalMixtures]]) -> NormalMixtures:
    """Mixtures of some rows each, with the numbers of these, in the order of all rows."""
    if len(parts) == 1:  # of which the rows are in order
        return parts[0][1]
    found = NormalMixtures.one_below_the_other([part for _, part in parts])
    return found.of_rows(torch.cat([rows for rows, _ in parts]).argsort())
