"""Every energy: independence of rows, gradients and conditionals that are exact."""

import copy

import pytest
import torch

from skebm.base import (
    Binary,
    BipartiteEnergy,
    Clamp,
    Energy,
    EnergyMixture,
    EnergySum,
    Mixed,
    PairwiseSum,
    Real,
)
from skebm.distributions import Columns, Gaussian, IndependentBernoulli
from skebm.energies import (
    BernoulliDBM,
    BernoulliRBM,
    BoltzmannMachine,
    ClassRBM,
    ConditionalEnergy,
    GatedEnergy,
    GivenEnergy,
    MixedDBM,
    MixedRBM,
    NeuralEnergy,
    PairwiseCorrection,
    SpikeSlabEnergy,
    SubspaceEnergy,
    TemperedCorrection,
    TemporalEnergy,
    Tilted,
    TrajectoryEnergy,
    annealing_path,
    ising_grid,
)
from skebm.energies.path import Couplings, Geometric, GeometricPath, TiltedPairwise
from skebm.estimators.neural.sampling import FlippedPosterior
from skebm.samplers._moves import TemperedMarginal
from skebm.samplers.blocks import Block
from tests.support.discovery import without_case
from tests.support.networks import NEURAL, binary, one_hot
from tests.support.oracle import (
    DOUBLE,
    P_FLOOR,
    Enumerated,
    bits,
    chi_square,
    joint_energy,
    make_class_rbm,
    make_conditional,
    make_gated,
    make_rbm,
    make_real_rbm,
    make_spike_slab,
    make_subspace,
    make_temporal,
    make_tree_rbm,
    row_gradients,
    seeded,
    through,
)
from tests.support.targets import MixedRows, Quadratic
from tests.support.tiers import leading

OTHERS = torch.tensor([[1.0, 0, 0, 1, 0.5]], dtype=DOUBLE)


def field(n, seed=7):
    return torch.randn(n, generator=seeded(seed), dtype=DOUBLE)


def make_boltzmann(d, seed=0):
    """A machine with every pair coupled, from a matrix that is neither symmetric nor hollow."""
    W = torch.randn(d, d, generator=seeded(seed), dtype=DOUBLE)
    return BoltzmannMachine(W, field(d), offset=0.7)


def make_dbm(*sizes):
    """A deep machine without biases of zero."""
    energy = BernoulliDBM(sizes, generator=seeded(), scale=1.0, dtype=DOUBLE)
    with torch.no_grad():
        energy.visible_bias.copy_(field(len(energy.visible_bias), 8))
        energy.hidden_bias.copy_(field(len(energy.hidden_bias), 9))
    return energy


def tabled(energy):
    """The same as tables, as a bridge distribution near the end of a path has them."""
    coupling, bias = energy.coupling.detach(), energy.bias.detach()
    return Couplings(coupling, bias, float(energy.offset), energy.colours)


def between(energy, base):
    """A bridge distribution from a base that is unrelated to the energy."""
    path = annealing_path(energy, base)
    assert isinstance(path, GeometricPath)
    return path.at(0.6)


