"""Objectives that compare a row with those one change away: they need no samples and no log Z."""

from __future__ import annotations

import abc
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from skebm.base import (
    Batch,
    Binary,
    Categorical,
    Centering,
    Energy,
    Loss,
    Objective,
    Penalty,
    sampling,
)
from skebm.base.domains import parts_of
from skebm.base.energy import discrete_columns
from skebm.base.objective import LARGEST_WEIGHT, LEAST_ROWS, penalty_of, weighted_mean
from skebm.energies import BernoulliRBM, MixedRBM
from skebm.energies.rbm.gradient import Gradient
from skebm.objectives.likelihood import (
    CenteredLikelihood,
    LikelihoodState,
    share_of,
)
from skebm.objectives.log_partition import LogPartitionMonitor


def pseudo_log_likelihood(energy: Energy, x: Tensor) -> Tensor:
    r"""Pseudo-log-likelihood of rows of bits and one-hot columns, summed exactly over all columns.

    .. math:: \sum_i \log p(x_i \mid x_{-i})
        = -\sum_i \log \sum_k \exp\bigl(E(x) - E(x^{(i \to k)})\bigr)

    where :math:`x^{(i \to k)}` is x with column i set to level k (0 or 1 for a bit). It is neither
    a lower nor an upper bound on log p(x). The computation takes one evaluation of the energy for
    each other level of each column (d for d bits), unless the energy has a cheaper formula.

    Parameters
    ----------
    energy : Energy
        Energy on flat binary rows, on one-hot rows, or on both side by side.
    x : Tensor of shape (n, d)

    Returns
    -------
    Tensor of shape (n,)
        Pseudo-log-likelihood of each row, in nats.

    References
    ----------
    Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Categorical
    >>> from skebm.energies import NeuralEnergy
    >>> from skebm.objectives import pseudo_log_likelihood
    >>> field = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Flatten(0))
    >>> _ = torch.nn.init.zeros_(field[0].weight)
    >>> energy = NeuralEnergy(field, Categorical((3, 2)))  # all levels are equally likely
    >>> pseudo_log_likelihood(energy, torch.tensor([[1.0, 0, 0, 0, 1]])).exp()
    tensor([0.1667], grad_fn=<ExpBackward0>)
    """
    return -PseudoLikelihood.of_differences(energy.level_difference(x), energy).sum(1)


def level_table(values: Tensor, groups: tuple[int, ...], fill: float) -> Tensor:
    """Entries of one-hot columns as (n, columns, levels); `fill` where a column has fewer."""
    k = max(groups)
    if min(groups) == k:
        return values.view(len(values), -1, k)
    return torch.stack(
        [pad(part, (0, k - part.shape[1]), value=fill) for part in values.split(groups, 1)], 1
    )


