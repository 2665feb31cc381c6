"""Paths through the models of a training, and resampled populations."""

import numpy as np
import pytest
import torch

from skebm.distributions import IndependentBernoulli
from skebm.energies import BernoulliRBM, TrajectoryEnergy, annealing_path
from skebm.partition import AIS, Exact, TrajectoryAIS
from skebm.partition.annealed import (
    AnnealingPlan,
    AnnealingSteps,
    ResamplingSteps,
    Schedule,
    anneal,
)
from skebm.samplers import MALA, Gibbs
from tests.support.oracle import (
    DOUBLE,
    Enumerated,
    assert_calibrated,
    bits,
    joint_energy,
    make_rbm,
    make_real_rbm,
    make_spike_slab,
    make_subspace,
    make_tree_rbm,
    seeded,
    through,
    z_scores,
)
from tests.support.tiers import full, leading

KINDS = {
    "bits": lambda: make_rbm(5, 3),
    "tree": lambda: make_tree_rbm(5, 3),
    "real": lambda: make_real_rbm(3, 3),
    "spike and slab": lambda: make_spike_slab(3, 2),
    "subspace": lambda: make_subspace(IndependentBernoulli(torch.zeros(4, dtype=DOUBLE))),
}


def path_of(energy):
    """The path from the base, or without one from uniform bits."""
    base = energy.base
    return annealing_path(
        energy, IndependentBernoulli(torch.zeros(5, dtype=DOUBLE)) if base is None else base
    )


def log_z(energy):
    return Exact().estimate(energy).value