# Small float64 energies of every class; both layers of a bipartite one can be enumerated.
CASES = {
    BernoulliRBM: {
        "wide": lambda: make_rbm(5, 3),
        "tall": lambda: make_rbm(3, 5),
        "tree": lambda: make_tree_rbm(5, 3),
        "tall tree": lambda: make_tree_rbm(3, 5),
    },
    BernoulliDBM: {
        "deep": lambda: make_dbm(3, 3, 2),
        "deeper": lambda: make_dbm(2, 2, 2, 2),
    },
    BoltzmannMachine: {
        "dense": lambda: make_boltzmann(5),
        "ring": lambda: ising_grid(1, 6, 0.6, -0.3, dtype=DOUBLE),
    },
    Couplings: {"pairs of a path": lambda: tabled(make_boltzmann(5))},
    PairwiseCorrection: {
        "pairs on independent bits": lambda: PairwiseCorrection(
            make_boltzmann(5), IndependentBernoulli(field(5, 8))
        ),
        "pairs without a base": lambda: PairwiseCorrection(make_boltzmann(5)),
    },
    TiltedPairwise: {"tilted pairs": lambda: TiltedPairwise(make_boltzmann(5), field(5), 0.6)},
    Geometric: {
        "to a normal": lambda: between(
            Quadratic(field(3), torch.eye(3, dtype=DOUBLE) + 0.5), Gaussian(field(3, 8), 2.0)
        ),
        "to bits": lambda: between(make_rbm(5, 3), make_tree_rbm(5, 3).base),
    },
    EnergySum: {
        "sum of bits": lambda: 0.7 * make_rbm(5, 3) + make_boltzmann(5),
        "sum of numbers": lambda: (
            make_real_rbm(3, 2) + 0.5 * Quadratic(field(3), torch.eye(3, dtype=DOUBLE) + 0.5)
        ),
    },
    PairwiseSum: {
        "sum of pairs": lambda: (
            ising_grid(1, 6, 0.6, dtype=DOUBLE) + 0.5 * ising_grid(2, 3, -0.3, dtype=DOUBLE)
        ),
    },
    EnergyMixture: {
        "mixture": lambda: EnergyMixture([make_rbm(5, 3), make_boltzmann(5)], [0.3, -1.0])
    },
    TemperedMarginal: {"hot": lambda: TemperedMarginal(make_rbm(5, 3), 0.6)},
    TemperedCorrection: {"corrected": lambda: TemperedCorrection(make_tree_rbm(5, 3), beta=0.6)},
    MixedRBM: {
        "mixed": lambda: MixedRBM(
            Columns([IndependentBernoulli(field(2)), Gaussian(field(2), 1.5)]),
            3,
            generator=seeded(),
            scale=0.7,
            dtype=DOUBLE,
        ),
        "real": lambda: make_real_rbm(4, 3),
    },
    SpikeSlabEnergy: {
        "spikes and slabs": lambda: make_spike_slab(4, 3),
        "on independent columns": lambda: make_spike_slab(2, 4, independent=True),
    },
    ClassRBM: {
        "bits and classes": lambda: make_class_rbm(IndependentBernoulli(field(4))),
        "columns and classes": lambda: make_class_rbm(
            Columns([IndependentBernoulli(field(2)), Gaussian(field(2), 1.5)])
        ),
    },
    SubspaceEnergy: {
        "subspaces": lambda: make_subspace(IndependentBernoulli(field(4))),
        "one subspace": lambda: make_subspace(IndependentBernoulli(field(4)), 1, 3),
        "subspaces of columns": lambda: make_subspace(
            Columns([IndependentBernoulli(field(2)), Gaussian(field(2), 1.5)])
        ),
    },
    GatedEnergy: {
        "pairs of bits": make_gated,
        "bits and a pair of numbers": lambda: make_gated(Gaussian(field(3), 1.5)),
    },
    ConditionalEnergy: {
        "a number given two": make_conditional,
        "numbers given one": lambda: make_conditional(1, 2),
    },
    GivenEnergy: {"bits given others": lambda: make_gated().given(field(4))},
    TemporalEnergy: {
        "first frames": lambda: make_temporal(make_tree_rbm(5, 3).base),
        "first frames of numbers": lambda: make_temporal(Gaussian(field(3), 1.5)),
    },
    MixedDBM: {
        "deep mixed": lambda: MixedDBM(
            Columns([IndependentBernoulli(field(2)), Gaussian(field(2), 1.5)]),
            (3, 2),
            generator=seeded(),
            scale=0.7,
            dtype=DOUBLE,
        )
    },
    TrajectoryEnergy: {
        "trajectory": lambda: through(make_rbm(5, 3)),
        "trajectory real": lambda: through(make_real_rbm(4, 3)),
        "trajectory tree": lambda: through(make_tree_rbm(4, 3)),
    },
    Tilted: {
        "tilted": lambda: Tilted(make_rbm(5, 3), field(5), beta=0.6),
        "twice": lambda: Tilted(Tilted(make_rbm(3, 4), field(3), 0.6), field(3, seed=8), 1.7),
        "tilted real": lambda: Tilted(make_real_rbm(4, 3), field(4), beta=0.6),
    },
    Block: {
        "bits of mixed rows": lambda: Block(MixedRows(), Binary((1,)), OTHERS, 0),
        "numbers of mixed rows": lambda: Block(MixedRows(), Real((1,)), OTHERS, 4),
    },
    NeuralEnergy: NEURAL,
    FlippedPosterior: {
        "given noisy bits": lambda: FlippedPosterior(binary("tree"), field(5)),
        "given noisy one-hot columns": lambda: FlippedPosterior(one_hot(base=True), field(9)),
    },
}

