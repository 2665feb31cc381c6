"""What contrastive divergence leaves out: how the samples depend on the parameters."""

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
    r"""The terms of improved contrastive divergence: sampling should end where energies are low.

    .. math:: L_{KL} = \lambda\, \mathbb E\, E_{\bar\theta}(\tilde x(\theta))
        - \mu\, \mathbb E \log \min_j |\tilde x(\theta) - x_j| , \qquad
        \tilde x(\theta) = x - h\, \nabla E_\theta(x) + \sqrt{2h}\, z

    Chains x take one more step of Langevin dynamics, which depends on the parameters; the energy
    that it ends at does not (:math:`\bar\theta` is held). The second term keeps rows of the last
    step apart: a nearest-neighbour estimate of their entropy. Both are biased away from maximum
    likelihood where chains have converged, and there they are not needed.

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
        """Raise `ValueError` where there is no step to differentiate."""
        if not isinstance(energy.domain, Real) or not isinstance(sampler, Langevin | MALA):
            raise ValueError(
                "The terms of improved contrastive divergence differentiate a Langevin step: use "
                f"Langevin or MALA on real rows, not {sampler} on {energy.domain}."
            )

    def value(
        self, energy: Any, kernel: Sampler, chain: ChainState, generator: torch.Generator
    ) -> Tensor:
        """The terms, whose gradient goes through the last step alone."""
        x = chain.x
        if isinstance(kernel, Langevin):
            h, scale, bounds = kernel.step_size, chain.aux[1], kernel.bounds
            sigma = math.sqrt(2 * h) if kernel.noise_scale is None else kernel.noise_scale
        else:
            h, scale = settings(kernel, chain)
            sigma, bounds = float(2 * torch.as_tensor(h)) ** 0.5, "reflect"
        z = standard_normal(x, generator)
        slope = value_and_input_grad_of(energy, x).grad
        moved = langevin_update(energy.domain, x, slope, float(h), sigma, scale, z, None, bounds)
        with torch.no_grad():
            _, pull = energy.value_and_grad(moved.detach())
        # Linear in the rows: the energy itself is held.
        value = self.kl_weight * (moved * pull).flatten(1).sum(1).mean()
        if self.entropy_weight and len(x) > 1:
            apart = torch.cdist(moved, x)
            apart = apart.masked_fill(
                torch.eye(len(x), dtype=torch.bool, device=x.device), math.inf
            )
            apart = apart.min(1).values
            value = value - self.entropy_weight * apart.clamp_min(1e-12).log().mean()
        return value
