"""How likely frames are given the frames before them and the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm.base import sampling
from skebm.base.processes import progress_bar
from skebm.energies import Biases, RowwiseRBM
from skebm.estimators.sequences.family import frame_log_z
from skebm.training.segments import Segments

# Draws, and Gibbs steps of each, of the mean of a frame given its past.
N_DRAWS, N_STEPS = 10, 30


def evidence_of_next(model: Any, rows: Segments, log_prob: np.ndarray) -> np.ndarray:
    """Evidence of the next frame for or against each frame, in nats, (n,); 0 for last frames.

    log p(x_{t+1} given x_t and the past) - log p(x_{t+1} given E(x_t given the past) and the past).

    Parameters
    ----------
    model : TemporalRBM
    rows : Segments
    log_prob : ndarray of shape (n,)
        log p of each frame given its past.
    """
    energy, table = model.energy_, model._recipe.table
    found = np.zeros(len(log_prob))
    _, ends = rows.sequences()
    is_last = torch.zeros(len(log_prob), dtype=torch.bool, device=ends.device)
    is_last[ends] = True
    generator = torch.Generator(energy.weight.device).manual_seed(model.net_.seed_)
    bar = progress_bar(
        total=len(found), unit="frame", desc="next", disable=not model.verbose, delay=2
    )
    settings = model.partition_
    for _, biases, number in model._walk(rows, max(settings.n_chains, N_DRAWS)):
        bar.update(len(number))
        here = (~is_last[number]).nonzero().ravel()
        if not len(here):
            continue
        number = number[here]
        instead = without_frame(model, rows, number, biases.take(here), generator)
        x = rows.x[number + 1].to(energy.weight.device)
        with torch.no_grad(), sampling(energy):
            free = table.row_energy(instead, x).double()
            log_z = frame_log_z(instead, settings, generator)
        place = number.cpu().numpy()
        log_prob_without = (-free - log_z.value - table.log_volume).cpu().numpy()
        found[place] = log_prob[place + 1] - log_prob_without
    bar.close()
    return found


@torch.no_grad()
def without_frame(
    model: Any, rows: Segments, number: Tensor, biases: Biases, generator: torch.Generator
) -> RowwiseRBM:
    """RBMs of the frames that follow some frames, when these are replaced by their means.

    The means are those given the past. As biases are linear in the last frames, the RBMs have the
    mean biases (apart from recurrent units).
    """
    energy = model.energy_
    with sampling(energy):
        mean = model._means(biases, N_DRAWS, N_STEPS, generator)
    width, order = energy.n_entries, energy.order
    lags = rows.ending_at(number + 1, order + 1)[:, : order * width].clone()
    if order:
        lags.view(len(lags), order, width)[:, -1, :-1] = mean
    given: RowwiseRBM = energy.given(lags, energy.advance(mean, biases))
    return given
