"""Small models and their exact answers, by enumeration and written without skebm's formulas.

E(x, h) is spelled out term by term, every sum runs over all states made by itertools, and nothing
calls an energy's own methods: what the tests compare with shares no code with what they test.
"""

import copy
import itertools

import scipy.stats
import torch

from skebm.base import Binary, Categorical, Energy, Real
from skebm.base.domains import parts_of
from skebm.distributions import (
    ChowLiuTree,
    Gaussian,
    GaussianMixture,
    IndependentBernoulli,
    IndependentCategorical,
    LatentClasses,
    RegressionMixture,
)
from skebm.energies import (
    MLP,
    BernoulliRBM,
    ClassRBM,
    ConditionalEnergy,
    GatedEnergy,
    GivenEnergy,
    MixedRBM,
    Spec,
    SpikeSlabEnergy,
    SubspaceEnergy,
    TemperedCorrection,
    TemporalEnergy,
    Tilted,
    TrajectoryEnergy,
)
from skebm.energies.conditional import target_whitening

DOUBLE = torch.float64

# One false alarm in ten thousand, for a seed that is fixed anyway.
P_FLOOR = 1e-4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def standard_normal(*shape, seed=1):
    return torch.randn(shape, generator=seeded(seed), dtype=DOUBLE)


def make_rbm(n_visible, n_hidden, *, seed=0, scale=1.0, bias=0.5, dtype=DOUBLE):
    """An RBM as it might come out of training: no bias is zero, no weight is small."""
    generator = seeded(seed)
    energy = BernoulliRBM(n_visible, n_hidden, generator=generator, scale=scale, dtype=dtype)
    with torch.no_grad():
        for p in (energy.visible_bias, energy.hidden_bias):
            p.copy_(bias * torch.randn(p.shape, generator=generator, dtype=dtype))
    return energy


def through(energy, shares=(0.1, 0.5), temperatures=()):
    """A trajectory to an RBM: models with a part of its weights, and its biases, lead to it."""
    models = []
    for share in shares:
        model = copy.deepcopy(energy)
        # A Chow-Liu tree and the like are of all models.
        model.base = energy.base
        if hasattr(model, "structure"):
            model.structure = energy.structure
        with torch.no_grad():
            model.weight.mul_(share)
        models.append(model)
    return TrajectoryEnergy([*models, energy], temperatures)


def make_temporal(base, n_hidden=2, seed=0, *, order=1, recurrent=True, scale=0.5):
    """A temporal energy of frames with weights that matter, in double precision."""
    generator = seeded(seed)
    rbm = MixedRBM(base, n_hidden, generator=generator, dtype=DOUBLE)
    energy = TemporalEnergy(rbm, order, recurrent)
    with torch.no_grad():
        for p in energy.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=DOUBLE))
    return energy


def make_class_rbm(base, n_hidden=2, n_classes=3):
    """A classification RBM on a base, with weights that matter."""
    machine = MixedRBM(base, n_hidden, generator=seeded(), scale=0.7, dtype=DOUBLE)
    energy = ClassRBM(machine, n_classes, generator=seeded(1), scale=0.7)
    with torch.no_grad():
        for number, p in enumerate(energy.parameters()):
            p.add_(0.3 * torch.randn(p.shape, generator=seeded(number), dtype=DOUBLE))
    return energy


def make_spike_slab(n_visible, n_hidden, *, independent=False):
    """A spike-and-slab RBM with weights that matter, on a base of dependent columns."""
    mean = torch.randn(n_visible, generator=seeded(7), dtype=DOUBLE)
    mixed = torch.randn(n_visible, 2 * n_visible, generator=seeded(8), dtype=DOUBLE)
    covariance = mixed @ mixed.t() / (2 * n_visible)
    scale = covariance.diagonal().sqrt()
    base = Gaussian(mean, scale) if independent else Gaussian(mean, covariance=covariance)
    energy = SpikeSlabEnergy(base, n_hidden, generator=seeded(), scale=1.2, dtype=DOUBLE)
    with torch.no_grad():
        for number, p in enumerate(energy.parameters()):
            p.add_(0.5 * torch.randn(p.shape, generator=seeded(number), dtype=DOUBLE))
    return energy


def make_subspace(base, n_gates=2, n_subspace=2):
    """A subspace RBM on a base, with weights that matter."""
    rbm = MixedRBM(base, n_gates * n_subspace, generator=seeded(), scale=0.7, dtype=DOUBLE)
    energy = SubspaceEnergy(rbm, n_subspace)
    with torch.no_grad():
        for number, p in enumerate(energy.parameters()):
            p.add_(0.5 * torch.randn(p.shape, generator=seeded(number), dtype=DOUBLE))
    return energy


