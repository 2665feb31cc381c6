"""Small float64 networks and energies of them, with random instead of zero output weights."""

import torch
from torch import nn

from skebm.base import Binary, Categorical, Real
from skebm.distributions import (
    BlockTree,
    ChowLiuTree,
    Gaussian,
    GaussianMixture,
    IndependentBernoulli,
    IndependentCategorical,
    TruncatedGaussian,
)
from skebm.energies import (
    MLP,
    ClassMarginal,
    Conv,
    NeuralEnergy,
    ResNet,
    Spec,
    Telescope,
    build_network,
    fit_waymarks,
    whitening_of,
)
from tests.support.oracle import DOUBLE, seeded

LEVELS = (0.3, 2.0)


def randomise(network, seed=5):
    """Give the parameters that start at zero normal weights."""
    generator = seeded(seed)
    with torch.no_grad():
        for p in network.parameters():
            if not p.any():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return network


def build(network, shape, *, levels=False, dtype=DOUBLE, seed=5, whitening=None, n_classes=None):
    """Build a network for rows of a shape, with weights as in the middle of training."""
    spec = Spec(shape, seeded(seed), dtype, levels, whitening, n_classes)
    return randomise(build_network(network, spec), seed)


class Plain(nn.Module):
    """A network without derivatives of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, *cond):
        return self.inner(x, *cond)


def user_module(d, hidden=5, seed=6):
    """A plain module, without configuration and explicit derivatives."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False), nn.Flatten(0)
        ).to(DOUBLE)


def normal_base(d, seed=3):
    g = seeded(seed)
    root = torch.randn(d, d, generator=g, dtype=DOUBLE) + 2 * torch.eye(d, dtype=DOUBLE)
    return Gaussian(torch.randn(d, generator=g, dtype=DOUBLE), covariance=root @ root.t())


def mixture_base(d, seed=4):
    g = seeded(seed)
    means = 2 * torch.randn(3, d, generator=g, dtype=DOUBLE)
    root = torch.randn(3, d, d, generator=g, dtype=DOUBLE)
    covariances = root @ root.transpose(1, 2) + torch.eye(d, dtype=DOUBLE)
    return GaussianMixture(torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE), means, covariances)


def neural(
    d=3, network=None, base="gaussian", lower=None, upper=None, reconstructs=False, **kwargs
):
    """A neural energy; `base` a distribution, None or "gaussian"."""
    shape = kwargs.get("image_shape", (d,))
    base = normal_base(d) if base == "gaussian" else base
    whitening = whitening_of(base) if reconstructs else None
    built = build(
        network or MLP((6, 5)), shape, levels="noise_levels" in kwargs, whitening=whitening
    )
    return NeuralEnergy(built, Real((d,), lower, upper), base, **kwargs)


def classified(d=3, network=None, n_classes=4, base="gaussian", label=None, power=1.0, **kwargs):
    """A neural energy of the logits of a classifier, or of one class."""
    base = normal_base(d) if base == "gaussian" else base
    shape = kwargs.get("image_shape", (d,))
    logits = build(network or MLP((6, 5)), shape, n_classes=n_classes)
    return NeuralEnergy(ClassMarginal(logits, label, power=power), Real((d,)), base, **kwargs)


def telescoped(d=3, n_bridges=3):
    """A neural energy of several ratios, from narrow data to normal noise."""
    noise = normal_base(d)
    waymarks = fit_waymarks(normal_base(d, 4).with_covariance_times(0.01), noise, n_bridges)
    networks = [build(MLP((4, 3)), (d,), seed=k) for k in range(n_bridges)]
    return NeuralEnergy(Telescope(networks, waymarks), Real((d,)), noise)


def walled(d=3, lower=0.0, upper=None):
    """A neural energy on bounded rows, with the base that estimators use there."""
    base = TruncatedGaussian(torch.full((d,), 0.6, dtype=DOUBLE), 0.8, lower, upper)
    return neural(d, base=base, lower=lower, upper=upper)


