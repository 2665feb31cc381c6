"""Networks: their derivatives against autograd, how they are built, what is refused."""

import itertools
import math
import pickle

import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.nn import functional as F

from benchmarks._toys import kl_divergence, sample
from skebm import NCEDensity, ScoreMatchingDensity, TractableDensity
from skebm.base import Real
from skebm.base.energy import second_derivatives_of, value_and_input_grad_of
from skebm.base.processes import seed_modules as seeded_globally
from skebm.distributions import Gaussian, TruncatedGaussian, Uniform
from skebm.energies import MLP, Conv, NeuralEnergy, ResNet, Spec, build_network, whitening_of
from skebm.energies.networks import ACTIVATIONS
from skebm.energies.neural import NoisyNormal
from tests.support.networks import (
    LEVELS,
    NEURAL,
    Plain,
    build,
    mixture_base,
    neural,
    normal_base,
    user_module,
    walled,
)
from tests.support.oracle import (
    DOUBLE,
    finite_difference,
    row_gradients,
    seeded,
    standard_normal,
)
from tests.support.tiers import about, full, leading


def levels_of(n, seed=2):
    low, high = LEVELS
    return low + (high - low) * torch.rand(n, generator=seeded(seed), dtype=DOUBLE)


def gradients(function, network):
    """Gradients of a scalar with respect to the weights, zeros for those that it lacks."""
    return torch.autograd.grad(
        function(network), list(network.parameters()), materialize_grads=True, allow_unused=True
    )


def assert_all_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


# ------------------------------------------------------------------------------
# Activations
# ------------------------------------------------------------------------------


