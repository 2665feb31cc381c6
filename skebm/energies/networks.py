"""Networks of rows by configuration: what ``network=`` takes in estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from skebm.base.checks import whole_number
from skebm.base.torchtools import seeded, softplus
from skebm.energies.derivatives import DirectionalDerivatives, ValueAndInputGrad
from skebm.energies.neural import Spec


class Activation(NamedTuple):
    """An activation: its value, with its slope, and with slope and curvature."""

    value: Callable[[Tensor], Tensor]
    pair: Callable[[Tensor], tuple[Tensor, Tensor]]
    triple: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class SiluPair(torch.autograd.Function):
    """z sigmoid(z) and its slope; both ways in a handful of operations."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.sigmoid(z)
        value = z * share
        slope = (1 + z - value).mul_(share)
        ctx.save_for_backward(share, slope)
        return value, slope

    @staticmethod
    @once_differentiable  # a second time would take `share` for a constant, and be wrong
    def backward(ctx: Any, from_value: Tensor, from_derivative: Tensor) -> Tensor:
        share, slope = ctx.saved_tensors
        curvature = (share + slope).addcmul_(share, slope, value=-2)
        return (from_value * slope).addcmul_(from_derivative, curvature)


def _silu_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    share = torch.sigmoid(z)
    value = z * share
    slope = share * (1 + z - value)
    return value, slope, share + slope - 2 * share * slope


def _softplus_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    share = torch.sigmoid(z)
    return softplus(z), share, share * (1 - share)


def _tanh_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = torch.tanh(z)
    slope = 1 - value.square()
    return value, slope, -2 * value * slope


