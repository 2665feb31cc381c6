"""Joint energy-based models with negatives by gradient ascent, attacks and augmentation."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits, make_moons

from skebm import JEMClassifier
from skebm.base import SettingWarning
from skebm.energies import MLP, Conv
from skebm.estimators import Adversarial, Attack, Hybrid
from skebm.objectives import SignAttack
from skebm.samplers import Compose, Flip, Persistent, Shift
from tests.support.storage import by_skops
from tests.support.tiers import full

X, Y = make_moons(300, noise=0.1, random_state=0)
quick = {"network": MLP((32,)), "n_iter": 40, "learning_rate": 0.02, "random_state": 0}


def fitted(objective, **params):
    return JEMClassifier(**quick | {"base": "gaussian"} | params, objective=objective).fit(X, Y)


@pytest.fixture(scope="module")
def adversarial():
    return fitted(Hybrid(negatives="adversarial"), n_iter=120)


def test_a_model_without_chains_classifies_and_is_a_density(adversarial):
    model = adversarial
    assert model.score(X, Y) > 0.95
    assert model.generative_weight_ == 0.1
    assert {"energy_gap", "cross_entropy"} <= set(model.history_[-1])
    x, y = np.meshgrid(np.linspace(-4, 5, 181), np.linspace(-3.5, 4, 151))
    p = np.exp(model.score_samples(np.stack([x.ravel(), y.ravel()], 1)))
    assert p.sum() * 0.05**2 == pytest.approx(1, abs=0.02)


def test_the_power_keeps_rows_as_likely_as_by_the_base(adversarial):
    """g is no log-ratio, and what the likelihood does not want of it is not used."""
    base = fitted(Hybrid(negatives="adversarial", power=0.0), n_iter=120)
    assert 0 <= adversarial.power_ <= 1
    assert adversarial.score(X, Y) == base.score(X, Y)
    gain = adversarial.score_samples(X).mean() - base.score_samples(X).mean()
    assert gain > -0.01


@full
def test_negatives_without_steps_learn_the_density():
    """As noise contrastive estimation does: rows gain on the base."""
    kind = {"generative_weight": 1.0, "n_iter": 150}
    model = fitted(Hybrid(negatives=Adversarial(n_steps=0)), **kind)
    base = fitted(Hybrid(power=0.0), n_iter=0)
    assert model.power_ > 0.2
    assert model.score_samples(X).mean() > base.score_samples(X).mean() + 0.05


def test_fits_are_reproduced_and_stored(adversarial):
    again = fitted(Hybrid(negatives="adversarial"), n_iter=120)
    assert_array_equal(again.predict_proba(X), adversarial.predict_proba(X))
    for copy in (pickle.loads(pickle.dumps(adversarial)), by_skops(adversarial)):
        assert_array_equal(copy.score_samples(X), adversarial.score_samples(X))


def test_rows_at_which_negatives_start_are_not_stored():
    far = np.random.default_rng(0).normal(size=(5000, 2)) + 5
    objective = Hybrid(negatives=Adversarial(n_steps=1, start=far))
    model = fitted(objective, n_iter=5)
    without = fitted(Hybrid(negatives=Adversarial(n_steps=1)), n_iter=5)
    assert not np.allclose(model.predict_proba(X), without.predict_proba(X))
    # The parameter of the estimator is all that holds them.
    model.objective = None
    assert len(pickle.dumps(model)) < len(pickle.dumps(without)) + 1000


def test_starts_replace_the_base():
    far = np.random.default_rng(0).normal(size=(50, 2)) + 3
    objective = Hybrid(negatives=Adversarial(start=far))
    model = fitted(objective, base=None, partition=None, n_iter=5)
    assert np.isfinite(model.energy(X)).all()
    with pytest.raises(ValueError, match="nowhere to start"):
        fitted(Hybrid(negatives="adversarial"), base=None, n_iter=1)


@pytest.mark.parametrize(
    ("objective", "match"),
    [
        (Hybrid(form="joint", negatives="adversarial"), 'form="factored"'),
        (Hybrid(negatives=Adversarial(n_steps=-1)), "n_steps.*Adversarial"),
        (Hybrid(negatives=Adversarial(step_size=0.0)), "step_size.*Adversarial"),
        (Hybrid(attack=Attack(0.0)), "radius.*Attack"),
        (Hybrid(attack=Attack(0.1, n_steps=0)), "n_steps.*Attack"),
        (Hybrid(attack=Attack(0.1, step_size=-1.0)), "step_size.*Attack"),
        (Hybrid(negatives=Adversarial(start=np.zeros((4, 3)))), r"rows like X.*\(4, 3\)"),
        (Hybrid(negatives=Adversarial(start=np.zeros((0, 2)))), "rows like X"),
        (Hybrid(negatives=Adversarial(start=[[np.nan, 1.0]])), "finite"),
        (Hybrid(negatives=Adversarial(start=3.0)), "start"),
    ],
)
def test_settings_that_are_refused(objective, match):
    with pytest.raises(ValueError, match=match):
        fitted(objective)


@pytest.mark.parametrize("what", [{"negatives": "adversarial"}, {"attack": Attack(0.1)}])
def test_bits_are_neither_climbed_nor_attacked(what):
    bits = (X[:, :1] > np.linspace(-1, 2, 6)).astype(float)
    with pytest.raises(ValueError, match="numbers"):
        JEMClassifier(objective=Hybrid(**what), domain="binary").fit(bits, Y)


def test_chains_that_do_not_move_are_told_of():
    with pytest.warns(SettingWarning, match="chains.*no chain moves"):
        fitted(Hybrid(negatives="adversarial"), chains=Persistent(n_steps=3), n_iter=1)


# ------------------------------------------------------------------------------
# Attacks
# ------------------------------------------------------------------------------


def robust_accuracy(model, rows, labels, radius):
    """Accuracy at rows moved by at most a radius, in units of X."""
    units, energy = model.units_, model.energy_
    z = torch.as_tensor(units.apply(rows), dtype=torch.float32)
    attack = SignAttack(torch.as_tensor(radius / units.scale, dtype=torch.float32), 20, 0.2)
    logits = energy.network.classifier
    moved = attack(logits, z, torch.as_tensor(labels), torch.Generator().manual_seed(0))
    return float((logits(moved).argmax(1).numpy() == labels).mean())


@full
def test_adversarial_training_moves_the_boundary_away():
    """From two narrow lines, one of which says more and the other has the wider margin."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=400)
    sign = 2 * labels - 1
    rows = np.stack([0.1 * sign + 0.02 * rng.normal(size=400), sign + rng.normal(size=400)], 1)
    kind = {"generative_weight": 0, "standardize": False, "n_iter": 60}
    found = {}
    for name, attack in (("plain", None), ("attacked", Attack(0.3, n_steps=5))):
        model = JEMClassifier(
            **quick | kind | {"base": "gaussian"}, objective=Hybrid(attack=attack)
        ).fit(rows, labels)
        found[name] = model.score(rows, labels), robust_accuracy(model, rows, labels, 0.3)
    assert found["plain"][0] > 0.98
    assert found["attacked"][1] > found["plain"][1] + 0.2