def exact_softplus(z):
    """torch returns z itself from 20 on, which is off by 2e-9."""
    return torch.logaddexp(z, torch.zeros((), dtype=z.dtype))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_of_activations_equal_autograd(name):
    own = {"silu": F.silu, "softplus": exact_softplus, "tanh": torch.tanh, "gelu": F.gelu}[name]
    z = torch.linspace(-30, 30, 601, dtype=DOUBLE).requires_grad_(True)
    value = own(z)
    (grad,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), z)
    known = ACTIVATIONS[name]
    torch.testing.assert_close(known.value(z), value)
    for found, expected in zip(known.with_derivatives(z), (value, grad, second), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
    for found, expected in zip(known.with_derivative(z), (value, grad), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_of_activations_are_differentiable(name):
    assert torch.autograd.gradcheck(
        ACTIVATIONS[name].with_derivative, standard_normal(9).requires_grad_(True)
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_of_activations_are_twice_differentiable_or_refuse(name):
    """The explicit backward of silu would be wrong a second time."""
    z = standard_normal(9).requires_grad_(True)
    if name != "silu":
        assert torch.autograd.gradgradcheck(ACTIVATIONS[name].with_derivative, z)
        return
    mark = standard_normal(9, seed=2).requires_grad_(True)
    (grad,) = torch.autograd.grad(
        (mark * ACTIVATIONS[name].with_derivative(z)[1]).sum(), z, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_finite_in_the_tails(name):
    for dtype in (torch.float32, DOUBLE):
        z = torch.tensor([-1e4, -200.0, 200.0, 1e4], dtype=dtype)
        for part in (*ACTIVATIONS[name].with_derivatives(z), *ACTIVATIONS[name].with_derivative(z)):
            assert part.dtype == dtype
            assert part.isfinite().all()


# ------------------------------------------------------------------------------
# Derivatives of networks
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("part", leading(1, range(8)))
@pytest.mark.parametrize("activation", leading(2, ACTIVATIONS))
def test_derivatives_of_perceptrons_equal_autograd(activation, part):
    """All eight parts are all settings; each has every pair of two settings."""
    for flags in itertools.product([False, True], repeat=6):
        residual, spectral_norm, levels, own, reconstructs, waves = flags
        signs = (
            residual ^ spectral_norm ^ levels,
            spectral_norm ^ own ^ reconstructs,
            levels ^ own ^ waves,
        )
        if part == sum(2**i for i, sign in enumerate(signs) if sign):
            with about(flags):
                check_derivatives(activation, *flags)


def check_derivatives(activation, residual, spectral_norm, levels, own, reconstructs, waves):
    """Values, gradients, second derivatives and how they change with the weights, as autograd's.

    The first layer is as wide as the rows and waves of them: with `residual` it has a skip, too.
    Directions are of each row (`own`) or of all.
    """
    width = 7 if waves else 3
    config = MLP((width, width, 4), activation, residual, spectral_norm)
    config.set_params(n_frequencies=2 * waves, frequency_scale=1.5)
    whitening = whitening_of(normal_base(3)) if reconstructs else None
    network = build(config, (3,), levels=levels, whitening=whitening).eval()
    plain, x = Plain(network), standard_normal(5, 3)
    cond = (levels_of(5).log(),) if levels else ()
    directions = standard_normal(5, 2, 3, seed=3) if own else standard_normal(2, 3, seed=3)
    found, expected = (
        value_and_input_grad_of(network, x, *cond),
        value_and_input_grad_of(plain, x, *cond),
    )
    assert_all_close(found, expected)
    torch.testing.assert_close(found.value, network(x, *cond))
    second = second_derivatives_of(network, x, directions, *cond)
    assert_all_close(second, second_derivatives_of(plain, x, directions, *cond))
    torch.testing.assert_close(second.grad, found.grad)
    mark = standard_normal(5, 3, seed=4)
    for function in (
        lambda f: (value_and_input_grad_of(f, x, *cond).grad * mark).sum(),
        lambda f: value_and_input_grad_of(f, x, *cond).value.square().sum(),
        lambda f: (second_derivatives_of(f, x, directions, *cond).grad * mark).square().sum(),
        lambda f: second_derivatives_of(f, x, directions, *cond).second_derivative.square().sum(),
    ):
        assert_all_close(gradients(function, network), gradients(function, plain))


def hessians(function, x):
    """Second derivatives of each row, (n, d, d), by finite differences of autograd's gradient."""
    x = x.detach()

    def grad(rows):
        rows = rows.clone().requires_grad_(True)
        return torch.autograd.grad(function(rows).sum(), rows)[0].detach()

    found = torch.empty(*x.shape, x.shape[1], dtype=x.dtype)
    for i, axis in enumerate(torch.eye(x.shape[1], dtype=x.dtype)):
        found[..., i] = (grad(x + 1e-5 * axis) - grad(x - 1e-5 * axis)) / 2e-5
    return found


@pytest.mark.parametrize("name", [*NEURAL, "walled", "in a box"])
@pytest.mark.parametrize("own", ["of its own", "for all"])
def test_second_derivatives_of_energies_equal_hessians(name, own):
    special = {"walled": lambda: walled(lower=-9.0), "in a box": lambda: walled(3, -9.0, 9.0)}
    energy = (NEURAL | special)[name]().eval()
    x = standard_normal(4, energy.domain.n_columns)
    directions = standard_normal(*((4,) if own == "of its own" else ()), 2, x.shape[1], seed=3)
    found = energy.second_derivatives(x, directions)
    v = directions.expand(4, 2, -1)
    expected = torch.einsum("nki,nij,nkj->n", v, hessians(energy, x), v)
    torch.testing.assert_close(found.second_derivative, expected, rtol=1e-6, atol=1e-6)
    value, grad = energy.value_and_input_grad(x)
    torch.testing.assert_close(found.grad, grad)
    torch.testing.assert_close(value, energy(x))
    assert grad.shape == x.shape


@pytest.mark.parametrize("name", [name for name in NEURAL if "levels" in name])
def test_gradients_at_each_noise_level(name):
    energy = NEURAL[name]()
    x, sigma = standard_normal(4, energy.domain.n_columns), levels_of(4)
    expected = row_gradients(lambda rows: energy(rows, sigma), x)
    torch.testing.assert_close(
        energy.value_and_input_grad(x, sigma).grad, expected, rtol=1e-6, atol=1e-6
    )
    value, grad = energy.value_and_grad(x, sigma)
    torch.testing.assert_close(grad, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(value, energy(x, sigma).detach())
    lowest = torch.full((4,), LEVELS[0], dtype=DOUBLE)
    torch.testing.assert_close(energy(x), energy(x, lowest))
    assert (energy(x, sigma) - energy(x)).abs().min() > 1e-3


@pytest.mark.parametrize("name", NEURAL)
def test_gradients_are_differentiable_by_the_weights(name):
    """Against central differences of a function of the gradient."""
    energy = NEURAL[name]()
    x = standard_normal(3, energy.domain.n_columns)
    mark = standard_normal(*x.shape, seed=4)
    p = next(energy.parameters())
    (found,) = torch.autograd.grad((energy.value_and_input_grad(x).grad * mark).sum(), p)

    def at(value):
        kept = p.detach().clone()
        with torch.no_grad():
            p.copy_(value)
            out = (energy.value_and_input_grad(x).grad * mark).sum().item()
            p.copy_(kept)
        return out

    expected = finite_difference(at, p.detach())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_derivatives_of_a_network_that_ignores_x_are_zero():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.level = nn.Parameter(torch.ones((), dtype=DOUBLE))

        def forward(self, x):
            return self.level.expand(len(x))

    x, base = standard_normal(4, 3), normal_base(3)
    value, grad = value_and_input_grad_of(Constant(), x)
    assert torch.equal(grad, torch.zeros_like(x))
    assert value.tolist() == [1.0] * 4
    assert not second_derivatives_of(
        Constant(), x, torch.eye(3, dtype=DOUBLE)
    ).second_derivative.any()
    energy = NeuralEnergy(Constant(), Real((3,)), base)
    torch.testing.assert_close(energy.value_and_input_grad(x).grad, -base.score(x))
    second = energy.second_derivatives(x, torch.eye(3, dtype=DOUBLE)).second_derivative
    torch.testing.assert_close(second, base.covariance.inverse().trace().expand(4))


def test_second_derivatives_of_a_linear_network_are_zero():
    linear = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).to(DOUBLE)
    grad, second = second_derivatives_of(linear, standard_normal(4, 3), torch.eye(3, dtype=DOUBLE))
    torch.testing.assert_close(grad, linear[0].weight.expand(4, 3))
    assert not second.any()


def test_a_network_detached_from_x_is_refused():
    class Rounded(nn.Module):
        def forward(self, x):
            return x.detach().round().sum(1)

    for differentiate in (
        value_and_input_grad_of,
        lambda f, x: second_derivatives_of(f, x, torch.eye(3, dtype=DOUBLE)),
    ):
        with pytest.raises(TypeError, match="Rounded is not differentiable"):
            differentiate(Rounded(), standard_normal(4, 3))


def test_no_gradients_in_inference_mode():
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        neural().value_and_grad(standard_normal(2, 3))


def test_a_uniform_base_adds_no_gradient():
    box = Uniform(Real((3,), -9.0, 9.0), dtype=DOUBLE)
    x, eye = standard_normal(4, 3), torch.eye(3, dtype=DOUBLE)
    on_box, alone = neural(base=box), neural(base=None)
    assert_all_close(on_box.second_derivatives(x, eye), alone.second_derivatives(x, eye))
    torch.testing.assert_close(
        on_box.value_and_input_grad(x).grad, alone.value_and_input_grad(x).grad
    )


# ------------------------------------------------------------------------------
# The base
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        MLP((5,)),
        MLP((5,), spectral_norm=True),
        MLP((5,), n_frequencies=3),
        Conv((2, 3)),
        ResNet(),
        ResNet(norm=None),
    ],
)
@pytest.mark.parametrize("levels", [False, True])
def test_the_model_starts_at_its_base(config, levels):
    shape = (6,) if isinstance(config, MLP) else (1, 2, 3)
    network = build_network(config, Spec(shape, seeded(), DOUBLE, levels))
    base = normal_base(6)
    energy = NeuralEnergy(
        network,
        Real((6,)),
        base,
        image_shape=shape if len(shape) > 1 else None,
        noise_levels=LEVELS if levels else None,
    )
    x, sigma = standard_normal(4, 6), levels_of(4) if levels else None
    if levels:
        expected = [base.convolved(float(s)).log_prob(row[None]) for s, row in zip(sigma, x)]  # noqa: B905
        expected = -torch.cat(expected)
    else:
        expected = -base.log_prob(x)
    torch.testing.assert_close(energy(x, sigma), expected)
    for p in network.parameters():  # and leaves it at the first step
        assert p.isfinite().all()
    energy(x, sigma).sum().backward()
    grads = {name: p.grad for name, p in network.named_parameters()}
    assert grads["last"].isfinite().all()
    assert grads["last"].any()


@pytest.mark.parametrize("dense", [True, False])
def test_a_noisy_normal_is_the_convolution(dense):
    base = (
        normal_base(3)
        if dense
        else Gaussian(standard_normal(3), standard_normal(3, seed=2).abs() + 0.2)
    )
    noisy, x, sigma = NoisyNormal(base), standard_normal(5, 3), levels_of(5)
    value, grad = noisy(x, sigma)
    for i, s in enumerate(sigma.tolist()):
        convolved = base.convolved(s)
        torch.testing.assert_close(value[i : i + 1], convolved.log_prob(x[i : i + 1]))
        torch.testing.assert_close(grad[i : i + 1], convolved.score(x[i : i + 1]))
        torch.testing.assert_close(noisy.at(s).covariance, convolved.covariance)
        torch.testing.assert_close(noisy.at(s).mean, convolved.mean)


def test_noise_levels_need_a_normal_base():
    for base in (mixture_base(3), TruncatedGaussian(torch.zeros(3), 1.0, 0.0)):
        with pytest.raises(ValueError, match="normal base"):
            neural(base=base, noise_levels=LEVELS)


# ------------------------------------------------------------------------------
# Building
# ------------------------------------------------------------------------------

CONFIGS = {
    "perceptron": (MLP((5, 4)), (3,)),
    "normed": (MLP((5, 4), spectral_norm=True), (3,)),
    "fourier": (MLP((5, 4), n_frequencies=3), (3,)),
    "convolution": (Conv((3, 4)), (1, 4, 4)),
    "normed convolution": (Conv((3, 4), spectral_norm=True), (2, 4, 5)),
    "scales": (Conv((3, 4), n_scales=3), (2, 4, 5)),
    "residual images": (ResNet(), (1, 4, 4)),
    "residual images without norms": (ResNet(16, norm=None), (2, 4, 5)),
    "callable": (lambda spec: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), (3,)),
}


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_weights_depend_on_the_generator_only(name, levels):
    config, shape = CONFIGS[name]
    if name == "callable" and levels:
        pytest.skip("takes no levels")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    generator = seeded(3)
    one = build_network(config, Spec(shape, generator, torch.float32, levels))
    two = build_network(config, Spec(shape, generator, torch.float32, levels))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    again = build_network(config, Spec(shape, seeded(3), torch.float32, levels))
    tensors = [list(net.state_dict().values()) for net in (one, two, again)]
    assert all(map(torch.equal, tensors[0], tensors[2]))
    assert not all(map(torch.equal, tensors[0], tensors[1]))


@pytest.mark.parametrize(
    "config",
    [
        MLP((5,), spectral_norm=True),
        Conv((2,), spectral_norm=True),
        Conv((2,), spectral_norm=True, n_scales=2),
    ],
)
def test_building_leaves_the_global_generator_alone(config):
    before = torch.get_rng_state()
    shape = (3,) if isinstance(config, MLP) else (1, 4, 4)
    network = config.build(Spec(shape, seeded()))
    network(torch.zeros(2, *shape))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("name", CONFIGS)
def test_networks_have_the_requested_precision(name, dtype):
    config, shape = CONFIGS[name]
    network = build_network(config, Spec(shape, seeded(), dtype))
    assert {v.dtype for v in network.state_dict().values()} == {dtype}
    assert network(torch.zeros(3, *shape, dtype=dtype)).dtype == dtype
    assert network.training


def test_a_module_is_copied_with_its_weights():
    module = user_module(3)
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    built = build_network(module, Spec((3,), seeded(), torch.float32))
    assert built is not module
    for name, value in built.state_dict().items():
        torch.testing.assert_close(value, kept[name].float())
        assert value.dtype == torch.float32
    with torch.no_grad():
        for p in built.parameters():
            p.add_(1.0)
    for name, value in module.state_dict().items():
        assert torch.equal(value, kept[name])


@pytest.mark.parametrize("levels", [False, True])
def test_checking_the_output_changes_nothing(levels):
    """Running means and dropout masks belong to training."""

    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop, self.last = nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1)
            self.frozen = nn.BatchNorm1d(3).eval()

        def forward(self, x, *cond):
            return self.last(self.drop(self.frozen(self.norm(x)))).squeeze(1)

    before = torch.get_rng_state()
    module = Running()
    torch.set_rng_state(before)
    built = build_network(module, Spec((3,), seeded(), noise_levels=levels))
    assert torch.equal(torch.get_rng_state(), before)
    for norm in (built.norm, built.frozen):
        assert norm.num_batches_tracked == 0
        assert not norm.running_mean.any()
    assert built.training
    assert built.norm.training
    assert not built.frozen.training