def make_tree_rbm(n_visible, n_hidden, *, seed=0, **kwargs):
    """An RBM on a Chow-Liu tree of rows whose columns depend on each other."""
    generator = seeded(seed + 100)
    rows = torch.rand(40, n_visible, generator=generator, dtype=DOUBLE) < 0.4
    rows[:, 1:] |= rows[:, :-1] & (torch.rand(40, n_visible - 1, generator=generator) < 0.6)
    plain = make_rbm(n_visible, n_hidden, seed=seed, **kwargs)
    tree = ChowLiuTree.fit(rows.to(DOUBLE), smoothing=0.05)
    energy = BernoulliRBM(n_visible, n_hidden, generator=generator, dtype=DOUBLE, base=tree)
    energy.load_state_dict(plain.state_dict())
    return energy


class AutogradRBM(MixedRBM):
    """An RBM without a gradient by hand, as an energy is that only has what it must."""

    contrast_gradient = Energy.contrast_gradient


def make_real_rbm(n_visible, n_hidden, *, cls=MixedRBM, seed=0, scale=0.6):
    """An RBM of numbers whose precisions and means are not those of its base."""
    generator = seeded(seed)

    def normal(n):
        return torch.randn(n, generator=generator, dtype=DOUBLE)

    base = Gaussian(0.3 * normal(n_visible), (0.2 * normal(n_visible)).exp() * 1.7)
    energy = cls(base, n_hidden, generator=generator, scale=scale, dtype=DOUBLE)
    with torch.no_grad():
        for p in (energy.visible_bias, energy.hidden_bias, energy.log_precision):
            p.copy_(0.5 * normal(len(p)))
    return energy


def bits(n):
    """All rows of n bits, (2 ** n, n)."""
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=DOUBLE)


def make_conditional(n_given=2, dx=1):
    """A conditional energy of random weights, on a mixture of regressions."""
    d, g = n_given + dx, seeded(5)
    A = torch.randn(3, d, d, generator=g, dtype=DOUBLE)
    covariances = A @ A.mT / d + 0.3 * torch.eye(d, dtype=DOUBLE)
    weights = torch.rand(3, generator=g, dtype=DOUBLE) + 0.3
    means = torch.randn(3, d, generator=g, dtype=DOUBLE)
    base = RegressionMixture(GaussianMixture(weights / weights.sum(), means, covariances), dx)
    spec = Spec((d,), g, DOUBLE, whitening=target_whitening(base, n_given))
    network = MLP((8,), activation="tanh").build(spec)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=g, dtype=DOUBLE))
    return ConditionalEnergy(network, base, n_given)


def make_gated(base=None, n_given=4, n_factors=5, n_hidden=2):
    """A gated RBM of which every parameter matters; x are bits."""
    if base is None:
        base = IndependentBernoulli(torch.tensor([0.3, -0.5, 0.8], dtype=DOUBLE))
    how = {"generator": seeded(), "scale": 1.5, "dtype": DOUBLE}
    energy = GatedEnergy(base, Binary((n_given,)), n_factors, n_hidden, **how)
    with torch.no_grad():
        for number, p in enumerate((*energy.parameters(), *energy.buffers())):
            p.add_(0.3 * torch.randn(p.shape, generator=seeded(number), dtype=DOUBLE))
    return energy


def joint_energy(energy, x, h):
    """E(x, h) for every pair of a visible row x and a hidden row h, (n, m)."""
    if isinstance(energy, Tilted):
        return energy.beta * joint_energy(energy.energy, x, h) - (x * energy.field).sum(1)[:, None]
    if isinstance(energy, TrajectoryEnergy):
        return joint_energy(energy.models[-1], x, h)
    if isinstance(energy, TemperedCorrection):
        model = energy.energy
        log_q = model.base.log_prob(x)[:, None]
        return energy.beta * (joint_energy(model, x, h) + log_q) - log_q
    if isinstance(energy, ClassRBM):
        y, units = h[:, : energy.n_classes], h[:, energy.n_classes :]
        pairs = torch.einsum("mk,jk,mj->m", y, energy.class_weight, units)
        return joint_energy(energy.rbm, x, units) - (y @ energy.class_bias + pairs)
    if isinstance(energy, SubspaceEnergy):
        gate, unit = h[:, : energy.n_gates], h[:, energy.n_gates :]
        products = gate.repeat_interleave(energy.n_subspace, 1) * unit
        return joint_energy(energy.rbm, x, products) - gate @ energy.gate_bias
    if isinstance(energy, GivenEnergy):
        own = energy.energy
        three = torch.einsum("fi,fj,f->ij", own.filters, own.mapping, energy.gate[0])
        shifted = torch.einsum("ni,ij,mj->nm", x - own.offset, three, h)
        return -((x @ own.visible_bias)[:, None] + h @ own.hidden_bias + shifted)
    W, b, c = energy.weight, energy.visible_bias, energy.hidden_bias
    if isinstance(energy, SpikeSlabEnergy):
        return spike_slab_energy(energy, x, h)
    if isinstance(energy, MixedRBM):
        factor = torch.ones_like(b).masked_scatter(energy.is_real, energy.log_precision.exp())
        unary = log_structure(energy, x) + x @ (factor * b)
        interaction = torch.einsum("ni,ji,mj->nm", x * factor, W, h)
        return -(unary[:, None] + h @ c + interaction)
    interaction = torch.einsum("mj,ji,ni->nm", h, W, x)
    value = -(x * b).sum(1)[:, None] - (h * c).sum(1)[None, :] - interaction
    if isinstance(energy.base, ChowLiuTree):  # itself tested against enumeration
        value = value - energy.base.log_prob(x)[:, None]
    return value


