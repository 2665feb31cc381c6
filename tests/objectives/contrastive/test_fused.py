"""Steps of PCD in few operations: what they compute is what the general ones do."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from skorch.callbacks import Callback

from skebm import RBMEstimator
from skebm.base import Batch, Centering, ChainState
from skebm.energies import BernoulliRBM
from skebm.objectives import ContrastiveDivergence, Penalty
from skebm.objectives.contrastive.fused import FusedPCD
from skebm.objectives.contrastive.negative_phase import ContrastiveState
from skebm.samplers import Gibbs, Persistent
from skebm.training import SGD
from tests.support.oracle import seeded

D, H, M, RATE = 7, 5, 6, 0.3
DOUBLE = torch.float64
CENTRINGS = [None, Centering(0.05), Centering(0.05, precondition=0.5)]


def bits(generator, *shape):
    return torch.bernoulli(torch.full(shape, 0.4, dtype=DOUBLE), generator=generator)


def objective(centering=None, **settings):
    energy = BernoulliRBM(D, H, generator=seeded(1), scale=0.7, dtype=DOUBLE)
    given = {"sampler": Gibbs(), "chains": Persistent(n_chains=M, n_steps=1)} | settings
    sampler, chains = given.pop("sampler"), given.pop("chains")
    return ContrastiveDivergence(energy, sampler, chains, centering=centering, **given)


def parameters(module):
    return [p.detach().clone() for p in module.energy.tensors]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("centering", CENTRINGS, ids=str)
def test_a_step_is_one_of_gradient_descent(centering, weighted):
    """Given the chains that it drew, to rounding; batches may be of several sizes."""
    general, generator = objective(centering), seeded(2)
    state = general.start(Batch(bits(generator, 9, D)), generator)
    steps = general.fused_steps(state, 4, generator)
    for epoch in range(2):
        steps.begin(state, RATE, 4)
        for n in (4, 9, 3, 4)[epoch:]:
            weight = 2 * torch.rand(n, generator=generator, dtype=DOUBLE) if weighted else None
            batch, before = Batch(bits(generator, n, D), weight=weight), parameters(general)
            offsets = state.offsets
            steps(batch)
            state = steps.finish()
            after = parameters(general)
            with torch.no_grad():
                for p, value in zip(general.energy.tensors, before, strict=True):
                    p.copy_(value)
                sign, share = general.negatives.signs(batch, state.chain.x, None)
                own = general._own_gradient
                offsets, _ = own.write(batch.x, state.chain.x, sign, share, offsets, None)
                for p, value in zip(general.energy.tensors, after, strict=True):
                    torch.testing.assert_close(value, p - RATE * p.grad)
                    p.copy_(value)
            if centering is not None:
                torch.testing.assert_close(state.offsets, offsets)
    assert state.n_batches == 7


def test_chains_are_drawn_from_the_conditionals():
    """Both layers, against their exact means."""
    m = 20_000
    model = objective(chains=Persistent(n_chains=m, n_steps=1))
    layer = bits(seeded(3), 1, H).expand(m, -1)
    state = ContrastiveState(None, ChainState(layer.new_zeros(m, D), aux=layer))
    expected = model.energy.visible(layer[:1]).mean[0]
    weight, _, hidden_bias = parameters(model)
    steps = model.fused_steps(state, 1, seeded(4))
    steps.begin(state, 1e-12, 1)
    steps(Batch(bits(seeded(5), 4, D)))
    chain = steps.finish().chain
    hidden = (chain.x @ weight.t() + hidden_bias).sigmoid()
    for drawn, mean in ((chain.x, expected), (chain.aux, hidden.mean(0))):
        assert ((drawn == 0) | (drawn == 1)).all()
        assert ((drawn.mean(0) - mean).abs() < 4.5 * 0.5 / m**0.5).all()
    by_unit = ((chain.aux - hidden) * (hidden - hidden.mean(0))).mean(0)
    assert (by_unit.abs() < 4.5 * 0.25 / m**0.5).all()


def table(n=300):
    generator = np.random.default_rng(0)
    group = generator.integers(0, 2, (n, 2)).repeat(3, 1)
    return np.where(generator.random(group.shape) < 0.05, 1 - group, group).astype(float)


def fitted(X, **params):
    given = {"learning": "pcd", "learning_rate": 0.1, "batch_size": 10, "n_iter": 20}
    return RBMEstimator(4, random_state=0, **given | params).fit(X)


class Gradients(Callback):
    """Looks at gradients, which only general steps have."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        assert all(weight.grad is not None for _, weight in named_parameters)


class Halves(Callback):
    """Changes the weights after every batch."""

    def on_batch_end(self, net, **kwargs):
        for weight in net.module_.parameters():
            weight.data.mul_(0.5)


def test_callbacks_see_and_may_change_the_weights_of_each_batch():
    halved = fitted(table(), aim="features", net_params={"callbacks": [Halves()]})  # no guard
    assert np.abs(halved.components_).max() < 0.1
    assert np.abs(fitted(table()).components_).max() > 0.3


def test_likelihoods_are_those_of_general_steps():
    X = table()
    fast, general = fitted(X), fitted(X, net_params={"callbacks": [Gradients()]})
    assert not np.array_equal(fast.components_, general.components_)  # other random numbers
    assert abs(fast.score(X) - general.score(X)) < 0.05
    assert np.array_equal(fast.components_, fitted(X).components_)


@pytest.mark.parametrize(
    "params",
    [
        {"chains": Persistent(n_steps=2)},
        {"learning": "cd"},
        {"sampler": Gibbs(n_collapsed=2)},
        {"penalty": Penalty(l2=0.1)},
        {"penalty": Penalty(sparsity_target=0.1, sparsity_cost=1.0)},
        {"base": "chow-liu"},
        {"optimizer": SGD(momentum=0.5)},
    ],
    ids=str,
)
def test_what_fused_steps_leave_out_is_done_by_general_ones(params, monkeypatch):
    """A fit is the same where there are no fused steps at all."""
    found = fitted(table(100), **params | {"n_iter": 3})
    monkeypatch.setattr(ContrastiveDivergence, "fused_steps", lambda *args: None)
    general = fitted(table(100), **params | {"n_iter": 3})
    np.testing.assert_array_equal(found.components_, general.components_)
    plain = fitted(table(100), n_iter=3)
    assert not np.array_equal(found.components_, plain.components_)


def test_ctrl_c_leaves_the_weights_of_its_moment(monkeypatch):
    step, seen = FusedPCD.__call__, []

    def interrupted(self, batch):
        if len(seen) == 40:
            raise KeyboardInterrupt
        seen.append(step(self, batch))

    monkeypatch.setattr(FusedPCD, "__call__", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted in epoch 2"):
        model = fitted(table(), net_params={"on_interrupt": "return"})
    assert model.net_.state_.n_batches == 40
    assert model.net_.run_.steps is None
