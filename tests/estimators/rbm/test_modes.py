"""What RBMEstimator promises beyond the contract of all estimators, in all its modes."""

import re
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from skebm import RBMEstimator
from skebm.base import PartitionEstimator
from skebm.objectives import Centering, Penalty
from skebm.objectives.contrastive.fused import FusedPCD
from skebm.objectives.likelihood import ExactLikelihood
from skebm.partition import (
    AIS,
    AISBracket,
    Bethe,
    BridgeSampling,
    Exact,
    ImportanceSampling,
    Quadrature,
    ReverseAIS,
)
from skebm.samplers import FromData, Gibbs, Persistent
from skebm.training import SGD, EarlyStopping
from skebm.training.rows import Rows
from tests.support.callbacks import Interrupt
from tests.support.discovery import walk
from tests.support.rbm import (
    METHODS,
    MODES,
    assert_usable,
    call,
    fit_once,
    independent_score,
    quick,
)
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tables import binary_rows
from tests.support.tiers import full, leading, named, only_full

FIRST = ("pcd", "exact_tree")
each_mode = pytest.mark.parametrize("mode", named(FIRST, MODES))
with_log_z = pytest.mark.parametrize(
    "mode", named(FIRST, [mode for mode in MODES if mode != "no_partition"])
)
# "auto" is "exact" on tables as small as these: see the test of that.
RULES = ("pcd", "cd", "exact")

X = binary_rows()
X_NEW = binary_rows(40, seed=1)
X_CLEAR = binary_rows(200, 8, noise=0.05)  # learned within 40 passes at a learning rate of 0.1


def fit(mode, **params):
    return fit_once(clone(MODES[mode]).set_params(**params), X)


def weights(model):
    return [model.components_, model.intercept_hidden_, model.intercept_visible_]


# ------------------------------------------------------------------------------
# log Z
# ------------------------------------------------------------------------------


def test_annealing_does_not_touch_global_generators():
    model = RBMEstimator(**quick, partition=AISBracket(20, 50, 10)).fit(X)
    before = torch.get_rng_state()
    np.random.seed(0)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    model.score(X)
    assert torch.equal(before, torch.get_rng_state())
    assert np.random.random() == expected  # noqa: NPY002


@with_log_z
def test_assigning_weights_discards_log_z(mode):
    model = fit(mode)
    for name in ("components_", "intercept_hidden_", "intercept_visible_"):
        before = model.log_partition_
        setattr(model, name, getattr(model, name) + 1)
        assert model.log_partition_ > before + 0.1, name
        exact = Exact().estimate(model.energy_).value
        assert model.log_partition_ == pytest.approx(exact, abs=1e-9), name


@with_log_z
def test_score_with_an_estimated_log_z_is_pessimistic(mode):
    model = fit(mode, partition=AISBracket(n_chains=50, n_betas=100, n_steps=20))
    lower, upper = model.log_partition_bounds_
    assert model.log_partition_kind_ == "heuristic"
    assert lower < model.log_partition_ < upper
    assert model.score(X) < model.score_samples(X).mean()
    assert model.score(X) == pytest.approx(-model.energy(X).mean() - upper, abs=1e-9)
    exact = Exact().estimate(model.energy_).value
    assert model.log_partition_ == pytest.approx(exact, abs=10 * model.log_partition_std_ + 1e-3)


METHODS_OF_LOG_Z = {
    AIS: AIS(50, 100),
    ReverseAIS: ReverseAIS(100),
    AISBracket: AISBracket(50, 100, 20),
    BridgeSampling: BridgeSampling(n_steps=20),
    ImportanceSampling: ImportanceSampling(n_samples=20_000),
}


# What reaches a method: the energy and its precision, the sampler, and whether there are chains.
@pytest.mark.parametrize(
    "mode", leading(1, ["pcd", "exact", "tree", "float64", "tempering", "collapsed"])
)
@pytest.mark.parametrize(
    "cls",
    [cls for cls in walk(PartitionEstimator) if cls is not Quadrature and not cls.along_training],
    ids=lambda cls: cls.__name__,
)
@pytest.mark.filterwarnings("ignore:score is nan")
def test_every_method_of_log_z_is_a_parameter(mode, cls):
    model = fit(mode, partition=METHODS_OF_LOG_Z.get(cls, cls()))
    exact = Exact().estimate(model.energy_).value
    found, (lower, upper) = model.log_partition_, model.log_partition_bounds_
    if cls in METHODS_OF_LOG_Z:
        assert found == pytest.approx(exact, abs=5 * model.log_partition_std_ + 1e-3)
    else:
        assert found == pytest.approx(exact, abs=4.0)
    if model.log_partition_kind_ != "heuristic":
        assert not lower > exact + 1e-4
        assert not upper < exact - 1e-4
    assert np.isfinite(model.score_samples(X)).all()
    assert not model.score(X) > (-model.energy(X).mean() - exact) + 3 * model.log_partition_std_
    assert model.log_partition_method_.startswith(f"as given: {cls.__name__}")


