"""Networks of discrete rows without chains, and Boltzmann machines as networks."""

import numpy as np
import pandas as pd
import pytest
import torch

from skebm import ContrastiveDivergenceDensity
from skebm.base import Binary, Categorical, Mixed
from skebm.distributions import Columns, IndependentBernoulli, IndependentCategorical
from skebm.energies import MLP, BoltzmannMachine, NeuralEnergy, PairwiseCorrection
from skebm.estimators.neural.family import are_states, energy_of
from skebm.samplers import Gibbs, GibbsWithGradients, Persistent
from tests.estimators.rbm.test_local import bars, normal, of_base
from tests.objectives.test_local import all_rows
from tests.support.oracle import DOUBLE, P_FLOOR, Discrete, bits, make_tree_rbm, seeded
from tests.support.tiers import full, leading

RULES = ("pseudo_likelihood", "ratio_matching", "probability_flow")
each_rule = pytest.mark.parametrize("objective", RULES)
MIXED = Mixed((Binary((2,)), Categorical((3,))))


def density(objective="pseudo_likelihood", **params):
    quick = {"network": MLP((16,)), "n_iter": 40, "learning_rate": 0.01, "random_state": 0}
    return ContrastiveDivergenceDensity(objective=objective, **quick | params)


# ------------------------------------------------------------------------------
# Rules without chains
# ------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("objective", leading(1, RULES))
def test_a_fit_makes_new_rows_more_likely_than_the_base(objective):
    X, new = bars(500, 0), bars(500, 1)
    model = density(objective, base="independent").fit(X)
    assert model.log_partition_kind_ == "exact"
    assert model.score(new) > of_base(model, new) + 0.5
    assert {type(model.sampler_), type(model.net_.state_)} == {GibbsWithGradients, type(None)}


