"""Configurations of residual convolutional networks, for ``network=`` of the estimators."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skebm.base.processes import seed_modules
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.energies.convolutions.convolution import channels_last, check_images
from skebm.energies.factory import Spec
from skebm.energies.networks import ACTIVATIONS, LevelShifts, activation_of, initial_output

# Channels of the three groups of blocks, for a width of 1, and channels that are normed together.
CHANNELS = (16, 32, 64)
IN_A_GROUP = 4


class ResNet(BaseEstimator):
    r"""Residual convolutional network of images ``(C, H, W)`` with a scalar output.

    A wide residual network [1]_: a layer of 3 x 3 filters, three groups of residual blocks of
    16, 32 and 64 times `width` channels, of which the second and the third halve the resolution,
    and a linear output layer of all features of the pixels that are left. A block adds to its input

    .. math:: a \, W_2 * \phi(n(W_1 * \phi(n(x)))) ,

    with two layers of 3 x 3 filters and norms n over groups of channels of each image [2]_, and
    a = 1; without norms a is trained from one over the root of the number of blocks, so that
    features of any depth have about the variance of the image. ``ResNet(28, 10, norm=None)`` is
    about the network of joint energy-based models [3]_. f starts at zero. A classifier has a logit
    for each class in place of f.

    There are no batch norms: with them the energy of an image would depend on the other ones of its
    batch, among them the chains that training compares it with.

    Parameters
    ----------
    depth : int, default=10
        Number of layers, 6 n + 4 for n blocks in each group: 10, 16, 22, 28, ...
    width : int >= 1, default=1
        Factor of the channels.
    norm : {"group"} or None, default="group"
        Norms over groups of four channels before each activation, or none.
    activation : {"silu", "softplus", "tanh", "gelu"}, default="silu"
        Smooth activations only, because score matching needs second derivatives.

    See Also
    --------
    Conv : Three layers, and sums over images of several scales.

    References
    ----------
    .. [1] Zagoruyko and Komodakis (2016), "Wide residual networks", BMVC, table 1.
    .. [2] Wu and He (2018), "Group normalization", ECCV.
    .. [3] Grathwohl et al. (2020), "Your classifier is secretly an energy based model and you
       should treat it like one", ICLR, appendix A.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import ResNet, Spec
    >>> network = ResNet(10).build(Spec((3, 32, 32), torch.Generator().manual_seed(0)))
    >>> network(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5])
    >>> sum(p.numel() for p in network.parameters())
    81632
    """

    def __init__(
        self,
        depth: int = 10,
        width: int = 1,
        norm: str | None = "group",
        activation: str = "silu",
    ):
        self.depth = depth
        self.width = width
        self.norm = norm
        self.activation = activation

    def build(self, spec: Spec) -> ResidualNetwork:
        """Build the network for images; `ValueError` for rows that are no images."""
        check_images("ResNet", spec.shape)
        whole_number("depth", self.depth, 10)
        whole_number("width", self.width, 1)
        if (self.depth - 4) % 6:
            raise ValueError(
                f"depth must be 6 n + 4 with n blocks in each group, such as 10, 16, 22 or 28, got "
                f"{self.depth!r}."
            )
        if self.norm not in (None, "group"):
            raise ValueError(
                f'norm must be "group" or None, got {self.norm!r}: norms over a batch would make '
                "the energy of an image depend on the other ones."
            )
        n_blocks, activation = (int(self.depth) - 4) // 6, activation_of(self.activation)
        channels = tuple(int(self.width) * c for c in CHANNELS)
        n_weights = 18 * n_blocks * sum(c**2 for c in channels)
        check_memory(
            f"depth={self.depth}, width={self.width} of ResNet",
            n_weights,
            spec.dtype,
            spec.generator.device,
        )
        with seed_modules(spec.generator):
            built = ResidualNetwork(spec, channels, n_blocks, self.norm is not None, activation)
        return channels_last(built.to(spec.generator.device, spec.dtype))


class ResidualNetwork(nn.Module):
    """The network of :class:`ResNet`; ``network(x)`` or ``network(x, log_sigma)``."""

    def __init__(
        self, spec: Spec, channels: tuple[int, ...], n_blocks: int, normed: bool, activation: str
    ):
        super().__init__()
        inputs, blocks = CHANNELS[0], list[SkipBlock]()
        factor = None if normed else (len(channels) * n_blocks) ** -0.5
        self.first = convolution(spec.shape[0], inputs, mean_square=1.0)
        for group, outputs in enumerate(channels):
            for number in range(n_blocks):
                stride = 2 if group and not number else 1
                blocks.append(SkipBlock(inputs, outputs, stride, factor, activation))
                inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        sizes = tuple(block.second.out_channels for block in blocks)
        self.levels = LevelShifts(sizes) if spec.noise_levels else None
        # An energy that has to grow with the distance has no norm after the last block.
        self.norm = norm_of(inputs) if normed and not spec.confining else nn.Identity()
        n_features = inputs * math.prod(-(-side // 4) for side in spec.shape[1:])
        classes = () if spec.n_classes is None else (spec.n_classes,)
        initial = initial_output(spec, n_features)
        last = torch.full((n_features, *classes), -initial if classes else initial)
        self.last = nn.Parameter(last)
        self.bias = nn.Parameter(torch.zeros(classes)) if classes else 0.0
        self.activation = activation

    def forward(self, x: Tensor, *log_sigma: Tensor) -> Tensor:
        shifts: list[Any] = [None] * len(self.blocks)
        if self.levels is not None:
            shifts = [shift[:, :, None, None] for shift in self.levels(*log_sigma)]
        x = self.first(x.contiguous(memory_format=torch.channels_last))
        for block, shift in zip(self.blocks, shifts, strict=True):
            x = block(x, shift)
        features = ACTIVATIONS[self.activation].value(self.norm(x)).flatten(1)
        return features @ self.last + self.bias


class SkipBlock(nn.Module):
    """Two layers of filters, whose output is added to the input: with norms, or times a factor."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, factor: float | None, activation: str
    ):
        super().__init__()
        self.first, self.second = (
            convolution(inputs, outputs, stride),
            convolution(outputs, outputs),
        )
        same = inputs == outputs and stride == 1
        # Without an activation before it: all of the variance passes.
        kind: dict[str, Any] = {"size": 1, "mean_square": 1.0}
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, stride, **kind)
        self.norms = nn.ModuleList(
            norm_of(n) if factor is None else nn.Identity() for n in (inputs, outputs)
        )
        self.factor = 1.0 if factor is None else nn.Parameter(torch.tensor(factor))
        self.activation = activation

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        value = ACTIVATIONS[self.activation].value
        inside = self.first(value(self.norms[0](x)))
        inside = inside if shift is None else inside + shift
        return self.shortcut(x) + self.factor * self.second(value(self.norms[1](inside)))


def convolution(
    inputs: int, outputs: int, stride: int = 1, *, size: int = 3, mean_square: float = 0.5
) -> nn.Conv2d:
    """A layer of filters whose outputs have variance 1 for inputs of a mean square.

    It is a half for activations of numbers of variance 1.
    """
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2)
    with torch.no_grad():
        layer.weight.normal_(std=(mean_square * inputs * size**2) ** -0.5)
    return layer


def norm_of(channels: int) -> nn.GroupNorm:
    """Norms of an image over groups of channels."""
    return nn.GroupNorm(max(1, channels // IN_A_GROUP), channels)