def spike_slab_energy(energy, x, h):
    """E(x, h) with the slabs integrated out, in the coordinates of the base, (n, m)."""
    L = torch.linalg.cholesky(energy.base.covariance)
    u = torch.linalg.solve(L, (x - energy.base.mean).t()).t()
    z = u @ energy.weight.t()
    log_q = torch.distributions.MultivariateNormal(energy.base.mean, scale_tril=L).log_prob(x)
    widths = ((energy.log_precision.exp() - 1) * u**2).sum(1) / 2
    visible = -log_q + widths - u @ energy.visible_bias
    off = torch.einsum("ni,mi->nm", z**2 / 2, 1 - h)
    on = torch.einsum("ni,mi->nm", energy.hidden_bias + energy.slab_mean * z, h)
    return visible[:, None] + off - on


def log_structure(energy, x):
    """log of the base with the trained widths, column by column."""
    total, first, factor = 0.0, 0, energy.log_precision.exp()
    for part in energy.parts:
        block = x[:, first : first + part.domain.n_columns]
        first += part.domain.n_columns
        if isinstance(part, Gaussian):
            own, factor = factor[: block.shape[1]], factor[block.shape[1] :]
            root = own.sqrt()
            covariance = part.covariance / root[:, None] / root
            law = torch.distributions.MultivariateNormal(part.mean / root, covariance)
            total = total + law.log_prob(block)
        elif isinstance(part, IndependentBernoulli):
            law = torch.distributions.Bernoulli(logits=part.logits, validate_args=False)
            total = total + law.log_prob(block).sum(1)
        elif isinstance(part, IndependentCategorical):
            start = 0
            for k in part.domain.groups:
                log_p = part.logits[start : start + k].log_softmax(0)
                total = total + block[:, start : start + k] @ log_p
                start += k
        elif isinstance(part, LatentClasses):
            n_real = part.mean.shape[1]
            own, factor = factor[:n_real], factor[n_real:]
            total = total + log_classes(part, block, own)
        else:
            total = total + part.log_prob(block)  # a tree, itself tested against enumeration
    return total


def log_classes(q, x, precision):
    """log of a latent class model with precisions times a factor, class by class."""
    found = []
    for log_weight, logits, mean, scale in zip(
        q.log_weights.log_softmax(0), q.logits, q.mean, q.scale, strict=True
    ):
        law = torch.distributions.Normal(mean, scale / precision.sqrt())
        value, first = log_weight + law.log_prob(x[:, len(logits) :]).sum(1), 0
        for kind in parts_of(q.domain):
            for k in kind.groups if isinstance(kind, Categorical) else (1,) * kind.n_columns:
                if isinstance(kind, Real):
                    continue
                own, levels = logits[first : first + k], x[:, first : first + k]
                own = torch.log_softmax(torch.cat([own, own.new_zeros(int(k == 1))]), 0)
                rest = 1 - levels if k == 1 else levels[:, :0]
                value = value + torch.cat([levels, rest], 1) @ own
                first += k
        found.append(value)
    return torch.stack(found).logsumexp(0)


