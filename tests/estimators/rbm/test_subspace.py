"""Subspace RBMs against sums over all gates, units and rows."""

import math
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from skebm import RBMEstimator, SubspaceRBM
from skebm.base import Batch, ChainState
from skebm.distributions import (
    ChowLiuTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
    LatentClasses,
)
from skebm.energies import MixedRBM, SubspaceEnergy, annealing_path
from skebm.objectives import (
    CenteredObjective,
    Centering,
    ContrastiveDivergence,
    EnumeratedLikelihood,
    Penalty,
    PseudoLikelihood,
)
from skebm.partition import AIS, Exact, exact_draws
from skebm.samplers import FromData, Gibbs, Persistent
from tests.support.oracle import DOUBLE, joint_energy, make_subspace, seeded
from tests.support.tables import binary_rows
from tests.support.tiers import leading


def normal(n, seed=5):
    return torch.randn(n, generator=seeded(seed), dtype=DOUBLE)


def bases():
    bits = IndependentBernoulli(normal(4))
    levels = IndependentCategorical(torch.zeros(5, dtype=DOUBLE), (2, 3))
    real = Gaussian(torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))
    x = (torch.rand(50, 4, generator=seeded(5), dtype=DOUBLE) < 0.4).to(DOUBLE)
    return {
        "bits": bits,
        "tree": ChowLiuTree.fit(x, torch.ones(50, dtype=DOUBLE)),
        "levels": Columns([bits, levels]),
        "real": Columns([levels, real]),
    }


def energy_on(name, n_gates=2, n_subspace=2):
    return make_subspace(bases()[name], n_gates, n_subspace)


def rows_of(energy, n=6):
    return energy.base.sample(n, seeded(2)).to(DOUBLE)


def states_of(domain):
    return torch.cat(list(domain.enumerate(dtype=DOUBLE)))


names = pytest.mark.parametrize("name", list(bases()))
discrete = pytest.mark.parametrize("name", ["bits", "tree", "levels"])


# ------------------------------------------------------------------------------
# The energy: conditionals on bits are in tests/contracts/test_energies.py
# ------------------------------------------------------------------------------


@names
def test_free_energy_is_the_formula_and_the_sum(name):
    energy = energy_on(name, 2, 3)
    x, layers = rows_of(energy), states_of(energy.hidden_domain)
    with torch.no_grad():
        summed = -(-joint_energy(energy, x, layers)).logsumexp(1)
        torch.testing.assert_close(energy(x), summed)
        field = (energy.rbm.statistics(x) @ energy.weight.t() + energy.rbm.hidden_bias).view(
            6, 2, 3
        )
        inside = energy.gate_bias + (1 + field.exp()).log().sum(2)
        hidden = (2**3 + inside.exp()).log().sum(1)
        torch.testing.assert_close(energy(x), energy.rbm.visible_energy(x) - hidden)


@names
def test_a_closed_gate_leaves_its_units_fair_coins(name):
    energy = energy_on(name)
    layer = energy.hidden(rows_of(energy, 1).expand(40_000, -1)).sample(seeded())
    closed = layer[layer[:, 0] == 0]
    assert len(closed) > 2000
    torch.testing.assert_close(
        closed[:, 2:4].mean(0), torch.full((2,), 0.5, dtype=DOUBLE), atol=0.05, rtol=0
    )


@discrete
def test_log_z_is_that_of_all_rows(name):
    energy = energy_on(name)
    with torch.no_grad():
        states = states_of(energy.domain)
        log_z = float((-energy(states)).logsumexp(0))
        assert Exact().estimate(energy).value == pytest.approx(log_z, abs=1e-8)
        layers = states_of(energy.hidden_domain)
        assert len(layers) == 2**6
        assert float((-energy.hidden_energy(layers)).logsumexp(0)) == pytest.approx(log_z)
    ais = AIS(n_chains=200, n_betas=50).estimate(energy, generator=seeded())
    assert ais.value == pytest.approx(log_z, abs=5 * ais.std_error + 0.02)


