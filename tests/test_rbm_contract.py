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
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from skorch.callbacks import Callback

from skebm import RBMEstimator
from skebm.base import PartitionEstimator
from skebm.objectives import ExactLikelihood
from skebm.partition import (
    AIS,
    AISBracket,
    Bethe,
    BridgeSampling,
    Exact,
    ImportanceSampling,
    ReverseAIS,
)
from skebm.samplers import Gibbs
from skebm.training.rows import Rows
from tests.contracts.test_estimators import (
    CASES,
    Interrupt,
    Poison,
    assert_same_model,
    assert_usable,
    binary_rows,
    by_pickle,
    each_storage,
    quick,
)
from tests.discovery import walk

cases = CASES[RBMEstimator]
each_case = pytest.mark.parametrize("case", cases.values(), ids=cases.keys())
normalised = {name: case for name, case in cases.items() if case.partition is not None}
with_log_z = pytest.mark.parametrize("case", normalised.values(), ids=normalised.keys())
each_rule = pytest.mark.parametrize("learning", ["auto", "pcd", "cd", "exact"])

X = binary_rows()
X_NEW = binary_rows(40, seed=1)


X_CLEAR = binary_rows(400, 8, noise=0.05)  # learned within 40 passes at a learning rate of 0.1


def fit(case, **params):
    return clone(case).set_params(**params).fit(X)


def weights(model):
    return [model.components_, model.intercept_hidden_, model.intercept_visible_]


def independent_score(X):
    """Mean log-likelihood of the columns' own frequencies: the best model without interactions."""
    p = np.clip(X.mean(0), 1e-12, 1 - 1e-12)
    return float((p * np.log(p) + (1 - p) * np.log1p(-p)).sum())


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
@pytest.mark.parametrize("name", ["components_", "intercept_hidden_", "intercept_visible_"])
def test_assigning_weights_forgets_log_z(case, name):
    model = fit(case)
    before = model.log_partition_
    setattr(model, name, getattr(model, name) + 1)
    assert model.log_partition_ > before + 0.1
    exact = Exact().estimate(model.energy_).value
    assert model.log_partition_ == pytest.approx(exact, abs=1e-9)


@with_log_z
def test_score_is_the_mean_log_likelihood(case):
    model = fit(case)
    assert model.log_partition_kind_ == "exact"
    assert model.log_partition_std_ == 0
    assert model.score(X_NEW) == pytest.approx(model.score_samples(X_NEW).mean(), abs=1e-9)
    assert_allclose(
        model.score_samples(X_NEW), -model.energy(X_NEW) - model.log_partition_, rtol=0, atol=1e-9
    )


@with_log_z
def test_score_with_an_estimated_log_z_is_pessimistic(case):
    model = fit(case, partition=AISBracket(n_chains=50, n_betas=100, n_steps=20))
    lower, upper = model.log_partition_bounds_
    assert model.log_partition_kind_ == "heuristic"
    assert lower < model.log_partition_ < upper
    assert model.score(X) < model.score_samples(X).mean()
    assert model.score(X) == pytest.approx(-model.energy(X).mean() - upper, abs=1e-9)
    exact = Exact().estimate(model.energy_).value
    assert model.log_partition_ == pytest.approx(exact, abs=10 * model.log_partition_std_ + 1e-3)


METHODS = {
    AIS: AIS(50, 100),
    ReverseAIS: ReverseAIS(100),
    AISBracket: AISBracket(50, 100, 20),
    BridgeSampling: BridgeSampling(n_steps=20),
    ImportanceSampling: ImportanceSampling(n_samples=20_000),
}


