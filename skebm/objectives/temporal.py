"""Contrastive divergence of frames given their past, with gradients through time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Batch, Loss, Objective, sampling
from skebm.base.objective import weighted_mean
from skebm.energies.rbm.labels import forget_labels, hidden_lags, log_label_proba
from skebm.energies.rbm.temporal import (
    Biases,
    RowwiseRBM,
    Targets,
    TemporalEnergy,
    exact_log_z,
)

# Frames that are monitored, at most.
N_MONITORED = 300


class TemporalState(NamedTuple):
    """Chains of each window between two visits.

    Attributes
    ----------
    pool : Tensor of shape (n, n_targets, d) or None
        nan before the first visit; None without persistent chains.
    """

    pool: Tensor | None


class TemporalDivergence(Objective):
    r"""Maximum likelihood of frames given their past: rows are windows of frames.

    .. math:: -\nabla \log p(x_t \mid x_{<t}) = \nabla F(x_t \mid x_{<t})
        - \mathbb E_{p(x \mid x_{<t})} \nabla F(x \mid x_{<t})

    Each frame has its own negative phase, with its past clamped: chains take a few Gibbs steps from
    the frame itself (CD), or from where they ended when the frame was last visited (PCD). The
    biases that depend on the past are functions of the weights, and autograd differentiates through
    them. With recurrent units this is backpropagation through time, over at most the context of a
    window.

    Parameters
    ----------
    energy : TemporalEnergy
    rule : {"cd", "pcd", "exact"}
        ``"exact"`` sums over the states of the hidden layer.
    n_steps : int
        Gibbs steps of the chains.
    n_targets : int
        Number of frames at the end of each window that are trained on.
    n_windows : int
        Number of windows whose chains persist.
    log_prob : callable or None, default=None
        ``log_prob(energy, targets, generator)`` returns log p of held-out frames given their past,
        (m,). None compares them by the loss.

    References
    ----------
    Taylor, Hinton and Roweis (2007), "Modeling human motion using binary latent variables",
    NeurIPS, section 3.1. Sutskever, Hinton and Taylor (2009), "The recurrent temporal restricted
    Boltzmann machine", NeurIPS, section 4.1.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import MixedRBM, TemporalEnergy
    >>> from skebm.objectives import TemporalDivergence
    >>> generator = torch.Generator().manual_seed(0)
    >>> rbm = MixedRBM(IndependentBernoulli(torch.zeros(3)), 2, generator=generator, scale=0.0)
    >>> objective = TemporalDivergence(TemporalEnergy(rbm, 1), "exact", 1, 1, 4)
    >>> windows = Batch(torch.zeros(4, 2 * 4))
    >>> loss = objective(windows, objective.start(windows, generator), generator)
    >>> round(float(loss.value.detach()), 2)  # 3 log 2
    2.08
    """

    energy: TemporalEnergy

    def __init__(
        self,
        energy: TemporalEnergy,
        rule: str,
        n_steps: int,
        n_targets: int,
        n_windows: int,
        log_prob: Callable[[TemporalEnergy, Targets, torch.Generator], Tensor] | None = None,
    ):
        super().__init__()
        self.log_prob = log_prob
        self.energy, self.rule, self.n_steps = energy, rule, n_steps
        self.n_targets, self.n_windows = n_targets, n_windows

    def start(self, batch: Batch, generator: torch.Generator) -> TemporalState:
        """State without chains yet."""
        if self.rule != "pcd":
            return TemporalState(None)
        size = self.n_windows, self.n_targets, self.energy.domain.n_columns
        return TemporalState(batch.x.new_full(size, torch.nan))

    def forward(self, batch: Batch, state: TemporalState, generator: torch.Generator) -> Loss:
        """Mean over the frames of minus log p, or of an energy difference in its place."""
        targets = self.energy.of_windows(batch.x, self.n_targets)
        given = RowwiseRBM(self.energy.rbm, targets.biases)
        if self.rule == "exact":
            value = given.free_energy(targets.x) + exact_log_z(given)
        else:
            chain = self._chains_after_steps(targets, batch.row_index, state, generator)
            value = given.free_energy(targets.x) - given.free_energy(chain)
        weight = target_weights(batch, targets.there)
        return Loss((value if weight is None else weight * value).mean(), state)

    def gradients(self, batch: Batch, state: TemporalState, generator: torch.Generator) -> Loss:
        """Write ``.grad``: by hand if biases are linear in the weights, otherwise by autograd."""
        energy = self.energy
        if self.rule == "exact" or energy.recurrent or len(energy.rbm.real_columns):
            return super().gradients(batch, state, generator)
        lags, x, there = energy.lags_of_windows(batch.x, self.n_targets)
        targets = Targets(x, energy.biases(lags), there, None)
        chain = self._chains_after_steps(targets, batch.row_index, state, generator)
        self._write(lags, x, chain, targets.biases, target_weights(batch, there))
        return Loss(None, state)

    @torch.no_grad()
    def _write(
        self, lags: Tensor, x: Tensor, chain: Tensor, biases: Biases, weight: Tensor | None
    ) -> None:
        """The gradient of the mean contrast of bits and categories: products of differences."""
        energy, rbm, n = self.energy, self.energy.rbm, len(x)
        h, of_chain = (rbm.hidden_field(rows).add_(biases.hidden).sigmoid_() for rows in (x, chain))
        visible = (chain - x).div_(n)
        if weight is not None:
            h, of_chain = h.mul_(weight[:, None]), of_chain.mul_(weight[:, None])
            visible.mul_(weight[:, None])
        products = h.t() @ x
        rbm.weight.grad = products.addmm_(of_chain.t(), chain, beta=-1).div_(n)
        h.sub_(of_chain).div_(-n)
        energy.lag_hidden.grad, energy.lag_visible.grad = h.t() @ lags, visible.t() @ lags
        rbm.hidden_bias.grad, rbm.visible_bias.grad = h.sum(0), visible.sum(0)
        rbm.log_precision.grad = torch.zeros_like(rbm.log_precision)

    @torch.no_grad()
    def _chains_after_steps(
        self,
        targets: Targets,
        index: Tensor | None,
        state: TemporalState,
        generator: torch.Generator,
    ) -> Tensor:
        """Chains after their steps, (m, d); persistent ones are kept in the pool."""
        given = RowwiseRBM(self.energy.rbm, targets.biases.detach())
        x, pool = targets.x, state.pool
        if pool is not None and index is not None:
            before = pool[index][targets.there]
            x = torch.where(before.isnan(), x, before)
        with sampling(self.energy):
            for _ in range(self.n_steps):
                x = given.step(x, generator)
        if pool is not None and index is not None:
            kept = pool[index]
            kept[targets.there] = x
            pool[index] = kept
        return x

    # ---------------------------------------------------------------- monitoring

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: TemporalState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Energy gap between frames and chains that start there, reconstruction error, weights."""
        energy = self.energy
        some = Batch(batch.x[:N_MONITORED], weight=_first(batch.weight))
        targets = energy.of_windows(some.x, self.n_targets)
        given, weight = RowwiseRBM(energy.rbm, targets.biases), target_weights(some, targets.there)
        with sampling(energy):
            mean = given.visible(given.hidden(targets.x).mean).mean
            error = (targets.x - mean).square().mean(1)
            value = given.free_energy(targets.x)
            if self.rule == "exact":
                logs = {"loss": weighted_mean(value + exact_log_z(given), weight)}
            else:
                chain = self._chains_after_steps(targets, None, state, generator)
                gap = weighted_mean(value - given.free_energy(chain), weight)
                logs = {"loss": gap, "energy_gap": gap}
        return logs | {
            "reconstruction_error": weighted_mean(error, weight),
            "largest_weight": energy.weight.abs().max(),
        }

    def energies(self, x: Tensor) -> Tensor:
        """Energies of the targets of windows, (m,)."""
        targets = self.energy.of_windows(x, self.n_targets)
        return RowwiseRBM(self.energy.rbm, targets.biases).free_energy(targets.x)

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Minus the mean log p of frames given their past, as `log_prob` estimates it; or the loss.

        If log Z is annealed, it is low on average.
        """
        if self.log_prob is None:
            return self.monitor(batch, state, generator)["loss"]
        targets = self.energy.of_windows(batch.x, self.n_targets)
        log_prob = self.log_prob(self.energy, targets, generator)
        return -weighted_mean(log_prob, target_weights(batch, targets.there)).to(batch.x.dtype)

    @property
    def why_undivided(self) -> str | None:
        """Why rows cannot be divided if chains persist: each belongs to a window; else None."""
        return 'rule="pcd" keeps a chain for each window' if self.rule == "pcd" else None

    def snapshot(self, state: TemporalState) -> TemporalState:
        """State with a copy of the pool, which is updated in place."""
        return state if state.pool is None else TemporalState(state.pool.clone())

    def pack(self, state: TemporalState | None) -> dict[str, Tensor | None]:
        """The pool."""
        return {} if state is None else {"pool": state.pool}

    def unpack(self, packed: dict[str, Tensor | None]) -> TemporalState | None:
        """Rebuild the state; None, to start anew, if it does not fit the windows."""
        pool = packed.get("pool")
        size = self.n_windows, self.n_targets, self.energy.domain.n_columns
        if (pool is None) == (self.rule == "pcd") or (pool is not None and pool.shape != size):
            return None
        return TemporalState(pool)


class LabelDivergence(TemporalDivergence):
    r"""Learning of frames and their labels: cross-entropy and likelihood given the past.

    .. math:: L = -\mathbb E \log p(y_t \mid x_t, x_{<t}, y_{<t})
        - \lambda\, \mathbb E \log p(x_t \mid x_{<t}, y_{<t})

    The first term and its gradient are exact and need no chains. The gradient of the second is that
    of :class:`TemporalDivergence`. With :math:`\lambda = 1` their sum is the negative
    log-likelihood of frames and labels; with 0 learning is discriminative.

    Parameters
    ----------
    energy : TemporalEnergy
        Energy of frames whose last block of columns is the one-hot label.
    n_labels, label_order : int
        Number of labels, and number of earlier labels on which a frame depends.
    generative_weight : float
        :math:`\lambda`, from 0 to 1.
    rule, n_steps, n_targets, n_windows
        As for :class:`TemporalDivergence`.

    References
    ----------
    Larochelle and Bengio (2008), "Classification using discriminative restricted Boltzmann
    machines", ICML, sections 3 and 4 (for rows; here given the past).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch
    >>> from skebm.distributions import Columns, IndependentBernoulli, IndependentCategorical
    >>> from skebm.energies import MixedRBM, TemporalEnergy
    >>> from skebm.objectives import LabelDivergence
    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = IndependentCategorical(torch.zeros(2), (2,))
    >>> base = Columns([IndependentBernoulli(torch.zeros(3)), labels])
    >>> rbm = MixedRBM(base, 2, generator=generator, scale=0.0)
    >>> objective = LabelDivergence(TemporalEnergy(rbm, 1), 2, 1, 0.0, "cd", 1, 1, 4)
    >>> windows = Batch(torch.tensor([[0.0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0]]))
    >>> loss = objective(windows, objective.start(windows, generator), generator)
    >>> round(float(loss.value.detach()), 2)  # log 2
    0.69
    """

    def __init__(
        self,
        energy: TemporalEnergy,
        n_labels: int,
        label_order: int,
        generative_weight: float,
        rule: str,
        n_steps: int,
        n_targets: int,
        n_windows: int,
    ):
        super().__init__(energy, rule, n_steps, n_targets, n_windows)
        self.n_labels, self.generative_weight = n_labels, generative_weight
        hidden = hidden_lags(energy, n_labels, label_order)
        self.hidden = hidden if hidden.any() else None
        forget_labels(energy, n_labels, label_order)

    def forward(self, batch: Batch, state: TemporalState, generator: torch.Generator) -> Loss:
        """Mean loss of the frames, or of a value whose gradient estimates that of the loss."""
        share, parts = self.generative_weight, []
        if share:
            loss = super().forward(batch, state, generator)
            assert loss.value is not None
            parts.append(share * loss.value)
        if share < 1:  # log p(x, y) has been counted with its share of log p(y given x)
            targets = self.energy.of_windows(batch.x, self.n_targets)
            own, weight = self._log_proba(targets), target_weights(batch, targets.there)
            parts.append((share - 1) * (own if weight is None else weight * own).mean())
        return Loss(torch.stack(parts).sum(), state)

    def gradients(self, batch: Batch, state: TemporalState, generator: torch.Generator) -> Loss:
        """Write ``.grad``, which is zero for labels that are too far back."""
        if self.generative_weight == 1:
            loss = super().gradients(batch, state, generator)
        else:
            loss = Objective.gradients(self, batch, state, generator)
        if self.hidden is not None:
            for weight in (self.energy.lag_visible, self.energy.lag_hidden):
                assert weight.grad is not None
                weight.grad[:, self.hidden] = 0.0
        return loss

    def _log_proba(self, targets: Targets) -> Tensor:
        """Log-probabilities of the labels that the frames have, (m,)."""
        log_p = log_label_proba(self.energy, targets, self.n_labels)
        return (log_p * targets.x[:, -self.n_labels :]).sum(1)

    @torch.no_grad()
    def monitor(
        self, batch: Batch, state: TemporalState, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Cross-entropy and accuracy given the past, and the values monitored for the frames."""
        some = Batch(batch.x[:N_MONITORED], weight=_first(batch.weight))
        targets = self.energy.of_windows(some.x, self.n_targets)
        weight, labels = target_weights(some, targets.there), targets.x[:, -self.n_labels :]
        log_p = log_label_proba(self.energy, targets, self.n_labels)
        loss = -weighted_mean((log_p * labels).sum(1), weight)
        right = log_p.argmax(1) == labels.argmax(1)
        logs = super().monitor(some, state, generator) if self.generative_weight else {}
        return logs | {
            "loss": loss if not logs else logs["loss"],
            "cross_entropy": loss,
            "accuracy": weighted_mean(right.to(loss), weight),
            "largest_weight": self.energy.weight.abs().max(),
        }

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Exact cross-entropy given the past.

        With lambda = 1 it is, instead, minus the mean log p of frames and labels.
        """
        if self.generative_weight == 1:
            return super().validation_loss(batch, state, generator)
        targets = self.energy.of_windows(batch.x, self.n_targets)
        return -weighted_mean(self._log_proba(targets), target_weights(batch, targets.there))


def _first(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight[:N_MONITORED]


def target_weights(batch: Batch, there: Tensor) -> Tensor | None:
    """Weights of the targets of windows, (m,): each target has the weight of its window."""
    return None if batch.weight is None else batch.weight[:, None].expand_as(there)[there]