def test_a_score_without_a_credible_log_z_is_nan_and_says_why():
    """An RBM with couplings of both signs has no bound by Bethe."""
    model = RBMEstimator(**quick, partition=Bethe()).fit(X)
    with pytest.warns(UserWarning, match="no credible upper end: couplings are frustrated"):
        assert np.isnan(model.score(X))
    assert np.isfinite(model.log_partition_)


@each_mode
def test_without_a_partition_the_score_is_a_pseudo_likelihood(mode):
    model = fit(mode, partition=None)
    assert model.score(X) == pytest.approx(model.pseudo_likelihood(X).mean(), abs=1e-9)


# ------------------------------------------------------------------------------
# Warm starts and streams
# ------------------------------------------------------------------------------


def test_warm_start_keeps_the_chains():
    model = RBMEstimator(**quick, chains=Persistent(n_chains=8), warm_start=True).fit(X)
    before = model.h_samples_.copy()
    assert len(before) == 8
    model.set_params(n_iter=0).fit(X)
    assert_array_equal(model.h_samples_, before)


@each_mode
def test_learned_settings_of_the_net(mode):
    model = clone(MODES[mode]).set_params(net__optimizer=torch.optim.Adam, net__lr=0.01)
    assert model.fit(X).learning_rate_ == 0.01
    assert fit(mode, net__batch_size=10, learning_rate=0.03).batch_size_ == 10


def test_the_rule_is_exact_on_small_tables():
    auto, exact = (fit("auto", learning=learning) for learning in ("auto", "exact"))
    assert auto.learning_ == "exact"
    assert_array_equal(auto.components_, exact.components_)


@pytest.mark.parametrize(
    ("n_columns", "options", "rule"),
    [
        (12, {}, "exact"),
        (12, {"n_iter": 2}, "exact"),  # iterations of L-BFGS, which are few
        (12, {"learning_rate": 0.1}, "pcd"),
        (12, {"batch_size": 10}, "pcd"),
        (12, {"optimizer": SGD(momentum=0.5)}, "pcd"),
        (12, {"net_params": {"lr": 0.1}}, "pcd"),
        (12, {"net_params": {"optimizer": torch.optim.Adam}}, "pcd"),
        (12, {"learning_rate": 0.1, "learning": "exact"}, "exact"),
        (9, {"learning_rate": 0.1}, "exact"),  # nearly as fast
    ],
    ids=str,
)
def test_stochastic_steps_are_exact_only_where_that_takes_no_longer(n_columns, options, rule):
    rows = np.random.default_rng(0).integers(2, size=(30, n_columns)).astype(float)
    model = RBMEstimator(**({"n_components": 50, "n_iter": 1, "random_state": 0} | options))
    assert model.fit(rows).learning_ == rule


def test_streams_are_exact_only_where_that_takes_no_longer():
    for n_columns, rule in ((9, "exact"), (12, "pcd")):
        rows = np.random.default_rng(0).integers(2, size=(30, n_columns)).astype(float)
        model = RBMEstimator(50, random_state=0).partial_fit(rows)
        assert model.learning_ == rule
        whole = RBMEstimator(50, n_iter=1, random_state=0).fit(rows)
        assert whole.learning_ == "exact"
        before = whole.n_iter_
        whole.partial_fit(rows)  # goes on from the weights of another rule
        assert whole.learning_ == rule
        assert whole.n_iter_ == before + 1


@pytest.mark.parametrize(("chains", "rule"), [(Persistent(), "pcd"), (FromData(), "cd")])
def test_chains_say_what_the_rule_is(chains, rule):
    auto, named_too = (fit(rule, learning=learning, chains=chains) for learning in ("auto", rule))
    assert auto.learning_ == rule
    assert_array_equal(auto.components_, named_too.components_)
    assert_array_equal(auto.components_, fit(rule).components_)  # one step is the default
    longer = fit(rule, chains=chains, chains__n_steps=3)
    assert np.abs(longer.components_ - auto.components_).max() > 0