@with_log_z
@pytest.mark.parametrize("cls", list(walk(PartitionEstimator)), ids=lambda cls: cls.__name__)
@pytest.mark.filterwarnings("ignore:score is nan")
def test_every_method_of_log_z_is_a_parameter(case, cls):
    model = fit(case, partition=METHODS.get(cls, cls()))
    exact = Exact().estimate(model.energy_).value
    found, (lower, upper) = model.log_partition_, model.log_partition_bounds_
    if cls in METHODS:
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
    """A machine with couplings of both signs has no bound by Bethe."""
    model = RBMEstimator(**quick, partition=Bethe()).fit(X)
    with pytest.warns(UserWarning, match="no credible upper end: couplings are frustrated"):
        assert np.isnan(model.score(X))
    assert np.isfinite(model.log_partition_)


@each_case
def test_without_a_partition_the_score_is_a_pseudo_likelihood(case):
    model = fit(case, partition=None)
    assert model.score(X) == pytest.approx(model.pseudo_likelihood(X).mean(), abs=1e-9)


# ------------------------------------------------------------------------------
# Going on
# ------------------------------------------------------------------------------


@each_case
def test_warm_start_goes_on(case):
    short = clone(case).set_params(
        warm_start=True, n_iter=10, learning_rate=0.1, batch_size=10, partition="auto"
    )
    scores = [short.fit(X_CLEAR).score(X_CLEAR) for _ in range(3)]
    if case.base == "independent":
        assert scores[2] > scores[0] + 0.5
    else:  # a tree says all there is to say about two switches before the first step
        assert abs(scores[2] - scores[0]) < 0.05
        assert scores[2] != scores[0]
    cold = clone(short).set_params(warm_start=False)
    assert cold.fit(X_CLEAR).score(X_CLEAR) == cold.fit(X_CLEAR).score(X_CLEAR) == scores[0]


def test_warm_start_keeps_the_chains():
    model = RBMEstimator(**quick, learning="pcd", warm_start=True, n_chains=8).fit(X)
    before = model.h_samples_.copy()
    model.set_params(n_iter=0).fit(X)
    assert_array_equal(model.h_samples_, before)


@each_case
def test_warm_start_with_other_hidden_units_is_refused(case):
    model = fit(case, warm_start=True).set_params(n_components=4)
    with pytest.raises(ValueError, match="n_components"):
        model.fit(X)


@each_case
def test_partial_fit_takes_a_small_step_from_fit(case):
    model = fit(case)
    before = model.components_.copy()
    model.partial_fit(X)
    step = np.abs(model.components_ - before).max()
    assert 0 < step < 0.5 * np.abs(before).max() + 0.2


@each_case
def test_learned_settings_of_the_net(case):
    assert fit(case, net__optimizer=torch.optim.Adam, net__lr=0.01).learning_rate_ == 0.01
    assert fit(case, net__batch_size=10, learning_rate=0.03).batch_size_ == 10


@each_case
def test_a_grid_search_in_a_pipeline(case):
    name = type(case).__name__.lower()
    case = clone(case).set_params(learning_rate_decay="constant")
    grid = {f"{name}__n_components": [2, 4], f"{name}__net__lr": [0.001, 0.1]}
    search = GridSearchCV(make_pipeline(Binarizer(), case), grid, cv=2, error_score="raise").fit(X)
    assert set(search.best_params_) == set(grid)
    best = search.best_estimator_[-1]
    assert best.components_.shape[0] == search.best_params_[f"{name}__n_components"]
    assert best.history_[0]["lr"] == search.best_params_[f"{name}__net__lr"]
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    assert case.net_params is None


# ------------------------------------------------------------------------------
# Blocks
# ------------------------------------------------------------------------------


@each_storage
@each_case
def test_a_stored_model_takes_the_same_gibbs_steps(case, store):
    model = fit(case)
    loaded = store(model)
    for _ in range(2):
        assert_array_equal(loaded.gibbs(X), model.gibbs(X))


@each_case
def test_gibbs_steps_do_not_touch_global_generators(case):
    model = fit(case)
    np.random.seed(0)  # noqa: NPY002
    before, expected = torch.get_rng_state(), np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    model.gibbs(X)
    assert torch.equal(before, torch.get_rng_state())
    assert np.random.random() == expected  # noqa: NPY002


