"""Windows of frames that are drawn at once, and the normal distributions of their real columns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from skebm.distributions import Gaussian
from skebm.distributions.independent import blocks_of
from skebm.energies import TemporalEnergy

# Frames of a window, at least where they have few columns, and real entries that all of them have.
LENGTH, MOST_ENTRIES = 10, 512
# Numbers that the precisions of all windows may take.
MOST_NUMBERS = 4e7


class ColouredWindows(NamedTuple):
    """Successive windows of frames; those of a colour are so far apart that they do not interact.

    Attributes
    ----------
    length : int
        Number of frames of a window.
    offset : int
        Number of frames by which the first window begins before the first frame.
    reach : int
        Number of frames after a window that depend on it.
    """

    length: int
    offset: int
    reach: int

    @property
    def n_colours(self) -> int:
        """Number of sets of windows that do not interact."""
        return 1 + -(-self.reach // self.length)

    def _place(self, colour: int, n_frames: int, device: torch.device) -> Tensor:
        """Frames since the first window of a colour, (T,)."""
        first = colour * self.length - self.offset
        return torch.arange(n_frames, device=device) - first

    def active(self, colour: int, n_frames: int, device: torch.device) -> Tensor:
        """Which frames are in a window of this colour, (T,)."""
        place = self._place(colour, n_frames, device)
        return (place >= 0) & (place % (self.n_colours * self.length) < self.length)

    def owner(self, colour: int, n_frames: int, device: torch.device) -> Tensor:
        """1 + number of the last window of this colour that has begun at a frame, (T,)."""
        place = self._place(colour, n_frames, device)
        return (place.div(self.n_colours * self.length, rounding_mode="floor") + 1).clamp(min=0)

    def n_active(self, colour: int, n_frames: int) -> int:
        """Number of windows of this colour that begin before the last frame."""
        rest = n_frames - (colour * self.length - self.offset)
        return max(0, -(-rest // (self.n_colours * self.length)))

    def begin(self, colour: int, number: int) -> int:
        """First frame of a window of this colour."""
        return (colour + number * self.n_colours) * self.length - self.offset


class Entries(NamedTuple):
    """Missing real entries of the windows of a colour, filled up to the same number.

    Attributes
    ----------
    place : Tensor of shape (p, J, k)
        Numbers of the entries in a flat sequence.
    there : Tensor of shape (p, J, k), bool
        Which of them there are.
    tril : Tensor of shape (p, J, k, k)
        Cholesky factors of their precisions.
    shape : tuple of int
        T and d.
    """

    place: Tensor
    there: Tensor
    tril: Tensor
    shape: tuple[int, int]

    def _of(self, score: Tensor, n_chains: int) -> Tensor:
        """Entries of the windows, (p, J, k, c), of sequences (p c, T, d)."""
        p, n_windows, k = self.place.shape
        flat = score.reshape(p, n_chains, -1).transpose(1, 2)
        place = self.place.view(p, -1, 1).expand(-1, -1, n_chains)
        return flat.gather(1, place).view(p, n_windows, k, n_chains) * self.there[..., None]

    def _chains_first(self, rows: Tensor) -> Tensor:
        """(p, J, k, c) as (p c, J, k)."""
        return rows.permute(0, 3, 1, 2).flatten(0, 1)

    def draw(
        self, score: Tensor, n_chains: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Steps (p c, T, d) to draws given the scores here, and their noise (p c, J, k)."""
        own = self._of(score, n_chains)
        noise = torch.empty_like(own).normal_(generator=generator) * self.there[..., None]
        white = torch.linalg.solve_triangular(self.tril, own, upper=False) + noise
        step = torch.linalg.solve_triangular(self.tril.mT, white, upper=True)
        flat = score.new_zeros(len(self.place), self.shape[0] * self.shape[1], n_chains)
        place = self.place.view(len(self.place), -1, 1).expand(-1, -1, n_chains)
        flat.scatter_add_(1, place, (step * self.there[..., None]).flatten(1, 2))
        return flat.transpose(1, 2).reshape(-1, *self.shape), self._chains_first(noise)

    def log_density_back(self, step: Tensor, score: Tensor, n_chains: int) -> Tensor:
        """Of the way back, given the scores after the step; up to the constant, (p c, J)."""
        back = torch.linalg.solve_triangular(self.tril, self._of(score, n_chains), upper=False)
        white = self.tril.mT @ self._of(step, n_chains) + back
        return -self._chains_first(white).square().sum(2) / 2