# ------------------------------------------------------------------------------
# Searches
# ------------------------------------------------------------------------------


# Parameters that take an object, as they stand by default, and what a name on them makes of them.
CONFIGS = [
    ("chains", "n_steps", 3, Persistent(n_steps=3)),
    ("centering", "precondition", 0.25, Centering(precondition=0.25)),
    ("penalty", "l2", 0.1, Penalty(l2=0.1)),
    ("optimizer", "momentum", 0.9, SGD(momentum=0.9)),
    ("early_stopping", "tol", 0.01, EarlyStopping(tol=0.01)),
    ("sampler", "n_collapsed", 1, Gibbs(n_collapsed=1)),
]


@pytest.mark.parametrize(("owner", "name", "value", "expected"), CONFIGS)
def test_a_name_on_a_default_makes_its_object(owner, name, value, expected):
    model = MODES["pcd"]
    before = model.get_params(deep=False)[owner]
    changed = clone(model).set_params(**{f"{owner}__{name}": value})
    assert repr(getattr(changed, owner)) == repr(expected)
    assert changed.get_params()[f"{owner}__{name}"] == value
    again = clone(changed)
    assert repr(getattr(again, owner)) == repr(expected)
    assert getattr(again, owner) is not getattr(changed, owner)
    assert getattr(model, owner) is before
    given = clone(model).set_params(**{owner: expected}).fit(X)
    assert_array_equal(changed.fit(X).components_, given.components_)


def test_chains_of_contrastive_divergence_begin_at_the_data():
    chains = RBMEstimator(learning="cd").set_params(chains__n_steps=4).chains
    assert repr(chains) == repr(FromData(n_steps=4))
    with pytest.raises(ValueError, match="n_chains"):
        RBMEstimator(learning="cd").set_params(chains__n_chains=4)


def test_a_name_that_no_object_takes_is_refused():
    for name in (*(owner for owner, *_ in CONFIGS), "base", "partition"):
        with pytest.raises(ValueError, match=f"nonsense|{name}__nonsense"):
            RBMEstimator().set_params(**{f"{name}__nonsense": 1})


def test_parameters_of_objects_are_searched_without_passing_the_objects():
    grid = {"chains__n_steps": [1, 3], "penalty__l2": [0.0, 0.5]}
    grid |= {"optimizer__momentum": [0.5]}
    search = GridSearchCV(MODES["pcd"], grid, cv=2, error_score="raise").fit(X)
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    best = search.best_estimator_
    assert best.optimizer.momentum == 0.5
    assert best.chains.n_steps == search.best_params_["chains__n_steps"]
    assert best.penalty.l2 == search.best_params_["penalty__l2"]
    assert MODES["pcd"].chains is MODES["pcd"].penalty is MODES["pcd"].optimizer is None


# ------------------------------------------------------------------------------
# Gibbs steps, names of features
# ------------------------------------------------------------------------------


@each_mode
def test_a_stored_model_takes_the_same_gibbs_steps(mode):
    model = fit(mode)
    loaded = [store(model) for store in (by_pickle, by_joblib, by_skops)]
    for _ in range(2):
        expected = model.gibbs(X)
        for one in loaded:
            assert_array_equal(one.gibbs(X), expected)


@each_mode
def test_gibbs_steps_do_not_touch_global_generators(mode):
    model = fit(mode)
    np.random.seed(0)  # noqa: NPY002
    before, expected = torch.get_rng_state(), np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    model.gibbs(X)
    assert torch.equal(before, torch.get_rng_state())
    assert np.random.random() == expected  # noqa: NPY002


@each_mode
def test_a_parameter_set_after_fit_leaves_the_names_of_features(mode):
    model = fit(mode).set_params(n_components=5)
    for same in (model, by_pickle(model)):
        assert len(same.get_feature_names_out()) == 3
        assert same.transform(X).shape == (60, 3)