def test_real_columns_have_the_log_z_of_quadrature():
    energy = make_subspace(Gaussian(torch.zeros(1, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)))
    x = torch.linspace(-40, 40, 20_001, dtype=DOUBLE)[:, None]
    with torch.no_grad():
        integral = float((-energy(x)).logsumexp(0)) + math.log(80 / 20_000)
    log_z = Exact().estimate(energy).value
    assert log_z == pytest.approx(integral, abs=1e-6)
    wide = AIS(n_chains=500, n_betas=100).estimate(
        energy, base=energy.wider_base(), generator=seeded()
    )
    assert wide.value == pytest.approx(log_z, abs=5 * wide.std_error + 0.02)


@names
def test_ratios_along_the_path_are_those_of_its_energies(name):
    energy = energy_on(name)
    path, x = annealing_path(energy, energy.base), rows_of(energy, 20_000)
    with torch.no_grad():
        found = path.log_ratio(x, 0.3, 0.7)
        torch.testing.assert_close(found, path.at(0.3)(x) - path.at(0.7)(x))
        layer = path.hidden_layer(x, 0.7, seeded())
        assert (layer is None) == (name == "real")
        if layer is not None:
            mean = path.at(0.7).hidden(x).mean.mean(0)
            torch.testing.assert_close(layer.mean(0), mean, atol=0.02, rtol=0)


@discrete
def test_gibbs_draws_the_marginal(name):
    energy = energy_on(name)
    with torch.no_grad():
        states = states_of(energy.domain)
        mean = (-energy(states)).softmax(0) @ states
        start = exact_draws(energy, 20_000, seeded())
        torch.testing.assert_close(start.mean(0), mean, atol=0.02, rtol=0)
        for kernel in (Gibbs(), Gibbs(n_collapsed=2)):
            state, _ = kernel.step(energy, ChainState(start), seeded(1))
            torch.testing.assert_close(state.x.mean(0), mean, atol=0.02, rtol=0)


@names
def test_padding_changes_nothing(name):
    energy = energy_on(name)
    x, padded = rows_of(energy), energy.with_padding()
    layer = energy.hidden(x).sample(seeded())
    with torch.no_grad():
        torch.testing.assert_close(padded(x), energy(x))
        torch.testing.assert_close(padded.hidden(x).mean, energy.hidden(x).mean)
        torch.testing.assert_close(padded.visible(layer).mean, energy.visible(layer).mean)


@names
def test_a_subspace_of_one_gate_that_is_always_open_is_a_plain_rbm(name):
    """Whatever c is, the units of open gates are those of an RBM."""
    energy = energy_on(name, 1, 4)
    x = rows_of(energy)
    with torch.no_grad():
        energy.gate_bias.fill_(60.0)
        torch.testing.assert_close(energy(x) + 60, energy.rbm(x))


@discrete
def test_differences_and_pseudo_likelihoods_are_those_of_the_energy(name):
    energy = energy_on(name)
    states = states_of(energy.domain)
    with torch.no_grad():
        found = energy.level_difference(states)
        expected = (
            super(SubspaceEnergy, energy).level_difference(states)
            if name == "levels"
            else (super(SubspaceEnergy, energy).flip_difference(states))
        )
        torch.testing.assert_close(found, expected)
        # Of column 0, a bit: its two states among all.
        other = states.clone()
        other[:, 0] = 1 - other[:, 0]
        one = torch.stack([-energy(states), -energy(other)]).log_softmax(0)[0]
        rest = energy.pseudo_log_likelihood(states) - one
        assert (rest < 0).all()


def of_each_real_column(energy, x):
    """log p(x_i given the others) of real columns, (n,), by quadrature."""
    grid, total = torch.linspace(-40, 40, 20_001, dtype=DOUBLE), 0.0
    for row in x:
        here = float(-energy(row[None]))
        for i in energy.is_real.nonzero().ravel():
            line = row.expand(len(grid), -1).clone()
            line[:, i] = grid
            total += here - float((-energy(line)).logsumexp(0)) - math.log(80 / 20_000)
    return total


