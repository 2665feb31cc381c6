"""Windows of successive frames as rows, cut from sequences when they are taken."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from skebm.training.rows import Rows


class Segments(Rows):
    """Rows that are windows of frames; frames are stored once, however much the windows overlap.

    A window ends with its targets, the frames that are trained on, and begins with their context.
    Each frame of a window is followed by a flag: 1 if it is missing, because it would lie before
    the first frame of its sequence, and 0 otherwise.

    Parameters
    ----------
    frames : Rows
        All frames, one sequence after the other. Before :meth:`cut` is called, there is one window
        for each frame, without context.

    Attributes
    ----------
    x : Tensor of shape (n_frames, d)
    first : Tensor of shape (n_frames,)
        Number of the first frame of the sequence of each frame.
    ends : Tensor of shape (n,)
        Number of the last frame of each window.
    n_context, n_targets : int
        Numbers of context frames and of target frames in a window.
    """

    x: Tensor

    def __init__(self, frames: Rows):
        assert isinstance(frames.x, Tensor)
        n, d = frames.x.shape
        # A frame of a window is a row of this; a missing one is the last row.
        self.flagged = frames.x.new_zeros(n + 1, d + 1)
        self.flagged[:n, :d], self.flagged[n, d] = frames.x, 1.0
        super().__init__(self.flagged[:n, :d], dtype=frames.dtype, device=frames.device)
        everything = torch.arange(len(frames.x), device=frames.x.device)
        self.first, self.ends = torch.zeros_like(everything), everything
        self.n_context, self.n_targets = 0, 1
        self.n_columns = frames.x.shape[1] + 1

    def cut(self, first: Tensor, n_context: int, n_targets: int) -> None:
        """Cut sequences, which begin at `first` (n_frames,), into targets without overlap."""
        last = torch.cat([first[1:] != first[:-1], first.new_ones(1, dtype=torch.bool)])
        ends = last.nonzero().ravel()
        lengths = ends - first[ends] + 1
        of_sequence = torch.repeat_interleave(ends, lengths)
        number = torch.arange(len(first), device=first.device)
        # From the end of a sequence backwards, so that only a first window has missing targets.
        self.first, self.ends = first, number[(of_sequence - number) % n_targets == 0]
        self.n_context, self.n_targets = n_context, n_targets
        self.n_columns = (n_context + n_targets) * (self.x.shape[1] + 1)

    def targets(self) -> Tensor:
        """Numbers of the frames that are targets, (m,)."""
        place = self._places(self.ends, self.n_targets)
        return place[place >= self.first[self.ends][:, None]]

    def frames(self) -> Rows:
        """The frames that are targets."""
        return Rows(self.x[self.targets()], dtype=self.dtype, device=self.device)

    def sequences(self) -> tuple[Tensor, Tensor]:
        """Numbers of the first and of the last frame of each sequence."""
        starts = torch.unique(self.first)
        return starts, torch.cat([starts[1:], starts.new_tensor([len(self.first)])]) - 1

    def beginning(self, n_frames: int) -> Segments:
        """The windows that end in the first `n_frames` frames, with these frames only."""
        found = self.subset((self.ends < n_frames).nonzero().ravel())
        found.x, found.first = self.x[:n_frames], self.first[:n_frames]
        return found

    def subset(self, index: Tensor) -> Segments:
        """Some of the windows, of the same frames."""
        found = object.__new__(Segments)
        found.__dict__.update(self.__dict__)
        found.ends = self.ends[index.to(self.ends.device)]
        found.total_weight = float(len(found.ends))
        return found

    def split(self, n: int, generator: torch.Generator) -> tuple[Segments, Segments]:
        """The windows that remain, and about `n` that are held out.

        The latter are whole sequences or, with few sequences, the end of each. Windows of the same
        sequence are alike, so windows drawn at random would say little about new ones.
        """
        fraction = n / len(self)
        starts, ends = self.sequences()
        first = self.first[self.ends]
        # Sequences from which on whole ones are held out; else the last part of each.
        many_sequences = 10
        if len(starts) >= many_sequences:
            n_out = max(1, round(len(starts) * fraction))
            order = torch.randperm(len(starts), generator=generator, device=generator.device)
            out = torch.isin(first, starts[order[:n_out].to(starts.device)])
        else:
            length = ends[torch.searchsorted(starts, first)] + 1 - first
            out = self.ends >= first + (1 - fraction) * length
        if out.all() or not out.any():
            out = torch.zeros_like(out)
            out[-1] = True
        return self.subset((~out).nonzero().ravel()), self.subset(out.nonzero().ravel())

    def _places(self, ends: Tensor, length: int) -> Tensor:
        """Numbers of the frames of windows, (n, length), of earlier sequences where missing."""
        return ends[:, None] + torch.arange(1 - length, 1, device=ends.device)

    def __len__(self) -> int:
        return len(self.ends)

    def taker(self) -> Callable[[Tensor], Tensor]:
        return self._windows

    def _windows(self, index: Tensor) -> Tensor:
        ends = self.ends[index.to(self.ends.device)]
        return self.ending_at(ends, self.n_context + self.n_targets)

    def ending_at(self, ends: Tensor, length: int) -> Tensor:
        """Windows of `length` frames that end at the frames `ends`, (n, length (d + 1))."""
        place = self._places(ends, length)
        return self.at(place, place < self.first[ends][:, None])

    def at(self, place: Tensor, missing: Tensor) -> Tensor:
        """Flat windows of the frames with the numbers `place` (n, L), some of which are missing."""
        index = torch.where(missing, len(self.flagged) - 1, place)
        return self.flagged[index].flatten(1).to(self.device)

    def block(self, start: int, stop: int) -> Tensor:
        stop = min(stop, len(self))
        return self._windows(torch.arange(start, stop, device=self.ends.device))
