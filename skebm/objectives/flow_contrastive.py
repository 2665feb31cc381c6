"""Flow contrastive estimation: noise contrastive estimation against an adversarial flow."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Batch, Loss, sampling
from skebm.base.objective import fill_missing, weighted_mean
from skebm.base.processes import mean_over_ranks
from skebm.base.torchtools import softplus
from skebm.distributions import NormalizingFlow
from skebm.energies import NeuralEnergy
from skebm.objectives.log_partition import LogPartitionMonitor, gains, log_mean_and_error
from skebm.objectives.noise_contrastive.classifier import SCALE
from skebm.objectives.score_matching import Rowwise
from skebm.samplers._moves import standard_normal

# Batches between two checks of the classifier's accuracy, each of which synchronises the device,
# and the weight of the last batch in the moving average of the accuracy.
CHECK_EVERY, RATE = 16, 0.1


class FlowState(NamedTuple):
    """Accuracy of the classifier, and whether the flow is trained.

    Attributes
    ----------
    discriminated : Tensor, scalar
        Moving average of the fraction of rows and draws that are classified correctly.
    n_batches : int
        Number of batches so far.
    moves : bool
        Whether the flow is trained as well.
    """

    discriminated: Tensor
    n_batches: int
    moves: bool


class FlowContrastive(Rowwise):
    r"""Flow contrastive estimation: noise contrastive estimation against an adversarial flow.

    With :math:`r(x) = -E(x) - c - \log q_\phi(x)` for the log density ratio,

    .. math:: \min_{E, c} \max_\phi \; J = \mathbb E_{data}\, \mathrm{softplus}(-r(x))
        + \mathbb E_{q_\phi}\, \mathrm{softplus}(r(x)) .

    For any flow, the energy and c, an estimate of log Z, are trained by noise contrastive
    estimation with as many draws as rows. The flow is trained through reparametrised draws to
    decrease the Jensen-Shannon divergence from the data, as estimated by the energy. One forward
    and one backward pass give both gradients. The flow is not updated while rows and draws are
    classified no better than by chance (an accuracy of at most 52 %, checked every 16 batches): the
    energy then has no signal for it, and what remains of its objective is the likelihood of the
    training rows.

    Parameters
    ----------
    energy : NeuralEnergy
        Energy on real rows, with a base, which is used to monitor training.
    flow : NormalizingFlow
        :math:`q_\phi`; a copy is trained.
    sigma : Tensor of shape (d,) or None, default=None
        Standard deviation of Gaussian noise added to the rows, in units of x.

    Attributes
    ----------
    noise : NormalizingFlow
        The flow being trained.
    log_partition : Tensor, scalar
        c, in nats.

    References
    ----------
    Gao, Nijkamp, Kingma, Xu, Dai and Wu (2020), "Flow contrastive estimation of energy-based
    models", CVPR, section 3.3.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import NormalizingFlow
    >>> from skebm.objectives import FlowContrastive
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(200, 2, generator=generator)
    >>> flow = NormalizingFlow.fit(x, flow="maf", n_steps=20)
    >>> energy = NeuralEnergy(MLP().build(Spec((2,), generator)), Real((2,)), flow)
    >>> objective = FlowContrastive(energy, flow)
    >>> round(objective(Batch(x), None, generator).value.item(), 4)  # 2 log 2: chance
    1.3863
    """

    passes = 6  # through the network, forward and backward, at rows and at draws

    def __init__(self, energy: NeuralEnergy, flow: NormalizingFlow, *, sigma: Tensor | None = None):
        super().__init__()
        if not isinstance(flow, NormalizingFlow):
            raise TypeError(f"flow must be a skebm.distributions.NormalizingFlow, not {flow!r}.")
        if flow.domain != energy.domain:
            raise ValueError(
                f"flow and energy must have the same domain, got {flow.domain} and {energy.domain}."
            )
        if energy.base is None:
            raise ValueError(
                "The energy needs a base, draws of which are used to monitor training."
            )
        like = next(energy.parameters())
        self.energy, self.base = energy, energy.base
        self.noise = flow.to(like.device, like.dtype)
        self.flow = self.noise.flow.requires_grad_(True)
        self.sigma: Tensor | None
        self.register_buffer("sigma", sigma, persistent=False)
        self.shift = nn.Parameter(like.new_zeros(()))
        self._log_partition_monitor = LogPartitionMonitor(self.base, energy.domain)

    @property
    def log_partition(self) -> Tensor:
        """c."""
        return SCALE * self.shift

    def log_ratio(self, x: Tensor, log_q: Tensor) -> Tensor:
        """Log density ratio of the model to the flow, (n,)."""
        return -self.energy(x) - self.log_partition - log_q

    def _noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x if self.sigma is None else x + self.sigma * standard_normal(x, generator)

    def _ratios(
        self, x: Tensor, generator: torch.Generator, moves: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Log-ratios of noisy rows and of as many draws; the flow is trained only if it `moves`."""
        x = self._noisy(x, generator)
        with torch.set_grad_enabled(moves and torch.is_grad_enabled()):
            draws, log_q_draws = self.noise.rsample_and_log_prob(len(x), generator)
            log_q = torch.cat([self.noise.log_prob(x), log_q_draws])
        data, noise = self.log_ratio(torch.cat([x, draws]), log_q).chunk(2)
        return data, noise

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,), against fresh draws."""
        if without is not None:
            raise ValueError("Flow contrastive estimation cannot leave out kernel centres.")
        data, draws = self._ratios(x, generator)
        return softplus(-data) + softplus(draws).mean()

    def start(self, batch: Batch, generator: torch.Generator) -> FlowState:
        return FlowState(batch.x.new_full((), 0.5), 0, True)

    def gradients(self, batch: Batch, state: FlowState, generator: torch.Generator) -> Loss:
        """Write gradients that minimise J over energy and c, and maximise it over the flow."""
        self.clear_gradients()
        with torch.enable_grad():
            data, draws = self._ratios(batch.x, generator, state.moves)
            loss = softplus(-data) + softplus(draws).mean()
            value = (loss if batch.weight is None else batch.weight * loss).mean()
            value.backward()
        for p in self.flow.parameters():
            p.grad = None if p.grad is None else -p.grad
        players = [*self.energy.parameters(), self.shift]
        fill_missing([p for p in players if p.requires_grad])
        return Loss(value.detach(), self._next(state, data, draws))

    def _next(self, state: FlowState, data: Tensor, draws: Tensor) -> FlowState:
        right = ((data > 0).to(data.dtype).mean() + (draws < 0).to(data.dtype).mean()) / 2
        (right,) = mean_over_ranks(right)  # all processes train the flow, or none
        discriminated, n_batches = torch.lerp(state.discriminated, right, RATE), state.n_batches + 1
        checks = n_batches % CHECK_EVERY == 0
        # Accuracy above which the gradient of the energy is informative for the flow.
        least_accuracy = 0.52
        moves = bool(discriminated > least_accuracy) if checks else state.moves
        return FlowState(discriminated, n_batches, moves)

    def pack(self, state: FlowState) -> dict[str, Tensor | None]:
        if state is None:
            return {}
        return {
            "discriminated": state.discriminated,
            "n_batches": torch.tensor(state.n_batches),
            "moves": torch.tensor(state.moves),
        }

    def unpack(self, packed: dict[str, Tensor | None]) -> FlowState | None:
        discriminated, n_batches, moves = (packed.get(name) for name in FlowState._fields)
        if discriminated is None or n_batches is None or moves is None:
            return None
        return FlowState(discriminated, int(n_batches), bool(moves))

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Loss, accuracy, and log-likelihood ratios of the model and the flow to the base."""
        with sampling(self):
            x = self._noisy(batch.x, generator)
            draws, log_q_draws = self.noise.rsample_and_log_prob(len(x), generator)
            log_q = self.noise.log_prob(x)
            # Evaluations of a flow are dear: that of the base is one call for all rows.
            of_base = self.base.log_prob(torch.cat([x, draws]))
            ratios = of_base - self.energy.correction(torch.cat([x, draws])) - self.log_partition
            n = len(x)
            data, noise, known = ratios[:n] - log_q, ratios[n:] - log_q_draws, of_base[:n]
            gains = self._gains(x, batch.weight)
        right = weighted_mean((data > 0).to(x.dtype), batch.weight)
        logs = {
            "loss": weighted_mean(softplus(-data), batch.weight) + softplus(noise).mean(),
            "accuracy": (right + (noise < 0).to(x.dtype).mean()) / 2,
            "flow_gain": weighted_mean(log_q - known, batch.weight),
        }
        return logs | gains

    def _gains(self, x: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        """Mean log-likelihood ratio to the base, with log Z estimated from draws of the base."""
        draws = self._log_partition_monitor.draws(x)
        f = self.energy.correction(torch.cat([x, draws]))
        return gains(f[: len(x)], *log_mean_and_error(-f[len(x) :].double()), weight)

    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the log-likelihood ratio to the base: the loss also falls when the flow worsens."""
        with sampling(self):
            gains = self._gains(self._noisy(batch.x, generator), batch.weight)
        return -gains["gain_over_base"].detach()
