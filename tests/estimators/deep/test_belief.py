"""Deep belief networks: equal to a pipeline, bounds against sums over all states, modules."""

import itertools
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback

from skebm import DeepBeliefNetwork, EnergyOutlierDetector, JEMClassifier, RBMEstimator
from skebm.energies import BernoulliRBM
from skebm.estimators.deep import belief, bounds
from skebm.partition import AIS, Exact
from tests.support.checks import parametrize_with_checks
from tests.support.interrupts import fingerprint
from tests.support.oracle import seeded
from tests.support.tiers import full, leading, only_full

QUICK = {"n_iter": 5, "batch_size": 20, "learning_rate": 0.3, "base": "independent"}
SIZES = [(3,), (4, 3), (4, 3, 5), only_full((2, 5, 3, 4))]
STATES = np.array(list(itertools.product([0.0, 1.0], repeat=5)))


def bits(n=60, seed=0):
    random = np.random.default_rng(seed)
    flips = random.random((n, 5)) < 0.2
    return (flips ^ (random.random((n, 1)) < 0.4)).astype(float)


def frame(n=80, seed=0):
    random = np.random.default_rng(seed)
    kind = random.random(n) < 0.4
    return pd.DataFrame(
        {
            "age": 30 + 15 * kind + 4 * random.standard_normal(n),
            "city": np.where(kind, "Paris", np.where(random.random(n) < 0.5, "Rome", "Oslo")),
            "member": kind ^ (random.random(n) < 0.1),
        }
    )


def dbn(sizes=(4, 3), rbm=None, **params):
    template = RBMEstimator(**QUICK | (rbm or {}))
    return DeepBeliefNetwork(sizes, rbm=template, **{"random_state": 0} | params)


def enlarge(model, factor=3.0, seed=0):
    """Weights that make the layers depend on each other."""
    random = np.random.default_rng(seed)
    for rbm in model.rbms_:
        rbm.components_ = factor * random.standard_normal(rbm.components_.shape) / 2
        rbm.intercept_hidden_ = random.standard_normal(len(rbm.intercept_hidden_))
    return model


def log_likelihood(model, x):
    """log p(x) by sums over all states of all layers, in NumPy; of bits with independent bases."""
    rbms = model.rbms_
    states = [np.array(list(itertools.product([0.0, 1.0], repeat=n))) for n in widths(model)]
    top = rbms[-1]
    below = states[-2] if len(rbms) > 1 else x
    joint = -joint_energies(top, below, states[-1])
    log_p = logsumexp(joint, axis=1)
    everything = STATES if len(rbms) == 1 else below
    log_p -= logsumexp(-joint_energies(top, everything, states[-1]))
    for k in range(len(rbms) - 2, -1, -1):
        below = states[k - 1] if k else x
        given = conditional(rbms[k], below, states[k])
        log_p = logsumexp(given + log_p, axis=1)
    return log_p


def widths(model):
    return [rbm.n_components_ for rbm in model.rbms_]


def joint_energies(rbm, x, h):
    """E(x, h) of all pairs, (n, S)."""
    w, b, c = (a.astype(float) for a in parameters(rbm))
    return -(x @ b)[:, None] - h @ c - x @ w.T @ h.T


def parameters(rbm):
    return rbm.components_, rbm.intercept_visible_, rbm.intercept_hidden_


def conditional(rbm, x, h):
    """log p(x given h) of all pairs, (n, S)."""
    w, b, _ = (a.astype(float) for a in parameters(rbm))
    log_odds = b + h @ w
    return x @ log_odds.T - np.logaddexp(0, log_odds).sum(1)