@each_case
def test_a_parameter_set_after_fit_leaves_the_names_of_features(case):
    model = fit(case).set_params(n_components=5)
    for same in (model, by_pickle(model)):
        assert len(same.get_feature_names_out()) == 3
        assert same.transform(X).shape == (60, 3)


# ------------------------------------------------------------------------------
# Inputs and outputs
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pandas", "polars"])
@each_case
def test_frames_of_features(case, library):
    frames = pytest.importorskip(library)
    names = [f"bit {i}" for i in range(X.shape[1])]
    frame = frames.DataFrame(dict(zip(names, X.T, strict=True)))
    model = clone(case).set_output(transform=library)
    out = model.fit_transform(frame)
    assert_same_model(model, fit(case))
    assert isinstance(out, frames.DataFrame)
    assert isinstance(model.transform(frame), frames.DataFrame)
    assert list(model.feature_names_in_) == names
    prefix = type(case).__name__.lower()
    assert (
        list(out.columns)
        == [f"{prefix}{i}" for i in range(3)]
        == list(model.get_feature_names_out())
    )
    assert_array_equal(model.score_samples(frame), fit(case).score_samples(X))


@pytest.mark.parametrize(
    "kind", [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.coo_array], ids=lambda k: k.__name__
)
@each_case
def test_sparse_rows_are_the_same_rows(case, kind):
    dense, sparse = fit(case), clone(case).fit(kind(X))
    assert_allclose(sparse.components_, dense.components_, rtol=0, atol=1e-6)
    for method in ("score_samples", "transform", "predict", "reconstruct", "pseudo_likelihood"):
        assert_array_equal(getattr(dense, method)(kind(X)), getattr(dense, method)(X))
    missing = X_NEW.copy()
    missing[:, 2] = np.nan
    assert_array_equal(
        dense.impute(kind(missing), random_state=0), dense.impute(missing, random_state=0)
    )
    assert_array_equal(dense.denoise(kind(X), random_state=0), dense.denoise(X, random_state=0))
    assert_same_model(clone(case).partial_fit(kind(X)), clone(case).partial_fit(X))


@pytest.mark.parametrize("kind", [bool, int, np.uint8, np.float16, np.float32, np.float64, list])
@each_case
def test_features_have_the_precision_of_floats(case, kind):
    rows = X.tolist() if kind is list else X.astype(kind)
    model = clone(case).fit(rows)
    expected = np.float32 if kind is np.float32 else np.float64
    assert model.transform(rows).dtype == expected
    assert model.components_.dtype == model.dtype


@each_case
def test_input_that_is_scaled_is_not_changed(case):
    rows = np.where(X_NEW == 1, 3.0, X_NEW)
    before = rows.copy()
    rows.setflags(write=False)
    with pytest.warns(UserWarning, match="min-max scaled"):
        model = clone(case).fit(rows)
    for method in ("score_samples", "transform", "gibbs", "reconstruct", "impute", "denoise"):
        getattr(model, method)(rows)
    assert_array_equal(rows, before)


# ------------------------------------------------------------------------------
# Early stopping
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"learning_rate": 0.3}, {"momentum": 0.9}])
@each_rule
def test_early_stopping_keeps_the_best_weights(learning, params):
    rng = np.random.default_rng(0)
    rows = (rng.random((60, 8)) < 0.5).astype(float)  # nothing to learn: it must overfit
    model = RBMEstimator(
        6,
        learning=learning,
        n_iter=400,
        early_stopping=True,
        validation_fraction=0.3,
        random_state=0,
        **params,
    ).fit(rows)
    assert model.n_iter_ < 400
    losses = [row["valid_loss"] for row in model.history_]
    held_out = model.net_.validation.block(0, len(rows)).numpy()
    assert len(held_out) == 18
    if model.learning_ == "exact":
        loss = -model.score(held_out)
    else:
        loss = -model.pseudo_likelihood(held_out).mean()
    assert min(losses) - 1e-5 <= loss <= min(losses) + model.tol + 1e-5
    assert losses[-1] > min(losses)


