"""Held-out rows guard the training of an RBM: modes that chains never visit, and overfitting."""

import dataclasses
import itertools
import math
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from skebm import RBMEstimator, SpikeSlabRBM
from skebm.base import Batch, LogPartition
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies import BernoulliRBM
from skebm.estimators.rbm import safety
from skebm.estimators.rbm.choice import BaseChoice
from skebm.estimators.rbm.family import _numbers_of_epochs, design
from skebm.estimators.rbm.safety import N_HELD_OUT, USUAL, rbm_log_ratios
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.table import probability_table
from skebm.objectives import ContrastiveDivergence
from skebm.partition import Exact, exact_draws
from skebm.partition.bracket import WIDE
from skebm.samplers import FromData, Gibbs, ParallelTempering, Persistent
from skebm.training import SGD, EarlyStopping
from skebm.training.engine import EnergyNet
from skebm.training.guard import N_ASSESSMENTS, Guard, still_rising
from skebm.training.rows import Rows
from skebm.training.selection import LogRatios, assess, rows_apart
from tests.support.oracle import DOUBLE, make_rbm, make_tree_rbm, seeded
from tests.support.tiers import full, leading, only_full


@pytest.fixture(scope="module")
def bits():
    """Rows with pairs of equal columns."""
    random = np.random.default_rng(0)
    return np.repeat(random.random((260, 6)) < 0.3, 2, axis=1).astype(float)


def assessed(model):
    return [row["gain_over_base"] for row in model.history_ if "gain_over_base" in row]


def on_fair_coins(energy):
    """The same energy with a base, of which it does not depend."""
    n = energy.domain.n_columns
    base = IndependentBernoulli(torch.linspace(-1, 1, n, dtype=DOUBLE))
    found = BernoulliRBM(n, len(energy.hidden_bias), generator=seeded(), dtype=DOUBLE, base=base)
    found.load_state_dict(energy.state_dict())
    return found


def spurious(depth):
    """Rows near zero, and a hidden unit that turns on only where all columns are on."""
    n = 12
    base = IndependentBernoulli(torch.full((n,), -2.0, dtype=DOUBLE))
    energy = BernoulliRBM(n, 1, generator=seeded(), dtype=DOUBLE, base=base)
    with torch.no_grad():
        energy.visible_bias.fill_(-2.0)
        energy.weight.fill_(2 + depth / n)
        energy.hidden_bias.fill_(-12.0)
    return energy


def exact_gain(energy, x):
    ratio = -energy(x) - energy.base.log_prob(x)
    return float(ratio.mean()) - Exact().estimate(energy).value


# ------------------------------------------------------------------------------
# The assessment
# ------------------------------------------------------------------------------


@pytest.fixture
def annealed(monkeypatch):
    """Small energies are annealed as well, whose log Z would be summed."""
    monkeypatch.setattr(safety, "CHEAP_COST", 0)


@torch.no_grad()
def test_small_energies_are_assessed_exactly():
    energy = on_fair_coins(make_rbm(8, 4))
    x = energy.base.sample(300, seeded(1))
    found = assess(rbm_log_ratios, energy, x, None, seeded())
    assert found.gain == pytest.approx(exact_gain(energy, x), abs=1e-9)
    draws = [assess(rbm_log_ratios, energy, x, None, seeded(i)).draws for i in range(60)]
    states = energy.domain.states(0, 2**8, dtype=DOUBLE, device="cpu")
    p = torch.softmax(-energy(states), 0)
    assert_allclose(torch.cat(draws).mean(0), p @ states, atol=0.03)


@pytest.mark.parametrize(
    "energy", [on_fair_coins(make_rbm(8, 4)), make_tree_rbm(8, 4)], ids=["independent", "tree"]
)
@pytest.mark.usefixtures("annealed")
@torch.no_grad()
def test_gains_are_those_of_the_exact_likelihood(energy):
    x = energy.base.sample(300, seeded(1))
    found = [assess(rbm_log_ratios, energy, x, None, seeded(i)) for i in range(4)]
    gains = np.array([one.gain for one in found])
    exact = exact_gain(energy, x)
    assert abs(gains.mean() - exact) < 0.05  # the larger of two estimates
    # The rows are the same, so that only the error of log Z differs.
    assert all(abs(one.gain - exact) < 4 * one.error for one in found)