# ------------------------------------------------------------------------------
# The same as a pipeline, and as one RBM
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(4, 3), only_full((4, 3, 5))])
def test_it_is_a_pipeline_of_rbms(sizes):
    X = bits()
    model = dbn(sizes).fit(X)
    steps = [
        RBMEstimator(size, **QUICK, random_state=rbm.random_state)
        for size, rbm in zip(sizes, model.rbms_, strict=True)
    ]
    pipe = make_pipeline(*steps).fit(X)
    assert_array_equal(model.transform(X), pipe.transform(X))
    for ours, theirs in zip(model.rbms_, pipe, strict=True):
        for one, other in zip(parameters(ours), parameters(theirs), strict=True):
            assert_array_equal(one, other)
    layers = model.transform_layers(X)
    assert [layer.shape for layer in layers] == [(len(X), size) for size in sizes]
    assert_array_equal(layers[0], pipe[0].transform(X))
    assert model.rbms_[0].random_state != model.rbms_[1].random_state


def test_weights_of_rows_reach_every_rbm():
    X, weight = bits(), np.random.default_rng(0).integers(0, 3, 60).astype(float)
    model = dbn(rbm={"random_state": 5}).fit(X, sample_weight=weight)
    first = RBMEstimator(4, **QUICK, random_state=5).fit(X, sample_weight=weight)
    second = RBMEstimator(3, **QUICK, random_state=5)
    second.fit(first.transform(X), sample_weight=weight)
    assert_array_equal(model.transform(X), second.transform(first.transform(X)))
    assert not np.array_equal(model.transform(X), dbn(rbm={"random_state": 5}).fit_transform(X))


def test_a_single_layer_is_an_rbm():
    X = bits()
    model = dbn((3,), rbm={"random_state": 2}).fit(X)
    rbm = RBMEstimator(3, **QUICK, random_state=2).fit(X)
    assert dbn(3, rbm={"random_state": 2}).fit(X).score(X) == rbm.score(X)
    assert model.bound_kind_ == "exact"
    for name in ("transform", "score_samples", "energy", "score"):
        assert_array_equal(getattr(model, name)(X), getattr(rbm, name)(X))
    assert_array_equal(model.sample(4, random_state=0), rbm.sample(4, random_state=0))
    assert_allclose(model.reconstruct(X), rbm.reconstruct(X), atol=1e-6)
    holed = X.copy()
    holed[:, 1] = np.nan
    assert_array_equal(model.score_samples(holed), rbm.score_samples(holed))
    no_partition = dbn((3,), partition=None).fit(X)
    assert no_partition.score(X) == no_partition.rbms_[0].score(X) < 0


# ------------------------------------------------------------------------------
# Likelihoods
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES)
def test_small_hidden_layers_are_summed_over(sizes):
    model = enlarge(dbn(sizes).fit(bits()))
    assert model.bound_kind_ == "exact"
    found = model.score_samples(STATES)
    assert_allclose(found, log_likelihood(model, STATES), atol=2e-4)
    assert logsumexp(found) == pytest.approx(0, abs=2e-4)
    assert model.score(STATES) == pytest.approx(found.mean())
    assert_allclose(-model.energy(STATES) - model.log_partition_, found)


@pytest.mark.parametrize("sizes", leading(1, SIZES[1:]))
def test_bounds_are_below_and_close_in(monkeypatch, sizes):
    monkeypatch.setattr(bounds, "SUMMED_UNITS", 0)
    model = enlarge(dbn(sizes).fit(bits()), 1.5)
    exact = log_likelihood(model, STATES)
    assert model.bound_kind_ == "lower"
    gaps = {}
    for n_draws in (1, 10, 1000):
        model.n_draws, found = n_draws, []
        for seed in range(1 if n_draws == 1000 else 10):
            model._seed = seed
            found.append(model.score_samples(STATES))
        mean = np.mean(found, 0)
        gaps[n_draws] = (exact - mean).mean()
        error = np.std(found, 0).max() / len(found) ** 0.5
        assert (mean < exact + 4 * error + (0.3 if n_draws == 1000 else 0)).all()
    assert gaps[1] > gaps[10] > gaps[1000]
    assert abs(gaps[1000]) < 0.03


