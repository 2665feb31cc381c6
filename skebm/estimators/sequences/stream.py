"""Frames of a stream, scored one after the other."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm.base import sampling
from skebm.base.sampler import whole_number
from skebm.energies import Biases, RowwiseRBM
from skebm.estimators.sequences.family import frame_log_z
from skebm.estimators.sequences.table import check_numbers


class FrameStream:
    """A sequence to which frames are added one at a time, each scored given all frames before it.

    It is returned by :meth:`skebm.TemporalRBM.stream`. The memory and time for a frame do not
    depend on the number of frames so far. The stream has a copy of the model, which later fits do
    not change, and can be pickled.

    Parameters
    ----------
    model : TemporalRBM
        A fitted model.
    lags : ndarray of shape (1, order * (n_visible + 1))
        The last frames in rows of the energy, each followed by 1 where there is none.
    state : ndarray of shape (1, n_components) or None
        The state of recurrent units.
    n_frames : int
        Number of frames so far.

    Attributes
    ----------
    n_frames : int

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import TemporalRBM
    >>> X = np.tile(np.eye(3), (40, 1))
    >>> model = TemporalRBM(4, order=1, random_state=0).fit(X)
    >>> stream = model.stream(start=X[:3])
    >>> value = stream.score(X[3])  # as model.score_samples(X[:4])[3]
    >>> stream.expected().round()
    array([[0., 1., 0.]])
    """

    def __init__(self, model: Any, lags: np.ndarray, state: np.ndarray | None, n_frames: int):
        self._model = copy.deepcopy(model)
        self._lags, self._state, self.n_frames = lags, state, n_frames

    def __repr__(self) -> str:
        return f"<FrameStream of {type(self._model).__name__}: {self.n_frames} frames>"

    def score(self, frame: Any) -> float:
        """log p of the next frame given all frames so far, in nats; the frame is then added.

        The result is that of :meth:`~skebm.TemporalRBM.score_samples` for the whole sequence: exact
        if there are few hidden states, and otherwise estimated by annealing and high on average, by
        about half of the squared standard error.

        Parameters
        ----------
        frame : array-like of shape (n_features,) or (1, n_features)
            The next frame. If it is invalid, the stream does not change.

        Returns
        -------
        float
        """
        model, x = self._model, self._row(frame)
        energy, table = model.energy_, model._recipe.table
        with torch.no_grad(), sampling(energy):
            biases = self._biases()
            given = RowwiseRBM(energy.rbm, biases)
            log_z = frame_log_z(given, model.partition_, self._generator())
            value = -table.row_energy(given, x).double() - log_z.value - table.log_volume
            check_numbers(value.cpu().numpy())
            self._advance(x, biases)
        return float(value)

    def expected(self, *, n_draws: int = 100, n_steps: int = 50) -> Any:
        """Mean of the next frame given all frames so far, estimated by draws with a fixed seed.

        Parameters
        ----------
        n_draws, n_steps : int, default=100, 50
            As in :meth:`~skebm.TemporalRBM.predict_next`.

        Returns
        -------
        ndarray or data frame of shape (1, n_features)
            As in :meth:`~skebm.TemporalRBM.predict_next`.
        """
        whole_number("n_draws", n_draws, 1)
        whole_number("n_steps", n_steps, 1)
        model = self._model
        with torch.no_grad(), sampling(model.energy_):
            mean = model._means(self._biases(), n_draws, n_steps, self._generator())
        return model._recipe.table.invert(mean)

    # ---------------------------------------------------------------- the past

    def _row(self, frame: Any) -> Tensor:
        """A frame as a row of the energy, (1, d)."""
        if hasattr(frame, "to_frame") and np.ndim(frame) == 1:  # a row of a data frame
            frame = frame.to_frame().T
        X = self._model._validate([frame] if np.ndim(frame) == 1 else frame)
        if len(X) != 1:
            raise ValueError(f"A stream takes one frame at a time, got {len(X)}.")
        x: Tensor = self._model._rows_of(X).x
        return x

    def _generator(self) -> torch.Generator:
        """Other numbers for each frame, so that errors of frames are not correlated."""
        seed = int(self._model.net_.seed_) + self.n_frames
        return torch.Generator(self._model.energy_.weight.device).manual_seed(seed)

    def _biases(self) -> Biases:
        energy = self._model.energy_
        lags = torch.as_tensor(self._lags).to(energy.weight)
        state = None if self._state is None else torch.as_tensor(self._state).to(energy.weight)
        found: Biases = energy.biases(lags, state)
        return found

    def _advance(self, x: Tensor, biases: Biases) -> None:
        energy = self._model.energy_
        state = energy.advance(x, biases)
        if energy.order:
            new = np.append(x.cpu().numpy(), np.zeros((1, 1), dtype=self._lags.dtype), axis=1)
            self._lags = np.append(self._lags[:, energy.n_entries :], new, axis=1)
        self._state = None if state is None else state.cpu().numpy()
        self.n_frames += 1
