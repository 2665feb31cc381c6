"""DeepBoltzmannMachine against enumeration, and what it does with unusual tables and settings."""

import copy
import functools
import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skebm import DeepBoltzmannMachine, RBMEstimator
from skebm.estimators import MeanField
from skebm.estimators.base import LogZ
from skebm.estimators.deep import meanfield
from skebm.estimators.deep.family import hidden_entries
from skebm.estimators.deep.layerwise import Factors, Greedy, pretrain, train_pair
from skebm.estimators.deep.rows import FIRST_MEAN
from skebm.partition import Exact
from skebm.samplers import ParallelTempering
from skebm.training.rows import Rows
from tests.support.callbacks import Interrupt
from tests.support.oracle import bits, make_rbm
from tests.support.tables import binary_rows
from tests.support.tiers import full, leading, only_full

STATES = np.array(list(itertools.product((0.0, 1.0), repeat=4)))


def switches(n=300, d=4, noise=0.1, seed=0):
    return binary_rows(n, d, seed, noise)


def machine(sizes=(3, 2), **params):
    return DeepBoltzmannMachine(sizes, **{"n_iter": 20, "random_state": 0} | params)


@functools.cache
def shared(sizes, params):
    """A fit to the usual rows; not to be changed."""
    return _fitted(sizes, None, dict(params))


def fitted(sizes=(3, 2), X=None, **params):
    """A fit without its warnings, shared between tests where it may be."""
    simple = all(isinstance(value, str | int | None) for value in params.values())
    if X is None and simple and isinstance(sizes, tuple) and "warm_start" not in params:
        return shared(sizes, tuple(params.items()))
    return _fitted(sizes, X, params)