@full
def test_weights_of_draws_have_the_likelihood_as_their_mean(monkeypatch):
    """Not its logarithm: the average over many seeds of the estimates themselves is unbiased."""
    model = enlarge(dbn((4, 3, 5), n_draws=3).fit(bits()), 1.5)
    exact = np.exp(log_likelihood(model, STATES))
    monkeypatch.setattr(bounds, "SUMMED_UNITS", 0)
    found = []
    for seed in range(200):
        model._seed = seed
        found.append(np.exp(model.score_samples(STATES)))
    error = np.std(found, 0) / len(found) ** 0.5
    assert (abs(np.mean(found, 0) - exact) < 5 * error + 1e-5).all()


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("exact", "chow-liu"),
        only_full("lower", "independent"),
        only_full("exact", "independent"),
        only_full("lower", "chow-liu"),
    ],
)
def test_numbers_and_categories_have_a_density_in_their_units(monkeypatch, kind, base):
    if kind == "lower":
        monkeypatch.setattr(bounds, "SUMMED_UNITS", 0)
    model = dbn(rbm={"base": base}, n_draws=200).fit(frame())
    ages = np.linspace(-60, 140, 201)
    total = 0.0
    for city, member in itertools.product(("Oslo", "Paris", "Rome"), (False, True)):
        rows = pd.DataFrame({"age": ages, "city": city, "member": member})
        total += integrate.trapezoid(np.exp(model.score_samples(rows)), ages)
    assert total == pytest.approx(1, abs=1e-3 if kind == "exact" else 0.02)
    other = frame().assign(age=lambda table: table["age"] * 10)
    scaled = dbn(rbm={"base": base}, n_draws=200).fit(other)
    gap = model.score_samples(frame()) - scaled.score_samples(other)
    assert_allclose(gap, np.log(10), atol=1e-3)


def test_a_row_has_the_same_value_beside_any_others(monkeypatch):
    monkeypatch.setattr(bounds, "SUMMED_UNITS", 0)
    X = np.concatenate([bits(300), bits(300)[:20]])
    model = enlarge(dbn(n_draws=5).fit(X), 1.0)
    scores = model.score_samples(X)
    assert_array_equal(model.score_samples(X[280:]), scores[280:])
    assert_array_equal(model.score_samples(X[::-1]), scores[::-1])
    assert_array_equal(scores[300:], scores[:20])  # equal rows
    errors = scores - log_likelihood(model, X)
    distinct = np.unique(np.c_[X, errors], axis=0)
    assert len(np.unique(distinct[:, -1])) == len(distinct)  # draws of their own


def test_a_second_layer_that_is_the_first_upside_down_gains_nothing(monkeypatch):
    """The identity on which the greedy training rests."""
    model = enlarge(dbn((4, 5)).fit(bits()), 2.0)
    first, second = model.rbms_
    second.components_ = first.components_.T
    second.intercept_visible_ = first.intercept_hidden_
    second.intercept_hidden_ = first.intercept_visible_
    expected = first.score_samples(STATES)
    assert_allclose(model.score_samples(STATES), expected, atol=1e-4)
    monkeypatch.setattr(bounds, "SUMMED_UNITS", 0)
    model.n_draws = 1  # all weights are equal
    assert_allclose(model.score_samples(STATES), expected, atol=1e-4)


def test_score_is_pessimistic_and_says_why_it_is_nan():
    X = bits()
    model = dbn(partition=AIS(n_chains=10, n_betas=20)).fit(X)
    largest = model.rbms_[-1]._log_partition().pessimistic
    assert model.score(X) == pytest.approx(-model.energy(X).mean() - largest)
    assert model.score(X) < model.score_samples(X).mean()
    assert model.log_partition_kind_ == model.rbms_[-1].log_partition_kind_
    assert model.log_partition_std_ > 0
    assert model.log_partition_bounds_ == model.rbms_[-1].log_partition_bounds_
    none = dbn(partition=None).fit(X)
    with pytest.warns(UserWarning, match="score is nan.*partition=None"):
        assert np.isnan(none.score(X))
    assert_array_equal(none.score_samples(X), -none.energy(X))
    exact = dbn(partition=Exact()).fit(X)
    assert (exact.log_partition_kind_, exact.log_partition_std_) == ("exact", 0)


