"""RBMs on bits, categories, real columns and mixtures of them: exact by sums and quadrature."""

import copy
import itertools
import math

import pytest
import torch

from skebm.base import Batch, Binary, Categorical, Clamp, Domain, Mixed, Real
from skebm.base.domains import columns_of, parts_of
from skebm.distributions import (
    CategoricalTree,
    ChowLiuTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
    KernelDensity,
    LatentClasses,
)
from skebm.energies import MixedRBM, annealing_path
from skebm.objectives import Centering, ContrastiveDivergence, Penalty
from skebm.partition import AIS, Exact
from skebm.partition.checks import check_proper
from skebm.samplers import FromData, Gibbs, ParallelTempering, Persistent
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows
from tests.support.objectives import (
    autograd,
    flat,
    gradient,
    later,
    look,
    penalty_formula,
    same,
    weights,
)
from tests.support.oracle import (
    DOUBLE,
    AutogradRBM,
    bits,
    joint_energy,
    make_rbm,
    make_real_rbm,
    mean_is,
    seeded,
    standard_normal,
)
from tests.support.tiers import full, named

H = 3
# Largest |z| of a mean over independent noise, of a hundred numbers or so.
SIEVE = 5


def tree():
    rows = (torch.rand(40, 3, generator=seeded(5)) < 0.4).to(DOUBLE)
    return ChowLiuTree.fit(rows, smoothing=0.1)


def tree_of_levels():
    """A bit, and two categories that depend on it."""
    domain = Mixed((Binary((1,)), Categorical((3, 2))))
    rows = domain.uniform(40, seeded(6), dtype=DOUBLE)
    return CategoricalTree.fit(rows, domain, smoothing=0.1)


def classes(*kinds):
    """Three latent classes of bits, categories and numbers."""
    domain = Mixed(kinds) if len(kinds) > 1 else kinds[0]
    n_real = sum(kind.n_columns for kind in kinds if isinstance(kind, Real))
    return LatentClasses(
        standard_normal(3),
        domain,
        logits=standard_normal(3, domain.n_columns - n_real, seed=2),
        mean=2 * standard_normal(3, n_real, seed=3),
        scale=1.3 * standard_normal(3, n_real, seed=4).div(8).exp(),
    )


COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 1.3]], dtype=DOUBLE)
PARTS = {
    "bits": lambda: [IndependentBernoulli(standard_normal(3))],
    "tree": lambda: [tree()],
    "categories": lambda: [IndependentCategorical(standard_normal(6), (3, 1, 2))],
    "real": lambda: [Gaussian(0.3 * standard_normal(2), torch.tensor([1.2, 0.7], dtype=DOUBLE))],
    "correlated": lambda: [Gaussian(0.3 * standard_normal(2), covariance=COVARIANCE)],
    "mixed": lambda: [
        IndependentBernoulli(standard_normal(1)),
        IndependentCategorical(standard_normal(5, seed=2), (3, 2)),
        Gaussian(0.3 * standard_normal(1), 1.2),
    ],
    "tree of levels": lambda: [tree_of_levels()],
    "mixed, tree of levels": lambda: [tree_of_levels(), Gaussian(0.3 * standard_normal(1), 1.2)],
    "mixed, correlated": lambda: [Gaussian(standard_normal(2), covariance=COVARIANCE), tree()],
    "classes": lambda: [classes(Real((2,)))],
    "mixed classes": lambda: [classes(Binary((1,)), Categorical((3, 2)), Real((1,)))],
}
# Powers of these bases have no closed form, so that they have no temperatures but 1.
UNTEMPERED = ("classes", "mixed classes")
WITH_REAL = [name for name in PARTS if name not in ("bits", "tree", "categories", "tree of levels")]


def base_of(name):
    parts = PARTS[name]()
    return parts[0] if len(parts) == 1 else Columns(parts)


def make(name, n_hidden=H, seed=0, scale=0.7):
    """No bias is zero, no weight is small, no real column has the width of the base."""
    generator = seeded(seed)
    energy = MixedRBM(base_of(name), n_hidden, generator=generator, scale=scale, dtype=DOUBLE)
    with torch.no_grad():
        for p in (energy.visible_bias, energy.hidden_bias, energy.log_precision):
            p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=DOUBLE))
    return energy


# Of the full tier: the first has them as parts of other rows.
SECOND = ("categories", "tree of levels", "mixed, correlated", "classes")