@pytest.mark.parametrize("n_frequencies", [0, 1, 6])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_spectral_norms_bound_the_gradient(spread, n_frequencies):
    """Three layers of at most 1.1 each, an output layer of norm one, and the Fourier features."""
    network = build(MLP((8, 8, 8), spectral_norm=True, n_frequencies=n_frequencies), (4,))
    of_features = 1.0
    if n_frequencies:
        norm = torch.linalg.matrix_norm(network.fourier.frequencies, 2).item()
        assert norm > 2.0
        of_features = math.hypot(1.0, norm)
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(30.0)
    for _ in range(20):  # training looks again and again, which sharpens the norms
        network(standard_normal(2, 4))
    grad = value_and_input_grad_of(network.eval(), spread * standard_normal(200, 4)).grad
    assert grad.norm(dim=1).max() < 1.1**3 * of_features
    assert grad.norm(dim=1).max() > 1e-3


def test_fourier_features_are_isometric_up_to_scale():
    """The bound is that of the singular values of B, and it is reached at every row."""
    fourier = MLP(n_frequencies=5).build(Spec((3,), seeded(), DOUBLE)).fourier
    singular = torch.linalg.svdvals(fourier.frequencies)
    for row in 3 * standard_normal(6, 3):
        jacobian = torch.autograd.functional.jacobian(lambda x: fourier(x[None])[0], row)
        assert jacobian.shape == (13, 3)
        torch.testing.assert_close(torch.linalg.svdvals(jacobian), (1 + singular.square()).sqrt())


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_products_of_fourier_features_are_a_normal_kernel(scale):
    """Rahimi and Recht 2007: their mean is exp(-scale^2 |x - y|^2 / 2), besides that of rows."""
    n = 20_000
    config = MLP((1,), n_frequencies=n, frequency_scale=scale)
    fourier = config.build(Spec((2,), seeded(), DOUBLE)).fourier
    x = standard_normal(8, 2) / scale
    found = (fourier(x) @ fourier(x).t() - x @ x.t()) / n
    kernel = (-(scale**2) * torch.cdist(x, x).square() / 2).exp()
    # The variance of the cosine of a normal phase.
    error = ((1 - kernel.square()) ** 2 / (2 * n)).sqrt()
    assert ((found - kernel).abs() < 4.5 * error + 1e-9).all()
    assert kernel.min() < 0.2


