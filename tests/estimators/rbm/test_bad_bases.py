"""RBMs on every base, with every kind of chain: unusual tables and orders of calls, or refusals."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from skebm import RBMEstimator
from skebm.distributions import BlockTree, ChowLiuTree, IndependentBernoulli
from skebm.partition import AISBracket, Exact
from skebm.samplers import Gibbs, ParallelTempering, Persistent
from tests.estimators.rbm.test_bad_input import with_value
from tests.estimators.rbm.test_bases import STATES, chain_rows
from tests.support.rbm import METHODS, assert_sound, fit_once
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import about, full, leading, named, only_full

X = chain_rows(n=60)
TENSOR = torch.as_tensor(X)
NAMES = ("independent", "chow-liu", "block-tree")
BASES = {name: name for name in NAMES} | {
    "given columns": IndependentBernoulli.fit(TENSOR),
    "given tree": ChowLiuTree.fit(TENSOR, smoothing=0.1),
    "given blocks": BlockTree.fit(TENSOR, block_size=2),
}
CHAINS = {
    "exact": {"learning": "exact"},
    "pcd": {"learning": "pcd"},
    "cd": {"learning": "cd"},
    "reweighted": {"chains": Persistent(reweight=True)},
    "tempered": {"learning": "pcd", "sampler": ParallelTempering(3)},
    "collapsed": {"learning": "pcd", "sampler": Gibbs(2)},
}
each_base = pytest.mark.parametrize("base", named(("given blocks",), BASES))
each_name = pytest.mark.parametrize("base", named(("chow-liu",), NAMES))


def pairs(first, all_chains=CHAINS):
    """Every base with every kind of chain, of which `first` are in the first tier."""
    cases = [(base, chains) for base in NAMES for chains in all_chains]
    assert set(first) <= set(cases)
    return pytest.mark.parametrize(
        ("base", "chains"), [case if case in first else only_full(*case) for case in cases]
    )


def rbm(base="chow-liu", chains="pcd", **params):
    """A small RBM; `base` and `chains` by their name above, or chains themselves."""
    model = RBMEstimator(3, n_iter=4, visible="bernoulli", random_state=0, base=BASES[base])
    given = CHAINS[chains] if isinstance(chains, str) else {"chains": chains}
    return model.set_params(**given | params)


def fitted(base="chow-liu", chains="pcd", **params):
    return fit_once(rbm(base, chains, **params), X)


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


# ------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param(with_value(np.inf, X), "infinity", id="inf"),
        pytest.param(sp.csr_array(with_value(np.inf, X)), "infinity", id="sparse inf"),
        pytest.param(X[0], "1D array", id="1d"),
        pytest.param(X[:0], "0 sample", id="no rows"),
        pytest.param(X[:, :0], "0 feature", id="no columns"),
        pytest.param(pd.DataFrame(), "0 feature|at least one array or dtype", id="empty frame"),
    ],
)
def test_unusable_rows(bad, message):
    for base in NAMES:
        for method in ("fit", "partial_fit"):
            with about(base, method), pytest.raises(ValueError, match=message):
                getattr(rbm(base), method)(bad)


@pairs([("chow-liu", "reweighted")], ["exact", "reweighted"])
def test_values_out_of_range(base, chains):
    far = X.copy()
    far[:, 0] *= 7
    far[:, 3] = far[:, 3] * 2e30 - 1e30
    with pytest.raises(ValueError, match=r"columns 0, 3 have values outside.*Binarise"):
        rbm(base, chains, visible="probabilities").fit(far)
    with pytest.warns(UserWarning, match="min-max scaled"):
        model = rbm(base, chains).fit(far)
    plain = fitted(base, chains)
    np.testing.assert_allclose(model.energy(far), plain.energy(X), atol=1e-4)


UNUSUAL = {
    "zeros": np.zeros((30, 4)),
    "ones": np.ones((30, 4)),
    "two rows": X[:2],
    "one column": X[:, :1],
    "one constant column": np.ones((5, 1)),
    "duplicated columns": X[:, [0, 0, 1, 1, 1, 0]],
    "negated columns": np.hstack([X[:, :2], 1 - X[:, :2]]),
    "constant columns": X * [1, 0, 1, 1, 0, 1] + [0, 0, 0, 0, 1, 0],
    "one-hot": np.eye(6)[np.arange(40) % 6],
    "probabilities": 0.9 * X + 0.05,
}
KINDS = ("exact", "reweighted", "tempered")


@pytest.mark.parametrize(
    ("table", "base", "chains"),
    [
        pytest.param(
            table, NAMES[j], KINDS[(i + j) % 3], marks=() if (i + i // 3) % 3 == j else full
        )
        for i, table in enumerate(UNUSUAL)
        for j in range(3)
    ],
)
def test_unusual_tables(table, base, chains):
    """Dense ones by enumeration, float32 and sparse ones by chains."""
    kind = {"exact": "dense", "reweighted": "float32", "tempered": "sparse"}[chains]
    rows = UNUSUAL[table].astype(np.float32 if kind == "float32" else float)
    model = rbm(base, chains).fit(sp.csr_array(rows) if kind == "sparse" else rows)
    assert model.n_restarts_ == 0
    assert_sound(quietly(model.partial_fit, rows), rows)


@pairs(
    [
        ("independent", "cd"),
        ("independent", "tempered"),
        ("chow-liu", "pcd"),
        ("chow-liu", "collapsed"),
        ("block-tree", "exact"),
        ("block-tree", "reweighted"),
    ]
)
def test_all_pairs(base, chains):
    model = rbm(base, chains, dtype="float64").fit(X)
    assert_sound(model, X)
    assert np.exp(model.score_samples(STATES)).sum() == pytest.approx(1, abs=1e-4)
    assert set(np.unique(model.h_samples_)) <= {0, 1}
    assert model.h_samples_.shape == (model.n_chains_, 3)
    holes = np.where(np.arange(6) % 2, X, np.nan)
    filled = model.impute(holes, random_state=0, n_steps=20)
    np.testing.assert_array_equal(filled[:, 1::2], X[:, 1::2])
    assert set(np.unique(filled)) == {0, 1}


@each_name
def test_a_table_of_probabilities_is_that_of_its_binarisations(base):
    """What is taken from them is their mean, not what is left when they are cut to 0 and 1."""
    p = 0.15 + 0.7 * X
    rng = np.random.default_rng(0)
    drawn = (rng.random((200, *p.shape)) < p).reshape(-1, 6).astype(float)
    soft, hard = (rbm(base, n_iter=0).fit(rows) for rows in (p, drawn))
    assert soft.score(drawn) == pytest.approx(hard.score(drawn), abs=0.05)


@each_base
def test_pseudo_likelihood_of_probabilities_is_continuous(base):
    """Flips of an entry inside (0, 1) are taken where it stands."""
    model = rbm(base, n_iter=0, dtype="float64", visible="probabilities").fit(X)
    near = np.clip(X, 1e-9, 1 - 1e-9)
    np.testing.assert_allclose(model.pseudo_likelihood(near), model.pseudo_likelihood(X), atol=1e-5)
    half = np.full((1, 6), 0.5)
    assert model.pseudo_likelihood(half)[0] == pytest.approx(-6 * np.log(2))


# ------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "early_stopping", "scale"),
    [
        ("chow-liu", True, 1e-300),
        ("block-tree", False, 1e300),
        *(only_full(name, stopping, 1) for name in NAMES for stopping in (False, True)),
        *(only_full("independent", True, scale) for scale in (1e-300, 1e300)),
    ],
)
def test_rows_of_weight_zero_are_not_there(base, early_stopping, scale):
    weight = scale * (np.arange(60) % 3 > 0)
    model = rbm(base, "reweighted", early_stopping=early_stopping)
    ours = clone(model).fit(X, sample_weight=weight)
    theirs = clone(model).fit(X[weight > 0], sample_weight=np.ones(40))
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), atol=1e-3)


@pairs(
    [("independent", "cd"), ("chow-liu", "reweighted"), ("block-tree", "exact")],
    ["exact", "cd", "reweighted"],
)
def test_one_row_of_positive_weight(base, chains):
    weight = np.zeros(60)
    weight[7] = 3
    model = rbm(base, chains).fit(X, sample_weight=weight)
    assert_sound(model, X)
    assert (model.sample(200, random_state=0) == X[7]).all(1).mean() > 0.8


# ------------------------------------------------------------------------------
# Streams, warm starts, interruptions
# ------------------------------------------------------------------------------


@pairs([("chow-liu", "pcd")], ["pcd", "reweighted"])
def test_columns_that_begin_to_vary_in_a_stream(base, chains):
    constant = X.copy()
    constant[:, [1, 4]] = 0
    for n_first in (1, 60):
        model = rbm(base, chains).partial_fit(constant[:n_first])
        for _ in range(10):
            quietly(model.partial_fit, X)
        assert_sound(model, X)
        assert model.n_restarts_ <= 1


SAMPLERS = [None, Gibbs(), ParallelTempering(3), ParallelTempering(21)]


@full
@pytest.mark.parametrize("n_chains", leading(1, [2, 20]))
def test_warm_starts_change_the_sampler(n_chains):
    """What one kernel keeps beside the rows means nothing to another."""
    model = rbm(chains=Persistent(n_chains=n_chains), warm_start=True, n_iter=1)
    for before in SAMPLERS:
        for after in SAMPLERS:
            model.set_params(sampler=before).fit(X).set_params(sampler=after).fit(X)
            assert type(model.sampler_) is type(after or Gibbs())


@pairs([("chow-liu", "pcd"), ("block-tree", "reweighted"), ("independent", "tempered")])
def test_warm_starts_go_on(base, chains):
    model = fitted(base, chains, warm_start=True)
    model.fit(X)
    model.set_params(dtype="float64").fit(sp.csr_array(X))
    assert np.isfinite(model.partial_fit(X[:20]).score(X))


def test_a_warm_start_with_another_base_of_the_kind_is_refused():
    other = ChowLiuTree.fit(torch.as_tensor(1 - X), smoothing=0.3)
    model = fitted("given tree", warm_start=True)
    expected = model.score_samples(X)
    with pytest.raises(ValueError, match="another one.*Clone the estimator"):
        model.set_params(base=other).fit(X)
    np.testing.assert_array_equal(model.score_samples(X), expected)
    model.set_params(base=clone(model).set_params(base=BASES["given tree"]).base).fit(X)


@pytest.mark.parametrize("table", leading(1, [X, chain_rows(200, 12)]), ids=["narrow", "wide"])
@each_name
def test_weighing_the_chains_of_a_trained_model(base, table):
    """Chains drawn from the base say next to nothing about a model far from it."""
    model = RBMEstimator(8, base=base, learning="pcd", warm_start=True, random_state=0, n_iter=60)
    model.set_params(learning_rate=0.3).fit(table)
    model.set_params(chains=Persistent(n_chains=200, reweight=True), n_iter=1)
    model.set_params(learning_rate=1e-6).fit(table)
    assert model.history_[-1]["log_partition"] == pytest.approx(model.log_partition_, abs=0.15)


class Stop(Callback):
    def on_batch_end(self, net, **kwargs):
        if len(net.history) == 2:
            raise KeyboardInterrupt


@pairs([("chow-liu", "reweighted"), ("block-tree", "collapsed")])
def test_an_interrupted_fit_is_usable(base, chains):
    model = rbm(base, chains, optimizer__averaging=0.9, batch_size=20)
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch 2"):
        model.set_params(net__callbacks=[Stop()]).fit(X)
    assert np.isfinite(model.score(X))
    assert_sound(model.set_params(net__callbacks=[]).partial_fit(X), X)


class Interrupted(IndependentBernoulli):
    def log_prob(self, x):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"chains": Persistent(reweight=True), "learning": "exact"}, ValueError),
        ({"base": BASES["given tree"], "sampler": ParallelTempering(1)}, ValueError),
        ({"optimizer__max_restarts": 0, "learning_rate": 1e6}, FloatingPointError),
        ({"base": Interrupted(torch.zeros(6))}, KeyboardInterrupt),
    ],
)
def test_a_failed_fit_leaves_the_model_before(params, error):
    model = fitted("block-tree")
    expected, names = model.score_samples(X), set(vars(model))
    model.set_params(**{"base": "chow-liu"} | params)
    with pytest.raises(error):
        quietly(model.fit, 3 * np.vstack([X, X]))
    assert isinstance(model.base_, BlockTree)
    assert set(vars(model)) == names
    np.testing.assert_array_equal(model.score_samples(X), expected)
    again = pickle.loads(pickle.dumps(model.set_params(base="chow-liu")))
    np.testing.assert_array_equal(again.score_samples(X), expected)


# ------------------------------------------------------------------------------
# Storage, clones, searches
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "store"),
    [
        ("given blocks", by_skops),
        only_full("given tree", by_pickle),
        *(only_full(base, by_skops) for base in BASES if base != "given blocks"),
        *(only_full("given blocks", store) for store in (by_pickle, by_joblib)),
    ],
)
@pytest.mark.parametrize("chains", leading(1, ["reweighted", "tempered"]))
def test_stored_models(base, store, chains):
    for model in (rbm(base, chains), fitted(base, chains)):
        again = store(model)
        if not hasattr(model, "base_"):
            model, again = model.fit(X), again.fit(X)
        np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))
        np.testing.assert_array_equal(again.h_samples_, model.h_samples_)
        model.partial_fit(X), again.partial_fit(X)
        np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))


@pairs([("chow-liu", "reweighted"), ("block-tree", "collapsed")])
def test_parameters_set_after_a_fit_wait_for_the_next(base, chains):
    model = fitted(base, chains)
    params = {"base": "independent", "sampler": ParallelTempering(3), "learning": "cd"}
    model.set_params(**params, chains=Persistent(reweight=True), centering__precondition=1.0)
    for same in (model, pickle.loads(pickle.dumps(model))):
        assert type(same.sampler_) is type(CHAINS[chains].get("sampler") or Gibbs())
        np.testing.assert_array_equal(same.h_samples_, model.h_samples_)
        np.testing.assert_array_equal(same.sample(3, 0), model.sample(3, 0))


@each_base
def test_clones_are_alike(base):
    model = rbm(base, "tempered")
    twin = clone(clone(model))
    assert repr(twin) == repr(model)
    np.testing.assert_array_equal(twin.fit(X).score_samples(X), model.fit(X).score_samples(X))


@full
def test_a_search_over_bases_and_temperatures():
    model = rbm("independent", "tempered", n_iter=1)
    grid = {"base": [*NAMES, BASES["given tree"]], "sampler__n_temperatures": [2, 4]}
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_["base"] != "independent"


def test_a_search_over_samplers_and_collapsed_units():
    grid = [
        {"base": NAMES[:2], "sampler__n_collapsed": [0, 2]},
        {"sampler": [ParallelTempering(2), ParallelTempering(2, Gibbs(1))]},
        {"chains__reweight": [True], "sampler": [Gibbs(2)]},
    ]
    search = GridSearchCV(rbm(n_iter=1), grid, cv=2, error_score="raise").fit(X)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert len(set(scores)) == len(scores)


def test_parameters_of_the_sampler():
    model = rbm().set_params(sampler=ParallelTempering(), sampler__n_temperatures=4).fit(X)
    assert model.sampler_.n_temperatures == 4
    with pytest.raises(ValueError, match="'n_temperatures' for estimator Gibbs"):
        rbm().set_params(sampler__n_temperatures=4)
    with pytest.raises(ValueError, match="base__smoothing.*base="):
        rbm().set_params(base__smoothing=4)


# ------------------------------------------------------------------------------
# Options against each other
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2.5, "8", None, True])
def test_unusable_temperatures(n):
    with pytest.raises(ValueError, match="n_temperatures must be"):
        rbm(sampler=ParallelTempering(n)).fit(X)


@pytest.mark.parametrize("kernel", ["gibbs", Gibbs, ParallelTempering(3), Exact()])
def test_unusable_replicas(kernel):
    with pytest.raises(ValueError, match="sampler=None"):
        rbm(sampler=ParallelTempering(3, kernel)).fit(X)


def test_replicas_need_chains_that_persist_and_exchange():
    with pytest.raises(ValueError, match='learning="cd".*learning="pcd"'):
        rbm(chains="cd", sampler=ParallelTempering()).fit(X)
    with pytest.raises(ValueError, match="reweight=True.*sampler=None"):
        rbm(chains="reweighted", sampler=ParallelTempering()).fit(X)
    assert_sound(rbm(chains="exact", sampler=ParallelTempering(3)).fit(X), X)


def test_gibbs_steps_of_a_tempered_model_are_gibbs_steps():
    """Replicas that all start at a row would hand it what a hotter one drew."""
    model, plain = fitted(chains="tempered"), fitted()
    plain.components_ = model.components_
    plain.intercept_hidden_ = model.intercept_hidden_
    plain.intercept_visible_ = model.intercept_visible_
    plain.random_state_, model.random_state_ = (np.random.RandomState(0) for _ in "ab")
    np.testing.assert_array_equal(model.gibbs(X), plain.gibbs(X))


def test_preconditioning_needs_a_contrastive_rule():
    with pytest.raises(ValueError, match='"exact".*learning="pcd"'):
        RBMEstimator(3).set_params(centering__precondition=0.5).fit(X)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_base_that_is_no_distribution(value):
    logits = torch.zeros(6, dtype=torch.float64)
    logits[1] = value
    tree = ChowLiuTree(torch.tensor([-1, 0, 1, 2, 3, 4]), torch.stack([logits, logits], 1))
    for base in (IndependentBernoulli(logits), tree):
        with pytest.raises(
            ValueError, match="parameters are finite|probability zero|infinite log-odds"
        ):
            rbm().set_params(base=base).fit(X)


@pairs([("chow-liu", "reweighted"), ("independent", "tempered")], ["pcd", "reweighted", "tempered"])
def test_a_single_chain(base, chains):
    model = rbm(base, chains, partition=AISBracket(20, 50, 10))
    model.set_params(chains__n_chains=1, n_iter=10).fit(X)
    assert np.isfinite(quietly(model.score, X))
    assert model.h_samples_.shape == (1, 3)


def test_a_single_row_in_a_stream_has_a_log_partition():
    model = rbm(partition=AISBracket(20, 50, 10)).partial_fit(X[:1])
    assert np.isfinite(quietly(model.score, X))


@pairs([("chow-liu", "reweighted"), ("block-tree", "exact")], ["exact", "reweighted", "tempered"])
def test_no_iterations_and_no_partition(base, chains):
    model = rbm(base, chains, n_iter=0, early_stopping=True, partition=None)
    model.set_params(optimizer__averaging=0.5).fit(X)
    assert model.n_iter_ == 0
    quietly(assert_sound, model, X)
    assert model.score(X) == pytest.approx(model.pseudo_likelihood(X).mean())
    np.testing.assert_allclose(model.score_samples(X), -model.energy(X))


@pairs([("chow-liu", "pcd"), ("block-tree", "exact"), ("independent", "reweighted")])
def test_a_learning_rate_of_ten(base, chains):
    model = rbm(base, chains, learning_rate=10.0, n_iter=30, n_components=8)
    try:
        quietly(model.fit, X)
    except FloatingPointError as error:
        assert "Lower learning_rate" in str(error)  # noqa: PT017
        with pytest.raises(NotFittedError):
            model.score(X)
        return
    assert np.isfinite(model.components_).all()
    # The guard rolls back a model that is a nat worse than the uniform distribution.
    assert model.score(X) > -6 * np.log(2) - 1


@pytest.mark.parametrize(
    ("base", "averaging"),
    [
        ("independent", 0.0),
        ("chow-liu", 0.5),
        *(only_full("block-tree", averaging) for averaging in (0.0, 0.95)),
        only_full("independent", 0.95),
    ],
)
def test_the_running_log_likelihood_is_that_of_the_weights_shown(base, averaging):
    chains = Persistent(n_chains=2000, reweight=True)
    model = rbm(base, chains=chains, optimizer__averaging=averaging, n_iter=30)
    model.set_params(learning_rate=1.0, batch_size=60, centering__precondition=0.5).fit(X)
    last = model.history_[-1]
    assert last["log_partition"] == pytest.approx(model.log_partition_, abs=0.03)
    assert last["log_likelihood"] == pytest.approx(model.score(X), abs=0.03)


@pytest.mark.parametrize("base", named(("given blocks",), BASES))
def test_early_stopping_of_weighed_chains_keeps_the_best_weights(base):
    model = rbm(
        base,
        "reweighted",
        early_stopping=True,
        n_iter=30,
        early_stopping__n_iter_no_change=2,
        optimizer__averaging=0.5,
    )
    quietly(model.fit, X)
    assert np.isfinite(model.score(X))
    assert all(np.isfinite(epoch["valid_loss"]) for epoch in model.history_)


def test_the_progress_bar_shows_the_running_log_likelihood(capfd):
    rbm(chains="reweighted", verbose=1).fit(X)
    assert "log_likelihood=" in capfd.readouterr().err


@each_name
def test_other_columns_are_refused(base):
    model = fitted(base, n_iter=0)
    for method in METHODS:
        with about(method), pytest.raises(ValueError, match="features.*expecting 6"):
            getattr(model, method)(X[:, :4])