@pytest.mark.parametrize("kind", ["gaussian", "latent classes"])
def test_pseudo_likelihoods_of_real_columns_are_integrals(kind):
    base = Gaussian(torch.zeros(2, dtype=DOUBLE), torch.tensor([1.0, 1.5], dtype=DOUBLE))
    if kind == "latent classes":
        x = base.sample(200, seeded(3)).to(DOUBLE)
        base = LatentClasses.fit(x, base.domain, n_classes=2, generator=seeded())
    energy = make_subspace(base)
    x = rows_of(energy, 4)
    with torch.no_grad():
        found = float(energy.pseudo_log_likelihood(x).sum())
        assert found == pytest.approx(of_each_real_column(energy, x), abs=1e-5)


def test_k_0_and_units_that_do_not_fill_subspaces_are_refused():
    rbm = MixedRBM(bases()["bits"], 4, generator=seeded())
    for k in (0, 3, -1):
        with pytest.raises(ValueError, match=f"n_subspace={k}"):
            SubspaceEnergy(rbm, k)


# ------------------------------------------------------------------------------
# Gradients
# ------------------------------------------------------------------------------


def grads(energy):
    return {name: p.grad.clone() for name, p in energy.named_parameters() if p.numel()}


@names
@pytest.mark.parametrize("n_subspace", [2, 101])  # by two formulas
def test_the_written_gradient_is_that_of_the_contrast(name, n_subspace):
    energy = energy_on(name, 2, n_subspace)
    x, share = rows_of(energy, 8), torch.linspace(0.5, 1.5, 8, dtype=DOUBLE) / 8
    chain = energy.base.sample(5, seeded(8)).to(DOUBLE)
    sign = torch.cat([-share, torch.full((5,), float(share.sum()) / 5, dtype=DOUBLE)])
    energy.contrast_gradient(None, Penalty(l1=0.01, l2=0.1)).write(
        x, chain, sign, share, None, None
    )
    written = grads(energy)
    energy.zero_grad(set_to_none=True)
    loss = -(sign @ energy(torch.cat([x, chain])))
    (loss + Penalty(l1=0.01, l2=0.1).value(energy.weight, x, share)).backward()
    for key, value in grads(energy).items():
        torch.testing.assert_close(written[key], value, rtol=1e-8, atol=1e-10)


def test_the_exact_gradient_is_that_of_chains_at_the_model():
    energy = energy_on("bits")
    states = states_of(energy.domain)
    x = states[[1, 5, 9, 14]]
    (energy(x).mean() + (-energy(states)).logsumexp(0)).backward()
    exact = grads(energy)
    energy.zero_grad(set_to_none=True)
    n = 40_000
    objective = ContrastiveDivergence(energy, Gibbs(), Persistent(n_steps=1, n_chains=n))
    state = objective.start(Batch(x), seeded())
    state = state._replace(chain=ChainState(exact_draws(energy, n, seeded())))
    with torch.no_grad():
        objective.gradients(Batch(x), state, seeded(1))
    for key, value in exact.items():
        torch.testing.assert_close(grads(energy)[key], value, atol=0.02, rtol=0)


@names
@pytest.mark.parametrize("centering", [Centering(0.0), Centering(0.0, precondition=0.5)])
def test_centring_is_that_of_the_rbm_of_the_products(name, centering):
    """Weights of u - l and x - m: the gates' biases have the plain gradient, up to a factor."""
    energy = energy_on(name)
    x, share = rows_of(energy, 8), torch.full((8,), 1 / 8, dtype=DOUBLE)
    chain = energy.base.sample(8, seeded(8)).to(DOUBLE)
    sign = torch.cat([-share, share])
    own = energy.contrast_gradient(centering, None)
    offsets = own.start(x, None)
    new, layer = own.write(x, chain, sign, share, offsets, seeded())
    found = grads(energy)
    rows = torch.cat([x, chain])
    with torch.no_grad():
        layers = states_of(energy.hidden_domain)
        p = (-joint_energy(energy, rows, layers)).softmax(1)
        u, gate = p @ energy.products(layers), p @ layers[:, :2]
    torch.testing.assert_close(new.hidden, torch.cat([u[:8].mean(0), gate[:8].mean(0)]))
    inner = energy.rbm.contrast_gradient(centering, None)
    inner.write_means(rows, u.clone(), x, sign, share, new._replace(hidden=new.hidden[:4]))
    for key, value in grads(energy).items():
        if key != "gate_bias":
            torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9)
    variance = 4 * new.hidden[4:] * (1 - new.hidden[4:])
    torch.testing.assert_close(
        found["gate_bias"], sign @ gate / variance.pow(centering.precondition)
    )
    assert energy.hidden_domain.contains(layer).all()


