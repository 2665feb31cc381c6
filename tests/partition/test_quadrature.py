"""Adaptive cubature: exact log Z in one to three columns, errors as stated, narrow modes."""

import math

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm import ContrastiveDivergenceDensity, NCEDensity
from skebm.base import Binary, Real
from skebm.distributions import Gaussian, Uniform
from skebm.energies import MLP
from skebm.estimators.base import LogZ
from skebm.partition import (
    AISBracket,
    Choice,
    ImportanceSampling,
    Quadrature,
    choice,
    choose,
    quadrature,
)
from skebm.partition.quadrature import Coordinates, cubature_rule, integrate
from tests.support.oracle import DOUBLE, seeded
from tests.support.targets import FunctionEnergy
from tests.support.tiers import about, full

FLOAT = torch.float32


def assert_honest(energy, truth, x=None, least=0.0, **settings):
    """The estimate, whose error is at most as large as stated, and as asked for."""
    found = Quadrature(**settings).estimate(energy, x=x)
    assert abs(found.value - truth) <= found.std_error + least
    assert found.lower - least <= truth <= found.upper + least
    assert found.std_error <= 1.1 * settings.get("tol", 1e-4)
    return found


# ------------------------------------------------------------------------------
# Closed forms
# ------------------------------------------------------------------------------


def normal(d, sd=1.0, rho=0.0, dtype=DOUBLE):
    """A normal distribution with its log Z and rows; far from the origin in its own units."""
    cov = sd**2 * (rho * torch.ones(d, d, dtype=DOUBLE) + (1 - rho) * torch.eye(d, dtype=DOUBLE))
    factor, precision = torch.linalg.cholesky(cov), torch.linalg.inv(cov).to(dtype)
    mean = torch.full((d,), 3 * sd, dtype=dtype)
    truth = d / 2 * math.log(2 * math.pi) + float(factor.diag().log().sum())
    rows = mean + (torch.randn(300, d, generator=seeded(), dtype=DOUBLE) @ factor.t()).to(dtype)

    def function(x):
        return (((x - mean) @ precision) * (x - mean)).sum(1) / 2

    return FunctionEnergy(function, Real((d,)), dtype), truth, rows


@pytest.mark.parametrize("d", [1, 2, 3])
def test_normal_distributions_of_any_scale(d):
    for sd, rho, dtype in [(1.0, 0.0, DOUBLE), (1e-3, 0.9, DOUBLE), (1e4, 0.0, FLOAT)]:
        energy, truth, x = normal(d, sd, rho, dtype)
        with about(sd, rho, dtype):
            assert_honest(energy, truth, x)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_without_rows_draws_of_the_default_base_show_the_scale(d):
    energy, truth, _ = normal(d, rho=0.5)
    assert_honest(energy, truth)


def mixture(d, separation, sd):
    """Two normal modes, the second with exp(-1) times the mass of the first."""
    centre = torch.zeros(d, dtype=DOUBLE)
    centre[0] = centre[-1] = separation / 2
    means = torch.stack([centre, -centre])

    def function(x):
        square = (x[:, None] - means).square().sum(2) / sd**2
        return -(-square / 2 - torch.tensor([0.0, 1.0], dtype=DOUBLE)).logsumexp(1)

    second = (torch.rand(300, generator=seeded(1)) < 0.27).long()
    x = means[second] + sd * torch.randn(300, d, generator=seeded(2), dtype=DOUBLE)
    truth = d * math.log(math.sqrt(2 * math.pi) * sd) + math.log1p(math.exp(-1))
    return FunctionEnergy(function, Real((d,))), truth, x


@pytest.mark.parametrize(
    ("d", "sd"),
    [(1, 1e-5), (2, 1e-3), (3, 0.1), (2, 2.0), pytest.param(3, 0.01, marks=full)],
)
def test_narrow_modes_far_from_each_other(d, sd):
    """Also where a mode lies in several cells and the rows in some of them only."""
    energy, truth, x = mixture(d, 10.0, sd)
    assert_honest(energy, truth, x)


