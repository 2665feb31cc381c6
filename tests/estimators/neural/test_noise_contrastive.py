"""NCEDensity: what is learned, which noise, what is refused."""

import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from skebm import NCEDensity
from skebm.base import Categorical, Real
from skebm.distributions import ChowLiuTree, Gaussian, GaussianMixture, Uniform
from skebm.energies import MLP
from skebm.estimators import MixtureBase
from skebm.training import AdamW, EarlyStopping
from tests.support.storage import by_pickle
from tests.support.tables import real_rows
from tests.support.tiers import full, leading, only_full

quick = {"n_iter": 3, "random_state": 0, "noise": "gaussian"}
X, X_NEW = real_rows(100, 3), real_rows(40, 3, seed=1)
BITS = (real_rows(200, 5) > 0).astype(float)


def density(**params):
    return NCEDensity(**{"network": MLP((16,)), **quick, **params})


def normal(d, sd=1.0):
    return Gaussian(torch.zeros(d, dtype=torch.float64), sd)


# ------------------------------------------------------------------------------
# What is learned
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", leading(1, [3, 1]))
def test_a_normal_distribution_under_wider_noise(d):
    """log p, the learned log Z and the one by importance sampling, against the closed form."""
    rng = np.random.default_rng(0)
    rows, new = rng.normal(size=(5000, d)), rng.normal(size=(500, d))
    params = {"network": MLP((16,)), "n_iter": 5, "learning_rate": 0.01, "random_state": 0}
    model = NCEDensity(noise=normal(d, 1.5**0.5), sigma=None, standardize=False, **params)
    model.fit(rows)
    truth = scipy.stats.norm.logpdf(new).sum(1)
    assert abs(np.mean(model.score_samples(new) - truth)) < 0.03
    assert np.std(model.score_samples(new) - truth) < 0.2
    assert abs(model.log_partition_learned_ - model.log_partition_) < 0.05


@pytest.mark.parametrize(
    ("form", "ratio", "n_bridges"), [("logistic", 3, 1), ("ranking", 1, 1), ("logistic", 1, 2)]
)
def test_the_posterior_is_that_of_data_against_noise(form, ratio, n_bridges):
    X = np.random.default_rng(0).normal(size=(400, 2)) * [2, 0.5]
    params = {"network": MLP((8,)), "n_iter": 2, "form": form, "noise_ratio": ratio}
    model = NCEDensity(**params, n_bridges=n_bridges, deconvolve=False, random_state=0).fit(X)
    x = X[:20]
    learned = model.log_partition_ if form == "ranking" else model.log_partition_learned_
    noise = model.base_.log_prob(torch.as_tensor(model.units_.apply(x)).float()).numpy()
    noise = noise - np.log(model.units_.scale).sum()
    log_odds = -model.energy(x) - learned - noise - np.log(ratio)
    assert_allclose(model.noise_posterior(x), scipy.special.expit(log_odds), rtol=1e-3)
    far = model.noise_posterior(x + 50)
    assert ((far >= 0) & (far <= 1)).all()


@full
@pytest.mark.parametrize(
    ("noise", "least"),
    [("gaussian", 0.3), only_full(MixtureBase(n_components=2), 0.1), only_full("kernel", -0.02)],
    ids=str,
)
def test_it_is_better_than_its_noise(noise, least):
    """Kernels are as good as it gets; the rows that they were put on do not mislead training."""
    rows, _ = make_moons(1000, noise=0.1, random_state=0)
    params = {"noise": noise, "random_state": 0, "early_stopping": True}
    before = NCEDensity(**params, n_iter=0).fit(rows[:500])
    model = NCEDensity(**params, network=MLP((32, 32)), n_iter=40, learning_rate=0.01)
    gain = model.fit(rows[:500]).score(rows[500:]) - before.score(rows[500:])
    assert gain > least


def test_bits_that_no_tree_knows():
    """Parity: every pair of columns is independent."""
    rng = np.random.default_rng(0)
    three = rng.integers(0, 2, (3000, 3))
    rows = np.c_[three, three.sum(1) % 2].astype(float)
    params = {"network": MLP((32, 32)), "n_iter": 10, "learning_rate": 0.03}
    model = NCEDensity(**params, random_state=0).fit(rows[:2500])
    assert model.log_partition_kind_ == "exact"
    assert model.score(rows[2500:]) > 4 * np.log(0.5) + 0.5  # nats; log 2 is all there is


