"""JEMClassifier: what it alone promises, and what it says to input that it cannot take."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn

from skebm import EnergyOutlierDetector, JEMClassifier
from skebm.energies import MLP, Conv
from skebm.estimators import Hybrid
from skebm.estimators.neural.jem import class_weights
from skebm.partition import ImportanceSampling
from skebm.samplers import (
    GibbsWithGradients,
    Langevin,
    Persistent,
    ReplayBuffer,
    Shift,
)
from skebm.training import AdamW
from skebm.training.rows import Rows
from tests.contracts.test_classifiers import X, Y
from tests.support.tiers import full, only_full

small = {"network": MLP((16,)), "n_iter": 5, "sigma": 0.3, "random_state": 0}
small |= {"learning_rate": 0.02, "chains": Persistent(n_steps=2)}
# Where the base and log Z have no part in what is shown.
quick = small | {"base": "gaussian", "partition": ImportanceSampling(500)}


@pytest.fixture(scope="module")
def moons():
    rows, labels = make_moons(600, noise=0.1, random_state=0)
    model = JEMClassifier(
        MLP((32, 32)),
        base="mixture",
        chains=Persistent(n_steps=3),
        n_iter=50,
        learning_rate=0.02,
        random_state=0,
    )
    return model.fit(rows[:400], labels[:400]), rows[400:], labels[400:]


# ------------------------------------------------------------------------------
# Classifier and density
# ------------------------------------------------------------------------------


def test_it_classifies_and_is_more_likely_than_its_base(moons):
    model, rows, labels = moons
    assert model.score(rows, labels) > 0.97
    assert model.history_[-1]["gain_over_base"] > 0.1
    assert model.history_[-1]["accuracy"] > 0.97
    outside = np.random.default_rng(0).uniform(-2, 3, (200, 2))
    scores = np.concatenate([model.score_samples(rows), model.score_samples(outside)])
    assert roc_auc_score(np.repeat([1, 0], 200), scores) > 0.85


def test_log_likelihoods_integrate_to_one(moons):
    model = moons[0]
    x, y = np.meshgrid(np.linspace(-3, 4, 141), np.linspace(-3, 3.5, 131))
    p = np.exp(model.score_samples(np.stack([x.ravel(), y.ravel()], 1)))
    assert p.sum() * 0.05**2 == pytest.approx(1, abs=0.02)


def test_rows_of_a_class_are_of_that_class(moons):
    model = moons[0]
    drawn = model.sample(100, y=1, random_state=0)
    assert model.predict_proba(drawn)[:, 1].mean() > 0.95
    wanted = np.array([0, 1, 1, 0])
    assert_array_equal(model.predict(model.sample(4, y=wanted, random_state=1)), wanted)
    assert model.sample(4, y=wanted, n_steps=1, random_state=1).shape == (4, 2)


def test_holes_are_filled_and_noise_is_taken_off(moons):
    model, rows, _ = moons
    holes = rows.copy()
    holes[:, 1] = np.nan
    filled = model.impute(holes, random_state=0)
    assert_array_equal(filled[:, 0], rows[:, 0])
    assert model.score_samples(filled).mean() > model.score_samples(rows).mean() - 1
    noisy = rows + np.random.default_rng(0).normal(size=rows.shape) * 0.1
    assert model.score_samples(model.denoise(noisy)).mean() > model.score_samples(noisy).mean()


def test_weight_zero_is_the_classifier_in_plain_torch():
    settings = {"generative_weight": 0, "batch_size": len(X), "n_iter": 20, "random_state": 0}
    settings |= {"dtype": "float64", "optimizer": AdamW(schedule="constant")}
    settings |= {"objective": Hybrid(power=1.0), "base": "gaussian"}
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    found = JEMClassifier(network, **settings).fit(X, Y).logits(X)
    network = network.double()
    rows = torch.as_tensor((X - X.mean(0)) / X.std(0))
    codes = torch.as_tensor(np.unique(Y, return_inverse=True)[1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(rows), codes).backward()
        optimizer.step()
    assert_allclose(found, network(rows).detach().numpy(), rtol=1e-6, atol=1e-8)


def test_rows_without_labels_help():
    rows, labels = make_blobs(150, centers=[[-3, 0], [3, 0]], cluster_std=0.5, random_state=0)
    shown = np.full(150, -1)
    shown[[np.flatnonzero(labels == 0)[0], np.flatnonzero(labels == 1)[0]]] = 0, 1
    objective = Hybrid(noisy=False, unlabeled_weight=0.0)  # by p(x) alone
    kind = {"generative_weight": 1.0, "objective": objective, "unlabeled": -1}
    model = JEMClassifier(**small | {"n_iter": 40} | kind).fit(rows, shown)
    assert model.classes_.tolist() == [0, 1]
    plain = JEMClassifier(**small | {"n_iter": 40}, generative_weight=0.0)
    plain.fit(rows[shown >= 0], shown[shown >= 0])
    assert model.score(rows, labels) > 0.9
    assert model.score(rows, labels) > plain.score(rows, labels) + 0.2
    assert_array_equal(model.predict(rows[shown >= 0]), shown[shown >= 0])


@pytest.mark.parametrize(
    "labels",
    [
        np.where(Y == "ash", True, False),
        Y.astype(object),
        only_full(np.where(Y == "ash", 2.0, -1.0)),
        only_full(np.where(Y == "ash", 10**6, 3)),
        only_full(Y.tolist()),
    ],
)
def test_labels_of_any_type(labels):
    model = JEMClassifier(**quick).fit(X, labels)
    assert set(model.predict(X)) <= set(np.unique(labels))
    assert model.score(X, labels) > 0.5
    two = len(np.unique(labels)) == 2
    assert model.logits(X).shape == (80, 2 if two else 3)
    assert model.decision_function(X).shape == ((80,) if two else (80, 3))


@full
def test_weights_of_classes():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(300, 2)), np.repeat([0, 1], [270, 30])
    rows[270:] += 1
    plain = JEMClassifier(**small).fit(rows, labels).predict(rows).mean()
    even = JEMClassifier(**small, class_weight="balanced").fit(rows, labels).predict(rows).mean()
    discriminated = (
        JEMClassifier(**small, class_weight={1: 9.0}).fit(rows, labels).predict(rows).mean()
    )
    assert even > plain + 0.05
    assert discriminated > plain + 0.05


def test_images_augmentation_and_a_replay_buffer():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = rng.normal(size=(60, 1, 6, 6)) * 0.3
    images[labels == 0, :, :, :3] += 2
    images[labels == 1, :, :3] += 2
    model = JEMClassifier(
        Conv((8, 8)),
        base="gaussian",
        sampler=Langevin(0.01, noise_scale=0.01, clip_grad=1.0),
        chains=ReplayBuffer(n_steps=3, size=100),
        objective=Hybrid(augmentation=Shift(1)),
        n_iter=20,
        learning_rate=0.01,
        random_state=0,
    ).fit(images, labels)
    assert model.score(images, labels) > 0.95
    assert model.sample(3, y=1, random_state=0, n_steps=3).shape == (3, 1, 6, 6)


def test_chains_of_classes_start_at_normal_distributions():
    labels = np.where(np.arange(80) % 8 == 0, "none", Y)
    model = JEMClassifier(**small | {"n_iter": 0}, base="classes", unlabeled="none").fit(X, labels)
    base = model.base_
    z = (X - model.units_.centre) / model.units_.scale
    for k, label in enumerate(model.classes_):
        assert_allclose(base.means[k], z[labels == label].mean(0), atol=1e-5)
        assert base.weights[k] == pytest.approx((labels == label).sum() / 70)
    trained = JEMClassifier(**quick | {"base": "classes"}).fit(X, Y)
    assert np.isfinite(trained.score_samples(X)).all()


@full
def test_noise_is_for_both_terms_unless_asked_otherwise():
    def proba(noisy, **params):
        model = JEMClassifier(**small, objective=Hybrid(noisy=noisy), **params)
        return model.fit(X, Y).predict_proba(X)

    assert not np.allclose(proba(True), proba(False))
    assert_array_equal(proba(True, generative_weight=0), proba(False, generative_weight=0))


@pytest.mark.parametrize(("n_columns", "weight"), [(2, 0.03), (33, 0.03), (100, 0.01)])
def test_the_weight_of_a_density_of_many_columns_is_small(n_columns, weight):
    rows = np.random.default_rng(0).standard_normal((20, n_columns))
    labels = np.arange(20) % 2
    kind = {"base": "gaussian", "chains": Persistent(n_steps=1), "n_iter": 1}
    found = JEMClassifier(MLP((4,)), **kind).fit(rows, labels)
    assert found.generative_weight_ == pytest.approx(weight)
    assert found.set_params(generative_weight=0.5).fit(rows, labels).generative_weight_ == 0.5


# ------------------------------------------------------------------------------
# The power of the density
# ------------------------------------------------------------------------------


def log_base(model, rows):
    """log q(x) of rows in their own units."""
    z = torch.as_tensor((rows - model.units_.centre) / model.units_.scale, dtype=torch.float32)
    return model.base_.log_prob(z).numpy() - np.log(model.units_.scale).sum()


def test_few_rows_keep_the_density_of_the_base():
    kind = small | {"base": "gaussian"}
    model = JEMClassifier(**kind).fit(X, Y)
    assert model.power_ == 0
    assert_allclose(model.score_samples(X), log_base(model, X), rtol=1e-4, atol=1e-4)
    whole = JEMClassifier(**kind, objective=Hybrid(power=1.0)).fit(X, Y)
    assert_allclose(model.predict_proba(X), whole.predict_proba(X), rtol=1e-5)
    assert_allclose(np.exp(model.logits(X)).sum(1), 1)
    assert not np.allclose(whole.energy(X), model.energy(X), atol=0.1)
    assert model.partial_fit(X, Y).power_ == 1


@full
def test_what_a_classifier_learns_of_labels_does_not_make_rows_less_likely():
    rows, labels = np.repeat(X, 5, axis=0), np.repeat(Y, 5)  # training rows decide
    kind = small | {"n_iter": 30, "generative_weight": 0.0}
    model = JEMClassifier(**kind).fit(rows, labels)
    book = JEMClassifier(**kind, objective=Hybrid(power=1.0)).fit(rows, labels)
    assert 0 <= model.power_ < 1
    assert model.score_samples(X).mean() >= log_base(model, X).mean() - 0.01
    assert model.score_samples(X).mean() > book.score_samples(X).mean()
    stopped = JEMClassifier(**small, early_stopping=True, base="gaussian").fit(X, Y)
    assert stopped.power_ != 0  # by held-out rows, however few


@full
def test_the_density_is_that_of_clean_rows_unless_asked_otherwise():
    model, noisy = (
        JEMClassifier(**small, objective=Hybrid(deconvolve=clean)).fit(X, Y)
        for clean in (True, False)
    )
    assert model.score_samples(X).mean() > noisy.score_samples(X).mean() + 0.1
    model = JEMClassifier(**small, base="mixture").fit(X, Y)
    base = model.net_.module_.energy.base  # which knows of the noise
    assert_allclose(
        base.log_prob(torch.zeros(1, 4)),
        model.base_.convolved(torch.as_tensor(model.sigma_, dtype=torch.float32)).log_prob(
            torch.zeros(1, 4)
        ),
        rtol=1e-4,
    )


def test_noise_is_taken_off_by_the_model_of_noisy_rows():
    kind = quick | {"generative_weight": 1.0, "n_iter": 10}
    model = JEMClassifier(**kind, objective=Hybrid(power=0.5)).fit(X, Y)
    noisy = JEMClassifier(**kind, objective=Hybrid(power=0.5, deconvolve=False)).fit(X, Y)
    sigma = noisy.sigma_ * noisy.units_.scale
    assert_allclose(noisy.denoise(X), X + sigma**2 * noisy.score_function(X), atol=1e-4)
    assert not np.allclose(model.denoise(X), X + sigma**2 * model.score_function(X), atol=1e-3)


@full
def test_logarithms_of_probabilities_that_round_to_zero():
    model = JEMClassifier(**small | {"n_iter": 100, "learning_rate": 0.1}).fit(X, Y)
    far = X * 1e4
    assert (model.predict_proba(far) == 0).any()
    found = model.predict_log_proba(far)
    assert np.isfinite(found).all()
    assert found.max() <= 0


@full
def test_bits():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    rows = (rng.random((200, 5)) < np.where(labels, 0.8, 0.2)[:, None]).astype(float)
    model = JEMClassifier(**small | {"n_iter": 30, "sigma": "auto"}).fit(rows, labels)
    assert model.score(rows, labels) > 0.85
    assert np.isin(model.sample(20, y=1, random_state=0), (0, 1)).all()
    assert model.sample(50, y=1, random_state=0).mean() > model.sample(50, y=0).mean() + 0.2


@pytest.mark.parametrize("statistic", ["log_density", "max_proba", "score_norm"])
def test_it_detects_by_any_statistic(statistic):
    detector = EnergyOutlierDetector(JEMClassifier(**quick), statistic=statistic, contamination=0.1)
    detector.fit(X, Y)
    assert set(detector.predict(X)) == {-1, 1}


@full
def test_as_good_as_logistic_regression_where_that_is_right():
    rows, labels = make_blobs(400, centers=3, cluster_std=2.0, random_state=1)
    linear = LogisticRegression().fit(rows[:300], labels[:300]).score(rows[300:], labels[300:])
    model = JEMClassifier(**small | {"n_iter": 40}).fit(rows[:300], labels[:300])
    assert model.score(rows[300:], labels[300:]) > linear - 0.04


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


def refused(match, rows=X, labels=Y, error=ValueError, **params):
    with pytest.raises(error, match=match):
        JEMClassifier(**quick | params).fit(rows, labels)


def test_labels_that_are_none():
    refused("at least two", labels=np.zeros(80))
    refused("requires y to be passed", labels=None)
    refused("inconsistent numbers of samples", labels=Y[:-1])
    refused("Unknown label type", labels=np.random.default_rng(0).normal(size=80))
    refused("contains NaN", labels=np.where(Y == "ash", np.nan, 1.0))
    refused("All rows are unlabelled", labels=np.full(80, -1), unlabeled=-1)
    refused("at least two", labels=np.where(Y == "ash", 1, -1), unlabeled=-1)


def test_rows_that_are_none():
    refused("contains NaN", rows=np.where(X > 3, np.nan, X))
    refused("contains infinity", rows=np.where(X > 3, np.inf, X))
    refused("minimum of 2", rows=X[:1], labels=Y[:1])
    refused("minimum of 2|0 sample", rows=X[:0], labels=Y[:0])


@pytest.mark.filterwarnings("ignore:Columns")
def test_few_rows():
    labels = np.where(np.arange(80) == 5, "yew", Y)
    model = JEMClassifier(**quick).fit(X, labels)
    assert "yew" in model.classes_
    two = JEMClassifier(**quick).fit(X[:2], ["a", "b"])
    assert np.isfinite(two.predict_proba(X)).all()


def test_networks_that_do_not_fit():
    refused("must return logits, of shape", network=nn.Linear(4, 2))
    refused("must return logits", network=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)))
    refused("logit for each class", network=MLP(output="reconstruction"))
    refused("takes images", network=Conv())


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"generative_weight": -0.1}, "generative_weight"),
        ({"objective": "joint", "generative_weight": 2.0}, "between 0 and 1"),
        ({"class_weight": {"oak": 2.0}}, "class_weight contains"),
        ({"class_weight": {"ash": -1.0}}, "class_weight must be"),
        ({"objective": Hybrid(form="joint"), "generative_weight": 2.0}, "between 0 and 1"),
        ({"objective": Hybrid(sharpness=-1.0)}, "sharpness.*Hybrid"),
        ({"objective": Hybrid(noisy="always")}, "noisy.*Hybrid"),
        ({"objective": Hybrid(power=1.5)}, "power.*Hybrid"),
        ({"objective": "likelihood"}, "objective"),
        ({"chains": ReplayBuffer(size=5)}, "replay buffer"),
        ({"chains": Persistent(n_steps=0)}, "n_steps.*Persistent"),
        ({"base": "classes", "bounds": (-99, 99), "sigma": None}, "mass outside `bounds`"),
        ({"base": "classes", "domain": "binary"}, "0 and 1"),
    ],
)
def test_settings_that_are_refused(params, match):
    refused(match, **params)


def test_a_sampler_of_another_domain():
    refused("samples Binary", sampler=GibbsWithGradients(), domain="real", error=TypeError)


def test_classes_that_are_not_there(moons):
    model = moons[0]
    with pytest.raises(ValueError, match="the classes are"):
        model.sample(2, y=7)
    with pytest.raises(ValueError, match="one for each of 3"):
        model.sample(3, y=[0, 1])
    with pytest.raises(ValueError, match="the classes are"):
        model.joint_energy([[0.0, 0.0]], "ash")
    with pytest.raises(ValueError, match="y or given"):
        model.sample(1, y=0, given=[0.0, np.nan])


def test_balanced_weights_of_a_class_without_rows_are_zero():
    kind = {"dtype": torch.float64, "device": torch.device("cpu")}
    rows = Rows(torch.zeros(4, 2), y=torch.tensor([0, 0, 0, 2]), **kind)
    found = class_weights("balanced", np.arange(3), rows)
    assert found == pytest.approx((4 / 9, 0.0, 4 / 3))
