"""Missing entries of sequences given all known ones, by clamped sampling through time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from skebm.base import Clamp
from skebm.base.domains import columns_of
from skebm.energies import Biases, RowwiseRBM, TemporalEnergy
from skebm.energies.rbm.temporal import exact_log_z
from skebm.estimators.sequences.blocks import ColouredWindows, MissingRealColumns

# Gibbs steps of a frame given its past, at the start, and of the draws that stand in for log Z.
N_START, N_AUXILIARY = 20, 10
# Share of the missing entries that every other step proposes to change.
SHARE = 0.3


class MeanStatistics(NamedTuple):
    """What draws of frames given their past are on average, which proposals take log Z to be of.

    Attributes
    ----------
    visible : Tensor of shape (m, d)
    hidden : Tensor of shape (m, H)
    n : int
        Number of draws so far.
    """

    visible: Tensor
    hidden: Tensor
    n: int


class ClampedChains:
    r"""Chains whose frames have the distribution of the missing entries given all known ones.

    .. math:: p(x^{\text{missing}} \mid x^{\text{known}}) \propto \prod_t p(x_t \mid x_{<t})

    Given the hidden units h_t of all frames, the missing entries of a frame have fields from its
    own past and from the frames after it, which depend on it: log Z_t of their
    p(x_t, h_t given the past) depends on it, too. Proposals are drawn from the conditional
    distribution in which log Z_t is linear in the past (for real columns with its whole quadratic
    part, for several frames at once), and accepted by the Metropolis-Hastings rule. The ratio of
    the Z_t is exact if there are few hidden states. Otherwise an auxiliary frame, drawn given the
    proposed past by a few Gibbs steps, takes its place [1]_, which is exact up to the convergence
    of these steps [2]_.

    A frame takes part in the likelihoods of the `reach` frames after it. This is exact without
    recurrent units; with them, its effect on the state of later frames is cut off.

    Parameters
    ----------
    energy : TemporalEnergy
    frames : Tensor of shape (n, K + T, d + 1)
        Frames of each chain, beginning with K frames of context; each is followed by 1 where there
        is no such frame. Changed in place.
    unknown : Tensor of shape (n, T, d), bool
        Missing entries.
    n_chains : int
        Number of successive chains with the same known entries.
    reach : int
    generator : torch.Generator
    exact : bool or None, default=None
        Whether log Z is a sum over the hidden states; None is True if these are few.

    References
    ----------
    .. [1] Murray, Ghahramani and MacKay (2006), "MCMC for doubly-intractable distributions", UAI.
    .. [2] Liang (2010), "A double Metropolis-Hastings sampler for spatial models with intractable
       normalizing constants", Journal of Statistical Computation and Simulation 80(9).
    """

    def __init__(
        self,
        energy: TemporalEnergy,
        frames: Tensor,
        unknown: Tensor,
        n_chains: int,
        reach: int,
        generator: torch.Generator,
        exact: bool | None = None,
    ):
        self.energy, self.frames, self.unknown = energy, frames, unknown
        self.n_chains, self.reach, self.generator = n_chains, reach, generator
        # States of the hidden layer up to which log Z is a sum.
        exact_states = 256
        self.exact = energy.rbm.hidden_domain.n_states <= exact_states if exact is None else exact
        self.there = frames[:, energy.order :, -1] == 0
        some = unknown[::n_chains], self.there[::n_chains]
        self.numbers = MissingRealColumns.of(energy, *some, reach)
        real = torch.zeros(energy.domain.n_columns, dtype=torch.bool, device=frames.device)
        if self.numbers is not None:
            real[energy.rbm.real_columns] = True
        self.levels = unknown & ~real  # what is proposed frame by frame
        self.biases = Biases(frames.new_zeros(0, 0), frames.new_zeros(0, 0))  # of the frames now
        self.rest: MeanStatistics | None = None
        self.n_steps = 0

    # ---------------------------------------------------------------- frames

    @property
    def x(self) -> Tensor:
        """All frames, (n, T, d)."""
        return self.frames[:, self.energy.order :, :-1]

    def _biases(self, frames: Tensor) -> Biases:
        return self.energy.of_windows(frames.flatten(1), self.there.shape[1]).biases

    def _rbm_given_biases(self, biases: Biases) -> RowwiseRBM:
        return RowwiseRBM(self.energy.rbm, biases)

    def _scatter(self, rows: Tensor) -> Tensor:
        """Rows of the frames that there are, (m, ...), as (n, T, ...), zero elsewhere."""
        found = rows.new_zeros(*self.there.shape, *rows.shape[1:])
        found[self.there] = rows
        return found

    # ---------------------------------------------------------------- the start

    def start(self) -> None:
        """Draw each frame given the frames before it.

        If log Z is a sum, the chains are particles, which are resampled by their likelihoods of the
        known entries of the frame.
        """
        energy, K = self.energy, self.energy.order
        state = energy.start_state(len(self.frames))
        for t in range(self.there.shape[1]):
            biases = energy.biases(self.frames[:, t : t + K].flatten(1), state)
            x, unknown = self.x[:, t], self.unknown[:, t]
            given, clamp = self._rbm_given_biases(biases), Clamp(~unknown, x)
            new = x
            if unknown.any():
                h = torch.zeros_like(biases.hidden)
                for _ in range(N_START):
                    new = clamp.apply(given.visible(h).given(clamp).sample(self.generator))
                    h = given.hidden(new).sample(self.generator)
                self.x[:, t] = torch.where(self.there[:, t, None], new, x)
            if self.exact and self.n_chains > 1 and self.unknown[:, :t].any():
                pick = self._chains_by_likelihood(given, clamp, self.there[:, t])
                self.frames[:, : K + t + 1] = self.frames[pick, : K + t + 1]
                biases, new = biases.take(pick), self.x[:, t]
                state = None if state is None else state[pick]
            state = energy.advance(new, biases)

    def _chains_by_likelihood(self, given: RowwiseRBM, clamp: Clamp, there: Tensor) -> Tensor:
        """Numbers of chains by their likelihoods of the known entries of a frame, (n,)."""
        log_p = torch.where(there, exact_log_z(given, clamp=clamp) - exact_log_z(given), 0.0)
        p = log_p.view(-1, self.n_chains).softmax(1)
        # Systematic resampling, which keeps equal weights as they are.
        first = torch.rand(len(p), 1, generator=self.generator, device=p.device, dtype=p.dtype)
        points = (first + torch.arange(self.n_chains, device=p.device)) / self.n_chains
        pick = torch.searchsorted(p.cumsum(1), points).clamp(max=self.n_chains - 1)
        return (pick + self.n_chains * torch.arange(len(p), device=p.device)[:, None]).flatten()

    # ---------------------------------------------------------------- steps

    @torch.no_grad()
    def step(self, *, adapting: bool) -> None:
        """Draw all hidden units and then all missing entries, first `adapting` the proposals."""
        self.biases = self._biases(self.frames)
        given, x = self._rbm_given_biases(self.biases), self.x[self.there]
        h = given.hidden(x).sample(self.generator)
        if adapting or self.rest is None:
            self._adapt(given, x)
        if self.levels.any():
            windows = ColouredWindows(1, 0, self.reach)
            for colour in range(min(windows.n_colours, self.there.shape[1])):
                self._propose_levels(h, windows, colour)
        if self.numbers is not None:
            starts = self.numbers.windows
            windows = starts[self.n_steps % len(starts)]
            for colour in range(min(windows.n_colours, self.there.shape[1])):
                self._propose_numbers(h, windows, colour)
        self.n_steps += 1

    def _adapt(self, given: RowwiseRBM, x: Tensor) -> None:
        """Follow the mean of draws given the past, of all chains of the same known entries."""
        for _ in range(N_AUXILIARY):
            x = given.step(x, self.generator)
        new = [self._mean_over_chains(part) for part in (x, given.hidden(x).mean)]
        if self.rest is None:
            self.rest = MeanStatistics(new[0], new[1], 1)
            return
        n = self.rest.n + 1
        rate = max(1 / n, 0.05)
        visible, hidden = (old.lerp(one, rate) for old, one in zip(self.rest[:2], new, strict=True))
        self.rest = MeanStatistics(visible, hidden, n)

    def _mean_over_chains(self, rows: Tensor) -> Tensor:
        placed = self._scatter(rows)
        mean = placed.view(-1, self.n_chains, *placed.shape[1:]).mean(1)
        return mean.repeat_interleave(self.n_chains, 0)[self.there]

    def _propose_levels(self, h: Tensor, windows: ColouredWindows, colour: int) -> None:
        """Draw entries of frames whose successors are no others of these."""
        active = windows.active(colour, self.there.shape[1], self.frames.device)
        move = self.levels & active[:, None]
        if self.n_steps % 2:
            move = move & self._some_columns()
        if not move.any():
            return
        given, x = self._rbm_given_biases(self.biases), self.x[self.there]
        extra = self._after_levels(h, x)
        clamp = Clamp(~move[self.there], x)
        new = clamp.apply(given.visible(h, field=extra).given(clamp).sample(self.generator))

        def log_q(rows: Tensor) -> Tensor:
            linear = (self.energy.rbm.statistics(rows) @ self.energy.weight.t() * h).sum(1)
            return -given.visible_energy(rows) + linear + (extra * rows).sum(1)

        frames = self._with(new)
        after = self._biases(frames)
        log_ratio = self._log_ratio(h, frames, after) - self._scatter(log_q(new) - log_q(x))
        self._accept(frames, after, log_ratio, windows, colour)

    def _some_columns(self) -> Tensor:
        """A random share of the columns of each frame, (n, T, d); all entries of a category."""
        sizes = torch.tensor(columns_of(self.energy.domain), device=self.frames.device)
        size = (*self.there.shape, len(sizes))
        drawn = torch.rand(size, generator=self.generator, device=self.frames.device) < SHARE
        return drawn.repeat_interleave(sizes, 2)

    def _propose_numbers(self, h: Tensor, windows: ColouredWindows, colour: int) -> None:
        """Draw real columns of several successive frames at once."""
        assert self.numbers is not None
        moved = self.numbers.take(windows, colour)
        if moved is None:
            return
        x = self.x[self.there]
        step, noise = moved.draw(self._score(h, x, self.biases), self.n_chains, self.generator)
        frames = self.frames.clone()
        frames[:, self.energy.order :, :-1] += step
        after = self._biases(frames)
        score = self._score(h, frames[:, self.energy.order :, :-1][self.there], after)
        back = moved.log_density_back(step, score, self.n_chains) + noise.square().sum(2) / 2
        log_ratio = self._log_ratio(h, frames, after)
        self._accept(frames, after, log_ratio, windows, colour, back)

    def _accept(
        self,
        frames: Tensor,
        biases: Biases,
        log_ratio: Tensor,
        windows: ColouredWindows,
        colour: int,
        more: Tensor | float = 0.0,
    ) -> None:
        """Move to other frames, window by window; ratios (n, T) of frames and `more` of windows."""
        length = self.there.shape[1]
        owner = windows.owner(colour, length, log_ratio.device)
        total = log_ratio.new_zeros(len(log_ratio), windows.n_active(colour, length) + 1)
        total.index_add_(1, owner, log_ratio)
        total[:, 1:] += more
        uniform = torch.rand(
            total.shape, generator=self.generator, device=total.device, dtype=total.dtype
        )
        # A ratio that is no number is a proposal where the energy overflows: refused.
        accepted = (uniform.log() < total)[:, owner]
        new, here = frames[:, self.energy.order :, :-1], accepted[self.there][:, None]
        self.x.copy_(torch.where(accepted[..., None] & self.unknown, new, self.x))
        both = zip(biases, self.biases, strict=True)
        self.biases = Biases(*(torch.where(here, one, old) for one, old in both))

    # ---------------------------------------------------------------- densities

    def _with(self, rows: Tensor) -> Tensor:
        """The frames with other rows in place of those that there are."""
        frames = self.frames.clone()
        x = frames[:, self.energy.order :, :-1]
        x[self.there] = rows
        return frames

    def _log_ratio(self, h: Tensor, frames: Tensor, new: Biases) -> Tensor:
        """log p(x_t, h_t given the past) of other frames less that of these, (n, T)."""
        x, y = self.x[self.there], frames[:, self.energy.order :, :-1][self.there]
        old = self.biases
        before, after = self._rbm_given_biases(old), self._rbm_given_biases(new)
        value = _log_joint(after, y, h) - _log_joint(before, x, h)
        changed = (
            (old.visible != new.visible).any(1) | (old.hidden != new.hidden).any(1)
        ).nonzero()
        changed = changed[:, 0]
        if len(changed):
            two = (
                self._rbm_given_biases(old.take(changed)),
                self._rbm_given_biases(new.take(changed)),
            )
            value[changed] += self._log_z_ratio(*two, y[changed])
        return self._scatter(value)

    def _log_z_ratio(self, before: RowwiseRBM, after: RowwiseRBM, x: Tensor) -> Tensor:
        """log Z of rows less that by other biases; one draw estimates the ratio without bias.

        From x by Gibbs steps by the other biases. Its real columns are then moved by what these
        biases move: a shift, which has no Jacobian.
        """
        if self.exact:
            return exact_log_z(before) - exact_log_z(after)
        for _ in range(N_AUXILIARY):
            x = after.step(x, self.generator)
        y = x + self._shift(before.biases.visible - after.biases.visible)
        return after.free_energy(x) - before.free_energy(y)

    def _shift(self, bias: Tensor) -> Tensor:
        """What biases add to the means of real columns, zero for others, (m, d)."""
        found, real = torch.zeros_like(bias), self.energy.rbm.real_columns
        found[:, real] = self.energy.mean_shift(bias[:, real])
        return found

    def _after_levels(self, h: Tensor, x: Tensor) -> Tensor:
        """Fields of entries from the frames after theirs, (m, d)."""
        assert self.rest is not None
        rbm = self.energy.rbm
        v, u = h - self.rest.hidden, rbm.statistics(x) - rbm.statistics(self.rest.visible)
        u = u - rbm.statistics(self._shift(v @ rbm.weight))
        return self._onto_lags(u, v)[self.there]

    def _score(self, h: Tensor, x: Tensor, biases: Biases) -> Tensor:
        """Gradient by real columns of the log-density that their proposals have, (n, T, d)."""
        assert self.rest is not None
        assert self.numbers is not None
        rbm = self.energy.rbm
        of_hidden, rest = h @ rbm.weight, rbm.statistics(x - self.rest.visible)
        error, own = self.numbers.error(x, self._shift(rbm.visible_bias + biases.visible))
        u = torch.where(rbm.is_real, rbm.statistics(error - self._shift(of_hidden)), rest)
        later = self._onto_lags(u, h - self.rest.hidden)
        return later + self._scatter(own + rbm.statistics(of_hidden) * rbm.is_real)

    def _onto_lags(self, visible: Tensor, hidden: Tensor) -> Tensor:
        """Gradient of b_t' visible + c_t' hidden by the frames before, (n, T, d).

        Of c_t without what real columns are moved by.
        """
        energy, found, length = self.energy, torch.zeros_like(self.frames), self.there.shape[1]
        lags = self._scatter(visible @ energy.lag_visible + hidden @ energy.lag_hidden)
        lags = lags.view(*self.there.shape, energy.order, energy.n_entries)
        for i in range(energy.order):
            found[:, i : i + length] += lags[:, :, i]
        return found[:, energy.order :, :-1]


def _log_joint(given: RowwiseRBM, x: Tensor, h: Tensor) -> Tensor:
    """-E(x, h) of rows, (m,)."""
    return (h * given.hidden_field(x)).sum(1) - given.visible_energy(x)