def test_scores_of_probabilities_are_bounds_with_a_warning():
    X = bits()
    model = dbn().fit(X)
    with pytest.warns(UserWarning, match="1 of 60 rows are not binary"):
        model.score_samples(np.r_[X[1:], [[0.5] * 5]])


# ------------------------------------------------------------------------------
# Features, samples, reconstructions
# ------------------------------------------------------------------------------


def test_samples_have_the_probabilities_of_rows():
    model = enlarge(dbn((4, 3, 5)).fit(bits()), 2.0)
    n = 20_000
    rows = model.sample(n, random_state=0)
    code = (rows @ 2 ** np.arange(5)[::-1]).astype(int)
    p = np.exp(log_likelihood(model, STATES))
    observed = np.bincount(code, minlength=32) / n
    assert (abs(observed - p) < 5 * (p * (1 - p) / n) ** 0.5 + 1e-4).all()
    assert_array_equal(rows[:0].shape, (0, 5))
    assert_array_equal(rows, model.sample(n, random_state=0))
    cold = model.sample(2000, random_state=0, temperature=0.05)
    assert len(np.unique(cold, axis=0)) < len(np.unique(rows, axis=0))


@full
def test_frames_go_in_and_come_out():
    table = frame()
    table.loc[3, "age"] = np.nan
    model = dbn().fit(table)
    assert np.isfinite(model.transform(table)).all()
    assert list(model.sample(3, random_state=0).columns) == list(table.columns)
    assert list(model.reconstruct(table).columns) == list(table.columns)
    assert model.reconstruct(frame())["age"].corr(frame()["age"]) > 0.3
    assert list(model.get_feature_names_out()) == [f"deepbeliefnetwork{k}" for k in range(3)]
    named = model.set_output(transform="pandas").transform(table)
    assert list(named.columns) == [f"deepbeliefnetwork{k}" for k in range(3)]
    with pytest.raises(ValueError, match=r"complete rows: fill them in.*rbms_\[0\].impute"):
        model.score_samples(table)
    filled = model.rbms_[0].impute(table, random_state=0)
    assert np.isfinite(model.score_samples(filled)).all()
    unseen = frame().assign(city="Lima")
    with pytest.warns(UserWarning, match="levels that did not occur"):
        assert np.isfinite(np.asarray(model.transform(unseen))).all()


def test_outputs_in_between_do_not_depend_on_the_configuration():
    from sklearn import config_context

    X = bits()
    with config_context(transform_output="pandas"):
        model = dbn().fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_array_equal(model.transform(X), dbn().fit(X).transform(X))


def test_states_above_are_drawn_once():
    X = bits()
    model = dbn(upper_input="states", rbm={"random_state": 1})
    with pytest.MonkeyPatch.context() as patch:
        seen = []
        fit = RBMEstimator.fit
        patch.setattr(
            RBMEstimator, "fit", lambda self, X, **kw: (seen.append(X), fit(self, X, **kw))[1]
        )
        model.fit(X)
    assert set(np.unique(seen[1])) == {0.0, 1.0}
    assert not np.array_equal(model.transform(X), dbn(rbm={"random_state": 1}).fit_transform(X))
    assert_array_equal(model.transform(X), clone(model).fit(X).transform(X))


def test_it_is_stored_and_searched():
    X = bits()
    model = dbn().fit(X)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.score_samples(X), model.score_samples(X))
    assert_array_equal(again.sample(3, random_state=1), model.sample(3, random_state=1))
    search = DeepBeliefNetwork((3, 2), random_state=0).set_params(rbm__n_iter=2)
    grid = {"rbm__learning_rate": [0.01, 0.5], "hidden_layer_sizes": [(2,), (2, 2)]}
    found = GridSearchCV(search, grid, cv=2).fit(X)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
    detector = EnergyOutlierDetector(dbn(), random_state=0).fit(X)
    assert set(detector.predict(X)) <= {-1, 1}