def _fitted(sizes, X, params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return machine(sizes, **params).fit(switches() if X is None else X)


def log_joint(model, x):
    """log p(x) of rows of bits by the sum over all states of all layers, with weights_ alone."""
    sizes, weights, biases = model.layer_sizes_, model.weights_, model.intercepts_
    h = bits(sum(sizes[1:])).numpy()
    layers = np.split(h, np.cumsum(sizes[1:-1]), axis=1)
    hidden = sum(layer @ b for layer, b in zip(layers, biases[1:], strict=True))
    for w, below, above in zip(weights[1:], layers, layers[1:], strict=False):
        hidden = hidden + np.einsum("ni,ji,nj->n", below, w, above)
    return logsumexp(hidden + x @ biases[0][:, None] + x @ weights[0].T @ layers[0].T, axis=1)


@pytest.mark.parametrize("sizes", [only_full((3,)), (3, 2), only_full((3, 2, 2))])
@pytest.mark.parametrize("pretraining", leading(1, ["layerwise", None]))
def test_likelihoods_are_exact_for_small_layers(sizes, pretraining):
    model = fitted(sizes, pretraining=pretraining)
    log_p = log_joint(model, STATES)
    assert model.bound_kind_ == "exact"
    assert model.log_partition_ == pytest.approx(logsumexp(log_p), abs=1e-4)
    assert_allclose(model.score_samples(STATES), log_p - logsumexp(log_p), atol=1e-4)
    assert np.exp(model.score_samples(STATES)).sum() == pytest.approx(1, abs=1e-4)
    assert model._recipe.family.pretraining == pretraining
    # It has learned something; three layers of few units learn slowly from the top down.
    base = fitted(sizes, n_iter=0, pretraining=None).score(switches(seed=1))
    assert model.score(switches(seed=1)) > base + (0.05 if len(sizes) < 3 else 0.02)


@full
@pytest.mark.parametrize("pretraining", leading(1, ["layerwise", None]))
def test_bounds_are_lower_and_tighter_with_more_draws(pretraining, monkeypatch):
    model = fitted((4, 4), pretraining=pretraining)
    exact = model.score_samples(STATES)
    monkeypatch.setattr(meanfield, "EXACT_TERMS", 0)
    assert model.bound_kind_ == "lower"
    mean_field = model.posterior_means(STATES).bound - model.log_partition_
    assert (mean_field <= exact + 1e-5).all()
    by_draws = model.score_samples(STATES)
    assert (by_draws >= mean_field - 0.1).all()
    assert by_draws.mean() >= mean_field.mean() - 1e-3
    assert (by_draws <= exact + 0.1).all()
    bounds = fitted((4, 4), pretraining=pretraining, mean_field=MeanField(n_draws=0))
    assert_allclose(bounds.score_samples(STATES), mean_field, atol=1e-5)


def test_posterior_means_of_one_layer_are_exact_and_others_near():
    one = fitted((3,))
    h = one.posterior_means(STATES).layers[0]
    logits = STATES @ one.weights_[0].T + one.intercepts_[1]
    assert_allclose(h, 1 / (1 + np.exp(-logits)), atol=1e-6)
    model = fitted((3, 2))
    found = model.posterior_means(STATES)
    assert [layer.shape for layer in found.layers] == [(16, 3), (16, 2)]
    assert found.converged.all()
    assert (found.residual <= 1e-3).all()
    assert_allclose(model.transform(STATES), np.hstack(found.layers), atol=1e-7)
    assert list(model.get_feature_names_out())[:2] == [
        "deepboltzmannmachine0",
        "deepboltzmannmachine1",
    ]


def test_one_layer_is_an_rbm():
    model, rbm = fitted((3,)), RBMEstimator(3, n_iter=1, random_state=0, base="independent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rbm.fit(switches())
    rbm.components_, rbm.intercept_hidden_ = model.weights_[0], model.intercepts_[1]
    rbm.intercept_visible_ = model.intercepts_[0]
    assert_allclose(model.energy(STATES), rbm.energy(STATES), atol=1e-5)
    assert_allclose(model.score_samples(STATES), rbm.score_samples(STATES), atol=1e-5)
    assert_allclose(model.transform(STATES), rbm.transform(STATES), atol=1e-6)


def test_samples_follow_the_model():
    model = fitted((3, 2))
    X = model.sample(20_000, random_state=0)
    codes = (X @ (1 << np.arange(4))).astype(int)
    order = (STATES @ (1 << np.arange(4))).astype(int)
    share = np.bincount(codes, minlength=16)[order] / len(X)
    assert_allclose(share, np.exp(model.score_samples(STATES)), atol=0.015)
    cold = model.sample(2000, random_state=0, temperature=0.2)
    assert model.score_samples(cold).mean() > model.score_samples(X).mean()


def test_imputations_follow_the_conditional():
    model = fitted((3, 2))
    known = np.array([[1.0, 0.0, np.nan, np.nan]])
    log_p = model.score_samples(STATES)
    rows = (STATES[:, 0] == 1) & (STATES[:, 1] == 0)
    p = np.exp(log_p[rows] - logsumexp(log_p[rows]))
    mean = p @ STATES[rows]
    found = model.impute(np.repeat(known, 4000, 0), random_state=0)
    assert_allclose(found.mean(0), mean, atol=0.04)
    assert_allclose(model.impute(known, 0, how="mean", n_steps=4000)[0], mean, atol=0.05)
    assert set(model.impute(known, 0, how="mode")[0]) <= {0.0, 1.0}
    assert model.score_samples(known)[0] == pytest.approx(logsumexp(log_p[rows]), abs=1e-3)
    with pytest.raises(ValueError, match="impute first"):
        model.posterior_means(known)
    with pytest.raises(ValueError, match="how must be"):
        model.impute(known, how="median")


@pytest.mark.parametrize("sizes", leading(1, [(3, 2), (3,), (3, 2, 2)]))
def test_missing_entries_in_training(sizes):
    X = switches()
    holes = np.random.default_rng(1).random(X.shape) < 0.2
    model = fitted(sizes, np.where(holes, np.nan, X))
    assert np.isfinite(model.transform(np.where(holes, np.nan, X))).all()
    assert abs(model.score(X) - fitted(sizes).score(X)) < 0.3


def mixed_frame():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 250)
    return pd.DataFrame(
        {
            "bit": np.where(rng.random(250) < 0.1, 1 - kind, kind),
            "colour": np.where(kind == 1, "red", "blue"),
            "size": 10 + 3 * kind + rng.normal(size=250),
        }
    )


def test_frames_with_all_kinds_of_columns():
    frame = mixed_frame()
    model = fitted((4, 3), frame, base="independent", n_iter=100)
    assert model.sample(5, random_state=0).columns.tolist() == list(frame)
    before = fitted((4, 3), frame, base="independent", n_iter=0)
    assert model.score(frame) > before.score(frame)
    with pytest.raises(ValueError, match="are categories"):
        model.to_module()
    with pytest.raises(ValueError, match=r"purple|unseen|NaN"):
        model.posterior_means(frame.assign(colour="purple"))


@full
def test_frames_with_holes():
    frame = mixed_frame()
    model = fitted((4, 3), frame, n_iter=60)
    holes = frame.copy()
    holes.loc[::7, "colour"] = None
    holes.loc[::5, "size"] = np.nan
    filled = model.impute(holes, random_state=0)
    assert filled.notna().all().all()
    assert (filled["colour"][::7] == frame["colour"][::7]).mean() > 0.6
    assert np.isfinite(fitted((4, 3), holes).score(holes))


@full
def test_sparse_rows_are_dense_rows():
    X = switches()
    dense, sparse = fitted(X=X), fitted(X=sp.csr_array(X))
    assert_array_equal(dense.score_samples(X), sparse.score_samples(sp.csr_array(X)))


@full
def test_the_module_starts_inference():
    model = fitted((3, 2))
    module = model.to_module()
    h = torch.sigmoid(torch.as_tensor(STATES).float() @ (2 * torch.tensor(model.weights_[0])).T
                      + torch.tensor(model.intercepts_[1]))  # fmt: skip
    torch.testing.assert_close(module[:2](torch.as_tensor(STATES).float()), h)
    assert not model.to_module(4)(torch.as_tensor(STATES).float()).any()  # as likely at first


def test_the_module_takes_numbers_as_they_are_and_leaves_the_global_generator():
    rng = np.random.default_rng(0)
    X = 100 + 5 * rng.normal(size=(250, 3)) @ rng.normal(size=(3, 3))
    model = fitted((4, 3), X, n_iter=2)
    before = torch.get_rng_state()
    module = model.to_module()
    assert torch.equal(torch.get_rng_state(), before)
    energy, rows = model.energy_, model._rows(X).block(0, 250)[:, :3]
    field = energy.hidden_field(torch.nn.functional.pad(rows, (0, 3)))  # h2 is 0
    expected = torch.sigmoid(2 * field - energy.hidden_bias).detach()
    found = module[:2](torch.as_tensor(X).float())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------
# Greedy start
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("factors", leading(1, [Factors(2, 1), Factors(1, 2), Factors(1, 1)]))
def test_chains_of_two_layers_have_the_moments_of_the_rows(factors):
    X, generator = torch.as_tensor(switches(400)), torch.Generator().manual_seed(0)
    rbm = make_rbm(4, 3, scale=0.3)
    rows = Rows(X, dtype=torch.float64, device=torch.device("cpu"))
    train_pair(rbm, rows, factors, Greedy(250, 40, 0.3), generator)
    v, found = X.repeat(25, 1), torch.zeros(4, 4, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(30):
            field = rbm.hidden_bias + factors.up * v @ rbm.weight.t()
            h = torch.bernoulli(field.sigmoid(), generator=generator)
            v = rbm.visible(factors.down * h).sample(generator).to(X)
            found += v.t() @ v / len(v) / 30
    torch.testing.assert_close(found, X.t() @ X / len(X), atol=0.04, rtol=0)


def test_greedy_training_writes_all_layers():
    model = copy.deepcopy(fitted((3, 3, 2), n_iter=1, pretraining=None))
    energy, layers = model.energy_, model._recipe.family.layers
    rows = model._recipe.table.rows(switches(), device=torch.device("cpu"), dtype=torch.float32)
    before = [w.clone() for w in layers.weights(energy)]
    with torch.no_grad():
        pretrain(
            energy, layers, model.base_, rows, Greedy(3, 50, 0.1), torch.Generator().manual_seed(0)
        )
    for old, new in zip(before, layers.weights(energy), strict=True):
        assert not torch.equal(old, new)
        assert new.isfinite().all()
    assert not energy.weight[~layers.mask()].any()


def test_rows_have_hidden_entries_that_are_missing():
    model = fitted((3, 2))
    table = model._recipe.table
    rows = table.rows(switches(10), device=torch.device("cpu"), dtype=torch.float32)
    table.prepare(rows)
    assert rows.n_columns == 6
    assert_array_equal(rows.known.all(0), [True] * 4 + [False] * 2)
    assert_allclose(rows.block(0, 10)[:, 4:], FIRST_MEAN)
    assert hidden_entries(model._recipe.table).without(rows).n_columns == 4


# ------------------------------------------------------------------------------
# Settings and tables
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", leading(4, [(), (3, 0), (2.5, 2), (3, True), (0,), (-1,), [[3, 2]], ("3",), (np.nan,)])
)
def test_layers_that_are_none_are_refused(sizes):
    with pytest.raises(ValueError, match="hidden_layer_sizes"):
        machine(sizes).fit(switches())


@full
def test_layers_may_be_given_in_several_ways():
    for sizes in (3, [3, 2], np.array([3, 2]), (np.int64(3), 2)):
        assert fitted(sizes, n_iter=1).layer_sizes_[:2] == (4, 3)


@pytest.mark.parametrize(
    "params",
    [
        {"mean_field": "fast"},
        only_full({"mean_field__tol": 0.0}),
        {"mean_field__n_draws": -1},
        {"mean_field__max_steps": 0},
        {"pretraining": "greedy"},
        {"base": "kernel"},
        {"learning_rate": 0},
        {"chains": "data"},
    ],
)
def test_bad_settings_are_refused(params):
    with pytest.raises((ValueError, TypeError), match=next(iter(params)).partition("__")[2] or "'"):
        machine().set_params(**params).fit(switches())


def test_too_many_units_are_refused():
    with pytest.raises((ValueError, MemoryError), match="hidden_layer_sizes"):
        machine((10**8, 10**8)).fit(switches())


@pytest.mark.parametrize(
    "X",
    leading(
        3,
        [
            np.ones((30, 1)),
            np.eye(4)[:2],
            1e30 * np.random.default_rng(0).normal(size=(40, 2)),
            np.random.default_rng(0).normal(size=(250, 2)),
            np.random.default_rng(0).random((250, 2)),
        ],
    ),
)
def test_unusual_tables(X):
    model = fitted((3, 2), X)
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.transform(X)).all()


