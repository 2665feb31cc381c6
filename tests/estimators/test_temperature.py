"""Samples at a temperature T: draws of p(x)^(1 / T), normalised, by every density."""

import functools
import inspect
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from scipy import integrate, stats
from sklearn.base import BaseEstimator
from sklearn.mixture import GaussianMixture as SklearnMixture

from skebm import (
    BoltzmannMachineDensity,
    ContrastiveDivergenceDensity,
    JEMClassifier,
    ProductOfDensities,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.base import Real
from skebm.distributions import (
    Distribution,
    Gaussian,
    GaussianMixture,
    KernelDensity,
    LowRankMixture,
    SignedLog,
    Stack,
    Uniform,
)
from skebm.energies import MLP
from skebm.estimators.queries import tractable
from tests.support.discovery import walk
from tests.support.oracle import (
    DOUBLE,
    bits,
    chi_square,
    count_states,
    joint_energy,
    mean_is,
    seeded,
)
from tests.support.tiers import full, leading, named

N = 20_000


def marginal(energy, temperature):
    """Probabilities of all rows of bits under exp(-E(x, h) / T), by a sum over both layers."""
    n_hidden, n_visible = energy.weight.shape
    joint = -joint_energy(energy, bits(n_visible), bits(n_hidden)) / temperature
    return joint.flatten().softmax(0).view(2**n_visible, -1).sum(1)


@pytest.fixture(scope="module")
def binary_rows():
    random = np.random.default_rng(0)
    X = (random.random((300, 5)) < 0.4).astype(float)
    X[:, 1] = np.where(random.random(300) < 0.1, 1 - X[:, 0], X[:, 0])
    return X


@pytest.fixture(scope="module", params=named(["independent"], ["independent", "chow-liu"]))
def rbm(request, binary_rows):
    kind = {"base": request.param, "dtype": "float64", "random_state": 0}
    return RBMEstimator(3, n_iter=50, **kind).fit(binary_rows)


@pytest.fixture(scope="module")
def normal_rows():
    random = np.random.default_rng(1)
    return random.normal(size=(400, 2)) @ np.array([[1.0, 0.8], [0.0, 0.5]]) + 3.0


@pytest.fixture(scope="module")
def untrained(normal_rows):
    """A network that adds nothing to a normal base."""
    model = ScoreMatchingDensity(MLP((8,)), base="gaussian", n_iter=0, random_state=0)
    return model.fit(normal_rows)


def covariance_is(x, expected):
    """Whether an empirical covariance is within five standard errors of the true one."""
    error = np.sqrt((np.outer(*[np.diag(expected)] * 2) + expected**2) / len(x))
    return (np.abs(np.cov(x.T) - expected) < 5 * error).all()


# ------------------------------------------------------------------------------
# Discrete rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_an_rbm_divides_the_energy_of_both_layers(rbm, temperature):
    x = rbm.sample(N, random_state=0, temperature=temperature)
    p = marginal(rbm.energy_, temperature)
    assert chi_square(count_states(torch.tensor(x)), p) > 1e-4


def test_the_marginal_is_no_power_of_the_marginal(rbm):
    """The test above tells the temperature of the joint from that of p(x)."""
    x = rbm.sample(N, random_state=0, temperature=0.5)
    with torch.no_grad():
        other = (-rbm.energy_(bits(5)) / 0.5).softmax(0)
    assert chi_square(count_states(torch.tensor(x)), other) < 1e-6


@pytest.mark.parametrize("temperature", leading(1, [0.8, 2.0]))  # at 0.5 they mix in 10,000 steps
def test_chains_of_an_rbm_agree_with_the_sum(rbm, temperature, monkeypatch):
    monkeypatch.setattr("skebm.estimators.rbm.drawing.CHEAP_COST", 0)
    x = rbm.sample(1500, random_state=0, temperature=temperature, n_steps=1500)
    p = marginal(rbm.energy_, temperature)
    assert chi_square(count_states(torch.tensor(x)), p) > 1e-4


def test_chains_at_a_temperature_start_at_the_base(rbm, monkeypatch):
    monkeypatch.setattr("skebm.estimators.rbm.drawing.CHEAP_COST", 0)
    starts = rbm._starts()(N, seeded(), 0.5)
    p = rbm.energy_.base.log_prob(bits(5)).exp()
    assert chi_square(count_states(starts), p) > 1e-4


def test_real_columns_of_an_rbm(normal_rows):
    """Without weights the model is its base of independent columns, whose variances are T times."""
    model = RBMEstimator(2, base="independent", n_iter=1, learning_rate=1e-12, random_state=0)
    model.fit(normal_rows)
    variance = model.sample(N, random_state=0).var(0)
    wider = model.sample(N, random_state=0, temperature=4.0).var(0)
    np.testing.assert_allclose(wider / variance, 4.0, rtol=0.05)


def test_a_base_without_powers_is_refused(normal_rows):
    X = np.column_stack([normal_rows, normal_rows[:, 0] > 3])[:300]
    kind = {"base": "latent-classes", "n_iter": 2, "random_state": 0}
    model = RBMEstimator(2, visible="auto", **kind).fit(X)
    assert len(model.sample(3)) == 3
    with pytest.raises(ValueError, match="fit the model with another base"):
        model.sample(3, temperature=2.0)


def test_a_boltzmann_machine(binary_rows):
    model = BoltzmannMachineDensity(dtype="float64").fit(binary_rows)
    x = model.sample(N, random_state=0, temperature=2.0)
    p = (-model.energy_(bits(5)) / 2).softmax(0).detach()
    assert chi_square(count_states(torch.tensor(x)), p) > 1e-4


@full
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_neural_density_of_bits(binary_rows, temperature):
    model = ContrastiveDivergenceDensity(n_iter=5, random_state=0).fit(binary_rows)
    x = model.sample(N, random_state=0, temperature=temperature, n_steps=20)
    states = bits(5).float()
    with torch.no_grad():
        p = (-model.energy_(states).double() / temperature).softmax(0)
    assert chi_square(count_states(torch.tensor(x)), p) > 1e-4


# ------------------------------------------------------------------------------
# Neural densities of real rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", leading(1, [4.0, 0.25]))
def test_the_variance_of_a_normal_model_is_proportional(untrained, temperature):
    x = untrained.sample(5000, random_state=0, temperature=temperature, n_steps=5)
    covariance = untrained.base_.covariance.double().numpy()
    covariance = covariance * np.outer(*[untrained.units_.scale] * 2)
    assert covariance_is(x, temperature * covariance)
    assert mean_is(torch.tensor(x), torch.tensor(untrained.units_.centre)) < 5


@pytest.mark.parametrize("temperature", leading(1, [0.25, 4.0]))
def test_given_columns(untrained, temperature):
    """The conditional variance is proportional too, and the conditional mean stays."""
    row = [4.0, np.nan]
    x = untrained.sample(5000, 0, temperature=temperature, given=row, n_steps=5)
    scale, centre = untrained.units_.scale, untrained.units_.centre
    (a, b), (_, c) = untrained.base_.covariance.double().numpy() * np.outer(scale, scale)
    assert (x[:, 0] == 4.0).all()
    mean, variance = centre[1] + b / a * (4.0 - centre[0]), c - b**2 / a
    assert abs(x[:, 1].mean() - mean) < 5 * np.sqrt(temperature * variance / 5000)
    np.testing.assert_allclose(x[:, 1].var(), temperature * variance, rtol=5 * np.sqrt(2 / 5000))


@full
def test_chains_that_start_without_a_base(normal_rows):
    """Two modes that mix: the curve of exp(-E / T) by quadrature, from training rows."""
    X = np.random.default_rng(0).choice([-1.0, 1.0], (300, 1)) + 0.3 * normal_rows[:300, :1]
    model = ContrastiveDivergenceDensity(base=None, n_iter=30, bounds=(-3.0, 5.0), random_state=0)
    model.fit(X)
    x = model.sample(4000, random_state=0, temperature=2.0, n_steps=200)
    z = np.linspace(-3, 5, 4001)[:, None]
    log_p = -model.energy(z) / 2
    p = np.exp(log_p - log_p.max())
    cdf = integrate.cumulative_trapezoid(p, z[:, 0], initial=0) / integrate.trapezoid(p, z[:, 0])
    assert stats.kstest(x[:, 0], lambda at: np.interp(at, z[:, 0], cdf)).pvalue > 1e-4


class PowerTail(torch.nn.Module):
    """E = 2 log(1 + x^2): the density falls as the fourth power of x."""

    def forward(self, x):
        return 2 * torch.log1p(x.square()).sum(1) + 0 * self.unused

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(()))