# ------------------------------------------------------------------------------
# Inputs and outputs
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "library"),
    [
        ("pcd", "pandas"),
        ("pcd", "polars"),
        *(only_full(mode, "pandas") for mode in MODES if mode != "pcd"),
    ],
)
def test_frames_of_features(mode, library):
    frames = pytest.importorskip(library)
    names = [f"bit {i}" for i in range(X.shape[1])]
    frame = frames.DataFrame(dict(zip(names, X.T, strict=True)))
    model, expected = clone(MODES[mode]).set_output(transform=library), fit(mode)
    out = model.fit_transform(frame)
    assert_array_equal(model.components_, expected.components_)
    assert isinstance(out, frames.DataFrame)
    assert isinstance(model.transform(frame), frames.DataFrame)
    assert list(model.feature_names_in_) == names
    prefix = type(model).__name__.lower()
    assert (
        list(out.columns)
        == [f"{prefix}{i}" for i in range(3)]
        == list(model.get_feature_names_out())
    )
    assert_array_equal(model.score_samples(frame), expected.score_samples(X))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("pcd", sp.csr_array),
        ("exact_tree", sp.csc_array),
        only_full("pcd", sp.csr_matrix),
        only_full("pcd", sp.coo_array),
        *(only_full(mode, sp.csr_array) for mode in MODES if mode not in FIRST),
    ],
)
def test_sparse_rows_are_the_same_rows(mode, kind):
    dense, sparse = fit(mode), clone(MODES[mode]).fit(kind(X))
    assert_allclose(sparse.components_, dense.components_, rtol=0, atol=1e-6)
    for method in ("score_samples", "transform", "predict", "reconstruct", "pseudo_likelihood"):
        assert_array_equal(getattr(dense, method)(kind(X)), getattr(dense, method)(X))
    missing = X_NEW.copy()
    missing[:, 2] = np.nan
    short = {"random_state": 0, "n_steps": 20}
    assert_array_equal(dense.impute(kind(missing), **short), dense.impute(missing, **short))
    assert_array_equal(dense.denoise(kind(X), **short), dense.denoise(X, **short))
    streams = (clone(MODES[mode]).partial_fit(rows) for rows in (kind(X), X))
    assert_array_equal(*(stream.components_ for stream in streams))


@pytest.mark.parametrize("mode", leading(1, ["pcd", "float64", "exact_tree", "tempering"]))
def test_features_have_the_precision_of_floats(mode):
    for kind in (bool, int, np.uint8, np.float16, np.float32, np.float64, list):
        rows = X.tolist() if kind is list else X.astype(kind)
        model = clone(MODES[mode]).set_params(n_iter=1).fit(rows)
        expected = np.float32 if kind is np.float32 else np.float64
        assert model.transform(rows).dtype == expected, kind
        assert model.components_.dtype == model.dtype, kind


@each_mode
def test_input_that_is_scaled_is_not_changed(mode):
    rows = np.where(X_NEW == 1, 3.0, X_NEW)
    before = rows.copy()
    rows.setflags(write=False)
    with pytest.warns(UserWarning, match="min-max scaled"):
        model = clone(MODES[mode]).set_params(visible="bernoulli").fit(rows)
    for method in METHODS:
        call(model, method, rows)
    assert_array_equal(rows, before)


# ------------------------------------------------------------------------------
# Early stopping
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learning", "params"),
    [
        ("pcd", {}),
        ("exact", {}),  # L-BFGS
        ("exact", {"learning_rate": 0.3}),
        only_full("cd", {}),
        *(only_full(rule, {"learning_rate": 0.3}) for rule in ("pcd", "cd")),
        *(only_full(rule, {"optimizer": SGD(momentum=0.9)}) for rule in RULES),
    ],
)
def test_early_stopping_keeps_the_best_weights(learning, params):
    rng = np.random.default_rng(0)
    # Little to learn: it must overfit, but not before it gains over the base.
    rows = (rng.random((60, 8)) < rng.choice([0.1, 0.9], (60, 1))).astype(float)
    stopping = EarlyStopping(validation_fraction=0.3)
    model = RBMEstimator(
        6, learning=learning, n_iter=400, early_stopping=stopping, random_state=0, **params
    ).fit(rows)
    assert model.n_iter_ < 400
    losses = [row["valid_loss"] for row in model.history_]
    held_out = model.net_.validation.block(0, len(rows)).numpy()
    assert len(held_out) == 18
    if model.learning_ == "exact":
        loss = -model.score(held_out)
    else:
        loss = -model.pseudo_likelihood(held_out).mean()
    assert min(losses) - 1e-5 <= loss <= min(losses) + stopping.tol + 1e-5
    assert losses[-1] > min(losses)


