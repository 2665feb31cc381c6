"""Networks by configuration: what ``network=`` takes in estimators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat
from numbers import Integral
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from skebm.energies._activations import ACTIVATIONS
from skebm.energies.derivatives import Bends, Slopes
from skebm.energies.neural import Spec, seeded

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
        by that of the activations, about 1.1 a layer (2.1 where `residual` adds to it).
    output : {"auto", "sum", "reconstruction"}, default="auto"
        Which f. ``"auto"`` reconstructs where the base says how to whiten rows, that is on normal
        distributions, mixtures and kernels; on tables the errors of a reconstruction learn faster
        and rank anomalies better.

    References
    ----------
    .. [1] Li et al. (2024), "A computational framework for neural network-based variational Monte
       Carlo with Forward Laplacian", Nature Machine Intelligence 6.
    .. [2] Miyato, Kataoka, Koyama and Yoshida (2018), "Spectral normalization for generative
       adversarial networks", ICLR.
    .. [3] Salimans and Ho (2021), "Should EBMs model the energy or the score?", ICLR workshop on
       energy based models (energies of the form of a squared error).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import MLP, Spec
    >>> network = MLP(hidden_sizes=(32,)).build(Spec((4,), torch.Generator().manual_seed(0)))
    >>> network(torch.zeros(5, 4))
    tensor([0., 0., 0., 0., 0.], grad_fn=<MvBackward0>)
    """

    def __init__(
        self,
        hidden_sizes: Sequence[int] = (128, 128),
        activation: str = "silu",
        residual: bool = False,
        spectral_norm: bool = False,
        output: str = "auto",
    ):
        self.hidden_sizes = hidden_sizes
        self.activation = activation
        self.residual = residual
        self.spectral_norm = spectral_norm
        self.output = output

    def build(self, spec: Spec) -> MLPNetwork:
        """Make the network for flat rows."""
        sizes = _sizes("hidden_sizes", self.hidden_sizes)
        if len(spec.shape) != 1:
            raise ValueError(
                f"MLP takes flat rows, not rows of shape {spec.shape}: flatten them to "
                f"(n, {math.prod(spec.shape)}), or use network=Conv()."
            )
        if self.output not in ("auto", "sum", "reconstruction"):
            raise ValueError(
                f'output must be "auto", "sum" or "reconstruction", got {self.output!r}.'
            )
        if self.output == "reconstruction" and spec.whitening is None:
            raise ValueError(
                'output="reconstruction" needs a base that says how to whiten rows, and one level '
                'of noise at most: a normal distribution, a mixture or kernels. Use output="sum".'
            )
        if self.output == "sum":
            spec = spec._replace(whitening=None)
        activation = _activation(self.activation)
        with seeded(spec.generator):
            built = MLPNetwork(spec, sizes, activation, self.residual, self.spectral_norm)
        return built.to(spec.generator.device, spec.dtype)


