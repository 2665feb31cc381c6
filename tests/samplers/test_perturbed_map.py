"""Perturb-and-MAP draws: exact without couplings, and the same maxima by every solver."""

import numpy as np
import pytest
import torch

from skebm.base import Clamp
from skebm.base.graph import graph_of
from skebm.energies import BoltzmannMachine, ising_grid
from skebm.samplers import PerturbedMAP
from skebm.samplers.perturbed_map import MinCut, by_enumeration, by_relaxation
from tests.support.oracle import DOUBLE, P_FLOOR, Discrete, bits, seeded
from tests.support.tiers import leading

SOLVERS = ("enumeration", "min-cut", "relaxation")


def spelled_out(energy, beta=1.0):
    x = bits(energy.domain.n_columns)
    return Discrete(x, -beta * energy(x))


def independent():
    return BoltzmannMachine(torch.zeros(4, 4, dtype=DOUBLE), [-1.0, 0.3, 2.0, 0.0])


def frustrated(n=8, seed=0):
    """Couplings of all pairs, of both signs."""
    J = 2 * torch.randn(n, n, generator=seeded(seed), dtype=DOUBLE)
    return BoltzmannMachine(J, torch.randn(n, generator=seeded(seed + 1), dtype=DOUBLE))


def attractive(flips=(), K=0.5):
    """A grid without frustration, in which some units stand for their opposites."""
    J, h, _ = ising_grid(3, 3, K, 0.1, dtype=DOUBLE).to_spins()
    sign = torch.ones(9, dtype=DOUBLE)
    sign[list(flips)] = -1
    return BoltzmannMachine.from_spins(J * sign[:, None] * sign, h * sign)


def draws(energy, sampler, n, seed=1, **kwargs):
    start = torch.zeros(n, energy.domain.n_columns, dtype=DOUBLE)
    return sampler.run(energy, start, 1, seeded(seed), **kwargs)[0].x


# ------------------------------------------------------------------------------
# The distribution
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(("solver", "n"), [("auto", 20_000), *((s, 1000) for s in SOLVERS)])
@pytest.mark.parametrize("beta", leading(1, [0.4, 1.0]))
def test_draws_of_independent_units_are_exact(solver, n, beta):
    energy = independent()
    x = draws(energy, PerturbedMAP(solver), n, beta=beta)
    assert spelled_out(energy, beta).p_value(x) > P_FLOOR
    assert spelled_out(energy, beta + 0.4).p_value(x) < P_FLOOR


def test_draws_of_coupled_units_have_a_bias():
    energy = ising_grid(2, 2, 0.4, 0.1, dtype=DOUBLE)
    assert spelled_out(energy).p_value(draws(energy, PerturbedMAP(), 20_000)) < P_FLOOR
    assert not PerturbedMAP().exact


def test_a_machine_at_infinite_temperature_is_uniform():
    energy = frustrated(4)
    x = draws(energy, PerturbedMAP(), 20_000, beta=0.0)
    assert spelled_out(energy, 0.0).p_value(x) > P_FLOOR


def test_chains_may_start_anywhere():
    energy = frustrated(4)
    starts = torch.zeros(50, 4, dtype=DOUBLE), torch.ones(50, 4, dtype=DOUBLE)
    first, second = (PerturbedMAP().run(energy, x, 1, seeded())[0].x for x in starts)
    assert torch.equal(first, second)


# ------------------------------------------------------------------------------
# Clamps
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", leading(2, SOLVERS))
@pytest.mark.parametrize("beta", leading(1, [0.5, 1.0]))
def test_a_single_free_unit_has_its_conditional(solver, beta):
    """The others are clamped to another state in each half of the chains."""
    energy, n = attractive(), 250
    values = bits(9)[[37, 310]].repeat_interleave(n, 0)
    mask = torch.ones_like(values, dtype=torch.bool)
    mask[:, 4] = False
    x = draws(energy, PerturbedMAP(solver), 2 * n, beta=beta, clamp=Clamp(mask, values))
    assert torch.equal(x[mask], values[mask])
    p = (beta * energy.logits(values)[:, 4]).sigmoid().detach()
    for part, chance in zip(x[:, 4].split(n), p[::n], strict=True):
        error = (chance * (1 - chance) / n).sqrt()
        assert abs(part.mean() - chance) < 4 * error