@full
def test_modes_too_narrow_for_the_budget_have_no_error():
    energy, truth, x = mixture(3, 10.0, 1e-3)
    with pytest.warns(ConvergenceWarning, match="max_evaluations"):
        found = Quadrature().estimate(energy, x=x)
    assert found.value == pytest.approx(truth, abs=0.1)
    assert math.isnan(found.std_error)
    assert math.isnan(found.lower)
    assert math.isnan(found.upper)
    assert "raise max_evaluations" in found.reason


def test_a_mode_with_one_row_of_two_hundred():
    energy, truth, x = mixture(2, 10.0, 0.01)
    first = x[x[:, 0] > 0][:199]
    assert_honest(energy, truth, torch.cat([first, x[x[:, 0] < 0][:1]]))


@pytest.mark.parametrize("d", [1, 2, pytest.param(3, marks=full)])
def test_heavy_tails(d):
    for nu in (1.0, 3.0):

        def function(x, nu=nu):
            return (nu + d) / 2 * torch.log1p(x.square().sum(1) / nu)

        truth = math.lgamma(nu / 2) + d / 2 * math.log(nu * math.pi) - math.lgamma((nu + d) / 2)
        with about(nu):
            assert_honest(FunctionEnergy(function, Real((d,))), truth)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_boxes(d):
    box = FunctionEnergy(lambda x: 50 * x.sum(1), Real((d,), -1.0, 3.0))
    truth = d * (50 - math.log(50) + math.log1p(-math.exp(-200)))
    assert_honest(box, truth)
    flat = FunctionEnergy(lambda x: 0 * x.sum(1), Real((d,), -1.0, 3.0))
    assert_honest(flat, d * math.log(4), least=1e-12)


@pytest.mark.parametrize("d", [1, 2])
def test_one_bound_with_an_infinite_density_there(d):
    gamma = FunctionEnergy(lambda x: (x + 0.5 * x.log()).sum(1), Real((d,), 0.0))
    assert_honest(gamma, d * math.log(math.pi) / 2)
    mirrored = FunctionEnergy(lambda x: 7 * (2 - x).sum(1), Real((d,), None, 2.0))
    assert_honest(mirrored, -d * math.log(7))


def test_a_set_of_no_mass_is_left_out():
    """Infinite energies outside of a disk: a jump, which takes more cells."""
    disk = FunctionEnergy(
        lambda x: torch.where(x.square().sum(1) < 1, 0.0, math.inf), Real((2,), -2.0, 2.0)
    )
    assert_honest(disk, math.log(math.pi), tol=1e-3)


# ------------------------------------------------------------------------------
# The parts
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "degree", "lower"), [(1, 22, 13), (2, 7, 5), (3, 7, 5)])
def test_rules_integrate_polynomials(d, degree, lower):
    rule = cubature_rule(d)
    assert set(map(tuple, -rule.nodes)) == set(map(tuple, rule.nodes + 0.0))
    for weights, highest in ((rule.weights, degree), (rule.embedded, lower)):
        for powers in torch.cartesian_prod(*[torch.arange(highest + 1)] * d).view(-1, d).tolist():
            if sum(powers) > highest:
                continue
            truth = math.prod((1 + (-1) ** k) / 2 / (k + 1) for k in powers)
            assert weights @ (rule.nodes**powers).prod(1) == pytest.approx(truth, abs=1e-13)


@pytest.mark.parametrize("bounds", [(None, None), (0.5, None), (None, 0.5), (-2.0, 0.5)])
def test_coordinates_are_inverse_and_their_jacobian_right(bounds):
    domain = Real((2,), *bounds)
    x = torch.randn(50, 2, generator=seeded(), dtype=DOUBLE)
    x = x[domain.contains(x)] if bounds != (0.5, None) else 0.5 + x.abs()
    coordinates = Coordinates.of(domain, x)
    t = coordinates.points(x)
    assert t.abs().max() < 1
    torch.testing.assert_close(coordinates.rows(t), x)
    (row, *_) = t
    jacobian = torch.autograd.functional.jacobian(lambda t: coordinates.rows(t[None])[0], row)
    log_det = torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(coordinates.log_jacobian(row[None])[0], log_det)