@pytest.mark.parametrize("name", ["bits", "levels"])
def test_local_objectives_have_the_gradient_of_their_value(name):
    energy = energy_on(name)
    x = rows_of(energy, 8)
    objective = CenteredObjective(PseudoLikelihood(energy), penalty=Penalty(l2=0.1))
    state = objective.start(Batch(x), seeded())
    objective.gradients(Batch(x), state, seeded())
    written = grads(energy)
    energy.zero_grad(set_to_none=True)
    objective(Batch(x), state, seeded()).value.backward()
    for key, value in grads(energy).items():
        torch.testing.assert_close(written[key], value)
    # A step along the centred gradient descends.
    centred = CenteredObjective(PseudoLikelihood(energy), centering=Centering(precondition=0.5))
    state = centred.start(Batch(x), seeded())
    before = centred(Batch(x), state, seeded()).value.item()
    centred.gradients(Batch(x), state, seeded())
    with torch.no_grad():
        for p in energy.parameters():
            if p.numel():
                p.sub_(0.01 * p.grad)
    assert centred(Batch(x), state, seeded()).value.item() < before


def test_a_target_of_sparsity_is_refused():
    with pytest.raises(ValueError, match="sparsity_target"):
        ContrastiveDivergence(
            energy_on("bits"), Gibbs(), FromData(), penalty=Penalty(sparsity_target=0.1)
        )


# ------------------------------------------------------------------------------
# The estimator: what holds for all of them is in tests/contracts/test_estimators.py
# ------------------------------------------------------------------------------


def fitted(X, n_components=2, n_subspace=2, **params):
    params = {"random_state": 0, "n_iter": 30, "dtype": "float64"} | params
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return SubspaceRBM(n_components, n_subspace, **params).fit(X)


@pytest.fixture(scope="module")
def model():
    return fitted(binary_rows(d=5), learning="pcd", base="independent")


def layer_of(model, x):
    """States of the layer, and their probabilities given each row."""
    energy = model.energy_
    layers = states_of(energy.hidden_domain)
    with torch.no_grad():
        return layers, (-joint_energy(energy, torch.as_tensor(x), layers)).softmax(1).numpy()


def test_features_are_means_of_gates_and_of_units(model):
    X = binary_rows(d=5, seed=1)
    layers, p = layer_of(model, X)
    assert_allclose(model.transform(X), (p @ layers.numpy())[:, :2], atol=1e-9)
    every = fitted(binary_rows(d=5), learning="pcd", base="independent", features="all")
    assert_allclose(every.transform(X), p @ layers.numpy(), atol=1e-9)
    assert list(every.get_feature_names_out()) == [f"subspacerbm{i}" for i in range(6)]


def test_likelihoods_of_rows_and_of_known_entries_are_exact(model):
    states = states_of(model.energy_.domain).numpy()
    log_p = model.score_samples(states)
    assert np.exp(log_p).sum() == pytest.approx(1)
    row = states[:1].copy()
    row[0, [1, 3]] = np.nan
    agree = (states[:, [0, 2, 4]] == row[0, [0, 2, 4]]).all(1)
    assert model.score_samples(row)[0] == pytest.approx(np.logaddexp.reduce(log_p[agree]))
    features = model.transform(row)[0]
    share = np.exp(log_p[agree] - np.logaddexp.reduce(log_p[agree]))
    assert_allclose(features, share @ model.transform(states[agree]), atol=0.1)


