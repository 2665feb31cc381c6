"""Energy discrepancy against closed forms of normal rows and sums over all states of discrete ones.

A loss of M negatives without stabiliser is above its limit by about the variance of the weights
exp(-E(x')) over 2 M of their squared mean; M is such that this is far below the standard errors.
"""

import itertools
import math

import pytest
import torch
from torch import nn

from skebm.base import Batch, Binary, Categorical, Energy, Mixed, Real
from skebm.objectives import EnergyDiscrepancy, ExactScoreMatching
from tests.support.networks import neural, walled
from tests.support.objectives import closed_form, flat, gradient, log_weight, weights
from tests.support.oracle import DOUBLE, bits, make_rbm, mean_is, seeded, standard_normal
from tests.support.tiers import full, leading, only_full

# Largest |z| of a mean over independent noise: five standard errors.
SIEVE = 5


def replicates(objective, batch, repeats=60):
    """Losses with gradients, in one vector for each of some independent draws of the noise."""
    found = []
    for seed in range(repeats):
        rows = batch(seed) if callable(batch) else batch
        grads, loss = gradient(objective, rows, None, seed)
        found.append(torch.cat([loss.value.detach()[None], flat(grads)]))
    return torch.stack(found)


# ------------------------------------------------------------------------------
# Normal rows
# ------------------------------------------------------------------------------


class Bowl(Energy):
    """(x - m)' L (x - m) / 2 with a free mean m and precision L, on rows of any shape."""

    def __init__(self, mean, precision, shape=None):
        super().__init__()
        self.domain = Real(shape or (len(mean),))
        self.mean, self.matrix = nn.Parameter(mean.clone()), nn.Parameter(precision.clone())

    def forward(self, x, cond=None):
        off = x.flatten(1) - self.mean
        return (off @ self.matrix * off).sum(1) / 2


def discrepancy(x, scale):
    """Mean of E(x) less the contrastive potential of y, both Gaussian integrals.

    With T the variances of the noise, -log E exp(-E(x')) given y is
    log det(1 + T L) / 2 + (y - m)' (1 / L + T)^-1 (y - m) / 2.
    """

    def value(energy):
        L = (energy.matrix + energy.matrix.t()) / 2
        T = torch.as_tensor(scale, dtype=DOUBLE).square().expand(len(L)).diag()
        off = x - energy.mean
        S = off.t() @ off / len(x)
        contrast = torch.linalg.inv(torch.linalg.inv(L) + T)
        log_det = torch.logdet(torch.eye(len(L), dtype=DOUBLE) + T @ L)
        return ((L @ S).trace() - (contrast @ (S + T)).trace() - log_det) / 2

    return value


def bowl(d, shape=None):
    root = standard_normal(d, d, seed=2) / d**0.5
    matrix = root @ root.t() + 0.5 * torch.eye(d, dtype=DOUBLE)
    return Bowl(0.5 * standard_normal(d, seed=4), matrix, shape)


def test_the_potential_is_that_of_quadrature():
    """The closed form of the tests themselves, for one column."""
    energy, x, s = bowl(1), 0.7 + standard_normal(3, 1), 0.6
    node = torch.linspace(-9, 9, 2001, dtype=DOUBLE)
    mass = (-node.square() / 2).exp()
    mass = mass / mass.sum()
    with torch.no_grad():
        total = 0.0
        for row in x:
            y = row + s * node
            there = energy((y[:, None] + s * node).reshape(-1, 1)).view(2001, 2001)
            potential = -((-there).exp() @ mass).log()
            total = total + energy(row[None])[0] - mass @ potential
    torch.testing.assert_close(total / 3, discrepancy(x, s)(energy).detach())


@full
@pytest.mark.parametrize(
    ("d", "scale"),
    [
        (3, [0.2, 1.0, 0.6]),
        only_full(1, 0.3),
        only_full(1, 1.5),
        only_full(3, 0.7),
    ],
    ids=str,
)
def test_many_negatives_give_the_closed_form(d, scale):
    energy, x = bowl(d), standard_normal(10, d, seed=5) + standard_normal(d, seed=7)
    objective = EnergyDiscrepancy(
        energy, torch.tensor(scale, dtype=DOUBLE), n_negatives=5000, stabiliser=0
    )
    truth = closed_form(discrepancy(x, torch.tensor(scale, dtype=DOUBLE)), energy)
    samples = replicates(objective, Batch(x.repeat(3, 1)))
    assert mean_is(samples, truth) < SIEVE
    assert mean_is(samples, 0.8 * truth) > SIEVE
    assert mean_is(samples, closed_form(discrepancy(x, 1.3 * objective.scale), energy)) > SIEVE


