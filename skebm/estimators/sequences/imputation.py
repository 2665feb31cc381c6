"""Sequences with missing entries: cut into stretches that depend on each other, and filled in."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from skebm.base import Binary
from skebm.base.domains import parts_of
from skebm.energies import TemporalEnergy
from skebm.estimators.sequences.clamped import ClampedChains
from skebm.training.segments import Segments

# Chains of each sequence, and numbers that those of several sequences may take.
N_CHAINS, CHUNK = 10, 4_000_000


@torch.no_grad()
def impute_frames(
    energy: TemporalEnergy,
    rows: Segments,
    how: str,
    n_draws: int,
    n_steps: int,
    generator: torch.Generator,
) -> Tensor:
    """All frames with their missing entries, nan, filled in, (n_draws, n_frames, d).

    Parameters
    ----------
    energy : TemporalEnergy
    rows : Segments
        Of which the frames and their sequences are used.
    how : {"sample", "mean", "mode"}
    n_draws : int
        Number of draws; 1 for means and modes.
    n_steps : int
        Number of steps of the chains; means are over the second half.
    generator : torch.Generator
    """
    x = rows.x.to(generator.device)
    unknown = x.isnan()
    found = x.nan_to_num(0.0).repeat(n_draws, 1, 1)
    n_chains = max(N_CHAINS, n_draws)
    # Frames after one that recurrent units let depend on it, as far as is followed.
    recurrent_reach = 16
    reach = max(energy.order, recurrent_reach) if energy.recurrent else energy.order
    pieces = stretches(unknown.any(1), *rows.sequences(), reach, energy.recurrent)
    width = n_chains * (energy.domain.n_columns + len(energy.weight))
    for first, begin, end in batches(pieces, width):
        place = begin[:, None] + torch.arange(-energy.order, int((end - begin).max()) + 1)
        place = place.to(x.device)
        missing = (place < first[:, None].to(x.device)) | (place > end[:, None].to(x.device))
        frames = found[0][place.clamp(0, len(x) - 1)].masked_fill(missing[..., None], 0.0)
        frames = torch.cat([frames, missing[..., None].to(frames)], 2)
        at = place[:, energy.order :].clamp(max=len(x) - 1)
        here = unknown[at] & ~missing[:, energy.order :, None]
        many = frames.repeat_interleave(n_chains, 0), here.repeat_interleave(n_chains, 0)
        chains = ClampedChains(energy, *many, n_chains, reach, generator)
        value = _run(chains, how, n_draws, n_steps)
        frame, column = at[..., None].expand_as(here)[here], here.nonzero()[:, 2]
        found[:, frame, column] = value[:, here]
    return found


def _run(chains: ClampedChains, how: str, n_draws: int, n_steps: int) -> Tensor:
    """Frames of the stretches after the steps, or their means, (n_draws, p, T, d)."""
    chains.start()
    total, n = torch.zeros_like(chains.x), n_steps - n_steps // 2
    for step in range(n_steps):
        adapting = step < n_steps - n
        chains.step(adapting=adapting)
        if not adapting:
            total += chains.x
    if how == "draw":
        found = chains.x.view(-1, chains.n_chains, *chains.x.shape[1:])[:, :n_draws]
        return found.transpose(0, 1)
    mean = (total / n).view(-1, chains.n_chains, *chains.x.shape[1:]).mean(1)
    if how == "mode":
        kinds = parts_of(chains.energy.domain)
        are_bits = [torch.full((kind.n_columns,), isinstance(kind, Binary)) for kind in kinds]
        bits = torch.cat(are_bits).to(mean.device)
        mean = torch.where(bits, (mean > 0.5).to(mean), mean)
    return mean[None]


def stretches(
    incomplete: Tensor, starts: Tensor, ends: Tensor, reach: int, whole: bool
) -> list[tuple[int, int, int]]:
    """Stretches of frames within which missing entries depend on each other.

    Two incomplete frames with at least `reach` complete ones between them are independent given
    the known entries.

    Parameters
    ----------
    incomplete : Tensor of shape (n_frames,), bool
    starts, ends : Tensor of shape (n,)
        First and last frames of the sequences.
    reach : int
        Frames after one that depend on it.
    whole : bool
        Whether a stretch begins with its sequence, as the state of recurrent units does.

    Returns
    -------
    list of tuple
        First frame of the sequence, and first and last frame of each stretch.
    """
    found = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        frames = (start + incomplete[start : end + 1].nonzero().ravel()).tolist()
        if not frames:
            continue
        groups = [[frames[0], frames[0]]]
        for frame in frames[1:]:
            if whole or frame - groups[-1][1] <= reach:
                groups[-1][1] = frame
            else:
                groups.append([frame, frame])
        found += [
            (start, start if whole else first, min(last + reach, end)) for first, last in groups
        ]
    return found


def batches(
    pieces: list[tuple[int, int, int]], width: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Stretches of about the same length, in batches of `CHUNK` numbers, `width` for a frame."""
    order = sorted(pieces, key=lambda piece: piece[1] - piece[2])
    at = 0
    while at < len(order):
        length = order[at][2] - order[at][1] + 1
        size = max(1, int(CHUNK / (width * length)))
        yield tuple(torch.tensor(order[at : at + size]).unbind(1))  # type: ignore[misc]
        at += size
