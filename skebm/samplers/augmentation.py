"""Augmentations: random transformations of images between the steps of a chain."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import Interval
from skebm.samplers._moves import by_row


class Augmentation(BaseEstimator, abc.ABC):
    """A random transformation of each image; holds configuration and nothing else.

    It helps chains to move between modes, but does not leave the model invariant: there is no
    acceptance step [1]_. Draws are biased towards images that are invariant under the
    transformation; the bias is larger if fewer sampler steps follow. If the data are not invariant,
    as digits under mirroring, a model trained with such chains learns to raise the energy of
    transformed images that its own sampler would not visit.

    References
    ----------
    .. [1] Du, Li, Tenenbaum and Mordatch (2021), "Improved contrastive divergence training of
       energy based models", ICML, section 3 (data augmentation transitions).
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Transform images.

        Parameters
        ----------
        images : Tensor of shape (n, C, H, W)
            Not changed.
        generator : torch.Generator
            On the device of the images.

        Returns
        -------
        Tensor of shape (n, C, H, W)
            The transformed images.
        """
        self._validate_params()
        if images.dim() != 4:
            raise ValueError(
                f"{type(self).__name__} transforms images (n, C, H, W), not a tensor of shape "
                f"{tuple(images.shape)}: unflatten the rows first."
            )
        return self._transform(images, generator)

    @abc.abstractmethod
    def _transform(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The transformation."""


class Shift(Augmentation):
    """Shift each image by whole pixels, vertically and horizontally.

    Both offsets are uniform in [-max_pixels, max_pixels], independent of each other and of those of
    other images; all channels shift alike. It does not leave the model invariant (see
    :class:`Augmentation`), and biases chains where the data are not invariant under translations,
    such as centred objects.

    Parameters
    ----------
    max_pixels : int >= 0, default=1
        Largest offset, in pixels.
    fill : float or None, default=None
        Value of the pixels that enter at the border, in the units of the images as they are passed;
        None repeats the border pixels.

    Examples
    --------
    >>> import torch
    >>> from skebm.samplers import Shift
    >>> images = torch.arange(1.0, 5.0).expand(3, 1, 1, 4)  # three images of 1 x 4 pixels
    >>> Shift(max_pixels=2)(images, torch.Generator().manual_seed(4)).flatten(1)
    tensor([[1., 1., 2., 3.],
            [1., 1., 1., 2.],
            [2., 3., 4., 4.]])
    """

    _parameter_constraints = {
        "max_pixels": [Interval(Integral, 0, None, closed="left")],
        "fill": [None, Interval(RealNumber, None, None, closed="neither")],
    }

    def __init__(self, max_pixels: int = 1, fill: float | None = None):
        self.max_pixels = max_pixels
        self.fill = fill

    def _transform(self, images: Tensor, generator: torch.Generator) -> Tensor:
        n, n_channels, height, width = images.shape
        m, device = self.max_pixels, generator.device
        offset = torch.randint(-m, m + 1, (2, n, 1), generator=generator, device=device)
        # Source row and column of each pixel, (n, H) and (n, W).
        row = torch.arange(height, device=device) - offset[0]
        column = torch.arange(width, device=device) - offset[1]
        image = torch.arange(n, device=device)[:, None, None, None]
        channel = torch.arange(n_channels, device=device)[:, None, None]
        from_row = row.clamp(0, height - 1)[:, None, :, None]
        from_column = column.clamp(0, width - 1)[:, None, None, :]
        shifted = images[image, channel, from_row, from_column]
        if self.fill is None:
            return shifted
        outside = ((row < 0) | (row >= height))[:, None, :, None]
        outside = outside | ((column < 0) | (column >= width))[:, None, None, :]
        return shifted.masked_fill(outside, self.fill)


class Flip(Augmentation):
    """Mirror each image horizontally with a given probability, independently.

    It does not leave the model invariant (see :class:`Augmentation`), and biases chains where the
    data, like letters, have no mirror symmetry.

    Parameters
    ----------
    p : float in [0, 1], default=0.5
        Probability of mirroring an image.

    Examples
    --------
    >>> import torch
    >>> from skebm.samplers import Flip
    >>> Flip(p=1.0)(torch.arange(4.0).view(1, 1, 1, 4), torch.Generator()).flatten()
    tensor([3., 2., 1., 0.])
    """

    _parameter_constraints = {"p": [Interval(RealNumber, 0, 1, closed="both")]}

    def __init__(self, p: float = 0.5):
        self.p = p

    def _transform(self, images: Tensor, generator: torch.Generator) -> Tensor:
        u = torch.rand(len(images), generator=generator, device=generator.device)
        return torch.where(by_row(u < self.p, images), images.flip(3), images)


class Compose(Augmentation):
    """Several augmentations, one after the other.

    Parameters
    ----------
    moves : sequence of callables ``(images, generator) -> images``
        Augmentations, in the order in which they are applied.

    Examples
    --------
    >>> import torch
    >>> from skebm.samplers import Compose, Flip, Shift
    >>> move = Compose([Flip(), Shift(max_pixels=2)])
    >>> move(torch.rand(5, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([5, 3, 8, 8])
    """

    _parameter_constraints = {"moves": [list, tuple]}

    def __init__(self, moves: Sequence[Any]):
        self.moves = moves

    def _transform(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for move in self.moves:
            images = move(images, generator)
        return images