class LocalObjective(Objective):
    r"""Mean over rows of a sum over columns that compares E(x) with the energies of its neighbours.

    Neighbours :math:`x^{(i \to k)}` differ from x in one column. Each term depends on the energy
    through the differences :math:`\Delta_{ik} = E(x^{(i \to k)}) - E(x)` alone, in which log Z
    cancels. The minimum over all energies is at the distribution of the rows.

    Parameters
    ----------
    energy : Energy
        Energy on bits, one-hot columns, or both side by side.
    l1, l2 : float, default=0
        Penalties :math:`\lambda_1 \sum |w| + \lambda_2 \sum w^2 / 2` on ``energy.weight``.

    Attributes
    ----------
    log_partition_monitor : LogPartitionMonitor or None
        Measures the gain of monitored rows over the base; with None it is not measured.
    """

    log_partition_monitor: LogPartitionMonitor | None = None

    def __init__(self, energy: Energy, *, l1: float = 0.0, l2: float = 0.0):
        super().__init__()
        list(discrete_columns(energy.domain))  # raises for real columns
        self.energy, self.l1, self.l2 = energy, l1, l2

    @staticmethod
    @abc.abstractmethod
    def bits(difference: Tensor) -> Tensor:
        """Terms of bits, (n, d), from the energy differences of their flips."""

    @staticmethod
    @abc.abstractmethod
    def levels(difference: Tensor) -> Tensor:
        """Terms (n, columns) from energy differences (n, columns, levels), 0 at the present level.

        The difference is infinite for levels that a column does not have.
        """

    @classmethod
    def of_differences(cls, difference: Tensor, energy: Energy) -> Tensor:
        """Terms of all columns, (n, columns)."""
        domain = energy.domain
        if isinstance(domain, Binary):
            return cls.bits(difference)
        parts = parts_of(domain)
        blocks = difference.split([part.n_columns for part in parts], 1)
        losses = [
            cls.levels(level_table(block, part.groups, math.inf))
            if isinstance(part, Categorical)
            else cls.bits(block)
            for part, block in zip(parts, blocks, strict=True)
        ]
        return torch.cat(losses, 1)

    def of_rows(self, x: Tensor) -> Tensor:
        """Sum of the terms of each row, (n,)."""
        return self.of_differences(self.energy.level_difference(x), self.energy).sum(1)

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Weighted mean over the rows, plus the penalties."""
        return Loss(self._mean_loss(batch) + penalty_of(self.energy, self.l1, self.l2), state)

    def _mean_loss(self, batch: Batch) -> Tensor:
        # In double precision, by whose differences a line search judges its steps.
        values = self.of_rows(batch.x).double()
        if batch.weight is None:
            return values.mean()
        return batch.weight.double() @ values / len(values)

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """The loss of the batch, penalties included, and its gain over the base where measured."""
        with sampling(self.energy):
            loss = weighted_mean(self.of_rows(batch.x), batch.weight) + penalty_of(
                self.energy, self.l1, self.l2
            )
            if self.log_partition_monitor is None:
                return {"loss": loss}
            gains = self.log_partition_monitor.gains(self.energy, batch.x, batch.weight)
            return {"loss": loss} | gains

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """The loss of the batch without penalties."""
        with sampling(self.energy):
            return weighted_mean(self.of_rows(batch.x), batch.weight)

    @property
    def of_uniform(self) -> float:
        """The loss of any row under the uniform distribution."""
        no_difference = torch.zeros(1, self.energy.domain.n_columns, dtype=torch.float64)
        return float(self.of_differences(no_difference, self.energy).sum())

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Check for non-finite values, and a loss that rose above the uniform distribution's."""
        reason = super().divergence_reason(logs, before, n_rows)
        if reason is not None or before is None or n_rows < LEAST_ROWS:
            return reason
        if logs["loss"] <= max(self.of_uniform, before.get("loss", -math.inf)) + 1:
            return None
        return f"loss {logs['loss']:.3g}, worse than that of a uniform distribution"


class PseudoLikelihood(LocalObjective):
    r"""Negative pseudo-log-likelihood: the conditionals of all columns given the others.

    .. math:: -\mathbb E \sum_i \log p(x_i \mid x_{-i})

    For bits the terms are :math:`-\log \sigma(\Delta_i)`. It is consistent, and convex in
    parameters in which the energy is linear. :class:`LocalObjective` documents the parameters.

    References
    ----------
    Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3). Tomczak
    (2022), "Deep Generative Modeling", section 6.5 names it among the alternatives to contrastive
    divergence.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.energies import ising_grid
    >>> from skebm.objectives import PseudoLikelihood
    >>> batch = Batch(torch.ones(1, 9))
    >>> generator = torch.Generator()
    >>> loss = PseudoLikelihood(ising_grid(3, 3, 0.0))(batch, None, generator).value
    >>> round(loss.item(), 4)  # 9 log 2
    6.2383
    """

    @staticmethod
    def bits(difference: Tensor) -> Tensor:
        return -logsigmoid(difference)

    @staticmethod
    def levels(difference: Tensor) -> Tensor:
        return (-difference).logsumexp(2)


class RatioMatching(LocalObjective):
    r"""Ratio matching: squared errors of the conditionals, score matching for bits.

    .. math:: \mathbb E \sum_i \tfrac12 \sum_k
        \bigl(\mathbf 1[x_i = k] - p(x_i = k \mid x_{-i})\bigr)^2

    For bits this is :math:`\sum_i \sigma(E(x) - E(x^{(i)}))^2`, the objective of Hyvärinen. For
    categories the sum over levels is the same measure, a Brier score. A row contributes at most 1
    per column, even if the model gives it probability zero, so that the objective is robust and, in
    return, not convex. :class:`LocalObjective` documents the parameters.

    References
    ----------
    Hyvärinen (2007), "Some extensions of score matching", Computational Statistics & Data Analysis
    51(5), eq. 21.
    """

    @staticmethod
    def bits(difference: Tensor) -> Tensor:
        return torch.sigmoid(-difference).square()

    @staticmethod
    def levels(difference: Tensor) -> Tensor:
        log_total = (-difference).logsumexp(2)
        squares = torch.exp((-2 * difference).logsumexp(2) - 2 * log_total)
        return (1 - 2 * torch.exp(-log_total) + squares) / 2