def test_clamped_units_pull_at_the_others():
    """A clamp acts as if the machine were the conditional one, with the same noise."""
    energy, n = frustrated(), 300
    value = bits(8)[200]
    mask = torch.arange(8) < 3
    clamp = Clamp(mask.expand(n, 8), value.expand(n, 8).clone())
    x = draws(energy, PerturbedMAP(), n, clamp=clamp)
    J, b = energy.coupling.detach(), energy.bias.detach()
    inside = BoltzmannMachine(J[3:, 3:], b[3:] + J[3:, :3] @ value[:3])
    noise = torch.empty((2, n, 8), dtype=DOUBLE).exponential_(generator=seeded(1)).log().neg()
    fields = (noise[1] - noise[0])[:, 3:].numpy()
    expected = by_enumeration(graph_of(inside), fields).states
    np.testing.assert_array_equal(x[:, 3:].numpy() > 0, expected)


# ------------------------------------------------------------------------------
# Solvers
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("flips", [(), (0, 3, 7)])
def test_solvers_find_the_same_states_without_frustration(flips):
    energy = attractive(flips, 0.2)
    states = [draws(energy, PerturbedMAP(solver), 100) for solver in ("auto", *SOLVERS)]
    assert len(states[0].unique(dim=0)) > 10
    for other in states[1:]:
        assert torch.equal(other, states[0])


def test_states_of_the_relaxation_are_below_its_value():
    n_below = 0
    for seed in range(5):
        graph = graph_of(frustrated(seed=seed))
        fields = np.random.default_rng(seed).gumbel(size=(20, 8))
        exact, relaxed = by_enumeration(graph, fields), by_relaxation(graph, fields)
        x = relaxed.states.astype(float)
        found = graph.log_weight(x) + (x * fields).sum(1)
        assert (found <= exact.values + 1e-9).all()
        assert (exact.values <= relaxed.values + 1e-9).all()
        n_below += (found < exact.values - 1e-9).sum()
        # Coordinate ascent has ended: no flip of a single unit is an improvement.
        for i in range(8):
            other = x.copy()
            other[:, i] = 1 - other[:, i]
            assert (graph.log_weight(other) + (other * fields).sum(1) <= found + 1e-9).all()
    assert 0 < n_below < 50


def test_a_cut_of_units_without_a_field_keeps_them_with_their_neighbours():
    cut = MinCut(3, np.array([[0, 1], [1, 2]]), np.array([0.5, 2.0]))
    for sign in (1.0, -1.0):
        value, is_one = cut.maximise(np.array([sign, 0.0, 0.0]))
        assert value == max(sign, 0)
        assert is_one.tolist() == [sign > 0] * 3


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_no_chains_need_no_solver(solver):
    x = torch.zeros(0, 100, dtype=DOUBLE)
    energy = ising_grid(10, 10, 0.3, dtype=DOUBLE)
    assert PerturbedMAP(solver).run(energy, x, 2, seeded())[0].x.shape == (0, 100)


def test_a_long_chain_is_maximised_as_by_dynamic_programming():
    """With more units than powers of two have a float for."""
    energy, n, K = ising_grid(1, 1100, 0.3, periodic=False, dtype=DOUBLE), 3, 1.2
    x = draws(energy, PerturbedMAP(), n)
    noise = torch.empty((2, n, 1100), dtype=DOUBLE).exponential_(generator=seeded(1)).log().neg()
    field = energy.bias.detach() + noise[1] - noise[0]
    best = torch.stack([torch.zeros(n, dtype=DOUBLE), field[:, 0]], 1)  # of a last unit 0 and 1
    for i in range(1, 1100):
        off = best.max(1).values
        on = torch.maximum(best[:, 0], best[:, 1] + K) + field[:, i]
        best = torch.stack([off, on], 1)
    found = (x * field).sum(1) + K * (x[:, 1:] * x[:, :-1]).sum(1)
    torch.testing.assert_close(found, best.max(1).values, atol=1e-4, rtol=0)
    assert float(x.sum(1).min()) > 100


def test_solvers_that_do_not_apply_are_refused():
    with pytest.raises(ValueError, match="frustrated"):
        draws(frustrated(), PerturbedMAP("min-cut"), 2)
    with pytest.raises(ValueError, match="100 units"):
        draws(ising_grid(10, 10, dtype=DOUBLE), PerturbedMAP("enumeration"), 2)
    with pytest.raises(ValueError, match="solver"):
        draws(independent(), PerturbedMAP("best"), 2)
