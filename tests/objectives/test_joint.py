"""Joint energy models: classifier and density, against sums over all states."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from skebm.base import Batch, Binary, Real
from skebm.distributions import Gaussian, IndependentBernoulli
from skebm.energies import MLP, ClassMarginal, NeuralEnergy
from skebm.objectives import ContrastiveDivergence, JointLikelihood, Refinement
from skebm.objectives.joint import likelihood
from skebm.objectives.joint.likelihood import likeliest_power
from skebm.samplers import MALA, FromData, GibbsWithGradients, Langevin, Persistent
from tests.support.networks import build, classified, neural
from tests.support.objectives import autograd, flat, gradient
from tests.support.oracle import DOUBLE, mean_is, seeded
from tests.support.tiers import full, only_full

K, D = 3, 4
SIEVE = 5


def bits(d=D):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=d)), dtype=DOUBLE)


def of_bits(seed=5):
    """A joint energy of bits, whose sums are enumerated."""
    logits = build(MLP((5,)), (D,), n_classes=K, seed=seed)
    base = IndependentBernoulli(torch.linspace(-1, 1, D, dtype=DOUBLE))
    return NeuralEnergy(ClassMarginal(logits), Binary((D,)), base)


def joint_table(energy):
    """log p(x, y) of all states, (2^d, K), differentiable."""
    x = bits()
    level = energy.base.log_prob(x)[:, None] + energy.network.classifier(x)
    return level - level.logsumexp((0, 1))


def rows(n=9, d=3, seed=1):
    return torch.randn(n, d, generator=seeded(seed), dtype=DOUBLE)


def classes(n=9, k=4, seed=2):
    return torch.randint(k, (n,), generator=seeded(seed))


# ------------------------------------------------------------------------------
# Densities of logits
# ------------------------------------------------------------------------------


def test_the_marginal_sums_over_classes():
    energy, x = of_bits(), bits()
    log_p = joint_table(energy)
    level = -energy(x)
    torch.testing.assert_close(level - level.logsumexp(0), log_p.logsumexp(1))
    for k in range(K):
        of_class = NeuralEnergy(energy.network.given(k), energy.domain, energy.base)
        level = -of_class(x)
        expected = log_p[:, k] - log_p[:, k].logsumexp(0)
        torch.testing.assert_close(level - level.logsumexp(0), expected)


@pytest.mark.parametrize("power", [0.0, 0.4, 1.0])
def test_a_power_changes_the_rows_and_not_their_classes(power):
    joint = of_bits()
    energy = NeuralEnergy(joint.network.at(power), joint.domain, joint.base)
    total = joint.network.classifier(bits()).logsumexp(1)
    torch.testing.assert_close(-energy.correction(bits()), power * total)
    of_class = [NeuralEnergy(energy.network.given(k), joint.domain, joint.base) for k in range(K)]
    by_class = torch.stack([-one(bits()) for one in of_class], 1)
    torch.testing.assert_close(by_class.logsumexp(1), -energy(bits()))
    torch.testing.assert_close(by_class.softmax(1), joint.network.classifier(bits()).softmax(1))


def test_the_likeliest_power_is_that_of_a_search():
    draws = torch.randn(2000, generator=seeded(0), dtype=DOUBLE)
    some = torch.randn(50, generator=seeded(1), dtype=DOUBLE)
    weight = torch.rand(50, generator=seeded(2), dtype=DOUBLE)
    powers = torch.linspace(0, 1, 1001, dtype=DOUBLE)
    log_z = (powers[:, None] * draws).logsumexp(1) - math.log(2000)
    for shift in (-1.0, 0.0, 0.3, 0.6, 3.0):
        mean = weight @ (some + shift) / weight.sum()
        best = float(powers[(powers * mean - log_z).argmax()])
        assert likeliest_power(some + shift, weight, draws) == pytest.approx(best, abs=2e-3)
    assert likeliest_power(torch.ones(5), torch.ones(5), torch.ones(9)) == 1  # untrained


def test_a_class_shares_the_classifier():
    energy = of_bits()
    assert energy.network.given(1).classifier is energy.network.classifier


# ------------------------------------------------------------------------------
# The loss
# ------------------------------------------------------------------------------


def test_without_a_generative_part_it_is_a_classifier():
    energy, x, y = classified(), rows(), classes()
    objective = JointLikelihood(energy, MALA(0.3), FromData(), generative_weight=0)
    assert objective.start(Batch(x, y), seeded(0)) is None
    found, loss = gradient(objective, Batch(x, y), None)
    value = cross_entropy(energy.network.classifier(x), y)
    torch.testing.assert_close(loss.value, value.detach())
    expected = autograd(lambda _: cross_entropy(energy.network.classifier(x), y), energy)
    torch.testing.assert_close(flat(found), flat(expected))


@pytest.mark.parametrize("weight", [0.3, 1.0, 2.5])
def test_the_factored_loss_is_the_sum_of_its_terms(weight):
    energy, x, y = classified(), rows(), classes()
    both = JointLikelihood(energy, MALA(0.3), FromData(2), generative_weight=weight, energy_l2=0.1)
    alone = ContrastiveDivergence(energy, MALA(0.3), FromData(2), energy_l2=0.1)
    state = both.start(Batch(x, y), seeded(0))
    found, loss = gradient(both, Batch(x, y), state, 3)
    generative, of_chains = gradient(alone, Batch(x), state, 3)
    plain = autograd(lambda _: cross_entropy(energy.network.classifier(x), y), energy)
    torch.testing.assert_close(flat(found), flat(plain) + weight * flat(generative))
    value = cross_entropy(energy.network.classifier(x), y).detach() + weight * of_chains.value
    torch.testing.assert_close(loss.value, value.detach())


@full
@pytest.mark.parametrize("form", ["factored", only_full("joint")])
def test_the_expected_gradient_is_that_of_the_joint_likelihood(form):
    """Of chains that are draws of the model, and stay them: for either form the same mean."""
    energy = of_bits()
    x, y = bits()[[3, 7, 7, 12, 0]], torch.tensor([0, 1, 2, 2, 1])
    place = torch.tensor([3, 7, 7, 12, 0])
    expected = autograd(lambda _: -joint_table(energy)[place, y].mean(), energy)
    with torch.no_grad():
        p = joint_table(energy).logsumexp(1).exp()
    policy = Persistent(1, n_chains=40, initial=energy.base)
    objective = JointLikelihood(energy, GibbsWithGradients(), policy, form=form)
    state, found = objective.start(Batch(x, y), seeded(0)), []
    for seed in range(400):
        drawn = torch.multinomial(p, 40, replacement=True, generator=seeded(seed))
        here = state._replace(chain=objective.kernel(0).init(energy, bits()[drawn]))
        found.append(flat(gradient(objective, Batch(x, y), here, seed)[0]))
    assert mean_is(torch.stack(found), flat(expected)) < SIEVE


@full
def test_the_expected_gradient_vanishes_at_the_truth():
    energy = of_bits()
    with torch.no_grad():
        table = joint_table(energy).exp()
    objective = JointLikelihood(energy, GibbsWithGradients(), FromData(2))
    found = []
    for seed in range(400):
        drawn = torch.multinomial(table.flatten(), 40, replacement=True, generator=seeded(seed))
        batch = Batch(bits()[drawn // K], drawn % K)
        state = objective.start(batch, seeded(seed))
        found.append(flat(gradient(objective, batch, state, 1000 + seed)[0]))
    assert mean_is(torch.stack(found), torch.zeros(1, dtype=DOUBLE)) < SIEVE


@pytest.mark.parametrize("form", ["factored", "joint"])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_rows_of_unknown_class_count_in_the_density_alone(form, weight):
    energy, x = classified(), rows()
    y = torch.where(torch.arange(9) % 2 == 0, classes(), -1)
    kind = {"form": form, "generative_weight": weight}
    objective = JointLikelihood(energy, Langevin(0.05, noise_scale=0.0), FromData(1), **kind)
    state = objective.start(Batch(x, y), seeded(0))
    found, _ = gradient(objective, Batch(x, y), state, 3)
    known = y >= 0

    def cross_entropies(_):
        logits = energy.network.classifier(x)
        return cross_entropy(logits[known], y[known], reduction="sum") / 9

    if weight == 0 or form == "factored":
        others, _ = gradient(objective, Batch(x, torch.full_like(y, -1)), state, 3)
        plain = autograd(cross_entropies, energy)
        torch.testing.assert_close(flat(found), flat(others) + flat(plain))
    else:
        logits = energy.network.classifier(x)
        one = objective._of_targets(logits, y)
        assert torch.equal(one[known], -logits[known, y[known]])
        torch.testing.assert_close(one[~known], -logits[~known].logsumexp(1))


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_rows_that_the_model_is_sure_of_count_by_its_own_class(weight, monkeypatch):
    energy, x = classified(), rows()
    share, label = energy.network.classifier(x).detach().softmax(1).max(1)
    monkeypatch.setattr(likelihood, "SURE", float(share.median()))
    y = torch.where(torch.arange(9) % 3 == 0, classes(), -1)
    kind = {"generative_weight": weight, "class_weight": torch.full((4,), 3.0, dtype=DOUBLE)}
    chains = Langevin(0.05, noise_scale=0.0), FromData(1)
    plain = JointLikelihood(energy, *chains, **kind)
    objective = JointLikelihood(energy, *chains, **kind, unlabeled_weight=0.5)
    state = objective.start(Batch(x, y), seeded(0))
    found, before = (flat(gradient(one, Batch(x, y), state, 3)[0]) for one in (objective, plain))
    sure = (y < 0) & (share >= share.median())
    assert 0 < sure.sum() < (y < 0).sum()

    def of_pseudo(_):
        logits = energy.network.classifier(x)[sure]
        return 0.5 * cross_entropy(logits, label[sure], reduction="sum") / 9

    torch.testing.assert_close(found, before + flat(autograd(of_pseudo, energy)))


def test_weights_of_rows_and_of_classes():
    energy, x, y = classified(), rows(), classes()
    weight = torch.rand(9, generator=seeded(3), dtype=DOUBLE)
    factor = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=DOUBLE)
    kind = {"generative_weight": 0, "class_weight": factor}
    objective = JointLikelihood(energy, MALA(0.3), FromData(), **kind)
    loss = objective(Batch(x, y, weight), None, seeded(0))
    each = cross_entropy(energy.network.classifier(x), y, reduction="none")
    torch.testing.assert_close(loss.value, (weight * factor[y] * each).mean())


def test_the_sharp_gradient_is_that_at_the_top_of_the_slope():
    energy, x, y = classified(), rows(), classes()
    plain = JointLikelihood(energy, MALA(0.3), FromData(), generative_weight=0)
    sharp = JointLikelihood(energy, MALA(0.3), FromData(), generative_weight=0, sharpness=0.2)
    before = [p.clone() for p in energy.parameters()]
    found, loss = gradient(sharp, Batch(x, y), None)
    assert all(map(torch.equal, before, energy.parameters()))
    here, at_start = gradient(plain, Batch(x, y), None)
    torch.testing.assert_close(loss.value, at_start.value)
    with torch.no_grad():
        for name, p in energy.named_parameters():
            p += 0.2 * here[name] / flat(here).norm()
    top, _ = gradient(plain, Batch(x, y), None)
    torch.testing.assert_close(flat(found), flat(top))


def test_gradients_are_clipped():
    objective = JointLikelihood(
        classified(), MALA(0.3), FromData(), generative_weight=0, clip_norm=0.01
    )
    found, _ = gradient(objective, Batch(rows(), classes()), None)
    assert flat(found).norm() == pytest.approx(0.01, rel=1e-3)


# Chains that stay at the rows, and noise of those.
STILL, AT_DATA = Langevin(1e-9, noise_scale=0.0), FromData(1, n_independence_steps=0)
SIGMA = torch.full((3,), 0.7, dtype=DOUBLE)


def test_augmentation_is_for_the_cross_entropy_alone():
    energy, x, y = classified(), rows(), classes()

    def shifted(rows, generator):
        return rows + 1

    objective = JointLikelihood(energy, STILL, AT_DATA, augmentation=shifted)
    loss = objective(Batch(x, y), objective.start(Batch(x, y), seeded(0)), seeded(1))
    expected = cross_entropy(energy.network.classifier(x + 1), y)
    torch.testing.assert_close(loss.value, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("form", ["factored", "joint"])
def test_both_terms_see_the_same_noisy_rows(form):
    energy, x, y = classified(), rows(), classes()
    # No chain moves, and half of the weight is that of what cancels.
    kind = {"form": form, "generative_weight": 0.5 if form == "factored" else 1e-9}
    found = {}
    for noisy in (True, False):
        objective = JointLikelihood(energy, STILL, AT_DATA, sigma=SIGMA, noisy=noisy, **kind)
        batch = Batch(x, y)
        found[noisy] = objective(batch, objective.start(batch, seeded(0)), seeded(1))
    seen = found[True].state.chain.x
    assert (seen - x).norm() > 1
    for noisy, rows_ in ((True, seen), (False, x)):
        expected = cross_entropy(energy.network.classifier(rows_), y)
        torch.testing.assert_close(found[noisy].value, expected, atol=1e-6, rtol=1e-6)


def test_augmentation_of_noisy_rows():
    energy, x, y = classified(), rows(), classes()
    objective = JointLikelihood(
        energy, STILL, AT_DATA, augmentation=lambda rows, generator: rows + 1, sigma=SIGMA
    )
    loss = objective(Batch(x, y), objective.start(Batch(x, y), seeded(0)), seeded(1))
    expected = cross_entropy(energy.network.classifier(loss.state.chain.x + 1), y)
    torch.testing.assert_close(loss.value, expected, atol=1e-6, rtol=1e-6)


def test_nats_of_the_rows_may_be_paid_for_nats_of_the_classes():
    objective = JointLikelihood(classified(), MALA(0.3), FromData(), generative_weight=0.1)
    calm = {"loss": 0.0, "energy_gap": 0.1, "energy_spread": 1.0, "acceptance": 0.6}
    before = calm | {"gain_over_base": 0.0, "cross_entropy": 1.0}
    for fall, bought, lost in ((0.9, 0.05, False), (0.9, 0.03, True), (0.4, -0.5, False)):
        logs = calm | {"gain_over_base": -fall, "cross_entropy": 1.0 - bought}
        reason = objective.divergence_reason(logs, before)
        assert ("less likely than under the base" in (reason or "")) == lost


def test_the_monitor_says_how_well_it_classifies():
    energy, x, y = classified(), rows(), classes()
    objective = JointLikelihood(energy, MALA(0.3), Persistent(1, n_chains=9, initial=energy.base))
    state = objective.start(Batch(x, y), seeded(0))
    logs = objective.monitor(Batch(x, y), state, seeded(1))
    logits = energy.network.classifier(x)
    assert logs["accuracy"] == (logits.argmax(1) == y).to(DOUBLE).mean()
    torch.testing.assert_close(logs["cross_entropy"], cross_entropy(logits, y).detach())
    assert {"gain_over_base", "acceptance", "energy_gap"} <= logs.keys()
    unknown = torch.full_like(y, -1)
    assert "accuracy" not in objective.monitor(Batch(x, unknown), state, seeded(1))


# ------------------------------------------------------------------------------
# Mistakes
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"generative_weight": -0.1}, "generative_weight"),
        ({"generative_weight": math.nan}, "generative_weight"),
        ({"form": "both"}, "form must be one of"),
        ({"form": "joint", "generative_weight": 1.5}, "between 0 and 1 with form"),
        ({"refinement": Refinement(1.0)}, "no `refinement`"),
    ],
)
def test_mistakes(kind, message):
    with pytest.raises(ValueError, match=message):
        JointLikelihood(classified(), MALA(0.3), FromData(), **kind)


def test_weighed_chains_are_refused():
    energy = classified()
    chains = Persistent(reweight=True, initial=energy.base)
    with pytest.raises(ValueError, match="no chains with reweight=True"):
        JointLikelihood(energy, MALA(0.3), chains)


def test_an_energy_without_classes():
    with pytest.raises(TypeError, match="ClassMarginal"):
        JointLikelihood(neural(), MALA(0.3), FromData())


def test_a_sampler_of_another_domain():
    with pytest.raises(TypeError, match="Binary"):
        JointLikelihood(classified(), GibbsWithGradients(), FromData())


@full
def test_training_finds_classes_and_density():
    """Two normal classes, whose logits and whose marginal are known."""
    generator = seeded(0)
    y = torch.randint(2, (4000,), generator=generator)
    x = torch.randn(4000, 1, generator=generator, dtype=DOUBLE) + 2.0 * (2 * y[:, None] - 1)
    base = Gaussian(torch.zeros(1, dtype=DOUBLE), 3.0)
    energy = NeuralEnergy(ClassMarginal(build(MLP((16,)), (1,), n_classes=2)), Real((1,)), base)
    objective = JointLikelihood(energy, MALA(1.0), Persistent(3, n_chains=200, initial=base))
    optimizer = torch.optim.Adam(energy.parameters(), lr=0.02)
    state = objective.start(Batch(x, y), generator)
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * (1 - step / 400)
        pick = torch.randint(4000, (200,), generator=generator)
        with torch.no_grad():
            state = objective.gradients(Batch(x[pick], y[pick]), state, generator).state
        optimizer.step()
    grid = torch.linspace(-9, 9, 1801, dtype=DOUBLE)[:, None]
    with torch.no_grad():
        level = -energy(grid)
        log_z = np.log(integrate.trapezoid(level.exp().numpy(), grid[:, 0].numpy()))
        odds = energy.network.classifier(grid).diff(dim=1)[:, 0]
    p = 0.5 * sum(torch.exp(-((grid[:, 0] - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (-2, 2))
    divergence = integrate.trapezoid((p * (p.log() - level + log_z)).numpy(), grid[:, 0].numpy())
    assert 0 <= divergence < 0.02
    truth = (4 * grid[:, 0]).sigmoid()
    excess = binary_cross_entropy_with_logits(odds, truth, reduction="none")
    excess = excess - binary_cross_entropy_with_logits(4 * grid[:, 0], truth, reduction="none")
    assert integrate.trapezoid((p * excess).numpy(), grid[:, 0].numpy()) < 0.005  # nats
