"""What the training rows decide: base and number of hidden units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from skebm.base import Binary, Categorical, Domain, Real, SamplingError, sampling
from skebm.base.domains import columns_of, parts_of
from skebm.distributions import Distribution
from skebm.estimators.rbm.safety import N_HELD_OUT, pessimistic_log_z
from skebm.estimators.tables.bases import LATENT
from skebm.training.guard import N_ASSESSMENTS
from skebm.training.rows import Rows
from skebm.training.selection import Gain, n_held_out
from skebm.training.trials import gains_by_epoch, trial_net, until_loss

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

PLAIN = "independent"
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


class ValidationScore(NamedTuple):
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


@dataclass
class ValidationFits:
    """Trials of the settings of an RBM, which the rows of one fit compare.

    Attributes
    ----------
    fit : callable
        ``fit(name, rows)``: the named base of some rows.
    plan : callable
        ``plan(base, chosen, rows)``: the recipe of a choice.
    generator : torch.Generator
    net_params : dict or None
        Arguments of the net.
    bases : dict of str to (Distribution, Rows)
        Bases of the training rows of :meth:`value`, which are the same for all, and the rows as
        completed by them, from which each trial starts.
    """

    fit: Callable[[str | None, Rows], Distribution]
    plan: Callable[[Distribution, BaseChoice, Rows], Any]
    generator: torch.Generator
    net_params: dict[str, Any] | None
    bases: dict[str | None, tuple[Distribution, Rows]] = field(default_factory=dict)

    def value(
        self, name: str | None, n_hidden: int, train: Rows, held_out: Rows, share: float
    ) -> ValidationScore:
        """How likely held-out rows are after a share of the epochs.

        The first value is that of the guard, whose short annealing misses more of log Z the farther
        a model is from its base. For rows with missing entries it is the likelihood of the known
        ones, by the guard alone. It is minus infinity if training diverges.
        """
        if name not in self.bases:
            train = train.with_own_imputations()
            self.bases[name] = self.fit(name, train), train
        base, train = self.bases[name]
        recipe = self.plan(base, BaseChoice(name, n_hidden, ""), train)
        n_iter = math.ceil(share * recipe.plan.n_iter)
        # As often as in the fit itself: on a tree, an assessment takes as long as a hundred steps.
        net = self._net(recipe, train, held_out, n_iter, math.ceil(share * N_ASSESSMENTS))
        if net is None:
            return ValidationScore(-math.inf, lambda: -math.inf)
        # Of far rows the gain may be infinite, which the guard does not keep.
        final = net.guard_.final_gain
        gain = -math.inf if final is None else final.gain
        most = _or_lost(gain + recipe.family.mean_of_base(recipe, held_out))
        if held_out.known is not None:
            return ValidationScore(most, lambda: most)
        energy = net.module_.energy
        return ValidationScore(most, lambda: pessimistic_mean(energy, held_out, self.generator))

    def gains(
        self, chosen: BaseChoice, n_iter: int, train: Rows, held_out: Rows
    ) -> dict[int, Gain]:
        """Gains of held-out rows over the base while others train a model for `n_iter` epochs."""
        train = train.with_own_imputations()
        recipe = self.plan(self.fit(chosen.name, train), chosen, train)
        # Assessments of each half, between which the number of epochs is chosen.
        n_by_halves = 10
        return until_loss(gains_by_epoch(self._net(recipe, train, held_out, n_iter, n_by_halves)))

    def _net(
        self, recipe: Any, train: Rows, held_out: Rows, n_iter: int, n_times: int
    ) -> EnergyNet | None:
        return trial_net(
            recipe,
            train,
            held_out,
            recipe.family.log_ratios(recipe),
            self.generator,
            n_iter=n_iter,
            n_times=n_times,
            net_params=self.net_params,
        )


def pessimistic_mean(energy: Any, rows: Rows, generator: torch.Generator) -> float:
    """Mean log-likelihood of rows by the largest credible log Z; minus infinity if not finite."""
    x, counts = rows.block(0, len(rows)), rows.counts
    try:
        with torch.no_grad(), sampling(energy):
            mean = float(counts / counts.sum() @ -energy(x).double())
        return _or_lost(mean - pessimistic_log_z(energy, x, generator))
    except SamplingError:
        return -math.inf


def _or_lost(value: float) -> float:
    """A log-likelihood, or minus infinity where it is not finite: such a trial loses."""
    return value if math.isfinite(value) else -math.inf


def candidates(domain: Domain, *, short: bool, tempered: bool = False) -> list[str]:
    """Names of the bases among which rows of a domain may choose, the plainest first.

    A `short` training is over before the search of a block tree would be. `tempered` chains need
    powers of the base.
    """
    parts = parts_of(domain)
    discrete = [part for part in parts if isinstance(part, Binary | Categorical)]
    names, entries = [PLAIN], [k for part in discrete for k in columns_of(part)]
    n_levels = max([2, *entries])
    # Cells of the tables of a tree, each of which takes part in every draw of a row.
    most_cells = 200_000
    # Columns of bits up to which a tree may have blocks, whose search takes a minute for 500. A
    # category is a block already.
    most_in_blocks = 500
    if len(entries) > 1 and len(entries) * n_levels**2 <= most_cells:
        plain_tree = short or max(entries) > 1 or len(entries) > most_in_blocks
        names.append("chow-liu" if plain_tree else "block-tree")
    if any(isinstance(part, Real) and part.n_columns > 1 for part in parts):
        names.append("gaussian")
    if not tempered and any(isinstance(part, Real) for part in parts):
        names.append(LATENT)
    return names


def choose_base(
    names: Sequence[str | None],
    sizes: Sequence[int],
    trial: Callable[[str | None, int, Rows, Rows, float], ValidationScore],
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
    found: dict[tuple[str | None, int], ValidationScore] = {}

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