def test_small_noise_is_score_matching():
    """Over the square of the scale, up to its square: the limit that the docstring names."""
    energy, x, scale = bowl(3), standard_normal(10, 3, seed=5), 0.01
    found = closed_form(discrepancy(x, scale), energy) / scale**2
    grads, loss = gradient(ExactScoreMatching(energy), Batch(x), None)
    truth = torch.cat([loss.value.detach()[None], flat(grads)])
    torch.testing.assert_close(found, truth, rtol=2e-3, atol=2e-3)


def test_pairs_do_not_drown_in_their_noise():
    """Without a partner the loss of a row varies as the scale, of which the mean is the square."""
    energy, x = bowl(3), standard_normal(1, 3, seed=5).expand(2000, 3)

    def alone(scale):
        noise = standard_normal(2000, 3) + standard_normal(2000, 3, seed=2)
        return energy(x) - energy(x + scale * noise)

    paired, unpaired = {}, {}
    for scale in (0.1, 0.001):
        objective = EnergyDiscrepancy(energy, scale, n_negatives=1, stabiliser=0)
        paired[scale] = (objective.rowwise(x, seeded()) / scale**2).std().item()
        unpaired[scale] = (alone(scale) / scale**2).std().item()
    assert paired[0.001] == pytest.approx(paired[0.1], rel=0.2)
    assert unpaired[0.001] > 50 * unpaired[0.1]


@full
@pytest.mark.parametrize("n_negatives", leading(1, [2, 1, 8]))
def test_one_row_among_others_is_at_rest_at_the_truth(n_negatives):
    """With w = 1 for any number of negatives, whatever the noise; not next to the truth."""
    d, scale = 2, torch.tensor([0.5, 1.5], dtype=DOUBLE)
    energy = bowl(d)
    root = torch.linalg.cholesky(torch.linalg.inv(energy.matrix.detach()))
    mean = energy.mean.detach().clone()

    def drawn(seed):
        return Batch(mean + standard_normal(4000, d, seed=1000 + seed) @ root.t())

    objective = EnergyDiscrepancy(energy, scale, n_negatives=n_negatives)
    assert mean_is(replicates(objective, drawn)[:, 1:], 0) < SIEVE
    with torch.no_grad():
        energy.mean += 0.2
    assert mean_is(replicates(objective, drawn)[:, 1:], 0) > SIEVE
    with torch.no_grad():
        energy.mean.copy_(mean)
        energy.matrix *= 1.2
    assert mean_is(replicates(objective, drawn)[:, 1:], 0) > SIEVE


@full
def test_without_stabiliser_the_truth_is_at_rest_for_many_negatives_alone():
    energy, scale = bowl(1), 1.0
    root = energy.matrix.detach().rsqrt()
    mean = energy.mean.detach().clone()

    def drawn(seed):
        return Batch(mean + root * standard_normal(2000, 1, seed=1000 + seed))

    off = {}
    for m in (1, 8, 128):
        samples = replicates(EnergyDiscrepancy(energy, scale, n_negatives=m, stabiliser=0), drawn)
        off[m] = mean_is(samples[:, 1:], 0), samples[:, 1].mean().abs()
    assert off[128][0] < SIEVE < off[8][0] < off[1][0]
    # As one over their number, of what is left at 8; the slope along the precision.
    assert off[8][1] < off[1][1] / 3
    assert off[128][1] < off[8][1] / 5


def test_rows_may_have_any_shape():
    x, scale = standard_normal(5, 6), torch.linspace(0.3, 0.8, 6, dtype=DOUBLE)
    images = EnergyDiscrepancy(bowl(6, (1, 2, 3)), scale.view(1, 2, 3), n_negatives=4)
    found = images(Batch(x.view(5, 1, 2, 3)), None, seeded()).value
    flat_rows = EnergyDiscrepancy(bowl(6), scale, n_negatives=4)
    torch.testing.assert_close(found, flat_rows(Batch(x), None, seeded()).value)


def test_large_energies_do_not_overflow():
    for shift in (1e6, -1e6):
        energy = bowl(2)
        far = EnergyDiscrepancy(energy, 1.0)
        x = standard_normal(5, 2) + shift
        grads, loss = gradient(far, Batch(x), None)
        assert loss.value.isfinite()
        assert flat(grads).isfinite().all()


# ------------------------------------------------------------------------------
# Discrete rows
# ------------------------------------------------------------------------------


