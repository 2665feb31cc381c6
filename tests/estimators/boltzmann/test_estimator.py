"""Boltzmann machines as estimators: against sums over all states, closed forms and optimality."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from skebm import BoltzmannMachineDensity
from skebm.base import Batch
from skebm.energies import BoltzmannMachine, grid_edges
from skebm.estimators import SparsityPath
from skebm.objectives import EnumeratedLikelihood, PseudoLikelihood
from skebm.partition.exact import exact_draws
from skebm.samplers import Persistent
from skebm.training.owlqn import OWLQN
from tests.support.oracle import seeded
from tests.support.tiers import full, leading, only_full

LOCAL = ("pseudo_likelihood", "ratio_matching", "probability_flow")
UPPER = np.triu_indices(5, 1)


def machine(d=5, scale=0.8, seed=0, edges=None):
    J = scale * torch.randn(d, d, generator=seeded(seed), dtype=torch.float64).triu(1)
    if edges is not None:
        J = J * edges
    b = 0.4 * torch.randn(d, generator=seeded(seed + 1), dtype=torch.float64)
    return BoltzmannMachine(J + J.t(), b)


def rows(energy, n=2000, seed=0):
    with torch.no_grad():
        return exact_draws(energy, n, seeded(seed)).numpy()


def double(learning="auto", **params):
    return BoltzmannMachineDensity(learning, dtype="float64", random_state=0, **params)


def states(d):
    return np.array(list(itertools.product([0.0, 1.0], repeat=d)))


def frame(n=600, seed=0):
    """A bit, a category of three levels that follows it, and one of four that does not."""
    rng = np.random.default_rng(seed)
    bit = rng.integers(0, 2, n)
    follows = np.where(rng.random(n) < 0.7, 2 * bit, rng.integers(0, 3, n))
    return pd.DataFrame(
        {
            "size": np.array(["s", "m", "l"])[follows],
            "wet": bit,
            "town": pd.Categorical(rng.choice(list("abcd"), n)),
        }
    )


# ------------------------------------------------------------------------------
# Learning
# ------------------------------------------------------------------------------


def test_exact_learning_is_maximum_likelihood_with_the_penalty():
    X, l2 = rows(machine(), 300), 0.05
    i, j = UPPER
    t = np.hstack([states(5)[:, i] * states(5)[:, j], states(5)])
    moments = np.hstack([X[:, i] * X[:, j], X]).mean(0)

    def loss(theta):
        return np.logaddexp.reduce(t @ theta) - moments @ theta + l2 / 2 * (theta[:10] ** 2).sum()

    best = minimize(loss, np.zeros(15), options={"gtol": 1e-8}).x
    model = double("exact", l2=l2).fit(X)
    assert_allclose(model.couplings_[UPPER], best[:10], atol=2e-3)
    assert_allclose(model.bias_, best[10:], atol=2e-3)
    penalty = l2 / 2 * (model.couplings_[UPPER] ** 2).sum()
    assert -model.score(X) + penalty == pytest.approx(loss(best), abs=1e-6)


@pytest.mark.parametrize("learning", LOCAL)
def test_local_rules_recover_the_machine(learning):
    energy = machine()
    model = double(learning).fit(rows(energy, 20_000))
    error = model.standard_errors(rows(energy, 20_000)).couplings[UPPER]
    off = (model.couplings_ - energy.coupling.detach().numpy())[UPPER]
    assert np.abs(off / error).max() < 4
    assert model.learning_reason_ == "as given"


@full
def test_pcd_ends_near_maximum_likelihood():
    X = rows(machine(), 2000)
    exact, chains = double("exact", l2=0.001).fit(X), double("pcd", l2=0.001).fit(X)
    assert exact.score(X) - chains.score(X) < 0.005


@full
def test_pcd_has_the_ridge_penalty():
    X = rows(machine(), 300)
    exact, chains = double("exact", l2=0.2).fit(X), double("pcd", l2=0.2).fit(X)
    assert_allclose(chains.couplings_, exact.couplings_, atol=0.05)


def test_perturb_and_map_is_exact_for_independent_columns():
    """Without couplings the draws are exact, and so is learning."""
    X = (np.random.default_rng(0).random((4000, 4)) < [0.2, 0.5, 0.7, 0.9]).astype(float)
    model = double("perturb_and_map", edges=np.zeros((4, 4)), l2=0.0, n_iter=8).fit(X)
    assert_allclose(1 / (1 + np.exp(-model.bias_)), X.mean(0), atol=0.03)
    with pytest.raises(ValueError, match="perturb-and-MAP"):
        model.standard_errors(X)


def test_the_pseudo_likelihood_of_a_pair_is_logistic_regression():
    """With one column given, its conditional is a regression; fields and coupling agree."""
    X = rows(machine(2, 1.5), 5000)
    model = double("pseudo_likelihood", l2=0.0).fit(X)
    regressions = [LogisticRegression(C=np.inf).fit(X[:, [1 - i]], X[:, i]) for i in (0, 1)]
    for i, regression in enumerate(regressions):  # two saturated models of a 2 x 2 table
        assert model.couplings_[0, 1] == pytest.approx(regression.coef_[0, 0], abs=2e-3)
        assert model.bias_[i] == pytest.approx(regression.intercept_[0], abs=2e-3)


@pytest.mark.parametrize(
    ("learning", "objective"),
    [("exact", EnumeratedLikelihood), ("pseudo_likelihood", PseudoLikelihood)],
)
def test_the_l1_penalty_is_at_its_optimum(learning, objective):
    """At zero couplings the gradient is below the penalty, at others it is the penalty."""
    X, l1 = rows(machine(6), 1000), 0.03
    model = double(learning, l1=l1, l2=0.0).fit(X)
    plain = objective(model.energy_)
    plain.gradients(Batch(torch.as_tensor(X)), None, seeded(0))
    weight, grad = model.energy_.weight.detach(), model.energy_.weight.grad
    zero = weight == 0
    assert 0 < int(zero.sum()) < len(weight)
    assert grad[zero].abs().max() <= l1 + 1e-3
    assert_allclose(grad[~zero], -l1 * weight[~zero].sign(), atol=1e-3)
    assert plain.energy.bias.grad.abs().max() < 1e-3


@pytest.mark.parametrize("l2", [0.01, 100.0])
def test_columns_that_hardly_vary_do_not_slow_down_a_strong_ridge(l2):
    """Steps are scaled by the curvature of the penalty as well as by that of the rows."""
    rng = np.random.default_rng(0)
    shares = np.geomspace(0.001, 0.5, 12)
    X = torch.as_tensor((rng.random((2000, 12)) < shares).astype(float))
    X[:, 10] = torch.where(X[:, 11] > 0, X[:, 10], X[:, 9])
    none = torch.zeros(12, 12, dtype=torch.float64)
    energy = BoltzmannMachine(none, X.mean(0).logit(1e-4), edges=torch.ones(12, 12).bool())
    objective = PseudoLikelihood(energy, l2=l2)
    optimizer = OWLQN(energy.parameters())
    optimizer.coordinates = objective.coordinates(Batch(X))
    for _ in range(30):
        optimizer.step(lambda: objective.gradients(Batch(X), None, seeded(0)).value)
    objective.gradients(Batch(X), None, seeded(0))
    gradients = torch.cat([p.grad for p in energy.parameters()])
    assert gradients.abs().max() < 1e-4


def test_auto_says_what_it_chose():
    assert double(l2=0.01).fit(rows(machine())).learning_ == "exact"
    X = (np.random.default_rng(0).random((60, 25)) < 0.5).astype(float)
    model = double(l2=0.01, partition=None).fit(X)
    assert model.learning_ == "pseudo_likelihood"
    assert "more than 2e+07 terms" in model.learning_reason_
    with pytest.raises(ValueError, match=r'learning="exact" would sum .* terms'):
        double("exact").fit(np.hstack([X, X]))


def test_independent_columns_are_not_made_worse():
    """Held-out rows choose a penalty at which there is nothing to couple."""
    rng = np.random.default_rng(0)
    X, X_new = ((rng.random((n, 6)) < 0.3).astype(float) for n in (60, 5000))
    p = (X.sum(0) + 0.5) / 61
    independent = (X_new * np.log(p) + (1 - X_new) * np.log1p(-p)).sum(1).mean()
    assert double().fit(X).score(X_new) > independent - 0.02


def test_weights_are_repeated_rows():
    X, weight = rows(machine(), 200), np.arange(200) % 3
    weighted = double("exact", l2=0.01).fit(X, sample_weight=weight)
    repeated = double("exact", l2=0.01).fit(X.repeat(weight, 0))
    assert_allclose(weighted.couplings_, repeated.couplings_, atol=1e-3)
    assert_allclose(
        weighted.standard_errors(X, weight).couplings,
        repeated.standard_errors(X.repeat(weight, 0)).couplings,
        atol=1e-3,
    )


# ------------------------------------------------------------------------------
# Spins
# ------------------------------------------------------------------------------


def test_spins_and_bits_are_one_model():
    X = rows(machine(), 800)
    bits, spins = double("exact", l2=0.0).fit(X), double("exact", l2=0.0).fit(2 * X - 1)
    assert (bits.coding_, spins.coding_) == ("binary", "spin")
    assert_allclose(spins.score_samples(2 * X - 1), bits.score_samples(X), atol=1e-6)
    assert_allclose(4 * spins.couplings_, bits.couplings_, atol=1e-6)
    S = 2 * states(5) - 1
    expected = -S @ spins.bias_ - ((S @ spins.couplings_) * S).sum(1) / 2
    found = spins.energy(S)
    assert_allclose(found - found[0], expected - expected[0], atol=1e-6)
    assert set(np.unique(spins.sample(50, random_state=0))) == {-1.0, 1.0}


def test_penalties_are_of_couplings_in_their_coding():
    X = rows(machine(), 500)
    bits, spins = double("exact", l2=0.01).fit(X), double("exact", l2=0.16).fit(2 * X - 1)
    assert_allclose(4 * spins.couplings_, bits.couplings_, atol=1e-5)
    assert spins.l2_ == pytest.approx(0.16)
    sparse, also = double("exact", l1=0.02).fit(X), double("exact", l1=0.08).fit(2 * X - 1)
    assert_array_equal(sparse.graph_, also.graph_)


def test_other_values_than_spins_are_refused():
    X = 2 * rows(machine(), 50) - 1
    with pytest.raises(ValueError, match="columns 1"):
        double(coding="spin").fit(np.where(np.arange(5) == 1, 0.5, X))
    model = double(l2=0.01).fit(X)
    with pytest.raises(ValueError, match="other than -1 and 1"):
        model.score_samples((X + 1) / 2)


# ------------------------------------------------------------------------------
# Categories
# ------------------------------------------------------------------------------


def test_categories_are_levels_of_a_potts_model():
    model = double(l2=0.01).fit(frame())
    assert model.entries_[:4] == [("size", "l"), ("size", "m"), ("size", "s"), ("wet", None)]
    J, b = model.couplings_, model.bias_
    assert_allclose(J[:3].sum(0), 0, atol=1e-9)  # zero sum over the levels of a category
    assert_allclose(b[:3].sum(), 0, atol=1e-9)
    assert not J[:3, :3].any()
    assert model.strengths_[0, 1] > 5 * model.strengths_[0, 2]
    assert_array_equal(model.graph_, ~np.eye(3, dtype=bool))


def test_probabilities_of_levels_are_those_of_the_joint():
    """All rows of the table, their energies from the reported couplings, and the conditionals."""
    model = double(l2=0.01).fit(frame())
    every = pd.DataFrame(
        itertools.product(["l", "m", "s"], [0, 1], list("abcd")), columns=["size", "wet", "town"]
    ).astype({"town": pd.CategoricalDtype(list("abcd"))})
    log_p = model.score_samples(every)
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-9)
    one_hot = np.column_stack(
        [every["size"] == level for level in "lms"]
        + [every["wet"]]
        + [every["town"] == level for level in "abcd"]
    ).astype(float)
    energy = -one_hot @ model.bias_ - ((one_hot @ model.couplings_) * one_hot).sum(1) / 2
    assert_allclose(energy - energy[0], log_p[0] - log_p, atol=1e-9)
    table = np.exp(log_p).reshape(3, 2, 4)
    given = model.conditional_proba(every).reshape(3, 2, 4, 8)
    assert_allclose(given[0, :, :, 1], table[1] / table.sum(0), atol=1e-9)
    assert_allclose(given[:, 0, :, 3], table[:, 1] / table.sum(1), atol=1e-9)
    assert_allclose(given[:, :, 0, 6], table[:, :, 2] / table.sum(2), atol=1e-9)


def test_frames_come_back_as_frames():
    X = frame()
    model = double(l2=0.01).fit(X)
    drawn = model.sample(500, random_state=0)
    assert list(drawn.columns) == list(X.columns)
    assert drawn.dtypes.equals(X.dtypes)
    share = drawn.groupby("wet", observed=True)["size"].value_counts(normalize=True)
    assert share[(0, "s")] > 0.6
    holes = X.assign(size=[None] * 100 + X["size"].tolist()[100:])
    filled = model.impute(holes.iloc[:100], random_state=0)
    assert (filled["size"] == X["size"][:100]).mean() > 0.5
    assert filled["wet"].tolist() == X["wet"][:100].tolist()


def test_numbers_beside_categories_are_refused_by_name():
    with pytest.raises(ValueError, match="Column 'age' holds numbers"):
        double().fit(frame().assign(age=np.linspace(0, 90, 600)))
    with pytest.raises(ValueError, match="is for bits and spins"):
        double("perturb_and_map").fit(frame())
    with pytest.raises(ValueError, match="without categories"):
        double(coding="spin").fit(frame())


# ------------------------------------------------------------------------------
# Graphs
# ------------------------------------------------------------------------------


def test_only_edges_are_coupled():
    edges = grid_edges(2, 3).numpy()
    model = double(edges=edges, l2=0.01).fit(rows(machine(6), 500))
    assert_array_equal(model.graph_, edges)
    assert_array_equal(model.couplings_ != 0, edges)


def test_an_empty_graph_is_independent_columns():
    X = rows(machine(), 400)
    model = double(edges=np.zeros((5, 5))).fit(X)
    p = X.mean(0)
    expected = (X * np.log(p) + (1 - X) * np.log1p(-p)).sum(1)
    assert_allclose(model.score_samples(X), expected, atol=1e-4)


@pytest.mark.parametrize("learning", ["exact", "pseudo_likelihood"])
def test_a_path_finds_the_graph(learning):
    edges = grid_edges(2, 3)
    energy = BoltzmannMachine.from_spins(0.5 * edges.double())
    model = double(learning, l1="ebic").fit(2 * rows(energy, 5000) - 1)
    assert_array_equal(model.graph_, edges.numpy())
    assert model.l1_ == 0.0  # the couplings of the graph are not shrunk
    assert np.abs(model.couplings_[edges.numpy()] - 0.5).max() < 0.1
    path = model.path_
    assert path.n_edges[path.chosen] == 7
    assert path.criterion[path.chosen] == path.criterion.min()
    assert (np.diff(path.l1) < 0).all()
    assert path.n_edges[0] == 0


def test_held_out_rows_choose_a_graph_that_has_the_true_one():
    edges = grid_edges(2, 3)
    energy = BoltzmannMachine.from_spins(0.5 * edges.double())
    X = 2 * rows(energy, 500) - 1
    model = double("pseudo_likelihood", l1=SparsityPath(criterion="cv", n_values=8)).fit(X)
    assert (model.graph_ | ~edges.numpy()).all()
    search = GridSearchCV(double(), {"l1": ["ebic", 0.0], "l1__gamma": [0.0]}, cv=2)
    assert search.estimator.get_params()["l1"] == 0.0
    assert double(l1=SparsityPath(n_values=3)).fit(X).path_.l1.shape <= (3,)


@pytest.mark.parametrize("criterion", leading(1, ["ebic", "cv"]))
def test_a_path_has_the_graphs_of_its_penalties(criterion):
    """Those of fits with the l1 penalty alone."""
    X = rows(machine(seed=1), 200)
    path = double("exact", l1=SparsityPath(criterion=criterion, n_values=4, ratio=0.05))
    path = path.fit(X).path_
    assert len(set(path.n_edges)) == 4
    for l1, n_edges in zip(path.l1, path.n_edges, strict=False):
        couplings = double("exact", l1=l1, l2=0.0).fit(X).couplings_
        assert np.count_nonzero(couplings) == 2 * n_edges


def test_no_rows_tell_of_edges():
    X = np.tile([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], (10, 1))
    assert not double(l1=SparsityPath(n_values=5)).fit(X).graph_.any()


def test_the_criterion_counts_couplings_that_rows_determine():
    """Four of the nine weights of a pair of three levels."""
    rng, n = np.random.default_rng(0), 1000
    first = rng.integers(0, 3, n)
    second = np.where(rng.random(n) < 0.5, first, rng.integers(0, 3, n))
    X = pd.DataFrame(np.array(list("abc"))[np.stack([first, second, rng.integers(0, 3, n)], 1)])
    model = BoltzmannMachineDensity(l1="ebic", learning="exact", random_state=0).fit(X)
    assert len(model.graph_) == 3
    assert model.graph_.sum() == 2  # one edge
    price = 4 * (np.log(n) + 2 * np.log(3))
    expected = -2 * model.score_samples(X).sum() + price
    assert_allclose(min(model.path_.criterion), expected, atol=1)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (np.triu(np.ones((5, 5)), 1), r"symmetric, and of \(0, 1\) and \(1, 0\)"),
        (np.ones((4, 4)), r"shape \(5, 5\)"),
        (np.full((5, 5), np.nan), "booleans or finite numbers"),
        (np.full((5, 5), "yes"), "booleans or finite numbers"),
    ],
)
def test_edges_that_make_no_sense_are_refused(edges, message):
    with pytest.raises(ValueError, match=message):
        double(edges=edges).fit(rows(machine(), 50))


def test_l1_with_chains_is_refused():
    with pytest.raises(ValueError, match="l1=0.1 is for rules without chains"):
        double("pcd", l1=0.1).fit(rows(machine(), 50))


def test_arguments_without_effect_warn():
    with pytest.warns(UserWarning, match='chains, because.*learning="exact"'):
        double("exact", l2=0.01, chains=Persistent()).fit(rows(machine(), 50))


# ------------------------------------------------------------------------------
# Standard errors
# ------------------------------------------------------------------------------


def test_errors_of_the_likelihood_are_the_inverse_information():
    X = rows(machine(), 500)
    model = double("exact", l2=0.0).fit(X)
    i, j = UPPER
    t = np.hstack([states(5)[:, i] * states(5)[:, j], states(5)])
    p = np.exp(model.score_samples(states(5)))
    information = (t - p @ t).T @ ((t - p @ t) * p[:, None])
    expected = np.sqrt(np.diag(np.linalg.inv(information)) / 500)
    found = model.standard_errors(X)
    assert_allclose(found.couplings[UPPER], expected[:10], rtol=1e-5)
    assert_allclose(found.bias, expected[10:], rtol=1e-5)
    spins = double("exact", l2=0.0).fit(2 * X - 1).standard_errors(2 * X - 1)
    assert_allclose(spins.couplings, found.couplings / 4, rtol=1e-4)


@full
@pytest.mark.parametrize("learning", ["exact", *LOCAL])
def test_errors_are_those_over_repeated_samples(learning):
    energy, off, stated = machine(), [], []
    for seed in range(200):
        X = rows(energy, 2000, seed)
        model = double(learning, l2=0.0).fit(X)
        off.append((model.couplings_ - energy.coupling.detach().numpy())[UPPER])
        stated.append(model.standard_errors(X).couplings[UPPER])
    spread = np.array(off).std(0, ddof=1)
    assert_allclose(np.median(stated, 0), spread, rtol=0.2)  # 5 % of error of a spread, ten of them


@full
@pytest.mark.parametrize("learning", ["pseudo_likelihood", only_full("exact")])
def test_errors_of_categories_are_of_couplings_that_sum_to_zero(learning):
    """The first coupling of two categories, over models of resampled rows."""
    X = frame(3000)[["size", "town"]]
    model = double(learning, l2=0.0).fit(X)
    stated = model.standard_errors(X)
    assert stated.couplings.shape == (7, 7)
    assert (stated.couplings[:3, 3:] > 0).all()
    found = [
        double(learning, l2=0.0).fit(X.sample(frac=1, replace=True, random_state=seed)).couplings_
        for seed in range(40)
    ]
    spread = np.std(found, 0, ddof=1)[:3, 3:]
    assert_allclose(spread.mean(), stated.couplings[:3, 3:].mean(), rtol=0.15)


@full
def test_pcd_errors_come_from_draws():
    X = rows(machine(), 1000)
    drawn = double("pcd", l2=0.001).fit(X).standard_errors(X)
    exact = double("exact", l2=0.001).fit(X).standard_errors(X)
    assert_allclose(drawn.couplings[UPPER], exact.couplings[UPPER], rtol=0.15)


# ------------------------------------------------------------------------------
# Fitted models
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_at_a_temperature_have_the_power_of_the_density(temperature):
    model = double("exact", l2=0.01).fit(rows(machine(4), 500))
    log_p = model.score_samples(states(4)) / temperature
    p = np.exp(log_p - np.logaddexp.reduce(log_p))
    drawn = model.sample(40_000, random_state=0, temperature=temperature)
    share = np.bincount((drawn @ [8, 4, 2, 1]).astype(int), minlength=16) / 40_000
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / 40_000) + 1e-12).all()
    for wrong in (0, -1.0, np.nan, "hot"):
        with pytest.raises(ValueError, match="temperature must be a positive number"):
            model.sample(temperature=wrong)


def test_chains_sample_where_states_are_too_many(monkeypatch):
    model = double("exact", l2=0.01).fit(rows(machine(4), 500))
    exact = model.sample(4000, random_state=0).mean(0)
    monkeypatch.setattr("skebm.estimators.boltzmann.estimator.CHEAP_COST", 1)
    for temperature in (1.0, 1.001):  # from training rows, and from uniform ones
        found = model.sample(4000, random_state=0, n_steps=30, temperature=temperature).mean(0)
        assert_allclose(found, exact, atol=0.05)


def test_imputed_bits_have_their_conditional_probability():
    model = double("exact", l2=0.01).fit(rows(machine(), 500))
    row = np.array([[1.0, 0.0, np.nan, 1.0, 1.0]])
    p = model.conditional_proba(np.nan_to_num(row))[0, 2]
    filled = model.impute(np.tile(row, (4000, 1)), random_state=0, n_steps=2)
    assert filled[:, 2].mean() == pytest.approx(p, abs=0.04)
    assert_array_equal(filled[:, [0, 1, 3, 4]], np.tile(row, (4000, 1))[:, [0, 1, 3, 4]])


@full
def test_conditionals_make_the_pseudo_likelihood():
    X = rows(machine(), 50)
    model = double("exact").fit(X)
    p = model.conditional_proba(X)
    assert_allclose(
        model.pseudo_likelihood(X), np.log(np.where(X == 1, p, 1 - p)).sum(1), atol=1e-9
    )


def test_streaming_and_warm_starts_go_on():
    X = rows(machine(), 1000)
    model = double("pseudo_likelihood", learning_rate=0.05)
    for _ in range(20):
        model.partial_fit(X)
    assert double("pseudo_likelihood").fit(X).score(X) - model.score(X) < 0.02
    warm = double("exact", warm_start=True, l2=0.01).fit(X)
    assert warm.fit(X).n_iter_ <= 2 * 60
    with pytest.raises(ValueError, match="edges"):
        warm.set_params(edges=np.eye(5, k=1) + np.eye(5, k=-1)).fit(X)


# ------------------------------------------------------------------------------
# Rows that are hard
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", leading(1, ["pseudo_likelihood", "exact", "pcd"]))
def test_a_column_with_one_state_is_named_and_finite(learning):
    X = rows(machine(), 200)
    X[:, 3] = 1.0
    with pytest.warns(UserWarning, match="columns 3 never occur"):
        model = double(learning).fit(X)
    assert model.bias_[3] == pytest.approx(np.log(200.5 / 0.5), rel=1e-5)
    assert not model.graph_[3].any()
    assert np.isfinite(model.score_samples(1 - X)).all()


def test_columns_that_determine_each_other():
    X = rows(machine(), 300)
    X[:, 4] = X[:, 0]
    model = double().fit(X)
    assert 4 < model.couplings_[0, 4] < 20
    assert model.conditional_proba(X[X[:, 0] == 1])[:, 4].min() > 0.9
    with pytest.warns(ConvergenceWarning, match="columns 0 and 4 grows without limit"):
        double("pseudo_likelihood", l2=0.0, n_iter=3000).fit(X)


@pytest.mark.parametrize("n", leading(1, [2, 3, 6]))
def test_few_rows(n):
    X = rows(machine(), n, seed=3)
    X[0], X[1] = 0, 1  # both states of every column
    model = double().fit(X)
    assert np.isfinite(model.score(X))
    assert np.abs(model.couplings_).max() < 5


def test_copies_of_rows_and_of_columns():
    X = np.repeat([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], 10, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = double().fit(np.hstack([X, X]))
    assert np.isfinite(model.score_samples(np.hstack([X, 1 - X]))).all()
