"""RBMs trained without chains, by comparing rows with those that differ in one column."""

import numpy as np
import pandas as pd
import pytest
import torch

from skebm import RBMEstimator
from skebm.base import Batch, Categorical, Energy
from skebm.distributions import (
    CategoricalTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
)
from skebm.energies import MixedRBM
from skebm.objectives import CenteredObjective, Centering, Penalty, PseudoLikelihood
from skebm.samplers import FromData, Gibbs
from tests.objectives.test_local import RULES, spelled_out
from tests.support.objectives import assert_same, autograd, data, gradient, weights
from tests.support.oracle import DOUBLE, bits, make_rbm, seeded
from tests.support.tiers import full, leading, only_full

LEARNING = ("pseudo_likelihood", "ratio_matching", "probability_flow")
rules = pytest.mark.parametrize("learning", LEARNING)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=DOUBLE)


def levels(n=40, groups=(2, 3)):
    """One-hot rows whose second column depends on the first."""
    first = torch.randint(groups[0], (n,), generator=seeded(1))
    other = torch.randint(groups[1], (n,), generator=seeded(2))
    second = torch.where(torch.rand(n, generator=seeded(3)) < 0.6, first, other)
    columns = [torch.nn.functional.one_hot(c, k) for c, k in zip((first, second), groups, strict=1)]
    return torch.cat(columns, 1).to(DOUBLE)


def blocks():
    return Columns(
        [
            IndependentBernoulli(normal(2)),
            IndependentCategorical(normal(5, seed=1), (2, 3)),
        ]
    )


BASES = {
    "blocks": blocks,
    "tree": lambda: CategoricalTree.fit(levels(), Categorical((2, 3))),
    "categories": lambda: IndependentCategorical(normal(5, seed=1), (1, 4)),
}


def mixed_rbm(name):
    energy = MixedRBM(BASES[name](), 3, generator=seeded(4), scale=1.0, dtype=DOUBLE)
    with torch.no_grad():
        for p in (energy.visible_bias, energy.hidden_bias):
            p.copy_(normal(len(p), seed=6))
    return energy


def bars(n, seed, noise=0.03, k=3):
    """Pictures of k rows and columns, each on or off."""
    rng = np.random.default_rng(seed)
    on = rng.random((2, n, k)) < 0.4
    X = (on[0][:, :, None] | on[1][:, None, :]).reshape(n, -1)
    return np.where(rng.random(X.shape) < noise, ~X, X).astype(float)


def of_base(model, X):
    return float(model.base_.log_prob(torch.as_tensor(X, dtype=torch.float32)).mean())


# ------------------------------------------------------------------------------
# Energies and gradients
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_changes_of_an_rbm_of_categories_are_those_of_its_energies(rule, name):
    energy = mixed_rbm(name)
    x = energy.domain.uniform(6, seeded(7), dtype=DOUBLE)
    torch.testing.assert_close(energy.level_difference(x), Energy.level_difference(energy, x))
    found, _ = gradient(rule(energy), Batch(x), None)
    expected = autograd(lambda e: spelled_out(rule, e, x).mean(), energy)
    assert_same(found, expected, rtol=1e-9, atol=1e-11)


def test_real_columns_have_no_changes():
    energy = MixedRBM(Gaussian(torch.zeros(2), 1.0), 3, generator=seeded())
    with pytest.raises(ValueError, match="level to level"):
        energy.level_difference(torch.zeros(1, 2))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_centred_gradient_is_that_of_centred_weights(rule):
    """Of E written with (h - l)'W(x - m) and biases that move along, by autograd."""
    energy, x, w = make_rbm(4, 3), data(), weights("of mean 1")
    objective = CenteredObjective(rule(energy), centering=Centering(rate=0.0))
    state = objective.start(Batch(x, weight=w), seeded())
    mu, lam = state.offsets
    found, _ = gradient(objective, Batch(x, weight=w), state)
    plain, _ = gradient(
        CenteredObjective(rule(energy)), Batch(x, weight=w), state._replace(offsets=None)
    )
    G = plain["weight"] - plain["hidden_bias"][:, None] * mu - lam[:, None] * plain["visible_bias"]
    torch.testing.assert_close(found["weight"], G)
    torch.testing.assert_close(found["visible_bias"], plain["visible_bias"] - G.t() @ lam)
    torch.testing.assert_close(found["hidden_bias"], plain["hidden_bias"] - G @ mu)


def test_probabilities_of_bits_are_drawn():
    """The mean over draws is the expectation over binarised rows."""
    energy, p = make_rbm(3, 2), torch.tensor([[0.2, 1.0, 0.7]], dtype=DOUBLE)
    objective = CenteredObjective(PseudoLikelihood(energy))
    chance = (p * bits(3) + (1 - p) * (1 - bits(3))).prod(1)
    terms = PseudoLikelihood(energy).of_rows(bits(3)).detach()
    mean, n = chance @ terms, 20_000
    error = ((chance @ terms**2 - mean**2) / n).sqrt()
    found = objective.validation_loss(Batch(p.expand(n, 3)), None, seeded())
    assert abs(found - mean) < 4 * error
    assert abs(PseudoLikelihood(energy).of_rows(p)[0].detach() - mean) > 10 * error


