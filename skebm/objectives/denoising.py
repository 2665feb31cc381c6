"""Score matching to noisy rows, the slope of whose log-density is known: a regression on noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from skebm.base import Energy, Real
from skebm.energies.derivatives import slope_of
from skebm.objectives.rowwise import Rowwise
from skebm.objectives.score_matching import leaving_out, normal_noise


class DenoisingScoreMatching(Rowwise):
    r"""Score matching to noisy copies of rows: the density of data blurred by noise.

    .. math:: J(\theta) = \mathbb E_{x, \epsilon}\, \tfrac12
        \bigl|\sigma \odot \nabla E(x + \sigma \odot \epsilon) - \epsilon\bigr|^2
        - \tfrac12 |\epsilon|^2, \qquad \epsilon \sim N(0, I) ,

    up to a constant half the expected :math:`|\sigma \odot (\nabla \log p - \nabla \log
    p_\sigma)|^2` with :math:`p_\sigma = p_{data} * N(0, \sigma^2)`, which it is least at: not the
    data's density, but never unbounded. Each row gives a pair :math:`x \pm \sigma \epsilon`, whose
    noise cancels to first order, so that small levels do not drown the gradient. Unbiased for J
    and its gradient.

    Parameters
    ----------
    energy : Energy
        On unbounded real rows, differentiable.
    sigma : Tensor of shape (d,) or float
        Standard deviation of the noise of each column, positive, in units of x.

    References
    ----------
    .. [1] Vincent (2011), "A connection between score matching and denoising autoencoders", Neural
       Computation 23(7), equation 11.
    .. [2] Pang, Xu, Li, Song, Ermon and Zhu (2020), "Efficient learning of generative models via
       finite-difference score matching", NeurIPS (pairs: differences along a direction).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.noise import Gaussian
    >>> from skebm.objectives import DenoisingScoreMatching
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = MLP().build(Spec((3,), generator))
    >>> base = Gaussian(torch.zeros(3), 1.0).blurred(0.5)  # what the noisy rows are
    >>> objective = DenoisingScoreMatching(NeuralEnergy(network, Real((3,)), base), 0.5)
    >>> x = torch.randn(2000, 3, generator=generator)
    >>> loss = objective(Batch(x), None, generator)
    >>> round(loss.value.item(), 1)  # -d / 2 times sigma^2 / (1 + sigma^2)
    -0.3
    """

    def __init__(self, energy: Energy, sigma: Tensor | float):
        super().__init__()
        _check_unbounded(energy)
        self.energy = energy
        sigma = torch.as_tensor(sigma, **_kind(energy))
        if not (sigma.isfinite() & (sigma > 0)).all():
            raise ValueError(f"sigma must be positive and finite, got {sigma.tolist()}.")
        self.sigma: Tensor
        self.register_buffer("sigma", sigma, persistent=False)

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        noise = normal_noise(x, generator)
        off = self.sigma * noise
        both = None if without is None else without.repeat(2)
        noisy = torch.cat([x + off, x - off])
        pull = self.sigma * slope_of(self.energy, noisy, **leaving_out(both))
        there, back = pull.flatten(1).chunk(2)
        noise = noise.flatten(1)
        half = (there.square() + back.square()).sum(1) / 4
        return half - ((there - back) * noise).sum(1) / 2

    def work(self, n_rows: int) -> float:
        return super().work(2 * n_rows)


class MultiscaleScoreMatching(Rowwise):
    r"""Denoising at all levels between two: an energy of rows and of how noisy they are.

    .. math:: J(\theta) = \mathbb E_{\log \sigma \sim U} \mathbb E_{x, \epsilon}\, \tfrac12
        \bigl|\sigma \nabla E(x + \sigma \epsilon, \sigma) - \epsilon\bigr|^2
        - \tfrac12 |\epsilon|^2

    with the logarithm of :math:`\sigma` uniform (one stratified draw for each row) and pairs of
    noise as in :class:`DenoisingScoreMatching`; every level counts the same [1]_. Large levels join
    modes that small ones keep apart, so that chains that go down the levels find them all.

    Parameters
    ----------
    energy : Energy
        Called as ``energy(x, sigma)`` with a level for each row, (n,).
    sigma_min, sigma_max : float
        Smallest and largest level, 0 < sigma_min < sigma_max, in units of x.

    References
    ----------
    .. [1] Song and Ermon (2019), "Generative modeling by estimating gradients of the data
       distribution", NeurIPS, section 4.2.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.noise import Gaussian
    >>> from skebm.objectives import MultiscaleScoreMatching
    >>> generator, base = torch.Generator().manual_seed(0), Gaussian(torch.zeros(3), 1.0)
    >>> network = MLP().build(Spec((3,), generator, noise_levels=True))
    >>> energy = NeuralEnergy(network, Real((3,)), base, noise_levels=(0.1, 2.0))
    >>> x = torch.randn(500, 3, generator=generator)
    >>> loss = MultiscaleScoreMatching(energy, 0.1, 2.0)(Batch(x), None, generator)
    >>> bool(loss.value < 0)  # zero is what a flat energy has
    True
    """

    def __init__(self, energy: Energy, sigma_min: float, sigma_max: float):
        super().__init__()
        _check_unbounded(energy)
        if not 0 < sigma_min < sigma_max < math.inf:
            raise ValueError(
                f"Levels need 0 < sigma_min < sigma_max, got {sigma_min} and {sigma_max}."
            )
        self.energy, self.sigma_min, self.sigma_max = energy, sigma_min, sigma_max

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        if without is not None:
            raise ValueError("Energies of several noise levels have no base of kernels.")
        n = len(x)
        u = torch.rand(n, generator=generator, dtype=x.dtype, device=x.device)
        u = (torch.randperm(n, generator=generator, device=x.device) + u) / n
        level = self.sigma_min * (u * math.log(self.sigma_max / self.sigma_min)).exp()
        noise = normal_noise(x, generator).flatten(1)
        off = (level[:, None] * noise).reshape(x.shape)
        slope = slope_of(self.energy, torch.cat([x + off, x - off]), level.repeat(2))
        there, back = (level.repeat(2)[:, None] * slope.flatten(1)).chunk(2)
        half = (there.square() + back.square()).sum(1) / 4
        return half - ((there - back) * noise).sum(1) / 2

    def work(self, n_rows: int) -> float:
        return super().work(2 * n_rows)


def _kind(energy: Energy) -> dict[str, Any]:
    """Precision and device of an energy."""
    like = next(iter(energy.parameters()), torch.empty(0))
    return {"dtype": like.dtype, "device": like.device}


def _check_unbounded(energy: Energy) -> None:
    domain = energy.domain
    if not isinstance(domain, Real):
        raise TypeError(f"Score matching needs real rows, not those of {domain}.")
    if domain.lower is not None or domain.upper is not None:
        raise ValueError(
            f"Noise leaves the walls of {domain}: use exact or sliced score matching, whose "
            "weights vanish there."
        )