BUILDERS = {name: build for builders in CASES.values() for name, build in builders.items()}
BIPARTITE = [
    name for cls, builders in CASES.items() for name in builders if issubclass(cls, BipartiteEnergy)
]
# Those whose visible layer can be enumerated as well; test_mixed_rbm.py has the others.
OF_BITS = [name for name in BIPARTITE if isinstance(BUILDERS[name]().domain, Binary)]
BETAS = [0.3, 0.0, 1.0, 2.0]


@pytest.fixture(params=BUILDERS)
def energy(request):
    return BUILDERS[request.param]()


@pytest.fixture(params=BIPARTITE)
def bipartite(request):
    return BUILDERS[request.param]()


@pytest.fixture(params=OF_BITS)
def of_bits(request):
    return BUILDERS[request.param]()


def rows(energy, n=6, seed=0):
    """Rows near the states of the domain; energies are functions of real arguments."""
    if isinstance(energy.domain, Real):
        return 2 * torch.randn(n, *energy.domain.shape, generator=seeded(seed), dtype=DOUBLE)
    if isinstance(energy.domain, Mixed):
        if energy.base.domain != energy.domain:  # it is that of a part of the row
            return torch.randn(n, energy.domain.n_columns, generator=seeded(seed), dtype=DOUBLE)
        return energy.base.sample(n, seeded(seed))
    x = energy.domain.uniform(n, seeded(seed), dtype=DOUBLE)
    return x + 0.2 * torch.randn(x.shape, generator=seeded(seed), dtype=DOUBLE)


@pytest.mark.parametrize("name", ["dense", "ring", "tilted pairs", "sum of pairs"])
def test_pairwise_energies_are_those_of_their_couplings_and_biases(name):
    energy = BUILDERS[name]()
    x = bits(energy.domain.n_columns)[::3]
    expected = -torch.einsum("ni,ij,nj->n", x, energy.coupling, x) / 2 - x @ energy.bias
    found = energy(x)  # up to a constant
    torch.testing.assert_close(found - found[0], expected - expected[0])


def test_every_energy_has_a_case():
    missing = without_case(Energy, CASES, "CASES in tests/contracts/test_energies.py")
    assert not missing, "\n".join(missing)


# ------------------------------------------------------------------------------
# Every energy
# ------------------------------------------------------------------------------


def test_a_row_has_the_same_energy_alone(energy):
    x = rows(energy)
    together = energy(x)
    assert together.shape == (len(x),)
    alone = torch.cat([energy(row[None]) for row in x])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(energy(x.flip(0)), together.flip(0))
    assert len(together.unique()) == len(x)  # the rows do tell apart


def test_no_rows_have_no_energies(energy):
    assert energy(rows(energy)[:0]).shape == (0,)


def test_gradient_equals_finite_differences(energy):
    x = rows(energy)
    value, grad = energy.value_and_grad(x)
    torch.testing.assert_close(value, energy(x).detach())
    expected = row_gradients(energy, x)
    torch.testing.assert_close(grad, expected, atol=1e-6, rtol=1e-6)


def test_gradient_works_under_no_grad(energy):
    x = rows(energy)
    outside = energy.value_and_grad(x)
    with torch.no_grad():
        inside = energy.value_and_grad(x)
    for a, b in zip(outside, inside, strict=True):
        assert torch.equal(a, b)
        assert not b.requires_grad