@full
@pytest.mark.parametrize("name", ["rings", "pinwheel"])
def test_fourier_features_on_a_gaussian_are_nearly_as_good_as_a_stack(name):
    """Within a tenth of a nat; a network of the rows alone misses 0.74 nats of the rings."""
    X = sample(name, 2000, 1)
    stack = TractableDensity("stack", random_state=0).fit(X)
    model = NCEDensity(MLP(n_frequencies=32), noise="gaussian", random_state=0).fit(X)
    missed = kl_divergence(name, lambda x: -model.energy(x), 160)
    assert missed < kl_divergence(name, stack.score_samples, 160) + 0.1


def test_fourier_features_are_part_of_the_state():
    """The weights alone would be useless with other frequencies."""
    config = MLP((5,), n_frequencies=3)
    one, two = build(config, (3,), seed=1), build(config, (3,), seed=2)
    x, before = standard_normal(4, 3), two(standard_normal(4, 3))
    assert "fourier.frequencies" in one.state_dict()
    assert not torch.equal(one.fourier.frequencies, two.fourier.frequencies)
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x), two(x))
    assert not torch.equal(before, two(x))
    assert torch.equal(one(x), pickle.loads(pickle.dumps(one))(x))
    trained = {name for name, _ in one.named_parameters()}
    assert trained == {"layers.0.weight", "layers.0.bias", "last"}