def test_global_generators_are_left_alone():
    X = bits()
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    model = dbn().fit(X)
    model.score_samples(X)
    model.sample(3, random_state=0)
    model.to_module(2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


# ------------------------------------------------------------------------------
# Bad input, interrupts
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sizes": ()}, "at least one layer"),
        ({"sizes": (0,)}, "at least 1"),
        ({"sizes": (3, -1)}, "at least 1"),
        ({"sizes": (3.5,)}, "integer"),
        ({"sizes": (True,)}, "integer"),
        ({"sizes": 0}, "hidden_layer_sizes"),
        ({"layer_params": [{}]}, "2 dicts"),
        ({"layer_params": [{}, 3]}, "2 dicts"),
        ({"layer_params": [{}, {"n_components": 3}]}, "hidden_layer_sizes"),
        ({"layer_params": [{"warm_start": True}, {}]}, "anew"),
        ({"layer_params": [{}, {"visible": "bernoulli"}]}, "only layer 0"),
        ({"layer_params": [{}, {"n_iters": 3}]}, "n_iters"),
        ({"upper_input": "means"}, "upper_input"),
        ({"n_draws": 0}, "n_draws"),
        ({"partition": "exact"}, "partition"),
    ],
)
def test_bad_parameters(params, message):
    model = dbn(**params)
    with pytest.raises(ValueError, match=message):
        model.fit(bits())
    assert not hasattr(model, "rbms_")


@pytest.mark.parametrize(
    "X",
    [
        np.full((5, 3), np.nan),
        np.array([[0.0, np.inf], [1.0, 0.0]]),
        np.zeros((1, 3)),
        np.zeros((0, 3)),
        np.zeros(5),
        np.zeros((3, 3, 3)),
        pd.DataFrame({"a": [], "b": []}),
        np.array([[1 + 2j, 0], [0, 1]]),
    ],
)
def test_bad_rows_leave_the_model_as_it_was(X):
    model = dbn().fit(bits())
    before = fingerprint(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError):  # noqa: PT011
            model.fit(X)
    assert fingerprint(model) == before


def test_hard_rows_are_fitted():
    random = np.random.default_rng(0)
    for X in (
        random.normal(size=(30, 1)),
        1e9 * random.normal(size=(30, 3)),
        np.zeros((20, 4)),
        np.c_[random.normal(size=40), random.integers(0, 2, 40)],
    ):
        model = dbn().fit(X)
        assert np.isfinite(model.score_samples(X)).all()
        assert model.sample(2, random_state=0).shape == (2, X.shape[1])


def test_other_columns_and_no_fit_are_errors():
    model = dbn()
    for call in (model.transform, model.score_samples, model.score, model.energy):
        with pytest.raises(NotFittedError):
            call(bits())
    for call in (model.sample, model.to_module):
        with pytest.raises(NotFittedError):
            call()
    model.fit(bits())
    with pytest.raises(ValueError, match="4 features"):
        model.score_samples(bits()[:, :4])
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match="n_outputs"):
            model.to_module(wrong)
        with pytest.raises(ValueError, match="n_samples"):
            model.sample(wrong)


def test_what_has_no_effect_is_said():
    with pytest.warns(UserWarning, match="rbm__n_components, because hidden_layer_sizes"):
        dbn(rbm={"n_components": 7}).fit(bits())
    with pytest.warns(UserWarning, match="n_draws, because"):
        dbn((3,), n_draws=7).fit(bits())


def test_settings_of_columns_are_for_the_first_rbm():
    table = frame()
    codes = table.assign(city=table["city"].map({"Oslo": 0, "Paris": 1, "Rome": 2}))
    model = dbn(rbm={"categorical_features": ["city"], "base": "latent-classes"}).fit(codes)
    first, second = model.rbms_
    assert first.base_name_ == "latent-classes"
    assert second.base == "auto"
    assert type(second.energy_) is BernoulliRBM
    with pytest.raises(ValueError, match="temperature=2"):
        model.sample(2, temperature=2.0)
    own = dbn(layer_params=[None, {"n_iter": 2, "penalty__l2": 0.1}]).fit(bits())
    assert [rbm.n_iter_ for rbm in own.rbms_] == [5, 2]


