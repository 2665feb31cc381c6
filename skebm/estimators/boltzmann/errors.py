"""Standard errors of couplings and fields, from the information of the rows."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base import Binary
from skebm.base.energy import difference_of_levels, discrete_columns
from skebm.base.torchtools import check_memory
from skebm.energies import BoltzmannMachine
from skebm.energies.pairwise import same_column
from skebm.estimators.boltzmann.gauge import projection
from skebm.objectives.local import LOCAL_RULES

# Parameters whose information matrix is inverted at most, 0.8 GB; rows or states of a block.
MOST_PARAMETERS, BLOCK = 10_000, 4096


class CouplingErrors(NamedTuple):
    """Standard errors of a fitted Boltzmann machine, in the coding of its couplings.

    Attributes
    ----------
    couplings : ndarray of shape (d, d)
        Standard errors of `couplings_`; 0 where columns are not coupled.
    bias : ndarray of shape (d,)
        Standard errors of `bias_`.
    """

    couplings: np.ndarray
    bias: np.ndarray


def sufficient_statistics(energy: BoltzmannMachine, x: Tensor) -> Tensor:
    """Sufficient statistics of rows, (n, P): products of coupled entries, then the entries."""
    i, j = energy.ends
    return torch.cat([x[:, i] * x[:, j], x], 1)


def covariance(energy: BoltzmannMachine, learning: str, rows: Any, draws: Any) -> Tensor:
    """Covariance (P, P) of the estimates of the energy's weights and bias.

    `draws` are blocks of rows of the model with their probabilities, for the rules of likelihood.
    """
    n_parameters = len(energy.weight) + len(energy.bias)
    if n_parameters > MOST_PARAMETERS:
        raise ValueError(
            f"Standard errors of {n_parameters:,} parameters need the inverse of a matrix of that "
            f"size; at most {MOST_PARAMETERS:,} are supported. Pass edges= or l1=."
        )
    check_memory("standard_errors", 4.0 * n_parameters**2, torch.float64)
    total = float(rows.counts.sum())
    if learning in LOCAL_RULES:
        return _sandwich(energy, LOCAL_RULES[learning], rows) / total
    return _inverse(_fisher(energy, draws)) / total


def _fisher(energy: BoltzmannMachine, draws: Any) -> Tensor:
    """Fisher information of a row: the covariance of the sufficient statistics."""
    n = len(energy.weight) + len(energy.bias)
    mean, second = torch.zeros(n, dtype=torch.float64), torch.zeros(n, n, dtype=torch.float64)
    for x, p in draws:
        t = sufficient_statistics(energy, x).double()
        mean += p @ t
        second += t.t() @ (t * p[:, None])
    return second - torch.outer(mean, mean)


def _sandwich(energy: BoltzmannMachine, rule: Any, rows: Any) -> Tensor:
    """Covariance of an estimate by a local rule, times the number of rows."""
    n = len(energy.weight) + len(energy.bias)
    hessian = torch.zeros(n, n, dtype=torch.float64)
    spread = torch.zeros(n, n, dtype=torch.float64)
    mean = torch.zeros(n, dtype=torch.float64)
    i, j = energy.ends
    place, total = _parameter_places(energy), float(rows.counts.sum())
    size = max(1, min(BLOCK, int(2e7 / n)))
    for start in range(0, len(rows), size):
        x = rows.block(start, start + size).double()
        w = rows.counts[start : start + size] / total
        gradient, curvature = _derivatives(energy, rule, x)
        # dloss/dJ_ij = slope_i x_j + slope_j x_i, dloss/db_i = slope_i
        score = torch.cat([gradient[:, i] * x[:, j] + gradient[:, j] * x[:, i], gradient], 1)
        mean += w @ score
        spread += score.t() @ (score * w[:, None])
        features = torch.cat([x, torch.ones_like(x[:, :1])], 1)  # of a logit: others, and 1
        for first, width in discrete_columns(energy.domain):
            for a, b in itertools.product(range(width), repeat=2):
                weights = (w * curvature[a][:, first + b])[:, None]
                _add(
                    hessian, features.t() @ (features * weights), place[first + a], place[first + b]
                )
    inverse = _inverse(hessian)
    return inverse @ (spread - torch.outer(mean, mean)) @ inverse


def _derivatives(energy: BoltzmannMachine, rule: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Gradients (n, D) of a rule in the logits, and its curvatures within the columns.

    Entry b of the curvature number a is the second derivative in level a of the column of b and in
    b itself.
    """
    columns = list(discrete_columns(energy.domain))
    with torch.enable_grad():
        logits = energy.logits(x.to(energy.bias)).detach().double().requires_grad_(True)
        terms = rule.of_differences(difference_of_levels(logits, x, energy.domain), energy)
        (gradient,) = torch.autograd.grad(terms.sum(), logits, create_graph=True)
        curvature = []
        for level in range(max(width for _, width in columns)):
            entries = [first + level for first, width in columns if level < width]
            (found,) = torch.autograd.grad(gradient[:, entries].sum(), logits, retain_graph=True)
            curvature.append(found)
    return gradient.detach(), curvature