@pytest.mark.parametrize("learning", RULES)
def test_early_stopping_does_not_train_on_the_held_out_rows(learning):
    seen = []

    class Keep(Callback):
        def on_batch_end(self, net, batch=None, training=True, **kwargs):
            seen.extend(batch.x[:, :7].tolist())

    number = (np.arange(50)[:, None] >> np.arange(6)) & 1  # each row says which it is
    rows = np.hstack([np.ones((50, 1)), number])
    model = RBMEstimator(**quick, learning=learning, early_stopping=True)
    model.set_params(net_params={"callbacks": [Keep()]}).fit(rows)
    validation = model.net_.validation
    assert isinstance(validation, Rows)
    held_out = set(map(tuple, validation.block(0, 50).tolist()))
    seen = set(map(tuple, seen))
    assert len(held_out) == 5
    assert len(seen) == 45
    assert not seen & held_out


@pytest.mark.parametrize(("n", "tol"), [(1, 1.0), (3, 1.0), (1, 1e-9)])
def test_patience_and_tolerance_end_training_without_held_out_rows(n, tol):
    """By the training loss; gains below `tol` are none, so the first one after it is too late."""
    settings = EarlyStopping(validation_fraction=None, n_iter_no_change=n, tol=tol)
    model = RBMEstimator(4, n_iter=30, early_stopping=settings, random_state=0).fit(X)
    assert model.learning_ == "exact"
    assert model.net_.validation is None
    assert model.n_iter_ == (1 + n if tol == 1.0 else 30)


# ------------------------------------------------------------------------------
# What hyper-parameters do
# ------------------------------------------------------------------------------


plain = {
    "n_components": 4,
    "random_state": 0,
    "learning_rate": 0.1,
    "n_iter": 40,
    "batch_size": 10,
}


def clear(**params):
    """Fitted to rows that leave no doubt."""
    return fit_once(RBMEstimator(**params), X_CLEAR)