class MissingRealColumns:
    r"""Missing real columns, which are jointly normal given the hidden units of all frames.

    Where the base of real columns is normal, log p(x_t, h_t given the past) is quadratic in the
    real columns up to the part of log Z that hidden units have. With the covariance
    :math:`\Sigma` of the base at its trained precision and the factors F of the statistics, the
    quadratic part is that of :math:`x_t - \Sigma F \sum_k A_k x_{t-k}`.

    Parameters
    ----------
    energy : TemporalEnergy
    unknown : Tensor of shape (p, T, d), bool
    there : Tensor of shape (p, T), bool
    reach : int
        Frames after one that depend on it.
    """

    def __init__(self, energy: TemporalEnergy, unknown: Tensor, there: Tensor, reach: int):
        rbm = energy.rbm
        self.energy, self.real = energy, rbm.real_columns
        self.shape = unknown.shape[1], unknown.shape[2]
        self.device, self.dtype = energy.weight.device, energy.weight.dtype
        self._learn_base()
        self.unknown, self.n_frames = unknown[..., self.real], there.sum(1)
        length = self._length(reach)
        starts = (0,) if length == 1 else (0, length // 2)
        self.windows = [ColouredWindows(length, start, reach) for start in starts]
        sums = self._precisions(length)
        self._entries = {
            (windows, colour): self._learn(windows, colour, sums)
            for windows in self.windows
            for colour in range(windows.n_colours)
        }

    @classmethod
    def of(
        cls, energy: TemporalEnergy, unknown: Tensor, there: Tensor, reach: int
    ) -> MissingRealColumns | None:
        """None without real columns, or where their base is not normal."""
        real = energy.rbm.real_columns
        normal = sum(
            part.domain.n_columns
            for part in blocks_of(energy.rbm.structure())
            if isinstance(part, Gaussian)
        )
        if normal < len(real) or not len(real):
            return None
        return cls(energy, unknown, there, reach)

    def _learn_base(self) -> None:
        """Mean and precision of the real columns of the base."""
        means, covariances = [], []
        for part in blocks_of(self.energy.rbm.structure()):
            if isinstance(part, Gaussian):
                _, mean, covariance = part.components()
                means.append(mean[0])
                covariances.append(covariance[0])
        self.mean = torch.cat(means).to(self.dtype)
        self.precision = torch.linalg.inv(torch.block_diag(*covariances)).to(self.dtype)

    def _length(self, reach: int) -> int:
        """Frames of a window."""
        d, (n, n_frames) = len(self.real), self.unknown.shape[:2]
        length = max(1, min(max(LENGTH, reach), MOST_ENTRIES // d, n_frames))
        most = int(self.unknown.sum(2).max())
        while length > 1 and 2.0 * n * n_frames * length * most**2 > MOST_NUMBERS:
            length //= 2
        return length

    def _precisions(self, length: int) -> Tensor:
        """Of all real columns of a window that 1, 2, ... of its and later frames see."""
        d, K, width = len(self.real), self.energy.order, self.energy.n_entries
        moved = self.energy.mean_shift(self.energy.lag_visible[self.real].t()).t().double()
        of_lag = [torch.eye(d, dtype=torch.float64, device=self.device)]
        for k in range(1, K + 1):
            at = (K - k) * width
            of_lag.append(-moved[:, at : at + width][:, self.real])
        error = torch.zeros(length + K, d, length, d, dtype=torch.float64, device=self.device)
        for s in range(length):
            for k in range(K + 1):
                error[s + k, :, s] = of_lag[k]
        error = error.flatten(2)
        own = error.mT @ self.precision.double() @ error
        return own.cumsum(0)

    def _learn(self, windows: ColouredWindows, colour: int, sums: Tensor) -> Entries | None:
        """Missing entries of the windows of a colour; None where there are none."""
        n_windows, d = windows.n_active(colour, self.shape[0]), len(self.real)
        found: list[tuple[int, int, Tensor, Tensor]] = []
        for j in range(n_windows):
            begin = windows.begin(colour, j)
            here = self.unknown[:, max(begin, 0) : begin + windows.length]
            for i in here.flatten(1).any(1).nonzero().ravel().tolist():
                frame, column = here[i].nonzero().unbind(1)
                frame = frame + max(begin, 0)
                n_rows = min(int(self.n_frames[i]) - begin, len(sums))
                inside = (frame - begin) * d + column
                matrix = sums[n_rows - 1][inside[:, None], inside]
                place = frame * self.shape[1] + self.real[column]
                found.append((i, j, place, torch.linalg.cholesky(matrix)))
        if not found:
            return None
        k = max(len(place) for *_, place, _ in found)
        size = (len(self.unknown), n_windows, k)
        place = torch.zeros(size, dtype=torch.long, device=self.device)
        there = torch.zeros(size, dtype=torch.bool, device=self.device)
        tril = torch.eye(k, dtype=self.dtype, device=self.device).repeat(*size[:2], 1, 1)
        for i, j, own, root in found:
            n = len(own)
            place[i, j, :n], there[i, j, :n] = own, True
            tril[i, j, :n, :n] = root.to(self.dtype)
        return Entries(place, there, tril, self.shape)

    def take(self, windows: ColouredWindows, colour: int) -> Entries | None:
        """Missing entries of the windows of a colour."""
        return self._entries[windows, colour]

    # ---------------------------------------------------------------- rows (m, d)

    def error(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """By how much rows differ from their means without hidden units, and the score of that.

        `shift` (m, d) is what biases add to those of the base.
        """
        error, score = torch.zeros_like(x), torch.zeros_like(x)
        own = x[:, self.real] - self.mean - shift[:, self.real]
        error[:, self.real], score[:, self.real] = own, -own @ self.precision
        return error, score
