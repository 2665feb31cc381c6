"""What is looked at while a machine is trained: the monitor, the held-out loss, divergence."""

import pytest
import torch

from skebm.base import Batch
from skebm.objectives import ExactLikelihood
from tests.support.objectives import (
    N_CHAINS,
    PENALTIES,
    PERSISTENT,
    RBM_ALL,
    D,
    H,
    cd,
    data,
    later,
    log_weight,
    look,
    nll,
    pcd,
    penalty_formula,
    weights,
    with_chains,
)
from tests.support.oracle import (
    DOUBLE,
    bits,
    brute_pseudo_log_likelihood,
    joint_energy,
    make_rbm,
    seeded,
)


@pytest.fixture(params=RBM_ALL)
def case(request):
    return RBM_ALL[request.param]


@pytest.fixture
def energy():
    return make_rbm(D, H)


def test_the_monitor_sees_the_loss(case, energy):
    objective = case.make(energy)
    x = data()
    state = later(objective, x)
    logs = look(objective, Batch(x), state, seed=3)
    assert "loss" in logs
    if isinstance(objective, ExactLikelihood):
        assert logs["loss"] == pytest.approx(nll(energy, x).item())
        penalised = look(case.make(energy, penalty=PENALTIES["all"]), Batch(x), state)
        penalty = penalty_formula(PENALTIES["all"], energy, x, None).item()
        assert penalised["loss"] - logs["loss"] == pytest.approx(penalty, rel=1e-6)
        return
    gap = log_weight(energy, state.chain.x).mean() - log_weight(energy, x).mean()
    assert logs["loss"] == logs["energy_gap"] == pytest.approx(gap.item())


def test_the_monitor_reports_the_largest_weight(case, energy):
    objective, x = case.make(energy), data()
    with torch.no_grad():
        energy.weight[1, 2] = -17.0
    state = objective.start(Batch(x), seeded(1))
    assert look(objective, Batch(x), state)["largest_weight"] == 17.0


def test_reconstruction_error_is_that_of_a_mean_field_pass(energy):
    objective, x = pcd(1)(energy), data()
    with torch.no_grad():
        energy.hidden_bias.copy_(torch.tensor([80.0, -80.0, 80.0]))  # h is known
    h = torch.tensor([[1.0, 0.0, 1.0]], dtype=DOUBLE)
    p = (-joint_energy(energy, bits(D), h)).t().softmax(1) @ bits(D)
    logs = look(objective, Batch(x), objective.start(Batch(x), seeded(1)))
    assert logs["reconstruction_error"] == pytest.approx(((x - p) ** 2).mean().item())


@pytest.mark.parametrize("name", [*PERSISTENT, "exact"])
def test_rows_without_weight_do_not_show_in_the_monitor(name, energy):
    """Training does not see them; that they are unlikely must not look like a divergence."""
    objective, x = RBM_ALL[name].make(energy), data()
    state = objective.start(Batch(x), seeded(1))
    ignored = torch.ones(6, D, dtype=DOUBLE)
    w = torch.cat([torch.ones(6, dtype=DOUBLE), torch.zeros(6, dtype=DOUBLE)])
    alone = look(objective, Batch(x, weight=w[:6]), state)
    together = look(objective, Batch(torch.cat([x, ignored]), weight=w), state)
    assert together == pytest.approx(alone)


def test_the_monitor_weighs_chains_as_the_rows_they_started_from(energy):
    objective, x, w = cd(0)(energy), data(), weights("heavy")
    logs = look(objective, Batch(x, weight=w), objective.start(Batch(x), seeded(1)))
    assert logs["energy_gap"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", [None, "of mean 1", "heavy"])
def test_held_out_loss_is_a_mean_and_does_not_flicker(case, energy, kind):
    objective, x, w = case.make(energy, penalty=PENALTIES["all"]), data(), weights(kind)
    state, batch = later(objective, x), Batch(x, weight=w)
    values = [objective.validation_loss(batch, state, seeded(seed)).item() for seed in (0, 1)]
    assert values[0] == values[1]
    w = torch.ones(6, dtype=DOUBLE) if w is None else w
    if isinstance(objective, ExactLikelihood):
        rows = log_weight(energy, bits(D)).logsumexp(0) - log_weight(energy, x)
    else:
        rows = -brute_pseudo_log_likelihood(energy, x)
    assert values[0] == pytest.approx(((w * rows).sum() / w.sum()).item())


def test_to_start_badly_is_not_to_diverge(case, energy):
    """Numbers no worse than before the epoch are no reason to take it back."""
    x = torch.ones(6, D, dtype=DOUBLE)
    with torch.no_grad():
        energy.weight.fill_(-200.0)
        energy.visible_bias.fill_(-5.0)
    objective = case.make(energy)
    state = later(objective, x, 1)
    if case.persistent:
        state = with_chains(state, torch.zeros(N_CHAINS, D, dtype=DOUBLE))
    logs = look(objective, Batch(x), state)
    assert isinstance(objective.divergence_reason(logs), str)
    assert objective.divergence_reason(logs, before=logs) is None
    loss = "energy_gap" if "energy_gap" in logs else "loss"
    for name in (loss, "largest_weight"):  # each alone, if it has risen
        assert isinstance(objective.divergence_reason(logs, logs | {name: logs[name] - 2}), str)


def test_a_model_worse_than_chance_is_a_divergence(case, energy):
    """Data and chains stand where the model, with modest weights, puts no mass at all."""
    x = torch.ones(6, D, dtype=DOUBLE)
    with torch.no_grad():
        energy.weight.zero_()
        energy.visible_bias.fill_(-5.0)
    objective = case.make(energy)
    state = later(objective, x, 1)
    if case.persistent:
        state = with_chains(state, torch.zeros(N_CHAINS, D, dtype=DOUBLE))
    assert isinstance(objective.divergence_reason(look(objective, Batch(x), state)), str)
    with torch.no_grad():  # the same data under the uniform distribution are fine
        energy.visible_bias.zero_()
    state = later(objective, x, 1)
    assert objective.divergence_reason(look(objective, Batch(x), state)) is None


def test_a_step_that_chains_cannot_follow_is_a_divergence(case, energy):
    """The engine adds the energies' change in one step, in nats, to what the monitor says."""
    objective, x = case.make(energy), data()
    logs = look(objective, Batch(x), later(objective, x))
    assert objective.divergence_reason(logs | {"energy_change": 0.01}) is None
    assert isinstance(objective.divergence_reason(logs | {"energy_change": 1000.0}), str)


def test_runaway_weights_are_a_divergence(case, energy):
    objective, x = case.make(energy), data()
    with torch.no_grad():
        energy.weight.fill_(-1e4)  # silences the hidden units: no energy gap to see
    state = objective.start(Batch(x), seeded(1))
    if case.persistent:
        state = with_chains(state, x)
    reason = objective.divergence_reason(look(objective, Batch(x), state))
    assert reason is not None