@pytest.mark.parametrize("X", [np.full((5, 2), np.nan), np.full((5, 2), np.inf), np.ones((1, 3))])
def test_impossible_tables_are_refused(X):
    with pytest.raises(ValueError, match="missing|infinity|minimum"):
        machine().fit(X)


def test_mean_field_that_does_not_converge_warns_with_the_residual():
    X = switches()
    with pytest.warns(ConvergenceWarning, match="has not converged in 1 steps.*up to"):
        model = machine(mean_field=MeanField(max_steps=1, tol=1e-9), n_iter=5).fit(X)
    with pytest.warns(ConvergenceWarning, match="Raise max_steps"):
        found = model.posterior_means(X)
    assert not found.converged.all()
    exact = fitted(n_iter=5).score_samples(X)
    assert (found.bound - model.log_partition_ <= exact + 0.5).all()


def test_what_has_no_effect_warns():
    with pytest.warns(UserWarning, match="mean_field.*single layer"):
        machine(3, mean_field=MeanField(n_draws=3), n_iter=1).fit(switches(30))
    with pytest.warns(UserWarning, match="pretraining.*partial_fit"):
        machine(pretraining="layerwise").partial_fit(switches(30))


@full
def test_other_layers_cannot_go_on():
    model = fitted(warm_start=True)
    with pytest.raises(ValueError, match="previous fit"):
        model.set_params(hidden_layer_sizes=(3, 3)).fit(switches())


