"""Gibbs samplers: draw one block of coordinates given the rest, exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, ChainState, Clamp, Domain, Energy, Sampler, StepInfo


class Gibbs(Sampler):
    r"""Block Gibbs sampling of a bipartite energy: all hidden units, then all visible ones.

    Exact: :math:`h \sim p(h \mid x)`, :math:`x' \sim p(x \mid h)` leaves
    :math:`p(x) \propto \sum_h e^{-\beta E(x, h)}` invariant, and every draw is accepted. Clamped
    coordinates of x stay, and the others are drawn from their conditional given them.

    ``state.aux`` may carry a hidden layer already drawn from p(h given x) at the same `beta`; the
    step then starts from it and saves a matrix product.

    References
    ----------
    Geman and Geman (1984), IEEE PAMI 6(6). Tomczak (2022), "Deep Generative Modeling", eq. 6.38-39.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.samplers import Gibbs
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(6, 3, generator=generator)
    >>> state, info = Gibbs().run(energy, torch.zeros(4, 6), 10, generator)
    >>> tuple(state.x.shape), info.acceptance
    ((4, 6), 1.0)
    """

    domains = (Domain,)

    def check(self, energy: Energy) -> None:
        """Raise `TypeError` unless the energy is bipartite."""
        if not isinstance(energy, BipartiteEnergy):
            raise TypeError(
                f"Gibbs needs the two conditionals of a bipartite energy; "
                f"{type(energy).__name__} has none."
            )

    def init(self, energy: Energy, x: Tensor) -> ChainState:
        """Chains that stand at the rows of x (n, d)."""
        return ChainState(x)

    def step(
        self,
        energy: Any,
        state: ChainState,
        generator: torch.Generator,
        beta: float = 1.0,
        clamp: Clamp | None = None,
    ) -> tuple[ChainState, StepInfo]:
        """Draw h given x, then x given h."""
        h = state.aux
        if h is None:
            h = energy.hidden(state.x, beta).sample(generator)
        conditional = energy.visible(h, beta)
        if clamp is None:
            return ChainState(conditional.sample(generator)), ALWAYS
        return ChainState(clamp.apply(conditional.given(clamp).sample(generator))), ALWAYS


ALWAYS = StepInfo(1.0)