@pytest.fixture(params=named(PARTS.keys() - SECOND, PARTS))
def name(request):
    return request.param


@pytest.fixture
def energy(name):
    return make(name)


# ------------------------------------------------------------------------------
# The oracle: every term written out, sums over states and the trapezoidal rule
# ------------------------------------------------------------------------------


def log_joint(energy, x, h):
    """-E(x, h) of each pair, (n, m)."""
    return -joint_energy(energy, x, h)


def states(energy, known=None, n=181, reach=27.0):
    """Nodes of sums and of the trapezoidal rule, (m, d), and the log of a node's volume.

    With a mask and a row known where it is True, of the rows that agree.
    """
    line, blocks, n_lines, first = torch.linspace(-reach, reach, n, dtype=DOUBLE), [], 0, 0
    for part in itertools.chain(*(parts_of(part.domain) for part in energy.parts)):
        d = part.n_columns
        if not isinstance(part, Real):
            found = torch.cat(list(part.enumerate(dtype=DOUBLE)))
            if known is not None:
                mask, row = (one[first : first + d] for one in known)
                found = found[((found == row) | ~mask).all(1)]
            blocks.append(found)
        for i in range(first, first + d) if isinstance(part, Real) else ():
            fixed = known is not None and bool(known[0][i])
            n_lines += not fixed
            blocks.append((known[1][i][None] if fixed else line)[:, None])
        first += d
    picks = torch.cartesian_prod(*[torch.arange(len(block)) for block in blocks])
    picks = picks[:, None] if picks.dim() == 1 else picks
    x = torch.cat([block[pick] for block, pick in zip(blocks, picks.t(), strict=True)], 1)
    return x, n_lines * math.log(float(line[1] - line[0]))


def log_likelihood(energy, x):
    nodes, log_volume = states(energy)
    log_z = log_joint(energy, nodes, bits(H)).flatten().logsumexp(0) + log_volume
    return log_joint(energy, x, bits(H)).logsumexp(1) - log_z


def draw_pair(energy, n, seed):
    """Independent rows of the model with their hidden layers: h by enumeration, then x given h."""
    with torch.no_grad():
        h = bits(H)[
            torch.multinomial(
                (-energy.hidden_energy(bits(H))).softmax(0), n, True, generator=seeded(seed)
            )
        ]
        return energy.visible(h).sample(seeded(seed + 10_000)), h


def some_rows(energy, n=7, seed=3):
    return energy.base.sample(n, seeded(seed))


def a_clamp(energy, n, seed=4):
    """Half of the columns known, whole one-hot columns at a time."""
    x, masks = some_rows(energy, n, seed), []
    for part in energy.parts:
        groups = columns_of(part.domain)
        coin = torch.rand(n, len(groups), generator=seeded(seed)) < 0.5
        masks.append(coin.repeat_interleave(torch.tensor(groups), 1))
    return Clamp(torch.cat(masks, 1), x)


# ------------------------------------------------------------------------------
# Energies and conditionals
# ------------------------------------------------------------------------------


def test_the_free_energy_sums_the_hidden_units_out(energy):
    x = some_rows(energy)
    for beta in (1.0, 0.4):
        expected = -(beta * log_joint(energy, x, bits(H))).logsumexp(1)
        torch.testing.assert_close(energy.free_energy(x, beta), expected)
    several = energy.free_energy(x, torch.tensor([[1.0], [0.4]], dtype=DOUBLE))
    torch.testing.assert_close(several[1], energy.free_energy(x, 0.4))
    assert type(energy.domain) is not Domain
    assert energy.domain.contains(x).all()


def test_log_z_is_the_sum_over_everything(energy):
    x, log_volume = states(energy)
    expected = float((-energy(x)).detach().logsumexp(0)) + log_volume
    assert Exact().estimate(energy).value == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("beta", [1.0, 0.4, 2.5])
def test_the_hidden_conditional_is_that_of_the_joint(energy, beta):
    x = some_rows(energy)
    expected = (beta * log_joint(energy, x, bits(H))).softmax(1) @ bits(H)
    torch.testing.assert_close(energy.hidden(x, beta).mean, expected)