def test_temperatures_at_which_there_is_no_density(normal_rows):
    network = {"network": PowerTail(), "base": None, "sigma": None}
    model = ContrastiveDivergenceDensity(**network, n_iter=0, random_state=0)
    model.fit(normal_rows[:, :1])
    assert np.isfinite(model.sample(3, random_state=0, temperature=3.0)).all()
    with pytest.raises(ValueError, match="no finite integral"):
        model.sample(3, random_state=0, temperature=4.5)  # falls as the power 4 / 4.5 < 1


@full
def test_several_noise_levels(normal_rows):
    """Annealed Langevin dynamics with all levels at the temperature, before training."""
    model = ScoreMatchingDensity(base="gaussian", objective="multiscale", n_iter=0, random_state=0)
    model.fit(normal_rows)
    narrow, wide = (model.sample(2000, 0, temperature=t, n_steps=5).var(0) for t in (1.0, 4.0))
    np.testing.assert_allclose(wide / narrow, 4.0, rtol=0.15)


def test_rows_of_a_class(normal_rows):
    """An untrained classifier: p(x given y) is the base."""
    y = (normal_rows[:, 0] > 3).astype(int)
    kind = {"base": "gaussian", "n_iter": 0, "random_state": 0}
    model = JEMClassifier(MLP((8,)), **kind).fit(normal_rows, y)
    for labels in (None, 1):
        narrow, wide = (
            model.sample(2000, labels, 0, temperature=t, n_steps=5).var(0) for t in (1.0, 4.0)
        )
        np.testing.assert_allclose(wide / narrow, 4.0, rtol=0.15)