@pytest.mark.parametrize("form", ["logistic", "ranking"])
def test_both_forms_learn_the_same(form):
    rows, _ = make_moons(1000, noise=0.1, random_state=0)
    params = {"network": MLP((32, 32)), "n_iter": 40, "learning_rate": 0.02}
    model = NCEDensity(noise="gaussian", form=form, noise_ratio=2, random_state=0, **params)
    model.fit(rows[:500])
    assert model.score(rows[500:]) > -1.55  # the normal distribution: -1.9
    assert np.isnan(model.log_partition_learned_) == (form == "ranking")


def test_before_training_it_is_the_noise():
    model = density(n_iter=0, noise="gaussian", sigma=None).fit(X)
    q = Gaussian.fit(torch.as_tensor(model.units_.apply(X)))
    expected = q.log_prob(torch.as_tensor(model.units_.apply(X_NEW))).numpy()
    assert_allclose(model.score_samples(X_NEW), expected - model.units_.log_volume, atol=1e-4)
    assert model.log_partition_learned_ == 0


def test_log_z_is_not_decayed():
    """A network that decay holds at zero is the noise, shifted by what is not decayed."""
    model = density(optimizer=AdamW(weight_decay=1e3), learning_rate=1e-3, n_iter=1).fit(X)
    groups = {g["weight_decay"]: g["params"] for g in model.net_.optimizer_.param_groups}
    assert [p.shape for p in groups[0.0]] == [()]
    assert len(groups[1e3]) == len(list(model.energy_.parameters()))


@full
def test_a_search_over_noise_and_ratio():
    """And over the number of components, where the noise is a mixture by default."""
    grid = {"noise": ["gaussian", "mixture"], "noise_ratio": [0.5, 2]}
    search = GridSearchCV(density(n_iter=1), grid, cv=2, error_score="raise").fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    grid = {"noise__n_components": [1, 3], "optimizer__weight_decay": [0.0, 10.0]}
    search = GridSearchCV(density(noise="mixture", n_iter=1), grid, cv=2, error_score="raise").fit(
        X
    )
    best = search.best_estimator_
    assert len(best.base_.weights) == search.best_params_["noise__n_components"]
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4


def test_more_draws_cost_no_state():
    model = by_pickle(density(noise_ratio=3).partial_fit(X))
    again = model.partial_fit(X)
    assert len(again.history_) == 2
    assert np.isfinite(again.score(X_NEW))


# ------------------------------------------------------------------------------
# Bridges to far noise
# ------------------------------------------------------------------------------


def on_a_plane(n, seed=0, d=8, sd=0.01):
    """Rows near a plane, 22 nats from the standard normal distribution; their log-density."""
    rng = np.random.default_rng(seed)
    scale = np.r_[1.0, 1.0, np.full(d - 2, sd)]
    axes = np.linalg.qr(np.random.default_rng(5).normal(size=(d, d)))[0]
    z = rng.normal(size=(n, d))
    return (z * scale) @ axes.T, scipy.stats.norm.logpdf(z).sum(1) - np.log(scale).sum()


far = {"noise": normal(8), "sigma": None, "standardize": False, "random_state": 0}


@full
def test_bridges_lead_to_data_far_from_the_noise():
    rows, _ = on_a_plane(1500)
    new, truth = on_a_plane(1000, 1)
    model = NCEDensity(**far, network=MLP((16,)), n_iter=4, learning_rate=0.01).fit(rows)
    assert model.n_bridges_ == 8
    assert abs(np.mean(model.score_samples(new) - truth)) < 0.1
    assert abs(model.log_partition_learned_ - model.log_partition_) < 0.5
    assert "GaussianMixture" in model.log_partition_method_
    assert model.history_[-1]["accuracy"] < 0.95
    assert "gain_over_base" not in model.history_[-1]
    drawn = np.cov(model.sample(500, random_state=0, n_steps=20).T)
    assert_allclose(np.linalg.eigvalsh(drawn)[:6], 1e-4, rtol=0.5)


def test_one_classifier_of_data_far_from_the_noise_is_announced():
    rows, _ = on_a_plane(1000)
    with pytest.warns(ConvergenceWarning, match="Set n_bridges to"):
        model = NCEDensity(**far, network=MLP((32,)), n_bridges=1, n_iter=100).fit(rows)
    new, truth = on_a_plane(1000, 1)
    assert np.mean(-model.energy(new) - truth) - model.log_partition_learned_ < -5


