"""Objectives that compare a row with its neighbours, against sums over them one by one.

Neighbours are written out row by row and the formulas term by term; energies are what they share
with the code they test, and these have tests of their own.
"""

import itertools

import pytest
import torch
from torch.func import functional_call

from skebm.base import Batch, Binary, Categorical, Energy, Mixed, Real
from skebm.base.domains import columns_of, parts_of
from skebm.energies import BoltzmannMachine, NeuralEnergy
from skebm.energies.rbm import binary as binary_rbm
from skebm.objectives import (
    EnumeratedLikelihood,
    LocalObjective,
    ProbabilityFlow,
    PseudoLikelihood,
    RatioMatching,
    likelihood,
    pseudo_log_likelihood,
)
from tests.support.networks import binary, build, neural, one_hot
from tests.support.objectives import DISCRETE, assert_same, autograd, gradient, machine, weights
from tests.support.oracle import DOUBLE, bits, make_rbm, make_tree_rbm, seeded
from tests.support.tiers import leading

RULES = [PseudoLikelihood, RatioMatching, ProbabilityFlow]
rules = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)

MIXED = Mixed((Binary((2,)), Categorical((3, 2))))


def mixed_network():
    """A network of bits beside categories, without a formula for its differences."""
    return NeuralEnergy(build(smooth, (7,)), MIXED)


def smooth(spec):
    return torch.nn.Sequential(
        torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1), torch.nn.Flatten(0)
    )


ENERGIES = {
    "machine of bits": lambda: machine("bits"),
    "machine of categories": lambda: machine("levels"),
    "machine of both": lambda: machine("mixed"),
    "RBM": lambda: make_rbm(4, 3),
    "RBM on a tree": lambda: make_tree_rbm(4, 3),
    "network of bits": lambda: binary("tree", 4),
    "network of categories": lambda: one_hot((3, 1, 2), base=True),
    "network of both": mixed_network,
    "machine with one level": lambda: BoltzmannMachine(
        torch.randn(7, 7, generator=seeded(3), dtype=DOUBLE), domain=Categorical((1, 2, 4))
    ),
    "sum": lambda: machine("bits") + 0.5 * machine("bits", 3),
}
each_energy = pytest.mark.parametrize("name", ENERGIES)


def states_of_columns(domain):
    """The states of each column, as entries of a row."""
    found = []
    for part in parts_of(domain):
        if isinstance(part, Binary):
            found += [[(0.0,), (1.0,)]] * part.n_columns
        else:
            found += [[tuple(row) for row in torch.eye(k).tolist()] for k in part.groups]
    return found


def all_rows(domain):
    """Every row of a domain."""
    rows = [sum(columns, ()) for columns in itertools.product(*states_of_columns(domain))]
    return torch.tensor(rows, dtype=DOUBLE)


def some_rows(domain, n=6):
    rows = all_rows(domain)
    return rows[torch.randperm(len(rows), generator=seeded(4))[:n]]


def neighbours(x, domain):
    """Of each column of a row, the rows with another state there."""
    found, first = [], 0
    for states in states_of_columns(domain):
        entries = slice(first, first + len(states[0]))
        first = entries.stop
        others = x.repeat(len(states), 1)
        others[:, entries] = torch.tensor(states, dtype=DOUBLE)
        found.append(others[(others != x).any(1)])
    return found


def term(rule, here, there):
    """The term of a column, from the energies of its row and of the neighbours there."""
    log_p = -torch.cat([here[None], there])
    p = (log_p - log_p.logsumexp(0)).exp()
    if rule is PseudoLikelihood:
        return -p[0].log()
    if rule is RatioMatching:
        return ((1 - p[0]) ** 2 + (p[1:] ** 2).sum()) / 2
    return ((here - there) / 2).exp().sum()


def spelled_out(rule, energy, x):
    """The rule's sum of each row, differentiable."""
    total = []
    for row in x:
        here = energy(row[None])[0]
        terms = [term(rule, here, energy(others)) for others in neighbours(row, energy.domain)]
        total.append(torch.stack(terms).sum())
    return torch.stack(total)


def population(energy):
    """All states as rows, weighted by their probabilities under an energy."""
    x = all_rows(energy.domain)
    p = (-energy(x)).detach().softmax(0)
    return Batch(x, weight=p * len(x))


# ------------------------------------------------------------------------------
# Values and gradients
# ------------------------------------------------------------------------------