@pytest.mark.parametrize("given", [False, True], ids=["free", "given columns"])
@pytest.mark.parametrize("beta", [1.0, 0.4, 2.5])
def test_visible_conditionals_and_hidden_energies_by_quadrature(name, energy, beta, given):
    """Means, normalisers and draws of p(x given h), with fields and known columns."""
    if name in UNTEMPERED and beta != 1:
        with pytest.raises(ValueError, match="no closed form"):
            energy.visible(bits(H), beta)
        return
    h, d = bits(H), energy.domain.n_columns
    field, clamp = standard_normal(len(h), d, seed=6), a_clamp(energy, len(h)) if given else None
    tilt = energy.visible(h, beta, field)
    tilt = tilt.given(clamp) if given else tilt
    value = energy.hidden_energy(h, beta, field, clamp)
    n = 4000
    many = energy.visible(h.repeat(n, 1), beta, field.repeat(n, 1))
    many = many.given(Clamp(clamp.mask.repeat(n, 1), clamp.value.repeat(n, 1))) if given else many
    draws = many.sample(seeded()).detach().view(n, len(h), d)
    for i in range(len(h)):
        known = (clamp.mask[i], clamp.value[i]) if given else None
        x, log_volume = states(energy, known)
        log_p = beta * log_joint(energy, x, h[i : i + 1])[:, 0] + x @ field[i]
        assert value[i].item() == pytest.approx(
            -float(log_p.logsumexp(0).detach()) - log_volume, abs=1e-6
        )
        mean = log_p.softmax(0) @ x
        of_tilt = tilt.mean[i]
        if given:  # known columns are left to the caller
            of_tilt = torch.where(known[0], known[1], of_tilt)
            draws[:, i] = torch.where(known[0], known[1], draws[:, i])
        torch.testing.assert_close(of_tilt, mean, rtol=0, atol=1e-6)
        moments = torch.cat([draws[:, i], draws[:, i].square(), draws[:, i] * draws[:, i, :1]], 1)
        truth = torch.cat([x, x.square(), x * x[:, :1]], 1)
        p = log_p.softmax(0).detach()
        spread = (p @ truth.square() - (p @ truth).square()).clamp_min(1e-12).sqrt()
        assert ((moments.mean(0) - p @ truth) / spread * n**0.5).abs().max() < SIEVE


def test_the_hidden_energy_of_known_rows_is_the_joint_one(energy):
    h, x = bits(H), some_rows(energy, 2**H)
    clamp = Clamp(torch.ones_like(x, dtype=torch.bool), x)
    expected = -log_joint(energy, x, h).diagonal()
    torch.testing.assert_close(energy.hidden_energy(h, clamp=clamp), expected)


def test_at_infinite_temperature_real_columns_have_no_distribution():
    with pytest.raises(ValueError, match="power of 0"):
        make("mixed").visible(bits(H), 0.0)


def test_a_level_that_is_known_to_be_impossible_leaves_the_others():
    tilt = IndependentCategorical(standard_normal(3), (3,)).tilted(standard_normal(1, 3))
    mask = torch.tensor([[True, False, False]])
    found = tilt.given(Clamp(mask, torch.zeros(1, 3, dtype=DOUBLE)))
    assert float(found.mean[0, 0]) == 0
    torch.testing.assert_close(found.mean[0, 1:], tilt.logits[0, 1:].softmax(0))


# ------------------------------------------------------------------------------
# The path from the base
# ------------------------------------------------------------------------------


def test_the_path_runs_from_the_base_to_the_model(energy):
    x = some_rows(energy)
    expected = -energy.base.log_prob(x) - H * math.log(2)
    torch.testing.assert_close(energy.annealed(0.0)(x), expected)
    torch.testing.assert_close(energy.annealed(1.0)(x), energy(x).detach())
    twice = energy.annealed(0.5).annealed(0.4)
    torch.testing.assert_close(twice(x), energy.annealed(0.2)(x))
    if not isinstance(energy.base, IndependentBernoulli):
        path = annealing_path(energy, energy.base)
        expected = energy.annealed(0.3)(x) - energy.annealed(0.5)(x)
        torch.testing.assert_close(path.log_ratio(x, 0.3, 0.5), expected)
        assert path.log_z0 == pytest.approx(H * math.log(2))


def test_a_path_from_another_base_is_the_geometric_one():
    energy, x = make("real"), standard_normal(20, 2)
    other = Gaussian(torch.ones(2, dtype=DOUBLE), 2.0)
    expected = 0.3 * energy(x) - 0.7 * other.log_prob(x)
    torch.testing.assert_close(annealing_path(energy, other).at(0.3)(x), expected)