def test_the_radius_is_in_units_of_the_data():
    rows = X * [1.0, 100.0]
    kind = {"objective": Hybrid(attack=Attack(0.1, n_steps=2)), "n_iter": 3}
    model = JEMClassifier(**quick | kind, base="gaussian").fit(rows, Y)
    radius = model._recipe.family.rule.radius
    assert_allclose(radius, 0.1 / model.units_.scale)


# ------------------------------------------------------------------------------
# Augmentation
# ------------------------------------------------------------------------------


def test_augmentation_is_reproduced_and_leaves_the_global_generator_alone():
    images, labels = load_digits(return_X_y=True)
    images = images[:150].reshape(-1, 1, 8, 8)
    kind = {"base": "gaussian", "n_iter": 2, "generative_weight": 0}
    move = Compose([Shift(1, fill=0.0), Flip(0.5)])
    before = torch.get_rng_state()

    def proba(augmentation, seed=0):
        model = JEMClassifier(Conv((4, 4)), **kind, random_state=seed)
        model.set_params(objective=Hybrid(augmentation=augmentation))
        return model.fit(images, labels[:150]).predict_proba(images)

    one, two, other = proba(move), proba(move), proba(move, seed=1)
    assert_array_equal(one, two)
    assert not np.allclose(one, other)
    assert not np.allclose(one, proba(None))
    assert torch.equal(torch.get_rng_state(), before)