@pytest.mark.usefixtures("annealed")
@torch.no_grad()
def test_draws_are_those_of_the_model():
    energy = on_fair_coins(make_rbm(8, 4))
    draws = torch.cat(
        [
            assess(rbm_log_ratios, energy, energy.base.sample(9, seeded()), None, seeded(i)).draws
            for i in range(12)
        ]
    )
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)), dtype=DOUBLE)
    p = (-energy(states)).softmax(0)
    mean = p @ states
    assert draws.shape == (12 * 2 * USUAL.n_chains, 8)
    # Resampling repeats rows: half as many independent ones is cautious.
    error = (mean * (1 - mean) / (len(draws) / 4)).sqrt()
    assert ((draws.mean(0) - mean).abs() < 4 * error).all()


@pytest.mark.usefixtures("annealed")
@torch.no_grad()
def test_a_mode_far_from_the_rows_is_found():
    energy = spurious(20.0)
    x = (energy.base.sample(200, seeded()) * (torch.arange(12) < 6)).to(DOUBLE)
    exact = exact_gain(energy, x)
    assert exact < -5  # nearly all mass is where no rows are
    found = assess(rbm_log_ratios, energy, x, None, seeded(1))
    assert found.gain == pytest.approx(exact, abs=0.5)
    assert found.draws.mean() > 0.7  # of the rows it is 0.06


@pytest.mark.usefixtures("annealed")
@torch.no_grad()
def test_a_single_large_weight_from_the_wider_base_does_not_decide():
    """Rare columns are far from uniform ones, so that one annealing run may outweigh all others."""
    base = IndependentBernoulli(torch.full((150,), -4.0, dtype=DOUBLE))
    energy = BernoulliRBM(150, 4, generator=seeded(), dtype=DOUBLE, base=base, scale=0.5)
    energy.visible_bias.copy_(base.logits)
    exact = Exact().estimate(energy).value
    x = base.sample(50, seeded())
    found = [rbm_log_ratios(energy, x, seeded(i)) for i in range(10)]
    assert all(abs(one.log_z - exact) < 4 * one.log_z_error for one in found)
    assert all(one.log_z_error < 0.5 for one in found)


@pytest.fixture
def temperatures(annealed, monkeypatch):
    """Numbers of temperatures by which log Z was annealed."""
    seen, runs = [], safety._anneal_from_bases

    def noted(*args):
        seen.append(args[3])
        return runs(*args)

    monkeypatch.setattr(safety, "_anneal_from_bases", noted)
    return seen


@torch.no_grad()
def test_few_temperatures_are_enough_near_the_base(temperatures):
    energy = on_fair_coins(make_rbm(12, 6))
    energy.weight.mul_(0.2)
    x = energy.base.sample(100, seeded())
    found = rbm_log_ratios(energy, x, seeded(1), safety.OF_SHORT_FITS)
    assert temperatures == [25]
    assert found.log_z == pytest.approx(Exact().estimate(energy).value, abs=4 * found.log_z_error)
    assert found.log_z_error < 0.1


@pytest.mark.parametrize("likely", [False, True])
@torch.no_grad()
def test_log_z_of_models_below_their_base_is_rough(temperatures, likely):
    """It is low on average, so that more temperatures would find them worse still."""
    base = IndependentBernoulli(torch.zeros(200, dtype=DOUBLE))
    energy = BernoulliRBM(200, 4, generator=seeded(2), dtype=DOUBLE, base=base, scale=1.2)
    x = exact_draws(energy, 50, seeded()) if likely else base.sample(50, seeded())
    found = rbm_log_ratios(energy, x, seeded(1), safety.OF_SHORT_FITS)
    gain = float(found.ratio.mean()) - found.log_z
    assert (len(temperatures) > 1) is likely
    assert (gain > 0) is likely