def test_joint_energies_sum_to_the_energy(model):
    X = binary_rows(8, d=5, seed=1)
    layers = states_of(model.energy_.hidden_domain).numpy()
    found = np.stack([
        model.joint_energy(X, np.tile(one[:2], (8, 1)), np.tile(one[2:].reshape(2, 2), (8, 1, 1)))
        for one in layers
    ])  # fmt: skip
    assert_allclose(-np.logaddexp.reduce(-found), model.energy(X))
    with torch.no_grad():
        own = joint_energy(model.energy_, torch.as_tensor(X), torch.as_tensor(layers))
    # Up to the normaliser of independent bits, which the fields of the energy leave in.
    assert_allclose(found.T, own, atol=1e-8)
    with pytest.raises(ValueError, match="S has shape"):
        model.joint_energy(X, np.zeros((8, 2)), np.zeros((8, 4)))
    with pytest.raises(ValueError, match="states of hidden units"):
        model.joint_energy(X, np.full((8, 2), 0.5), np.zeros((8, 2, 2)))


def test_exact_gradients_are_the_same_by_rows_and_by_layers():
    """Eight columns and one gate of two units: three bits in the hidden layer."""
    X = torch.as_tensor(binary_rows(20, d=8))
    energy = make_subspace(IndependentBernoulli(normal(8)), 1, 2)
    objective = EnumeratedLikelihood(energy, l1=0.01, l2=0.1)
    objective.gradients(Batch(X), None, seeded())
    found = grads(energy)
    energy.zero_grad(set_to_none=True)
    loss = energy(X).mean() + (-energy(states_of(energy.domain))).logsumexp(0)
    (loss + Penalty(l1=0.01, l2=0.1).value(energy.weight, X, X[:, 0])).backward()
    for key, value in grads(energy).items():
        torch.testing.assert_close(found[key], value)
    assert objective.validation_loss(Batch(X), None, seeded()).item() == pytest.approx(loss.item())


def test_exact_learning_ends_where_the_gradient_of_the_likelihood_does():
    X = binary_rows(100, d=4)
    exact = fitted(X, 1, 2, learning="exact", n_iter=500, base="independent")
    energy = exact.net_.module_.energy
    energy.zero_grad()
    states = states_of(energy.domain)
    loss = energy(torch.as_tensor(X)).mean() + (-energy(states)).logsumexp(0)
    loss.backward()
    assert max(float(p.grad.abs().max()) for p in energy.parameters() if p.numel()) < 0.02
    base = exact.base_.log_prob(torch.as_tensor(X)).mean()
    assert exact.score(X) > float(base) + 0.3
    assert exact.score(X) == pytest.approx(-loss.item(), abs=1e-6)


@pytest.mark.parametrize(
    "learning", leading(1, ["pcd", "cd", "pseudo_likelihood", "ratio_matching"])
)
def test_every_rule_learns(learning):
    X = binary_rows(100, d=6)
    how = {"n_iter": 60, "learning_rate": 0.3, "batch_size": 25, "base": "independent"}
    found = fitted(X, 2, 3, learning=learning, **how)
    gain = found.score(X) - float(found.base_.log_prob(torch.as_tensor(X)).mean())
    assert gain > 0.1


def test_with_one_unit_for_each_gate_it_is_an_rbm():
    """log(2 + e^c (1 + e^z)) is a softplus of z up to constants."""
    X = binary_rows(60, d=5)
    found = fitted(X, 3, 1, learning="pcd", base="independent")
    c = found.intercept_gates_
    plain = RBMEstimator(3, n_iter=0, base="independent", dtype="float64").fit(X)
    plain.components_ = found.components_[:, 0]
    plain.intercept_hidden_ = found.intercept_units_[:, 0] + c - np.log(2 + np.exp(c))
    bias = found.base_.logits.numpy() + found.intercept_visible_
    plain.intercept_visible_ = bias
    assert_allclose(found.score_samples(X), plain.score_samples(X), atol=1e-6)


