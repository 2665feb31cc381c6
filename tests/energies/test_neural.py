"""Neural energies of bits and one-hot rows, and their bases: against enumeration."""

import functools
import math
import warnings

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm.base import Clamp, Real
from skebm.distributions import Distribution, Gaussian, Uniform
from skebm.energies import NeuralEnergy
from skebm.partition import AIS, AISBracket, Exact
from skebm.samplers import DiscreteLangevin, GibbsWithGradients
from tests.support.networks import BIT_BASES, binary, one_hot
from tests.support.oracle import DOUBLE, P_FLOOR, bits, chi_square, count_states, seeded
from tests.support.targets import spelled_out
from tests.support.tiers import named

# On no base, on all that there are for bits, and of one-hot columns.
ENERGIES = {f"bits, {name}": functools.partial(binary, name) for name in BIT_BASES}
ENERGIES |= {"one-hot": one_hot, "one-hot on columns": functools.partial(one_hot, base=True)}
SAMPLERS = {
    "gradients": GibbsWithGradients(),
    "Langevin": DiscreteLangevin(0.5),
}
every_energy = pytest.mark.parametrize("name", ENERGIES)


def states(energy):
    return torch.cat(list(energy.domain.enumerate(dtype=DOUBLE)))


def inside(energy, n=20):
    """Rows between the states, where every part of an energy is a smooth function."""
    shape = (n, energy.domain.n_columns)
    return 0.1 + 0.8 * torch.rand(shape, generator=seeded(2), dtype=DOUBLE)


# ------------------------------------------------------------------------------
# Energies and their gradients
# ------------------------------------------------------------------------------


@every_energy
def test_gradients_are_those_of_the_energy(name):
    energy = ENERGIES[name]()
    x = inside(energy).requires_grad_(True)
    value = energy(x)
    (expected,) = torch.autograd.grad(value.sum(), x)
    found = energy.value_and_grad(x)
    torch.testing.assert_close(found[0], value.detach())
    torch.testing.assert_close(found[1], expected)


@every_energy
def test_gradients_are_continuous_at_the_states(name):
    """A tabulated base has a score at the states, too."""
    energy = ENERGIES[name]()
    x = states(energy)
    value, grad = energy.value_and_grad(x)
    nudge = 1e-7 * torch.rand(x.shape, generator=seeded(3), dtype=DOUBLE)
    beside = (x + nudge).requires_grad_(True)
    near = energy(beside)
    torch.testing.assert_close(value, near.detach(), rtol=0, atol=1e-5)
    (expected,) = torch.autograd.grad(near.sum(), beside)
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-5)


@every_energy
def test_an_energy_is_the_network_less_log_q(name):
    energy = ENERGIES[name]()
    x = states(energy)
    base = torch.zeros(len(x), dtype=DOUBLE) if energy.base is None else energy.base.log_prob(x)
    torch.testing.assert_close(energy(x), energy.network(x) - base)


@pytest.mark.parametrize("name", BIT_BASES)
def test_networks_of_binary_images_get_images(name):
    flat = binary(name, 6)
    framed = binary(name, 6, image_shape=(1, 2, 3))
    assert flat.image_shape is None
    framed.network = torch.nn.Sequential(torch.nn.Flatten(), flat.network)
    x = states(flat)
    for found, expected in zip(framed.value_and_grad(x), flat.value_and_grad(x), strict=True):
        torch.testing.assert_close(found, expected)


# ------------------------------------------------------------------------------
# Sampling, and log Z
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", named(["one-hot on columns"], ENERGIES))
def test_exact_draws_stay_exact(name, sampler):
    energy = ENERGIES[name]()
    target, generator, done = spelled_out(energy), seeded(4), 0
    state = target.draw(3000, generator)
    for n_steps in (1, 10, 50):
        state, info = SAMPLERS[sampler].run(energy, state, n_steps - done, generator)
        done = n_steps
        assert target.p_value(state.x) > P_FLOOR
    assert 0.1 < float(info.acceptance) <= 1


@every_energy
def test_exact_log_z_is_the_sum_over_states(name):
    energy = ENERGIES[name]()
    found = Exact().estimate(energy)
    with torch.no_grad():
        expected = math.log(sum(math.exp(-float(energy(row[None]))) for row in states(energy)))
    assert found.value == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", named(["bits, tree"], ENERGIES))
def test_annealing_finds_log_z(name):
    """Its sampler by default follows gradients, of every energy between base and model."""
    energy = ENERGIES[name]()
    exact = Exact().estimate(energy).value
    found = AIS(n_chains=200, n_betas=60).estimate(energy, generator=seeded(5))
    assert abs(found.value - exact) < 4.5 * found.std_error
    assert 0 < found.std_error < 0.2
    assert found.lower < exact