def test_a_fitted_density_keeps_its_fourier_features():
    rows = standard_normal(60, 2).numpy()
    network = MLP((4,), n_frequencies=3)
    kind = {"base": "gaussian", "n_iter": 2, "learning_rate": 0.1, "random_state": 0}
    model = ScoreMatchingDensity(network, **kind).fit(rows)
    again = pickle.loads(pickle.dumps(model))
    frequencies = again.energy_.network.fourier.frequencies
    assert torch.equal(frequencies, model.energy_.network.fourier.frequencies)
    assert again.energy(rows).tolist() == model.energy(rows).tolist()
    fewer = clone(model).set_params(network__n_frequencies=2).fit(rows)
    assert fewer.energy_.network.fourier.frequencies.shape == (2, 2)


@pytest.mark.parametrize("spectral_norm", [False, True])
def test_no_frequencies_are_no_draws(spectral_norm):
    """The network of x alone is what it would be without the parameter."""
    config, generator = MLP((5, 4), spectral_norm=spectral_norm), seeded(3)
    assert config.n_frequencies == 0
    network = config.build(Spec((3,), generator))
    other = seeded(3)
    with seeded_globally(other):  # the one draw that weights take
        pass
    assert torch.equal(generator.get_state(), other.get_state())
    assert network.fourier is None
    assert network.layers[0].in_features == 3
    names = {name for name in network.state_dict() if "weight" not in name}
    assert names == {"last", "layers.0.bias", "layers.1.bias"}
    twin = clone(config).set_params(frequency_scale=9.0).build(Spec((3,), seeded(3)))
    for name, value in network.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name])


