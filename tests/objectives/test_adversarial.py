"""Adversarial training: attacks within their box, negatives uphill, and the logistic loss."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, softplus

from skebm.base import Batch, Binary, Real
from skebm.energies import ClassMarginal, NeuralEnergy
from skebm.objectives import (
    AdversarialContrast,
    AdversarialJoint,
    JointLikelihood,
    NoiseContrastive,
    SignAttack,
)
from skebm.samplers import MALA, FromData
from tests.support.networks import binary, build, classified, neural, normal_base, walled
from tests.support.objectives import autograd, flat, gradient
from tests.support.oracle import DOUBLE, seeded

RADIUS = torch.tensor([0.3, 0.0, 0.5], dtype=DOUBLE)


def rows(n=9, d=3, seed=1):
    return torch.randn(n, d, generator=seeded(seed), dtype=DOUBLE)


def classes(n=9, k=4, seed=2):
    return torch.randint(k, (n,), generator=seeded(seed))


# ------------------------------------------------------------------------------
# Attacks
# ------------------------------------------------------------------------------


def linear(x):
    """Logits of two classes, whose margin is linear in x."""
    weight = torch.tensor([[1.0, 2.0, -3.0], [0.0, 0.0, 0.0]], dtype=DOUBLE)
    return x @ weight.t()


@pytest.mark.parametrize("n_steps", [8, 20])
def test_the_worst_point_of_a_box_is_found_where_logits_are_linear(n_steps):
    x, y = rows(), classes(9, 2)
    moved = SignAttack(RADIUS, n_steps, 0.25)(linear, x, y, seeded(0))
    direction = torch.where(y[:, None] == 0, -1.0, 1.0) * torch.tensor([1.0, 2.0, -3.0]).sign()
    torch.testing.assert_close(moved, x + direction * RADIUS)


def test_attacks_stay_in_their_box_and_raise_the_loss():
    energy, x, y = classified(), rows(), classes()
    logits = energy.network.classifier
    moved = SignAttack(RADIUS, 5, 0.5)(logits, x, y, seeded(0))
    assert ((moved - x).abs() <= RADIUS + 1e-12).all()
    assert not moved.requires_grad
    loss = [cross_entropy(logits(z), y, reduction="none") for z in (x, moved)]
    assert (loss[1] > loss[0]).all()
    assert all(p.grad is None for p in energy.parameters())


def test_rows_of_unknown_class_have_nothing_to_flee():
    x, y = rows(), torch.full((9,), -1)
    y[0] = 1
    found = SignAttack(RADIUS, 3)(linear, x, y, seeded(0))
    uniform = SignAttack(RADIUS, 0)(linear, x, y, seeded(0))
    torch.testing.assert_close(found[1:], uniform[1:])
    assert not torch.equal(found[0], uniform[0])


def test_attacks_respect_bounds():
    x = torch.rand(9, 3, generator=seeded(1), dtype=DOUBLE)
    moved = SignAttack(RADIUS, 5)(linear, x, classes(9, 2), seeded(0), Real((3,), 0.0, 1.0))
    assert moved.min() >= 0
    assert moved.max() <= 1


def test_the_cross_entropy_is_that_of_attacked_rows():
    energy, x, y = classified(), rows(), classes()
    attack = SignAttack(RADIUS, 3)
    kind = {"generative_weight": 0, "attack": attack}
    objective = JointLikelihood(energy, MALA(0.3), FromData(), **kind)
    loss = objective(Batch(x, y), None, seeded(4))
    moved = attack(energy.network.classifier, x, y, seeded(4))
    expected = cross_entropy(energy.network.classifier(moved), y)
    torch.testing.assert_close(loss.value, expected)
    found, _ = gradient(objective, Batch(x, y), None, 4)
    plain = autograd(lambda _: cross_entropy(energy.network.classifier(moved), y), energy)
    torch.testing.assert_close(flat(found), flat(plain))


# ------------------------------------------------------------------------------
# Negatives
# ------------------------------------------------------------------------------


def test_without_steps_it_is_noise_contrastive_estimation():
    energy, x = neural(), rows(50)
    found = AdversarialContrast(energy, n_steps=0)(Batch(x), None, seeded(3)).value
    draws = energy.base.sample(50, seeded(3))
    f = energy.parametric_energy(torch.cat([x, draws]))
    torch.testing.assert_close(found, softplus(f[:50]).mean() + softplus(-f[50:]).mean())
    contrast = NoiseContrastive(energy, energy.base)
    torch.testing.assert_close(found, contrast(Batch(x), None, seeded(3)).value)


def test_negatives_climb_by_steps_of_a_length():
    energy = neural()
    objective = AdversarialContrast(energy, n_steps=6, step_size=0.05)
    _, negatives = objective.phases(Batch(rows(200)), seeded(3))
    starts = energy.base.sample(200, seeded(3))
    moved = (negatives - starts).norm(dim=1)
    assert moved.max() <= 6 * 0.05 * math.sqrt(3) + 1e-9
    n_still = int((moved == 0).sum())
    assert 10 < n_still < 60  # one in seven takes no step
    with torch.no_grad():
        gain = energy.parametric_energy(starts) - energy.parametric_energy(negatives)
    assert (gain[moved > 0] > -1e-3).all()
    assert gain.mean() > 0


def test_negatives_start_at_given_rows_or_at_uniform_ones():
    starts = rows(4, seed=7)
    energy = neural(base=None)
    objective = AdversarialContrast(energy, n_steps=0, start=starts)
    _, negatives = objective.phases(Batch(rows(40)), seeded(0))
    assert (negatives[:, None] == starts).all(2).any(1).all()
    box = NeuralEnergy(walled(3, 0.0, 1.0).network, Real((3,), 0.0, 1.0))
    _, negatives = AdversarialContrast(box, n_steps=4, step_size=0.5).phases(
        Batch(rows(40)), seeded(0)
    )
    assert negatives.min() >= 0
    assert negatives.max() <= 1


def test_the_joint_loss_is_the_sum_of_its_terms():
    energy, x, y = classified(), rows(), classes()
    joint = AdversarialJoint(energy, generative_weight=0.4, n_steps=3)
    alone = AdversarialContrast(energy, n_steps=3)
    assert joint.start(Batch(x, y), seeded(0)) is None
    loss = joint(Batch(x, y), None, seeded(5))
    generative = alone(Batch(x), None, seeded(5)).value
    plain = cross_entropy(energy.network.classifier(x), y)
    torch.testing.assert_close(loss.value, plain + 0.4 * generative)
    assert loss.state is None


def test_the_minimum_without_steps_is_the_log_ratio():
    """Of a normal density to its base: where g is the log-ratio, the gradient vanishes."""
    base, target = normal_base(2, 3), normal_base(2, 4)

    class Ratio(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones((), dtype=DOUBLE))
            self.shift = torch.nn.Parameter(torch.zeros((), dtype=DOUBLE))

        def forward(self, x):
            return -self.scale * (target.log_prob(x) - base.log_prob(x)) + self.shift

    energy = NeuralEnergy(Ratio(), Real((2,)), base)
    objective = AdversarialContrast(energy, n_steps=0)
    found, _ = gradient(objective, Batch(target.sample(200_000, seeded(1))), None, 2)
    assert flat(found).abs().max() < 0.01


# ------------------------------------------------------------------------------
# Mistakes
# ------------------------------------------------------------------------------


def test_bits_have_no_gradient_to_climb():
    with pytest.raises(ValueError, match="rows of numbers"):
        AdversarialContrast(binary())
    logits = build(lambda spec: torch.nn.Linear(3, 2), (3,), n_classes=2)
    with pytest.raises(ValueError, match="rows of numbers"):
        AdversarialJoint(NeuralEnergy(ClassMarginal(logits), Binary((3,))))


def test_negatives_need_a_place_to_start():
    objective = AdversarialContrast(neural(base=None))
    with pytest.raises(ValueError, match="nowhere to start"):
        objective.start(Batch(rows()), seeded(0))


def test_an_energy_without_classes():
    with pytest.raises(TypeError, match="ClassMarginal"):
        AdversarialJoint(neural())