@pytest.mark.parametrize(
    ("back", "moved", "crossed"),
    [
        ((10.1, 0.1), (10.0, 0.1), False),
        ((9.7, 0.01), (10.0, 0.1), False),  # by less than half a nat
        ((9.0, 0.1), (10.0, 0.1), True),
        ((10.0, 0.1), (9.0, 0.1), True),
        ((9.0, 1.0), (9.0, 1.0), False),  # within the errors
    ],
)
def test_annealing_that_crosses_is_recognised(back, moved, crossed):
    parts = {"AIS": (10.0, 0.1), "reverse AIS from rows": back, "reverse AIS from chains": moved}
    wide = {WIDE: (12.0, 0.1)}  # forward, too
    nan = math.nan
    found = LogPartition(10.0, 0.1, nan, nan, "heuristic", nan, parts=parts | wide)
    assert safety.has_crossed(found) is crossed


@torch.no_grad()
def test_log_z_that_crosses_is_not_known(monkeypatch):
    energy = on_fair_coins(make_rbm(8, 4))
    x = energy.base.sample(50, seeded())
    exact = Exact().estimate(energy).value
    assert safety.pessimistic_log_z(energy, x, seeded()) == pytest.approx(exact)
    monkeypatch.setattr(safety, "COMPARED_COST", 0)
    by_bracket = safety.pessimistic_log_z(energy, x, seeded())
    assert exact - 0.1 < by_bracket < exact + 0.5
    monkeypatch.setattr(safety, "has_crossed", lambda bracket: True)
    assert safety.pessimistic_log_z(energy, x, seeded()) == math.inf


@pytest.mark.usefixtures("annealed")
@torch.no_grad()
def test_weights_count_as_copies():
    energy = on_fair_coins(make_rbm(8, 4))
    x = energy.base.sample(40, seeded())
    times = torch.arange(40) % 3
    one = assess(rbm_log_ratios, energy, x, times.to(DOUBLE), seeded(1))
    other = assess(rbm_log_ratios, energy, x.repeat_interleave(times, 0), None, seeded(1))
    assert one.gain == pytest.approx(other.gain, abs=1e-9)


@pytest.mark.usefixtures("annealed")
@torch.no_grad()
def test_an_energy_without_bound_has_no_gain():
    energy = on_fair_coins(make_rbm(8, 4))
    energy.weight.fill_(1e308)
    found = assess(rbm_log_ratios, energy, energy.base.sample(9, seeded()), None, seeded(1))
    assert found.gain == -math.inf


# ------------------------------------------------------------------------------
# Chains go on from draws
# ------------------------------------------------------------------------------


def joined(n_draws, sampler=None, chains=None):
    energy = make_rbm(6, 3)
    chains = Persistent(n_steps=1, n_chains=10) if chains is None else chains
    objective = ContrastiveDivergence(energy, Gibbs() if sampler is None else sampler, chains)
    batch = objective.energy.domain.uniform(10, seeded(), dtype=DOUBLE)
    state = objective.start(Batch(batch), seeded())
    draws = torch.full((n_draws, 6), 1.0, dtype=DOUBLE)
    return objective, state, objective.state_with_draws(state, draws, seeded(1))


@pytest.mark.parametrize(("n_draws", "n_moved"), [(3, 3), (40, 5)])
def test_up_to_half_of_the_chains_go_on_from_draws(n_draws, n_moved):
    objective, before, after = joined(n_draws)
    moved = (before.chain.x != after.chain.x).any(1)
    at_draws = (after.chain.x == 1).all(1)
    assert at_draws[moved].all()
    assert n_moved - (before.chain.x == 1).all(1).sum() <= moved.sum() <= n_moved
    assert at_draws.sum() >= n_moved
    assert before.chain.x.shape == after.chain.x.shape
    loss = objective.gradients(Batch(before.chain.x), after, seeded())
    assert objective.energy.weight.grad.isfinite().all()
    assert loss.state.n_batches == before.n_batches + 1


@pytest.mark.parametrize(
    "options",
    [{"chains": FromData(n_steps=1)}, {"sampler": ParallelTempering(2)}],
    ids=["contrastive divergence", "replicas"],
)
def test_other_chains_stay(options):
    _, before, after = joined(5, **options)
    assert after is before