def correlated_bits(d, n=200, seed=7):
    """Binary rows whose columns depend on the one before, each in its own measure."""
    noise = torch.rand(n, d, generator=seeded(seed), dtype=DOUBLE)
    x = (noise < torch.linspace(0.3, 0.6, d, dtype=DOUBLE)).to(DOUBLE)
    x[:, 1:] = torch.where(noise[:, 1:] > 0.75, x[:, :-1], x[:, 1:])
    return x


BIT_BASES = {
    "none": lambda d: None,
    "independent": lambda d: IndependentBernoulli.fit(correlated_bits(d)),
    "tree": lambda d: ChowLiuTree.fit(correlated_bits(d), smoothing=0.05),
    "blocks": lambda d: BlockTree.fit(correlated_bits(d), block_size=2, smoothing=0.05),
}


def binary(base="tree", d=5, **kwargs):
    """A neural energy of bits."""
    config = MLP((6, 5), output="sum")
    return NeuralEnergy(build(config, (d,)), Binary((d,)), BIT_BASES[base](d), **kwargs)


def one_hot(groups=(3, 2, 4), base=False):
    """A neural energy of one-hot columns."""
    d = sum(groups)
    logits = torch.randn(d, generator=seeded(8), dtype=DOUBLE)
    noise = IndependentCategorical(logits, groups) if base else None
    return NeuralEnergy(build(MLP((6, 5)), (d,)), Categorical(groups), noise)


# Energies of all kinds, in the mode in which they are evaluated.
NEURAL = {
    "perceptron": lambda: neural(),
    "residual": lambda: neural(
        4, MLP((4, 4, 3), "tanh", residual=True, spectral_norm=True), None
    ).eval(),
    "classes": lambda: classified(),
    "a class": lambda: classified(network=MLP((5, 5), residual=True), label=2),
    "classes at a power": lambda: classified(power=0.3),
    "a class at a power": lambda: classified(label=2, power=0.3),
    "classes of images": lambda: classified(12, Conv((3, 4)), image_shape=(1, 3, 4)),
    "convolution": lambda: neural(12, Conv((3, 4), "softplus"), image_shape=(1, 3, 4)),
    "normed convolution": lambda: neural(
        18, Conv((3, 2), "gelu", spectral_norm=True), None, image_shape=(2, 3, 3)
    ).eval(),
    "scales": lambda: neural(15, Conv((2, 3), n_scales=3), None, image_shape=(1, 3, 5)),
    "levels of scales": lambda: neural(
        12,
        Conv((3, 4), spectral_norm=True, n_scales=2),
        Gaussian(torch.ones(12, dtype=DOUBLE), 1.5),
        image_shape=(1, 3, 4),
        noise_levels=LEVELS,
    ).eval(),
    "residual images": lambda: neural(16, ResNet(), image_shape=(1, 4, 4)),
    "residual images without norms": lambda: neural(
        12,
        ResNet(norm=None, activation="softplus"),
        Gaussian(torch.ones(12, dtype=DOUBLE), 1.5),
        image_shape=(1, 3, 4),
        noise_levels=LEVELS,
    ),
    "levels": lambda: neural(noise_levels=LEVELS),
    "levels alone": lambda: neural(base=None, noise_levels=LEVELS),
    "levels of images": lambda: neural(
        12,
        Conv((3, 4)),
        Gaussian(torch.ones(12, dtype=DOUBLE), 1.5),
        image_shape=(1, 3, 4),
        noise_levels=LEVELS,
    ),
    "module": lambda: neural(network=user_module(3)),
    "module alone": lambda: neural(network=user_module(3), base=None),
    "on a mixture": lambda: neural(base=mixture_base(3)),
    "telescope": lambda: telescoped(),
    "bits": lambda: binary("none"),
    "bits on a tree": lambda: binary("tree"),
    "bits on blocks": lambda: binary("blocks"),
    "one-hot": lambda: one_hot(),
    "one-hot on columns": lambda: one_hot(base=True),
    "fourier": lambda: neural(network=MLP((6, 5), n_frequencies=4, frequency_scale=1.5)),
    "reconstruction": lambda: neural(base=mixture_base(3), reconstructs=True),
    "normed reconstruction": lambda: neural(
        3, MLP((3, 3), "tanh", residual=True, spectral_norm=True), reconstructs=True
    ).eval(),
}