def _gelu_triple(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    share = torch.special.ndtr(z)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return z * share, share + z * density, density * (2 - z.square())


def _of(value: Callable[[Tensor], Tensor], triple: Any) -> Activation:
    return Activation(value, lambda z: triple(z)[:2], triple)


# Those without a second derivative, such as ReLU, have no Hessian to match.
ACTIVATIONS = {
    "silu": Activation(F.silu, SiluPair.apply, _silu_triple),
    "softplus": _of(softplus, _softplus_triple),
    "tanh": _of(torch.tanh, _tanh_triple),
    "gelu": _of(F.gelu, _gelu_triple),
}


# A function of logits (n, K): its values (n,), and its slopes (n, K).
Head = Callable[[Tensor], tuple[Tensor, Tensor]]

# Frequencies at which a network sees the logarithm of a noise level.
LEVEL_FREQUENCIES = (0.5, 1.0, 2.0, 4.0)


class MLP(BaseEstimator):
    r"""Fully connected network of a row: smooth, and one number at the end.

    .. math:: a_l = \phi(W_l a_{l-1} + b_l) \; (+ a_{l-1}), \qquad f(x) = w^\top a_L
        \quad\text{or}\quad f(x) = \tfrac12 |y - o|^2 - \tfrac12 |y|^2

    with :math:`o = W a_L + b` and the whitened row :math:`y = A (x - \mu)`: the error with which
    the network reconstructs the row [3]_, in place of that of the mean, which the base has. f
    starts at zero, so that the model starts at its base. It knows its derivatives: the gradient
    with respect to the row is an explicit second pass, which costs training less than autograd's
    double backward, and second derivatives go forward through the layers [1]_, k directions for
    the price of k + 2 passes.

    With `n_frequencies` :math:`a_0` is not x alone but waves of it as well [4]_,

    .. math:: a_0 = (x, \sin(x B), \cos(x B)), \qquad B_{ij} \sim N(0, s^2),

    B being drawn once and never trained: a network of x learns slow functions first and sharp edges
    late, if at all; one of waves starts with functions that turn within 1 / s [5]_.

    A classifier has logits in place of f, :math:`W a_L + b`.

    Parameters
    ----------
    hidden_sizes : sequence of int, default=(128, 128)
        Units of the hidden layers, one layer at least.
    activation : {"silu", "softplus", "tanh", "gelu"}, default="silu"
        Smooth ones only: score matching needs second derivatives.
    residual : bool, default=False
        Add to each hidden layer the one before, where both have the same size.
    spectral_norm : bool, default=False
        Divide each matrix by its largest singular value [2]_: the slope of f (of o) is then bounded
        by that of the activations, about 1.1 a layer (2.1 where `residual` adds to it), times
        :math:`(1 + |B|^2)^{1/2}`, the slope of waves, with the largest singular value of B: about
        :math:`s \, (d^{1/2} + n^{1/2})` for n frequencies of d columns.
    output : {"auto", "sum", "reconstruction"}, default="auto"
        Which f. ``"auto"`` reconstructs where the base says how to whiten rows, that is on normal
        distributions, mixtures and kernels; on tables the errors of a reconstruction learn faster
        and rank anomalies better.
    n_frequencies : int >= 0, default=0
        Columns of B; 0 shows the network x alone. For tables of few columns, two or three, whose
        density has sharp edges that the base blurs: 64 then. With many columns no feasible number
        covers the directions, and fast waves fit mostly noise.
    frequency_scale : float > 0, default=2.0
        s, standard deviation of the frequencies, in radians per unit of a row as the network sees
        it: a standard deviation of standardised columns, the distance of walls on both sides. The
        finer the waves, the more easily contrastive divergence digs holes at rows where the base
        has next to no mass and no chain arrives; there smaller scales, 1 or 2, are safer.

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
        """Make the network for flat rows."""
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
                'output="reconstruction" is one number a row, and a classifier needs a logit for '
                'each class: use output="auto".'
            )
        if self.output == "reconstruction" and spec.whitening is None:
            raise ValueError(
                'output="reconstruction" needs a base that says how to whiten rows, and one level '
                'of noise at most: a normal distribution, a mixture or kernels. Use output="sum".'
            )
        if self.output == "sum" or spec.n_classes is not None:
            spec = spec._replace(whitening=None)
        activation = activation_of(self.activation)
        waves = self._waves(spec)
        with seeded(spec.generator):
            built = MLPNetwork(spec, sizes, activation, self.residual, self.spectral_norm, waves)
        return built.to(spec.generator.device, spec.dtype)

    def _waves(self, spec: Spec) -> Waves | None:
        """What the network sees besides the row; None, and no draw, where that is nothing."""
        scale = self.frequency_scale
        whole_number("n_frequencies", self.n_frequencies, 0)
        if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < scale < math.inf:
            raise ValueError(f"frequency_scale must be positive and finite, got {scale!r}.")
        if not self.n_frequencies:
            return None
        size, generator = (spec.shape[0], int(self.n_frequencies)), spec.generator
        drawn = torch.randn(size, generator=generator, device=generator.device)
        return Waves(float(scale) * drawn)


class Waves(nn.Module):
    """Rows and random Fourier features of them, (x, sin(x B), cos(x B)); B is not trained."""

    frequencies: Tensor

    def __init__(self, frequencies: Tensor):
        super().__init__()
        self.register_buffer("frequencies", frequencies)  # persistent: drawn but once
        self.n_features = len(frequencies) + 2 * frequencies.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        phase = x @ self.frequencies
        return torch.cat([x, phase.sin(), phase.cos()], 1)

    def _split(self, a: Tensor) -> tuple[Tensor, ...]:
        d, n = self.frequencies.shape
        return a.split([d, n, n], 1)

    def back(self, g: Tensor, seen: Tensor) -> Tensor:
        """Gradient with respect to x, from the one with respect to the features `seen`."""
        (_, sin, cos), (to_x, to_sin, to_cos) = self._split(seen), self._split(g)
        return to_x + (to_sin * cos - to_cos * sin) @ self.frequencies.t()

    def ahead(self, seen: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """First derivatives along each direction, and the sum of the second ones."""
        x, sin, cos = self._split(seen)
        turned = directions @ self.frequencies
        along = [directions.expand(len(x), -1, -1), cos[:, None] * turned, -sin[:, None] * turned]
        speed = turned.square().sum(1)
        return torch.cat(along, 2), torch.cat([torch.zeros_like(x), -sin * speed, -cos * speed], 1)


class MLPNetwork(nn.Module):
    """The network of :class:`MLP`; ``network(x)`` or ``network(x, log_sigma)``."""

    def __init__(
        self,
        spec: Spec,
        sizes: tuple[int, ...],
        activation: str,
        residual: bool,
        spectral: bool,
        waves: Waves | None = None,
    ):
        super().__init__()
        self.waves = waves
        inputs = (spec.shape[0] if waves is None else waves.n_features, *sizes[:-1])
        layers = [nn.Linear(i, o) for i, o in zip(inputs, sizes, strict=True)]
        self.layers = nn.ModuleList(
            parametrizations.spectral_norm(layer) if spectral else layer for layer in layers
        )
        for layer in layers:
            _initialise(layer)
        self.levels = LevelShifts(sizes) if spec.noise_levels else None
        self.bounded, self.activation = spectral, activation
        self.skips = [residual and i == o for i, o in zip(inputs, sizes, strict=True)]
        self.centre: Tensor
        self.whitener: Tensor
        self.reconstructs = spec.whitening is not None
        if spec.n_classes is not None:
            self.last = nn.Parameter(torch.zeros(spec.n_classes, sizes[-1]))
            self.bias = nn.Parameter(torch.zeros(spec.n_classes))
            return
        if spec.whitening is None:
            self.last = nn.Parameter(torch.zeros(sizes[-1]))
            return
        self.last = nn.Parameter(torch.zeros(spec.shape[0], sizes[-1]))
        self.bias = nn.Parameter(torch.zeros(spec.shape[0]))
        self.register_buffer("centre", spec.whitening.centre.clone(), persistent=False)
        self.register_buffer("whitener", spec.whitening.matrix.clone(), persistent=False)

    def _last(self) -> Tensor:
        return self.last / self.last.norm().clamp_min(1.0) if self.bounded else self.last

    def _layers(self, log_sigma: tuple[Tensor, ...]) -> Iterator[tuple[Any, bool, Any]]:
        """Each layer, whether it is skipped over, and what the noise level adds to it."""
        shifts = repeat(0.0) if self.levels is None else self.levels(*log_sigma)
        return zip(self.layers, self.skips, shifts, strict=False)

    def _seen(self, x: Tensor) -> Tensor:
        return x if self.waves is None else self.waves(x)

    def forward(self, x: Tensor, *log_sigma: Tensor) -> Tensor:
        value, a = ACTIVATIONS[self.activation].value, self._seen(x)
        for layer, skip, shift in self._layers(log_sigma):
            z = layer(a) if self.levels is None else layer(a) + shift
            a = value(z) + a if skip else value(z)
        if self.last.dim() == 1:
            return a @ self._last()
        if not self.reconstructs:
            return F.linear(a, self._last(), self.bias)
        o, y = self._pair(x, a)
        return ((o / 2 - y) * o).sum(1)

    def _pair(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """The reconstruction, and the whitened row that it is one of."""
        return F.linear(a, self._last(), self.bias), (x - self.centre) @ self.whitener

    def value_and_input_grad(self, x: Tensor, *log_sigma: Tensor) -> ValueAndInputGrad:
        """Value and gradient with respect to x: forward once, and back once."""
        seen, a, weights, bent = self._ahead(x, log_sigma)
        last = self._last()
        if not self.reconstructs:
            return ValueAndInputGrad(a @ last, self._back(last, weights, bent, seen))
        o, y = self._pair(x, a)
        back = self._back((o - y) @ last, weights, bent, seen)
        return ValueAndInputGrad(((o / 2 - y) * o).sum(1), back - o @ self.whitener)

    def grad_of_logits(self, x: Tensor, head: Head) -> ValueAndInputGrad:
        """The same for a function of the logits, which gives its value and its slope there."""
        seen, a, weights, bent = self._ahead(x, ())
        last = self._last()
        value, pull = head(F.linear(a, last, self.bias))
        return ValueAndInputGrad(value, self._back(pull @ last, weights, bent, seen))

    def _ahead(
        self, x: Tensor, log_sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """What the first and the last layer see, and weights and slopes of the way back."""
        pair = ACTIVATIONS[self.activation].pair
        a = seen = self._seen(x)
        weights, bent = [], []
        for layer, skip, shift in self._layers(log_sigma):
            weight = layer.weight  # once: spectral norms are worked out at every look
            z = F.linear(a, weight, layer.bias)
            out, slope = pair(z if self.levels is None else z + shift)
            a = out + a if skip else out
            weights.append(weight)
            bent.append(slope)
        return seen, a, weights, bent

    def _back(self, g: Tensor, weights: list[Tensor], bent: list[Tensor], seen: Tensor) -> Tensor:
        for weight, slope, skip in zip(weights[::-1], bent[::-1], self.skips[::-1], strict=True):
            below = (slope * g) @ weight
            g = below + g if skip else below
        return g if self.waves is None else self.waves.back(g, seen)

    def second_derivatives(
        self, x: Tensor, directions: Tensor, *log_sigma: Tensor
    ) -> DirectionalDerivatives:
        """Gradient, and the sum of second derivatives along directions, (k, d) or (n, k, d).

        First derivatives along each direction and the sum of the second ones go forward together.
        """
        triple = ACTIVATIONS[self.activation].triple
        a = seen = self._seen(x)
        weights, bent = list[Tensor](), list[Tensor]()
        directions = directions if directions.dim() == 3 else directions[None]
        along, second = directions, x.new_zeros(1)
        if self.waves is not None:
            along, second = self.waves.ahead(seen, directions)
        for layer, skip, shift in self._layers(log_sigma):
            weight = layer.weight
            z = F.linear(a, weight, layer.bias)
            out, slope, curvature = triple(z if self.levels is None else z + shift)
            moved = along @ weight.t()
            second_derivative = curvature * moved.square().sum(1)
            if weights or self.waves is not None:  # rows themselves do not bend
                second_derivative = second_derivative + slope * (second @ weight.t())
            moved = moved * slope[:, None]
            if skip:
                out, moved, second_derivative = out + a, moved + along, second_derivative + second
            a, along, second = out, moved, second_derivative
            weights.append(weight)
            bent.append(slope)
        last = self._last()
        if not self.reconstructs:
            return DirectionalDerivatives(self._back(last, weights, bent, seen), second @ last)
        o, y = self._pair(x, a)
        o_moved, y_moved = along @ last.t(), directions @ self.whitener
        second_derivative = ((o_moved - 2 * y_moved) * o_moved).sum((1, 2))
        second_derivative = second_derivative + ((o - y) * (second @ last.t())).sum(1)
        back = self._back((o - y) @ last, weights, bent, seen)
        return DirectionalDerivatives(back - o @ self.whitener, second_derivative)


def _initialise(layer: nn.Linear) -> None:
    """Inputs of order one give units of order one, switched on at different places.

    torch's own start is an eighth of that, and training would first have to find its way out.
    """
    with torch.no_grad():
        layer.weight.normal_(std=math.sqrt(2 / layer.in_features))
        layer.bias.uniform_(-1, 1)


class LevelShifts(nn.Module):
    """What a noise level adds to each layer: linear in waves of its logarithm."""

    def __init__(self, sizes: tuple[int, ...]):
        super().__init__()
        n = 2 * len(LEVEL_FREQUENCIES) + 1
        self.layers = nn.ModuleList(nn.Linear(n, size, bias=False) for size in sizes)

    def forward(self, log_sigma: Tensor) -> list[Tensor]:
        waves = log_sigma[:, None] * log_sigma.new_tensor(LEVEL_FREQUENCIES)
        seen = torch.cat([log_sigma[:, None], waves.sin(), waves.cos()], 1)
        return [layer(seen) for layer in self.layers]


def sizes_of(name: str, sizes: Any) -> tuple[int, ...]:
    """Sizes of layers; `ValueError` for what is none."""
    if isinstance(sizes, Integral):
        sizes = (sizes,)
    sizes = tuple(sizes)
    if not sizes or not all(isinstance(s, Integral) and int(s) > 0 for s in sizes):
        raise ValueError(f"{name} must be positive integers, one at least, got {sizes!r}.")
    return tuple(int(s) for s in sizes)


def activation_of(name: Any) -> str:
    """Name of an activation; `ValueError` for what is none."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}: score matching "
            "needs second derivatives, which ReLU and its like do not have."
        )
    return name


class Confined(nn.Module):
    r"""A network that sees rows pulled back into a ball, :math:`x \min(1, R / |x|)`.

    Beyond the ball it is constant along rays, so that a base with heavy tails keeps them: a network
    that grows with the distance would multiply what little mass there is by any factor. Draws from
    far out teach it at the rim.

    Parameters
    ----------
    network : nn.Module
        Of rows (n, ...) to (n,).
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