# ------------------------------------------------------------------------------
# The guard
# ------------------------------------------------------------------------------


def after(gains, *, seldom=True, error=0.1):
    """A guard after these gains, one an epoch."""
    guard = Guard(seldom=seldom)
    for epoch, gain in enumerate(gains):
        guard.shown = {"gain_over_base": gain, "gain_error": error}
        guard.keep_best(guard.shown, epoch, [])
    return guard


def test_training_ends_early_only_where_every_gain_is_known():
    """A plateau of a few assessments says nothing."""
    gains = [0.0, 1.0, *[0.5] * 60]
    assert after(gains, seldom=False).is_exhausted(60, 0, 60, 2)
    assert not after(gains).is_exhausted(60, 0, 60, 2)


def test_models_do_not_end_below_their_base_or_their_start():
    assert after([0.0, 0.2, -0.1]).below_base
    assert not after([0.0, 0.2, 0.1]).below_base
    assert after([0.0, 0.2, -0.15], seldom=False).below_base
    assert not after([0.0, 0.2, -0.05], seldom=False).below_base  # as good a model
    assert after([0.3, 0.4, 0.15], seldom=False).below_base
    assert not after([0.3, 0.4, 0.2]).below_base  # the base is what is left of it
    assert not Guard(seldom=True).below_base  # nothing is known


def test_gains_of_the_same_rows_are_compared_row_by_row():
    """What rows differ in themselves says nothing of two models of them."""
    rows = torch.linspace(-50, 50, 11)
    noise = torch.tensor([0.1, -0.1]).repeat(6)[:11]
    for later, clearly in ((rows - 0.5 + noise, True), (rows - 0.02 + noise, False)):
        guard = Guard(seldom=True)
        for epoch, gains in enumerate((rows, later)):
            mean, error = float(gains.mean()), float(gains.std()) / 11**0.5
            guard.gains, guard.shown = gains, {"gain_over_base": mean, "gain_error": error}
            guard.keep_best(guard.shown, epoch, [])
        assert (guard.clearly_better() is not None) is clearly


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_iter", "n"), [(3, 3), only_full(20, N_ASSESSMENTS), only_full(47, N_ASSESSMENTS)]
)
def test_models_are_assessed_twenty_times_and_at_the_end(bits, n_iter, n):
    model = RBMEstimator(3, learning="pcd", n_iter=n_iter, random_state=0).fit(bits)
    assert len(assessed(model)) == n
    assert "gain_over_base" in model.history_[-1]


OURS = {
    "n_components": 3,
    "learning": "pcd",
    "base": "independent",
    "n_iter": 4,
    "random_state": 0,
}


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.1},
        {"batch_size": 10},
        {"net_params": {"lr": 0.1}},
        {"learning": "exact", "learning_rate": 0.1},
    ],
    ids=str,
)
def test_who_sets_the_steps_is_guarded(bits, options):
    assert assessed(RBMEstimator(**(OURS | options)).fit(bits))


def test_the_rows_of_early_stopping_judge_the_end(bits):
    net = RBMEstimator(**(OURS | {"early_stopping": EarlyStopping()})).fit(bits).net_
    assert net.held_out_ is None
    assert net.judges_[0] is not None
    assert net.guard_.final_gain is not None


def test_few_rows_and_streams_are_not_held_out(bits):
    assert assessed(RBMEstimator(**OURS).fit(bits[:200]))
    assert not assessed(RBMEstimator(**OURS).fit(bits[:199]))
    assert not assessed(RBMEstimator(**OURS).partial_fit(bits))


def test_weights_count_among_held_out_rows(bits):
    """Rows of weight zero are none: those of the others are held out, with their weights."""
    weight = np.r_[np.zeros(40), np.full(220, 2.0)]
    weighted = RBMEstimator(**OURS).fit(bits, sample_weight=weight)
    assert len(weighted.net_.held_out_) == 22
    alike = RBMEstimator(**OURS).fit(bits[40:])
    assert assessed(weighted) == pytest.approx(assessed(alike), abs=1e-5)