def test_gradient_leaves_parameters_and_rows_alone(energy):
    x = rows(energy).requires_grad_(True)
    marks = [torch.full_like(p, 3.0) for p in energy.parameters()]
    before = [p.detach().clone() for p in energy.parameters()]
    assert marks
    for p, mark in zip(energy.parameters(), marks, strict=True):
        p.grad = mark.clone()
    energy.value_and_grad(x)
    for p, mark, value in zip(energy.parameters(), marks, before, strict=True):
        assert torch.equal(p.grad, mark)
        assert torch.equal(p, value)
        assert p.requires_grad
    assert x.grad is None


def test_every_parameter_gets_a_gradient(energy):
    energy(rows(energy)).sum().backward()
    # The models before the last one of a trajectory have no part in its energy.
    model = energy.last if isinstance(energy, TrajectoryEnergy) else energy
    for name, p in model.named_parameters():
        if p.numel():  # there may be no real columns
            assert p.grad is not None, name
            assert (p.grad != 0).any(), name


# ------------------------------------------------------------------------------
# Flips of binary rows
# ------------------------------------------------------------------------------


def test_flip_difference_equals_flipping(energy):
    if not isinstance(energy.domain, Binary):
        pytest.skip("only binary rows can be flipped")
    x = torch.cat(list(energy.domain.enumerate()))
    expected, value = torch.empty_like(x), energy(x)
    for i in range(x.shape[1]):
        other = x.clone()
        other[:, i] = 1 - other[:, i]
        expected[:, i] = energy(other) - value
    torch.testing.assert_close(energy.flip_difference(x), expected)
    torch.testing.assert_close(Energy.flip_difference(energy, x), expected)


class Bowl(Energy):
    """x' x on the reals."""

    def __init__(self, domain):
        super().__init__()
        self.domain = domain

    def forward(self, x, cond=None):
        return x.square().sum(1)


def test_real_rows_cannot_be_flipped():
    with pytest.raises(ValueError, match="binary"):
        Bowl(Real((2,))).flip_difference(torch.zeros(1, 2))


# ------------------------------------------------------------------------------
# Bipartite energies, against enumeration of the joint
# ------------------------------------------------------------------------------


def layers(energy):
    """All states of the hidden layer."""
    return torch.cat(list(energy.hidden_domain.enumerate()))


def joint(energy, x, h, beta):
    """-beta E(x, h), (n, m), with its own spelling of E."""
    return -beta * joint_energy(energy, x, h)


@pytest.mark.parametrize("beta", leading(2, BETAS))
def test_free_energy_sums_the_hidden_layer_out(bipartite, beta):
    x, h = rows(bipartite), layers(bipartite)
    expected = -joint(bipartite, x, h, beta).logsumexp(1)
    torch.testing.assert_close(bipartite.free_energy(x, beta), expected)


def test_free_energy_takes_many_betas_at_once(bipartite):
    x, h = rows(bipartite), layers(bipartite)
    betas = torch.tensor(BETAS, dtype=DOUBLE)[:, None]
    expected = torch.stack([-joint(bipartite, x, h, beta).logsumexp(1) for beta in BETAS])
    torch.testing.assert_close(bipartite.free_energy(x, betas), expected)


def test_the_energy_is_the_free_energy(bipartite):
    x = rows(bipartite)
    expected = -joint(bipartite, x, layers(bipartite), 1.0).logsumexp(1)
    torch.testing.assert_close(bipartite(x), expected)


@pytest.mark.parametrize("beta", leading(2, BETAS))
def test_hidden_conditional_equals_enumeration(bipartite, beta):
    x, h = rows(bipartite), layers(bipartite)
    p = joint(bipartite, x, h, beta).softmax(1)  # (n, 2**H)
    torch.testing.assert_close(bipartite.hidden(x, beta).mean, p @ h)


@pytest.mark.parametrize("shape", [None, "shared", "one for each row"])
@pytest.mark.parametrize("beta", leading(2, BETAS))
def test_visible_conditional_equals_enumeration(of_bits, beta, shape):
    x, h = bits(of_bits.domain.n_columns), layers(of_bits)
    tilt = {None: None, "shared": field(x.shape[1]), "one for each row": field(len(h))[:, None]}
    tilt = tilt[shape]
    if shape == "one for each row":
        tilt = tilt * field(x.shape[1], seed=9)
    log_p = joint(of_bits, x, h, beta).t()  # (2**H, 2**d)
    if tilt is not None:
        log_p = log_p + tilt.expand(len(h), -1) @ x.t()  # not scaled by beta
    mean = of_bits.visible(h, beta, tilt).mean
    torch.testing.assert_close(mean, log_p.softmax(1) @ x)