# ------------------------------------------------------------------------------
# Tractable densities
# ------------------------------------------------------------------------------


def uneven(n, seed=0):
    return torch.rand(n, generator=seeded(seed), dtype=DOUBLE) + 0.2


def one_column(*values):
    return torch.tensor(values, dtype=DOUBLE)[:, None]


MIXTURE = GaussianMixture(
    torch.tensor([0.3, 0.7], dtype=DOUBLE),
    one_column(-1.0, 1.5),
    torch.tensor([0.5, 1.2], dtype=DOUBLE)[:, None, None],
)
CENTRES = torch.randn(12, 1, generator=seeded(), dtype=DOUBLE)
SCALES = {"covariances": torch.tensor([0.1, 1.0], dtype=DOUBLE)[:, None, None]}
KERNELS = KernelDensity(CENTRES, 0.3, uneven(12), factors=uneven(12, 1))
DISTRIBUTIONS = {
    "normal": Gaussian(torch.ones(1, dtype=DOUBLE), 2.0),
    "mixture": MIXTURE,
    "kernels": KERNELS,
    "scales": KernelDensity(CENTRES, None, uneven(12), mixing_weights=uneven(2), **SCALES),
    "low rank": LowRankMixture(
        torch.tensor([0.4, 0.6], dtype=DOUBLE),
        one_column(-1.0, 2.0),
        one_column(0.5, 0.2)[..., None],
        one_column(0.5, 0.2),
    ),
    "stack": Stack([MIXTURE, KERNELS], torch.tensor([0.25, 0.75], dtype=DOUBLE)),
    "logs": SignedLog(MIXTURE, torch.zeros(1, dtype=DOUBLE), torch.full((1,), 0.7, dtype=DOUBLE)),
}


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_envelopes_lie_above_the_power(name, temperature):
    q = DISTRIBUTIONS[name]
    r, log_bound = q.tempered(temperature)
    x = torch.linspace(-30, 30, 60_001, dtype=DOUBLE)[:, None]
    log_r = r.log_prob(x)
    ratio = q.log_prob(x) / temperature - log_r
    if name == "logs" and temperature > 1:
        assert log_bound == np.inf
        assert ratio[-1] > ratio[40_000] + 0.5  # there is indeed no bound
        return
    width = 0.01 if name == "logs" else 1e-6  # of the mass beyond the ends
    assert float(log_r.exp().sum()) * 0.001 == pytest.approx(1, abs=width)
    assert ratio.max() <= log_bound + 1e-9
    if name == "normal":
        assert ratio.min() >= log_bound - 1e-9
    if name in ("mixture", "low rank") and temperature > 1:  # far out one component is left
        assert ratio.max() == pytest.approx(log_bound, abs=1e-3)


