"""A deep machine that starts at the RBM of its first layer, and never ends below it."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from skorch.callbacks import Callback

from skebm import DeepBoltzmannMachine, RBMEstimator
from skebm.distributions import IndependentBernoulli
from skebm.energies import BernoulliDBM, annealing_path
from skebm.energies.path import FirstLayerPath
from skebm.estimators import Subspace
from skebm.estimators.base import LogZ
from skebm.estimators.deep import first_layer as module
from skebm.estimators.deep.first_layer import enumerated_first_layer, fit_first_layer
from skebm.estimators.deep.meanfield import MeanField
from skebm.partition import AIS, AISBracket, Exact
from tests.estimators.deep.test_machine import (
    STATES,
    fitted,
    log_joint,
    machine,
    mixed_frame,
    switches,
)
from tests.support.callbacks import Interrupt
from tests.support.tiers import full, leading, only_full


def rows(n=1000, seed=0):
    return switches(n, d=6, noise=0.15, seed=seed)


def caught_first_layer(monkeypatch, kept):
    """Keep what the first layer of a fit becomes."""

    def keeping(*args):
        kept.append(fit_first_layer(*args))
        return kept[-1]

    monkeypatch.setattr("skebm.estimators.deep.machine.fit_first_layer", keeping)


def remembering(sizes=(5, 4, 3), seed=0):
    """A machine and the RBM that it remembers, of random weights."""
    generator = torch.Generator().manual_seed(seed)
    base = IndependentBernoulli(torch.randn(sizes[0], generator=generator))
    energy = BernoulliDBM(sizes, generator=generator, base=base, scale=1.0, remembers=True)
    first = BernoulliDBM(sizes[:2], generator=generator, base=base, scale=1.0)
    return energy.requires_grad_(False), first.requires_grad_(False)


@pytest.mark.parametrize("sizes", [(5, 4, 3), only_full((5, 4, 3, 2))])
def test_a_machine_at_its_first_layer_has_the_likelihood_of_the_rbm(sizes):
    energy, rbm = remembering(sizes)
    energy.set_first_layer(rbm)
    x = torch.tensor(np.eye(5), dtype=torch.float32)
    log_z = Exact().estimate(energy).value
    beside = [torch.tensor(s) for s in np.ndindex(*(2,) * energy.layers.n_beside)]
    whole = torch.stack([-energy(torch.cat([x, b.expand(5, -1).float()], 1)) for b in beside])
    expected = -rbm(x) - Exact().estimate(rbm).value
    assert_allclose(whole.logsumexp(0) - log_z, expected, atol=1e-5)
    own = energy.first_rbm()
    assert_allclose(own(x), rbm(x), atol=1e-6)


def test_parameters_are_remembered_and_returned_to():
    energy, rbm = remembering()
    energy.set_first_layer(rbm)
    for weight in energy.weights:
        weight.add_(1.0)
    assert_allclose(energy.since_first_layer(0.5).weight[:, 5:], 0.5, atol=1e-6)
    assert_array_equal(energy.since_first_layer(1.0).weight, energy.weight)
    energy.return_to_first_layer()
    assert_array_equal(energy.weights[0], rbm.weight)
    assert not energy.weights[1].any()


@pytest.mark.parametrize("start", ["base", "first layer"])
def test_annealing_through_the_first_layer_is_unbiased(start):
    """Against sums over all states; with exact draws of the RBM, annealing may start there."""
    scores = []
    for seed in range(20):
        energy, rbm = remembering(seed=seed)
        kept = [p.clone() for p in energy.parameters()]
        energy.set_first_layer(rbm)
        for own, value in zip(energy.parameters(), kept, strict=True):
            own.copy_(value)
        base = energy.base if start == "base" else enumerated_first_layer(energy)
        found = AIS(n_chains=200, n_betas=40).estimate(
            energy, base=base, generator=torch.Generator().manual_seed(seed)
        )
        scores.append((found.value - Exact().estimate(energy).value) / found.std_error)
    assert 0.6 < np.sqrt(np.mean(np.square(scores))) < 1.5
    assert abs(np.mean(scores)) < 0.75


def test_rows_of_an_enumerated_first_layer_are_those_of_its_distribution():
    energy, rbm = remembering()
    energy.set_first_layer(rbm)
    rows_of_first = enumerated_first_layer(energy)
    x = energy.domain.states(0, 2**energy.domain.n_columns, dtype=torch.float32, device="cpu")
    p = rows_of_first.log_prob(x).double().exp()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)
    n = 20_000
    found = rows_of_first.sample(n, torch.Generator().manual_seed(0)).mean(0)
    mean = p.float() @ x
    assert_allclose(found, mean, atol=5 * 0.5 / np.sqrt(n))


def test_increments_of_the_path_add_up():
    energy, rbm = remembering()
    kept = [p.clone() for p in energy.parameters()]
    energy.set_first_layer(rbm)
    for own, value in zip(energy.parameters(), kept, strict=True):
        own.copy_(value)
    path = annealing_path(energy, energy.base)
    assert isinstance(path, FirstLayerPath)
    x = energy.domain.states(0, 128, dtype=torch.float32, device="cpu")
    whole = path.log_ratio(x, 0.0, 1.0)
    for parts in ([0, 0.5, 1], [0, 0.75, 0.8, 1], [0, 0.7, 0.9, 1]):
        steps = sum(path.log_ratio(x, a, b) for a, b in zip(parts, parts[1:], strict=False))
        assert_allclose(steps, whole, atol=1e-4)
        back = path.log_ratio(x, parts[1], 0.0)
        assert_allclose(back, -path.log_ratio(x, 0.0, parts[1]), atol=1e-4)
    for beta in (0.8, 0.9):
        expected = (path.at(0.76)(x) - path.at(beta)(x)).double()
        assert_allclose(path.log_ratio(x, 0.76, beta), expected, atol=1e-4)


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def log_prob_of_first(first, X):
    """Exact log-likelihoods of rows under the RBM of a first layer."""
    rbm = first.net.module_.energy
    with torch.no_grad():
        return (-rbm(torch.as_tensor(X, dtype=torch.float32))).numpy() - Exact().estimate(rbm).value


@pytest.mark.parametrize("rate", [300.0, only_full(30.0), only_full(3.0)])
@pytest.mark.parametrize("base", leading(1, ["auto", "independent", "chow-liu"]))
def test_no_fit_ends_below_its_first_layer(monkeypatch, base, rate):
    """Learning rates that are far too large, new rows."""
    kept, new = [], rows(3000, seed=1)
    caught_first_layer(monkeypatch, kept)
    monkeypatch.setattr("skebm.estimators.deep.family.RATE_AFTER_FIRST_LAYER", rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = machine((3, 2), base=base, n_iter="auto").fit(rows())
    gain = model.score_samples(new) - log_prob_of_first(kept[0], new)
    assert gain.mean() > -max(0.01, 2 * gain.std() / np.sqrt(len(new)))


def test_upper_layers_gain_what_a_small_first_layer_leaves(monkeypatch):
    """Digits, of which twelve units know little."""
    kept, X = [], (load_digits().data >= 8).astype(float)
    caught_first_layer(monkeypatch, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        params = {"base": "independent", "learning_rate": 0.1, "n_iter": 100}
        model = machine((12, 16), **params).fit(X[:1400])
    gain = model.score_samples(X[1400:]) - log_prob_of_first(kept[0], X[1400:])
    assert gain.mean() > 0.2 + 3 * gain.std() / np.sqrt(len(gain))


@pytest.mark.parametrize("kind", ["given", only_full("chosen"), only_full("overfits")])
@pytest.mark.parametrize("seed", [0, only_full(1)])
def test_the_first_layer_is_the_rbm_of_the_same_seed(monkeypatch, kind, seed):
    """Where trials choose the base, and where the model is that of the trial, as well."""
    kept, X, n = [], rows(), 3
    caught_first_layer(monkeypatch, kept)
    params = {"random_state": seed, "learning_rate": 0.05, "base": "independent", "n_iter": 5}
    if kind != "given":
        monkeypatch.setattr("skebm.estimators.rbm.family.ENOUGH_TIME", 0)
        params = {"random_state": seed}
        X = (load_digits().data[: 400 if kind == "overfits" else 1000, ::2] >= 8).astype(float)
        n = 64 if kind == "overfits" else 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DeepBoltzmannMachine((n, 2), **params).fit(X)
        rbm = RBMEstimator(n, **params).fit(X)
    first = kept[0]
    assert first.recipe.base_name == rbm._recipe.base_name
    assert_array_equal(first.net.module_.energy.weight.detach(), rbm.components_)


OWN = {"learning_rate": 0.2, "n_iter": 20, "base": "independent", "random_state": 3}


@pytest.mark.parametrize("frozen", [False, True])
def test_the_first_layer_may_be_an_rbm_with_settings_of_its_own(frozen):
    X = rows()
    rbm = RBMEstimator(3, **OWN).fit(X)
    given = FrozenEstimator(rbm) if frozen else RBMEstimator(**OWN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(machine((3, 2), learning_rate=0.02, n_iter=2, pretraining=given)).fit(X)
    assert_allclose(model.energy_.first_weight[:, :6], rbm.components_, rtol=1e-6)
    assert model.n_iter_ == 2
    assert (model.score_samples(X) - rbm.score_samples(X)).mean() > -0.01


def test_settings_of_the_first_layer_can_be_searched_over():
    model = machine((3, 2), pretraining=RBMEstimator(**OWN)).set_params(pretraining__n_iter=1)
    assert model.pretraining.n_iter == 1


@pytest.mark.parametrize(
    ("given", "base", "said"),
    [
        (RBMEstimator(4), "auto", "4 hidden units"),
        (RBMEstimator(3, hidden=Subspace()), "auto", "hidden"),
        (RBMEstimator(3, dtype="float64"), "auto", "dtype"),
        (RBMEstimator(3, base="chow-liu"), "independent", "base"),
        (FrozenEstimator(LogisticRegression()), "auto", "RBMEstimator"),
    ],
)
def test_first_layers_that_cannot_be_are_refused(given, base, said):
    with pytest.raises(ValueError, match=said):
        machine((3, 2), base=base, pretraining=given).fit(rows())


def test_first_layers_of_other_rows_are_refused():
    model = machine((3, 2), pretraining=FrozenEstimator(RBMEstimator(3)))
    with pytest.raises(NotFittedError):
        model.fit(rows())
    params = {"n_iter": 2, "base": "independent"}
    numbers = np.random.default_rng(0).normal(size=(300, 6))
    for other, X in ((rows()[:, :5], rows()), (numbers, 3 * numbers)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rbm = RBMEstimator(3, **params).fit(other)
        with pytest.raises(ValueError, match="other columns"):
            model.set_params(pretraining=FrozenEstimator(rbm)).fit(X)


@pytest.mark.parametrize("learning", [{}, {"learning_rate": 0.05}, only_full({"n_iter": 3})])
def test_rows_that_guard_are_those_of_the_first_layer(monkeypatch, learning):
    kept, X = [], rows()
    caught_first_layer(monkeypatch, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = machine((3, 2), **learning).fit(X)
    assert model._recipe.guard_seed == kept[0].guard_seed is not None
    assert model._recipe.trial is None
    if kept[0].net.held_out_ is not None:
        own = kept[0].net.held_out_.block(0, 10)
        assert_array_equal(model.net_.held_out_.block(0, 10)[:, :6], own)


def test_the_start_is_the_first_layer(monkeypatch):
    """Small weights of upper layers are centred, so that no row changes."""
    kept = []
    caught_first_layer(monkeypatch, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = machine((3, 2)).fit(rows())
    assert model.net_.guard_.start.gain == pytest.approx(0.0, abs=0.01)
    energy = model.energy_
    module.start_from(kept[0], model.net_)
    assert energy.weights[1].abs().max() > 0
    model._log_z = LogZ()
    X = np.unique(rows(), axis=0)
    assert_allclose(model.score_samples(X), log_prob_of_first(kept[0], X), atol=5e-3)


@pytest.mark.parametrize("kind", ["numbers", only_full("holes"), only_full("tree")])
def test_columns_of_every_kind_start_at_a_first_layer(kind):
    X, params = mixed_frame(), {}
    if kind == "holes":
        X = X.mask(np.random.default_rng(0).random(X.shape) < 0.1)
    if kind == "tree":
        X, params = rows(), {"base": "chow-liu"}
    model = fitted((4, 3), X, **params)
    assert model._recipe.family.has_first_layer
    assert model.net_.guard_.start.gain == pytest.approx(0.0, abs=0.05)
    assert np.isfinite(model.score(X))


def test_log_z_starts_at_an_enumerated_first_layer(monkeypatch):
    model = fitted((3, 2), rows(), n_iter=5)
    exact = Exact().estimate(model.energy_).value
    inputs = model._partition_inputs()
    found = AISBracket(n_betas=50, n_steps=20).estimate(model.energy_, **inputs)
    assert found.value == pytest.approx(exact, abs=0.05)
    monkeypatch.setattr(module, "MOST_STATES", 0)
    assert enumerated_first_layer(model.energy_) is None
    found = AISBracket(n_betas=100, n_steps=20).estimate(model.energy_, **model._partition_inputs())
    assert found.value == pytest.approx(exact, abs=0.2)


def test_gains_without_exact_sums_are_those_with_them(monkeypatch):
    """Annealed from draws of the first layer, as where layers are large."""
    model = fitted((3, 2), rows(), n_iter=20)
    x = torch.tensor(rows(200, seed=2), dtype=torch.float32)
    family, energy = model._recipe.family, model.energy_
    how = module.RatiosToFirstLayer(family.layers, MeanField(), None)
    exact = how(energy, x, torch.Generator().manual_seed(0))
    for name in (module, "skebm.estimators.rbm.safety"):
        monkeypatch.setattr(
            *((name, "CHEAP_COST", 0) if name is module else (f"{name}.CHEAP_COST", 0))
        )
    how = module.RatiosToFirstLayer(family.layers, MeanField(), None)
    found = how(energy, x, torch.Generator().manual_seed(1))
    assert_allclose(found.ratio, exact.ratio)
    assert found.log_z == pytest.approx(exact.log_z, abs=max(0.05, 4 * found.log_z_error))
    assert found.log_z_error < 0.1


def test_it_is_stored_and_goes_on():
    model = fitted((3, 2), rows(), warm_start=True)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.score_samples(STATES_6), model.score_samples(STATES_6))
    assert_array_equal(again.energy_.first_weight, model.energy_.first_weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again.set_params(n_iter=2).fit(rows())
        other = machine((3, 2)).partial_fit(rows()).partial_fit(rows())
    assert_array_equal(again.energy_.first_weight, model.energy_.first_weight)
    assert again._recipe.family.has_first_layer
    assert not other._recipe.family.has_first_layer


class Counter(Callback):
    """Counts the trainings that it is told of."""

    n_trainings = 0

    def on_train_begin(self, net, **kwargs):
        type(self).n_trainings += 1


def test_callbacks_are_told_of_the_machine_alone():
    counter = type("OwnCounter", (Counter,), {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        params = {"learning_rate": 0.05, "n_iter": 3}
        model = machine((3, 2), net_params={"callbacks": [counter]}, **params).fit(rows(300))
        plain = machine((3, 2), **params).fit(rows(300))
    assert counter.n_trainings == 1
    assert_array_equal(model.weights_[0], plain.weights_[0])


def test_ctrl_c_in_the_first_layer_keeps_its_rbm(monkeypatch):
    def interrupted(*args, net_params, **params):
        return RBMEstimator(*args, net_params={"callbacks": [Interrupt(30)]}, **params)

    monkeypatch.setattr(module, "RBMEstimator", interrupted)
    model = machine((3, 2), learning_rate=0.05)
    with pytest.raises(KeyboardInterrupt, match="first layer"):
        model.fit(rows(300))
    assert np.isfinite(model.score_samples(STATES_6)).all()
    assert model.n_iter_ == 0


STATES_6 = np.unique(rows(3000), axis=0)


def test_few_rows_and_single_layers_have_none():
    assert not fitted((3, 2), switches(100))._recipe.family.has_first_layer
    assert not fitted((3,), rows())._recipe.family.has_first_layer
    assert DeepBoltzmannMachine().pretraining == "auto"
    with pytest.warns(UserWarning, match="trained as an RBM"):
        machine((3,), pretraining="first-layer").fit(rows())


@full
def test_three_hidden_layers_have_exact_likelihoods():
    model = fitted((3, 2, 2))
    log_p = log_joint(model, STATES)
    z = np.logaddexp.reduce(log_p)
    assert_allclose(model.score_samples(STATES), log_p - z, atol=1e-4)