# ------------------------------------------------------------------------------
# The path
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("temperatures", [(), (0.2, 0.7)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_path_goes_through_all_models(kind, temperatures):
    last = KINDS[kind]()
    if kind == "subspace":
        models = [last.annealed(0.3), last]
        energy = TrajectoryEnergy(models, temperatures)
    else:
        energy = through(last, temperatures=temperatures)
    path = path_of(energy)
    rungs = energy.rungs
    places = np.linspace(0, 1, len(rungs))
    assert path.n_gaps == len(rungs) - 1
    x = last.base.sample(6, seeded(1)) if last.base is not None else bits(5)[::5]
    for place, rung in zip(places, rungs, strict=True):
        change = path.at(float(place))(x) - rung(x)
        torch.testing.assert_close(change, change[:1].expand_as(change))
    torch.testing.assert_close(path.at(1.0)(x), energy(x))


@pytest.mark.parametrize("kind", ["bits", "tree", "real", "spike and slab"])
def test_ratios_are_differences_of_energies(kind):
    energy = through(KINDS[kind](), temperatures=(0.5,))
    path = path_of(energy)
    x = bits(5)[::5] if energy.base is None else energy.base.sample(6, seeded(1))
    places = [0.0, 0.1, 0.3, 0.55, 0.8, 0.97, 1.0]
    for old, new in zip(places, places[1:], strict=False):
        expected = (path.at(old)(x) - path.at(new)(x)).double()
        found = path.log_ratio(x, old, new)
        torch.testing.assert_close(found, expected)


def test_between_two_models_is_the_model_of_the_mean_parameters():
    energy = through(make_rbm(4, 3), (0.2, 0.6))
    path = annealing_path(energy, IndependentBernoulli(torch.zeros(4, dtype=DOUBLE)))
    found = path.at((1 + 2) / 2 / 3)  # midway between the two models that lead to the last one
    x, h = bits(4), bits(3)
    expected = (joint_energy(energy.models[0], x, h) + joint_energy(energy.models[1], x, h)) / 2
    torch.testing.assert_close(joint_energy(found, x, h), expected)


def test_the_energy_refuses_models_that_do_not_fit():
    with pytest.raises(ValueError, match="one class and one size"):
        TrajectoryEnergy([make_rbm(4, 3), make_rbm(4, 2)])
    with pytest.raises(TypeError, match="at least one"):
        TrajectoryEnergy([])
    with pytest.raises(ValueError, match="must increase"):
        TrajectoryEnergy([make_rbm(4, 3)], [0.5, 0.5])


# ------------------------------------------------------------------------------
# Populations
# ------------------------------------------------------------------------------


class Coins(AnnealingSteps):
    """Rows of one number, whose weights grow with it, and that do not move."""

    def log_ratio(self, state, old, new):
        return (new - old) * state[:, 0]

    def step(self, state, beta):
        return state


def test_resampling_keeps_the_mean_weight_of_each_population():
    rows = torch.randn(40, 1, generator=seeded(), dtype=DOUBLE) * 4
    steps = ResamplingSteps(Coins(), 4, seeded(1))
    log_w, n_resampled = torch.zeros(40, dtype=DOUBLE), 0
    for increment, state in anneal(steps, rows, [0.0, 0.5, 1.0]):
        log_w += increment
        n_resampled += int(not torch.equal(state, rows))
    assert n_resampled == 1
    first = (0.5 * rows[:, 0]).view(4, 10)
    # Those of the first step, and of the second one for the rows that were drawn.
    expected = first.logsumexp(1, keepdim=True) + (0.5 * state[:, 0]).view(4, 10)
    uneven = 1 / first.softmax(1).square().sum(1) < 5
    assert uneven.any()
    for k in range(4):
        mean = expected[k] - np.log(10) if uneven[k] else first[k] + 0.5 * state.view(4, 10)[k]
        torch.testing.assert_close(log_w.view(4, 10)[k], mean)


def plan(energy, n_betas, seed, n_populations):
    schedule = Schedule(np.linspace(0, 1, n_betas).tolist(), [], [])
    path = annealing_path(energy, IndependentBernoulli(torch.zeros(8, dtype=DOUBLE)))
    return AnnealingPlan(path, Gibbs(), schedule, 0.05, seeded(seed), n_populations=n_populations)


@pytest.mark.parametrize("of_models", [True, False])
def test_populations_are_unbiased_for_z(of_models):
    """With so few temperatures that they are resampled often."""
    last = make_rbm(8, 6, scale=1.5)
    energy, truth = through(last) if of_models else last, log_z(last)
    with torch.no_grad():
        values = [plan(energy, 12, seed, 10).forward(100).value for seed in range(60)]
    ratio = (torch.tensor(values, dtype=DOUBLE) - truth).exp()
    error = float(ratio.std()) / len(ratio) ** 0.5
    assert error < 0.1
    assert abs(float(ratio.mean()) - 1) < 4 * error


@pytest.mark.parametrize("seed", leading(1, range(3)))
def test_reverse_populations_of_exact_draws_are_unbiased(seed):
    last = make_rbm(8, 6, scale=1.5, seed=seed)
    target, energy = Enumerated(last), through(last)
    with torch.no_grad():
        values = [
            plan(energy, 12, k, 10).reverse(target.draw(100, seeded(k))).value for k in range(60)
        ]
    ratio = (target.log_z.item() - torch.tensor(values, dtype=DOUBLE)).exp()
    error = float(ratio.std()) / len(ratio) ** 0.5
    assert abs(float(ratio.mean()) - 1) < 4 * error


@full
def test_the_error_is_known():
    last = make_rbm(10, 8)
    runs = [
        TrajectoryAIS(200, 40).estimate(through(last), generator=seeded(seed)) for seed in range(40)
    ]
    assert_calibrated(z_scores(runs, Enumerated(last).log_z.item()))


def test_annealing_in_general_goes_through_the_models():
    last = make_rbm(8, 6)
    found = AIS(100, 100).estimate(through(last), generator=seeded())
    assert abs(found.value - log_z(last)) < 4 * found.std_error


# ------------------------------------------------------------------------------
# Input
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_populations": 1}, "n_populations"),
        ({"n_chains": 30, "n_populations": 20}, "no multiple"),
        ({"n_betas": 1}, "n_betas"),
        ({"delta": 0.0}, "delta"),
        ({"reverse": True}, "goes back from rows"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        TrajectoryAIS(**settings).estimate(through(make_rbm(4, 3)))


def test_an_energy_without_models_is_refused():
    with pytest.raises(TypeError, match="kept along training"):
        TrajectoryAIS().estimate(make_rbm(4, 3))


def test_biased_kernels_are_refused_and_exact_ones_taken():
    energy = through(make_rbm(6, 4))
    found = TrajectoryAIS(100, 40).estimate(energy, sampler=Gibbs(2))
    assert abs(found.value - log_z(energy.last)) < 4 * found.std_error + 0.01
    with pytest.raises(TypeError):
        TrajectoryAIS().estimate(energy, sampler=MALA())


def test_few_seconds_give_a_larger_error():
    energy = through(BernoulliRBM(30, 20, generator=seeded(), scale=0.3))
    with pytest.warns(Warning, match="max_seconds"):
        found = TrajectoryAIS(n_betas=4000, max_seconds=0.01).estimate(energy)
    assert np.isfinite(found.value)
