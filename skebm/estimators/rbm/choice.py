"""What the training rows decide: base and number of hidden units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from skebm.base import Binary, Categorical, Domain, Real
from skebm.base.domains import columns_of, parts_of
from skebm.estimators.rbm.safety import N_HELD_OUT
from skebm.estimators.tables.bases import LATENT
from skebm.training.rows import Rows
from skebm.training.selection import n_held_out

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
# Numbers of hidden units, in the order in which they are preferred where rows may choose, and the
# one of `BernoulliRBM` otherwise. With 16 or 64 on a tree, dna and mushrooms are 1.2 to 1.7 nats
# better than with 256, and bbc and cr52 are 0.5 to 5 nats worse.
N_HIDDEN, USUAL = (64, 256, 16), 256
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


class Tried(NamedTuple):
    """Mean log-likelihood of held-out rows after a short training, in nats.

    Attributes
    ----------
    most : float
        By a short estimate of log Z, which is low where a model is far from its base.
    pessimistic : callable
        ``pessimistic()``: by the largest credible log Z, which takes longer.
    """

    most: float
    pessimistic: Callable[[], float]


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
    trial: Callable[[str | None, int, Rows, Rows, float], Tried],
    rows: Rows,
    generator: torch.Generator,
) -> BaseChoice:
    """Base and number of hidden units with which held-out rows are most likely, by short trainings.

    Models on independent columns train for half of the epochs, and models on other bases, which
    learn their part sooner, for a tenth, which takes about the same time. Other bases are tried
    with each number of hidden units; independent columns with the first two numbers, and with the
    rest if independent columns are then in the lead. The first name and the first number are kept
    unless others are better by 0.1 nats each. The likelihood of a base by itself is no guide: a
    tree is always ahead of independent columns, yet hidden units on their own may model both what
    the tree models and what it cannot.

    Parameters
    ----------
    names : sequence of str or None
        Candidates; the first is the plainest. None alone is a base that was passed.
    sizes : sequence of int
        Numbers of hidden units, in the order of preference.
    trial : callable
        Trains with the named base and a number of hidden units on the first rows for a share of the
        epochs, and returns how likely the second rows are.
    rows : Rows
        Training rows.
    generator : torch.Generator
        Draws the rows that are held out.
    """
    enough = min(FEWEST_HELD_OUT, len(rows) // 3)
    train, held_out = rows.split(max(n_held_out(len(rows), N_HELD_OUT), enough), generator)
    plain, preferred = names[0], sizes[0]
    found: dict[tuple[str | None, int], Tried] = {}

    def compare(name: str | None, several: Sequence[int]) -> None:
        share = PLAIN_SHARE if name == PLAIN else SHARE
        for n in several:
            found[name, n] = trial(name, n, train, held_out, share)

    def handicap(one: tuple[str | None, int]) -> float:
        return LEAST_GAIN * ((one[0] != plain) + (one[1] != preferred))

    def most(one: tuple[str | None, int]) -> float:
        return found[one].most - handicap(one)

    for name in names:
        compare(name, sizes[:2] if name == PLAIN else sizes)
    if max(found, key=most)[0] == PLAIN:
        compare(PLAIN, sizes[2:])
    # The pessimistic ends of those that may still be the best.
    ends: dict[tuple[str | None, int], float] = {}
    best = next(iter(found))
    for one in sorted(found, key=most, reverse=True):
        if ends and most(one) <= ends[best] - handicap(best):
            break
        ends[one] = found[one].pessimistic()
        if ends[one] - handicap(one) >= ends.get(best, -math.inf) - handicap(best):
            best = one
    shown = {
        one: f"{ends[one]:.2f}" if one in ends else f"< {tried.most:.2f}"
        for one, tried in found.items()
    }
    compared = ", ".join(f"{name or 'base'} {n}: {value}" for (name, n), value in shown.items())
    reason = f"nats of {len(held_out)} held-out rows by base and hidden units: {compared}"
    return BaseChoice(*best, reason)