class Table(Energy):
    """Any energy at all: one free number for each state."""

    def __init__(self, domain, seed=3):
        super().__init__()
        self.domain = domain
        self.states = domain.states(0, round(domain.n_states), dtype=DOUBLE, device="cpu")
        self.value = nn.Parameter(standard_normal(len(self.states), seed=seed))

    def forward(self, x, cond=None):
        same = (x.flatten(1)[:, None] == self.states.flatten(1)).all(2)
        assert same.any(1).all()  # every row is a state
        return self.value[same.long().argmax(1)]


DOMAINS = {"bits": Binary((3,)), "levels": Categorical((3, 1, 4)), "bit image": Binary((2, 2))}
EPS = {"bits": 0.2, "levels": 0.3, "bit image": 0.5}


def kernel(domain, eps):
    """Probability of each noisy state given each state, column by column."""
    states = domain.states(0, round(domain.n_states), dtype=DOUBLE, device="cpu").flatten(1)
    groups = domain.groups if isinstance(domain, Categorical) else (1,) * states.shape[1]
    eps = torch.as_tensor(eps, dtype=DOUBLE).expand(len(groups))
    K = torch.ones(len(states), len(states), dtype=DOUBLE)
    for part, k, e in zip(states.split(groups, 1), groups, eps, strict=True):
        same = (part[:, None] == part).all(2)
        if isinstance(domain, Binary):
            k = 2
        if k > 1:
            K = K * torch.where(same, 1 - e, e / (k - 1))
    torch.testing.assert_close(K.sum(1), torch.ones(len(K), dtype=DOUBLE))
    return K


def exact_discrepancy(K, p):
    """Sum over x and y of p k (E(x) + log sum over x' of k exp(-E(x')))."""

    def value(energy):
        E = energy(energy.states)
        potential = -(K.log() - E).logsumexp(1)
        return p @ E - p @ K @ potential

    return value


def ranking(K, p, n_negatives, w):
    """The expected loss of few negatives, summed over x, y and all of them."""

    def value(energy):
        E = energy(energy.states)
        total = 0.0
        for others in itertools.product(range(len(E)), repeat=n_negatives):
            chosen = list(others)
            inside = (w + (E[:, None] - E[chosen]).exp().sum(1)) / n_negatives
            total = total + (p * inside.log()) @ K @ K[:, chosen].prod(1)
        return total

    return value


def every_state(energy, p, times=40):
    """All states under weights that make them the rows of p."""
    return Batch(
        energy.states.repeat(times, *[1] * (energy.states.ndim - 1)),
        weight=(p * len(p)).repeat(times),
    )


def some_law(energy, seed=8):
    """Probabilities that are not those of the energy."""
    return standard_normal(len(energy.states), seed=seed).softmax(0)


@full
@pytest.mark.parametrize("name", ["levels", "bits", "bit image"])
def test_many_negatives_give_the_sum_over_all_states(name):
    energy = Table(DOMAINS[name])
    p, K = some_law(energy), kernel(DOMAINS[name], EPS[name])
    truth = closed_form(exact_discrepancy(K, p), energy)
    objective = EnergyDiscrepancy(energy, EPS[name], n_negatives=1000, stabiliser=0)
    samples = replicates(objective, every_state(energy, p, 10), 40)
    assert mean_is(samples, truth) < SIEVE
    assert mean_is(samples, 0.8 * truth) > SIEVE


@pytest.mark.parametrize("w", leading(1, [0.5, 0.0, 1.0]))
@pytest.mark.parametrize("n_negatives", [1, 2])
def test_few_negatives_give_the_sum_over_them_too(n_negatives, w):
    energy, eps = Table(Binary((3,))), torch.tensor([0.1, 0.3, 0.5], dtype=DOUBLE)
    p, K = some_law(energy), kernel(energy.domain, eps)
    truth = closed_form(ranking(K, p, n_negatives, w), energy)
    objective = EnergyDiscrepancy(energy, eps, n_negatives=n_negatives, stabiliser=w)
    samples = replicates(objective, every_state(energy, p))
    assert mean_is(samples, truth) < SIEVE
    assert mean_is(samples, 0.8 * truth) > SIEVE


@full
def test_a_machine_with_hidden_units_is_summed_over_too():
    energy = make_rbm(4, 3)
    energy.states = bits(4)
    p, K = some_law(energy), kernel(Binary((4,)), 0.25)
    K = rows_in_the_order_of_bits(K)

    def value(machine):
        E = -log_weight(machine, energy.states)
        return p @ E + p @ K @ (K.log() - E).logsumexp(1)

    objective = EnergyDiscrepancy(energy, 0.25, n_negatives=1000, stabiliser=0)
    samples = replicates(objective, every_state(energy, p, 10), 40)
    assert mean_is(samples, closed_form(value, energy)) < SIEVE


