"""Configurations of fully connected networks, for ``network=`` of the estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from numbers import Real
from typing import Any, NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from skebm.base.energy import DirectionalDerivatives, ValueAndInputGrad
from skebm.base.processes import seed_modules
from skebm.base.sampler import whole_number, whole_numbers
from skebm.base.torchtools import check_memory, softplus
from skebm.energies.factory import Spec


class Activation(NamedTuple):
    """An activation function: its value, also with its first and its first two derivatives."""

    value: Callable[[Tensor], Tensor]
    with_derivative: Callable[[Tensor], tuple[Tensor, Tensor]]
    with_derivatives: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class SiluWithDerivative(torch.autograd.Function):
    """z sigmoid(z) and its derivative, in few operations forward and backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        sigmoid = torch.sigmoid(z)
        value = z * sigmoid
        derivative = (1 + z - value).mul_(sigmoid)
        ctx.save_for_backward(sigmoid, derivative)
        return value, derivative

    @staticmethod
    @once_differentiable  # a second backward pass would take `sigmoid` for a constant
    def backward(ctx: Any, grad_value: Tensor, grad_derivative: Tensor) -> Tensor:
        sigmoid, derivative = ctx.saved_tensors
        second = (sigmoid + derivative).addcmul_(sigmoid, derivative, value=-2)
        return (grad_value * derivative).addcmul_(grad_derivative, second)