def test_envelopes_in_several_columns():
    generator = seeded(3)
    x = torch.randn(40, 3, generator=generator, dtype=DOUBLE).cumsum(1)
    far = 3 * torch.randn(500, 3, generator=generator, dtype=DOUBLE)
    q = Stack(
        [
            GaussianMixture.fit(x, n_components=2, generator=generator),
            KernelDensity.fit(x, n_scales=2),
            LowRankMixture.fit(x, rank=1, generator=generator),
            KernelDensity.fit(x, n_neighbours=3),
        ],
        torch.full((4,), 0.25, dtype=DOUBLE),
    )
    for temperature in (0.5, 2.0):
        for part in (*q.parts, q):
            r, log_bound = part.tempered(temperature)
            draws = r.sample(4000, seeded())
            for rows in (far, draws):
                excess = part.log_prob(rows) / temperature - r.log_prob(rows) - log_bound
                assert excess.max() <= 1e-9


def test_distributions_without_a_power_say_so():
    q = Uniform(Real((1,), 0.0, 1.0))
    assert not q.has_tempered
    assert not SignedLog(NoPower(), torch.zeros(1), torch.ones(1)).has_tempered
    with pytest.raises(TypeError, match="Uniform has no power in closed form"):
        q.tempered(2.0)


class NoPower(Distribution):
    """A distribution with nothing but what it must have."""

    domain = Real((1,))

    def sample(self, n, generator):
        return torch.zeros(n, 1)

    def log_prob(self, x):
        return -x.square().sum(1)


def curve(model, temperature, low=-25.0, high=25.0):
    """The cumulative distribution of p(x)^(1 / T) of one column, by quadrature."""
    z = np.linspace(low, high, 20_001)
    log_p = model.score_samples(z[:, None]) / temperature
    p = np.exp(log_p - log_p.max())
    cumulative = integrate.cumulative_trapezoid(p, z, initial=0)
    return lambda at: np.interp(at, z, cumulative / cumulative[-1])


def skewed(n=150):
    random = np.random.default_rng(4)
    return np.concatenate([random.normal(-2, 0.5, n), random.gamma(2.0, 1.0, n)])[:, None]


KINDS = {
    "gaussian": {},
    "mixture": {"n_components": 3},
    "kernel": {"n_neighbors": 5},
    "stack": {},
}


@pytest.mark.parametrize("temperature", leading(1, [0.5, 2.0]))
@pytest.mark.parametrize("distribution", KINDS)
def test_draws_of_tractable_densities_are_exact(distribution, temperature):
    model = TractableDensity(distribution, random_state=0, **KINDS[distribution]).fit(skewed())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = model.sample(1500, random_state=0, temperature=temperature)
    assert stats.kstest(x[:, 0], curve(model, temperature)).pvalue > 1e-3
    assert len(np.unique(x)) == 1500  # none is repeated
    assert_array_equal(x, model.sample(1500, random_state=0, temperature=temperature))


@full
def test_logarithms_are_resampled_above_one():
    model = TractableDensity("kernel", metric="log", random_state=0).fit(skewed())
    x = model.sample(3000, random_state=0, temperature=0.5)
    assert stats.kstest(x[:, 0], curve(model, 0.5)).pvalue > 1e-3
    with pytest.warns(UserWarning, match='metric="log"'):
        x = model.sample(500, random_state=0, temperature=2)
    assert stats.kstest(x[:, 0], curve(model, 2, -500, 500)).pvalue > 1e-3


def test_proposals_that_are_seldom_accepted_are_resampled(monkeypatch):
    monkeypatch.setattr(tractable, "MOST_PROPOSALS", 1)
    model = TractableDensity("kernel", random_state=0).fit(skewed())
    with pytest.warns(UserWarning, match="accepted seldom.*resampled from 1000 of them"):
        x = model.sample(900, random_state=0, temperature=0.2)
    assert len(np.unique(x)) < 900
    # A sample of 900 repeats rows, so only large deviations count.
    assert stats.kstest(x[:, 0], curve(model, 0.2)).statistic < 0.15


def test_a_tiny_temperature_finds_the_mode():
    model = TractableDensity("mixture", n_components=2, random_state=0).fit(skewed())
    z = np.linspace(-25, 25, 50_001)[:, None]
    mode = z[model.score_samples(z).argmax(), 0]
    with pytest.warns(UserWarning, match="accepted seldom"):
        x = model.sample(200, random_state=0, temperature=1e-4)
    assert np.abs(x - mode).max() < 0.1


# ------------------------------------------------------------------------------
# Products
# ------------------------------------------------------------------------------