class ProbabilityFlow(LocalObjective):
    r"""Minimum probability flow: the rate at which probability leaves the rows for neighbours.

    .. math:: \mathbb E \sum_i \sum_{k \neq x_i} \exp\bigl((E(x) - E(x^{(i \to k)})) / 2\bigr)

    The objective is convex in parameters in which the energy is linear. The term of a row grows
    exponentially with its energy, so that outliers have a large influence. :class:`LocalObjective`
    documents the parameters.

    References
    ----------
    Sohl-Dickstein, Battaglino and DeWeese (2011), "Minimum probability flow learning", ICML,
    eq. 13.
    """

    @staticmethod
    def bits(difference: Tensor) -> Tensor:
        return torch.exp(-difference / 2)

    @staticmethod
    def levels(difference: Tensor) -> Tensor:
        return torch.exp(-difference / 2).sum(2) - 1


# By the names that estimators give them.
LOCAL_RULES: dict[str, type[LocalObjective]] = {
    "pseudo_likelihood": PseudoLikelihood,
    "ratio_matching": RatioMatching,
    "probability_flow": ProbabilityFlow,
}


class CenteredObjective(CenteredLikelihood):
    r"""A local objective of a restricted Boltzmann machine, centred and with its penalties.

    The gradient is that of the objective in the weights of centred units,
    :math:`(h - \lambda)^\top W (x - \mu)`, which keeps the minimum (see :class:`Centering`).
    Values between 0 and 1 on binary domains are probabilities of bits, which are drawn anew at
    every step.

    Parameters
    ----------
    objective : LocalObjective
        Objective of a :class:`~skebm.energies.BernoulliRBM`, or of a
        :class:`~skebm.energies.MixedRBM` of bits and categories, without penalties of its own.
    centering : Centering or None, default=None
    penalty : Penalty or None, default=None
        Penalties on weights and hidden units, l1 included in the gradient.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.energies import BernoulliRBM
    >>> from skebm.objectives import CenteredObjective, Centering, PseudoLikelihood
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = BernoulliRBM(3, 2, generator=generator, scale=0.0)
    >>> objective = CenteredObjective(PseudoLikelihood(energy), centering=Centering())
    >>> state = objective.start(Batch(torch.eye(3)), generator)
    >>> round(objective(Batch(torch.eye(3)), state, generator).value.item(), 4)  # 3 log 2
    2.0794
    """

    energy: BernoulliRBM | MixedRBM

    def __init__(
        self,
        objective: LocalObjective,
        *,
        centering: Centering | None = None,
        penalty: Penalty | None = None,
    ):
        super().__init__()
        self.objective = objective  # before the energy: names of parameters begin with it
        self._center(objective.energy, centering, penalty)

    def work(self, n_rows: int) -> float:
        """Multiplications of a step, which visits every column of every row in turn."""
        return super().work(n_rows) * self.energy.domain.n_columns

    def forward(self, batch: Batch, state: LikelihoodState, generator: torch.Generator) -> Loss:
        """The objective plus the penalties."""
        batch = self._with_bits(batch, generator)
        loss = self.objective(batch, None, generator)
        return Loss(loss.value + self._penalty(batch), state)

    def gradients(self, batch: Batch, state: LikelihoodState, generator: torch.Generator) -> Loss:
        """Write the centred gradient, and return the loss."""
        batch, energy = self._with_bits(batch, generator), self.energy
        value: Any = self.objective.gradients(batch, None, generator).value
        parts: list[Any] = [p.grad for p in energy.tensors]
        h, share = energy.hidden(batch.x).mean, share_of(batch)
        offsets = self._gradient.write_plain(Gradient(*parts), batch.x, h, share, state.offsets)
        return Loss(value.detach() + self._penalty(batch), LikelihoodState(offsets))

    def _with_bits(self, batch: Batch, generator: torch.Generator) -> Batch:
        x = batch.x
        if not isinstance(self.energy.domain, Binary) or bool(((x == 0) | (x == 1)).all()):
            return batch
        u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return batch._replace(x=(u < x).to(x.dtype))

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """The loss of the batch, penalties included, and the largest weight."""
        batch = self._with_bits(batch, generator)
        loss = self.objective.validation_loss(batch, None, generator) + self._penalty(batch)
        return {"loss": loss, "largest_weight": self.energy.weight.abs().max()}

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """The loss of the batch without penalties."""
        return self.objective.validation_loss(self._with_bits(batch, generator), None, generator)

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Apply the objective's checks, and check for a weight above 100.

        No finite data set supports such a weight.
        """
        reason = self.objective.divergence_reason(logs, before, n_rows)
        usual = max(LARGEST_WEIGHT, (before or {}).get("largest_weight", 0.0))
        if reason is None and logs.get("largest_weight", 0.0) > usual:
            reason = f"largest weight {logs['largest_weight']:.3g}"
        return reason