def test_warnings_name_the_rbms():
    X = np.random.default_rng(0).integers(0, 2, (300, 5)).astype(float)  # nothing to learn
    model = DeepBeliefNetwork((4, 3), rbm=RBMEstimator(n_iter=3, learning="pcd"), random_state=1)
    with pytest.warns(UserWarning, match="RBMs 1, 2 of 2: ") as said:
        model.fit(X)
    assert len(said) == len({str(one.message).split(":")[0] for one in said})


class Interrupt(Callback):
    """Ctrl-C at the end of a batch of the RBM with so many visible units."""

    def __init__(self, n_visible):
        self.n_visible = n_visible

    def on_batch_end(self, net, training=True, **kwargs):
        if net.module_.energy.domain.n_columns == self.n_visible:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("n_visible", "n_layers"), [(5, 1), (4, 2)])
def test_an_interrupted_fit_keeps_the_layers_so_far(n_visible, n_layers):
    X = bits()
    net = {"callbacks": [Interrupt(n_visible)]}
    model = dbn(rbm={"net_params": net, "learning": "pcd"})
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert len(model.rbms_) == n_layers
    assert logsumexp(model.score_samples(STATES)) == pytest.approx(0, abs=1e-3)
    assert len(model.to_module()) == 2 * n_layers