class MLPNetwork(nn.Module):
    """The network of :class:`MLP`; ``network(x)`` or ``network(x, log_sigma)``."""

    def __init__(
        self, spec: Spec, sizes: tuple[int, ...], activation: str, residual: bool, spectral: bool
    ):
        super().__init__()
        inputs = (spec.shape[0], *sizes[:-1])
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

    def forward(self, x: Tensor, *log_sigma: Tensor) -> Tensor:
        value, a = ACTIVATIONS[self.activation].value, x
        for layer, skip, shift in self._layers(log_sigma):
            z = layer(a) if self.levels is None else layer(a) + shift
            a = value(z) + a if skip else value(z)
        if not self.reconstructs:
            return a @ self._last()
        o, y = self._pair(x, a)
        return ((o / 2 - y) * o).sum(1)

    def _pair(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """The reconstruction, and the whitened row that it is one of."""
        return F.linear(a, self._last(), self.bias), (x - self.centre) @ self.whitener

    def slopes(self, x: Tensor, *log_sigma: Tensor) -> Slopes:
        """Value and gradient with respect to x: forward once, and back once."""
        pair, a = ACTIVATIONS[self.activation].pair, x
        weights, bent = [], []
        for layer, skip, shift in self._layers(log_sigma):
            weight = layer.weight  # once: spectral norms are worked out at every look
            z = F.linear(a, weight, layer.bias)
            out, slope = pair(z if self.levels is None else z + shift)
            a = out + a if skip else out
            weights.append(weight)
            bent.append(slope)
        last = self._last()
        if not self.reconstructs:
            return Slopes(a @ last, self._back(last, weights, bent))
        o, y = self._pair(x, a)
        back = self._back((o - y) @ last, weights, bent)
        return Slopes(((o / 2 - y) * o).sum(1), back - o @ self.whitener)

    def _back(self, g: Tensor, weights: list[Tensor], bent: list[Tensor]) -> Tensor:
        for weight, slope, skip in zip(weights[::-1], bent[::-1], self.skips[::-1], strict=True):
            below = (slope * g) @ weight
            g = below + g if skip else below
        return g

    def bends(self, x: Tensor, directions: Tensor, *log_sigma: Tensor) -> Bends:
        """Gradient, and the sum of second derivatives along directions, (k, d) or (n, k, d).

        First derivatives along each direction and the sum of the second ones go forward together.
        """
        triple, a = ACTIVATIONS[self.activation].triple, x
        weights: list[Tensor] = []
        bent: list[Tensor] = []
        directions = directions if directions.dim() == 3 else directions[None]
        along, second = directions, x.new_zeros(1)
        for layer, skip, shift in self._layers(log_sigma):
            weight = layer.weight
            z = F.linear(a, weight, layer.bias)
            out, slope, curvature = triple(z if self.levels is None else z + shift)
            moved = along @ weight.t()
            bend = curvature * moved.square().sum(1)
            if weights:  # rows themselves do not bend
                bend = bend + slope * (second @ weight.t())
            moved = moved * slope[:, None]
            if skip:
                out, moved, bend = out + a, moved + along, bend + second
            a, along, second = out, moved, bend
            weights.append(weight)
            bent.append(slope)
        last = self._last()
        if not self.reconstructs:
            return Bends(self._back(last, weights, bent), second @ last)
        o, y = self._pair(x, a)
        o_moved, y_moved = along @ last.t(), directions @ self.whitener
        bend = ((o_moved - 2 * y_moved) * o_moved).sum((1, 2))
        bend = bend + ((o - y) * (second @ last.t())).sum(1)
        back = self._back((o - y) @ last, weights, bent)
        return Bends(back - o @ self.whitener, bend)


def _initialise(layer: nn.Linear) -> None:
    """Inputs of order one give units of order one, switched on at different places.

    torch's own start is an eighth of that, and training would first have to find its way out.
    """
    with torch.no_grad():
        layer.weight.normal_(std=math.sqrt(2 / layer.in_features))
        layer.bias.uniform_(-1, 1)


class Conv(BaseEstimator):
    r"""Convolutional network of images ``(C, H, W)``, with one number at the end.

    Layers of 3 x 3 filters; the first keeps the resolution, each later one halves it; then a
    weighted sum of what is left. f starts at zero.

    Parameters
    ----------
    channels : sequence of int, default=(32, 64, 64)
        Channels of the layers, one layer at least.
    activation : {"silu", "softplus", "tanh", "gelu"}, default="silu"
    spectral_norm : bool, default=False
        Divide the filters of each layer, as a matrix, by their largest singular value.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import Conv, Spec
    >>> network = Conv(channels=(8, 16)).build(Spec((1, 8, 8), torch.Generator().manual_seed(0)))
    >>> network(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 64),
        activation: str = "silu",
        spectral_norm: bool = False,
    ):
        self.channels = channels
        self.activation = activation
        self.spectral_norm = spectral_norm

    def build(self, spec: Spec) -> ConvNetwork:
        """Make the network for images."""
        channels = _sizes("channels", self.channels)
        if len(spec.shape) != 3:
            raise ValueError(
                f"Conv takes images (n, C, H, W), not rows of shape {spec.shape}: reshape X, for "
                "example X.reshape(-1, 1, 28, 28), or use network=MLP()."
            )
        activation = _activation(self.activation)
        with seeded(spec.generator):
            built = ConvNetwork(spec, channels, activation, self.spectral_norm)
        return built.to(spec.generator.device, spec.dtype)


class ConvNetwork(nn.Module):
    """The network of :class:`Conv`; ``network(x)`` or ``network(x, log_sigma)``."""

    def __init__(self, spec: Spec, channels: tuple[int, ...], activation: str, spectral: bool):
        super().__init__()
        inputs = (spec.shape[0], *channels[:-1])
        layers = [
            nn.Conv2d(i, o, 3, stride=1 if number == 0 else 2, padding=1)
            for number, (i, o) in enumerate(zip(inputs, channels, strict=True))
        ]
        self.layers = nn.ModuleList(
            parametrizations.spectral_norm(layer) if spectral else layer for layer in layers
        )
        height, width = spec.shape[1:]
        for _ in channels[1:]:
            height, width = -(-height // 2), -(-width // 2)
        self.levels = LevelShifts(channels) if spec.noise_levels else None
        self.last = nn.Parameter(torch.zeros(channels[-1] * height * width))
        self.bounded, self.activation = spectral, activation

    def forward(self, x: Tensor, *log_sigma: Tensor) -> Tensor:
        value = ACTIVATIONS[self.activation].value
        shifts: list[Any] = [0.0] * len(self.layers)
        if self.levels is not None:
            shifts = [shift[:, :, None, None] for shift in self.levels(*log_sigma)]
        for layer, shift in zip(self.layers, shifts, strict=True):
            x = value(layer(x) if self.levels is None else layer(x) + shift)
        last = self.last / self.last.norm().clamp_min(1.0) if self.bounded else self.last
        return x.flatten(1) @ last


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


def _sizes(name: str, sizes: Any) -> tuple[int, ...]:
    """Sizes of layers; `ValueError` for what is none."""
    if isinstance(sizes, Integral):
        sizes = (sizes,)
    sizes = tuple(sizes)
    if not sizes or not all(isinstance(s, Integral) and int(s) > 0 for s in sizes):
        raise ValueError(f"{name} must be positive integers, one at least, got {sizes!r}.")
    return tuple(int(s) for s in sizes)


def _activation(name: Any) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}: score matching "
            "needs second derivatives, which ReLU and its like do not have."
        )
    return name