def test_conditionals_default_to_beta_one(of_bits):
    x = bits(of_bits.domain.n_columns)
    h = layers(of_bits)
    log_p = joint(of_bits, x, h, 1.0)
    torch.testing.assert_close(of_bits.hidden(x).mean, log_p.softmax(1) @ h)
    torch.testing.assert_close(of_bits.visible(h).mean, log_p.t().softmax(1) @ x)


@pytest.mark.parametrize("layer", ["hidden", "visible"])
def test_conditional_draws_follow_the_joint(of_bits, layer, generator):
    """Units of one layer are independent given the other, with the right means."""
    x, h = bits(of_bits.domain.n_columns), layers(of_bits)
    log_p = joint(of_bits, x, h, 0.7)
    row = 3
    if layer == "hidden":
        conditional = of_bits.hidden(x[row].expand(20_000, -1), 0.7)
        p, states = log_p[row].softmax(0), h
    else:
        conditional = of_bits.visible(h[row].expand(20_000, -1), 0.7)
        p, states = log_p[:, row].softmax(0), x
    mean = conditional.mean.clone()
    draws = conditional.sample(generator)
    place = (draws[:, None] == states).all(2).to(torch.uint8).argmax(1)
    assert chi_square(torch.bincount(place, minlength=len(states)), p) > P_FLOOR
    assert torch.equal(conditional.mean, mean)  # drawing in place must not overwrite it


@pytest.mark.parametrize("tilt", [None, "field"])
@pytest.mark.parametrize("beta", leading(2, BETAS))
def test_hidden_energy_sums_the_visible_layer_out(of_bits, beta, tilt):
    x, h = bits(of_bits.domain.n_columns), layers(of_bits)
    tilt = tilt and field(x.shape[1])
    log_p = joint(of_bits, x, h, beta)
    if tilt is not None:
        log_p = log_p + (x @ tilt)[:, None]  # not scaled by beta
    torch.testing.assert_close(of_bits.hidden_energy(h, beta, tilt), -log_p.logsumexp(0))
    if beta == 1 and tilt is None:
        torch.testing.assert_close(of_bits.hidden_energy(h), -log_p.logsumexp(0))


@pytest.mark.parametrize("beta", leading(2, BETAS))
def test_hidden_energy_sums_over_rows_that_agree_with_the_clamp(of_bits, beta):
    """Each hidden row has known columns of its own."""
    x, h = bits(of_bits.domain.n_columns), layers(of_bits)
    generator, shape = seeded(7), (len(h), x.shape[1])
    mask = torch.rand(shape, generator=generator) < 0.5
    value = of_bits.domain.uniform(len(h), generator, dtype=DOUBLE)
    agrees = ((x[:, None] == value) | ~mask).all(-1)  # (states of x, states of h)
    log_p = joint(of_bits, x, h, beta).masked_fill(~agrees, -torch.inf)
    found = of_bits.hidden_energy(h, beta, clamp=Clamp(mask, value))
    torch.testing.assert_close(found, -log_p.logsumexp(0))


# ------------------------------------------------------------------------------
# BernoulliRBM
# ------------------------------------------------------------------------------