def test_a_convolution_depends_on_every_pixel():
    network = build(Conv((3, 4, 2), spectral_norm=True), (2, 5, 7)).eval()
    x = standard_normal(3, 2, 5, 7)
    assert (value_and_input_grad_of(network, x).grad.abs().amax(0) > 0).all()
    assert network(x).shape == (3,)


def block_means(x, size):
    """Means of blocks of pixels and of what is left of them at the border, one at a time."""
    return torch.stack(
        [
            torch.stack(
                [
                    x[:, :, i : i + size, j : j + size].mean((2, 3))
                    for j in range(0, x.shape[3], size)
                ],
                2,
            )
            for i in range(0, x.shape[2], size)
        ],
        2,
    )


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("spectral_norm", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 5, 7), (3, 9, 1)], ids=str)
def test_scales_are_networks_of_block_means(shape, spectral_norm, levels):
    config = Conv((3, 4), spectral_norm=spectral_norm, n_scales=4)
    network = build(config, shape, levels=levels).eval()
    x, cond = standard_normal(4, *shape), (levels_of(4).log(),) if levels else ()
    expected = torch.zeros(4, dtype=DOUBLE)
    for s, part in enumerate(network.scales):
        value = part(block_means(x, 2**s), *cond)
        assert value.unique().numel() == 4
        expected += value
    assert len(network.scales) == 4
    torch.testing.assert_close(network(x, *cond), expected)
    grad = value_and_input_grad_of(network, x, *cond).grad
    assert (grad.abs().amax(0) > 0).all()


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("spectral_norm", [False, True])
def test_the_first_scale_is_the_network_of_one(spectral_norm, levels):
    """Of the same seed, layer by layer as torch starts them; one scale is no sum of scales."""
    spec = Spec((2, 4, 5), seeded(), DOUBLE, levels)
    one = Conv((3, 4), spectral_norm=spectral_norm, n_scales=1).build(spec)
    spec = Spec((2, 4, 5), seeded(), DOUBLE, levels)
    two = Conv((3, 4), spectral_norm=spectral_norm, n_scales=2).build(spec)
    assert Conv().n_scales == 1
    assert set(one.state_dict()) >= {"last"}
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[f"scales.0.{name}"])
    x, cond = standard_normal(4, 2, 4, 5), (levels_of(4).log(),) if levels else ()
    assert not two(x, *cond).any()
    if not spectral_norm and not levels:
        with seeded_globally(seeded()):
            first = nn.Conv2d(2, 3, 3, padding=1)
        assert torch.equal(one.layers[0].weight, first.weight.double())


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 2, 2), (3, 4, 4), (1, 5, 3), (1, 28, 28)], ids=str
)
def test_scales_end_at_one_pixel(shape):
    sizes = [max(shape[1:])]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    network = Conv((2,), n_scales=len(sizes)).build(Spec(shape, seeded()))
    assert network(torch.zeros(3, *shape)).tolist() == [0.0] * 3
    with pytest.raises(ValueError, match=rf"too many for images of shape \({shape[0]}, "):
        Conv((2,), n_scales=len(sizes) + 1).build(Spec(shape, seeded()))


