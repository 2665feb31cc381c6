"""Draws of neural densities against quadrature: by proposals of the base, and by chains."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone

from skebm import BoostedDensity, NCEDensity, ScoreMatchingDensity
from skebm.base import Real
from skebm.distributions import Gaussian
from skebm.energies import NeuralEnergy
from skebm.estimators.neural.sampling import Chains, draw_by_chains, impute_rows, starts
from skebm.samplers import HMC, MALA
from tests.support.tiers import full

rng = np.random.default_rng(0)
SIDE = rng.choice([-1.0, 1.0], 1500)
X = np.column_stack([SIDE + 0.3 * rng.normal(size=1500), SIDE * 0.5 + 0.4 * rng.normal(size=1500)])


class Tilted(torch.nn.Module):
    """A correction whose density ratio to a standard normal base is known: exp(-a x0^2 / 2)."""

    def __init__(self, a):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(float(a)))

    def forward(self, x):
        return self.a * x[:, 0].square() / 2


def tilted(a, d=2):
    base = Gaussian(torch.zeros(d, dtype=torch.float64), 1.0)
    return NeuralEnergy(Tilted(a).double(), Real((d,)), base).eval()


def chains_of(energy, *, is_default=True, temperature=1.0):
    known = torch.zeros(1, 2, dtype=torch.float64)
    sampler = MALA(adapt=True)
    return Chains(sampler, energy.base, known, None, temperature, is_default)


@pytest.mark.parametrize("is_default", [True, False], ids=["by proposals", "by chains"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draws_have_the_distribution_of_the_energy(is_default, temperature):
    energy = tilted(2.0)
    chains = chains_of(energy, is_default=is_default, temperature=temperature)
    assert starts(energy, chains, 500, torch.Generator().manual_seed(1)).share > 0.5
    x = draw_by_chains(energy, chains, 2000, torch.Generator().manual_seed(0), 60).numpy()
    narrow = (temperature / 3) ** 0.5  # precisions of base and tilt add
    assert stats.kstest(x[:, 0], stats.norm(0, narrow).cdf).pvalue > 1e-3
    assert stats.kstest(x[:, 1], stats.norm(0, temperature**0.5).cdf).pvalue > 1e-3


@pytest.mark.parametrize("is_default", [True, False], ids=["by proposals", "by chains"])
def test_imputations_are_draws_given_what_is_known(is_default):
    energy = tilted(2.0)
    x = torch.tensor([[torch.nan, 0.5]]).double().repeat(2000, 1)
    chains = chains_of(energy, is_default=is_default)
    found = impute_rows(energy, chains, x, torch.Generator().manual_seed(0), 60).numpy()
    assert (found[:, 1] == x[0, 1].item()).all()
    assert stats.kstest(found[:, 0], stats.norm(0, 3**-0.5).cdf).pvalue > 1e-3


def test_rows_near_the_base_and_rows_far_from_it_are_imputed_together():
    """The share of proposals that count differs by row; each has the right distribution."""

    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x):  # the precision of x0 given x1 is 1 + x1^4
            return self.a * x[:, 0].square() * x[:, 1].pow(4) / 2

    base = Gaussian(torch.zeros(2, dtype=torch.float64), 1.0)
    energy = NeuralEnergy(Product().double(), Real((2,)), base).eval()
    x = torch.full((3000, 2), torch.nan).double()
    x[:1500, 1], x[1500:, 1] = 0.5, 5.0
    generator = torch.Generator().manual_seed(0)
    found = impute_rows(energy, chains_of(energy), x, generator, 100).numpy()
    for part, value in ((found[:1500], 0.5), (found[1500:], 5.0)):
        scale = (1 + value**4) ** -0.5
        assert stats.kstest(part[:, 0], stats.norm(0, scale).cdf).pvalue > 1e-3


def test_steps_remove_what_few_proposals_leave():
    """Without steps, draws are those of twenty proposals each, resampled: too wide."""
    energy = tilted(15.0)
    chains = chains_of(energy)
    generator = torch.Generator().manual_seed(0)
    spread = {}
    for n_steps in (0, 100):
        drawn = [draw_by_chains(energy, chains, 64, generator, n_steps) for _ in range(60)]
        spread[n_steps] = float(torch.cat(drawn)[:, 0].std())
    assert spread[100] == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(ScoreMatchingDensity(base="gaussian", n_iter=30, random_state=0), marks=full),
        NCEDensity(noise="gaussian", n_iter=10, random_state=0),
        BoostedDensity(base="gaussian", n_iter=30, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_draws_have_the_marginals_that_the_model_says(model):
    model = clone(model).fit(X)
    assert model._chains().is_default
    drawn = model.sample(1500, random_state=0)
    grid = np.linspace(-4, 4, 401)
    rows = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    p = np.exp(model.score_samples(rows)).reshape(401, 401)
    for column in range(2):
        below = np.cumsum(p.sum(1 - column))
        level = np.interp(drawn[:, column], grid, below / below[-1])
        assert stats.kstest(level, "uniform").pvalue > 1e-3
    row = np.array([[0.0, np.nan]])
    filled = model.impute(np.repeat(row, 1500, 0), random_state=0)[:, 1]
    level = np.ravel(model.conditional(row, 1).cdf(filled))
    assert stats.kstest(level, "uniform").pvalue > 1e-3


def test_a_sampler_that_is_named_draws():
    named = ScoreMatchingDensity(
        base="gaussian", n_iter=5, sampler=HMC(step_size=1e-4, adapt=False), random_state=0
    ).fit(X)
    assert not named._chains().is_default
    default = clone(named).set_params(sampler=None).fit(X)
    assert default._chains().is_default
    one, other = (model.sample(200, random_state=0) for model in (named, default))
    assert not np.array_equal(one, other)
    # Tiny steps leave draws of the base where they are, as `n_steps` says.
    few, many = (named.sample(200, random_state=0, n_steps=n) for n in (1, 50))
    assert np.abs(few - many).max() < 0.1


def test_a_parameter_set_after_the_fit_waits_for_the_next_one():
    model = ScoreMatchingDensity(base="gaussian", n_iter=5, random_state=0).fit(X)
    before = model.sample(100, random_state=0)
    model.set_params(sampler=MALA(0.1))
    np.testing.assert_array_equal(model.sample(100, random_state=0), before)
