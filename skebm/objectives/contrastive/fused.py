"""Persistent contrastive divergence of a binary RBM with few operations, which reuse memory.

For a small layer or batch the time of a step is that of starting its operations, however little
each of them computes. These steps are those of `ContrastiveDivergence.gradients` followed by plain
gradient descent, arranged so that there are twelve instead of thirty.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base import Batch, Centering, ChainState, Offsets
from skebm.energies import BernoulliRBM
from skebm.energies.rbm.gradient import LEAST_VARIANCE
from skebm.objectives.contrastive.negative_phase import ContrastiveState

# Each layer begins at a multiple of so many numbers and fills up to one: matrix products and
# logistic functions are then up to 1.5 times as fast.
ALIGNMENT = 16


class Views(NamedTuple):
    """What a step reads and writes in the common memory, for one number n of rows in a batch.

    Attributes
    ----------
    both : Tensor of shape (m + n, width)
        Rows of chains, then of data. The columns are the visible units, a column beside them, a
        column beside the hidden units, and the hidden units, with unused columns between and
        behind.
    data : Tensor of shape (n, d)
        Visible units of the data.
    data_units : Tensor of shape (width, n)
        Both layers of the data.
    visible, hidden : Tensor of shape (m + n, d) and (m + n, H)
    hidden_block : Tensor of shape (m + n, aligned H)
    right, left : Tensor of shape (m + n, d + 1) and (1 + H, m + n)
        Each layer with the column beside it: factors of the gradient.
    beside_visible, beside_hidden : Tensor of shape (m + n,)
    chains, hidden_of_chains : Tensor of shape (m, d) and (m, H)
    ones : Tensor of shape (m + n,)
    sign : Tensor of shape (m + n, 1)
        Weights in the step of the parameters: negative for chains, positive for data.
    share : Tensor of shape (n,)
        Weights of the data in the new offsets.
    """

    both: Tensor
    data: Tensor
    data_units: Tensor
    visible: Tensor
    hidden: Tensor
    hidden_block: Tensor
    right: Tensor
    left: Tensor
    beside_visible: Tensor
    beside_hidden: Tensor
    chains: Tensor
    hidden_of_chains: Tensor
    ones: Tensor
    sign: Tensor
    share: Tensor


class Uniforms:
    """Random numbers for the chains of many steps, drawn at once into memory that is reused.

    Parameters
    ----------
    like : Tensor of shape (m, d)
        Visible rows of the chains, with the dtype and device that the numbers should have.
    n_hidden : int
    n_steps : int
        Largest number of steps for which numbers are needed.
    generator : torch.Generator

    Attributes
    ----------
    n_left : int
        Number of steps still to come; no more numbers are drawn than they need.
    """

    def __init__(self, like: Tensor, n_hidden: int, n_steps: int, generator: torch.Generator):
        (m, d), self.generator, self.n_left = like.shape, generator, 0
        # Random numbers that are drawn at once.
        n_random = 2**16
        size = max(1, min(n_steps, n_random // (m * (d + n_hidden))))
        self._logistic, self._uniform = (
            like.new_empty(size, m, d),
            like.new_empty(size, m, n_hidden),
        )
        self._pairs = list(zip(self._logistic.unbind(0), self._uniform.unbind(0), strict=True))
        self._ready: list[tuple[Tensor, Tensor]] = []

    def draw(self) -> tuple[Tensor, Tensor]:
        """Logistic numbers (m, d) and uniform ones (m, H), valid until the next call."""
        if not self._ready:
            n = max(1, min(self.n_left, len(self._pairs)))
            self.n_left -= n
            logistic = self._logistic[:n].uniform_(generator=self.generator)
            least = torch.finfo(logistic.dtype).eps / 2  # the log-odds of 0 would be infinite
            logistic.clamp_(min=least).logit_()
            self._uniform[:n].uniform_(generator=self.generator)
            self._ready = self._pairs[:n]
        return self._ready.pop()


class FusedPCD:
    r"""Steps of PCD-1 with plain gradient descent.

    Weights and biases are one matrix :math:`P` of shape (1 + H, d + 1), whose first row is the
    visible and whose last column is the hidden bias. With the rows of chains and data
    :math:`r = (\tilde x, 1 - \tilde x^\top \mu)` and :math:`l = (1 - \tilde h^\top
    \lambda, \tilde h)`, where :math:`\tilde x = x - \mu` and :math:`\tilde h = h - \lambda`
    are centred (and divided by powers of their variances, where that is asked for), the centred
    gradient of all parameters is the single product :math:`\sum_i s_i\, l_i r_i^\top`.

    A visible unit with log-odds f is drawn by comparing f with a logistic random number, so that no
    probability is computed.

    Parameters
    ----------
    energy : BernoulliRBM
        Its parameters are read by :meth:`begin` and written by :meth:`finish` alone.
    state : ContrastiveState
        A state with as many chains and units as those passed to :meth:`begin`.
    centering : Centering or None
    n_batches : int
        Steps in an epoch.
    generator : torch.Generator
    """

    @torch.no_grad()
    def __init__(
        self,
        energy: BernoulliRBM,
        state: ContrastiveState,
        centering: Centering | None,
        n_batches: int,
        generator: torch.Generator,
    ):
        assert state.chain is not None
        self.energy, self.generator = energy, generator
        self.offset_rate = 0.0 if centering is None else centering.rate
        self.power = 0.0 if centering is None else centering.precondition
        x = state.chain.x
        (n_hidden, d), self.n_chains = energy.weight.shape, len(x)
        self.n_hidden, self.n_visible = n_hidden, d
        self.hidden_at = _round_up(d + 2)
        self.parameters = x.new_zeros(1 + n_hidden, _round_up(d + 1))[:, : d + 1]
        self.weight, self.to_visible = self.parameters[1:, :d], self.parameters[:, :d]
        self.visible_bias, self.hidden_bias = self.parameters[0, :d], self.parameters[1:, d]
        self.to_hidden, self.bias = self.weight.t(), x.new_empty(n_hidden)
        self.layer = x.new_ones(self.n_chains, 1 + n_hidden)  # drawn given the chains
        self.bits, self.field = self.layer[:, 1:], torch.empty_like(x)
        self.threshold, self.random = self.field, Uniforms(x, n_hidden, n_batches, generator)
        self._memory = x.new_zeros(0, self.hidden_at + _round_up(n_hidden))
        self._views: dict[int, Views] = {}
        self.offsets: Tensor | None = None
        if centering is not None:
            self.offsets = x.new_zeros(self._memory.shape[1])
            self.mu, self.lam = self.offsets[:d], self._hidden_part(self.offsets)
            self.scale = torch.empty_like(self.offsets)

    @torch.no_grad()
    def begin(self, state: ContrastiveState, rate: float, n_batches: int) -> None:
        """Continue from the energy's parameters and a state, for `n_batches` at a learning rate."""
        assert state.chain is not None
        self.state, self.rate, self.n_done, self.n_written = state, rate, 0, 0
        self.random.n_left = n_batches
        x, h = state.chain.x, state.chain.aux
        self.bits.copy_(self.energy.hidden(x).sample(self.generator) if h is None else h)
        self.load()
        if state.offsets is not None:
            self.mu.copy_(state.offsets.visible)
            self.lam.copy_(state.offsets.hidden)
        for n, views in self._views.items():
            self._weigh_equally(views, n)

    @torch.no_grad()
    def load(self) -> None:
        """Copy the energy's parameters, which may have changed since :meth:`finish`."""
        for mine, value in zip(self._tensors, self.energy.tensors, strict=True):
            mine.copy_(value)

    @property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.visible_bias, self.hidden_bias

    def _hidden_part(self, units: Tensor) -> Tensor:
        return units[..., self.hidden_at : self.hidden_at + self.n_hidden]

    def __call__(self, batch: Batch) -> None:
        """Move the chains, then the parameters."""
        views = self._views.get(batch.x.shape[0]) or self._views_of(batch.x.shape[0])
        if batch.weight is not None:
            self._weigh(views, batch.weight)
        self.threshold, u = self.random.draw()
        views.data.copy_(batch.x)
        torch.mm(self.layer, self.to_visible, out=self.field)
        torch.lt(self.threshold, self.field, out=views.chains)
        bias = self.bias.copy_(self.hidden_bias)  # a column would be spread slowly
        torch.addmm(bias, views.visible, self.to_hidden, out=views.hidden)
        views.hidden_block.sigmoid_()
        torch.lt(u, views.hidden_of_chains, out=self.bits)
        if self.offsets is not None:
            self._centre(views, self.offsets)
        else:
            views.beside_hidden.fill_(1.0)
        views.left.mul_(views.sign)
        self.parameters.addmm_(views.left, views.right)
        self.n_done += 1

    def _centre(self, views: Views, offsets: Tensor) -> None:
        """Update the offsets by the data, subtract them from both layers, and fill the columns."""
        offsets.addmv_(views.data_units, views.share, beta=1 - self.offset_rate)
        views.both.sub_(offsets)
        if self.power:
            scale = torch.addcmul(offsets, offsets, offsets, value=-1, out=self.scale)
            views.both.mul_(scale.mul_(4).clamp_min_(LEAST_VARIANCE).pow_(-self.power))
        torch.addmv(views.ones, views.visible, self.mu, alpha=-1, out=views.beside_visible)
        torch.addmv(views.ones, views.hidden, self.lam, alpha=-1, out=views.beside_hidden)

    def _weigh(self, views: Views, weight: Tensor) -> None:
        """Signs and shares of a batch whose rows have weights."""
        n, m = len(weight), self.n_chains
        torch.mul(weight, self.offset_rate / n, out=views.share)
        views.sign[m:] = weight * (self.rate / n)
        views.sign[:m] = weight.mean() * (-self.rate / m)

    def _views_of(self, n: int) -> Views:
        """Views for batches of n rows, into memory that grows to the largest batch."""
        m, d, total = self.n_chains, self.n_visible, self.n_chains + n
        if total > len(self._memory):
            self._memory = self._memory.new_zeros(total, self._memory.shape[1])
            self._views.clear()
        both = self._memory[:total]
        hidden, beside = self._hidden_part(both), self.hidden_at - 1
        both[:, d] = 1.0  # what it stays without centring
        views = self._views[n] = Views(
            both=both,
            data=both[m:, :d],
            data_units=both[m:].t(),
            visible=both[:, :d],
            hidden=hidden,
            hidden_block=both[:, self.hidden_at :],
            right=both[:, : d + 1],
            left=both[:, beside : self.hidden_at + self.n_hidden].t(),
            beside_visible=both[:, d],
            beside_hidden=both[:, beside],
            chains=both[:m, :d],
            hidden_of_chains=hidden[:m],
            ones=both.new_ones(total),
            sign=both.new_empty(total),
            share=both.new_empty(n),
        )
        self._weigh_equally(views, n)
        return views

    def _weigh_equally(self, views: Views, n: int) -> None:
        """Signs and shares of a batch whose rows have no weights."""
        views.share.fill_(self.offset_rate / n)
        views.sign.fill_(self.rate / n)[: self.n_chains] = -self.rate / self.n_chains

    @torch.no_grad()
    def finish(self) -> ContrastiveState:
        """Write the parameters into the energy, and return the state after the steps so far."""
        if self.n_done == self.n_written:
            return self.state
        n_new, self.n_written = self.n_done - self.n_written, self.n_done
        for mine, theirs in zip(self._tensors, self.energy.tensors, strict=True):
            theirs.copy_(mine)
        # The rows in memory were centred in place.
        x = torch.lt(self.threshold, self.field, out=torch.empty_like(self.field))
        offsets = None if self.offsets is None else Offsets(self.mu.clone(), self.lam.clone())
        self.state = self.state._replace(
            chain=ChainState(x, aux=self.bits.contiguous()),
            n_batches=self.state.n_batches + n_new,
            offsets=offsets,
        )
        return self.state


def _round_up(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
