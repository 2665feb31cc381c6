r"""Learning of p(y given x) by contrastive divergence, and the normaliser of each row x."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, Conditional, Loss, Objective, Real
from skebm.base.objective import LARGEST_CHANGE, weighted_mean, weighted_variance, why_diverged
from skebm.base.sampler import whole_number
from skebm.base.torchtools import softplus_sum
from skebm.base.units import Bernoulli, Normal
from skebm.distributions._fitting import draw_index
from skebm.energies import GatedEnergy, GivenEnergy
from skebm.objectives.likelihood import share_of

# Chains of a row, and temperatures, of annealing that judges held-out rows.
N_CHAINS, N_BETAS = 4, 50
# Change of the energies of rows by a step, in nats for each real column of y, that is allowed.
CHANGE_OF_COLUMN = 0.1
# Uniform numbers of all chains, of a hidden layer and y side by side, (N, H + dy).
Uniforms = Callable[[], Tensor]


class ConditionalDivergence(Objective):
    r"""Contrastive divergence of y given x, for gated restricted Boltzmann machines.

    .. math:: \nabla_\theta \bigl(-\mathbb E_{data} \log p(y \mid x)\bigr)
        = \mathbb E_{data} \bigl[\nabla_\theta F(y \mid x)
        - \mathbb E_{p(y' \mid x)} \nabla_\theta F(y' \mid x)\bigr]

    The inner expectation is estimated from a row y' that block Gibbs sampling reaches from y in
    `n_steps` steps while x is clamped [1]_. The estimate is biased, like every contrastive
    divergence whose chains start at the data. The gradient is written by hand, so that data and
    chains share the filter responses of x.

    Parameters
    ----------
    energy : GatedEnergy
    n_steps : int, default=1
        Gibbs steps of a chain, at least 1.

    References
    ----------
    .. [1] Memisevic and Hinton (2010), "Learning to represent spatial transformations with factored
       higher-order Boltzmann machines", Neural Computation 22(6), section 3.2.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Binary
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import GatedEnergy
    >>> from skebm.objectives import ConditionalDivergence
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = IndependentBernoulli(torch.zeros(3))
    >>> energy = GatedEnergy(base, Binary((3,)), 5, 2, generator=generator)
    >>> objective = ConditionalDivergence(energy)
    >>> rows = torch.eye(3).repeat(1, 2)  # y is x
    >>> loss = objective(Batch(rows), None, generator)
    >>> abs(loss.value.item()) < 0.5
    True
    """

    energy: GatedEnergy

    def __init__(self, energy: GatedEnergy, n_steps: int = 1):
        super().__init__()
        if not isinstance(energy, GatedEnergy):
            raise TypeError(f"The energy must be a GatedEnergy, got {type(energy).__name__}.")
        whole_number("n_steps", n_steps, 1)
        self.energy, self.n_steps = energy, n_steps

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Mean F of the rows minus that of the chains, differentiable."""
        x, y = self.energy.split(batch.x)
        with torch.no_grad():
            chain = self._chain(self.energy.given(x), y, generator)
        given, share = self.energy.given(x), share_of(batch)
        return Loss(share @ given(y) - share @ given(chain), state)

    def _chain(self, given: GivenEnergy, y: Tensor, generator: torch.Generator) -> Tensor:
        """y after some Gibbs steps."""
        for _ in range(self.n_steps):
            y = given.visible(given.hidden(y).sample(generator)).sample(generator)
        return y

    @torch.no_grad()
    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write the gradient of data and chains, from few matrix products."""
        energy = self.energy
        x, y = energy.split(batch.x)
        given = energy.given(x)
        response = given.responses(y)
        h = given.hidden_of(response)
        chain, of_chain, h_chain = y, response, h
        for _ in range(self.n_steps):
            chain = given.visible(h_chain.sample(generator)).sample(generator)
            of_chain = given.responses(chain)
            h_chain = given.hidden_of(of_chain)
        share = share_of(batch)[:, None]
        signed = torch.cat([h.mean * share, h_chain.mean * -share])
        pulled = (signed @ energy.mapping.t()).view(2, len(x), -1)
        responses = torch.stack([response, of_chain])
        rows = torch.cat([y, chain])
        energy.mapping.grad = (given.gate * responses).flatten(0, 1).t() @ -signed
        energy.filters.grad = (given.gate * pulled).flatten(0, 1).t() @ (energy.offset - rows)
        at_x = (responses * pulled).sum(0)
        energy.given_filters.grad = at_x.t() @ (energy.given_offset - x)
        energy.hidden_bias.grad = -signed.sum(0)
        energy.visible_bias.grad = share[:, 0] @ (chain - y)
        energy.log_precision.grad = torch.zeros_like(energy.log_precision)
        if given.is_real:
            squares = share[:, 0] @ (y.square() - chain.square())
            energy.log_precision.grad = given.precision * squares / 2
        return Loss(None, state)

    # ---------------------------------------------------------------- monitoring

    def work(self, n_rows: int) -> float:
        """The products of data and chains, small matrices each."""
        return float(n_rows * max(p.numel() for p in self.parameters()))

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Energy gap between rows and chains of the same x, reconstruction error, largest weight.

        The reconstruction is the mean of y given x and the means of the mapping units.
        """
        x, y = self.energy.split(batch.x)
        given = self.energy.given(x)
        data, chain = given(y), given(self._chain(given, y, generator))
        gap = weighted_mean(data, batch.weight) - weighted_mean(chain, batch.weight)
        error = (y - given.visible(given.hidden(y).mean).mean).square().mean(1)
        return {
            "loss": gap,
            "energy_gap": gap,
            "energy_spread": weighted_variance(data, batch.weight).sqrt(),
            "reconstruction_error": weighted_mean(error, batch.weight),
            "largest_weight": self.energy.mapping.abs().max(),
        }

    @torch.no_grad()
    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean log-likelihood ratio of y given x to the base, with log Z by annealing."""
        found = conditional_gains(self.energy, batch.x, generator, N_CHAINS, N_BETAS)
        return -weighted_mean(found.to(batch.x.dtype), batch.weight)

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Check for non-finite values, then apply `skebm.base.objective.why_diverged`.

        For real columns, the change of energies that a step may make is proportional to their
        number, as it is for bits, because the precisions of all of them grow at once.
        """
        domain = self.energy.target_domain
        reason = super().diverged(logs, before, n_rows)
        if isinstance(domain, Real) and "energy_change" in logs:
            allowed = max(1.0, CHANGE_OF_COLUMN * domain.n_columns / LARGEST_CHANGE)
            logs = logs | {"energy_change": logs["energy_change"] / allowed}
        return reason or why_diverged(logs, before, n_rows, domain)


# ------------------------------------------------------------------------------
# log Z of rows
# ------------------------------------------------------------------------------


@torch.no_grad()
def conditional_gains(
    energy: GatedEnergy, rows: Tensor, generator: torch.Generator, n_chains: int, n_betas: int
) -> Tensor:
    """log p(y given x) - log q(y) of rows, (n,) in float64, for comparisons of models.

    Direction: annealing forward from the base gives a log Z that is low on average; annealing
    backward from y gives one that is high on average if y is a draw of the model. The larger of
    the two is used.
    """
    x, y = energy.split(rows)
    given = energy.given(x).of_chains(n_chains)
    size = (n_chains * len(x), given.hidden_domain.n_columns + given.domain.n_columns)

    def uniforms() -> Tensor:
        return torch.rand(size, generator=generator, dtype=rows.dtype, device=rows.device)

    starts = y.repeat(n_chains, 1)
    forward, _ = anneal_chains(given, n_betas, uniforms)
    backward, _ = anneal_chains(given, n_betas, uniforms, starts)
    means = [log_mean_of_chains(forward, n_chains), -log_mean_of_chains(-backward, n_chains)]
    log_z = torch.maximum(*means)
    return -(energy(rows) + energy.base.log_prob(y)).double() - log_z


def log_mean_of_chains(log_weight: Tensor, n_chains: int) -> Tensor:
    """Log of the mean weight over the chains of each row, (n,), from log weights (n_chains n,)."""
    return log_weight.view(n_chains, -1).logsumexp(0) - math.log(n_chains)


def draw_ends(ends: Tensor, log_weight: Tensor, u: Tensor, n_draws: int) -> Tensor:
    """Ends of the chains of each row, drawn by their weights, (n_draws n, d).

    Parameters
    ----------
    ends : Tensor of shape (n_chains n, d)
    log_weight : Tensor of shape (n_chains n,)
    u : Tensor of shape (n_draws n,)
        Uniform numbers.
    n_draws : int
        Number of draws for each row.
    """
    n = len(u) // n_draws
    weight = log_weight.view(-1, n).softmax(0).t().contiguous()
    chosen = draw_index(weight, u.view(n_draws, n).t().contiguous().to(weight)).t()
    return ends.view(-1, n, ends.shape[1])[chosen, torch.arange(n, device=u.device)].flatten(0, 1)


@torch.no_grad()
def anneal_chains(
    given: GivenEnergy, n_betas: int, uniforms: Uniforms, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Annealed importance sampling of the normaliser of each row x, with one chain per row.

    The path is :math:`q(y)^{1 - \beta} e^{-\beta E(y, h)}` with evenly spaced :math:`\beta`; block
    Gibbs sampling moves the chains along it.

    Direction: in forward annealing, exp(value) has the mean Z(x), so that values are low on
    average. In backward annealing from `starts` that are draws of p(y given x), exp(-value) has the
    mean 1 / Z(x), so that values are high on average. Rows of data are seldom such draws, and
    values from them are then less informative.

    Parameters
    ----------
    given : GivenEnergy
        Energy of y given a row x for each of N chains.
    n_betas : int
        Number of steps between base and model.
    uniforms : callable
        ``uniforms()`` returns the uniform numbers of a step, (N, H + dy): for h, then for y.
    starts : Tensor of shape (N, dy) or None, default=None
        Rows at which backward annealing starts. With None, annealing is forward, from the base.

    Returns
    -------
    tuple of Tensor of shape (N,), float64, and (N, dy)
        A value of log Z for each chain, and the rows at its end.
    """
    n_hidden = given.hidden_domain.n_columns
    betas = torch.linspace(0, 1, n_betas + 1).tolist()
    if starts is not None:
        betas.reverse()
        y = starts
    else:
        u = uniforms()
        y = drawn(given.annealed(0.0).visible(torch.zeros_like(u[:, :n_hidden])), u[:, n_hidden:])
    total = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    for place, new in enumerate(betas[1:], 1):
        old = betas[place - 1]
        field = given.hidden_field(y)
        unary = -given.visible_energy(y) - given.base.log_prob(y)
        change = softplus_sum(new * field) - softplus_sum(old * field)
        total += ((new - old) * unary + change).double()
        if place == n_betas:
            break
        u = uniforms()
        h = drawn(Bernoulli((new * field).sigmoid_()), u[:, :n_hidden])
        y = drawn(given.annealed(new).visible(h), u[:, n_hidden:])
    sign = 1 if starts is None else -1
    return n_hidden * math.log(2) + sign * total, y


def drawn(conditional: Conditional, u: Tensor) -> Tensor:
    """A draw of a layer, made from uniform numbers u of its shape."""
    if isinstance(conditional, Normal):
        tiny = torch.finfo(u.dtype).eps / 2
        return conditional.mean + conditional.scale * torch.special.ndtri(u.clamp(tiny, 1 - tiny))
    return (u < conditional.mean).to(u.dtype)