@each_energy
@rules
def test_values_and_gradients_are_those_of_the_sums(rule, name):
    energy = ENERGIES[name]()
    x, w = some_rows(energy.domain), weights("heavy")
    objective, of_rows = rule(energy), spelled_out(rule, energy, x).detach()
    torch.testing.assert_close(objective.of_rows(x).detach(), of_rows, rtol=1e-10, atol=1e-12)
    for weight in (None, w):
        batch = Batch(x, weight=weight)
        share = torch.ones(6, dtype=DOUBLE) if weight is None else weight

        def loss(e, share=share):
            return (share * spelled_out(rule, e, x)).sum() / 6

        found, value = gradient(objective, batch, None)
        assert_same(found, autograd(loss, energy), rtol=1e-9, atol=1e-11)
        total = (share * of_rows).sum()
        torch.testing.assert_close(value.value, total / 6)
        mean = total / share.sum()
        torch.testing.assert_close(objective.validation_loss(batch, None, seeded()), mean)


@pytest.mark.parametrize("name", [name for name in ENERGIES if "network" not in name])
def test_formulas_for_differences_agree_with_evaluations(name):
    energy = ENERGIES[name]()
    x = some_rows(energy.domain)
    torch.testing.assert_close(energy.level_difference(x), Energy.level_difference(energy, x))
    if isinstance(energy.domain, Binary):
        torch.testing.assert_close(energy.flip_difference(x), Energy.flip_difference(energy, x))


def test_ratio_matching_of_bits_is_that_of_hyvarinen():
    energy, x = machine("bits"), bits(5)
    total = torch.zeros(len(x), dtype=DOUBLE)
    for i in range(5):
        flipped = x.clone()
        flipped[:, i] = 1 - x[:, i]
        total += torch.sigmoid(energy(x) - energy(flipped)).square()
    torch.testing.assert_close(RatioMatching(energy).of_rows(x), total)


@rules
def test_two_levels_are_a_bit(rule):
    """A machine of one-hot pairs is one of bits, with the differences of its log-weights."""
    pairs = BoltzmannMachine(
        torch.randn(6, 6, generator=seeded(1), dtype=DOUBLE),
        torch.randn(6, generator=seeded(2), dtype=DOUBLE),
        domain=Categorical((2, 2, 2)),
    )
    x = bits(3)
    rows = torch.stack([1 - x, x], 2).flatten(1)
    J, b = pairs.coupling.detach(), pairs.bias.detach()
    off, on = slice(0, None, 2), slice(1, None, 2)
    coupling = J[on, on] - J[on, off] - J[off, on] + J[off, off]
    fields = b[on] - b[off] + (J[on, off] - J[off, off]).sum(1)
    of_bits = BoltzmannMachine(coupling, fields)
    torch.testing.assert_close(rule(pairs).of_rows(rows), rule(of_bits).of_rows(x))


def test_pseudo_likelihood_of_independent_columns_is_the_likelihood():
    energy = BoltzmannMachine(
        torch.zeros(7, 7, dtype=DOUBLE), torch.linspace(-2, 1, 7, dtype=DOUBLE), domain=MIXED
    )
    x = all_rows(MIXED)
    log_p = (-energy(x)).log_softmax(0)
    torch.testing.assert_close(pseudo_log_likelihood(energy, x), log_p)


# ------------------------------------------------------------------------------
# Where the minimum is
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*RULES, EnumeratedLikelihood], ids=lambda rule: rule.__name__)
@each_energy
def test_the_minimum_is_at_the_distribution_of_the_rows(rule, name):
    truth = ENERGIES[name]()
    batch, objective = population(truth), rule(truth)
    at_truth, loss = gradient(objective, batch, None)
    for grad in at_truth.values():
        torch.testing.assert_close(grad, torch.zeros_like(grad), rtol=0, atol=1e-10)
    generator = seeded(6)
    with torch.no_grad():
        for p in truth.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator, dtype=DOUBLE)
    away, worse = gradient(objective, batch, None)
    assert worse.value > loss.value + 1e-4
    assert max(float(grad.abs().max()) for grad in away.values()) > 1e-3


def test_weights_repeat_rows_in_value_too():
    energy, counts = machine("mixed"), torch.tensor([1, 3, 0, 2])
    x = some_rows(energy.domain, 4)
    share = counts / counts.to(DOUBLE).mean()
    many, few = Batch(x.repeat_interleave(counts, 0)), Batch(x, weight=share)
    for rule in (*RULES, EnumeratedLikelihood):
        objective = rule(energy, l2=0.3)
        found = [objective(batch, None, seeded()).value for batch in (few, many)]
        torch.testing.assert_close(*found)


# ------------------------------------------------------------------------------
# Convexity
# ------------------------------------------------------------------------------


def smallest_eigenvalue(rule, energy, rows):
    """Of the Hessian of the loss in all parameters."""
    names = list(dict(energy.named_parameters()))
    values = [p.detach() for p in energy.parameters()]
    objective = rule(energy)

    def loss(flat):
        parts = flat.split([v.numel() for v in values])
        new = {f"energy.{k}": p.view_as(v) for k, p, v in zip(names, parts, values, strict=True)}
        args = Batch(rows), None, seeded()
        return functional_call(objective, new, args, strict=False).value

    hessian = torch.autograd.functional.hessian(loss, torch.cat([v.flatten() for v in values]))
    return float(torch.linalg.eigvalsh(hessian)[0])