def rows_in_the_order_of_bits(K):
    """A kernel of the states of a domain, whose first bit turns fastest, for those of `bits`."""
    d = round(math.log2(len(K)))
    order = (bits(d) @ (2.0 ** torch.arange(d, dtype=DOUBLE))).long()
    return K[order][:, order]


@pytest.mark.parametrize("name", leading(1, ["bits", "levels"]))
def test_discrete_rows_are_at_rest_at_the_truth(name):
    """Exactly for many negatives; with w = 1 for few, by the sum over all; w = 0 is not."""
    energy = Table(DOMAINS[name])
    p, K = (-energy.value.detach()).softmax(0), kernel(DOMAINS[name], EPS[name])
    zero = torch.zeros(len(p), dtype=DOUBLE)
    torch.testing.assert_close(closed_form(exact_discrepancy(K, p), energy)[1:], zero)
    torch.testing.assert_close(closed_form(ranking(K, p, 1, 1.0), energy)[1:], zero)
    batch = every_state(energy, p)
    for w, n_negatives in ((1, 1), (1, 5), (0, 1000)):
        objective = EnergyDiscrepancy(energy, EPS[name], n_negatives=n_negatives, stabiliser=w)
        few = every_state(energy, p, 4) if n_negatives > 5 else batch
        assert mean_is(replicates(objective, few)[:, 1:], 0) < SIEVE
    objective = EnergyDiscrepancy(energy, EPS[name], n_negatives=2, stabiliser=0)
    assert mean_is(replicates(objective, batch)[:, 1:], 0) > SIEVE


@full
def test_the_bias_without_stabiliser_falls_with_the_negatives():
    """The slope at the truth, summed over all negatives: about as one over their number."""
    energy = Table(Binary((2,)))
    p, K = (-energy.value.detach()).softmax(0), kernel(energy.domain, 0.3)
    slope = [closed_form(ranking(K, p, m, 0.0), energy)[1:].norm() for m in (1, 2, 4, 6)]
    for m, ahead in zip((1, 2, 4), slope[1:], strict=True):
        assert ahead < slope[0] / m**0.5
    assert slope[3] < slope[0] / 4


def test_noise_forgets_nothing_at_a_small_rate_and_all_at_a_half():
    """A half makes bits fair coins: maximum likelihood, up to a constant."""
    energy = Table(Binary((3,)))
    p, K = some_law(energy), kernel(energy.domain, 0.5)

    def nll(e):
        return p @ e.value + (-e.value).logsumexp(0) - 3 * math.log(2)

    torch.testing.assert_close(
        closed_form(exact_discrepancy(K, p), energy), closed_form(nll, energy)
    )
    still = EnergyDiscrepancy(energy, 1e-12, n_negatives=3)
    expected = torch.full((8,), math.log(4 / 3), dtype=DOUBLE)
    torch.testing.assert_close(still.rowwise(energy.states, seeded()).detach(), expected)


# ------------------------------------------------------------------------------
# Rows and weights
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "of mean 1", "heavy"])
def test_a_batch_is_the_mean_over_its_rows(kind):
    """Short or not; weights multiply and are not normalised away."""
    objective = EnergyDiscrepancy(neural(), 0.5, n_negatives=4)
    x, w = standard_normal(6, 3), weights(kind)
    value = objective.rowwise(x, seeded(3))
    assert value.shape == (6,)
    expected = value.mean() if w is None else w @ value / 6
    torch.testing.assert_close(objective(Batch(x, weight=w), None, seeded(3)).value, expected)
    shown = objective.monitor(Batch(x, weight=w), None, seeded(3))["loss"]
    expected = value.mean() if w is None else w @ value / w.sum()
    torch.testing.assert_close(shown, expected.detach())


@full
def test_a_short_batch_counts_for_itself():
    energy = bowl(2)
    x = standard_normal(2, 2)
    objective = EnergyDiscrepancy(energy, 0.5, n_negatives=4)
    short, long = (replicates(objective, Batch(x.repeat(k, 1)), 200) for k in (1, 8))
    error = (short.var(0) / 200 + long.var(0) / 200).sqrt()
    assert ((short.mean(0) - long.mean(0)).abs() / error).max() < SIEVE