@full
@pytest.mark.parametrize("objective", leading(1, RULES))
def test_a_fit_to_one_hot_rows(objective):
    """Two columns of three levels that mostly agree."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 3, 2000)
    second = np.where(rng.random(2000) < 0.7, first, rng.integers(0, 3, 2000))
    X = np.concatenate([np.eye(3)[first], np.eye(3)[second]], 1)
    model = density(objective, domain=Categorical((3, 3))).fit(X)
    truth = np.full((3, 3), 0.1 / 3) + np.eye(3) * 0.7 / 3
    states = all_rows(Categorical((3, 3))).numpy()
    p = np.exp(model.score_samples(states)).reshape(3, 3)
    assert p.sum() == pytest.approx(1, abs=1e-5)
    assert np.abs(p - truth).max() < 0.04


def test_a_fit_to_bits_and_categories():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 300)
    X = pd.DataFrame({"kind": np.array(["a", "b", "c"])[kind], "bit": (kind == 1).astype(float)})
    model = density(base="independent").fit(X)
    p = np.exp(model.score_samples(pd.DataFrame({"kind": list("abc"), "bit": [0.0, 1.0, 0.0]})))
    assert p.sum() > 0.9


def test_chains_have_no_effect():
    X = bars(60, 0)
    model = density(n_iter=2)
    expected = model.fit(X).energy(X)
    with pytest.warns(UserWarning, match="chains, because.*pseudo_likelihood"):
        found = model.set_params(chains="data").fit(X).energy(X)
    np.testing.assert_array_equal(found, expected)


@each_rule
def test_real_columns_are_refused(objective):
    X = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(ValueError, match=r"real columns.*ScoreMatchingDensity"):
        density(objective).fit(X)
    frame = pd.DataFrame({"number": X[:, 0], "text": np.where(X[:, 1] > 0, "a", "b")})
    with pytest.raises(ValueError, match=r'are real.*"likelihood"'):
        density(objective).fit(frame)


def test_rules_without_settings_have_none_to_set():
    with pytest.raises(ValueError, match="objective='pseudo_likelihood'"):
        density().set_params(objective__energy_l2=0.1)
    with pytest.raises(ValueError, match="'objective' parameter"):
        density("pseudo").fit(bars(60, 0))


@full
def test_held_out_rows_end_a_fit_that_gains_nothing():
    X = (np.random.default_rng(0).random((300, 14)) < 0.5).astype(float)
    model = density(n_iter=200, base="independent").fit(X)
    assert model.n_iter_ < 100
    assert "gain_over_base" in model.history_[-1]


# ------------------------------------------------------------------------------
# Pairwise energies as networks
# ------------------------------------------------------------------------------


def machine(domain, seed=0):
    d = domain.n_columns
    return BoltzmannMachine(normal(d, d, seed=seed), normal(d, seed=seed + 1), domain=domain)


PAIRS = {
    "bits": lambda: (machine(Binary((4,))), IndependentBernoulli(normal(4, seed=5))),
    "bits alone": lambda: (machine(Binary((4,))), None),
    "levels": lambda: (
        machine(Categorical((3, 2))),
        IndependentCategorical(normal(5, seed=5), (3, 2)),
    ),
    "mixed": lambda: (
        machine(MIXED),
        Columns(
            [
                IndependentBernoulli(normal(2, seed=5)),
                IndependentCategorical(normal(3, seed=6), (3,)),
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_conditionals_of_a_correction_are_those_of_the_sum(name):
    """Every level of every column given the others, from the enumerated energy of both."""
    network, base = PAIRS[name]()
    domain = network.domain
    energy, plain = PairwiseCorrection(network, base), NeuralEnergy(network, domain, base)
    x = all_rows(domain)
    torch.testing.assert_close(energy(x), plain(x))
    torch.testing.assert_close(energy.level_difference(x), plain.level_difference(x))
    constant = energy(x) + (x * (x @ energy.coupling / 2 + energy.bias)).sum(1)
    torch.testing.assert_close(constant, constant[:1].expand_as(constant))
    colours = torch.cat(energy.colours).sort().values
    assert torch.equal(colours, torch.arange(domain.n_columns))
    some = torch.tensor([1, 3])
    torch.testing.assert_close(energy.logits(x, some), energy.logits(x)[:, some])


@pytest.mark.parametrize("name", PAIRS)
def test_gibbs_draws_from_a_correction(name):
    network, base = PAIRS[name]()
    energy = PairwiseCorrection(network, base)
    states = all_rows(network.domain)
    target = Discrete(states, -energy(states))
    x = Gibbs().run(energy, target.draw(5000, seeded(1)), 3, seeded(2))[0].x
    assert target.p_value(x) > P_FLOOR


def test_other_bases_and_domains_are_no_pairs():
    tree, four = make_tree_rbm(4, 2).base, Binary((4,))
    assert type(energy_of(machine(four), four, tree)) is NeuralEnergy
    assert type(energy_of(machine(four), Categorical((4,)), None)) is NeuralEnergy
    assert type(energy_of(machine(four), four, None)) is PairwiseCorrection
    with pytest.raises(ValueError, match="independent bits"):
        PairwiseCorrection(machine(four), tree)


def coupled_units(d=10, scale=0.7):
    J = scale * normal(d, d)
    J = ((J + J.t()) / 2**0.5).fill_diagonal_(0)
    return BoltzmannMachine(J, -J.sum(1) / 2 + 0.3 * normal(d, seed=3))


def error_of_couplings(objective, n_iter, **params):
    """Root mean square over the pairs, of a fit to 10,000 exact rows of ten units."""
    truth, x = coupled_units(), bits(10)
    X = Discrete(x, -truth(x)).draw(10_000, seeded(1)).numpy()
    network = BoltzmannMachine(torch.zeros(10, 10), edges=~torch.eye(10, dtype=torch.bool))
    model = ContrastiveDivergenceDensity(
        network,
        objective=objective,
        domain="binary",
        learning_rate=0.02,
        n_iter=n_iter,
        random_state=0,
        **params,
    ).fit(X)
    assert isinstance(model.energy_, PairwiseCorrection)
    assert type(model.base_) is IndependentBernoulli
    off = model.energy_.coupling.detach().to(DOUBLE) - truth.coupling.detach()
    return float(off[tuple(torch.triu_indices(10, 10, 1))].square().mean().sqrt()), model


@full
def test_couplings_are_recovered_by_gibbs_chains():
    chains = Persistent(n_steps=1, n_independence_steps=0)
    error, model = error_of_couplings("likelihood", 13, chains=chains, sampler=Gibbs())
    assert error < 0.25
    assert model.sample(5, random_state=0).shape == (5, 10)


@full
def test_gibbs_is_the_default_sampler_of_a_boltzmann_machine():
    error, model = error_of_couplings("likelihood", 30)
    assert isinstance(model.sampler_, Gibbs)
    assert error < 0.12


@pytest.mark.parametrize("objective", leading(1, RULES))
def test_couplings_are_recovered_without_chains(objective):
    assert error_of_couplings(objective, 13)[0] < 0.1  # maximum likelihood has 0.06


# ------------------------------------------------------------------------------
# Held-out rows
# ------------------------------------------------------------------------------


def test_states_that_repeat_are_not_held_out():
    one, few = torch.ones(60, dtype=DOUBLE), torch.ones(60, dtype=DOUBLE)
    few[:3] = 100
    wide = Binary((20,))
    assert not are_states(one, 60, wide)
    assert are_states(few, 357, wide)  # three rows are nearly all of the table
    assert not are_states(few, 200, wide)  # which are weighted, and do not come again so often
    assert are_states(one, 60, Binary((6,)))  # nearly all states occur
    assert are_states(7 * few, 357, wide)


def test_a_table_of_few_states_is_trained_on_as_a_whole():
    X = bars(500, 0)
    model = density(n_iter=2).fit(X)
    assert model.net_.held_out_ is None
    wide = np.concatenate([bars(300, seed) for seed in range(3)], 1)
    assert len(density(n_iter=2).fit(wide).net_.held_out_) > 20