def ais_errors(names, seeds):
    """Errors of annealing in the standard errors that it claims."""
    found = []
    for one, seed in itertools.product(names, seeds):
        energy = make(one, seed=seed, scale=0.5)
        exact = Exact().estimate(energy).value
        run = AIS(n_chains=200, n_betas=100).estimate(energy, generator=seeded(seed))
        found.append((run.value - exact) / run.std_error)
    return torch.tensor(found)


def test_annealing_from_the_base_knows_log_z(name):
    assert float(ais_errors([name], range(1)).abs().max()) < 4


@full
def test_annealing_is_within_its_error_in_95_of_100():
    """Within two standard errors, of Gaussian and mixed models; a few less by chance."""
    z = ais_errors(WITH_REAL, range(15))
    assert len(z) >= 100
    assert float((z.abs() < 2).double().mean()) >= 0.9
    assert float(z.square().mean().sqrt()) < 1.3


# ------------------------------------------------------------------------------
# Chains
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["free", "given columns"])
@pytest.mark.parametrize("sampler", [Gibbs(), Gibbs(n_collapsed=2), ParallelTempering(3)], ids=str)
def test_chains_that_start_exact_stay_exact(name, energy, sampler, known):
    if name in UNTEMPERED and isinstance(sampler, ParallelTempering):
        pytest.skip("the base has no temperatures")
    if known and isinstance(sampler, ParallelTempering):
        pytest.skip("hot replicas are not exact given a column")
    n, clamp = 8_000, None
    x = draw_pair(energy, n, 1)[0]
    if known:
        mask = a_clamp(energy, 1, seed=8).mask
        clamp = Clamp(mask.expand_as(x), x)
    with torch.no_grad():
        state, _ = sampler.run(energy, x, 2, seeded(2), clamp=clamp)
    if known:
        assert torch.equal(state.x[:, mask[0]], x[:, mask[0]])
    other = draw_pair(energy, n, 3)[0]

    def moments(x):
        return torch.cat([x, x.square(), x * x[:, :1], x.tanh()], 1)

    assert mean_is(moments(state.x) - moments(other), 0) < SIEVE


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


def objective_of(energy, policy="persistent", **settings):
    chains = {
        "persistent": Persistent(n_chains=40, initial=energy.base),
        "data": FromData(),
        "many steps": Persistent(3, n_chains=100, initial=energy.base),
    }
    return ContrastiveDivergence(energy, Gibbs(), chains[policy], **settings)


@pytest.mark.parametrize("policy", ["persistent", "data"])
@pytest.mark.parametrize("kind", [None, "of mean 1"])
def test_the_gradient_is_that_of_data_minus_chains(energy, policy, kind):
    objective, x, w = objective_of(energy, policy), some_rows(energy, 6), weights(kind)
    batch = Batch(x, weight=w)
    grads, loss = gradient(objective, batch, objective.start(batch, seeded(1)), 5)
    rows = loss.state.chain.x
    w = torch.ones(6, dtype=DOUBLE) if w is None else w
    of_chain = w if policy == "data" else torch.full((40,), float(w.mean()), dtype=DOUBLE)

    def contrast(energy):
        level = [-log_joint(energy, at, bits(H)).logsumexp(1) for at in (x, rows)]
        return (w * level[0]).mean() - (of_chain * level[1]).mean()

    torch.testing.assert_close(flat(grads), flat(autograd(contrast, energy)))


def test_exact_chains_give_the_gradient_of_the_likelihood(energy):
    objective, x = objective_of(energy), some_rows(energy)
    found = []
    for seed in range(60):
        rows = draw_pair(energy, 40, seed)[0]
        state = objective.start(Batch(x), seeded(seed))
        state = state._replace(chain=objective.sampler.init(energy, rows))
        found.append(flat(gradient(objective, Batch(x), state, seed)[0]))
    expected = flat(autograd(lambda e: -log_likelihood(e, x).mean(), energy))
    assert mean_is(torch.stack(found), expected) < SIEVE