def test_averaging_is_the_mean_of_the_epochs():
    """The first epochs enter with equal weight, whatever the decay."""
    seen = []

    class Keep(Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append(net.module_.energy.weight.detach().clone())

    kwargs = {"n_components": 4, "random_state": 0, "learning": "exact", "learning_rate": 0.1}
    RBMEstimator(**kwargs, n_iter=5, net_params={"callbacks": [Keep()]}).fit(X)
    mean = RBMEstimator(**kwargs, n_iter=5, optimizer=SGD(averaging=0.99)).fit(X)
    assert_allclose(mean.components_, torch.stack(seen).mean(0), rtol=1e-4, atol=1e-6)


@full
@pytest.mark.parametrize("learning", leading(1, RULES))
def test_momentum_is_faster(learning):
    slow = plain | {"learning_rate": 0.02, "learning": learning, "aim": "features"}  # no guard
    with_momentum = clear(**slow, optimizer=SGD(momentum=0.9))
    assert with_momentum.score(X_CLEAR) > clear(**slow).score(X_CLEAR) + 0.1


@pytest.mark.parametrize(
    ("learning", "line_search"),
    [("exact", True), only_full("pcd", False), only_full("exact", False), only_full("cd", False)],
)
def test_penalties_shrink_the_weights(learning, line_search):
    params = {"n_components": 4, "random_state": 0, "n_iter": 60} if line_search else plain
    free = clear(**params, learning=learning).components_
    l2, l1 = (
        clear(**params, learning=learning, penalty=penalty).components_
        for penalty in (Penalty(l2=0.02), Penalty(l1=0.02))
    )
    assert 0 < np.linalg.norm(l2) < np.linalg.norm(free)
    assert (np.abs(l1) < 0.02).sum() > (np.abs(free) < 0.02).sum()
    assert np.abs(l1).sum() < np.abs(free).sum()


@full
@pytest.mark.parametrize(
    ("learning", "target"),
    [
        ("pcd", 0.1),
        only_full("pcd", 0.8),
        only_full("cd", 0.1),
        only_full("exact", 0.8),
    ],
)
def test_sparsity_moves_the_activations(learning, target):
    free = clear(**plain, learning=learning)
    penalty = Penalty(sparsity_target=target, sparsity_cost=1.0)
    held = clear(**plain, penalty=penalty, learning=learning)

    def distance(model):
        return np.abs(model.transform(X_CLEAR).mean(0) - target).mean()

    assert distance(held) < 0.8 * distance(free)


# ------------------------------------------------------------------------------
# Interruptions
# ------------------------------------------------------------------------------


def assert_learned(model):
    """Usable, and no worse than independent columns."""
    assert model.score(X) > independent_score(X) - 0.1
    assert_usable(model, X)


@pytest.mark.parametrize(
    ("mode", "after", "averaging"),
    [
        ("pcd", 1, 0.9),
        ("exact_tree", 10, 0.0),
        *(only_full(mode, 4, 0.9) for mode in MODES),
        *(only_full(mode, 4, 0.0) for mode in ("pcd", "exact", "reweight")),
    ],
)
def test_an_interrupted_fit_is_no_worse_than_its_start(mode, after, averaging):
    params = {"learning_rate": 0.01, "batch_size": 10, "partition": "auto"}
    model = clone(MODES[mode]).set_params(**params, optimizer=SGD(averaging=averaging))
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch.*usable"):
        model.set_params(net__callbacks=[Interrupt(after)]).fit(X)
    assert model.score(X) > independent_score(X) - 0.1


@pytest.mark.parametrize("learning", ["pcd", "cd"])
@pytest.mark.parametrize("after", leading(1, [8, 1]))
def test_an_interrupted_sampler_leaves_a_usable_model(learning, after, monkeypatch):
    owner, name = (FusedPCD, "__call__") if learning == "pcd" else (Gibbs, "step")
    step, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(0)
        if len(calls) == after:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    model = RBMEstimator(**quick, learning=learning, batch_size=10, aim="features")  # no halves
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch.*usable"):
        model.fit(X)
    assert_learned(model)


@pytest.mark.parametrize("after", named((1, 5, 25), [*range(1, 12), 25, 40]))
def test_an_interrupted_line_search_leaves_a_usable_model(after, monkeypatch):
    """Ctrl-C arrives at a trial point of the line search, which may be far off."""
    gradients, calls = ExactLikelihood.gradients, []

    def interrupted(*args, **kwargs):
        calls.append(0)
        if len(calls) == after:
            raise KeyboardInterrupt
        return gradients(*args, **kwargs)

    monkeypatch.setattr(ExactLikelihood, "gradients", interrupted)
    never = EarlyStopping(validation_fraction=None, tol=0)
    model = RBMEstimator(4, n_iter=100, early_stopping=never, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch.*usable"):
        model.fit(X, sample_weight=np.linspace(1, 1.1, len(X)))  # no halves are trained before
    assert_learned(model)


# ------------------------------------------------------------------------------
# Divergence
# ------------------------------------------------------------------------------


DIGITS = (load_digits().data > 8).astype(np.float32)


def fit_or_say_why(model, X):
    """Fitted model with its convergence warnings, or None after a FloatingPointError."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X)
        except FloatingPointError as error:
            assert re.search(r"epoch \d+, batch \d+", str(error))  # noqa: PT017
            return None, []
    return model, [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


@pytest.mark.parametrize(
    ("learning", "centering"),
    [
        ("pcd", "auto"),
        *(only_full(rule, "auto") for rule in ("cd", "exact")),
        *(only_full(rule, None) for rule in RULES),
    ],
)
def test_a_learning_rate_of_ten_is_mended_or_reported(learning, centering):
    model = RBMEstimator(
        6, learning=learning, learning_rate=10, n_iter=12, centering=centering, random_state=0
    )
    model, messages = fit_or_say_why(model, DIGITS)
    if learning == "pcd":
        assert model is None or messages
    if model is None:
        return
    assert all(np.isfinite(w).all() for w in weights(model))
    if messages:
        assert "learning_rate" in messages[0]
        assert model.n_restarts_ > 0
    # Plain gradients couple weights and biases, so steps still large shake the biases about.
    # A few passes with what is left of the rate are noisy: half a nat.
    floor = independent_score(DIGITS) - 0.5 if centering == "auto" else -64 * np.log(2)
    assert model.score(DIGITS) > floor


@pytest.mark.parametrize("learning", leading(1, ["pcd", "exact"]))
def test_a_stream_that_diverges_keeps_its_last_good_weights(learning):
    params = {"batch_size": 100, "optimizer": SGD(max_restarts=0), "random_state": 0}
    model = RBMEstimator(10, learning=learning, **params)
    before = model.partial_fit(DIGITS).score(DIGITS)
    for group in model.net_.optimizer_.param_groups:
        group["lr"] = 1e4
    with pytest.raises(FloatingPointError, match=r"batch \d+"):
        model.partial_fit(DIGITS)
    assert model.score(DIGITS) == pytest.approx(before, abs=1e-9)


@full
def test_the_guard_leaves_good_training_on_digits_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = RBMEstimator(10, learning="pcd", n_iter=3, random_state=0).fit(DIGITS)
    assert model.n_restarts_ == 0