def test_ctrl_c_keeps_a_usable_model():
    model = machine(net_params={"callbacks": [Interrupt(7)]}, pretraining="layerwise")
    with pytest.raises(KeyboardInterrupt):
        model.fit(switches())
    assert np.isfinite(model.score(switches()))


@pytest.mark.parametrize("base", ["independent", only_full("chow-liu")])
def test_a_machine_below_its_base_goes_back_to_it(base):
    X = switches()
    model = _fitted((3, 2), X, {"pretraining": "layerwise", "base": base})
    rows = model._rows(X)
    model._recipe.table.prepare(rows)
    guard = model.net_.guard_
    guard.best = guard.best._replace(gain=-0.1)
    guard.shown = {"gain_over_base": -0.2, "gain_error": 0.05}
    model._recipe.after_training(model.net_, rows)
    model._log_z = LogZ()
    expected = model.base_.log_prob(torch.as_tensor(STATES).float()).numpy()
    assert_allclose(model.score_samples(STATES), expected, atol=1e-3)


@full
def test_few_rows_choose_the_epochs():
    X = switches(40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DeepBoltzmannMachine((3, 2), random_state=0).fit(X)
    assert 0 <= model.n_iter_ <= 500


@full
def test_early_stopping_and_weights():
    X = switches()
    model = fitted(early_stopping=True, n_iter=50)
    assert "valid_loss" in model.history_[0]
    weight = np.random.default_rng(0).integers(0, 3, len(X))
    assert np.isfinite(clone(model).fit(X, sample_weight=weight).score(X))


@full
def test_without_log_z_the_score_is_a_pseudo_likelihood():
    model = fitted(partition=None)
    log_p = log_joint(model, STATES)
    expected = np.zeros(16)
    for i in range(4):
        other = STATES.copy()
        other[:, i] = 1 - other[:, i]
        expected += log_p - np.logaddexp(log_p, log_joint(model, other))
    assert model.score(STATES) == pytest.approx(expected.mean(), abs=1e-4)
    real = fitted(partition=None, X=np.random.default_rng(0).normal(size=(250, 2)))
    with pytest.raises(ValueError, match="real columns"):
        real.score(np.zeros((3, 2)))


@full
def test_tempered_chains_and_given_partitions():
    model = fitted(sampler=ParallelTempering(3), partition=Exact())
    assert np.isfinite(model.score(switches()))
    assert model.log_partition_kind_ == "exact"