@pytest.mark.parametrize("policy", ["persistent", "data"])
def test_the_truth_is_a_fixed_point(policy):
    """At the parameters that made the data the expected gradient is zero, and only there."""
    energy = make("real")
    objective, other = objective_of(energy, policy), make("real", seed=1)
    found = []
    for seed in range(200):
        batch = Batch(draw_pair(energy, 40, seed)[0])
        state = objective.start(batch, seeded(seed))
        if policy == "persistent":
            chain = objective.sampler.init(energy, draw_pair(energy, 40, 500 + seed)[0])
            state = state._replace(chain=chain)
        found.append(flat(gradient(objective, batch, state, 1000 + seed)[0]))
    assert mean_is(torch.stack(found), 0) < SIEVE
    rows = draw_pair(other, 8000, 0)[0]
    grads, _ = gradient(objective, Batch(rows), later(objective, rows), 0)
    assert flat(grads).abs().max() > 0.2


@pytest.mark.parametrize("policy", ["persistent", "data"])
def test_the_monitor_measures_rows_by_the_base(policy):
    """Nats above the base, by a bridge; and the error of a reconstruction, in units of x."""
    energy, x = make("real"), standard_normal(30, 2)
    objective = objective_of(energy, policy)
    state = later(objective, x)
    if policy == "persistent":
        chain = objective.sampler.init(energy, draw_pair(energy, 4000, 1)[0])
        state = state._replace(chain=chain)
    logs = look(objective, Batch(x), state)
    truth = (log_likelihood(energy, x) - energy.base.log_prob(x)).mean().detach()
    assert logs["gain_over_base"] == pytest.approx(float(truth), abs=5 * logs["gain_error"])
    nodes, _ = states(energy)
    with torch.no_grad():
        mean = log_joint(energy, nodes, bits(H)).softmax(0).t() @ nodes  # of x given h
        h = log_joint(energy, x, bits(H)).softmax(1) @ bits(H)
        linear = torch.linalg.lstsq(
            torch.cat([bits(H), torch.ones(2**H, 1, dtype=DOUBLE)], 1), mean
        )
        error = (x - h @ linear.solution[:H] - linear.solution[H]).square().mean()
    assert logs["reconstruction_error"] == pytest.approx(float(error))
    held_out = objective.validation_loss(Batch(x), state, seeded())
    assert float(held_out) == pytest.approx(-logs["gain_over_base"], abs=logs["gain_error"])


def test_weights_in_units_of_the_rows_are_no_divergence():
    """A bound on log-odds says nothing where columns are in units of their own."""
    energy = make("real")
    objective, x = objective_of(energy), draw_pair(energy, 60, 3)[0]
    logs = look(objective, Batch(x), later(objective, x))
    assert objective.divergence_reason(logs | {"largest_weight": 1e4}) is None
    assert "energy gap" in objective.divergence_reason(logs | {"energy_gap": -1e3})


def with_offsets(energy, centering, x):
    """Gradients at given chains and offsets, by name."""
    objective = objective_of(energy, centering=centering)
    state = objective.start(Batch(x), seeded(1))
    grads, loss = gradient(objective, Batch(x), state, 5)
    return grads, loss.state


@pytest.mark.parametrize("precondition", [0.0, 0.5, 1.0])
def test_bits_have_the_gradient_of_a_binary_rbm(precondition):
    """Centred and preconditioned, on a base of fair coins."""
    plain = make_rbm(4, H)
    energy = MixedRBM(
        IndependentBernoulli(torch.zeros(4, dtype=DOUBLE)), H, generator=seeded(), dtype=DOUBLE
    )
    energy.load_state_dict(plain.state_dict() | {"log_precision": torch.zeros(0, dtype=DOUBLE)})
    plain.base = plain.structure = None
    x, centering = bits(4)[3:9], Centering(0.05, precondition)
    found = []
    for one in (plain, energy):
        chains = Persistent(n_chains=40, initial=energy.base)
        objective = ContrastiveDivergence(one, Gibbs(), chains, centering=centering)
        grads, _ = gradient(objective, Batch(x), objective.start(Batch(x), seeded(1)), 5)
        found.append(flat(grads))
    torch.testing.assert_close(found[1][: len(found[0])], found[0])


def test_centring_is_that_of_centred_weights(energy):
    """Its steps of the biases are those by which (h - l)'W(t - m) has the steps of the weights."""
    x = some_rows(energy, 6)
    plain, _ = with_offsets(energy, None, x)
    grads, state = with_offsets(energy, Centering(), x)
    mu, lam = energy.statistics(state.offsets.visible), state.offsets.hidden
    weight, visible, hidden = plain["weight"], plain["visible_bias"], plain["hidden_bias"]
    expected = weight - torch.outer(hidden, mu) - torch.outer(lam, visible)
    torch.testing.assert_close(grads["weight"], expected)
    torch.testing.assert_close(grads["visible_bias"], visible - expected.t() @ lam)
    torch.testing.assert_close(grads["hidden_bias"], hidden - expected @ mu)
    torch.testing.assert_close(grads["log_precision"], plain["log_precision"])


