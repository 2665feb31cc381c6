r"""RBMs of frames whose biases depend on the frames before: conditional and recurrent."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Clamp, Energy
from skebm.base.torchtools import softplus
from skebm.base.units import Bernoulli
from skebm.distributions.independent import blocks_of
from skebm.energies.rbm.mixed import MixedRBM, n_real


class Biases(NamedTuple):
    """What the past adds to the biases of an RBM, for each of n frames.

    Attributes
    ----------
    visible : Tensor of shape (n, d)
    hidden : Tensor of shape (n, H)
    """

    visible: Tensor
    hidden: Tensor

    def detach(self) -> Biases:
        """The same without gradients."""
        return Biases(self.visible.detach(), self.hidden.detach())

    def take(self, index: Tensor) -> Biases:
        """The biases of some frames."""
        return Biases(self.visible[index], self.hidden[index])


class Targets(NamedTuple):
    """Frames of windows that are not missing, with what their past adds to the biases.

    Attributes
    ----------
    x : Tensor of shape (m, d)
    biases : Biases
        Of the m frames.
    there : Tensor of shape (n, n_targets), bool
        Which targets of the windows these frames are.
    state : Tensor of shape (n, H) or None
        r after the last frame of each window; None without recurrent units.
    """

    x: Tensor
    biases: Biases
    there: Tensor
    state: Tensor | None


class RowwiseRBM:
    r"""An RBM with biases of its own for each row: p(x_t given the past) of n frames at once.

    .. math:: E_t(x, h) = -\log q(x) - (b + b_t)^\top t(x) - (c + c_t)^\top h - h^\top W t(x)

    It takes exactly n rows, row number t with the biases b_t and c_t.

    Parameters
    ----------
    rbm : MixedRBM
        Shared by all rows.
    biases : Biases
        b_t, (n, d), and c_t, (n, H).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import Biases, MixedRBM, RowwiseRBM
    >>> generator = torch.Generator().manual_seed(0)
    >>> rbm = MixedRBM(IndependentBernoulli(torch.zeros(3)), 2, generator=generator, scale=0.0)
    >>> energy = RowwiseRBM(rbm, Biases(torch.zeros(4, 3), torch.ones(4, 2)))
    >>> energy.hidden(torch.zeros(4, 3)).mean[0].tolist()
    [0.7310585975646973, 0.7310585975646973]
    """

    def __init__(self, rbm: MixedRBM, biases: Biases):
        self.rbm, self.biases = rbm, biases
        self.domain, self.hidden_domain = rbm.domain, rbm.hidden_domain

    @property
    def weight(self) -> Tensor:
        """W, (H, d)."""
        return self.rbm.weight

    def hidden_field(self, x: Tensor) -> Tensor:
        """Log-odds of the hidden units, (n, H)."""
        return self.rbm.hidden_field(x) + self.biases.hidden

    def visible_energy(self, x: Tensor) -> Tensor:
        """The part of the energy without hidden units, (n,)."""
        own = (self.rbm.statistics(x) * self.biases.visible).sum(1)
        return self.rbm.visible_energy(x) - own

    def free_energy(self, x: Tensor) -> Tensor:
        """-log sum_h exp(-E(x, h)), (n,)."""
        return self.visible_energy(x) - softplus(self.hidden_field(x)).sum(1)

    def __call__(self, x: Tensor) -> Tensor:
        """As :meth:`free_energy`."""
        return self.free_energy(x)

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h given x), mean of shape (n, H)."""
        return Bernoulli((beta * self.hidden_field(x)).sigmoid())

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Any:
        """p(x given h), proportional to exp(-beta E(x, h) + field' x)."""
        return self.rbm.visible(h, beta, self._field(beta, field))

    def step(self, x: Tensor, generator: torch.Generator, beta: float = 1.0) -> Tensor:
        """A Gibbs step of rows x, (n, d)."""
        drawn: Tensor = self.visible(self.hidden(x, beta).sample(generator), beta).sample(generator)
        return drawn

    def weak(self, h: Tensor, strength: float) -> Any:
        """p(x given h) with the weights times `strength`; the base and all biases do not change."""
        return self.rbm.visible(strength * h, 1.0, self._field(1.0, None))

    def _field(self, beta: float, field: Tensor | None) -> Tensor:
        own, factor = beta * self.biases.visible, self.rbm.factor()
        own = own if factor is None else own * factor
        return own if field is None else own + field

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_x exp(-beta E(x, h) + field' x), x as clamped where it is, (n,)."""
        tilt = self.visible(h, beta, field)
        if clamp is not None:
            tilt = tilt.given(clamp)
        own = (h * (self.rbm.hidden_bias + self.biases.hidden)).sum(1)
        return -beta * own - tilt.log_normaliser


class TemporalEnergy(Energy):
    r"""Energy of a frame given the frames before it: that of an RBM with dynamic biases.

    .. math::
        F(x_t \mid x_{<t}) = -\log q(x_t) - b_t^\top x_t
            - \sum_j \log\bigl(1 + e^{c_{tj} + W_j x_t}\bigr), \qquad
        b_t = b + \sum_{k=1}^K A_k x_{t-k} + V r_{t-1}, \quad
        c_t = c + \sum_{k=1}^K B_k x_{t-k} + U r_{t-1}

    with :math:`r_t = \sigma(W x_t + c_t)`, the means of the hidden units given all frames so far.
    Without the recurrent part (V and U) it is the conditional RBM [1]_, without lags (K = 0) the
    recurrent temporal RBM [2]_. Given the past, x_t has the distribution of an RBM, whose
    conditionals are exact. For a real column, the input of the hidden units is its difference from
    the mean that b_t implies, so that its means can be learned without a change of what the hidden
    units represent. (c_t has the term of this difference; otherwise B_k and U are those of the
    formula.) A frame before the first one of a sequence is missing: learned biases take its place,
    and r_0 is learned.

    Parameters
    ----------
    rbm : MixedRBM
        RBM of a frame without a past; its base is that of a frame.
    order : int
        Number of lags K.
    recurrent : bool, default=False
        Whether the biases depend on the hidden units of the frame before.

    Attributes
    ----------
    lag_visible, lag_hidden : Parameter of shape (d, K (d + 1)) and (H, K (d + 1))
        A and B, the oldest lag first; the last column of each lag is the bias of a missing frame.
    state_visible, state_hidden : Parameter of shape (d, H) and (H, H), or None
        V and U.
    first_state : Parameter of shape (H,) or None
        Log-odds of r_0.

    References
    ----------
    .. [1] Taylor, Hinton and Roweis (2007), "Modeling human motion using binary latent variables",
       NeurIPS, section 3.
    .. [2] Sutskever, Hinton and Taylor (2009), "The recurrent temporal restricted Boltzmann
       machine", NeurIPS, section 4.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import MixedRBM, TemporalEnergy
    >>> generator = torch.Generator().manual_seed(0)
    >>> rbm = MixedRBM(IndependentBernoulli(torch.zeros(3)), 2, generator=generator)
    >>> energy = TemporalEnergy(rbm, order=1)
    >>> now, past = torch.ones(5, 3), torch.zeros(5, 4)
    >>> torch.equal(energy(now, past), rbm(now))  # nothing is known of the past yet
    True
    """

    always_proper = True

    def __init__(self, rbm: MixedRBM, order: int, recurrent: bool = False):
        super().__init__()
        if order < 0 or (not order and not recurrent):
            raise ValueError(
                f"order={order} without recurrent units leaves no past: use a positive order."
            )
        self.rbm, self.order, self.recurrent = rbm, order, recurrent
        self.domain = rbm.domain
        n_hidden, d = rbm.weight.shape
        new: dict[str, Any] = {"dtype": rbm.weight.dtype, "device": rbm.weight.device}
        self.lag_visible = nn.Parameter(torch.zeros(d, order * (d + 1), **new))
        self.lag_hidden = nn.Parameter(torch.zeros(n_hidden, order * (d + 1), **new))
        self.state_visible = self.state_hidden = self.first_state = None
        if recurrent:
            self.state_visible = nn.Parameter(torch.zeros(d, n_hidden, **new))
            self.state_hidden = nn.Parameter(torch.zeros(n_hidden, n_hidden, **new))
            self.first_state = nn.Parameter(torch.zeros(n_hidden, **new))

    @property
    def base(self) -> Any:
        """Base of a frame, whatever its past."""
        return self.rbm.base

    @property
    def weight(self) -> Tensor:
        """W, (H, d)."""
        return self.rbm.weight

    @property
    def n_entries(self) -> int:
        """Entries of a frame in a window: its columns, and whether it is missing."""
        return self.domain.n_columns + 1

    # ---------------------------------------------------------------- one frame

    def biases(self, lags: Tensor, state: Tensor | None = None) -> Biases:
        """What the last frames (n, K (d + 1)) and r (n, H) add to the biases."""
        visible, hidden = lags @ self.lag_visible.t(), lags @ self.lag_hidden.t()
        if state is not None:
            assert self.state_visible is not None
            assert self.state_hidden is not None
            visible = torch.addmm(visible, state, self.state_visible.t())
            hidden = torch.addmm(hidden, state, self.state_hidden.t())
        moved = self._field_of_shift(visible)
        return Biases(visible, hidden if moved is None else hidden - moved)

    def _field_of_shift(self, visible: Tensor) -> Tensor | None:
        """W t of what the past adds to the means of real columns, (..., H); None without any."""
        real, factor = self.rbm.real_columns, self.rbm.factor()
        if factor is None:
            return None
        shift = self.mean_shift(visible[..., real])
        return (shift * factor[real]) @ self.rbm.weight[:, real].t()

    def mean_shift(self, visible: Tensor) -> Tensor:
        """What biases of real columns (..., n_real) add to their means, whatever the hidden units.

        They are the biases themselves, unless real columns are correlated in the base.
        """
        parts = [part for part in blocks_of(self.rbm.structure()) if n_real(part)]
        factor = self.rbm.factor()
        if factor is None or all(getattr(part, "scale_tril", None) is None for part in parts):
            return visible
        shifts, first = [], 0
        own_factor = factor[self.rbm.real_columns]
        for part in parts:
            at = slice(first, first + n_real(part))
            own, first = visible[..., at], at.stop
            if getattr(part, "scale_tril", None) is not None:
                own = (own * own_factor[at]) @ part.scale_tril @ part.scale_tril.t()
            shifts.append(own)
        return torch.cat(shifts, -1)

    def given(self, lags: Tensor, state: Tensor | None = None) -> RowwiseRBM:
        """The RBM of n frames given their past: see :meth:`biases`."""
        return RowwiseRBM(self.rbm, self.biases(lags, state))

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """Free energy of frames x (n, d), (n,), given `cond`: their lags, or lags and state.

        If `cond` is None they are first frames.
        """
        if cond is None:
            return self.given(self.no_frames(len(x)), self.start_state(len(x))).free_energy(x)
        return self.given(*cond if isinstance(cond, tuple) else (cond,)).free_energy(x)

    def no_frames(self, n: int) -> Tensor:
        """Lags of n first frames, (n, K (d + 1)): all of them are missing."""
        lags = self.weight.new_zeros(n, self.order, self.n_entries)
        lags[..., -1] = 1.0
        return lags.flatten(1)

    def start_state(self, n: int) -> Tensor | None:
        """r_0 of n sequences, (n, H); None without recurrent units."""
        return None if self.first_state is None else self.first_state.sigmoid().expand(n, -1)

    def advance(self, x: Tensor, biases: Biases) -> Tensor | None:
        """r_t of frames x (n, d), (n, H); None without recurrent units."""
        if not self.recurrent:
            return None
        return (self.rbm.hidden_field(x) + biases.hidden).sigmoid()

    # ---------------------------------------------------------------- windows of frames

    def of_windows(self, windows: Tensor, n_targets: int, state: Tensor | None = None) -> Targets:
        """The last frames of windows, and what their past adds to the biases.

        Parameters
        ----------
        windows : Tensor of shape (n, L (d + 1))
            Successive frames, each followed by 1 where it is missing and by 0 where it is not.
        n_targets : int
            Number of frames at the end of each window, at most L - K.
        state : Tensor of shape (n, H) or None, default=None
            r after frame number K of each window, K - 1 counted from 0; None is r_0.
        """
        frames = windows.view(len(windows), -1, self.n_entries)
        x, missing = frames[:, self.order :, :-1], frames[:, self.order :, -1] > 0
        there = ~missing[:, -n_targets:]
        visible, hidden = self._of_lags(frames)
        if self.recurrent:
            visible, hidden, state = self._recur(x, missing, visible, hidden, state)
        biases = Biases(visible[:, -n_targets:][there], hidden[:, -n_targets:][there])
        return Targets(x[:, -n_targets:][there], biases, there, state)

    def lags_of_windows(self, windows: Tensor, n_targets: int) -> tuple[Tensor, Tensor, Tensor]:
        """Lags (m, K (d + 1)) and frames x (m, d) of the targets, and which targets they are."""
        frames = windows.view(len(windows), -1, self.n_entries)
        there = frames[:, -n_targets:, -1] == 0
        lags, x = self._lags(frames)[:, -n_targets:], frames[:, -n_targets:, :-1]
        if n_targets == 1:  # a window has at least the target that it ends with
            return lags[:, 0], x[:, 0], there
        return lags[there], x[there], there

    def _lags(self, frames: Tensor) -> Tensor:
        """Lags of frames from number K on, (n, L - K, K (d + 1))."""
        n, length, width = frames.shape
        if not self.order:
            return frames.new_zeros(n, length, 0)
        flat = frames.reshape(n, -1)[:, : (length - 1) * width]
        return flat.unfold(1, self.order * width, width)

    def _of_lags(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """What lags add to the biases of frames from number K on, (n, L - K, d or H)."""
        lags = self._lags(frames)
        biases = self.biases(lags.reshape(lags.shape[0] * lags.shape[1], lags.shape[2]))
        return tuple(part.view(*lags.shape[:2], -1) for part in biases)  # type: ignore[return-value]

    def _recur(
        self, x: Tensor, missing: Tensor, visible: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Biases with those of the recurrent units, one frame after the other, and the last r."""
        assert self.state_visible is not None
        assert self.state_hidden is not None
        n, length = missing.shape
        inputs = self.rbm.hidden_field(x.reshape(-1, x.shape[2])).view(n, length, -1) + hidden
        start = self.start_state(n)
        assert start is not None
        r, weight = start if state is None else state, self.state_hidden.t()
        moved = self._field_of_shift(self.state_visible.t())  # by each recurrent unit
        weight = weight if moved is None else weight - moved
        before, added = [], []
        for t in range(length):
            own = r @ weight
            before.append(r)
            added.append(own)
            r = torch.where(missing[:, t, None], start, (inputs[:, t] + own).sigmoid())
        states = torch.stack(before, 1)
        return visible + states @ self.state_visible.t(), hidden + torch.stack(added, 1), r


# ------------------------------------------------------------------------------
# log Z of each row
# ------------------------------------------------------------------------------


def exact_log_z(energy: RowwiseRBM, chunk: int = 4_000_000, clamp: Clamp | None = None) -> Tensor:
    """log Z of each row by a sum over the states of the hidden layer, (n,); differentiable.

    `chunk` is the number of entries of rows that are held at a time. With a `clamp`, the sum is
    over the rows that agree with it.
    """
    n, d = energy.biases.visible.shape
    parts, like = [], energy.biases.hidden
    size = max(1, chunk // max(1, n * (d + like.shape[1])))
    for h in energy.hidden_domain.enumerate(size, dtype=like.dtype, device=like.device):
        index = torch.arange(n, device=like.device).repeat(len(h))
        some = RowwiseRBM(energy.rbm, energy.biases.take(index))
        known = None if clamp is None else Clamp(clamp.mask[index], clamp.value[index])
        value = -some.hidden_energy(h.repeat_interleave(n, 0), clamp=known)
        parts.append(value.view(len(h), n).logsumexp(0))
    return torch.stack(parts).logsumexp(0)
