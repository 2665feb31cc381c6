"""What the training rows decide: base and hidden units, or for how long few rows train."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from skebm.base import Binary, Categorical, Domain, Real
from skebm.base.domains import columns_of, parts_of
from skebm.estimators.bases import LATENT
from skebm.estimators.rbm.safety import n_held_out
from skebm.training.rows import Rows

PLAIN = "independent"
# Cells of the tables of a tree, each of which takes part in every draw of a row.
MOST_CELLS = 200_000
# Columns of bits up to which a tree may have blocks, whose search takes a minute for 500. A
# category is a block already.
MOST_IN_BLOCKS = 500
# Rows that are held out for the choice, or a third of all: with fifty, it was wrong by 0.3 nats.
FEWEST_HELD_OUT = 200
# Nats by which held-out rows must be more likely with dependent columns, whose steps take longer.
LEAST_GAIN = 0.1
# Numbers of hidden units, the default first. With 16 or 64 on a tree, dna and mushrooms are 1.2 to
# 1.5 nats better than with 256, and bbc and cr52 are 0.5 to 5 nats worse.
N_HIDDEN = (256, 64, 16)
# Epochs that independent columns and others are compared after, relative to those of the fit. Both
# take about the same time. Hidden units learn late what a tree has from the start: after a tenth
# of the epochs of both, trees are ahead on tables where they are behind at the end (digits, by 0.8
# nats).
PLAIN_SHARE, SHARE = 0.5, 0.1


class BaseChoice(NamedTuple):
    """A base by name, None for one that was passed; the number of hidden units; and why."""

    name: str | None
    n_hidden: int
    reason: str


class Gain(NamedTuple):
    """Mean log-likelihood ratio of held-out rows to the base after an epoch, with its error."""

    epoch: int
    gain: float
    error: float


def candidates(domain: Domain, *, short: bool, tempered: bool = False) -> list[str]:
    """Names of the bases among which rows of a domain may choose, the plainest first.

    A `short` training is over before the search of a block tree would be. `tempered` chains need
    powers of the base.
    """
    parts = parts_of(domain)
    discrete = [part for part in parts if isinstance(part, Binary | Categorical)]
    names, entries = [PLAIN], [k for part in discrete for k in columns_of(part)]
    n_levels = max([2, *entries])
    if len(entries) > 1 and len(entries) * n_levels**2 <= MOST_CELLS:
        plain_tree = short or max(entries) > 1 or len(entries) > MOST_IN_BLOCKS
        names.append("chow-liu" if plain_tree else "block-tree")
    if any(isinstance(part, Real) and part.n_columns > 1 for part in parts):
        names.append("gaussian")
    if not tempered and any(isinstance(part, Real) for part in parts):
        names.append(LATENT)
    return names


def choose_base(
    names: Sequence[str | None],
    sizes: Sequence[int],
    trial: Callable[[str | None, int, Rows, Rows, float], float],
    rows: Rows,
    generator: torch.Generator,
) -> BaseChoice:
    """The base with which held-out rows are most likely after a training of about the same time.

    Then, with this base, the number of hidden units with which they are after the same epochs. The
    first of the names and of the numbers is kept unless another one is better by 0.1 nats. What a
    base has by itself is no guide: a tree is always ahead of independent columns, and yet hidden
    units may model on their own what it models, and with it what it cannot.

    Parameters
    ----------
    names : sequence of str or None
        Candidates; the first is the plainest. None alone is a base that was passed.
    sizes : sequence of int
        Numbers of hidden units; bases are compared with the first.
    trial : callable
        Trains with the named base and a number of hidden units on the first rows for a share of the
        epochs, and returns the mean log-likelihood of the second rows, in nats.
    rows : Rows
        Training rows.
    generator : torch.Generator
        Draws the rows that are held out.
    """
    enough = min(FEWEST_HELD_OUT, len(rows) // 3)
    train, held_out = rows.split(max(n_held_out(len(rows)), enough), generator)
    plain, *others = names
    shares = {name: PLAIN_SHARE if name == PLAIN else SHARE for name in names}
    usual, *fewer = sizes
    found = {name: trial(name, usual, train, held_out, shares[name]) for name in names}
    best = max(names, key=lambda name: found[name] - LEAST_GAIN * (name != plain))
    reasons = []
    if others:
        compared = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        reasons.append(f"after equal times: {compared}")
    by_size = {usual: found[best]}
    by_size |= {n: trial(best, n, train, held_out, shares[best]) for n in fewer}
    n_hidden = max(sizes, key=lambda n: by_size[n] - LEAST_GAIN * (n != usual))
    if fewer:
        compared = ", ".join(f"{n} {value:.2f}" for n, value in by_size.items())
        reasons.append(f"by hidden units: {compared}")
    reason = f"nats of {len(held_out)} held-out rows " + "; ".join(reasons)
    return BaseChoice(best, n_hidden, reason)


def epochs_by_halves(
    gains: Callable[[Rows, Rows], list[Gain]], rows: Rows, generator: torch.Generator
) -> int:
    """Number of epochs after which models of one half of few rows are best for the other half.

    The mean of both halves counts, as long as both curves go on. None at all where the rows never
    gain more over the base than its standard error, or where training diverges.

    Parameters
    ----------
    gains : callable
        Trains on the first rows, and returns the gains of the second ones.
    rows : Rows
        Training rows.
    generator : torch.Generator
        Draws the halves.
    """
    halves = rows.split(len(rows) // 2, generator)
    curves = [gains(*halves), gains(*halves[::-1])]
    means = [
        Gain(a.epoch, (a.gain + b.gain) / 2, math.hypot(a.error, b.error) / 2)
        for a, b in zip(*curves, strict=False)
    ]
    best = max(means, key=lambda mean: mean.gain, default=None)
    return best.epoch if best is not None and best.gain > best.error else 0