class Discrete:
    """States (m, ...) with their unnormalised log-probabilities (m,).

    The target of a sampler: knows how to draw from itself, and how surprising a sample is.
    """

    def __init__(self, x, log_weight):
        self.x, self.p = x, log_weight.detach().softmax(0)

    def mean(self, values):
        """Expectation of a function of x, given at all its states."""
        return torch.tensordot(self.p, values, 1)

    def draw(self, n, generator):
        """Draw n independent rows, exactly."""
        return self.x[self.draw_index(self.p, n, generator)]

    @staticmethod
    def draw_index(p, n, generator):
        return torch.multinomial(p.detach(), n, replacement=True, generator=generator)

    @property
    def rarest(self):
        """The least probable state that is possible."""
        return self.x[torch.where(self.p > 0, self.p, torch.inf).argmin()]

    def counts(self, x):
        """How often each state occurs among rows x."""
        same = (x[:, None] == self.x).flatten(2).all(2)
        assert same.any(1).all()  # every row is a state
        return torch.bincount(same.long().argmax(1), minlength=len(self.x))

    def distance(self, x):
        """Total variation between the shares of the states among rows x and the truth."""
        return float((self.counts(x) / len(x) - self.p).detach().abs().sum()) / 2

    def p_value(self, x):
        """p-value of the chi-square test that rows x are independent draws."""
        return chi_square(self.counts(x), self.p)

    def given(self, mask, value):
        """The states where x equals `value` at the mask."""
        return Discrete(self.x, (self.p * (self.x == value)[:, mask].all(1)).log())


class Enumerated(Discrete):
    """All states of a bipartite binary energy and their exact probabilities at `beta`."""

    def __init__(self, energy, beta=1.0):
        self.x = bits(energy.domain.n_columns)
        self.h = bits(energy.hidden_domain.n_columns)
        self.log_weight = -beta * joint_energy(energy, self.x, self.h)  # (2**d, 2**H)
        self.log_z = self.log_weight.flatten().logsumexp(0)
        self.joint = (self.log_weight - self.log_z).exp()
        self.p = self.joint.sum(1)

    def draw_pair(self, n, generator):
        """Draw n independent rows with their hidden layers, exactly."""
        number = self.draw_index(self.joint.flatten(), n, generator)
        return self.x[number // len(self.h)], self.h[number % len(self.h)]


def brute_pseudo_log_likelihood(energy, x):
    """sum_i log p(x_i given the rest), the conditionals from the enumerated joint."""
    d = x.shape[1]
    target, place = Enumerated(energy), 2 ** torch.arange(d - 1, -1, -1)
    total = []
    for row in x:
        log_p = 0.0
        for i in range(d):
            other = row.clone()
            other[i] = 1 - other[i]
            p, q = (target.p[int(r.long() @ place)] for r in (row, other))
            log_p = log_p + (p / (p + q)).log()
        total.append(log_p)
    return torch.stack(total).detach()


def count_states(x):
    """How often each binary row occurs, in the order of :func:`bits`."""
    place = 2 ** torch.arange(x.shape[1] - 1, -1, -1)
    return torch.bincount(x.long() @ place, minlength=2 ** x.shape[1])


def chi_square(counts, p):
    """p-value of counts under probabilities p, states expected fewer than five times pooled."""
    counts, expected = counts.to(DOUBLE), p.detach() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if expected[-1] < 5:  # too few even together: say nothing of them
        keep = counts[:-1].sum() / expected[:-1].sum()
        counts, expected = counts[:-1], expected[:-1] * keep
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(scipy.stats.chi2.sf(float(statistic), len(counts) - 1))


def finite_difference(function, x, step=1e-5):
    """Gradient of a scalar function at a tensor x by central differences."""
    grad = torch.empty_like(x)
    for i in range(x.numel()):
        ends = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved.view(-1)[i] += sign * step
            ends.append(float(torch.as_tensor(function(moved), dtype=DOUBLE).detach()))
        grad.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
    return grad


def row_gradients(function, x, step=1e-5):
    """Gradients of a function of single rows, (n,), at the rows x, by central differences.

    An entry of all rows is moved at once: rows do not depend on each other.
    """
    rows, grad = x.detach().flatten(1), torch.empty_like(x)
    for i, move in enumerate(step * torch.eye(rows.shape[1], dtype=x.dtype)):
        up, down = (function((rows + m).view_as(x)).detach() for m in (move, -move))
        grad.flatten(1)[:, i] = (up - down) / (2 * step)
    return grad


def mean_is(samples, truth):
    """Largest |z| of the difference between the mean of i.i.d. rows and the truth."""
    samples = samples.detach()
    error = samples.std(0) / len(samples) ** 0.5
    return float(((samples.mean(0) - truth).abs() / error.clamp(min=1e-12)).max())


def z_scores(runs, truth):
    """Errors of independent estimates of log Z, in the standard errors that they claim."""
    return torch.tensor([(one.value - truth) / one.std_error for one in runs])


def assert_calibrated(z):
    """Both limits are over four standard errors of 60 repeats from where they should be."""
    assert z.abs().max() < 5
    assert abs(z.mean()) < 0.5
    assert 0.6 < z.std() < 1.6