@full
def test_bridges_of_rows_that_are_not_normal():
    """Two narrow clusters, of wide noise: one classifier is 3.7 nats off."""
    rng = np.random.default_rng(0)
    rows = rng.choice([-1.0, 1.0], (2000, 1)) + 0.05 * rng.normal(size=(2000, 3))
    kind = {"noise": normal(3, 1.5), "sigma": None, "random_state": 0}
    model = NCEDensity(MLP((32, 32)), **kind, learning_rate=0.02, n_iter=20).fit(rows[:1500])
    assert model.n_bridges_ > 1
    truth = np.log(0.5) - 3 * np.log(0.05 * (2 * np.pi * np.e) ** 0.5)
    by_classifiers = -model.energy(rows[1500:]).mean() - model.log_partition_learned_
    assert by_classifiers == pytest.approx(truth, abs=1.5)


def test_noise_that_was_fitted_needs_no_bridges():
    for noise in ("gaussian", "mixture", "kernel"):
        assert density(noise=noise, n_iter=0).fit(X).n_bridges_ == 1


@full
def test_bridges_inside_bounds():
    inside = 0.5 + 0.01 * np.random.default_rng(0).normal(size=(1000, 4))
    box = Uniform(Real((4,), 0.0, 1.0))
    params = {"network": MLP((16,)), "n_iter": 30, "random_state": 0}
    model = NCEDensity(noise=box, bounds=(0, 1), **params).fit(inside[:500])
    assert model.n_bridges_ > 3
    truth = scipy.stats.norm(0.5, 0.01).logpdf(inside[500:]).sum(1).mean()
    assert model.score(inside[500:]) == pytest.approx(truth, abs=0.2)


def test_bridges_are_kept():
    model = density(noise=normal(3, 8.0), n_bridges=3, warm_start=True).fit(X)
    again = by_pickle(model)
    assert_allclose(again.score_samples(X), model.score_samples(X))
    with pytest.raises(ValueError, match="n_bridges"):
        again.set_params(n_bridges=5).fit(X)
    assert model.partial_fit(X).n_bridges_ == 3


def test_bridges_of_few_rows():
    model = density(n_bridges=3, noise=normal(3, 100.0)).fit(X[:2])
    assert np.isfinite(model.score_samples(X_NEW)).all()
    assert density(n_bridges=2).fit(X[:, :1]).n_bridges_ == 2


def test_bridges_that_are_not_offered():
    with pytest.raises(ValueError, match="needs real rows"):
        density(n_bridges=2, noise="auto").fit(BITS)
    with pytest.raises(ValueError, match="does not support bridges"):
        density(n_bridges=2, form="ranking").fit(X)
    assert density(form="ranking", noise=normal(3, 100.0)).fit(X).n_bridges_ == 1


# ------------------------------------------------------------------------------
# Which noise
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        normal(3, 2.0),
        GaussianMixture(
            torch.tensor([0.5, 0.5]),
            torch.tensor([[-1.0] * 3, [1.0] * 3]),
            torch.eye(3).repeat(2, 1, 1),
        ),
    ],
    ids=["normal", "mixture"],
)
def test_noise_of_a_user(noise):
    """In units of X, whatever the energy's are."""
    model = density(noise=noise, n_iter=0, sigma=None, n_bridges=1).fit(X)
    expected = noise.log_prob(torch.as_tensor(X_NEW).to(noise.sample(1, torch.Generator()))).numpy()
    assert_allclose(model.score_samples(X_NEW), expected, atol=1e-4)


def test_noise_on_a_box():
    inside = np.random.default_rng(0).beta(2, 5, (400, 2))
    box = Uniform(Real((2,), 0.0, 1.0))
    params = {"network": MLP((16,)), "n_iter": 50, "learning_rate": 0.01, "random_state": 0}
    model = NCEDensity(noise=box, bounds=(0, 1), **params).fit(inside[:300])
    truth = scipy.stats.beta(2, 5).logpdf(inside[300:]).sum(1).mean()
    assert model.score(inside[300:]) == pytest.approx(truth, abs=0.08)
    assert model.score_samples([[1.5, 0.5]])[0] == -np.inf


def test_noise_of_bits():
    tree = ChowLiuTree.fit(torch.as_tensor(BITS))
    assert np.isfinite(density(noise=tree).fit(BITS).score(BITS))
    levels = np.eye(3)[np.random.default_rng(0).integers(0, 3, (60, 2))].reshape(60, 6)
    one_hot = density(domain=Categorical((3, 3)), noise="auto").fit(levels)
    assert one_hot.score(levels) == pytest.approx(-2 * np.log(3), abs=0.3)


def test_images_of_a_convolution():
    from skebm.energies import Conv

    images = np.random.default_rng(0).normal(size=(40, 1, 4, 4))
    model = density(network=Conv((4,)), noise="gaussian").fit(images)
    assert model.sample(2, random_state=0, n_steps=5).shape == (2, 1, 4, 4)


