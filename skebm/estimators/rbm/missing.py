"""Rows with missing entries: what an RBM says of the known ones.

.. math:: \\log p(x_{known}) = \\log \\sum_{x_{missing}} e^{-E(x)} - \\log Z
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base import ChainState, Clamp, sampling
from skebm.distributions import Distribution
from skebm.energies import BernoulliRBM, MixedRBM, annealing_path
from skebm.estimators.tables.bases import conditional
from skebm.samplers import Gibbs

# Terms (rows times hidden states times entries of a row) up to which hidden states are summed.
EXACT_COST = 1e9
# Completions of a row up to which these are summed.
MOST_COMPLETIONS = 256
# Chains of a row, and temperatures: more as long as the standard error is above the tolerance.
N_CHAINS, N_BETAS, MAX_ERROR = 20, (30, 120, 480), 0.1
# Numbers that are computed at once.
CHUNK = 2_000_000


class Marginals(NamedTuple):
    """Log-likelihoods of the known entries of rows.

    Attributes
    ----------
    log_prob : ndarray of shape (n_samples,)
        In nats and in the units of the data, with the estimate of log Z.
    std_error : ndarray of shape (n_samples,)
        Standard error of the sum over the missing entries; 0 where it is exact. That of log Z,
        the same for all rows, is not included.
    exact : ndarray of shape (n_samples,)
        Whether the missing entries, or else the hidden units, were summed out exactly.
    """

    log_prob: np.ndarray
    std_error: np.ndarray
    exact: np.ndarray


class LogSums(NamedTuple):
    """log of the sum of exp(-E(x)) over the missing entries of rows, (n,), and its error."""

    value: Tensor
    std_error: Tensor
    exact: Tensor


@torch.no_grad()
def log_sums(
    energy: BernoulliRBM | MixedRBM,
    base: Distribution,
    x: Tensor,
    known: Tensor,
    groups: Sequence[int],
    generator: torch.Generator,
) -> LogSums:
    """Sum out the missing entries of rows.

    The sum is exact, over the completions of a row or over the hidden states, if these are few;
    otherwise it is estimated by annealing from the base given the known entries.

    Direction: exact if these are few. Otherwise unbiased for the sum, so that its log is low on
    average, by about half of the squared standard error.

    Parameters
    ----------
    energy : BernoulliRBM or MixedRBM
    base : Distribution
        Base of the energy.
    x : Tensor of shape (n, d)
        Rows of the energy; the missing entries may be anything, nan included.
    known : Tensor of shape (n, d), bool
    groups : sequence of int
        Numbers of entries of the columns: 1 of a bit or number, k of one of k levels.
    generator : torch.Generator
    """
    x = torch.where(known, x, 0.0)
    n, d = x.shape
    value = torch.full((n,), math.nan, dtype=torch.float64, device=x.device)
    error, exact = torch.zeros_like(value), torch.ones(n, dtype=torch.bool, device=x.device)
    cost = float(n) * energy.hidden_domain.n_states * energy.terms_of_hidden_state
    if cost <= EXACT_COST:
        with sampling(energy):
            return LogSums(_over_hidden(energy, x, known), error, exact)
    rest = []
    for i, row_known in enumerate(known.cpu().numpy()):
        completed = _completions(energy, x[i], row_known, groups)
        if completed is None:
            rest.append(i)
        else:
            value[i] = (-energy(completed).double()).logsumexp(0)
    size = max(1, CHUNK // (N_CHAINS * (d + energy.hidden_domain.n_columns)))
    for some in torch.tensor(rest, dtype=torch.long, device=x.device).split(size):
        if len(some):
            clamp = Clamp(known[some], x[some])
            value[some], error[some] = _anneal_until_precise(energy, base, clamp, generator)
            exact[some] = False
    return LogSums(value, error, exact)


def _over_hidden(energy: Any, x: Tensor, known: Tensor) -> Tensor:
    """log of the sum over x missing and all hidden states, (n,)."""
    n, d = x.shape
    total = torch.full((n,), -math.inf, dtype=torch.float64, device=x.device)
    size = max(1, CHUNK // (n * energy.terms_of_hidden_state))
    for h in energy.hidden_domain.enumerate(size, dtype=x.dtype, device=x.device):
        clamp = Clamp(known.repeat(len(h), 1), x.repeat(len(h), 1))
        value = -energy.hidden_energy(h.repeat_interleave(n, 0), clamp=clamp).double()
        total = torch.logaddexp(total, value.view(len(h), n).logsumexp(0))
    return total


def _completions(energy: Any, x: Tensor, known: np.ndarray, groups: Sequence[int]) -> Tensor | None:
    """All completions of a row, (k, d); None where they are many, or not to be counted."""
    starts = np.cumsum([0, *groups])[:-1]
    missing = np.flatnonzero(~known[starts]).tolist()
    real = getattr(energy, "is_real", None)
    if real is not None and bool(real[torch.as_tensor(starts[missing])].any()):
        return None
    if sum(math.log(max(groups[j], 2)) for j in missing) > math.log(MOST_COMPLETIONS):
        return None
    kinds = [torch.eye(k).to(x) if k > 1 else x.new_tensor([[0.0], [1.0]]) for k in groups]
    states = list(itertools.product(*(range(len(kinds[j])) for j in missing)))
    full = x.repeat(len(states), 1)
    for place, j in enumerate(missing):
        column = slice(int(starts[j]), int(starts[j]) + groups[j])
        full[:, column] = kinds[j][[state[place] for state in states]]
    return full


def _anneal_until_precise(
    energy: Any, base: Distribution, clamp: Clamp, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Estimates by annealing with the known entries clamped, and their standard errors, (n,)."""
    n = len(clamp.value)
    value = torch.empty(n, dtype=torch.float64, device=clamp.value.device)
    error, left = torch.empty_like(value), torch.arange(n, device=value.device)
    for n_betas in N_BETAS:
        here = Clamp(clamp.mask[left], clamp.value[left])
        value[left], error[left] = _annealed_once(energy, base, here, n_betas, generator)
        left = left[error[left] > MAX_ERROR]
        if not len(left):
            break
    return value, error


