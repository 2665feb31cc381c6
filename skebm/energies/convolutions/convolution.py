"""Configurations of convolutional networks, for ``network=`` of the estimators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from skebm.base.processes import seed_modules
from skebm.base.sampler import whole_number
from skebm.energies.factory import Spec
from skebm.energies.networks import (
    ACTIVATIONS,
    LevelShifts,
    activation_of,
    initial_output,
    sizes_of,
)


class Conv(BaseEstimator):
    r"""Convolutional network of images ``(C, H, W)`` with a scalar output.

    The network has layers of 3 x 3 filters, of which the first keeps the resolution and each later
    one halves it, and a linear output layer. f starts at zero; if there is neither a base nor
    bounds, it starts as a function that grows with the distance. With several scales it is the sum
    of as many such networks [1]_,

    .. math:: f(x) = \sum_{s=0}^{S-1} f_s(x_s) ,

    where :math:`x_s` is the image averaged over blocks of :math:`2^s \times 2^s` pixels (smaller
    ones at the lower and right border). In such an image, few layers already have a large receptive
    field. A classifier has a logit for each class in place of f.

    Parameters
    ----------
    channels : sequence of int, default=(32, 64, 64)
        Channels of the layers, at least one layer.
    activation : {"silu", "softplus", "tanh", "gelu"}, default="silu"
        Activation after each convolution.
    spectral_norm : bool, default=False
        Divide the filters of each layer, as a matrix, by their largest singular value.
    n_scales : int >= 1, default=1
        S. Each scale must be coarser than the one before, so only the last may have one pixel.

    References
    ----------
    .. [1] Du, Li, Tenenbaum and Mordatch (2021), "Improved contrastive divergence training of
       energy based models", ICML, section 3 (multi-scale generation).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import Conv, Spec
    >>> network = Conv(channels=(8, 16)).build(Spec((1, 8, 8), torch.Generator().manual_seed(0)))
    >>> network(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5])
    >>> Conv(channels=(8, 16), n_scales=3)  # of 8 x 8, 4 x 4 and 2 x 2 pixels
    Conv(channels=(8, 16), n_scales=3)
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 64),
        activation: str = "silu",
        spectral_norm: bool = False,
        n_scales: int = 1,
    ):
        self.channels = channels
        self.activation = activation
        self.spectral_norm = spectral_norm
        self.n_scales = n_scales

    def build(self, spec: Spec) -> ConvNetwork | MultiScaleNetwork:
        """Build the network for images; `ValueError` for rows that are no images."""
        channels = sizes_of("channels", self.channels)
        check_images("Conv", spec.shape)
        n_scales = _check_n_scales(self.n_scales, spec.shape)
        activation = activation_of(self.activation)
        built: ConvNetwork | MultiScaleNetwork
        with seed_modules(spec.generator):
            scales = [
                ConvNetwork(one, channels, activation, self.spectral_norm)
                for one in (_downsample(spec, 2**s) for s in range(n_scales))
            ]
            built = scales[0] if n_scales == 1 else MultiScaleNetwork(scales)
        return channels_last(built.to(spec.generator.device, spec.dtype))


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
        n_features = channels[-1] * height * width
        classes = () if spec.n_classes is None else (spec.n_classes,)
        initial = initial_output(spec, n_features)
        last = torch.full((n_features, *classes), -initial if classes else initial)
        self.last = nn.Parameter(last)
        self.bias = nn.Parameter(torch.zeros(classes)) if classes else 0.0
        self.bounded, self.activation = spectral, activation

    def forward(self, x: Tensor, *log_sigma: Tensor) -> Tensor:
        value = ACTIVATIONS[self.activation].value
        shifts: list[Any] = [0.0] * len(self.layers)
        if self.levels is not None:
            shifts = [shift[:, :, None, None] for shift in self.levels(*log_sigma)]
        x = x.contiguous(memory_format=torch.channels_last)
        for layer, shift in zip(self.layers, shifts, strict=True):
            x = value(layer(x) if self.levels is None else layer(x) + shift)
        last = self.last / self.last.norm().clamp_min(1.0) if self.bounded else self.last
        return x.flatten(1) @ last + self.bias


class MultiScaleNetwork(nn.Module):
    """The network of :class:`Conv` with several scales: a sum over average-pooled images."""

    def __init__(self, scales: Sequence[ConvNetwork]):
        super().__init__()
        self.scales = nn.ModuleList(scales)

    def forward(self, x: Tensor, *log_sigma: Tensor) -> Tensor:
        value = self.scales[0](x, *log_sigma)
        for s, network in enumerate(self.scales[1:], 1):
            value = value + network(F.avg_pool2d(x, 2**s, ceil_mode=True), *log_sigma)
        return value


# Channels of images whose last axis is taken for that of the channels.
FEWEST_SIDE, MOST_COLOURS = 5, 4


def check_images(name: str, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` for rows of a shape that the network `name` does not take for images."""
    if len(shape) != 3:
        raise ValueError(
            f"{name} takes images (n, C, H, W), not rows of shape {shape}: reshape X, for "
            "example X.reshape(-1, 1, 28, 28), or use network=MLP()."
        )
    if min(shape[:2]) >= FEWEST_SIDE and shape[2] <= MOST_COLOURS:
        raise ValueError(
            f"{name} takes images (n, C, H, W), and X of shape (n, {', '.join(map(str, shape))}) "
            "seems to have its channels last: pass X.transpose(0, 3, 1, 2). Images of "
            f"{shape[0]} channels that are {shape[2]} wide can be passed with height and width "
            "exchanged, X.swapaxes(2, 3)."
        )


def channels_last(network: Any) -> Any:
    """The network with filters whose channels are last in memory, where CPUs are faster."""
    return network.to(memory_format=torch.channels_last)


def _downsample(spec: Spec, block: int) -> Spec:
    """The specification for images averaged over blocks."""
    channels, height, width = spec.shape
    return spec._replace(shape=(channels, -(-height // block), -(-width // block)))


def _check_n_scales(n_scales: Any, shape: tuple[int, ...]) -> int:
    """The number of scales; `ValueError` if it is invalid or too large for the images."""
    whole_number("n_scales", n_scales, 1)
    n_scales = int(n_scales)
    most = 1 + (max(shape[1:]) - 1).bit_length()
    if n_scales > most:
        raise ValueError(
            f"n_scales={n_scales} is too many for images of shape {tuple(shape)}: each scale has "
            f"half the resolution of the one before, and number {most} has a single pixel. Use "
            f"n_scales={most} or fewer."
        )
    return n_scales