def test_constant_columns_do_no_harm():
    energy, truth, _ = normal(2)
    for x in (torch.full((5, 2), 3.0), torch.tensor([[3.0, -1.0], [3.0, 1.0], [3.0, 2.0]])):
        assert_honest(energy, truth, x.to(DOUBLE))


# ------------------------------------------------------------------------------
# What it refuses, and what it cannot vouch for
# ------------------------------------------------------------------------------


def test_mass_that_escapes_to_infinity_has_no_bounds():
    """Improper along a column, or just proper: mass at distances that no number can hold."""

    def strip(x):
        return x[:, 0].abs().log1p() + (30 * x[:, 1]).square() / 2

    def slow(x):
        return 1.01 * x.abs().log1p().sum(1)

    # The test of propriety would reject it.
    found = integrate(FunctionEnergy(strip, Real((2,))), None, None, 1e-4, 1e5)
    assert found.error > 0.1
    assert "the mass does not decay far out" in found.reason
    with pytest.warns(ConvergenceWarning, match="relative error"):
        found = Quadrature().estimate(FunctionEnergy(slow, Real((1,))))
    assert all(map(math.isnan, (found.std_error, found.lower, found.upper, found.pessimistic)))
    assert found.bound_kind == "heuristic"
    assert "the mass does not decay far out" in found.reason


def test_too_few_evaluations_are_warned_of():
    energy, truth, x = mixture(3, 10.0, 0.1)
    with pytest.warns(ConvergenceWarning, match=r"relative error.* max_evaluations"):
        found = Quadrature(max_evaluations=20_000).estimate(energy, x=x)
    assert math.isnan(found.pessimistic)
    assert "raise max_evaluations, or use AISBracket" in found.reason
    with pytest.warns(ConvergenceWarning):
        found = Quadrature(1e-6, max_evaluations=300_000).estimate(energy, x=x)
    assert 1e-6 < found.std_error < 0.1
    assert abs(found.value - truth) < found.std_error


def test_improper_and_unsuitable_energies_are_refused():
    flat = FunctionEnergy(lambda x: 0 * x.sum(1), Real((2,)))
    with pytest.raises(ValueError, match="no finite integral"):
        Quadrature().estimate(flat)
    with pytest.raises(TypeError, match="real rows"):
        Quadrature().check(FunctionEnergy(lambda x: x.sum(1), Binary((2,))))
    with pytest.raises(ValueError, match="at most 3 columns, not 4"):
        Quadrature().check(FunctionEnergy(lambda x: x.sum(1), Real((2, 2))))
    with pytest.raises(TypeError):
        Quadrature().check("energy")
    nan = FunctionEnergy(lambda x: x.sum(1) * math.nan, Real((1,), 0.0, 1.0))
    with pytest.raises(FloatingPointError, match="not finite"):
        Quadrature().estimate(nan)


def test_bad_settings_and_rows_are_refused():
    energy, *_ = normal(2)
    for settings in ({"tol": 0}, {"tol": 1.0}, {"tol": "small"}, {"tol": math.nan}):
        with pytest.raises(ValueError, match="tol"):
            Quadrature(**settings).estimate(energy)
    with pytest.raises(ValueError, match="max_evaluations"):
        Quadrature(max_evaluations=0).estimate(energy)
    with pytest.raises(ValueError, match="shape"):
        Quadrature().estimate(energy, x=torch.zeros(3, 5))
    with pytest.raises(TypeError, match="base"):
        Quadrature().estimate(energy, base="normal")


def test_energies_may_overflow_far_out():
    def function(x):
        power = x.square().sum(1) ** 8
        return torch.where(power.isinf(), math.nan, power)

    energy = FunctionEnergy(function, Real((1,)), FLOAT)
    truth = math.log(2 * math.gamma(1 + 1 / 16))
    assert_honest(energy, truth)


# ------------------------------------------------------------------------------
# As every estimate of log Z
# ------------------------------------------------------------------------------