def _parameter_places(energy: BoltzmannMachine) -> Tensor:
    """Parameter of each feature of each logit, (D, D + 1); -1 for pairs that are no edges."""
    i, j = energy.ends
    m, d = len(i), len(energy.bias)
    found = torch.full((d, d + 1), -1)
    found[i, j] = found[j, i] = torch.arange(m)
    found[:, d] = m + torch.arange(d)
    return found


def _add(matrix: Tensor, block: Tensor, rows: Tensor, columns: Tensor) -> None:
    """Add a block of features to the places of their parameters."""
    kept, others = rows >= 0, columns >= 0
    at = rows[kept][:, None], columns[others][None]
    matrix.index_put_(at, block[kept][:, others], accumulate=True)


def _inverse(information: Tensor) -> Tensor:
    """Pseudo-inverse of an information matrix, without the directions that it knows nothing of."""
    values, vectors = torch.linalg.eigh(information)
    # Eigenvalues of the information, relative to the largest, at and below which a direction has
    # none: those of the levels of categories, which may all be shifted.
    rank = 1e-9
    known = values > rank * values.max()
    vectors = vectors[:, known]
    return vectors @ (vectors / values[known]).t()


def spin_change(energy: BoltzmannMachine) -> Tensor:
    """The matrix (P, P) from couplings and fields of bits to those of spins."""
    i, j = energy.ends
    m, d = len(i), len(energy.bias)
    change = torch.zeros(m + d, m + d, dtype=torch.float64)
    edges, units = torch.arange(m), torch.arange(d)
    change[edges, edges] = 0.25
    change[m + i, edges] = change[m + j, edges] = 0.25
    change[m + units, m + units] = 0.5
    return change


def gauge_change(energy: BoltzmannMachine, first: Tensor, second: Tensor) -> Tensor:
    """The matrix from weights and bias to couplings of pairs and fields that sum to zero."""
    i, j = energy.ends
    centre, share = projection(energy.domain)
    pairs = centre[first][:, i] * centre[second][:, j] + centre[first][:, j] * centre[second][:, i]
    fields = centre[:, i] * share[j] + centre[:, j] * share[i]
    upper = torch.cat([pairs, pairs.new_zeros(len(first), len(share))], 1)
    return torch.cat([upper, torch.cat([fields, centre], 1)])


def as_errors(energy: BoltzmannMachine, found: Tensor, spins: bool) -> tuple[Tensor, Tensor]:
    """Standard errors of the couplings (D, D) and of the fields (D,), in the coding."""
    d, (i, j) = len(energy.bias), energy.ends
    if spins:
        change = spin_change(energy)
    elif isinstance(energy.domain, Binary):
        change = torch.eye(len(found), dtype=found.dtype)
    else:
        i, j = (~same_column(energy.domain)).triu().nonzero().t()
        change = gauge_change(energy, i, j)
    error = ((change @ found) * change).sum(1).clamp_min(0).sqrt()
    couplings = torch.zeros(d, d, dtype=torch.float64)
    couplings[i, j] = couplings[j, i] = error[: len(i)]
    return couplings, error[len(i) :]
