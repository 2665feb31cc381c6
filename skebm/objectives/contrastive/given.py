r"""Objectives of conditional densities: those of whole rows with c clamped, ranking, and chains."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Batch, Loss, Objective, sampling
from skebm.base.objective import weighted_mean, weighted_variance, why_diverged
from skebm.base.sampler import whole_number
from skebm.energies import ConditionalEnergy, RowwiseEnergy
from skebm.objectives.likelihood import share_of
from skebm.objectives.score_matching import Rowwise
from skebm.samplers import MALA

# Step size of chains at first, acceptance that is aimed at, and how fast the step follows it.
FIRST_STEP, TARGET_ACCEPTANCE, GAIN = 0.1, 0.6, 0.2
# Draws of the base among which held-out rows are ranked.
HELD_OUT_DRAWS = 64


class GivenConditions(Rowwise):
    r"""Any objective of single rows, applied to x given c; the conditions of a batch are clamped.

    .. math:: J(\theta) = \mathbb E_{(c, x)}\, \ell\bigl(E(\cdot \mid c), x\bigr)

    with :math:`\ell` the loss of a row x under an energy of x alone. For score matching this is the
    expected squared difference between the gradients of log p(x | c) with respect to x under the
    model and under the data, which do not depend on Z(c) [1]_.

    Parameters
    ----------
    energy : ConditionalEnergy
    objective : callable
        ``objective(energy)`` returns the objective for an energy of x; for example
        :class:`DenoisingScoreMatching` with its settings. That objective must have no parameters
        of its own.

    References
    ----------
    .. [1] Arbel and Gretton (2018), "Kernel conditional exponential family", AISTATS, section 3.

    Examples
    --------
    >>> import functools, torch
    >>> from skebm.base import Batch
    >>> from skebm.distributions import GaussianMixture, RegressionMixture
    >>> from skebm.energies import MLP, ConditionalEnergy, Spec
    >>> from skebm.objectives import DenoisingScoreMatching, GivenConditions
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = RegressionMixture(
    ...     GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.eye(1)[None]), 1
    ... )
    >>> energy = ConditionalEnergy(MLP().build(Spec((2,), generator)), base, 1)
    >>> denoising = functools.partial(DenoisingScoreMatching, sigma=0.5)
    >>> objective = GivenConditions(energy, denoising)
    >>> loss = objective(Batch(torch.randn(2000, 2, generator=generator)), None, generator)
    >>> round(loss.value.item(), 1)
    -0.1
    """

    energy: ConditionalEnergy

    def __init__(self, energy: ConditionalEnergy, objective: Callable[[Any], Rowwise]):
        super().__init__()
        self.energy, self.make = energy, objective
        self.passes = objective(energy.given(torch.zeros(1, energy.n_conditions))).passes

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        c, x = self.energy.split(x)
        return self.make(self.energy.given(c)).rowwise(x, generator, without)


class RankedConditional(Rowwise):
    r"""Noise contrastive estimation of x given c: each row is ranked among draws of its own base.

    .. math:: J = -\mathbb E_{(c, x)} \log
        \frac{e^{-f(c, x)}}{e^{-f(c, x)} + \sum_{j=1}^{m} e^{-f(c, x_j)}} , \qquad
        x_j \sim q(\cdot \mid c)

    The network has to identify the row of the data among m + 1 rows; the other m are draws of
    the base, which serve as noise. log q and Z(c) cancel, so that no normaliser has to be learned
    for any condition. For every m, J is minimised by the density of the data, if the model contains
    it [1]_; as m grows, the gradient of J approaches that of the likelihood.

    Parameters
    ----------
    energy : ConditionalEnergy
    n_draws : int, default=8
        m, at least 1.

    References
    ----------
    .. [1] Ma and Collins (2018), "Noise contrastive estimation and negative sampling for
       conditional models: consistency and statistical efficiency", EMNLP, section 3 (ranking).

    Examples
    --------
    >>> import math, torch
    >>> from skebm.base import Batch
    >>> from skebm.distributions import GaussianMixture, RegressionMixture
    >>> from skebm.energies import MLP, ConditionalEnergy, Spec
    >>> from skebm.objectives import RankedConditional
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = RegressionMixture(
    ...     GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.eye(1)[None]), 1
    ... )
    >>> energy = ConditionalEnergy(MLP().build(Spec((2,), generator)), base, 1)
    >>> loss = RankedConditional(energy)(Batch(torch.zeros(5, 2)), None, generator)
    >>> abs(loss.value.item() - math.log(9)) < 1e-5  # the energy starts as the noise
    True
    """

    passes = 3
    energy: ConditionalEnergy

    def __init__(self, energy: ConditionalEnergy, n_draws: int = 8):
        super().__init__()
        whole_number("n_draws", n_draws, 1)
        self.energy, self.n_draws = energy, n_draws

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        if without is not None:
            raise ValueError("Ranking among draws of the base cannot leave out kernel centres.")
        c, x = self.energy.split(x)
        given = self.energy.given(c)
        with torch.no_grad():
            draws = given.base.draws(self.n_draws, generator)
        f = given.parametric_energy(torch.cat([x, draws])).view(1 + self.n_draws, len(x))
        return (-f).logsumexp(0) + f[0]

    def work(self, n_rows: int) -> float:
        return (1 + self.n_draws) * super().work(n_rows)


class ClampedState(NamedTuple):
    """State that chains given conditions keep from batch to batch.

    Attributes
    ----------
    step_size : float
        Step size of the Langevin steps, which is adapted.
    """

    step_size: float


class ClampedDivergence(Objective):
    r"""Contrastive divergence of x given c: chains at clamped conditions.

    .. math:: \nabla J = \mathbb E_{(c, x)} \bigl[\nabla f(c, x)
        - \mathbb E_{p(x' \mid c)} \nabla f(c, x')\bigr]

    The inner expectation is estimated from a chain that starts at x, so that the bias has the same
    sign as in all contrastive divergence whose chains start at the data [1]_. First the chain
    moves to one of `n_draws` draws of the base or remains at its row, as chosen by importance
    weights [2]_; then it takes `n_steps` steps of MALA. Both leave p(x | c) invariant. The chains
    can therefore reach all modes that the base covers.

    Parameters
    ----------
    energy : ConditionalEnergy
    n_steps : int, default=5
        Langevin steps, at least 1.
    n_draws : int, default=8
        Draws of the base among which a chain may choose, at least 1.

    References
    ----------
    .. [1] Hinton (2002), "Training products of experts by minimizing contrastive divergence",
       Neural Computation 14(8).
    .. [2] Andrieu, Lee and Vihola (2018), "Uniform ergodicity of the iterated conditional SMC and
       geometric ergodicity of particle Gibbs samplers", Bernoulli 24(2) (i-SIR).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.distributions import GaussianMixture, RegressionMixture
    >>> from skebm.energies import MLP, ConditionalEnergy, Spec
    >>> from skebm.objectives import ClampedDivergence
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = RegressionMixture(
    ...     GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.eye(1)[None]), 1
    ... )
    >>> energy = ConditionalEnergy(MLP().build(Spec((2,), generator)), base, 1)
    >>> objective, batch = ClampedDivergence(energy), Batch(torch.zeros(5, 2))
    >>> loss = objective(batch, objective.start(batch, generator), generator)
    >>> loss.value.item()
    0.0
    """

    energy: ConditionalEnergy

    def __init__(self, energy: ConditionalEnergy, n_steps: int = 5, n_draws: int = 8):
        super().__init__()
        whole_number("n_steps", n_steps, 1)
        whole_number("n_draws", n_draws, 1)
        self.energy, self.n_steps, self.n_draws = energy, n_steps, n_draws

    def start(self, batch: Batch, generator: torch.Generator) -> ClampedState:
        """The first step size."""
        return ClampedState(FIRST_STEP)

    def forward(self, batch: Batch, state: ClampedState, generator: torch.Generator) -> Loss:
        """Mean f of the rows minus that of the chains."""
        c, x = self.energy.split(batch.x)
        given = self.energy.given(c)
        with torch.no_grad(), sampling(self.energy):
            chain, state = self._chain(given, x, state, generator)
        f, share = given.parametric_energy(torch.cat([x, chain])), share_of(batch)
        return Loss(share @ f[: len(x)] - share @ f[len(x) :], state)

    def _chain(
        self, given: RowwiseEnergy, x: Tensor, state: ClampedState, generator: torch.Generator
    ) -> tuple[Tensor, ClampedState]:
        """Rows that chains from x arrive at, and the state with the adapted step size."""
        energy: Any = given
        sampler = MALA(state.step_size)
        moved = sampler.init(energy, draw_by_importance(given, x, self.n_draws, generator))
        accepted = 0.0
        for _ in range(self.n_steps):
            moved, info = sampler.step(energy, moved, generator)
            accepted += float(info.acceptance) / self.n_steps
        factor = math.exp(GAIN * (accepted - TARGET_ACCEPTANCE))
        return moved.x, ClampedState(state.step_size * factor)

    def work(self, n_rows: int) -> float:
        """Forward and backward passes of rows and chains, and those of the steps."""
        return (6 + self.n_draws + 3 * self.n_steps) * super().work(n_rows)

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: ClampedState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Energy gap between rows and chains given the same conditions; spread of row energies."""
        with sampling(self.energy):
            c, x = self.energy.split(batch.x)
            given = self.energy.given(c)
            chain, _ = self._chain(given, x, state, generator)
            data, model = given(x), given(chain)
        gap = weighted_mean(data, batch.weight) - weighted_mean(model, batch.weight)
        spread = weighted_variance(data, batch.weight).sqrt()
        return {"loss": gap, "energy_gap": gap, "energy_spread": spread}

    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """The ranking loss of held-out rows among draws of the base, see RankedConditional."""
        with torch.no_grad(), sampling(self.energy):
            losses = RankedConditional(self.energy, HELD_OUT_DRAWS).rowwise(batch.x, generator)
        return weighted_mean(losses, batch.weight)

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Check for non-finite values, then apply `skebm.base.objective.why_diverged`."""
        reason = super().divergence_reason(logs, before, n_rows)
        return reason or why_diverged(logs, before, n_rows, self.energy.target_domain)

    def state_after_roll_back(
        self, state: ClampedState, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> ClampedState:
        """Half the step size."""
        return ClampedState(state.step_size / 2)

    def over_ranks(self, state: ClampedState, rows: Any, mean: Any) -> ClampedState:
        """The mean step size."""
        return ClampedState(mean(state.step_size))

    def pack(self, state: ClampedState | None) -> dict[str, Tensor | None]:
        """The step size."""
        return (
            {}
            if state is None
            else {"step_size": torch.tensor(state.step_size, dtype=torch.float64)}
        )

    def unpack(self, packed: dict[str, Tensor | None]) -> ClampedState | None:
        """The inverse of :meth:`pack`."""
        step = packed.get("step_size")
        return None if step is None else ClampedState(float(step))


def draw_by_importance(
    given: RowwiseEnergy, x: Tensor, n_draws: int, generator: torch.Generator
) -> Tensor:
    """For each row, the row itself or one of several draws of its base, by importance weights.

    This leaves p(x | c) invariant.
    """
    offered = torch.cat([x, given.base.draws(n_draws, generator)])
    log_weight = -given.parametric_energy(offered).view(1 + n_draws, len(x)).t()
    pick = torch.multinomial(log_weight.double().softmax(1), 1, generator=generator)[:, 0]
    rows = offered.view(1 + n_draws, *x.shape)
    return rows[pick, torch.arange(len(x), device=x.device)]
