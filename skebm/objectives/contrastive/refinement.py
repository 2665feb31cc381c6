"""Terms that contrastive divergence neglects: how the samples depend on the parameters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import ChainState, Energy, Real, Sampler
from skebm.base.energy import value_and_input_grad_of
from skebm.samplers import MALA, Langevin
from skebm.samplers._adaptation import settings
from skebm.samplers._moves import standard_normal
from skebm.samplers.langevin import langevin_update


class Refinement(NamedTuple):
    r"""KL and entropy terms of improved contrastive divergence.

    .. math:: L_{KL} = \lambda\, \mathbb E\, E_{\bar\theta}(\tilde x(\theta))
        - \mu\, \mathbb E \log \min_j |\tilde x(\theta) - x_j| , \qquad
        \tilde x(\theta) = x - h\, \nabla E_\theta(x) + \sqrt{2h}\, z

    Chains x take one more step of Langevin dynamics, through which the gradient is taken, while
    the parameters of the energy at its end are held fixed at :math:`\bar\theta`. The second term is
    a nearest-neighbour estimate of the entropy of the samples, which keeps them apart. Once chains
    have converged, both terms only bias training away from maximum likelihood and should be 0.

    Attributes
    ----------
    kl_weight, entropy_weight : float
        :math:`\lambda` and :math:`\mu`.

    References
    ----------
    Du, Li, Tenenbaum and Mordatch (2021), "Improved contrastive divergence training of energy-based
    models", ICML, equations 6 to 9.
    """

    kl_weight: float = 0.0
    entropy_weight: float = 0.0

    def check(self, energy: Energy, sampler: Sampler) -> None:
        """Raise `ValueError` unless the sampler takes Langevin steps on real rows."""
        if not isinstance(energy.domain, Real) or not isinstance(sampler, Langevin | MALA):
            raise ValueError(
                "The terms of improved contrastive divergence differentiate a Langevin step: use "
                f"Langevin or MALA on real rows, not {sampler} on {energy.domain}."
            )

    def value(
        self, energy: Any, kernel: Sampler, chain: ChainState, generator: torch.Generator
    ) -> Tensor:
        """Value of the terms, whose gradient is taken through the last step only."""
        x = chain.x
        if isinstance(kernel, Langevin):
            h, scale, bounds = kernel.step_size, chain.aux[1], kernel.bounds
            sigma = math.sqrt(2 * h) if kernel.noise_scale is None else kernel.noise_scale
        else:
            h, scale = settings(kernel, chain)
            sigma, bounds = float(2 * torch.as_tensor(h)) ** 0.5, "reflect"
        z = standard_normal(x, generator)
        grad = value_and_input_grad_of(energy, x).grad
        moved = langevin_update(energy.domain, x, grad, float(h), sigma, scale, z, None, bounds)
        with torch.no_grad():
            _, end_grad = energy.value_and_grad(moved.detach())
        # Linear in the rows, as the energy's parameters are held fixed.
        value = self.kl_weight * (moved * end_grad).flatten(1).sum(1).mean()
        if self.entropy_weight and len(x) > 1:
            itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
            distance = torch.cdist(moved, x).masked_fill(itself, math.inf)
            nearest = distance.min(1).values
            value = value - self.entropy_weight * nearest.clamp_min(1e-12).log().mean()
        return value