def normal_product(**kwargs):
    experts = [("a", TractableDensity("gaussian")), ("b", TractableDensity("gaussian"))]
    return ProductOfDensities(experts, random_state=0, **kwargs)


@pytest.mark.parametrize("temperature", leading(1, [3.0, 0.5]))
@pytest.mark.parametrize("weights", leading(1, [(1.0, 1.0), (0.3, 0.7)]))
def test_a_product_of_normal_distributions(normal_rows, weights, temperature):
    """Of one normal distribution twice: it, with a covariance of T over the sum of the weights."""
    model = normal_product(weights=weights).fit(normal_rows)
    covariance = model.experts_.a.distribution_.covariance.numpy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = model.sample(600, random_state=0, temperature=temperature)
    assert covariance_is(x, covariance * temperature / sum(weights))
    assert len(caught) == (sum(weights) != 1)


@pytest.mark.parametrize("temperature", leading(1, [2.0, 0.5]))
def test_a_product_of_different_experts(temperature):
    experts = [
        ("mixture", TractableDensity("mixture", n_components=2)),
        ("kernels", TractableDensity("kernel")),
        ("unused", TractableDensity("kernel", metric="log")),
    ]
    model = ProductOfDensities(experts, weights=[0.4, 0.6, 0.0], random_state=0).fit(skewed())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = model.sample(2000, random_state=0, temperature=temperature)
    assert stats.kstest(x[:, 0], curve(model, temperature)).pvalue > 1e-3


def test_experts_of_others_are_resampled():
    experts = [("own", TractableDensity("mixture")), ("sklearn", SklearnMixture(2, random_state=0))]
    model = ProductOfDensities(experts, random_state=0).fit(skewed())
    with pytest.warns(UserWarning, match="have no bound at temperature 1.5"):
        x = model.sample(500, random_state=0, temperature=1.5)
    assert stats.kstest(x[:, 0], curve(model, 1.5)).pvalue > 1e-3


@full
def test_the_default_product():
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = ProductOfDensities(random_state=0).fit(X)
    with pytest.warns(UserWarning, match="have no bound at temperature 2"):
        wide = model.sample(300, random_state=0, temperature=2.0)
    narrow = model.sample(300, random_state=0, temperature=0.5)
    assert wide.std() > 1.5 * narrow.std()


# ------------------------------------------------------------------------------
# Every class with samples
# ------------------------------------------------------------------------------


def samplers():
    return [cls for cls in walk(BaseEstimator) if hasattr(cls, "sample")]


def test_every_density_has_a_temperature():
    names = {cls.__name__ for cls in samplers()}
    assert {"RBMEstimator", "JEMClassifier", "ProductOfDensities"} <= names
    for cls in samplers():
        parameter = inspect.signature(cls.sample).parameters["temperature"]
        assert parameter.default == 1.0
        assert parameter.kind is parameter.KEYWORD_ONLY


@pytest.fixture(scope="module")
def models(rbm, untrained, binary_rows, normal_rows):
    y = np.arange(len(normal_rows)) % 2
    kind = {"base": "gaussian", "n_iter": 0, "random_state": 0}
    jem = JEMClassifier(MLP((8,)), **kind).fit(normal_rows, y)
    return {
        "rbm": rbm.sample,
        "neural": functools.partial(untrained.sample, n_steps=2),
        "class": functools.partial(jem.sample, y=1, n_steps=2),
        "joint": functools.partial(jem.sample, n_steps=2),
        "boltzmann": BoltzmannMachineDensity(l2=0.01).fit(binary_rows).sample,
        "tractable": TractableDensity("gaussian").fit(normal_rows).sample,
        "product": normal_product().fit(normal_rows).sample,
    }


@pytest.mark.parametrize("temperature", [0, -1.0, np.nan, np.inf, "hot", None])
def test_temperatures_are_positive_numbers(models, temperature):
    for sample in models.values():
        with pytest.raises(ValueError, match="temperature must be a positive number"):
            sample(3, temperature=temperature)


def test_temperature_one_changes_nothing(models):
    for sample in models.values():
        assert_array_equal(sample(5, random_state=0), sample(5, random_state=0, temperature=1))


@full
def test_temperatures_of_other_numeric_types(models):
    for name, sample in models.items():
        one, other = (sample(5, random_state=0, temperature=t) for t in (2.0, np.float32(2)))
        assert_array_equal(one, other, err_msg=name)