@pytest.mark.parametrize("kind", DISCRETE)
@pytest.mark.parametrize("seed", leading(2, range(10)))
def test_rules_that_claim_it_are_convex(kind, seed):
    energy = machine(kind, 40 + seed)
    x = DISCRETE[kind].uniform(4, seeded(seed), dtype=DOUBLE)
    for rule in (PseudoLikelihood, ProbabilityFlow, EnumeratedLikelihood):
        assert smallest_eigenvalue(rule, energy, x) > -1e-10


def test_ratio_matching_is_not_convex():
    found = [smallest_eigenvalue(RatioMatching, machine("bits", s), bits(5)[:3]) for s in range(5)]
    assert min(found) < -1e-3


# ------------------------------------------------------------------------------
# Penalties
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*RULES, EnumeratedLikelihood], ids=lambda rule: rule.__name__)
def test_penalties_are_those_of_the_couplings(rule):
    energy = machine("mixed")
    batch = Batch(some_rows(energy.domain))
    plain, penalised = rule(energy), rule(energy, l1=0.3, l2=0.4)
    (without, loss), (found, more) = (gradient(o, batch, None) for o in (plain, penalised))
    w = energy.weight.detach()
    cost = 0.3 * w.abs().sum() + 0.2 * (w**2).sum()
    torch.testing.assert_close(more.value - loss.value, cost)
    expected = 0.3 * w.sign() + 0.4 * w
    torch.testing.assert_close(found["weight"] - without["weight"], expected)
    torch.testing.assert_close(found["bias"], without["bias"])
    looks = [o.monitor(batch, None, seeded())["loss"] for o in (plain, penalised)]
    torch.testing.assert_close(looks[1] - looks[0], cost)
    held_out = [o.validation_loss(batch, None, seeded()) for o in (plain, penalised)]
    torch.testing.assert_close(*held_out)


# ------------------------------------------------------------------------------
# The enumerated likelihood
# ------------------------------------------------------------------------------


@each_energy
@pytest.mark.parametrize("chunk", [7, 10_000])
def test_the_enumerated_likelihood_is_the_sum_over_all_states(name, chunk, monkeypatch):
    """Also where the states come in many blocks."""
    monkeypatch.setattr(likelihood, "CHUNK", chunk * ENERGIES[name]().domain.n_columns)
    energy = ENERGIES[name]()
    x, w = some_rows(energy.domain), weights("heavy")
    objective, batch = EnumeratedLikelihood(energy), Batch(x, weight=w)

    def loss(e):
        log_z = (-e(all_rows(e.domain))).logsumexp(0)
        return (w * (e(x) + log_z)).sum() / len(x)

    found, value = gradient(objective, batch, None)
    assert_same(found, autograd(loss, energy), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(value.value, loss(energy).detach())
    forward = autograd(lambda e: objective(batch, None, seeded()).value, energy)
    assert_same(found, forward, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------
# Rows far from the model, and energies that have no neighbours
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DISCRETE)
def test_impossible_rows_have_finite_terms_and_gradients(kind):
    energy = machine(kind).float()
    with torch.no_grad():
        for p in energy.parameters():
            p *= 300
    x = all_rows(energy.domain).float()
    for rule in (PseudoLikelihood, RatioMatching):
        value = rule(energy).of_rows(x)
        (grad,) = torch.autograd.grad(value.sum(), energy.weight)
        assert value.isfinite().all()
        assert grad.isfinite().all()
    columns = len(columns_of(energy.domain))
    assert (RatioMatching(energy).of_rows(x) <= columns).all()


@rules
def test_real_columns_have_no_neighbours(rule):
    with pytest.raises(ValueError, match=r"bits and categories.*Real"):
        rule(neural())
    mixed = NeuralEnergy(neural().network, Mixed((Real((2,)), Binary((1,)))))
    with pytest.raises(ValueError, match="bits and categories"):
        rule(mixed)
    assert issubclass(rule, LocalObjective)


@pytest.mark.parametrize("make", [make_rbm, make_tree_rbm])
def test_an_rbm_flips_many_rows_in_blocks(make, monkeypatch):
    """Gradients do not depend on how many rows there are in a block."""
    energy, x = make(4, 3), bits(4)
    objective = PseudoLikelihood(energy)
    at_once, _ = gradient(objective, Batch(x), None)
    monkeypatch.setattr(binary_rbm, "FLIPS", 5 * 12)
    in_blocks, _ = gradient(objective, Batch(x), None)
    assert_same(in_blocks, at_once)
    expected = autograd(lambda e: spelled_out(PseudoLikelihood, e, x).mean(), energy)
    assert_same(in_blocks, expected)