def test_noise_is_left_to_the_base():
    """Rows of independent bits: the model must not end below its base on new rows."""
    rng = np.random.default_rng(0)
    X, X_new = (rng.random((n, 8)) < 0.3 for n in (400, 2000))
    found = fitted(X.astype(float), 8, 3, learning="pcd", n_iter=5, base="independent")
    gain = found.score_samples(X_new.astype(float))
    gain = gain - found.base_.log_prob(torch.as_tensor(X_new, dtype=DOUBLE)).numpy()
    assert gain.mean() > -0.03


def test_columns_of_every_kind_and_missing_entries():
    rng = np.random.default_rng(0)
    size, colour = rng.normal(size=80), rng.integers(0, 3, 80)
    X = np.column_stack([size, colour, size + rng.normal(size=80) > 0]).astype(object)
    X[:, 1] = np.array(["red", "green", "blue"])[colour]
    X[3, 0] = X[5, 1] = np.nan
    found = fitted(X, 2, 2, n_iter=20)
    assert np.isfinite(found.score_samples(X)).all()
    filled = found.impute(X, random_state=0, n_steps=20)
    assert not any(value != value for value in filled.ravel())
    assert found.sample(5, random_state=0).shape == (5, 3)
    assert found.components_.shape == (2, 2, 5)
    with pytest.raises(AttributeError, match="denoise"):
        found.denoise(X)


# ------------------------------------------------------------------------------
# What does not apply is refused
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_subspace": 0}, "n_subspace"),
        ({"n_components": 0}, "n_components"),
        ({"n_components": 10**7, "n_subspace": 10**4}, "n_components=10000000"),
        ({"features": "units"}, "features"),
        ({"penalty": Penalty(sparsity_target=0.1), "learning": "pcd"}, "sparsity_target"),
        ({"learning": "exact", "chains": Persistent()}, "has no chains"),
        ({"learning": "sampling"}, "learning"),
    ],
)
def test_settings_that_do_not_apply_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        SubspaceRBM(**{"n_components": 2, "n_subspace": 2, "n_iter": 2} | params).fit(
            binary_rows(d=6)
        )


def test_exact_learning_of_many_columns_and_of_numbers_is_refused():
    with pytest.raises(ValueError, match="would sum"):
        SubspaceRBM(8, 4, learning="exact").fit(binary_rows(d=40))
    numbers = np.random.default_rng(0).normal(size=(30, 2))
    for learning in ("exact", "pseudo_likelihood"):
        with pytest.raises(ValueError, match=learning):
            SubspaceRBM(2, 2, learning=learning).fit(numbers)


def test_centring_of_an_exact_likelihood_has_no_effect():
    with pytest.warns(UserWarning, match="centering"):
        SubspaceRBM(2, 2, learning="exact", learning_rate=0.1, centering=Centering(), n_iter=2).fit(
            binary_rows(d=4)
        )


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.full((20, 3), np.inf), "infinity"),
        (np.full((20, 3), np.nan), "missing|NaN"),
        (np.zeros((0, 3)), "0 sample"),
        (np.zeros(20), "1D array"),
        (np.zeros((4, 3, 2)), "dim 3"),
        (np.zeros((1, 3)), "1 sample"),
        (np.array([[1 + 1j, 0.0]] * 5), "Complex"),
    ],
)
def test_bad_rows_are_answered(X, message):
    with pytest.raises(ValueError, match=message):
        SubspaceRBM(2, 2, n_iter=2).fit(X)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["constant", "huge", "few rows", "booleans"])
def test_odd_rows_have_sound_results(kind):
    rng = np.random.default_rng(0)
    X = {
        "constant": np.ones((40, 4)),
        "huge": rng.normal(size=(60, 3)) * 1e30,
        "few rows": binary_rows(2, 4),
        "booleans": binary_rows(40, 4).astype(bool),
    }[kind]
    found = SubspaceRBM(2, 2, n_iter=3, random_state=0).fit(X)
    assert np.isfinite(found.score_samples(X)).all()
    assert np.isfinite(found.transform(X)).all()
    with pytest.raises(ValueError, match="features"):
        found.transform(X[:, :2])