def test_a_loss_above_that_of_the_uniform_distribution_is_a_divergence():
    objective = CenteredObjective(PseudoLikelihood(make_rbm(4, 3)))
    logs = {"loss": 4 * np.log(2) + 0.9, "largest_weight": 3.0}
    before = logs | {"loss": 2.0}
    assert objective.divergence_reason(logs, before) is None
    worse = logs | {"loss": 4 * np.log(2) + 1.1}
    assert "uniform" in objective.divergence_reason(worse, before)
    assert objective.divergence_reason(worse, worse) is None  # a poor start is none
    assert objective.divergence_reason(worse, before, n_rows=5) is None
    assert "weight" in objective.divergence_reason(logs | {"largest_weight": 101.0}, before)
    assert "not finite" in objective.divergence_reason(logs | {"loss": float("nan")}, before)


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


# With a learning rate, no held-out rows guard the fit, which takes most of the time of a short one.
quick = {"base": "independent", "learning_rate": 0.1, "n_iter": 40, "random_state": 0}


@full
@pytest.mark.parametrize("base", ["independent", only_full("chow-liu")])
@pytest.mark.parametrize("learning", leading(1, LEARNING))
def test_a_fit_makes_new_rows_more_likely_than_the_base(learning, base):
    X, new = bars(500, 0), bars(500, 1)
    rate = {"independent": 0.1, "chow-liu": 0.3}[base]  # the defaults
    params = quick | {"base": base, "learning_rate": rate}
    model = RBMEstimator(8, learning=learning, **params).fit(X)
    assert model.log_partition_kind_ == "exact"
    assert model.learning_ == learning
    assert model.score(new) > of_base(model, new) + {"independent": 0.7, "chow-liu": 0.2}[base]
    assert model.history_[-1]["train_loss"] < model.history_[0]["train_loss"]


@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_held_out_rows_guard_the_fit():
    X = bars(300, 0)
    model = RBMEstimator(
        4, learning="pseudo_likelihood", base="independent", n_iter=10, random_state=0
    ).fit(X)
    gains = [row["gain_over_base"] for row in model.history_ if "gain_over_base" in row]
    assert len(gains) >= 5
    assert gains[-1] == max(gains) > 0


@full
def test_a_fit_to_categories():
    rng = np.random.default_rng(0)

    def table(n):
        kind = rng.integers(0, 3, n)
        copies = [np.where(rng.random(n) < 0.8, kind, rng.integers(0, 3, n)) for _ in range(3)]
        X = pd.DataFrame({f"c{i}": np.array(["a", "b", "c"])[c] for i, c in enumerate(copies)})
        X["bit"] = (kind > 0).astype(float)
        return X

    model = RBMEstimator(4, learning="pseudo_likelihood", **quick).fit(table(300))
    new = table(300)
    x = model._rows(new).block(0, 300)
    assert model.score(new) > float(model.base_.log_prob(x).mean()) + 0.4


@full
def test_missing_entries_are_completed():
    X, new = bars(300, 0), bars(300, 1)
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    model = RBMEstimator(8, learning="ratio_matching", **quick).fit(X)
    assert model.score(new) > of_base(model, new) + 0.4


def test_early_stopping_follows_the_rule_itself():
    X = bars(100, 0)
    model = RBMEstimator(
        8, learning="probability_flow", early_stopping=True, n_iter=5, random_state=0
    ).fit(X)
    assert all(0 < row["valid_loss"] < 9 for row in model.history_)


@full
def test_penalties_reach_the_weights():
    X = bars(150, 0)
    plain, l1, l2, sparse = (
        RBMEstimator(6, learning="pseudo_likelihood", penalty=penalty, **quick).fit(X)
        for penalty in (
            None,
            Penalty(l1=0.05),
            Penalty(l2=0.3),
            Penalty(sparsity_target=0.05, sparsity_cost=3.0),
        )
    )
    size = np.abs(plain.components_)
    assert np.median(np.abs(l1.components_)) < 0.1 * np.median(size)
    assert np.square(l2.components_).sum() < 0.5 * np.square(size).sum()
    assert abs(sparse.transform(X).mean() - 0.05) < 0.05 < plain.transform(X).mean() - 0.05


@full
def test_the_exact_minimum_under_a_penalty():
    """By full batches, the penalised gradient vanishes."""
    X = bars(199, 0, k=2)  # of more, some guard
    model = RBMEstimator(
        2,
        learning="pseudo_likelihood",
        base="independent",
        penalty=Penalty(l2=0.05),
        learning_rate=0.2,
        batch_size=199,
        n_iter=1000,
        dtype="float64",
        random_state=0,
    ).fit(X)
    energy, x = model.energy_, torch.as_tensor(X)
    loss = PseudoLikelihood(energy).of_rows(x).mean() + 0.025 * energy.weight.square().sum()
    for grad in torch.autograd.grad(loss, list(energy.parameters())):
        assert grad.abs().max() < 2e-3


# ------------------------------------------------------------------------------
# Arguments
# ------------------------------------------------------------------------------


@rules
def test_real_columns_are_refused(learning):
    with pytest.raises(ValueError, match=r'real columns.*"pcd"'):
        RBMEstimator(2, learning=learning).fit(np.random.default_rng(0).normal(size=(30, 3)))


def test_chains_have_no_effect():
    model = RBMEstimator(2, learning="pseudo_likelihood", n_iter=2, random_state=0)
    X = bars(50, 0)
    expected = model.fit(X).components_
    with pytest.warns(UserWarning, match="chains, because.*pseudo_likelihood"):
        found = model.set_params(chains=FromData(n_steps=5)).fit(X).components_
    np.testing.assert_array_equal(found, expected)
    model.set_params(chains=None, sampler=Gibbs(1))
    assert model.fit(X).sample(3, random_state=0).shape == (3, 9)
    assert model.h_samples_.shape == (model.batch_size_, 2)