def test_held_out_rows_are_not_trained_on(bits):
    model = RBMEstimator(**OURS).fit(bits)
    held_out = model.net_.held_out_
    assert len(held_out) == 26
    wide = np.random.default_rng(0).integers(2, size=(6000, 2)).astype(float)
    assert len(RBMEstimator(2, learning="pcd", n_iter=1).fit(wide).net_.held_out_) == 500


def fitted_gaussian(model, X, *, guards):
    """The model, and its base as it should be: of all rows, or of those that do not guard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = model.fit(X)._rows(X)
    if not guards:
        rows = rows_apart(rows, N_HELD_OUT, model._recipe.guard_seed)[0]
    return model, Gaussian.fit(rows.block(0, len(rows)).double())


@pytest.mark.parametrize("learner", [RBMEstimator, SpikeSlabRBM])
def test_rows_that_guard_are_new_to_the_base(learner, monkeypatch):
    """If it had been fitted to them, models that are worse than it would look better."""
    monkeypatch.setattr(Recipe, "gain_of_all_rows", lambda self, rows: -math.inf)
    X = np.random.default_rng(0).normal(size=(400, 3))
    kind = {"base": "gaussian", "n_iter": 5, "random_state": 0}
    model, base = fitted_gaussian(learner(4, **kind), X, guards=False)
    assert_allclose(model.base_.covariance.double(), base.covariance, rtol=1e-4)
    assert_allclose(model.energy_.base.covariance.double(), base.covariance, rtol=1e-4)


@pytest.mark.parametrize("learner", leading(1, [RBMEstimator, SpikeSlabRBM]))
def test_where_less_is_gained_the_base_is_of_all_rows(learner, monkeypatch):
    monkeypatch.setattr(Recipe, "gain_of_all_rows", lambda self, rows: math.inf)
    X = np.random.default_rng(0).normal(size=(400, 3))
    kind = {"base": "gaussian", "n_iter": 5, "random_state": 0}
    model, base = fitted_gaussian(learner(4, **kind), X, guards=True)
    assert_allclose(model.base_.covariance.double(), base.covariance, rtol=1e-4)
    alone, _ = fitted_gaussian(learner(4, **kind | {"n_iter": 0}), X, guards=True)
    assert_allclose(model.score(X), alone.score(X), atol=0.01)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.energy(X[:5]), model.energy(X[:5]))
    model.set_params(warm_start=True).fit(X)
    assert model.partial_fit(X).n_iter_ == 11


def test_what_all_rows_add_to_a_base_is_what_is_expected():
    """Of k parameters of a normal distribution by n instead of m rows: k / 2 (1 / m - 1 / n)."""
    rng, d, n = np.random.default_rng(0), 30, 600
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RBMEstimator(2, base="gaussian", n_iter=1, random_state=0)
        recipe = model.fit(rng.normal(size=(n, d)))._recipe
    found = []
    for _ in range(30):
        rows = model._rows(rng.normal(size=(n, d)))
        train, guards = rows_apart(rows, N_HELD_OUT, recipe.guard_seed)
        assert (len(train), len(guards)) == (540, 60)
        base = Gaussian.fit(train.block(0, 540).double(), shrinkage=0.0).to("cpu", rows.dtype)
        found.append(dataclasses.replace(recipe, base=base).gain_of_all_rows(rows))
    expected = (d + d * (d + 1) / 2) / 2 * (1 / 540 - 1 / 600)
    error = np.std(found) / len(found) ** 0.5
    assert error < expected / 5
    assert abs(np.mean(found) - expected) < 3 * error


def overfitted(**options):
    """The gain of 200 noisy rows over independent columns, on 2,000 other rows, exactly."""
    random = np.random.default_rng(0)
    p = np.geomspace(0.5, 0.02, 150)
    X, test = (random.random((n, 150)) < p for n in (200, 2000))
    model = RBMEstimator(12, learning="pcd", base="independent", random_state=0, **options)
    model.fit(X.astype(float))
    x = torch.as_tensor(test).float()
    gain = model.score(test.astype(float)) - float(model.base_.log_prob(x).double().mean())
    return model, gain


@full
def test_overfitting_ends_at_the_base():
    with pytest.warns(ConvergenceWarning, match="n_iter"):
        _, gain = overfitted(n_iter=60)
    assert gain > -0.05
    with pytest.warns(ConvergenceWarning, match="no more likely than (under|by) the base"):
        _, gain = overfitted(n_iter=60, learning_rate=0.1)  # which removes no guard
    assert gain > -0.05


@full
def test_what_is_learned_stays(bits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Training has not converged")
        model = RBMEstimator(8, learning="pcd", base="independent", random_state=0, n_iter=600)
        model.fit(bits[:230])
    base = model.base_.log_prob(torch.as_tensor(bits[230:]).float()).double()
    assert model.score(bits[230:]) - float(base.mean()) > 0.2


def test_the_gain_is_that_of_score(bits):
    model = RBMEstimator(4, learning="pcd", random_state=0, n_iter=20).fit(bits)
    rows = model.net_.held_out_
    x = rows.block(0, len(rows))
    base = float(model.base_.log_prob(x).double().mean())
    row = model.history_[-1]
    gain = model.score(x.numpy()) - base
    assert row["gain_over_base"] == pytest.approx(gain, abs=4 * row["gain_error"])


def test_a_spurious_mode_brings_back_earlier_weights(bits, monkeypatch):
    gains = iter([0.0, 1.0, 2.0, -50.0, -60.0])
    kept = []

    def told(energy, x, generator):
        kept.append(energy.weight.detach().clone())
        return LogRatios(torch.full((4,), next(gains)), 0.0, 0.1, energy.base.sample(4, generator))

    monkeypatch.setattr("skebm.estimators.rbm.family.rbm_log_ratios", told)
    with pytest.warns(ConvergenceWarning, match="epoch 2"):
        model = RBMEstimator(**OURS).fit(bits)
    assert torch.equal(model.energy_.weight, kept[2])


@pytest.mark.parametrize("averaging", [0.0, 0.9])
def test_after_a_large_loss_training_goes_on_from_the_best_weights_at_half_the_rate(
    bits, monkeypatch, averaging
):
    gains, kept = [0.0, 2.0, 1.7, 1.0, 1.6], []

    def told(energy, x, generator):
        kept.append(energy.weight.detach().clone())
        gain = torch.full((4,), gains[len(kept) - 1])
        return LogRatios(gain, 0.0, 0.1, energy.base.sample(4, generator))

    monkeypatch.setattr("skebm.estimators.rbm.family.rbm_log_ratios", told)
    model = RBMEstimator(**OURS, optimizer=SGD(schedule="constant", averaging=averaging))
    with pytest.warns(ConvergenceWarning, match="after epoch 1 of 4"):
        model.fit(bits)
    rates = [row["lr"] for row in model.history_]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05])  # 0.3 nats are no large loss
    moved = [float((one - kept[1]).norm()) for one in kept]
    if averaging:  # the average begins anew
        assert moved[4] < moved[3]
    else:
        assert 0 < moved[4] < 0.6 * moved[3]
    assert torch.equal(model.energy_.weight, kept[1])
    assert model.n_restarts_ == 0  # nothing diverged


def test_fits_go_on_from_where_they_were(bits, monkeypatch):
    """A warm start is assessed at its start: it does not end below the model before it."""
    monkeypatch.setattr("skebm.estimators.recipe.is_kept", lambda *found: True)
    model = RBMEstimator(**OURS, warm_start=True).fit(bits)
    last = assessed(model)[-1]
    seen = []
    keep = Guard.keep_best

    def record(self, logs, epoch, weights):
        seen.append((epoch, logs.get("gain_over_base")))
        keep(self, logs, epoch, weights)

    monkeypatch.setattr(Guard, "keep_best", record)
    model.set_params(n_iter=2).fit(bits)
    assert seen[0] == (4, pytest.approx(last, abs=1e-6))
    assert last != 0


@full
def test_assessments_do_not_depend_on_what_was_assessed_before(bits):
    one, two = (RBMEstimator(**OURS).fit(bits) for _ in range(2))
    assert assessed(one) == assessed(two)
    assert isinstance(one.net_, EnergyNet)


@pytest.mark.parametrize(
    ("gains", "quarters", "rise"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 1, 0.2),
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 2, 0.4),
        ([0.0, 0.5, 1.0, 1.0, 1.0, 1.02, 1.05, 1.04], 1, None),  # by less than 0.1 nats
        ([0.0, 0.5, 0.8, 0.8, 1.0, 1.02, 1.05, 1.04], 2, 0.245),
        ([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.4], 1, None),  # by less than two standard errors
        ([0.0, 1.0, 2.0, 3.0], 1, None),  # too few to tell
    ],
)
def test_gains_that_still_rise(gains, quarters, rise):
    assert still_rising(gains, quarters) == (rise if rise is None else pytest.approx(rise))


def test_training_that_has_not_converged_says_so(bits):
    """Once, and not beside the note that the base is as good."""
    recipe = RBMEstimator(2, learning="pcd", n_iter=1, random_state=0).fit(bits)._recipe
    history = [{"gain_over_base": 0.1 * k, "gain_error": 0.01} if k % 2 else {} for k in range(40)]
    net = SimpleNamespace(history=history, n_before_=0, note_="", max_epochs=40)
    with pytest.warns(ConvergenceWarning, match="n_iter"):
        recipe.check_trained(net, bits)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        noted = SimpleNamespace(**vars(net) | {"note_": "There is one."})
        recipe.check_trained(noted, bits)


@pytest.mark.parametrize(
    ("gain", "error", "n_iter", "warns"),
    [(0.0, 0.1, 50, True), (0.5, 0.3, 50, True), (0.5, 0.1, 50, False), (0.0, 0.1, 5000, False)],
)
def test_training_that_has_not_left_its_base_says_so(bits, gain, error, n_iter, warns):
    """Unless it took as many steps as by default."""
    recipe = RBMEstimator(2, learning="pcd", n_iter=1, random_state=0).fit(bits)._recipe
    per_epoch = -(-len(bits) // recipe.plan.batch_size)
    recipe = recipe.with_settings(short=n_iter * per_epoch < 10_000)
    history = [{"gain_over_base": gain, "gain_error": error}]
    net = SimpleNamespace(history=history, n_before_=0, note_="", max_epochs=n_iter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipe.check_trained(net, bits)
    said = [str(w.message) for w in caught]
    assert len(said) == warns
    assert all(f"Set n_iter to {-(-10_000 // per_epoch)} or more." in text for text in said)


@pytest.mark.parametrize(
    ("n", "of_slow", "of_quick"),
    [(400, 1000, 2500), (100_000, 10, 10), (199, 500, 500)],
)
def test_few_rows_with_slow_steps_begin_with_few_epochs(n, of_slow, of_quick):
    """10,000 steps otherwise, and as many as held-out rows ask for up to eight times those."""
    x = Rows(torch.zeros(n, 4), dtype=torch.float32, device="cpu")
    for work, epochs in ((2.5e7, of_slow), (7e5, of_quick)):
        first, most = _numbers_of_epochs("pcd", x, "density", 100, work)
        assert first == epochs
        assert most == (0 if n < 200 else max(first, int(min(2e11 / work, 8e4) / -(-n // 100))))


@pytest.mark.parametrize(("n_iter", "short"), [(3, True), (10_000, False), ("auto", False)])
def test_a_fit_is_short_if_it_was_asked_for_few_steps(bits, n_iter, short):
    rows = Rows(torch.as_tensor(bits), dtype=torch.float32, device=torch.device("cpu"))
    model = RBMEstimator(2, learning="pcd", n_iter=n_iter, random_state=0)
    table = probability_table(bits)
    base = IndependentBernoulli(torch.zeros(bits.shape[1]))
    chosen = BaseChoice("independent", model.n_components, "")
    recipe = design(model, table, base, chosen, rows, aim="density", streaming=False)
    assert recipe.family.short == short