def test_a_row_without_weight_has_no_say():
    objective = EnergyDiscrepancy(neural(), 0.5, n_negatives=4)
    x, w = standard_normal(6, 3), torch.tensor([1.0, 1, 0, 1, 1, 0], dtype=DOUBLE)
    grads, _ = gradient(objective, Batch(x, weight=w), None)
    moved = torch.where(w[:, None] > 0, x, x + 5)
    again, _ = gradient(objective, Batch(moved, weight=w), None)
    torch.testing.assert_close(flat(again), flat(grads))


def test_the_energy_is_evaluated_once():
    class Counting(Table):
        calls = ()

        def forward(self, x, cond=None):
            self.calls = (*self.calls, len(x))
            return super().forward(x)

    energy = Counting(Binary((3,)))
    EnergyDiscrepancy(energy, 0.2, n_negatives=5)(Batch(energy.states), None, seeded())
    assert energy.calls == (8 * 6,)


def test_copies_lie_on_either_side_of_a_row():
    class Recorder(Bowl):
        def forward(self, x, cond=None):
            self.seen = x
            return super().forward(x)

    energy, x = Recorder(standard_normal(2), torch.eye(2, dtype=DOUBLE)), standard_normal(7, 2)
    objective = EnergyDiscrepancy(energy, torch.tensor([0.5, 2.0], dtype=DOUBLE), n_negatives=300)
    objective.rowwise(x, seeded())
    assert torch.equal(energy.seen[:7], x)
    here, there = (energy.seen[7:].view(2, 7, 300, 2) - x[:, None]).unbind()
    torch.testing.assert_close(here, -there)
    # The copy's noise is shared by its negatives, and each has as much of its own.
    own = (here - here.mean(1, keepdim=True)).square().mean((0, 1)).sqrt()
    torch.testing.assert_close(own, objective.scale, rtol=0.1, atol=0)


def test_work_grows_with_the_negatives():
    few, many = (EnergyDiscrepancy(neural(), 0.5, n_negatives=m) for m in (1, 9))
    assert many.work(10) == pytest.approx(19 / 3 * few.work(10))
    assert many.work(20) == pytest.approx(2 * many.work(10))


def test_a_runaway_loss_is_a_divergence():
    objective = EnergyDiscrepancy(neural(), 0.5)
    before = {"loss": -1.0}
    assert objective.divergence_reason({"loss": 5.0}, before) is None
    assert "rose" in objective.divergence_reason({"loss": 100.0}, before)
    assert "not finite" in objective.divergence_reason({"loss": math.nan}, before)


# ------------------------------------------------------------------------------
# Bad arguments
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_negatives", [0, -1, 1.5, True])
def test_negatives_are_counted(n_negatives):
    with pytest.raises(ValueError, match="n_negatives"):
        EnergyDiscrepancy(neural(), 0.5, n_negatives=n_negatives)


@pytest.mark.parametrize("stabiliser", [-0.1, math.nan, math.inf])
def test_the_stabiliser_is_not_negative(stabiliser):
    with pytest.raises(ValueError, match="stabiliser"):
        EnergyDiscrepancy(neural(), 0.5, stabiliser=stabiliser)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, [0.3, 0.0, 0.3]], ids=str)
def test_noise_has_a_scale(scale):
    with pytest.raises(ValueError, match="scale must be positive"):
        EnergyDiscrepancy(neural(), torch.tensor(scale))


@pytest.mark.parametrize("scale", [0.0, -0.1, 0.51, math.nan])
@pytest.mark.parametrize("name", ["bits", "levels"])
def test_a_rate_is_at_most_a_half(name, scale):
    with pytest.raises(ValueError, match=r"\(0, 1/2\]"):
        EnergyDiscrepancy(Table(DOMAINS[name]), scale)


@pytest.mark.parametrize("energy", [neural, lambda: Table(DOMAINS["levels"])])
def test_scales_are_one_for_each_column(energy):
    with pytest.raises(ValueError, match="one for each column"):
        EnergyDiscrepancy(energy(), torch.full((2,), 0.3))


@pytest.mark.parametrize(("lower", "upper"), [(0.0, None), (None, 1.0), (0.0, 1.0)])
def test_noise_does_not_stay_inside_walls(lower, upper):
    with pytest.raises(ValueError, match=r"out of the bounds.*exact or sliced score matching"):
        EnergyDiscrepancy(walled(3, lower, upper), 0.5)


def test_mixed_rows_are_refused():
    energy = neural()
    energy.domain = Mixed((Real((2,)), Binary((1,))))
    with pytest.raises(TypeError, match="real, binary or one-hot"):
        EnergyDiscrepancy(energy, 0.5)