def test_rbm_starts_from_small_normal_weights_and_no_biases():
    energy = BernoulliRBM(40, 30, generator=seeded(), scale=0.1, dtype=DOUBLE)
    w = energy.weight.detach()
    n = w.numel()
    assert w.shape == (30, 40)
    assert abs(float(w.mean())) < 5 * 0.1 / n**0.5
    assert abs(float(w.std()) / 0.1 - 1) < 5 / (2 * n) ** 0.5
    assert not energy.visible_bias.any()
    assert not energy.hidden_bias.any()
    again = BernoulliRBM(40, 30, generator=seeded(), scale=0.1, dtype=DOUBLE)
    assert torch.equal(again.weight, energy.weight)
    assert {p.dtype for p in energy.parameters()} == {DOUBLE}


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_rbm_moments_equal_enumeration_of_either_side(shape):
    energy = make_rbm(*shape)
    exact, moments = Enumerated(energy), energy.moments()
    torch.testing.assert_close(moments.log_z, exact.log_z)
    torch.testing.assert_close(moments.x, exact.joint.sum(1) @ exact.x)
    torch.testing.assert_close(moments.h, exact.joint.sum(0) @ exact.h)
    torch.testing.assert_close(
        moments.hx, torch.einsum("xh,xi,hj->ji", exact.joint, exact.x, exact.h)
    )


def test_rbm_log_z_differentiates_to_the_moments():
    energy = make_rbm(4, 3)
    log_z = energy.moments().log_z
    grads = torch.autograd.grad(log_z, list(energy.parameters()))
    moments = energy.moments()
    for grad, (name, _) in zip(grads, energy.named_parameters(), strict=True):
        expected = {"weight": moments.hx, "visible_bias": moments.x, "hidden_bias": moments.h}
        torch.testing.assert_close(grad, expected[name])


def test_rbm_moments_do_not_overflow():
    """Log-weights in the hundreds: far beyond exp, also in float32."""
    energy = make_rbm(6, 4, scale=60.0, bias=60.0)
    exact = Enumerated(energy)
    assert exact.log_z > 89  # exp(89) overflows float32
    single = copy.deepcopy(energy).float()
    for model, tolerance in ((energy, 1e-10), (single, 1e-4)):
        moments = model.moments()
        assert moments.log_z.item() == pytest.approx(exact.log_z.item(), rel=tolerance)
        torch.testing.assert_close(moments.x.double(), exact.p @ exact.x, atol=tolerance, rtol=0)


@pytest.mark.parametrize("shape", [(1100, 2), (2, 1100)])
def test_rbm_with_one_small_layer_is_enumerated_from_it(shape):
    """However wide the other layer: 2 to the power of 1,100 is beyond a float."""
    energy = make_rbm(*shape, scale=0.1)
    W, b, c = energy.weight, energy.visible_bias, energy.hidden_bias
    if shape[0] > shape[1]:
        W, b, c = W.t(), c, b
    small = bits(2)  # states of the small layer, biases b; the sum over the other is a product
    log_z = (small @ b + (small @ W.t() + c).exp().log1p().sum(1)).logsumexp(0)
    assert energy.enumeration_cost() == 4 * 1100
    torch.testing.assert_close(energy.moments().log_z, log_z)


def test_rbm_enumeration_cost_names_the_cheaper_side():
    assert make_rbm(3, 5).enumeration_cost() == 2**3 * 5
    assert make_rbm(5, 3).enumeration_cost() == 2**3 * 5
    assert make_rbm(4, 1).enumeration_cost() == 2**1 * 4


# ------------------------------------------------------------------------------
# Tilted
# ------------------------------------------------------------------------------


def test_tilted_takes_a_field_for_each_row():
    inner, fields = make_rbm(4, 3), torch.stack([field(4, seed) for seed in range(6)])
    x, h = bits(4)[:6], bits(3)[:6]
    tilted = Tilted(inner, fields, beta=0.6)
    each = [Tilted(inner, one, beta=0.6) for one in fields]
    betas = torch.tensor([[0.5], [2.0]], dtype=DOUBLE)
    for beta in (1.0, 0.4, betas):
        alone = [one.free_energy(x[i, None], beta) for i, one in enumerate(each)]
        torch.testing.assert_close(tilted.free_energy(x, beta), torch.cat(alone, -1))
    alone = torch.cat([one.visible(h[i, None], 0.4).mean for i, one in enumerate(each)])
    torch.testing.assert_close(tilted.visible(h, 0.4).mean, alone)


def test_tilted_shares_the_parameters():
    inner = make_rbm(4, 3)
    tilted = Tilted(inner, field(4))
    assert {id(p) for p in tilted.parameters()} == {id(p) for p in inner.parameters()}
