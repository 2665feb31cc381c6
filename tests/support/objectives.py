"""Objectives on small energies, and what their tests look at."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from skebm.base import Batch, Binary, Categorical, ChainState, Mixed, Objective, StepInfo
from skebm.distributions import IndependentBernoulli
from skebm.energies import BoltzmannMachine
from skebm.objectives import (
    CenteredObjective,
    Centering,
    ContrastiveDivergence,
    ExactLikelihood,
    Penalty,
    PseudoLikelihood,
    RatioMatching,
)
from skebm.samplers import FromData, Gibbs, Persistent
from tests.support.oracle import DOUBLE, bits, joint_energy, seeded

# ------------------------------------------------------------------------------
# Of restricted Boltzmann machines
# ------------------------------------------------------------------------------

D, H = 4, 3
N_CHAINS = 7  # not the size of any batch in the tests


def uniform(energy):
    return IndependentBernoulli(torch.zeros_like(energy.visible_bias.detach()))


class Still(Gibbs):
    """Chains that stand still: what is left is the arithmetic of weights and counts."""

    def step(self, energy, state, generator, beta=1.0, clamp=None):
        return state, StepInfo(1.0)


def kernel_of(n_steps):
    """A sampler and steps of it; none are those of chains that stand still."""
    return (Gibbs(), n_steps) if n_steps else (Still(), 1)


def centred(centered):
    """True stands for the default; or the configuration itself."""
    return Centering() if centered is True else centered or None


def cd(n_steps):
    def make(energy, centered=False, penalty=None):
        sampler, k = kernel_of(n_steps)
        return ContrastiveDivergence(
            energy, sampler, FromData(k), centering=centred(centered), penalty=penalty
        )

    return make


def pcd(n_steps):
    def make(energy, centered=False, penalty=None, n_chains=N_CHAINS):
        sampler, k = kernel_of(n_steps)
        chains = Persistent(k, n_chains=n_chains, initial=uniform(energy))
        return ContrastiveDivergence(
            energy, sampler, chains, centering=centred(centered), penalty=penalty
        )

    return make


def exact(energy, centered=False, penalty=None):
    return ExactLikelihood(energy, centering=centred(centered), penalty=penalty)


def local(rule):
    def make(energy, centered=False, penalty=None):
        return CenteredObjective(rule(energy), centering=centred(centered), penalty=penalty)

    return make


class RBMCase(NamedTuple):
    """How to make an objective of a restricted Boltzmann machine, and what kind it is.

    `fixed` says that the gradient does not depend on the generator.
    """

    make: Callable[..., Objective]
    persistent: bool = False
    fixed: bool = False


RBM_CASES = {
    ContrastiveDivergence: {
        "CD-1": RBMCase(cd(1)),
        "CD-3": RBMCase(cd(3)),
        "PCD-1": RBMCase(pcd(1), persistent=True),
        "PCD-2": RBMCase(pcd(2), persistent=True),
        "PCD-0": RBMCase(pcd(0), persistent=True, fixed=True),
    },
    ExactLikelihood: {"exact": RBMCase(exact, fixed=True)},
}
# Of maximum likelihood, exact or by chains.
RBM_ALL = {name: case for cases in RBM_CASES.values() for name, case in cases.items()}
RBM_CASES[CenteredObjective] = {
    "local": RBMCase(local(PseudoLikelihood), fixed=True),
    "local ratios": RBMCase(local(RatioMatching), fixed=True),
}
PERSISTENT = [name for name, case in RBM_ALL.items() if case.persistent]

PENALTIES = {
    "none": Penalty(),
    "l1": Penalty(l1=0.3),
    "l2": Penalty(l2=0.4),
    "sparsity": Penalty(sparsity_target=0.2, sparsity_cost=0.7),
    "all": Penalty(0.3, 0.4, 0.2, 0.7),
}


def data(n=6, seed=11):
    """Rows of D bits."""
    return (torch.rand(n, D, generator=seeded(seed), dtype=DOUBLE) < 0.35).to(DOUBLE)


def with_chains(state, x, aux=None):
    return state._replace(chain=ChainState(x, aux=aux))


def log_weight(energy, x):
    """log sum_h exp(-E(x, h)) by enumeration, differentiable."""
    return (-joint_energy(energy, x, bits(H))).logsumexp(1)


def nll(energy, x, weight=None):
    """Mean negative log-likelihood by enumeration of both layers, differentiable."""
    log_z = log_weight(energy, bits(D)).logsumexp(0)
    weight = torch.ones(len(x), dtype=DOUBLE) if weight is None else weight
    return (weight * (log_z - log_weight(energy, x))).sum() / len(x)


def penalty_formula(penalty, energy, x, weight):
    """The documented penalty, with Bernoulli Kullback-Leibler divergences spelled out."""
    value = penalty.l1 * energy.weight.abs().sum()
    value = value + penalty.l2 / 2 * (energy.weight**2).sum()
    if penalty.sparsity_target is not None:
        weight = torch.ones(len(x), dtype=DOUBLE) if weight is None else weight
        h = (-joint_energy(energy, x, bits(H))).softmax(1) @ bits(H)
        mean = (weight[:, None] * h).sum(0) / weight.sum()
        rho = torch.distributions.Bernoulli(torch.full((H,), penalty.sparsity_target, dtype=DOUBLE))
        kl = torch.distributions.kl_divergence(rho, torch.distributions.Bernoulli(mean))
        value = value + penalty.sparsity_cost * kl.sum()
    return value


# ------------------------------------------------------------------------------
# Of Boltzmann machines
# ------------------------------------------------------------------------------

DISCRETE = {
    "bits": Binary((5,)),
    "levels": Categorical((3, 2, 4)),
    "mixed": Mixed((Binary((3,)), Categorical((3, 2)))),
}


def machine(kind, seed=21):
    """A Boltzmann machine of bits, of categories, or of both, in which no coupling is zero."""
    d = DISCRETE[kind].n_columns
    W, b = torch.randn(d + 1, d, generator=seeded(seed), dtype=DOUBLE).split([d, 1])
    return BoltzmannMachine(W, b[0], domain=DISCRETE[kind])


def discrete_rows(kind):
    """Makes rows of such a machine."""
    return lambda n=6: DISCRETE[kind].uniform(n, seeded(22), dtype=DOUBLE)


# ------------------------------------------------------------------------------
# Of all
# ------------------------------------------------------------------------------


def weights(kind, n=6):
    """Weights of a batch; their mean over the fit is 1, over a batch it is what it is."""
    if kind is None:
        return None
    w = torch.rand(n, generator=seeded(12), dtype=DOUBLE) + 0.1
    return w * {"of mean 1": 1.0, "light": 0.3, "heavy": 3.0}[kind] / w.mean()


def parameters(energy):
    return dict(energy.named_parameters())


def gradient(objective, batch, state, seed=0):
    """What :meth:`gradients` writes, by name of the parameter, and the loss it returns."""
    objective.zero_grad()
    with torch.no_grad():
        loss = objective.gradients(batch, state, seeded(seed))
    return {name: p.grad.clone() for name, p in parameters(objective.energy).items()}, loss


def later(objective, x, n_batches=2):
    """A state from the midst of training, with all that it may carry by then."""
    state = objective.start(Batch(x), seeded(1))
    for number in range(n_batches):
        _, loss = gradient(objective, Batch(x), state, seed=100 + number)
        state = loss.state
    return state


def look(objective, batch, state, seed=0):
    """The monitor's numbers."""
    logs = objective.monitor(batch, state, seeded(seed))
    return {name: float(value) for name, value in logs.items()}


def autograd(function, energy):
    names = parameters(energy)
    grads = torch.autograd.grad(function(energy), list(names.values()), materialize_grads=True)
    return dict(zip(names, grads, strict=True))


def closed_form(function, energy):
    """A function of an energy and its gradient, in one vector."""
    return torch.cat([function(energy).detach()[None], flat(autograd(function, energy)).detach()])


def flat(grads):
    return torch.cat([grads[name].flatten() for name in sorted(grads)])


def assert_same(grads, expected, **tolerance):
    assert grads.keys() == expected.keys()
    for name in grads:
        torch.testing.assert_close(grads[name], expected[name].detach(), **tolerance)


def same(a, b):
    """Whether two states hold the same numbers."""
    if a is None or b is None:
        return a is b
    if isinstance(a, int | float) or isinstance(b, int | float):
        return float(a) == float(b)
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
