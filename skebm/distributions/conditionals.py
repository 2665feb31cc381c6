"""Rows of which some entries are known: exact means and draws of the others."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from skebm.base import Clamp, Conditional
from skebm.distributions._fitting import CHUNK, pick


class Given(Conditional):
    """Rows of a distribution given some of their entries.

    Parameters
    ----------
    noise : Distribution
    clamp : Clamp
        Which entries are known, (n, ...), and their values; the other values are not looked at.

    Attributes
    ----------
    mean : Tensor of shape (n, ...)
        Expectation of each row; known entries are what they are.
    """

    def __init__(self, noise: Any, clamp: Clamp):
        mask, value = clamp
        shape = tuple(noise.domain.row_shape)
        if mask.dtype != torch.bool or mask.shape != value.shape or mask.shape[1:] != shape:
            raise ValueError(
                f"clamp must hold a boolean mask and values, both of shape (n, "
                f"{', '.join(map(str, shape))}), not a mask of {mask.dtype} of shape "
                f"{tuple(mask.shape)} and values of shape {tuple(value.shape)}."
            )
        value = torch.where(mask, value, 0.0)
        if not value.isfinite().all():
            raise ValueError("Known values must be finite: take NaN out of the mask of the clamp.")
        self.noise, self.clamp = noise, Clamp(mask, value)

    def given(self, clamp: Clamp) -> Given:
        """The same where further entries are known."""
        both = Clamp(self.clamp.mask | clamp.mask, clamp.apply(self.clamp.value))
        return type(self)(self.noise, both)


class IndependentGiven(Given):
    """Independent entries: those that are known say nothing of the others."""

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self.clamp.apply(self.noise.expectation.to(self.clamp.value))

    def sample(self, generator: torch.Generator) -> Tensor:
        value = self.clamp.value
        return self.clamp.apply(self.noise.sample(len(value), generator).to(value))


class MixtureGiven(Given):
    """Mixtures of normal distributions: components are weighed by the known entries.

    Rows of which the same entries are known are done together, in float64.
    """

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        mean = self.clamp.value.clone()
        for rows, free, share, means, _ in self._parts():
            found = (share.t()[..., None] * means).sum(0)
            mean[rows[:, None], free] = found.to(mean.dtype)
        return mean

    def sample(self, generator: torch.Generator) -> Tensor:
        x = self.clamp.value.clone()
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(len(x), dtype=torch.float64, **kind).to(x.device)
        z = torch.randn(x.shape, dtype=torch.float64, **kind).to(x.device)
        for rows, free, share, means, root in self._parts():
            k = pick(share, u[rows])
            step = torch.matmul(root[k], z[rows[:, None], free][..., None])[..., 0]
            here = torch.arange(len(rows), device=x.device)
            x[rows[:, None], free] = (means[k, here] + step).to(x.dtype)
        return x

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Some rows (m,) and their unknown columns (f,): shares of the components (m, K), then
        conditional means (K, m, f) and Cholesky factors (K, f, f).
        """
        log_weight, means, covariances = self.noise.components()
        n_components, d = means.shape
        patterns, member = self.clamp.mask.unique(dim=0, return_inverse=True)
        for number, known in enumerate(patterns):
            if known.all():
                continue
            order = torch.cat([known.nonzero()[:, 0], (~known).nonzero()[:, 0]])
            k, free = int(known.sum()), order[int(known.sum()) :]
            # The factor of the known columns first, those that are free below it: its lower part
            # holds the regression on the whitened known columns and the factor of what is left.
            root = torch.linalg.cholesky(covariances[:, order][:, :, order])
            level = log_weight - root[:, :k, :k].diagonal(dim1=1, dim2=2).log().sum(1)
            rows = (member == number).nonzero()[:, 0]
            for part in rows.split(max(1, CHUNK // (d * max(d, n_components)))):
                value = self.clamp.value[part[:, None], order[:k]].double()
                off = (value - means[:, None, order[:k]]).transpose(1, 2)  # (K, k, m)
                white = torch.linalg.solve_triangular(root[:, :k, :k], off, upper=False)
                share = (level[:, None] - white.square().sum(1) / 2).softmax(0).t().contiguous()
                shift = torch.matmul(root[:, k:, :k], white).transpose(1, 2)
                yield part, free, share, means[:, None, free] + shift, root[:, k:, k:]


class KernelGiven(Given):
    """Kernel densities: kernels are weighed by the known entries, and independent in the others."""

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        q, value = self.noise, self.clamp.value
        parts = [share @ q.centres.double() for share in self._shares()]
        return self.clamp.apply(torch.cat([*parts, value[:0].double()]).to(value.dtype))

    def sample(self, generator: torch.Generator) -> Tensor:
        q, value = self.noise, self.clamp.value
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(len(value), dtype=torch.float64, **kind).to(value.device)
        z = torch.randn(value.shape, dtype=torch.float64, **kind).to(value.device)
        parts = self._shares()
        chosen = [pick(share, u[rows]) for share, rows in zip(parts, self._rows(), strict=True)]
        centres = q.centres[torch.cat([*chosen, u[:0].long()])].double()
        return self.clamp.apply((centres + z * q.bandwidth.double()).to(value.dtype))

    def _rows(self) -> list[slice]:
        size = max(1, CHUNK // len(self.noise.centres))
        return [slice(start, start + size) for start in range(0, len(self.clamp.value), size)]

    def _shares(self) -> Iterator[Tensor]:
        """Shares of the kernels in each chunk of rows, (m, number of kernels)."""
        centres, origin, h = self.noise.scaled_centres()
        level = self.noise.weights.double().log()
        for rows in self._rows():
            known = self.clamp.mask[rows].double()
            z = (self.clamp.value[rows].double() - origin) / h * known
            distance = known @ centres.square().t() - 2 * z @ centres.t()  # up to a constant
            yield (level - distance / 2).softmax(1)


class ScalesGiven(Given):
    """Kernel densities of several scales: kernels are weighed by the known entries.

    In a scale the unknown entries have a regression on the known ones. Rows of which the same
    entries are known are done together, in float64.
    """

    @functools.cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        mean = self.clamp.value.clone()
        for rows, free, share, z, white, root in self._parts():
            centres = self.noise.centres[:, free].double()
            off = share.sum(2, keepdim=True) * z - torch.bmm(share, white)
            shift = torch.bmm(off, root[:, z.shape[2] :, : z.shape[2]].mT)
            found = share.sum(0) @ centres + shift.sum(0)
            mean[rows[:, None], free] = found.to(mean.dtype)
        return mean

    def sample(self, generator: torch.Generator) -> Tensor:
        x = self.clamp.value.clone()
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(len(x), dtype=torch.float64, **kind).to(x.device)
        noise = torch.randn(x.shape, dtype=torch.float64, **kind).to(x.device)
        for rows, free, share, z, white, root in self._parts():
            k, m = z.shape[2], share.shape[2]
            chosen = pick(share.transpose(0, 1).flatten(1), u[rows])
            scale, j = chosen // m, chosen % m
            here = torch.arange(len(rows), device=x.device)
            off = z[scale, here] - white[scale, j]
            move = torch.cat([off, noise[rows[:, None], free]], 1)
            step = torch.matmul(root[scale][:, k:], move[..., None])[..., 0]
            centres = self.noise.centres[j[:, None], free].double()
            x[rows[:, None], free] = (centres + step).to(x.dtype)
        return x

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Some rows (n,) and their f unknown columns; shares of all kernels, (M, n, m), known
        columns of rows (M, n, k) and of centres (M, m, k), whitened, and the factors (M, d, d) of
        the known columns followed by the others.
        """
        q = self.noise
        covariances, weight = q.kernel_covariances, q.weights.double()
        origin = weight @ q.centres.double()
        centres = q.centres.double() - origin
        patterns, member = self.clamp.mask.unique(dim=0, return_inverse=True)
        for number, known in enumerate(patterns):
            if known.all():
                continue
            order = torch.cat([known.nonzero()[:, 0], (~known).nonzero()[:, 0]])
            k = int(known.sum())
            root = torch.linalg.cholesky(covariances[:, order][:, :, order])
            top = root[:, :k, :k]
            level = q.shares.double().log() - top.diagonal(dim1=1, dim2=2).log().sum(1)
            white = torch.linalg.solve_triangular(top, centres[:, order[:k]].t(), upper=False).mT
            height = level[:, None] + weight.log() - white.square().sum(2) / 2
            rows = (member == number).nonzero()[:, 0]
            for part in rows.split(max(1, CHUNK // (len(root) * len(centres)))):
                value = self.clamp.value[part[:, None], order[:k]].double() - origin[order[:k]]
                z = torch.linalg.solve_triangular(top, value.t(), upper=False).mT
                logits = torch.baddbmm(height[:, None], z, white.mT)
                logits -= z.square().sum(2, keepdim=True) / 2
                share = logits.transpose(0, 1).flatten(1).softmax(1).view(len(part), len(root), -1)
                yield part, order[k:], share.transpose(0, 1), z, white, root
