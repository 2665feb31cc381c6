"""Rows with missing entries: what an RBM says of the known ones.

.. math:: \\log p(x_{known}) = \\log \\sum_{x_{missing}} e^{-E(x)} - \\log Z
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from skebm.base import ChainState, Clamp, sampling
from skebm.distributions import Distribution
from skebm.energies import BernoulliRBM, MixedRBM, annealing_path
from skebm.estimators.queries.joint import few_completions, log_sums_over
from skebm.estimators.tables.bases import conditional
from skebm.partition.given import (
    LogZGiven,
    StepsGiven,
    annealed_log_z,
    estimate_of_chains,
)
from skebm.samplers import Gibbs

# Terms (rows times hidden states times entries of a row) up to which hidden states are summed.
EXACT_COST = 1e9
# Chains of a row, and temperatures: more as long as the standard error is above the tolerance.
N_CHAINS, N_BETAS, MAX_ERROR = 20, (30, 120, 480), 0.1
# Numbers that are computed at once.
CHUNK = 2_000_000
GIBBS = Gibbs()


@torch.no_grad()
def log_sums(
    energy: BernoulliRBM | MixedRBM,
    base: Distribution,
    x: Tensor,
    known: Tensor,
    groups: Sequence[int],
    generator: torch.Generator,
) -> LogZGiven:
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
    found = LogZGiven.exactly(torch.full((n,), math.nan, dtype=torch.float64, device=x.device))
    exact = exact_log_sums(energy, x, known)
    if exact is not None:
        return LogZGiven.exactly(exact)
    is_real = getattr(energy, "is_real", torch.zeros(d, dtype=torch.bool))
    for rows, states in few_completions(known, groups, is_real):
        found.value[rows] = log_sums_over(
            lambda full: -energy(full), states, known[rows[0]], x[rows]
        )
    rest = found.value.isnan().nonzero()[:, 0]
    size = max(1, CHUNK // (N_CHAINS * (d + energy.hidden_domain.n_columns)))
    for some in rest.split(size):
        if len(some):
            clamp = Clamp(known[some], x[some])
            found.put(some, _by_annealing(energy, base, clamp, generator))
    return found


@torch.no_grad()
def exact_log_sums(energy: Any, x: Tensor, known: Tensor) -> Tensor | None:
    """The same by a sum over the hidden states, (n,); None where these have too many terms."""
    cost = float(len(x)) * energy.hidden_domain.n_states * energy.terms_of_hidden_state
    if cost > EXACT_COST:
        return None
    with sampling(energy):
        return _over_hidden(energy, x, known)


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


def _by_annealing(
    energy: Any, base: Distribution, clamp: Clamp, generator: torch.Generator
) -> LogZGiven:
    """Estimates by annealing from the base with the known entries clamped."""

    def estimate(index: Tensor, n_betas: int) -> LogZGiven:
        here = Clamp(clamp.mask[index], clamp.value[index])
        many = Clamp(*(part.repeat(N_CHAINS, 1) for part in here))
        with sampling(energy):
            steps = ClampedSteps(energy, base, many, generator)
            values, _ = annealed_log_z(steps, n_betas)
        value, error = estimate_of_chains(values, N_CHAINS)
        return LogZGiven(value, error, value, torch.zeros_like(value, dtype=torch.bool))

    found = LogZGiven.unknown(len(clamp.value), clamp.value.device)
    found.refine(estimate, N_BETAS, MAX_ERROR)
    return found


class ClampedSteps(StepsGiven):
    """Gibbs sampling of the missing entries of rows, from the base given the known ones.

    Parameters
    ----------
    energy : BernoulliRBM or MixedRBM
    base : Distribution
    clamp : Clamp
        Known entries of each chain.
    generator : torch.Generator
    """

    def __init__(self, energy: Any, base: Distribution, clamp: Clamp, generator: torch.Generator):
        self.path, self.clamp, self.generator = annealing_path(energy, base), clamp, generator
        self.known = conditional(base, clamp)
        self.log_z0 = self.known.log_normaliser.double() + self.path.log_z0

    def start(self) -> Tensor:
        return self.at(self.known.sample(self.generator))

    def at(self, x: Tensor) -> Tensor:
        return self.clamp.apply(x)

    def rows(self, state: Tensor) -> Tensor:
        return state

    def log_ratio(self, state: Tensor, old: float, new: float) -> Tensor:
        return self.path.log_ratio(state, old, new)

    def step(self, state: Tensor, beta: float) -> Tensor:
        hidden = self.path.hidden_layer(state, beta, self.generator)
        chain = ChainState(state, aux=hidden)
        return GIBBS.step(self.path.at(beta), chain, self.generator, clamp=self.clamp)[0].x


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