def _annealed_once(
    energy: Any, base: Distribution, clamp: Clamp, n_betas: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    n = len(clamp.value)
    path = annealing_path(energy, base)
    known = conditional(base, clamp)
    many = Clamp(*(part.repeat_interleave(N_CHAINS, 0) for part in clamp))
    state = ChainState(many.apply(conditional(base, many).sample(generator)))
    log_weight = torch.zeros(n * N_CHAINS, dtype=torch.float64, device=clamp.value.device)
    kernel, betas = Gibbs(), torch.linspace(0, 1, n_betas + 1).tolist()
    with sampling(energy):
        for old, new in itertools.pairwise(betas):
            log_weight += path.log_ratio(state.x, old, new)
            hidden = path.hidden_layer(state.x, new, generator)
            at = path.at(new)
            state, _ = kernel.step(at, ChainState(state.x, aux=hidden), generator, clamp=many)
    log_weight = log_weight.view(n, N_CHAINS)
    log_mean = log_weight.logsumexp(1) - math.log(N_CHAINS)
    relative = (log_weight - log_mean[:, None]).exp().std(1) / math.sqrt(N_CHAINS)
    return known.log_normaliser.double() + path.log_z0 + log_mean, relative


# ------------------------------------------------------------------------------
# Features
# ------------------------------------------------------------------------------


@torch.no_grad()
def hidden_means(
    energy: Any,
    base: Distribution,
    x: Tensor,
    known: Tensor,
    n_steps: int,
    generator: torch.Generator,
    of_rows: Callable[[Any, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Means of the hidden units and of x given the known entries, (n, H) and (n, d).

    Instead of hidden units those of another function ``of_rows(energy, x)``.

    Averages over the second half of clamped chains that start at the base given these.
    """
    clamp = Clamp(known, torch.where(known, x, 0.0))
    state = ChainState(clamp.apply(conditional(base, clamp).sample(generator)))
    hidden: Any = 0.0
    visible: Any = 0.0
    burn_in = n_steps // 2
    with sampling(energy):
        for step in range(n_steps):
            of_hidden = energy.hidden(state.x)
            h = of_hidden.sample(generator)
            given = energy.next_visible(state.x, h, 1.0, generator).given(clamp)
            state = ChainState(clamp.apply(given.sample(generator)))
            if step >= burn_in:
                found = of_hidden.mean if of_rows is None else of_rows(energy, state.x)
                hidden, visible = hidden + found, visible + clamp.apply(given.mean)
    return hidden / (n_steps - burn_in), visible / (n_steps - burn_in)
