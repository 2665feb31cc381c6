"""Directions in which an energy may be flat, along which its integral may diverge."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Energy, Real

N_GRADIENTS = 512  # rows at which gradients are computed for curvatures
DISTANCES = (1.0, 1e2, 1e4)  # over which gradients are subtracted
N_FLAT = 4  # directions of least curvature, and principal directions of rows, of each kind
N_STARTS, N_DESCENT = 16, 16  # of the descent over the sphere
N_AROUND, ANGLE = 4, 1e-3  # rays around one that descent has found, in radians
N_DEGREES = 400  # rays over the circle


def flat_directions(
    energy: Energy,
    origin: Tensor,
    unbounded: Tensor,
    generator: torch.Generator,
    x: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Unit directions (n, d) of lines, and (m, k, d) of cones: k rays near each other.

    Of the columns `unbounded` (d,) of rows. Lines: both directions of least curvature, of rows x,
    and of descent. Cones: around what descent has found, and in the plane each ray of a circle.
    """
    columns = unbounded.to(origin.device).nonzero().flatten()
    center = origin[:1].flatten(1)
    lines = [_of_rows(x.to(origin).flatten(1)[:, columns], generator)] if x is not None else []
    found = center.new_zeros(0, len(columns))
    if isinstance(energy.domain, Real) and energy.domain.lower is energy.domain.upper is None:
        lines.append(_of_least_curvature(energy, center, origin.shape[1:]))
        found = _of_least_energy(energy, center, origin.shape[1:], generator)
    both = torch.cat([*lines, found]) if lines else found
    both = torch.cat([both, -both])
    noise = torch.randn(
        len(found), N_AROUND, len(columns), generator=generator, dtype=origin.dtype,
        device=origin.device,
    )  # fmt: skip
    cones = _unit(found[:, None] + ANGLE * _unit(noise))
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
    eye, found = torch.eye(d, dtype=center.dtype, device=center.device), [center[:0]]
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
        found.append(vectors[:, :N_FLAT].T.to(center))
    return torch.cat(found)


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