@pytest.mark.parametrize("name", named(["bits, tree"], ENERGIES))
def test_a_bracket_contains_log_z(name):
    energy = ENERGIES[name]()
    rows = spelled_out(energy).draw(100, seeded(6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        found = AISBracket(n_chains=100, n_betas=60, n_steps=20).estimate(
            energy, x=rows, generator=seeded(7)
        )
    exact = Exact().estimate(energy).value
    assert found.lower < exact < found.upper
    assert found.upper - found.lower < 5


# ------------------------------------------------------------------------------
# Bases of which some columns are known
# ------------------------------------------------------------------------------

BASES = [name for name in BIT_BASES if name != "none"]
MASK = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1], [1, 1, 1, 1, 1]]).bool()
VALUE = torch.tensor(
    [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 1, 0, 0, 1]], dtype=DOUBLE
)


def conditionals(base):
    """Probabilities of all rows given what is known in each, (4, 32)."""
    x = bits(5)
    agrees = ((x == VALUE[:, None]) | ~MASK[:, None]).all(2)
    p = base.log_prob(x).exp() * agrees
    return p / p.sum(1, keepdim=True)


@pytest.mark.parametrize("name", BASES)
def test_conditional_means_equal_enumeration(name):
    base = BIT_BASES[name](5)
    # What is not known is not looked at.
    found = base.given(Clamp(MASK, torch.where(MASK, VALUE, torch.nan)))
    torch.testing.assert_close(found.mean, conditionals(base) @ bits(5))
    assert torch.equal(found.mean[MASK], VALUE[MASK])


@pytest.mark.parametrize("name", BASES)
def test_conditional_draws_follow_enumeration(name):
    base, n = BIT_BASES[name](5), 4000
    many = Clamp(MASK.repeat_interleave(n, 0), VALUE.repeat_interleave(n, 0))
    conditional = base.given(many)
    draws = conditional.sample(seeded(8))
    assert draws.dtype == DOUBLE
    assert torch.equal(draws, conditional.sample(seeded(8)))
    assert torch.equal(draws[many.mask], many.value[many.mask])
    # In the last row nothing is left to draw.
    for part, p in zip(draws.split(n)[:3], conditionals(base), strict=False):
        assert chi_square(count_states(part), p) > P_FLOOR


@pytest.mark.parametrize("name", BASES)
def test_conditioning_twice_equals_conditioning_once(name):
    base = BIT_BASES[name](5)
    none = Clamp(torch.zeros_like(MASK), torch.zeros_like(VALUE))
    found = base.given(none).given(Clamp(MASK, VALUE))
    torch.testing.assert_close(found.mean, base.given(Clamp(MASK, VALUE)).mean)


def test_known_values_other_than_bits_are_refused():
    base = BIT_BASES["tree"](5)
    with pytest.raises(ValueError, match="must be 0 or 1"):
        base.given(Clamp(MASK, VALUE / 2))
    with pytest.raises(ValueError, match="boolean mask"):
        base.given(Clamp(MASK[:, :3], VALUE[:, :3]))


def test_distributions_without_tilts_refuse_conditionals():
    energy = one_hot()
    with pytest.raises(TypeError, match="no exact conditionals"):
        Uniform(energy.domain).given(Clamp(states(energy) > 2, states(energy)))


def test_scores_of_tabulated_bases_are_flip_differences():
    class Table(Distribution):
        """No gradient at all, and flips of its own."""

        def __init__(self, inner):
            self.inner, self.domain = inner, inner.domain

        def sample(self, n, generator):
            return self.inner.sample(n, generator)

        def log_prob(self, x):
            return self.inner.log_prob(x.detach())

        def flip_log_ratio(self, x):
            return self.inner.flip_log_ratio(x)

    tree = BIT_BASES["tree"](5)
    torch.testing.assert_close(Table(tree).score(bits(5)), tree.score(bits(5)))


@pytest.mark.parametrize("ceiling", [None, 0.3])
def test_derivatives_are_those_of_the_network_up_to_its_ceiling(ceiling):
    base = Gaussian(torch.zeros(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE))
    network = torch.nn.Sequential(torch.nn.Linear(3, 1, dtype=DOUBLE), torch.nn.Flatten(0))
    energy = NeuralEnergy(network, Real((3,)), base, ceiling=ceiling)
    x = 3 * torch.randn(50, 3, dtype=DOUBLE, generator=seeded()).requires_grad_()
    f = network(x) if ceiling is None else network(x).clamp(max=ceiling)
    assert ceiling is None or 0 < int((f == ceiling).sum()) < 50
    torch.testing.assert_close(energy(x), f - base.log_prob(x))
    torch.testing.assert_close(energy.correction(x), f)
    (grad,) = torch.autograd.grad(energy(x).sum(), x)
    torch.testing.assert_close(energy.value_and_grad(x)[1], grad)
    torch.testing.assert_close(energy.input_grad(x), grad)
    (of_f,) = torch.autograd.grad(f.sum(), x, allow_unused=True)
    torch.testing.assert_close(energy.correction_and_grad(x)[1], of_f)