# ------------------------------------------------------------------------------
# What is refused, what is announced
# ------------------------------------------------------------------------------


def test_noise_that_every_row_is_discriminated_from_is_announced():
    far = {"noise": normal(3, 1e4), "n_bridges": 1, "sigma": None}
    with pytest.warns(ConvergenceWarning, match="n_bridges"):
        density(**far, n_iter=30, learning_rate=0.01).fit(X)


def test_noise_that_is_near_is_not_announced():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The network classifies")
        density(n_iter=30, learning_rate=0.01).fit(X)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (normal(2), "has 2 columns, but X has 3"),
        ("chow-liu", "is a distribution of bits"),
        (ChowLiuTree.fit(torch.as_tensor(BITS[:, :3])), "rows are"),
        (Uniform(Real((3,), -0.5, 0.5)), "standardize=False"),
    ],
    ids=["columns", "kind", "domain", "bounds"],
)
def test_noise_that_does_not_fit(noise, message):
    with pytest.raises(ValueError, match=message):
        density(noise=noise).fit(X)


@pytest.mark.parametrize(
    ("rows", "domain", "match"),
    [
        (BITS, "auto", "'independent'.*'chow-liu'.*'block-tree'"),
        (np.eye(4)[np.arange(40) % 4], Categorical((4,)), "real columns.*use 'independent'"),
    ],
    ids=["bits", "one-hot"],
)
def test_a_mixture_of_real_columns_is_no_noise_of_discrete_ones(rows, domain, match):
    for noise in ("mixture", MixtureBase(n_components=2)):
        with pytest.raises(ValueError, match=match):
            density(noise=noise, domain=domain).fit(rows)


def test_noise_without_density_at_a_row():
    with pytest.raises(ValueError, match="no density at"):
        density(noise=Uniform(Real((3,), -0.5, 0.5)), standardize=False, sigma=None).fit(X)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"noise_ratio": 0}, "noise_ratio"),
        ({"noise_ratio": -1.0}, "noise_ratio"),
        ({"noise_ratio": float("nan")}, "noise_ratio"),
        ({"noise": None}, "noise"),
        ({"noise": MixtureBase(n_components=0)}, "n_components"),
        ({"form": "softmax"}, "form"),
        ({"n_bridges": 0}, "n_bridges"),
        ({"n_bridges": "many"}, "n_bridges"),
        ({"optimizer": AdamW(averaging=-0.1)}, "averaging"),
        ({"early_stopping": EarlyStopping(tol=-1)}, "tol"),
    ],
    ids=str,
)
def test_parameters_out_of_range(params, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter of"):
        density(**params).fit(X)


@pytest.mark.parametrize("sigma", ["auto", None])
def test_columns_that_are_copies(sigma):
    """On a line: noise in training, or a shrunk covariance, keeps the density finite."""
    line = np.repeat(np.random.default_rng(0).normal(size=(200, 1)), 3, axis=1)
    model = density(noise="gaussian", sigma=sigma).fit(line)
    assert np.isfinite(model.score_samples(line)).all()
    assert model.score_samples([[0.0, 0, 0]])[0] > model.score_samples([[3.0, -3, 0]])[0]


def test_few_rows_and_one_column():
    model = density().fit([[0.2], [1.4]])
    assert np.isfinite(model.score([[0.5]]))
    assert np.isfinite(density(noise_ratio=0.01).fit(X[:, :1]).score(X_NEW[:, :1]))


def test_warm_starts_keep_what_was_learned():
    model = density(warm_start=True, noise="gaussian").fit(X)
    learned = model.log_partition_learned_
    assert learned != 0
    model.set_params(n_iter=0).fit(X)
    assert model.log_partition_learned_ == learned


def test_a_warm_start_in_another_form_hands_over_the_momenta_by_name():
    """Which parameters are trained depends on the form: the shift only in the logistic one."""
    model = density(warm_start=True).fit(X)
    names = {id(p): name for name, p in model.net_.module_.named_parameters()}
    learned = {names[id(p)]: slots for p, slots in model.net_.optimizer_.state.items()}
    model.set_params(form="ranking", n_iter=0).fit(X)
    module, optimizer = model.net_.module_, model.net_.optimizer_
    trained = dict(module.named_parameters())
    assert learned.keys() - trained.keys() == {"shift"}
    assert len(optimizer.state) == len(trained)
    for name, p in trained.items():
        assert_allclose(optimizer.state[p]["exp_avg"], learned[name]["exp_avg"], rtol=0)
