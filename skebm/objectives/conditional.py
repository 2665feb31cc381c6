r"""Learning of p(y given x) by contrastive divergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, Loss, Objective, Real
from skebm.base.objective import LARGEST_CHANGE, weighted_mean, weighted_variance, why_diverged
from skebm.base.sampler import whole_number
from skebm.energies import GatedEnergy, GivenEnergy
from skebm.objectives.likelihood import share_of


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
    assess : callable or None, default=None
        ``assess(energy, rows, weight, generator)`` returns an object whose ``gain`` is the mean
        log-likelihood ratio of held-out pairs to the base, in nats. None compares them by the loss.

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

    def __init__(
        self,
        energy: GatedEnergy,
        n_steps: int = 1,
        assess: Callable[..., Any] | None = None,
    ):
        super().__init__()
        if not isinstance(energy, GatedEnergy):
            raise TypeError(f"The energy must be a GatedEnergy, got {type(energy).__name__}.")
        whole_number("n_steps", n_steps, 1)
        self.energy, self.n_steps, self.assess = energy, n_steps, assess

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
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean log-likelihood ratio of y given x to the base, as `assess` estimates it.

        The loss, if there is no such function.
        """
        if self.assess is None:
            return self.monitor(batch, state, generator)["loss"]
        assessment = self.assess(self.energy, batch.x, batch.weight, generator)
        return batch.x.new_tensor(-assessment.gain)

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Check for non-finite values, then apply `skebm.base.objective.why_diverged`.

        For real columns, the change of energies that a step may make is proportional to their
        number, as it is for bits, because the precisions of all of them grow at once.
        """
        domain = self.energy.target_domain
        reason = super().divergence_reason(logs, before, n_rows)
        # Change of the energies of rows by a step, in nats for each real column of y, that is
        # allowed.
        change_of_column = 0.1
        if isinstance(domain, Real) and "energy_change" in logs:
            allowed = max(1.0, change_of_column * domain.n_columns / LARGEST_CHANGE)
            logs = logs | {"energy_change": logs["energy_change"] / allowed}
        return reason or why_diverged(logs, before, n_rows, domain)