def test_steps_of_means_do_not_grow_with_the_precision():
    """Preconditioned, gradients of real columns are those of their means, times a fourth power."""
    x, found = standard_normal(6, 2), []
    for log_precision in (0.0, 2.0):
        energy = make("real")
        with torch.no_grad():
            energy.log_precision.fill_(log_precision)
            energy.weight.zero_()
        objective = objective_of(energy, "data", centering=Centering(precondition=0.5))
        state = objective.start(Batch(x), seeded(1))
        state = state._replace(offsets=state.offsets._replace(visible=torch.zeros(2, dtype=DOUBLE)))
        chain = standard_normal(6, 2, seed=9)
        own = energy.contrast_gradient(objective.centering, None)
        sign = torch.cat([torch.full((6,), -1 / 6), torch.full((6,), 1 / 6)]).to(DOUBLE)
        share = torch.full((6,), 1 / 6, dtype=DOUBLE)
        own.write(x, chain, sign, share, state.offsets, None)
        found.append(energy.visible_bias.grad.clone())
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("kind", ["l1", "sparsity"])
def test_penalties_are_added(energy, kind):
    penalty = {"l1": Penalty(0.3, 0.4), "sparsity": Penalty(0.0, 0.0, 0.2, 0.7)}[kind]
    x, w = some_rows(energy, 6), weights("of mean 1")
    batch, found = Batch(x, weight=w), []
    for term in (None, penalty):
        objective = objective_of(energy, penalty=term)
        found.append(gradient(objective, batch, objective.start(batch, seeded(1)), 5)[0])
    for one in ("weight", "visible_bias", "hidden_bias"):
        added = found[1][one] - found[0][one]
        expected = autograd(
            lambda e: penalty.value(e.weight, log_joint(e, x, bits(H)).softmax(1) @ bits(H), w),
            energy,
        )
        torch.testing.assert_close(added, expected[one].detach())


@full
def test_it_trains_by_the_engine_to_near_the_truth():
    """A component decides on two levels, a bit and a real column of known width."""
    n, generator = 2500, seeded()
    component = (torch.rand(n, 1, generator=generator, dtype=DOUBLE) < 0.4).to(DOUBLE)
    flips = (torch.rand(n, 2, generator=generator, dtype=DOUBLE) < 0.1).to(DOUBLE)
    bit, level = (component - flips).abs().split(1, 1)
    real = 1.5 * component - 0.6 + 0.6 * torch.randn(n, 1, generator=generator, dtype=DOUBLE)
    x = torch.cat([bit, level, 1 - level, real], 1)
    base = Columns(
        [
            IndependentBernoulli.fit(x[:, :1]),
            IndependentCategorical.fit(x[:, 1:3], (2,)),
            Gaussian.fit(x[:, 3:], diagonal=True),
        ]
    )
    energy = MixedRBM(base, 4, generator=seeded(1), dtype=DOUBLE)
    net = EnergyNet(
        objective_of(energy, "many steps", centering=Centering(precondition=0.5)),
        generator=seeded(2),
        max_epochs=60,
        batch_size=100,
        optimizer=torch.optim.SGD,
        lr=0.1,
        verbose=0,
    ).initialize()
    net.fit(Rows(x[:1500], dtype=DOUBLE, device=torch.device("cpu")))
    energy, test = net.module_.energy, x[1500:]
    with torch.no_grad():
        found = float(-energy(test).mean()) - Exact().estimate(energy).value
    truth = []
    for c, share in ((0.0, 0.6), (1.0, 0.4)):
        p = torch.where((test[:, :2] - c).abs() < 0.5, 0.9, 0.1).log().sum(1)
        p = p + torch.distributions.Normal(1.5 * c - 0.6, 0.6).log_prob(test[:, 3])
        truth.append(p + math.log(share))
    best = float(torch.stack(truth).logsumexp(0).mean())
    assert found > best - 0.04
    assert found > float(base.log_prob(test).mean()) + 0.2
    assert net.n_restarts_ == 0