def test_nothing_is_random_and_nothing_is_modified():
    energy, _, x = normal(2)
    before, kept = torch.get_rng_state(), x.clone()
    energy.train()
    found = [Quadrature().estimate(energy, x=x, generator=seeded(s))[:5] for s in (1, 2)]
    assert found[0] == found[1]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, kept)
    assert energy.training
    assert energy.zero.requires_grad
    assert energy.zero.grad is None


def test_rows_of_any_shape_and_by_name():
    energy, truth, x = normal(2)
    image = FunctionEnergy(lambda x: energy.function(x.flatten(1)), Real((1, 2)))
    assert_honest(image, truth, {"data": x[:100, None], "chains": x[100:, None]})


def test_a_base_says_where_the_model_is():
    energy, truth, _ = normal(2, 1e-3)
    base = Gaussian(torch.full((2,), 3e-3, dtype=DOUBLE), 2e-3)
    found = Quadrature().estimate(energy, base=base)
    assert abs(found.value - truth) <= found.std_error <= 1e-4
    box = FunctionEnergy(lambda x: x.sum(1), Real((2,), 0.0, 1.0))
    found = Quadrature().estimate(box, base=Uniform(box.domain, DOUBLE))
    assert found.value == pytest.approx(2 * math.log(1 - math.exp(-1)), abs=found.std_error)


def test_it_is_chosen_for_up_to_three_real_columns():
    for d in (1, 2, 3):
        energy, _, x = normal(d)
        assert isinstance(choose(energy, x=x).method, Quadrature)
        assert isinstance(choose(energy, x=lambda x=x: x).method, Quadrature)
        assert isinstance(choose(energy, x=x, importance=False).method, Quadrature)
    energy, _, x = normal(4)
    assert isinstance(choose(energy, x=x).method, AISBracket)


@pytest.mark.filterwarnings("error")
def test_it_is_not_chosen_where_its_error_is_too_large():
    """A sawtooth in three columns, from a base that is near it on average."""
    energy = FunctionEnergy(lambda x: (x * 1e4).frac().sum(1), Real((3,), 0.0, 1.0))
    assert isinstance(choose(energy).method, ImportanceSampling)


def test_a_choice_comes_with_the_estimate_that_it_rests_on():
    energy, _, x = normal(2)
    found = choose(energy, x=x)
    assert found.estimate == found.method.estimate(energy, x=x)
    energy, _, x = normal(4)
    assert choose(energy, x=x).estimate is None


@pytest.mark.filterwarnings("error")
def test_uneven_weights_are_replaced_by_another_method():
    """Few draws of a mixture with lighter tails than the model do not show how heavy theirs are."""
    random = np.random.default_rng(0)
    X = random.standard_normal((200, 1)) + random.choice([-2.0, 2.0], (200, 1))
    model = NCEDensity(noise="gaussian", n_bridges=3, n_iter=5, random_state=0).fit(X)
    assert model.log_partition_method_.startswith("Quadrature()")  # in one column in any case
    exact = model.log_partition_
    model._log_z = LogZ()
    model._log_z.choice = Choice(ImportanceSampling(20_000), "the draws of the choice were even")
    assert model.log_partition_ == exact
    assert model.log_partition_method_.startswith("Quadrature()")
    model.set_params(partition=ImportanceSampling(20_000))  # what the user asks for stays
    model._log_z = LogZ()
    with pytest.warns(ConvergenceWarning, match="importance weights are uneven"):
        assert model.log_partition_ != exact


def test_estimators_integrate_once(monkeypatch):
    rows = np.random.default_rng(0).standard_normal((60, 2)) ** 2
    model = ContrastiveDivergenceDensity(MLP((4,)), base=None, n_iter=1, random_state=0).fit(rows)
    calls = []

    def counted(*args):
        calls.append(args)
        return integrate(*args)

    monkeypatch.setattr(choice, "integrate", counted)
    monkeypatch.setattr(quadrature, "integrate", counted)
    assert model.log_partition_method_.startswith("Quadrature()")
    value = model.log_partition_
    assert len(calls) == 1
    again = model.partition_.estimate(
        model.energy_, base=model.base_, x=model._partition_inputs(("x",))["x"]
    )
    assert again.value == value
