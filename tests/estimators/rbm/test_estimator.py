"""RBMEstimator against enumeration: what it promises about probabilities, it keeps."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logsumexp
from sklearn.base import clone

from skebm import DeepBoltzmannMachine, RBMClassifier, RBMEstimator, TemporalRBM
from skebm.estimators.rbm import drawing
from skebm.objectives import Centering, Penalty
from skebm.training import SGD, EarlyStopping
from tests.support.rbm import fit_once, independent_score
from tests.support.tiers import full, leading, named, only_full


def bits(n):
    return np.array(list(itertools.product((0.0, 1.0), repeat=n)))


class Enumerated:
    """All 2^d rows of a fitted model with their probabilities, from its weights alone."""

    def __init__(self, model):
        W, c, b = model.components_, model.intercept_hidden_, model.intercept_visible_
        W, c, b = (a.astype(np.float64) for a in (W, c, b))
        self.x, h = bits(W.shape[1]), bits(W.shape[0])
        # E(x, h) = -b'x - c'h - h'Wx, summed over all pairs
        joint = (self.x @ b)[:, None] + (h @ c)[None, :] + self.x @ W.T @ h.T
        self.log_weight = logsumexp(joint, axis=1)
        self.log_z = logsumexp(self.log_weight)
        self.log_p = self.log_weight - self.log_z
        self.p = np.exp(self.log_p)
        self.hidden_mean = np.exp(joint - self.log_weight[:, None]) @ h

    def index(self, X):
        return (np.asarray(X) @ 2 ** np.arange(self.x.shape[1])[::-1]).astype(int)

    def p_value(self, X):
        """Chi-square test that the rows are independent draws; rare states pooled."""
        return chi_square(np.bincount(self.index(X), minlength=len(self.x)), self.p)

    def given(self, row):
        """Probabilities of all states given the entries of a row that are not NaN."""
        known = ~np.isnan(row)
        p = self.p * (self.x[:, known] == row[known]).all(1)
        return p / p.sum()


def chi_square(counts, p):
    expected = p * counts.sum()
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        counts, expected = counts[:-1], expected[:-1] * counts[:-1].sum() / expected[:-1].sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return scipy.stats.chi2.sf(statistic, len(counts) - 1)


def rows(n=400, d=8, seed=0, noise=0.05):
    """Columns that copy one of two switches with noise."""
    rng = np.random.default_rng(seed)
    switches = rng.random((n, 2)) < (0.3, 0.6)
    copied = switches[:, np.arange(d) % 2]
    return np.where(rng.random((n, d)) < noise, ~copied, copied).astype(np.float64)


X = rows()
SMALL = rows(300, 5)


def fitted(**params):
    """Fitted to X, by L-BFGS unless the parameters say otherwise."""
    return fit_once(RBMEstimator(4, random_state=0, **params), X)


def fitted_to_small(**params):
    return fit_once(RBMEstimator(3, random_state=0, **params), SMALL)


@pytest.fixture
def model():
    return fitted(dtype="float64")


@pytest.fixture
def small():
    """Of moderate weights, so that chains mix within a few steps."""
    return fitted_to_small(dtype="float64", penalty=Penalty(l2=0.02))


# ------------------------------------------------------------------------------
# Likelihood
# ------------------------------------------------------------------------------


SHAPES = [(8, 4), (4, 7), (12, 5), (1, 3), (5, 1)]  # enumerated by rows or by hidden layers


@pytest.mark.parametrize(
    ("learning", "shape"),
    [
        *(("auto", shape) for shape in leading(5, SHAPES)),
        ("pcd", (8, 4)),
        *(only_full("pcd", shape) for shape in SHAPES[1:]),
        *(only_full(rule, (4, 7)) for rule in ("cd", "exact")),
    ],
)
def test_probabilities_sum_to_one(learning, shape):
    d, n_hidden = shape
    params = {"n_iter": 30}
    if learning != "auto":
        params |= {"learning_rate": 0.2, "batch_size": 20}
    model = RBMEstimator(n_hidden, learning=learning, random_state=0, **params).fit(rows(200, d))
    # It has learned something, unless that is too little to be kept.
    assert np.abs(model.components_).max() > 0.05 or 1 in shape
    assert np.exp(model.score_samples(bits(d))).sum() == pytest.approx(1, abs=1e-4)


def test_log_likelihoods_equal_brute_force(model):
    truth = Enumerated(model)
    assert_allclose(model.score_samples(truth.x), truth.log_p, rtol=0, atol=1e-10)
    assert_allclose(model.energy(truth.x), -truth.log_weight, rtol=0, atol=1e-10)
    assert model.log_partition_ == pytest.approx(truth.log_z, abs=1e-10)
    assert model.log_partition_bounds_ == (model.log_partition_,) * 2
    assert model.score(X) == pytest.approx(truth.log_p[truth.index(X)].mean(), abs=1e-10)


def test_exact_learning_reaches_what_is_known_to_be_reachable():
    """Two copies of one fair coin, a third column apart: the entropy is 2 log 2."""
    coins = bits(2)[np.repeat(np.arange(4), 25)][:, [0, 0, 1]]
    to_the_end = EarlyStopping(validation_fraction=None, tol=1e-7)
    model = RBMEstimator(3, random_state=0, early_stopping=to_the_end).fit(coins)
    assert model.score(coins) == pytest.approx(-2 * np.log(2), abs=0.02)
    assert model.score(coins) < -2 * np.log(2)


def penalised(penalty, **params):
    """The mean negative log-likelihood with the penalty, by its formula."""
    model = RBMEstimator(4, random_state=0, penalty=penalty, **params).fit(SMALL)
    weight = model.components_.astype(np.float64)
    cost = penalty.l1 * np.abs(weight).sum() + penalty.l2 / 2 * (weight**2).sum()
    return cost - model.score(SMALL)


@full
def test_an_l1_penalty_leaves_the_weights_that_it_should():
    """From initial weights that are small to l1, all ended at 0, at a far worse penalised value."""
    p, penalty = SMALL.mean(0), Penalty(l1=0.005)
    independent = -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum()
    assert penalised(penalty) < independent - 0.2


RULES = [
    {"learning": "exact", "learning_rate": 1.0, "batch_size": 300, "n_iter": 1500},
    {"learning": "pcd", "learning_rate": 0.5, "batch_size": 100, "n_iter": 700},
]


@full
@pytest.mark.parametrize("rule", RULES, ids=["exact", "pcd"])
@pytest.mark.parametrize("penalty", [Penalty(l2=0.02), Penalty(l1=0.005)], ids=str)
def test_penalties_have_the_same_optimum_by_every_rule(penalty, rule):
    """Preconditioned where there are chains; weights of 0, near which l1 starts, are far off."""
    best = penalised(penalty)
    rule = rule | {"optimizer": SGD(schedule="linear")}
    if rule["learning"] == "pcd":
        rule["centering"] = Centering(precondition=0.5)
    assert penalised(penalty, **rule) == pytest.approx(best, abs=0.03)


@pytest.mark.parametrize("learning", leading(1, ["pcd", "auto", "cd", "exact"]))
def test_learning_finds_the_structure(learning):
    params = {"learning_rate": 0.3, "batch_size": 20, "n_iter": 40, "optimizer__schedule": "linear"}
    model = RBMEstimator(4, random_state=0, learning=learning)
    model.set_params(**params if learning != "auto" else {}).fit(X)
    # the entropy of the generating distribution is at least that of its noise and switches
    noise, p, q = 0.05, 0.3, 0.6
    entropy = sum(
        -k * (a * np.log(a) + (1 - a) * np.log(1 - a)) for k, a in ((8, noise), (1, p), (1, q))
    )
    assert independent_score(X) + 1.5 < model.score(X) < -entropy + 0.3


def test_transform_is_the_hidden_mean(model):
    truth = Enumerated(model)
    assert_allclose(model.transform(truth.x), truth.hidden_mean, rtol=0, atol=1e-12)
    formula = expit(X @ model.components_.T + model.intercept_hidden_)
    assert_allclose(model.transform(X), formula, rtol=0, atol=1e-12)


def test_reconstruction_is_one_mean_field_pass(model):
    h = model.transform(X)
    expected = expit(h @ model.components_ + model.intercept_visible_)
    assert_allclose(model.reconstruct(X), expected, rtol=0, atol=1e-12)


def test_pseudo_likelihood_equals_enumeration(model):
    truth = Enumerated(model)
    expected = np.zeros(len(X))
    for i in range(X.shape[1]):
        flipped = X.copy()
        flipped[:, i] = 1 - X[:, i]
        here, there = truth.p[truth.index(X)], truth.p[truth.index(flipped)]
        expected += np.log(here / (here + there))
    assert_allclose(model.pseudo_likelihood(X), expected, rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------
# Streams
# ------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("learning", ["auto", "pcd", "cd"])
def test_a_long_stream_keeps_the_mean_of_the_data(learning):
    """Mini-batch gradients are means: the model must not run off when calls are many."""
    rng = np.random.default_rng(0)
    model = RBMEstimator(2, learning=learning, batch_size=10, learning_rate=0.05, random_state=0)
    for _ in range(300):
        model.partial_fit((rng.random((200, 16)) < 0.306).astype(np.float32))
    assert model.n_iter_ == 300
    draws = model.sample(40_000, random_state=0)
    assert_allclose(draws.mean(0), 0.306, rtol=0, atol=0.06)  # the last steps' noise
    assert draws.mean() == pytest.approx(0.306, abs=0.01)


def test_a_stream_of_parts_is_a_pass_over_the_whole():
    """One batch a call, so that the order of rows makes no difference."""
    one = RBMEstimator(2, learning="exact", batch_size=50, random_state=0).partial_fit(SMALL[:50])
    before = one.components_.copy(), one.intercept_visible_.copy()
    one.partial_fit(SMALL[:50])
    step = np.abs(one.components_ - before[0]).max(), np.abs(one.intercept_visible_ - before[1])
    # one step of size 0.1 along a gradient whose entries are at most 1
    assert 0 < step[0] <= 0.1
    assert step[1].max() <= 0.25


@pytest.mark.parametrize("learning", leading(1, ["pcd", "auto", "cd"]))
def test_a_stream_follows_data_that_change(learning):
    """Rows that the old model finds very unlikely are no divergence."""
    old = (np.random.default_rng(0).random((500, 8)) < 0.02).astype(float)
    params = {"learning": learning, "learning_rate": 0.1, "batch_size": 20, "random_state": 0}
    model = RBMEstimator(3, **params)
    for _ in range(20):
        model.partial_fit(old)
    before = model.score(1 - old)
    assert before < -8 * np.log(2) - 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            model.partial_fit(1 - old)
    assert model.score(1 - old) > before + 5


@pytest.mark.parametrize("learning", ["pcd", "cd", "exact"])
def test_a_rare_row_alone_in_the_last_batch_is_no_divergence(learning):
    rare = np.zeros((101, 8))
    rare[:100:3, 0] = 1
    rare[100] = [0, 1, 1, 1, 1, 1, 1, 1]
    model = RBMEstimator(3, learning=learning, learning_rate=0.1, batch_size=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "partial_fit holds out no rows")
        for _ in range(10):
            model.partial_fit(rare[:100])
        model.partial_fit(rare[100:])
    assert model.n_restarts_ == 0


def test_a_stream_keeps_the_scaling_of_its_first_rows():
    model = RBMEstimator(2, random_state=0, batch_size=20, visible="bernoulli")
    with pytest.warns(UserWarning, match="min-max scaled"):
        model.partial_fit(10 * SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(10 * SMALL)
        model.partial_fit(10 * SMALL[:1])
    with pytest.warns(UserWarning, match="clipped"):
        model.partial_fit(11 * SMALL)
    assert set(np.unique(model.sample(50, random_state=0))) == {0, 10}


# ------------------------------------------------------------------------------
# Samples
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_hidden", [2, 7])  # enumerates the hidden side, the visible side
def test_exact_samples(n_hidden):
    model = fit_once(RBMEstimator(n_hidden, random_state=0, dtype="float64"), SMALL)
    draws = model.sample(8000, random_state=1)
    assert Enumerated(model).p_value(draws) > 1e-3
    # independent of each other: pairs of neighbours have no correlation
    total = draws.sum(1)
    assert abs(np.corrcoef(total[1:], total[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize("learning", leading(1, ["pcd", "exact"]))
def test_samples_of_chains(learning, monkeypatch):
    monkeypatch.setattr(drawing, "CHEAP_COST", 0)
    params = {"n_iter": 20, "penalty": Penalty(l2=0.05), "learning_rate": 0.1}
    model = RBMEstimator(3, learning=learning, random_state=0, **params).fit(SMALL)
    draws = model.sample(5000, random_state=1, n_steps=50)
    assert Enumerated(model).p_value(draws) > 1e-3
    assert len(model.sample(5000, n_steps=1)) == 5000  # more than one block


def test_samples_do_not_move_the_training_chains():
    model = RBMEstimator(60, learning="pcd", n_iter=2, random_state=0).fit(rows(100, 40))
    before = model.h_samples_.copy()
    one = model.sample(10, random_state=0, n_steps=20)
    assert_array_equal(one, model.sample(10, random_state=0, n_steps=20))
    assert_array_equal(model.h_samples_, before)


@full
def test_gibbs_leaves_the_model_invariant(small):
    truth = Enumerated(small)
    start = small.sample(20_000, random_state=0)
    after = small.gibbs(start)
    assert after.dtype == bool
    assert truth.p_value(after) > 1e-3
    assert not np.array_equal(after, small.gibbs(start))


# ------------------------------------------------------------------------------
# Imputation and denoising
# ------------------------------------------------------------------------------


def test_imputation_keeps_what_is_known(model):
    missing = np.random.default_rng(0).random(X.shape) < 0.5
    holes = np.where(missing, np.nan, X)
    for given in (holes, holes.astype(np.float32), sp.csr_array(holes), pd.DataFrame(holes)):
        filled = np.asarray(model.impute(given, random_state=0))
        assert_array_equal(filled[~missing], X[~missing])
        assert set(filled[missing]) == {0, 1}
    assert np.isnan(holes[missing]).all()
    assert_array_equal(model.impute(X), X)
    real = np.where(missing, np.nan, 0.25 + 0.5 * X)
    filled = model.impute(real, random_state=0)
    assert_array_equal(filled[~missing], real[~missing])


def test_a_row_of_nothing_is_a_sample(small):
    filled = small.impute(np.full((20_000, 5), np.nan), random_state=0, n_steps=100)
    assert Enumerated(small).p_value(filled) > 1e-3


@pytest.mark.parametrize("hidden_bits", leading(1, [[0, 1, 2, 4], [0, 3], [2]]))
def test_missing_bits_are_drawn_given_the_others(small, hidden_bits):
    truth = Enumerated(small)
    row = SMALL[0].copy()
    row[hidden_bits] = np.nan
    filled = small.impute(np.tile(row, (20_000, 1)), random_state=0, n_steps=100)
    counts = np.bincount(truth.index(filled), minlength=32)
    p = truth.given(row)
    assert counts[p == 0].sum() == 0
    assert chi_square(counts[p > 0], p[p > 0]) > 1e-3


def test_missing_bits_of_different_rows_are_drawn_for_each_row(small):
    """A pattern of holes for each row, not one for the batch."""
    truth = Enumerated(small)
    holes = np.tile(SMALL[:4], (5000, 1))
    holes[np.arange(len(holes)), np.tile([0, 1, 2, 3], 5000)] = np.nan
    filled = small.impute(holes, random_state=0, n_steps=100)
    for k in range(4):
        p = truth.given(holes[k]) @ truth.x[:, k]
        assert filled[k::4, k].mean() == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / 5000))


@pytest.mark.parametrize("noise_level", leading(1, [0.3, 0.05]))
def test_denoising_is_the_posterior_mean(small, noise_level):
    truth = Enumerated(small)
    noisy = truth.x[[0, 5, 18, 31]]
    flips = (noisy[:, None] != truth.x[None]).sum(2)  # (4, 32)
    posterior = truth.p * noise_level**flips * (1 - noise_level) ** (5 - flips)
    expected = posterior / posterior.sum(1, keepdims=True) @ truth.x
    many = np.repeat(noisy, 500, axis=0)
    mean = small.denoise(many, noise_level, random_state=0, n_steps=100)
    assert ((mean >= 0) & (mean <= 1)).all()
    mean = mean.reshape(4, 500, 5)
    error = mean.std(1) / np.sqrt(500)
    assert (np.abs(mean.mean(1) - expected) < 4.5 * error + 1e-6).all()


def test_denoising_removes_noise(model):
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(X.shape) < 0.1, 1 - X, X)
    clean = model.denoise(noisy, 0.1, random_state=0)
    assert ((clean - X) ** 2).mean() < 0.6 * ((noisy - X) ** 2).mean()


# ------------------------------------------------------------------------------
# Columns outside [0, 1], and real values inside
# ------------------------------------------------------------------------------

UNITS = np.array([1.0, -3, 100, 0.01, 5])
SHIFT = np.array([0.0, 7, 1000, 0.5, -2])
SCALED = SHIFT + UNITS * SMALL  # columns 0 and 3 stay inside [0, 1]


def fit_scaled():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_once(RBMEstimator(3, visible="bernoulli", random_state=0, n_iter=50), SCALED)


def test_columns_outside_the_unit_interval_are_named_once():
    with pytest.warns(UserWarning, match="min-max scaled") as caught:
        model = RBMEstimator(3, visible="bernoulli", random_state=0, n_iter=5).fit(SCALED)
    (message,) = (str(w.message) for w in caught if "scaled" in str(w.message))
    assert "columns 1, 2, 4 " in message
    assert 'visible="probabilities"' in message
    assert_array_equal(model.scaling_.columns, [1, 2, 4])
    assert_array_equal(model.scaling_.low, [4, 1000, -2])
    assert_array_equal(model.scaling_.width, [3, 100, 5])
    frame = pd.DataFrame(SCALED, columns=list("abcde"))
    with pytest.warns(UserWarning, match="columns 'b', 'c', 'e' "):
        clone(model).fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(model).fit(SMALL)


def test_scaled_columns_give_the_model_of_the_bits():
    unit = SCALED.copy()
    unit[:, [1, 2, 4]] = (SCALED[:, [1, 2, 4]] - [4, 1000, -2]) / [3, 100, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit_scaled()
        expected = clone(model).fit(unit)
        assert_array_equal(model.components_, expected.components_)
        assert_array_equal(model.score_samples(SCALED), expected.score_samples(unit))
        assert_allclose(
            model.score_samples(SCALED.astype(np.float32)),
            model.score_samples(SCALED),
            rtol=0,
            atol=1e-3,
        )


def test_what_comes_out_is_in_the_units_of_the_data():
    model = fit_scaled()
    values = [{0, 1}, {4, 7}, {1000, 1100}, {0, 1}, {-2, 3}]
    for out in (model.sample(200, random_state=0), model.gibbs(SCALED)):
        assert [set(column) <= allowed for column, allowed in zip(out.T, values, strict=True)] == (
            [True] * 5
        )
    holes = SCALED.copy()
    holes[::2, 1] = holes[1::2, 2] = np.nan
    filled = model.impute(holes, random_state=0)
    known = ~np.isnan(holes)
    assert_array_equal(filled[known], SCALED[known])
    assert set(filled[::2, 1]) == {4, 7}
    assert set(filled[1::2, 2]) == {1000, 1100}
    low, high = np.array([0, 4, 1000, 0, -2]), np.array([1, 7, 1100, 1, 3])
    for out in (model.reconstruct(SCALED), model.denoise(SCALED, random_state=0)):
        assert ((out >= low) & (out <= high)).all()
        assert out[:, 2].max() > 1050


def test_later_values_outside_the_range_are_clipped_with_a_warning():
    model = fit_scaled()
    beyond = SCALED.copy()
    beyond[0, 2] = 5000
    beyond[1, 4] = -50
    inside = SCALED.copy()
    inside[0, 2], inside[1, 4] = 1100, -2
    with pytest.warns(UserWarning, match="columns 2, 4 .*clipped"):
        scores = model.score_samples(beyond)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_array_equal(scores, model.score_samples(inside))
    binary = fitted_to_small(n_iter=5)
    with pytest.warns(UserWarning, match="columns 1 .*clipped"):
        binary.predict(SMALL + [0, 1, 0, 0, 0])


def test_a_new_value_of_a_constant_column_is_outside():
    constant = SMALL.copy()
    constant[:, 0] = 5
    with pytest.warns(UserWarning, match="columns 0 "):
        model = RBMEstimator(3, visible="bernoulli", random_state=0, n_iter=20).fit(constant)
    assert (model.sample(50, random_state=0)[:, 0] == 5).mean() > 0.9
    other = constant.copy()
    other[:, 0] = 5.5
    with pytest.warns(UserWarning, match="columns 0 "):
        model.predict(other)


@pytest.mark.parametrize("cls", [RBMEstimator, RBMClassifier, DeepBoltzmannMachine, TemporalRBM])
def test_values_that_are_no_probabilities_raise_where_probabilities_are_asked_for(cls):
    y = [np.arange(len(SCALED)) % 2] * (cls is RBMClassifier)
    with pytest.raises(ValueError, match=r"columns 1, 2, 4 .*probabilities.*visible=\"bernoulli\""):
        cls(visible="probabilities").fit(SCALED, *y)


def test_new_values_that_are_no_probabilities_raise():
    model = fitted_to_small(visible="probabilities", n_iter=5)
    with pytest.raises(ValueError, match="columns 0.*probabilities"):
        model.predict(SMALL + 1)


def test_scaling_of_sparse_columns():
    counts = sp.csr_array(np.random.default_rng(0).poisson(1.0, (100, 4)).astype(float))
    with pytest.warns(UserWarning, match="min-max scaled"):
        sparse = RBMEstimator(2, visible="bernoulli", random_state=0, learning="pcd", n_iter=2).fit(
            counts
        )
    with pytest.warns(UserWarning, match="min-max scaled"):
        dense = RBMEstimator(2, visible="bernoulli", random_state=0, learning="pcd", n_iter=2).fit(
            counts.toarray()
        )
    assert_array_equal(sparse.components_, dense.components_)
    assert_array_equal(sparse.transform(counts), dense.transform(counts.toarray()))


def test_probabilities_are_mentioned_once():
    """By the fit that scales them, or by the first likelihood."""
    X = np.random.default_rng(0).normal(size=(50, 3))
    with pytest.warns(UserWarning, match="min-max scaled.*lower bounds"):
        model = RBMEstimator(2, visible="bernoulli", random_state=0, learning="pcd", n_iter=2).fit(
            X
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.score_samples(X)
    with pytest.warns(UserWarning, match="10 of 10 rows are not binary.*lower bounds"):
        fitted_to_small().score_samples(np.full((10, 5), 0.5))


def test_samples_of_a_constant_column_have_its_value():
    with pytest.warns(UserWarning, match="min-max scaled"):
        model = RBMEstimator(2, visible="bernoulli", random_state=0, n_iter=0).fit(
            np.full((20, 40), 3.0)
        )
    assert_array_equal(model.sample(500, random_state=0), 3.0)
    assert_array_equal(model.denoise(np.full((2, 40), 3.0)), 3.0)


def test_probabilities_are_bounded_below_by_their_own_score(model):
    """F is concave: the score of a row of probabilities is at most that of its binarisations."""
    truth = Enumerated(model)
    p = np.random.default_rng(0).random((20, X.shape[1]))
    with pytest.warns(UserWarning, match="20 of 20 rows are not binary.*lower bound"):
        bound = model.score_samples(p)
    weights = np.prod(np.where(truth.x[None] == 1, p[:, None], 1 - p[:, None]), axis=2)
    mean = weights @ truth.log_p
    assert (bound <= mean + 1e-9).all()
    assert (bound < mean - 1e-3).any()
    with pytest.warns(UserWarning, match="not binary"):
        model.score(p)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.score_samples(X)
        model.predict(p)


# ------------------------------------------------------------------------------
# Outliers
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", named((25, 64), [20, 25, 27, 64, 101]))
@pytest.mark.parametrize("contamination", named((0.05, "auto"), [0.05, 0.1, 0.25, 0.5, "auto"]))
def test_contamination_is_the_fraction_of_outliers(n, contamination):
    table = np.random.default_rng(0).random((n, 12))
    model = RBMEstimator(
        3, learning="pcd", n_iter=1, contamination=contamination, random_state=0, dtype="float64"
    ).fit(table)
    assert len(np.unique(model.energy(table))) == n
    fraction = 0.1 if contamination == "auto" else contamination
    n_outliers = (model.predict(table) == -1).sum()
    assert abs(n_outliers - fraction * n) <= 0.5
    assert_array_equal(model.predict(table) == -1, model.decision_function(table) < 0)


@full
def test_the_threshold_does_not_depend_on_the_order_of_rows():
    model = fitted(dtype="float64", n_iter=500)  # halves, which choose it, are by the order
    order = np.random.default_rng(0).permutation(len(X))
    other = clone(model).fit(X[order])
    assert other.threshold_ == pytest.approx(model.threshold_, abs=1e-3)
    assert other.score(X) == pytest.approx(model.score(X), abs=1e-3)


# ------------------------------------------------------------------------------
# Learned attributes
# ------------------------------------------------------------------------------


def test_shapes():
    model = RBMEstimator(5, learning="pcd", n_iter=1, batch_size=7, random_state=0).fit(X)
    assert model.components_.shape == (5, 8)
    assert model.intercept_hidden_.shape == (5,)
    assert model.intercept_visible_.shape == (8,)
    assert model.h_samples_.shape == (7, 5)
    assert set(np.unique(model.h_samples_)) <= {0, 1}
    assert model.n_chains_ == model.batch_size_ == 7
    model.set_params(chains__n_chains=3).fit(X)
    assert model.h_samples_.shape == (3, 5)
    assert model.batch_size_ == 7


def test_weights_are_read_only_and_assignable(model):
    for name in ("components_", "intercept_hidden_", "intercept_visible_"):
        value = getattr(model, name)
        with pytest.raises(ValueError, match="read-only"):
            value[...] = 0
        new = np.random.default_rng(0).normal(size=value.shape)
        setattr(model, name, new)
        assert_array_equal(getattr(model, name), new)
        with pytest.raises(ValueError, match="shape"):
            setattr(model, name, new[:-1])
        assert_array_equal(getattr(model, name), new)
    truth = Enumerated(model)
    assert_allclose(model.score_samples(truth.x), truth.log_p, rtol=0, atol=1e-10)
    assert_allclose(model.transform(truth.x), truth.hidden_mean, rtol=0, atol=1e-12)


def test_an_assigned_array_is_copied(model):
    mine = np.zeros((4, 8))
    model.components_ = mine
    mine += 1
    assert_array_equal(model.components_, np.zeros((4, 8)))


def test_training_goes_on_from_assigned_weights():
    """However bad they are: to start badly is not to diverge."""
    model = fitted(batch_size=200, n_iter=10)
    mine = 3 * np.random.default_rng(0).normal(size=(4, 8))
    model.components_ = mine
    before = model.score(X)
    assert before < -8 * np.log(2) - 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X)
    assert model.score(X) > before
    assert np.abs(model.components_ - mine.astype(np.float32)).max() > 0


def test_what_was_read_before_a_fit_stays_as_it_was():
    model = RBMEstimator(4, random_state=0, learning="pcd", n_iter=2).fit(X)
    value = model.components_
    before = value.copy()
    model.fit(1 - X)
    assert_array_equal(value, before)


@pytest.mark.parametrize("sparse", leading(1, [True, False]))
def test_duplicates_are_weights(sparse):
    distinct, count = np.unique(X, axis=0, return_counts=True)
    assert len(distinct) < len(X)
    shape = sp.csr_array if sparse else np.asarray
    model = RBMEstimator(4, random_state=0, dtype="float64", n_iter=15)
    merged = clone(model).fit(shape(distinct), sample_weight=count)
    repeated = clone(model).fit(shape(X))
    assert_allclose(merged.components_, repeated.components_, rtol=1e-6, atol=1e-8)
    assert merged.threshold_ == pytest.approx(repeated.threshold_, rel=1e-7)


@full
def test_heavier_rows_become_more_likely():
    weight = np.where(X[:, 0] == 1, 5.0, 1.0)
    plain = fitted(dtype="float64")
    heavy = clone(plain).fit(X, sample_weight=weight)
    truth, weighted = Enumerated(plain), Enumerated(heavy)
    assert (truth.p @ truth.x)[0] == pytest.approx(X[:, 0].mean(), abs=0.01)
    expected = (weight * X[:, 0]).sum() / weight.sum()
    assert (weighted.p @ weighted.x)[0] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("learning", leading(1, ["pcd", "cd", "exact"]))
def test_zeros_and_ones_are_treated_alike(learning):
    """With centring, exchanging zeros and ones is a change of coordinates."""
    params = {
        "learning": learning,
        "n_iter": 40,
        "learning_rate": 0.3,
        "batch_size": 20,
        "optimizer": SGD(averaging=0.9),  # the last step's noise is larger than what is tested
        "centering": Centering(),
    }
    plain = RBMEstimator(4, random_state=0, **params).fit(X)
    flipped = RBMEstimator(4, random_state=0, **params).fit(1 - X)
    assert flipped.score(1 - X) == pytest.approx(plain.score(X), abs=0.15)


@pytest.mark.parametrize(
    ("params", "precondition"),
    [
        ({"learning": "pcd"}, 0.5),
        ({"learning": "pcd", "learning_rate": 0.1}, 0.0),
        ({"learning": "exact", "batch_size": 10}, 0.0),
    ],
)
def test_gradients_are_preconditioned_where_the_learning_rate_is_free(params, precondition):
    model = RBMEstimator(2, n_iter=1, random_state=0, **params).fit(np.eye(20, 4))
    assert model.net_.module_.centering.precondition == precondition
