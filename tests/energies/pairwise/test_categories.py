"""Boltzmann machines of categories and bits: conditionals, chains and log Z by enumeration."""

import pytest
import torch

from skebm.base import Binary, Categorical, Clamp, Energy, Mixed, Real
from skebm.base.domains import columns_of
from skebm.distributions import Columns, IndependentBernoulli, IndependentCategorical, Uniform
from skebm.energies import BoltzmannMachine, annealing_path
from skebm.energies.pairwise import same_column
from skebm.energies.path import PairwisePath
from skebm.partition import AIS, Bethe, Exact
from skebm.samplers import Gibbs
from tests.support.oracle import seeded
from tests.support.tiers import leading, named

DOMAINS = {
    "levels": Categorical((3, 2, 4)),
    "alike": Categorical((3, 3, 3)),
    "mixed": Mixed((Binary((3,)), Categorical((3, 2)))),
}


def machine(domain, scale=0.7, dtype=torch.float64, edges=None):
    d = domain.n_columns
    gen = seeded(3)
    W = scale * torch.randn(d, d, generator=gen, dtype=dtype)
    b = torch.randn(d, generator=gen, dtype=dtype)
    if edges is not None:
        W = W * edges
    return BoltzmannMachine(W + W.t(), b, domain=domain, edges=edges)


def all_states(domain):
    return torch.cat(list(domain.enumerate()))


@pytest.mark.parametrize("name", DOMAINS)
def test_levels_of_a_column_are_not_coupled(name):
    energy = machine(DOMAINS[name])
    assert not energy.coupling[same_column(energy.domain)].any()
    dropped = energy.coupling + 5.0 * same_column(energy.domain).fill_diagonal_(False)
    same = BoltzmannMachine(dropped, energy.bias, domain=energy.domain)
    x = all_states(energy.domain)
    torch.testing.assert_close(same(x), energy(x))


@pytest.mark.parametrize("name", DOMAINS)
def test_level_differences_are_those_of_energies(name):
    energy = machine(DOMAINS[name])
    x = all_states(energy.domain)[::3]
    torch.testing.assert_close(energy.level_difference(x), Energy.level_difference(energy, x))
    doubled = 2.0 * energy
    torch.testing.assert_close(doubled.level_difference(x), 2 * energy.level_difference(x))


@pytest.mark.parametrize("name", DOMAINS)
def test_colours_partition_columns_into_independent_ones_of_one_width(name):
    energy = machine(DOMAINS[name])
    widths = [k for k in columns_of(energy.domain) for _ in range(k)]
    for columns in energy.colours:
        assert len({widths[i] for i in columns.tolist()}) == 1
        assert not energy.coupling[columns][:, columns].any()
    together = torch.cat(energy.colours).sort().values
    assert together.tolist() == list(range(energy.domain.n_columns))


def test_columns_without_couplings_share_a_colour():
    domain = Categorical((3,) * 4)
    column = torch.arange(4).repeat_interleave(3)
    chain = (column[:, None] - column).abs() == 1
    assert [len(part) for part in machine(domain, edges=chain).colours] == [6, 6]


@pytest.mark.parametrize("beta", leading(1, [0.4, 1.0]))
@pytest.mark.parametrize("name", DOMAINS)
def test_gibbs_leaves_the_distribution_invariant(name, beta):
    """Exact draws are exact draws after a sweep, within five standard errors."""
    energy = machine(DOMAINS[name])
    states = all_states(energy.domain)
    p = torch.softmax(-beta * energy(states), 0)
    n, gen = 50_000, seeded(1)
    x = states[torch.multinomial(p, n, replacement=True, generator=gen)]
    state, info = Gibbs().run(energy, x, 1, gen, beta=beta)
    assert energy.domain.contains(state.x).all()
    assert info.acceptance == 1
    share = torch.stack([(state.x == s).all(1).double().mean() for s in states])
    assert ((share - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1e-12).all()


def test_clamped_entries_stay_and_exclude_levels():
    energy = machine(DOMAINS["mixed"])
    gen = seeded(2)
    x = energy.domain.uniform(500, gen, dtype=torch.float64)
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[:, 0] = mask[:, 4] = mask[:, 6] = True  # a bit, one of three levels, one of two
    state, _ = Gibbs().run(energy, x, 3, gen, clamp=Clamp(mask, x))
    assert energy.domain.contains(state.x).all()
    assert torch.equal(state.x[mask], x[mask])
    free = state.x[:, 1].std()
    assert free > 0.1


@pytest.mark.parametrize("name", named(["mixed"], DOMAINS))
def test_annealing_keeps_the_conditionals_and_finds_log_z(name):
    energy = machine(DOMAINS[name])
    exact = Exact().estimate(energy).value
    bits = IndependentBernoulli(torch.zeros(3, dtype=torch.float64))
    if name == "mixed":
        logits = torch.arange(5.0, dtype=torch.float64)
        base = Columns([bits, IndependentCategorical(logits, (3, 2))])
    else:
        base = Uniform(energy.domain)
    assert isinstance(annealing_path(energy, base), PairwisePath)
    found = AIS(n_betas=200, n_chains=500).estimate(energy, base=base, generator=seeded(0))
    assert abs(found.value - exact) < 5 * max(found.std_error, 1e-3)


def test_domains_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="bits and categories"):
        BoltzmannMachine(torch.zeros(2, 2), domain=Real((2,)))
    with pytest.raises(ValueError, match=r"shape \(5,\), coupling is 2 x 2"):
        BoltzmannMachine(torch.zeros(2, 2), domain=Categorical((3, 2)))
    energy = machine(DOMAINS["levels"])
    with pytest.raises(ValueError, match="Only bits have spins"):
        energy.to_spins()
    with pytest.raises(ValueError, match="Only binary rows"):
        energy.flip_difference(all_states(energy.domain))
    with pytest.raises(TypeError, match="takes binary units"):
        Bethe().estimate(energy)
