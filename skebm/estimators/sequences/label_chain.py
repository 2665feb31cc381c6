"""Labels given all frames: exact sums over the histories of labels, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skebm.energies import Biases, RowwiseRBM, TemporalEnergy
from skebm.energies.rbm.labels import frame_terms, label_logits
from skebm.training.segments import Segments

# Histories of labels, times labels, for each of which a frame has a term, at most.
MOST_TERMS = 10_000


class LabelChain(NamedTuple):
    """A chain of labels, each of which depends on the last few.

    Attributes
    ----------
    n_labels, order : int
        K, and the number of labels before on which a frame depends.
    """

    n_labels: int
    order: int

    @property
    def n_histories(self) -> int:
        """Sequences of the last labels, in base K, the most recent one last."""
        return int(self.n_labels**self.order)

    # ---------------------------------------------------------------- terms of the frames

    @torch.no_grad()
    def terms(
        self,
        energy: TemporalEnergy,
        rows: Segments,
        frames: Tensor,
        log_z: Callable[[RowwiseRBM], Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """log p(x_t, y_t given the past and a history of labels), and what frames alone add.

        Parameters
        ----------
        energy : TemporalEnergy
        rows : Segments
            Frames whose labels are zeros.
        frames : Tensor of shape (m,)
            Numbers of the frames.
        log_z : callable or None
            log Z of each row of an RBM. None: log p(y_t given frame, past and history) instead.

        Returns
        -------
        tuple of Tensor, float64
            (m, n_histories, K), up to what frames alone add, (m,); with None all of it.
        """
        windows = rows.ending_at(frames, energy.order + 1)
        x = windows[:, -energy.n_entries : -1]
        given = RowwiseRBM(energy.rbm, self._biases(energy, windows[:, : -energy.n_entries]))
        x = x.repeat_interleave(self.n_histories, 0)
        found = label_logits(given, x, self.n_labels).double()
        size = len(frames), self.n_histories, self.n_labels
        if log_z is None:
            return found.log_softmax(1).view(size), found.new_zeros(len(frames))
        with_past, alone = frame_terms(given, x, self.n_labels)
        found = found + (with_past.double() - log_z(given))[:, None]
        return found.view(size), alone.double()[:: self.n_histories]

    def _biases(self, energy: TemporalEnergy, lags: Tensor) -> Biases:
        """What the past and each history add to the biases, (m n_histories, d) and (.., H).

        Labels before the first frame are missing: all of these histories are the same.
        """
        own, k, width = energy.biases(lags), self.n_labels, energy.n_entries
        number = torch.arange(self.n_histories, device=lags.device)
        parts = [part[:, None].expand(-1, self.n_histories, -1) for part in own]
        for lag in range(1, self.order + 1):
            at = (energy.order - lag) * width
            alone = lags.new_zeros(k, lags.shape[1])
            alone[:, at + width - 1 - k : at + width - 1] = torch.eye(k).to(lags)
            digit = (number // k ** (lag - 1)) % k
            there = (lags[:, at + width - 1] == 0).to(lags)[:, None, None]
            added = energy.biases(alone).take(digit)
            parts = [part + there * more for part, more in zip(parts, added, strict=True)]
        return Biases(*(part.flatten(0, 1) for part in parts))

    # ---------------------------------------------------------------- sums over histories

    def smoothing(self, terms: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y_t given all frames), (n, K), and log p(x_t given those before), (n,).

        Parameters
        ----------
        terms : Tensor of shape (n, n_histories, K)
            Logarithms of the terms of :meth:`terms` of all frames.
        starts, ends : Tensor of shape (n_sequences,)
            Numbers of the first and the last frame of each sequence.
        """
        order = (ends - starts).argsort(descending=True)
        starts, ends = starts[order], ends[order]
        before, evidence = self._forwards(terms, starts, ends)
        found = terms.new_empty(len(terms), self.n_labels)
        after = terms.new_zeros(len(starts), self.n_histories)
        for t in range(int((ends - starts).max()), -1, -1):
            at = starts[: int((starts + t <= ends).sum())] + t
            n = len(at)
            # The history after a label is the number of (history, label) modulo their number.
            later = after[:n].repeat(1, self.n_labels).view(n, -1, self.n_labels)
            later = terms[at] + later
            found[at] = (before[at][:, :, None] + later).logsumexp(1).log_softmax(1)
            after[:n] = later.logsumexp(2).log_softmax(1)
        return found, evidence

    def _forwards(self, terms: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """log p(history before each frame given earlier frames), and log p of each frame."""
        now = terms.new_zeros(len(starts), self.n_histories).log_softmax(1)
        before, evidence = terms.new_empty(terms.shape[:2]), terms.new_empty(len(terms))
        for t in range(int((ends - starts).max()) + 1):
            at = starts[: int((starts + t <= ends).sum())] + t
            now = now[: len(at)]
            before[at] = now
            joint = (now[:, :, None] + terms[at]).flatten(1)
            evidence[at] = joint.logsumexp(1)
            joint = joint - evidence[at][:, None]
            now = joint.view(len(at), self.n_labels, self.n_histories).logsumexp(1)
        return before, evidence