def test_training_goes_on_from_a_stored_state(energy):
    objective, x = objective_of(energy, centering=Centering()), some_rows(energy, 6)
    state = objective.start(Batch(x), seeded(1))
    twin = copy.deepcopy(objective)
    again = twin.unpack(objective.pack(state))
    assert same(state, again)
    first, _ = gradient(objective, Batch(x), state, 5)
    second, _ = gradient(twin, Batch(x), again, 5)
    assert torch.equal(flat(first), flat(second))


def test_weights_are_stored_with_the_precisions(name):
    energy, other = make(name), make(name, seed=1)
    other.load_state_dict(energy.state_dict())
    x = some_rows(energy)
    assert torch.equal(other(x), energy(x))


# ------------------------------------------------------------------------------
# An energy without a gradient by hand: the objective takes that of autograd
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["persistent", "data"])
@pytest.mark.parametrize("kind", ["none", "l1", "sparsity"])
def test_autograd_gives_the_gradient_by_hand(policy, kind):
    penalty = {
        "none": None,
        "l1": Penalty(0.3, 0.4),
        "sparsity": Penalty(0.0, 0.0, 0.2, 0.7),
    }[kind]
    x, w, found = standard_normal(6, 2), weights("of mean 1"), []
    for cls in (MixedRBM, AutogradRBM):
        energy = make_real_rbm(2, H, cls=cls)
        objective = objective_of(energy, policy, penalty=penalty)
        batch = Batch(x, weight=w)
        found.append(gradient(objective, batch, objective.start(batch, seeded(1)), 5)[0])
    for name in found[0]:
        if name != "log_precision" or kind != "sparsity":  # by hand it does not move precisions
            torch.testing.assert_close(found[1][name], found[0][name])
    if penalty is not None:
        plain = objective_of(energy, policy)
        without, _ = gradient(plain, batch, plain.start(batch, seeded(1)), 5)
        expected = flat(autograd(lambda e: penalty_formula(penalty, e, x, w), energy))
        torch.testing.assert_close(flat(found[1]) - flat(without), expected.detach())


def test_autograd_is_not_centred():
    with pytest.raises(ValueError, match="AutogradRBM.*centering=None"):
        objective_of(make_real_rbm(2, H, cls=AutogradRBM), centering=Centering())


@pytest.mark.parametrize("policy", ["persistent", "data"])
def test_training_by_autograd_goes_on_from_a_stored_state(policy):
    objective, x = objective_of(make_real_rbm(2, H, cls=AutogradRBM), policy), standard_normal(6, 2)
    state, twin = later(objective, x), copy.deepcopy(objective)
    packed = objective.pack(state)
    assert all(part is None or isinstance(part, torch.Tensor) for part in packed.values())
    again = twin.unpack(packed)
    assert same(state, again)
    first, one = gradient(objective, Batch(x), state, 5)
    second, two = gradient(twin, Batch(x), again, 5)
    assert torch.equal(flat(first), flat(second))
    assert same(one.state, two.state)


# ------------------------------------------------------------------------------
# Mistakes
# ------------------------------------------------------------------------------


def test_a_base_without_exact_tilts_is_refused():
    kernels = KernelDensity.fit(standard_normal(20, 2))
    for base in (kernels, Columns([kernels, IndependentBernoulli(standard_normal(1))])):
        with pytest.raises(ValueError, match="no exact conditionals under unary fields"):
            MixedRBM(base, 2, generator=seeded())


def test_blocks_must_be_flat_and_there():
    with pytest.raises(ValueError, match="at least one"):
        Columns([])
    with pytest.raises(ValueError, match="not flat"):
        Columns([Gaussian(torch.zeros(2, 2), 1.0)])


def test_steep_weights_of_a_real_column_are_proper():
    """exp(-E) is a finite mixture, also where E falls for a long way along a ray."""
    energy = MixedRBM(Gaussian(torch.zeros(2), 1.0), 3, generator=seeded(0))
    with torch.no_grad():
        energy.weight.fill_(1e9)
        energy.log_precision.fill_(-8.0)
    check_proper(energy)


def test_a_base_that_covers_tails_becomes_no_narrower():
    wide, usual = Gaussian(torch.zeros(2), 1.0), Gaussian(torch.zeros(1), 1.0)
    wide.covers_tails = True
    energy = MixedRBM(Columns([wide, usual]), 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        energy.log_precision.copy_(torch.tensor([1.0, -1.0, 1.0]))
    energy.hold_within_limits()
    assert energy.log_precision.tolist() == [0.0, -1.0, 1.0]