def test_an_interrupt_between_two_rbms_leaves_the_model_as_it_was(monkeypatch):
    X = bits()
    model = dbn().fit(X)
    before = fingerprint(model)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(belief.DeepBeliefNetwork, "_upper_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert fingerprint(model) == before


# ------------------------------------------------------------------------------
# Modules
# ------------------------------------------------------------------------------


def numbers(n=60, seed=0):
    """Bits between numbers of other units, and a constant column."""
    random = np.random.default_rng(seed)
    kind = random.random(n) < 0.5
    columns = [1e3 + 50 * random.normal(size=n) + 80 * kind, kind, 0.01 * random.normal(size=n)]
    return np.column_stack([*columns, random.random(n) < 0.3, np.full(n, 3.0)]).astype(float)


@pytest.mark.parametrize("kind", ["bits", "scaled", "numbers", "tree"])
def test_a_module_computes_the_features(kind):
    X = numbers() if kind in ("scaled", "numbers") else bits()
    settings = {"scaled": {"visible": "bernoulli"}, "tree": {"base": "chow-liu"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns that are scaled
        model = dbn(rbm=settings.get(kind)).fit(X)
    module = model.to_module()
    found = module(torch.as_tensor(X, dtype=torch.float32)).detach().numpy()
    assert_allclose(found, model.transform(X), atol=2e-5)
    first = torch.nn.Sequential(*module[:2])(torch.as_tensor(X, dtype=torch.float32))
    assert_allclose(first.detach().numpy(), model.transform_layers(X)[0], atol=2e-5)


def test_a_module_is_a_copy_that_can_be_trained():
    X, model = bits(), dbn().fit(bits())
    before = model.transform(X)
    module = model.to_module(3)
    assert not module(torch.zeros(4, 5)).any()
    assert all(p.dtype == torch.float32 and p.requires_grad for p in module.parameters())
    x, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(X[:, 0]).long()
    optimizer = torch.optim.Adam(module.parameters(), 0.1)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert_array_equal(model.transform(X), before)
    with torch.no_grad():
        model.to_module()[0].weight.zero_()
    assert_array_equal(model.transform(X), before)


def test_categories_have_no_module():
    with pytest.raises(ValueError, match=r"\['city'\] are categories.*OneHotEncoder"):
        dbn().fit(frame()).to_module()


def test_modules_inside_skorch_and_jem():
    X, y = load_digits(return_X_y=True)
    X, y = (X[:300] > 7).astype(np.float32), y[:300]
    model = dbn((24, 16), rbm={"n_iter": 10, "learning_rate": 0.05}).fit(X)
    net = NeuralNetClassifier(
        model.to_module(10),
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.05,
        max_epochs=30,
        train_split=None,
        verbose=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert net.fit(X, y.astype(np.int64)).score(X, y) > 0.8
    jem = JEMClassifier(
        model.to_module(10), generative_weight=0, learning_rate=0.05, n_iter=30, random_state=0
    ).fit(X, y)
    assert jem.score(X, y) > 0.8
    standard = dbn((24, 16)).fit(numbers())
    label = numbers()[:, 1].astype(int)
    real = JEMClassifier(
        standard.to_module(2), standardize=False, base=None, n_iter=0, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large means: the first layer takes them off
        real.fit(numbers(), label)
    assert_array_equal(real.logits(numbers()), np.zeros((60, 2)))


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------

SMALL = {"n_iter": 3, "batch_size": 20, "learning_rate": 0.1, "base": "independent"}
CHECKED = {
    "two layers": DeepBeliefNetwork((3, 2), rbm=RBMEstimator(**SMALL), random_state=0),
    "one layer": DeepBeliefNetwork((3,), rbm=RBMEstimator(**SMALL), random_state=0),
    "sampled": DeepBeliefNetwork(
        (14, 2), rbm=RBMEstimator(**SMALL), n_draws=3, upper_input="states", random_state=0
    ),
}
WEIGHTS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "mini-batches are drawn from rows"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(CHECKED, lambda estimator: WEIGHTS, first=("two layers",))
def test_estimator_checks(estimator, check):
    check(estimator)


@full
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_weights_are_repetitions_in_one_full_batch(kind):
    exact = RBMEstimator(dtype="float64", learning="exact", base="independent", n_iter=5)
    check = getattr(estimator_checks, f"check_sample_weight_equivalence_on_{kind}_data")
    check("DeepBeliefNetwork", DeepBeliefNetwork((3, 2), rbm=exact, random_state=0))


@full
def test_the_defaults_are_fitted():
    X = (load_digits().data[:150] > 7).astype(float)
    model = DeepBeliefNetwork(random_state=0).fit(X)
    assert model.bound_kind_ == "lower"
    assert model.score(X) > -35


@full
def test_gains_of_widths_that_are_filled_up(monkeypatch):
    """Layers of 20 units are padded to 32 in scoring: units that are never on change nothing."""
    monkeypatch.setattr(bounds, "SUMMED_UNITS", 0)
    generator = seeded(0)
    lower = BernoulliRBM(6, 20, generator=generator, scale=0.2).requires_grad_(False)
    upper = BernoulliRBM(20, 7, generator=generator, scale=0.2).requires_grad_(False)
    x = torch.randint(0, 2, (64, 6), generator=generator).float()
    plain = bounds.log_mean_gain_of_draws([lower, upper], x, 2000, 0)
    wide = torch.nn.functional.pad(x, (0, 10))
    padded = bounds.log_mean_gain_of_draws(
        [lower.with_padding(), upper.with_padding()], wide, 2000, 0
    )
    assert abs(float((plain - padded).mean())) < 0.02


def test_a_row_without_end_is_impossible_and_not_a_number():
    rng = np.random.default_rng(0)
    model = dbn().fit(rng.normal(size=(60, 2)))
    assert model.score_samples([[1e300, 1.0]]) == -np.inf
    assert model.energy([[1e300, 1.0]]) == np.inf


def test_each_layer_shows_its_progress(capsys):
    x = (np.random.default_rng(0).random((30, 4)) < 0.5).astype(float)
    rbm = RBMEstimator(base="independent", n_iter=2)
    DeepBeliefNetwork((3, 2), rbm=rbm, verbose=1, random_state=0).fit(x)
    assert capsys.readouterr().err.count("2/2") == 2