def _silu_derivatives(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sigmoid = torch.sigmoid(z)
    value = z * sigmoid
    derivative = sigmoid * (1 + z - value)
    return value, derivative, sigmoid + derivative - 2 * sigmoid * derivative


def _softplus_derivatives(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sigmoid = torch.sigmoid(z)
    return softplus(z), sigmoid, sigmoid * (1 - sigmoid)


def _tanh_derivatives(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = torch.tanh(z)
    derivative = 1 - value.square()
    return value, derivative, -2 * value * derivative


def _gelu_derivatives(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cdf = torch.special.ndtr(z)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return z * cdf, cdf + z * density, density * (2 - z.square())


def _activation(value: Callable[[Tensor], Tensor], derivatives: Any) -> Activation:
    return Activation(value, lambda z: derivatives(z)[:2], derivatives)


# Only smooth ones: the second derivative of ReLU and the like is zero, which score matching needs.
ACTIVATIONS = {
    "silu": Activation(F.silu, SiluWithDerivative.apply, _silu_derivatives),
    "softplus": _activation(softplus, _softplus_derivatives),
    "tanh": _activation(torch.tanh, _tanh_derivatives),
    "gelu": _activation(F.gelu, _gelu_derivatives),
}


# A function of logits (n, K) that returns its values (n,) and its gradients (n, K).
Head = Callable[[Tensor], tuple[Tensor, Tensor]]

# Frequencies of the sine and cosine features of the logarithm of a noise level.
LEVEL_FREQUENCIES = (0.5, 1.0, 2.0, 4.0)


class MLP(BaseEstimator):
    r"""Fully connected network of flat rows with a scalar output and smooth activations.

    .. math:: a_l = \phi(W_l a_{l-1} + b_l) \; (+ a_{l-1}), \qquad f(x) = w^\top a_L
        \quad\text{or}\quad f(x) = \tfrac12 |y - o|^2 - \tfrac12 |y|^2

    with :math:`o = W a_L + b` and the whitened row :math:`y = A (x - \mu)`. The second form is half
    the squared error of the network's reconstruction of the row [3]_, less that of a reconstruction
    by the mean, which the base already contains. f starts at zero, so that the initial model is the
    base; without base and bounds it starts as a multiple of the mean feature, which grows with the
    distance. Derivatives are explicit: the gradient with respect to the row is a backward pass of
    its own, which makes training cheaper than with autograd's double backward. Second derivatives
    are propagated forward through the layers [1]_; k directions cost k + 2 passes.

    With `n_frequencies`, random Fourier features are appended to the input [4]_,

    .. math:: a_0 = (x, \sin(x B), \cos(x B)), \qquad B_{ij} \sim N(0, s^2),

    where B is drawn once and not trained. A network of x alone learns slowly varying functions
    first and sharp edges late, if at all; with Fourier features the initial functions vary over
    distances of 1 / s [5]_.

    A classifier has logits in place of f, :math:`W a_L + b`.

    Parameters
    ----------
    hidden_sizes : sequence of int, default=(128, 128)
        Units of the hidden layers, at least one layer.
    activation : {"silu", "softplus", "tanh", "gelu"}, default="silu"
        Smooth activations only, because score matching needs second derivatives.
    residual : bool, default=False
        Add the previous hidden layer to each one of the same size.
    spectral_norm : bool, default=False
        Divide each matrix by its largest singular value [2]_. The Lipschitz constant of f (of o) is
        then at most that of the activations, about 1.1 per layer (2.1 with `residual`), times that
        of the Fourier features, :math:`(1 + |B|^2)^{1/2}` with the largest singular value of B:
        about :math:`s \, (d^{1/2} + n^{1/2})` for n frequencies of d columns.
    output : {"auto", "sum", "reconstruction"}, default="auto"
        Form of f: the first or the second one. ``"auto"`` is ``"reconstruction"`` where the base
        has a whitening, that is for normal distributions, mixtures, kernels and stacks; on tables
        it learns faster and ranks anomalies better.
    n_frequencies : int >= 0, default=0
        Columns of B; 0 is no Fourier features. They help in tables of two or three columns whose
        density has sharper edges than the base; 64 is a good value then. With many columns no
        feasible number covers all directions, and high frequencies mostly fit noise.
    frequency_scale : float > 0, default=2.0
        s, standard deviation of the frequencies, in radians per unit of the network's input: per
        standard deviation of standardised columns, or per distance between the bounds of a column
        that has both. The larger s is, the more easily contrastive divergence makes the energy too
        low where the base has almost no mass and no chain arrives; 1 or 2 are safer there.

    References
    ----------
    .. [1] Li et al. (2024), "A computational framework for neural network-based variational Monte
       Carlo with Forward Laplacian", Nature Machine Intelligence 6.
    .. [2] Miyato, Kataoka, Koyama and Yoshida (2018), "Spectral normalization for generative
       adversarial networks", ICLR.
    .. [3] Salimans and Ho (2021), "Should EBMs model the energy or the score?", ICLR workshop on
       energy based models (energies of the form of a squared error).
    .. [4] Tancik et al. (2020), "Fourier features let networks learn high frequency functions in
       low dimensional domains", NeurIPS, section 6.1 (Gaussian frequencies).
    .. [5] Rahimi and Recht (2007), "Random features for large-scale kernel machines", NeurIPS,
       section 3.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import MLP, Spec
    >>> network = MLP(hidden_sizes=(32,)).build(Spec((4,), torch.Generator().manual_seed(0)))
    >>> network(torch.zeros(5, 4))
    tensor([0., 0., 0., 0., 0.], grad_fn=<MvBackward0>)
    >>> network = MLP((32,), n_frequencies=8).build(Spec((4,), torch.Generator().manual_seed(0)))
    >>> network.layers[0].in_features  # 4 columns, 8 sines, 8 cosines
    20
    """

    def __init__(
        self,
        hidden_sizes: Sequence[int] = (128, 128),
        activation: str = "silu",
        residual: bool = False,
        spectral_norm: bool = False,
        output: str = "auto",
        n_frequencies: int = 0,
        frequency_scale: float = 2.0,
    ):
        self.hidden_sizes = hidden_sizes
        self.activation = activation
        self.residual = residual
        self.spectral_norm = spectral_norm
        self.output = output
        self.n_frequencies = n_frequencies
        self.frequency_scale = frequency_scale

    def build(self, spec: Spec) -> MLPNetwork:
        """Build the network for flat rows; `ValueError` for other rows and invalid parameters."""
        sizes = sizes_of("hidden_sizes", self.hidden_sizes)
        if len(spec.shape) != 1:
            raise ValueError(
                f"MLP takes flat rows, not rows of shape {spec.shape}: flatten them to "
                f"(n, {math.prod(spec.shape)}), or use network=Conv()."
            )
        if self.output not in ("auto", "sum", "reconstruction"):
            raise ValueError(
                f'output must be "auto", "sum" or "reconstruction", got {self.output!r}.'
            )
        if self.output == "reconstruction" and spec.n_classes is not None:
            raise ValueError(
                'output="reconstruction" is one number per row, but a classifier needs a logit for '
                'each class: use output="auto".'
            )
        if self.output == "reconstruction" and spec.whitening is None:
            raise ValueError(
                'output="reconstruction" needs a base with a whitening (a normal distribution, a '
                'mixture or a kernel density) and at most one noise level. Use output="sum".'
            )
        if self.output == "sum" or spec.n_classes is not None:
            spec = spec._replace(whitening=None)
        activation = activation_of(self.activation)
        widths = (*spec.shape, *sizes)
        n_weights = sum(a * b for a, b in zip(widths, widths[1:], strict=False))
        check_memory(f"hidden_sizes={sizes} of MLP", n_weights, spec.dtype, spec.generator.device)
        fourier = self._fourier_features(spec)
        with seed_modules(spec.generator):
            built = MLPNetwork(spec, sizes, activation, self.residual, self.spectral_norm, fourier)
        return built.to(spec.generator.device, spec.dtype)

    def _fourier_features(self, spec: Spec) -> FourierFeatures | None:
        """The random Fourier features; None, without a draw, for no frequencies."""
        scale = self.frequency_scale
        whole_number("n_frequencies", self.n_frequencies, 0)
        if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < scale < math.inf:
            raise ValueError(f"frequency_scale must be positive and finite, got {scale!r}.")
        if not self.n_frequencies:
            return None
        size, generator = (spec.shape[0], int(self.n_frequencies)), spec.generator
        drawn = torch.randn(size, generator=generator, device=generator.device)
        return FourierFeatures(float(scale) * drawn)


class FourierFeatures(nn.Module):
    """Rows with random Fourier features, (x, sin(x B), cos(x B)); B is not trained."""

    frequencies: Tensor

    def __init__(self, frequencies: Tensor):
        super().__init__()
        self.register_buffer("frequencies", frequencies)  # persistent, because it is random
        self.n_features = len(frequencies) + 2 * frequencies.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        phase = x @ self.frequencies
        return torch.cat([x, phase.sin(), phase.cos()], 1)

    def _split(self, a: Tensor) -> tuple[Tensor, ...]:
        d, n = self.frequencies.shape
        return a.split([d, n, n], 1)

    def input_grad(self, g: Tensor, features: Tensor) -> Tensor:
        """Gradient with respect to x, from the gradient g with respect to the features."""
        (_, sin, cos), (g_x, g_sin, g_cos) = self._split(features), self._split(g)
        return g_x + (g_sin * cos - g_cos * sin) @ self.frequencies.t()

    def directional_derivatives(
        self, features: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """First derivatives along each direction, and the sum of the second ones."""
        x, sin, cos = self._split(features)
        rate = directions @ self.frequencies
        first = [directions.expand(len(x), -1, -1), cos[:, None] * rate, -sin[:, None] * rate]
        square = rate.square().sum(1)
        second = [torch.zeros_like(x), -sin * square, -cos * square]
        return torch.cat(first, 2), torch.cat(second, 1)


class MLPNetwork(nn.Module):
    """The network of :class:`MLP`; ``network(x)`` or ``network(x, log_sigma)``."""

    def __init__(
        self,
        spec: Spec,
        sizes: tuple[int, ...],
        activation: str,
        residual: bool,
        spectral: bool,
        fourier: FourierFeatures | None = None,
    ):
        super().__init__()
        self.fourier = fourier
        inputs = (spec.shape[0] if fourier is None else fourier.n_features, *sizes[:-1])
        layers = [nn.Linear(i, o) for i, o in zip(inputs, sizes, strict=True)]
        self.layers = nn.ModuleList(
            parametrizations.spectral_norm(layer) if spectral else layer for layer in layers
        )
        for layer in layers:
            _initialise(layer)
        self.levels = LevelShifts(sizes) if spec.noise_levels else None
        self.bounded, self.activation = spectral, activation
        self.skips = [residual and i == o for i, o in zip(inputs, sizes, strict=True)]
        self.reconstructs = spec.whitening is not None
        initial = initial_output(spec, sizes[-1])
        if spec.n_classes is not None:
            self.last = nn.Parameter(torch.full((spec.n_classes, sizes[-1]), -initial))
            self.bias = nn.Parameter(torch.zeros(spec.n_classes))
            return
        if spec.whitening is None:
            self.last = nn.Parameter(torch.full((sizes[-1],), initial))
            return
        self.last = nn.Parameter(torch.zeros(spec.shape[0], sizes[-1]))
        self.bias = nn.Parameter(torch.zeros(spec.shape[0]))
        self.whitening_kind = type(spec.whitening)
        for name, part in spec.whitening._asdict().items():
            self.register_buffer(f"whitening_{name}", part.clone(), persistent=False)

    @property
    def whitening(self) -> Any:
        """The whitening of the rows that are reconstructed."""
        parts = (getattr(self, f"whitening_{name}") for name in self.whitening_kind._fields)
        return self.whitening_kind(*parts)

    def _last(self) -> Tensor:
        return self.last / self.last.norm().clamp_min(1.0) if self.bounded else self.last

    def _layers(self, log_sigma: tuple[Tensor, ...]) -> Iterator[tuple[Any, bool, Any]]:
        """Each layer, whether it has a residual connection, and the shift by the noise level."""
        shifts = repeat(0.0) if self.levels is None else self.levels(*log_sigma)
        return zip(self.layers, self.skips, shifts, strict=False)

    def _features(self, x: Tensor) -> Tensor:
        return x if self.fourier is None else self.fourier(x)

    def forward(self, x: Tensor, *log_sigma: Tensor) -> Tensor:
        value, a = ACTIVATIONS[self.activation].value, self._features(x)
        for layer, skip, shift in self._layers(log_sigma):
            z = layer(a) if self.levels is None else layer(a) + shift
            a = value(z) + a if skip else value(z)
        if self.last.dim() == 1:
            return a @ self._last()
        if not self.reconstructs:
            return F.linear(a, self._last(), self.bias)
        o, y = self._reconstruction(x, a)
        return ((o / 2 - y) * o).sum(1)

    def _reconstruction(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """The reconstruction, and the whitened row."""
        whitening = self.whitening
        return F.linear(a, self._last(), self.bias), whitening.times(x - whitening.centre)

    def value_and_input_grad(self, x: Tensor, *log_sigma: Tensor) -> ValueAndInputGrad:
        """Value and gradient with respect to x, by one forward and one backward pass."""
        features, a, weights, derivatives = self._forward_pass(x, log_sigma)
        last = self._last()
        if not self.reconstructs:
            grad = self._backward_pass(last, weights, derivatives, features)
            return ValueAndInputGrad(a @ last, grad)
        o, y = self._reconstruction(x, a)
        grad = self._backward_pass((o - y) @ last, weights, derivatives, features)
        return ValueAndInputGrad(((o / 2 - y) * o).sum(1), grad - self.whitening.transpose_times(o))

    def grad_of_logits(self, x: Tensor, head: Head) -> ValueAndInputGrad:
        """Value and gradient of a function of the logits; `head` gives its value and gradient."""
        features, a, weights, derivatives = self._forward_pass(x, ())
        last = self._last()
        value, g = head(F.linear(a, last, self.bias))
        grad = self._backward_pass(g @ last, weights, derivatives, features)
        return ValueAndInputGrad(value, grad)

    def _forward_pass(
        self, x: Tensor, log_sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Inputs of the first and the last layer; weights and derivatives for the backward pass."""
        with_derivative = ACTIVATIONS[self.activation].with_derivative
        a = features = self._features(x)
        weights, derivatives = [], []
        for layer, skip, shift in self._layers(log_sigma):
            weight = layer.weight  # once, because a spectral norm is computed at each access
            z = F.linear(a, weight, layer.bias)
            out, derivative = with_derivative(z if self.levels is None else z + shift)
            a = out + a if skip else out
            weights.append(weight)
            derivatives.append(derivative)
        return features, a, weights, derivatives

    def _backward_pass(
        self, g: Tensor, weights: list[Tensor], derivatives: list[Tensor], features: Tensor
    ) -> Tensor:
        """Gradient with respect to x, from the gradient g with respect to the last hidden layer."""
        layers = zip(weights[::-1], derivatives[::-1], self.skips[::-1], strict=True)
        for weight, derivative, skip in layers:
            through = (derivative * g) @ weight
            g = through + g if skip else through
        return g if self.fourier is None else self.fourier.input_grad(g, features)

    def second_derivatives(
        self, x: Tensor, directions: Tensor, *log_sigma: Tensor
    ) -> DirectionalDerivatives:
        """Gradient, and the sum of second derivatives along directions, (k, d) or (n, k, d).

        First derivatives along each direction and the sum of the second ones are propagated
        forward together.
        """
        with_derivatives = ACTIVATIONS[self.activation].with_derivatives
        a = features = self._features(x)
        weights, derivatives = list[Tensor](), list[Tensor]()
        directions = directions if directions.dim() == 3 else directions[None]
        first, second = directions, x.new_zeros(1)
        if self.fourier is not None:
            first, second = self.fourier.directional_derivatives(features, directions)
        for layer, skip, shift in self._layers(log_sigma):
            weight = layer.weight
            z = F.linear(a, weight, layer.bias)
            out, d1, d2 = with_derivatives(z if self.levels is None else z + shift)
            out_first = first @ weight.t()
            out_second = d2 * out_first.square().sum(1)
            if weights or self.fourier is not None:  # second derivatives of x itself are zero
                out_second = out_second + d1 * (second @ weight.t())
            out_first = out_first * d1[:, None]
            if skip:
                out, out_first, out_second = out + a, out_first + first, out_second + second
            a, first, second = out, out_first, out_second
            weights.append(weight)
            derivatives.append(d1)
        last = self._last()
        if not self.reconstructs:
            grad = self._backward_pass(last, weights, derivatives, features)
            return DirectionalDerivatives(grad, second @ last)
        o, y = self._reconstruction(x, a)
        o_first, y_first = first @ last.t(), self.whitening.times(directions)
        second_derivative = ((o_first - 2 * y_first) * o_first).sum((1, 2))
        second_derivative = second_derivative + ((o - y) * (second @ last.t())).sum(1)
        grad = self._backward_pass((o - y) @ last, weights, derivatives, features)
        return DirectionalDerivatives(grad - self.whitening.transpose_times(o), second_derivative)


def _initialise(layer: nn.Linear) -> None:
    """Weights for which inputs of order one give activations of order one, with varied biases.

    torch's default weights are an eighth of that, from which training starts slowly.
    """
    with torch.no_grad():
        layer.weight.normal_(std=math.sqrt(2 / layer.in_features))
        layer.bias.uniform_(-1, 1)


def initial_output(spec: Spec, n_features: int) -> float:
    """Initial weight of every feature in the energy: zero, or positive if it has to confine rows.

    A feature grows with the distance wherever it is active, so their mean with any positive weight
    does, too. With a flat energy, chains would diffuse to regions where the first steps of training
    change the energy by hundreds of nats.
    """
    # Initial weight of the mean feature in an energy without base and bounds, per root of the
    # columns. Means grow with about a third of the distance: most of exp(-E) is within a few units
    # then.
    confinement = 4.0
    return confinement * math.sqrt(math.prod(spec.shape)) / n_features if spec.confining else 0.0


class LevelShifts(nn.Module):
    """The shift of each layer by a noise level: linear in Fourier features of its logarithm."""

    def __init__(self, sizes: tuple[int, ...]):
        super().__init__()
        n = 2 * len(LEVEL_FREQUENCIES) + 1
        self.layers = nn.ModuleList(nn.Linear(n, size, bias=False) for size in sizes)

    def forward(self, log_sigma: Tensor) -> list[Tensor]:
        phase = log_sigma[:, None] * log_sigma.new_tensor(LEVEL_FREQUENCIES)
        features = torch.cat([log_sigma[:, None], phase.sin(), phase.cos()], 1)
        return [layer(features) for layer in self.layers]


def sizes_of(name: str, sizes: Any) -> tuple[int, ...]:
    """Sizes of layers as integers; `ValueError` for others."""
    numbers = whole_numbers(name, sizes, 1)
    if not numbers:
        raise ValueError(f"{name} must hold the size of at least one layer, got {sizes!r}.")
    return numbers


def activation_of(name: Any) -> str:
    """Name of an activation; `ValueError` for an unknown one."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}: score matching "
            "needs second derivatives, which are zero for ReLU and the like."
        )
    return name


class Confined(nn.Module):
    r"""A network of rows projected onto a ball, :math:`x \min(1, R / |x|)`.

    Outside the ball the output is constant along rays, so that the model keeps the heavy tails of
    its base; a network that grows with the distance could multiply the small mass in the tails by
    any factor. A draw outside the ball enters training as its projection onto the surface.

    Parameters
    ----------
    network : nn.Module
        From rows (n, ...) to (n,).
    radius : float > 0
        R, in units of x.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import Confined
    >>> network = Confined(torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0)), 3.0)
    >>> far = torch.tensor([[3.0, 0.0], [300.0, 0.0]])
    >>> bool(network(far)[0] == network(far)[1])
    True
    """

    def __init__(self, network: nn.Module, radius: float):
        super().__init__()
        if not radius > 0:
            raise ValueError(f"radius must be positive, got {radius!r}.")
        self.network, self.radius = network, radius

    def forward(self, x: Tensor) -> Tensor:
        """The network's values, (n,)."""
        norm = x.flatten(1).norm(dim=1).clamp_min(self.radius)
        return self.network(x * (self.radius / norm).view(-1, *(1,) * (x.dim() - 1)))