@pytest.mark.parametrize("n_scales", [0, -1, 1.5, True, None, "2"])
def test_invalid_numbers_of_scales_are_refused(n_scales):
    with pytest.raises(ValueError, match="n_scales must be an integer"):
        Conv((2,), n_scales=n_scales).build(Spec((1, 4, 4), seeded()))


def test_configurations_satisfy_scikit_learn():
    twin = clone(MLP((7,), "gelu", residual=True))
    assert twin.get_params()["hidden_sizes"] == (7,)
    assert twin.get_params()["n_frequencies"] == 0
    twin = clone(MLP(n_frequencies=6, frequency_scale=0.5))
    assert twin.get_params()["n_frequencies"] == 6
    assert twin.set_params(frequency_scale=3).build(Spec((2,), seeded())).fourier.n_features == 14
    assert clone(Conv((2,))).set_params(activation="tanh").activation == "tanh"
    one = MLP(hidden_sizes=9).build(Spec((2,), seeded()))
    assert [layer.out_features for layer in one.layers] == [9]


# ------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------


class Returns(nn.Module):
    """A network that returns what a function makes of rows."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *cond):
        return self.function(x)


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: x, r"\(2, 3\)"),
        (lambda x: x.sum(), r"\(\)"),
        (lambda x: (x.sum(1), x), "tuple"),
        (lambda x: 0.0, "float"),
        (lambda x: x[:, :1].squeeze(), r"\(\)"),  # fails for one row alone
    ],
)
def test_networks_return_one_number_per_row(function, found, levels):
    with pytest.raises(ValueError, match=f"one number per row.*returned {found}"):
        build_network(Returns(function), Spec((3,), seeded(), noise_levels=levels))


def test_builders_of_other_than_modules_are_refused():
    with pytest.raises(TypeError, match="must build a torch.nn.Module"):
        build_network(lambda spec: 3, Spec((3,), seeded()))


@pytest.mark.parametrize("shape", [(4,), (4, 4)])
@pytest.mark.parametrize("config", [Conv, ResNet])
def test_convolutions_refuse_rows_that_are_no_images(config, shape):
    with pytest.raises(ValueError, match=f"{config.__name__} takes images"):
        build_network(config(), Spec(shape, seeded()))


@pytest.mark.parametrize("config", [Conv, ResNet])
def test_convolutions_refuse_channels_last(config):
    for shape in ((28, 28, 1), (28, 20, 3), (5, 5, 4)):
        with pytest.raises(ValueError, match=r"channels last: pass X.transpose\(0, 3, 1, 2\)"):
            build_network(config(), Spec(shape, seeded()))
    for shape in ((4, 28, 1), (1, 28, 28), (28, 1, 28), (5, 5, 5)):
        build_network(config(), Spec(shape, seeded()))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"depth": 12}, "6 n \\+ 4"),
        ({"depth": 4}, "depth must be an integer of at least 10"),
        ({"width": 0}, "width must be"),
        ({"width": 1.5}, "width must be"),
        ({"norm": "batch"}, "norm must be .*depend on the other ones"),
        ({"width": 10**6}, "memory"),
    ],
)
def test_residual_networks_that_are_refused(params, message):
    with pytest.raises((ValueError, MemoryError), match=message):
        ResNet(**params).build(Spec((1, 8, 8), seeded()))


def test_a_residual_network_has_the_layers_of_its_depth():
    """Wide residual networks: 6 n layers in blocks, the first and the last one, two shortcuts."""
    for depth, width in ((10, 1), (16, 2)):
        network = ResNet(depth, width).build(Spec((3, 8, 8), seeded(), n_classes=5))
        sizes = [m.kernel_size[0] for m in network.modules() if isinstance(m, nn.Conv2d)]
        assert sizes.count(3) == depth - 3
        assert sizes.count(1) == (2 if width == 1 else 3)
        assert network.last.shape == (64 * width * 2 * 2, 5)


@pytest.mark.parametrize("norm", ["group", None])
def test_features_of_any_depth_have_about_the_variance_of_the_image(norm):
    network = ResNet(28, norm=norm).build(Spec((3, 16, 16), seeded()))
    x = network.first(torch.randn(100, 3, 16, 16, generator=seeded(1)))
    with torch.no_grad():
        for block in network.blocks:
            x = block(x)
    assert 0.5 < x.var() < (2 if norm is None else 13)  # 12 blocks add about 1 each


def test_perceptrons_refuse_images():
    with pytest.raises(ValueError, match=r"MLP takes flat rows.*\(n, 16\)"):
        build_network(MLP(), Spec((1, 4, 4), seeded()))


@pytest.mark.parametrize("config", [MLP, Conv, ResNet])
@pytest.mark.parametrize("activation", ["relu", "ReLU", None, nn.SiLU])
def test_activations_without_second_derivatives_are_refused(config, activation):
    shape = (3,) if config is MLP else (1, 4, 4)
    with pytest.raises(ValueError, match="activation must be"):
        config(activation=activation).build(Spec(shape, seeded()))


@pytest.mark.parametrize("sizes", [(), (0,), (8, 0), (8, -1), (8.0,), 0, "8"])
@pytest.mark.parametrize("config", [MLP, Conv])
def test_empty_layers_are_refused(config, sizes):
    name, shape = ("hidden_sizes", (3,)) if config is MLP else ("channels", (1, 4, 4))
    wanted = "must hold the size" if sizes == () else "must be an integer of at least 1"
    with pytest.raises(ValueError, match=f"{name} {wanted}"):
        config(sizes).build(Spec(shape, seeded()))


@pytest.mark.parametrize("n_frequencies", [-1, 1.5, True, None, "2"])
def test_invalid_numbers_of_frequencies_are_refused(n_frequencies):
    with pytest.raises(ValueError, match="n_frequencies must be"):
        MLP(n_frequencies=n_frequencies).build(Spec((3,), seeded()))


@pytest.mark.parametrize("scale", [0, -1.0, math.inf, math.nan, True, None, "4", (1.0, 2.0)])
@pytest.mark.parametrize("n_frequencies", [0, 2])
def test_invalid_scales_of_frequencies_are_refused(scale, n_frequencies):
    config = MLP(n_frequencies=n_frequencies, frequency_scale=scale)
    with pytest.raises(ValueError, match="frequency_scale must be"):
        config.build(Spec((3,), seeded()))


# ------------------------------------------------------------------------------
# Initial energies
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [None, 3])
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MLP(), (2,)),
        (MLP(), (20,)),
        (Conv((4, 4), n_scales=2), (1, 6, 6)),
        (ResNet(), (1, 6, 6)),
        (ResNet(norm=None), (1, 6, 6)),
    ],
    ids=str,
)
def test_an_untrained_energy_without_base_and_bounds_grows(config, shape, n_classes):
    network = build_network(config, Spec(shape, seeded(), n_classes=n_classes, confining=True))

    def energy(x):
        found = network(x.reshape(-1, *shape))
        return found if n_classes is None else -found.logsumexp(1)

    directions = F.normalize(torch.randn(500, math.prod(shape), generator=seeded(1)))
    near, far = energy(directions), energy(1e5 * directions)
    assert (far - near > math.prod(shape) * math.log(1e5)).all()


def test_an_untrained_energy_with_a_base_is_the_base():
    network = build_network(MLP(), Spec((2,), seeded()))
    assert not network(torch.randn(5, 2, generator=seeded(1))).any()