@each_rule
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


@each_rule
def test_averaging_gives_other_finite_weights(learning):
    last = RBMEstimator(**plain, learning=learning).fit(X_CLEAR)
    mean = RBMEstimator(**plain, learning=learning, averaging=0.9).fit(X_CLEAR)
    assert np.isfinite(mean.components_).all()
    difference = np.abs(mean.components_ - last.components_).max()
    assert 0 < difference < np.abs(last.components_).max()
    assert mean.score(X_CLEAR) > independent_score(X_CLEAR) + 2


def test_averaging_is_the_mean_of_the_epochs():
    """The first epochs enter with equal weight, whatever the decay."""
    seen = []

    class Keep(Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append(net.module_.energy.weight.detach().clone())

    kwargs = {"n_components": 4, "random_state": 0, "learning": "exact", "learning_rate": 0.1}
    RBMEstimator(**kwargs, n_iter=5, net_params={"callbacks": [Keep()]}).fit(X)
    mean = RBMEstimator(**kwargs, n_iter=5, averaging=0.99).fit(X)
    assert_allclose(mean.components_, torch.stack(seen).mean(0), rtol=1e-4, atol=1e-6)


@each_rule
def test_momentum_is_faster(learning):
    slow = {**plain, "learning_rate": 0.02, "n_iter": 30}
    without = RBMEstimator(**slow, learning=learning).fit(X_CLEAR)
    with_momentum = RBMEstimator(**slow, learning=learning, momentum=0.9).fit(X_CLEAR)
    assert with_momentum.score(X_CLEAR) > without.score(X_CLEAR) + 0.1


@pytest.mark.parametrize("line_search", [False, True])
@each_rule
def test_penalties_shrink_the_weights(learning, line_search):
    if line_search and learning in ("pcd", "cd"):
        pytest.skip("no line search without a likelihood")
    params = {"n_components": 4, "random_state": 0} if line_search else plain
    free = RBMEstimator(**params, learning=learning).fit(X_CLEAR).components_
    l2 = RBMEstimator(**params, learning=learning, l2=0.02).fit(X_CLEAR).components_
    l1 = RBMEstimator(**params, learning=learning, l1=0.02).fit(X_CLEAR).components_
    assert 0 < np.linalg.norm(l2) < np.linalg.norm(free)
    assert (np.abs(l1) < 0.02).sum() > (np.abs(free) < 0.02).sum()
    assert np.abs(l1).sum() < np.abs(free).sum()


@pytest.mark.parametrize("target", [0.1, 0.8])
@each_rule
def test_sparsity_moves_the_activations(learning, target):
    free = RBMEstimator(**plain, learning=learning).fit(X_CLEAR)
    sparse = {"sparsity_target": target, "sparsity_cost": 1.0}
    held = RBMEstimator(**plain, **sparse, learning=learning).fit(X_CLEAR)

    def distance(model):
        return np.abs(model.transform(X_CLEAR).mean(0) - target).mean()

    assert distance(held) < 0.8 * distance(free)


# ------------------------------------------------------------------------------
# Interruptions
# ------------------------------------------------------------------------------


def assert_learned(model):
    """Usable, and no worse than columns on their own."""
    assert model.score(X) > independent_score(X) - 0.1
    assert_usable(model)


@pytest.mark.parametrize("after", [1, 4, 10])
@pytest.mark.parametrize("averaging", [0.0, 0.9])
@each_case
def test_an_interrupted_fit_is_no_worse_than_its_start(case, after, averaging):
    params = {"learning_rate": 0.01, "batch_size": 10, "averaging": averaging, "partition": "auto"}
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch.*usable"):
        model = fit(case, net__callbacks=[Interrupt(after)], **params)
    assert model.score(X) > independent_score(X) - 0.1


@pytest.mark.parametrize("learning", ["pcd", "cd"])
@pytest.mark.parametrize("after", [1, 8])
def test_an_interrupted_sampler_leaves_a_usable_model(learning, after, monkeypatch):
    step, calls = Gibbs.step, []

    def interrupted(*args, **kwargs):
        calls.append(0)
        if len(calls) == after:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(Gibbs, "step", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch.*usable"):
        model = RBMEstimator(**quick, learning=learning, batch_size=10).fit(X)
    assert_learned(model)


@pytest.mark.parametrize("after", [*range(1, 12), 25, 40])
def test_an_interrupted_line_search_leaves_a_usable_model(after, monkeypatch):
    """Ctrl-C lands at a trial point of the line search, which may be far off."""
    gradients, calls = ExactLikelihood.gradients, []

    def interrupted(*args, **kwargs):
        calls.append(0)
        if len(calls) == after:
            raise KeyboardInterrupt
        return gradients(*args, **kwargs)

    monkeypatch.setattr(ExactLikelihood, "gradients", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch.*usable"):
        model = RBMEstimator(n_components=4, n_iter=100, tol=0, random_state=0).fit(X)
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
    return model, [str(w.message) for w in caught if w.category is ConvergenceWarning]


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("learning", ["pcd", "cd", "exact"])
def test_a_learning_rate_of_ten_does_not_pass_in_silence(learning, centered):
    model = RBMEstimator(
        10, learning=learning, learning_rate=10, n_iter=12, centered=centered, random_state=0
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
    floor = independent_score(DIGITS) - 0.5 if centered else -64 * np.log(2)
    assert model.score(DIGITS) > floor


@pytest.mark.parametrize("learning", ["pcd", "exact"])
def test_without_restarts_divergence_is_an_error(learning):
    model = RBMEstimator(
        10, learning=learning, learning_rate=100, n_iter=4, max_restarts=0, random_state=0
    )
    with pytest.raises(FloatingPointError, match=r"epoch \d+, batch \d+.*learning_rate"):
        model.fit(DIGITS)
    with pytest.raises(NotFittedError):
        model.predict(DIGITS)


@pytest.mark.parametrize("learning", ["pcd", "exact"])
def test_a_stream_that_diverges_keeps_its_last_good_weights(learning):
    model = RBMEstimator(10, learning=learning, batch_size=100, max_restarts=0, random_state=0)
    before = model.partial_fit(DIGITS).score(DIGITS)
    for group in model.net_.optimizer_.param_groups:
        group["lr"] = 1e4
    with pytest.raises(FloatingPointError, match=r"batch \d+"):
        model.partial_fit(DIGITS)
    assert model.score(DIGITS) == pytest.approx(before, abs=1e-9)


@pytest.mark.parametrize("averaging", [0.0, 0.9])
@pytest.mark.parametrize("after", [1, 9, 12])
@pytest.mark.parametrize("learning", ["pcd", "cd", "exact"])
def test_nan_in_the_weights_is_rolled_back(learning, after, averaging):
    model = RBMEstimator(
        **quick,
        learning=learning,
        learning_rate=0.05,
        batch_size=10,
        averaging=averaging,
        net_params={"callbacks": [Poison(after)]},
    )
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times.*epoch.*batch"):
        model.fit(X)
    assert model.n_restarts_ == 1
    assert model.n_iter_ == 5
    assert all(np.isfinite(w).all() for w in weights(model))
    assert model.score(X) > independent_score(X) - 0.1


def test_the_guard_leaves_good_training_on_digits_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = RBMEstimator(10, learning="pcd", n_iter=3, random_state=0).fit(DIGITS)
    assert model.n_restarts_ == 0
