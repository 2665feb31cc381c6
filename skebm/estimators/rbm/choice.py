"""What the training rows decide: base and number of hidden units."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import Binary, Categorical, Domain, Real, SamplingError
from skebm.base.domains import columns_of, parts_of
from skebm.base.objective import weighted_mean
from skebm.distributions import Distribution
from skebm.estimators.rbm.safety import (
    BRACKET,
    N_HELD_OUT,
    QUICK_BRACKET,
    pessimistic_log_z,
)
from skebm.estimators.tables.bases import LATENT, log_prob_of
from skebm.partition.bracket import AISBracket
from skebm.training.guard import DivergenceError
from skebm.training.rows import Rows
from skebm.training.selection import (
    Gain,
    epochs_by_halves,
    mean_over_completions,
    n_held_out,
    paired_gain,
)
from skebm.training.trials import (
    gains_by_epoch,
    train_on,
    trial_net,
    until_loss,
    untrained_net,
)

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

PLAIN = "independent"
# Rows that are held out for the choice, or a third of all: with fifty, it was wrong by 0.3 nats.
FEWEST_HELD_OUT = 200
# Rows that trials are trained on, at most: of these, 10,000 steps are ten epochs.
MOST_ROWS = 100_000
# Nats by which held-out rows must be more likely, and more than the error of the difference, for
# another base or number of hidden units than the first; and errors from which on it is clear.
LEAST_GAIN, CLEARLY_BEHIND = 0.01, 2.0
# Numbers of hidden units, in the order in which they are preferred where rows may choose, and the
# one of `BernoulliRBM` otherwise. With 16 or 64 on a tree, dna and mushrooms are 1.2 to 1.7 nats
# better than with 256, and bbc and cr52 are 0.5 to 5 nats worse.
N_HIDDEN, USUAL = (64, 256, 16), 256
# Epochs that independent columns and others are compared after, relative to those of the fit. Both
# take about the same time. Hidden units learn late what a tree has from the start: after a tenth
# of the epochs of both, trees are ahead on tables where they are behind at the end (digits, by 0.8
# nats).
PLAIN_SHARE, SHARE = 0.5, 0.1
# Part of those epochs after which held-out rows say which bases go on. Numbers of units are
# compared at the end: after a fifth, 256 are ahead of 64 on mushrooms by 0.3 nats, and 0.2 behind
# after all epochs, where 16 are ahead by a nat.
FIRST_PART = 0.4
# Iterations of the first part of a line search; after 12 of them on mushrooms, what wins in the end
# is 3 nats behind.
FIRST_ITERATIONS = 33
# What a line search that has not ended, or a trial of fewer steps than these, may still gain,
# relative to what it has gained.
LEFT_TO_GAIN, COMPARED_STEPS = 0.5, 5000


class BaseChoice(NamedTuple):
    """What rows may choose, and why.

    Attributes
    ----------
    name : str or None
        Of the base; None for one that was passed.
    n_hidden : int
        Number of hidden units.
    reason : str
    learning : str
        Rule that ``learning="auto"`` is; ``"auto"`` for the exact likelihood where it is cheap.
    """

    name: str | None
    n_hidden: int
    reason: str
    learning: str = "auto"


class Trial(NamedTuple):
    """What held-out rows say of a model after a part of its training, or all of it.

    Attributes
    ----------
    log_prob : Tensor of shape (n,)
        Log-likelihood of each row in nats, by a short estimate of log Z, which is low where a model
        is far from its base; minus infinity where training diverged.
    error : float
        Standard error of that estimate.
    excess : callable
        ``excess()``: nats by which the largest credible log Z is above the short estimate, which
        takes longer; infinite where log Z is not known.
    net : EnergyNet or None
        What was trained.
    base : Distribution or None
        What it corrects.
    is_start : bool
        Whether the fit goes on from the weights of the trial.
    left : float
        Nats that a line search, or a fit that begins with few steps, may still gain; 0 where it has
        ended, and of other trainings, which are compared after the same part.
    """

    log_prob: Tensor
    error: float
    excess: Callable[[], float]
    net: EnergyNet | None = None
    base: Distribution | None = None
    is_start: bool = False
    left: float = 0.0

    @property
    def n_epochs(self) -> int:
        """Epochs after which the weights are those of the trial; 0 where it was lost."""
        return 0 if self.net is None else self.net.kept_epoch_

    def mean(self, weight: Tensor | None) -> float:
        """Mean log-likelihood of rows of weights (n,); minus infinity where it is not finite."""
        return _or_lost(float(weighted_mean(self.log_prob, weight)))

    def pessimistic(self) -> Trial:
        """The same by the largest credible log Z."""
        excess = self.excess()
        return self._replace(log_prob=self.log_prob - excess, error=0.0, excess=lambda: 0.0)

    def gain_over(self, other: Trial, weight: Tensor | None) -> Gain:
        """Nats a row by which the same rows are more likely than under another model."""
        gain, error = paired_gain(self.log_prob, other.log_prob, weight)
        return Gain(gain, math.hypot(error, self.error, other.error))

    def of_first(self, n: int) -> Trial:
        """The same of the first n rows."""
        return self._replace(log_prob=self.log_prob[:n])


def trial_of(
    recipe: Any,
    net: EnergyNet,
    held_out: Rows,
    generator: torch.Generator,
    bracket: AISBracket = BRACKET,
) -> Trial:
    """What held-out rows say of a trained net, with the largest log Z by a bracket."""
    energy, family = net.module_.energy, recipe.family
    rows = family.complete_copies(recipe, held_out, generator)
    x = rows.block(0, len(rows))
    try:
        found = family.log_ratios(recipe)(energy, x, generator)
    except SamplingError:
        return lost(len(held_out))
    log_z = found.log_z or 0.0
    ratio = mean_over_completions(found.ratio.double(), rows.n_copies)
    log_prob = log_prob_of(recipe.base, held_out) + ratio - log_z

    @functools.cache
    def excess() -> float:
        try:
            return pessimistic_log_z(energy, x, generator, bracket) - log_z
        except SamplingError:
            return math.inf

    # Exact ratios have none that may be larger, and chains from rows that the base has completed
    # say little of log Z.
    known = found.log_z is not None and held_out.known is None and math.isfinite(log_z)
    more = excess if known else (lambda: 0.0)
    return Trial(log_prob, found.log_z_error, more, net, recipe.base)


def lost(n: int) -> Trial:
    """A trial of n rows that has diverged."""
    return Trial(torch.full((n,), -math.inf, dtype=torch.float64), 0.0, lambda: 0.0)


@dataclass
class RunningTrial:
    """A trial that goes on for as long as its candidate may still be the best.

    Attributes
    ----------
    recipe : Recipe
    net : EnergyNet
        What is trained, with the rows that assess it.
    rows : Rows
        What it is trained on.
    n_iter : int
        Epochs of the whole trial.
    ended : bool
        Whether a line search has ended by itself.
    failed : bool
        Whether training has diverged.
    """

    recipe: Any
    net: EnergyNet
    rows: Rows
    n_iter: int
    ended: bool = False
    failed: bool = False

    @property
    def may_gain_more(self) -> bool:
        """Whether a part of the trial says little: of a line search, or of few steps."""
        plan = self.recipe.plan
        return bool(plan.searches or plan.begins_below(COMPARED_STEPS, len(self.rows)))

    def go_on(self, part: float) -> None:
        """Train on to a part of the trial; `DivergenceError` where that fails.

        The learning rate falls in each part anew, so that all ends can be compared.
        """
        net, searches = self.net, self.recipe.plan.searches
        until = math.ceil(part * self.n_iter)
        if searches and part < 1:  # they end by themselves, most of them long before the last one
            until = min(FIRST_ITERATIONS, self.n_iter)
        if self.ended or self.failed or until <= len(net.history):
            return
        net.max_epochs = until - len(net.history)
        # A line search is assessed after each tenth iteration, which takes about as long, and other
        # trials as often as the fit: where the rate is too large for it, it is for them.
        often = self.recipe.n_assessments / self.recipe.plan.n_iter
        net.n_assessments_ = math.ceil(net.max_epochs * (0.1 if searches else often))
        train_on(net, self.rows)
        self.ended = searches and not net.kept_epoch_ == len(net.history) == until


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
        Bases of the training rows of :meth:`trial`, which are the same for all, and the rows as
        completed by them, from which each trial starts.
    begun : dict of BaseChoice to RunningTrial
        Trials that may go on.
    """

    fit: Callable[[str | None, Rows], Distribution]
    plan: Callable[[Distribution, BaseChoice, Rows], Any]
    generator: torch.Generator
    net_params: dict[str, Any] | None
    bases: dict[str | None, tuple[Distribution, Rows]] = field(default_factory=dict)
    begun: dict[BaseChoice, RunningTrial] = field(default_factory=dict)

    def trial(self, chosen: BaseChoice, train: Rows, held_out: Rows, part: float) -> Trial:
        """What held-out rows say after a part of the trial; all is lost if training diverges.

        A candidate that was tried before goes on from where it was.
        """
        if chosen not in self.begun:
            self.begun[chosen] = self._initial_candidate(chosen, train, held_out)
        one = self.begun[chosen]
        try:
            one.go_on(part)
        except (DivergenceError, SamplingError):
            one.failed = True
        if one.failed:
            return lost(len(held_out))
        bracket = QUICK_BRACKET if part < 1 else BRACKET
        found = trial_of(one.recipe, one.net, held_out, self.generator, bracket)
        base = Trial(log_prob_of(one.recipe.base, held_out), 0.0, lambda: 0.0, base=found.base)
        weight = None if held_out.weight is None else held_out.weight.double()
        gain = found.gain_over(base, weight).gain
        if gain < 0:  # a fit would be its base, whose weights are those that it starts from
            return base
        if one.ended or part == 1 or not one.may_gain_more:
            return found
        return found._replace(left=LEFT_TO_GAIN * gain)

    def _initial_candidate(self, chosen: BaseChoice, train: Rows, held_out: Rows) -> RunningTrial:
        """A candidate before its first epoch."""
        if chosen.name not in self.bases:
            train = train.with_own_imputations()
            self.bases[chosen.name] = self.fit(chosen.name, train), train
        base, train = self.bases[chosen.name]
        recipe = self.plan(base, chosen, train)
        share = PLAIN_SHARE if chosen.name == PLAIN else SHARE
        n_iter = math.ceil((1.0 if recipe.plan.searches else share) * recipe.plan.n_iter)
        net = untrained_net(
            recipe, train, self.generator, n_iter=n_iter, net_params=self.net_params
        )
        copies = recipe.family.complete_copies(recipe, held_out, self.generator)
        net.hold_out(copies, recipe.family.log_ratios(recipe))
        own = recipe.family.deduplicate(recipe, train.with_own_imputations())
        return RunningTrial(recipe, net, own, n_iter)

    def gains(
        self, chosen: BaseChoice, n_iter: int, train: Rows, held_out: Rows
    ) -> dict[int, Gain]:
        """Gains of held-out rows over the base while others train a model for `n_iter` epochs."""
        train = train.with_own_imputations()
        recipe = self.plan(self.fit(chosen.name, train), chosen, train)
        net = trial_net(
            recipe,
            train,
            held_out,
            recipe.family.log_ratios(recipe),
            self.generator,
            n_iter=n_iter,
            # Assessments of each half, between which the number of epochs is chosen.
            n_times=n_iter if recipe.plan.searches else min(10, recipe.n_assessments),
            net_params=self.net_params,
        )
        return until_loss(gains_by_epoch(net))

    def by_halves(self, recipe: Any, chosen: BaseChoice, rows: Rows) -> Any:
        """The recipe with the number of epochs that halves choose."""
        most = recipe.plan.n_iter
        gains = functools.partial(self.gains, chosen, most)
        return recipe.with_epochs(epochs_by_halves(gains, rows, self.generator, most))


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
    kinds: Sequence[tuple[str | None, str]],
    sizes: Sequence[int],
    trial: Callable[[BaseChoice, Rows, Rows, float], Trial],
    rows: Rows,
    generator: torch.Generator,
) -> tuple[BaseChoice, Trial]:
    """Base, rule and number of hidden units with which held-out rows are most likely, by trials.

    Models on independent columns train for half of the epochs, and models on other bases, which
    learn their part sooner, for a tenth, which takes about the same time. Each base and rule is
    tried with the first number of hidden units, for a part of these epochs at first; those that are
    not clearly behind then go on, and with those that are not so at the end the other numbers are
    tried, in their order, until one is better than the first. The likelihood of a base by itself is
    no guide: a tree is always ahead of independent columns, yet hidden units on their own may model
    both what the tree models and what it cannot.

    The same rows are compared under two models, so that the error of the difference is small. Of
    those that are behind the best by no more than it, the first by base, rule and number is chosen.

    Parameters
    ----------
    kinds : sequence of (str or None, str)
        Candidates, a base and a rule of learning each, in the order of preference; the first is the
        plainest. None alone is a base that was passed.
    sizes : sequence of int
        Numbers of hidden units, in the order of preference.
    trial : callable
        Trains a choice on the first rows for a part of its trial, from where it was, and returns
        what the second rows say of it.
    rows : Rows
        Training rows.
    generator : torch.Generator
        Draws the rows that are held out.

    Returns
    -------
    choice : BaseChoice
    trial : Trial
        Its trial, by the largest credible log Z.
    """
    enough = min(FEWEST_HELD_OUT, len(rows) // 3)
    train, held_out = rows.split(max(n_held_out(len(rows), N_HELD_OUT), enough), generator)
    weight, n_train = None if held_out.weight is None else held_out.weight.double(), len(train)
    if n_train > MOST_ROWS:
        train = train.subset(torch.arange(MOST_ROWS, device=train.device))
    tried: dict[BaseChoice, Trial] = {}

    def train_on_part(one: BaseChoice, part: float) -> None:
        tried[one] = trial(one, train, held_out, part)

    firsts = [BaseChoice(name, sizes[0], "", rule) for name, rule in kinds]
    for first in firsts:
        train_on_part(first, FIRST_PART)
    left = not_behind(tried, weight)
    for first in left if len(left) + len(sizes) > 2 else ():  # else it is chosen
        train_on_part(first, 1.0)
    for first in not_behind(tried, weight):
        for n in sizes[1:]:
            other = first._replace(n_hidden=n)
            train_on_part(other, FIRST_PART)
            if not tried[other].left or other in not_behind(tried, weight):
                train_on_part(other, 1.0)
            if is_better(tried[other].gain_over(tried[first], weight)):
                break
    order = [one for first in firsts for n in sizes if (one := first._replace(n_hidden=n)) in tried]
    chosen, ends = most_likely({one: tried[one] for one in order}, weight)
    shown = {
        one: f"{ends[one].mean(weight):.2f}" if one in ends else f"< {tried[one].mean(weight):.2f}"
        for one in order
    }
    compared = ", ".join(f"{in_words(one)}: {value}" for one, value in shown.items())
    sample = f", trained on {MOST_ROWS:,} of {n_train:,} rows" if n_train > MOST_ROWS else ""
    reason = f"nats of {len(held_out)} held-out rows by base and hidden units{sample}: {compared}"
    return chosen._replace(reason=reason), ends[chosen]


def not_behind(tried: dict[BaseChoice, Trial], weight: Tensor | None) -> list[BaseChoice]:
    """Those that are not clearly behind the best by its largest credible log Z, in their order."""
    _, ends = most_likely(tried, weight)
    best = max(ends.values(), key=lambda one: one.mean(weight))
    behind = {one: best.gain_over(tried[one], weight) for one in tried}
    return [
        one
        for one, found in tried.items()
        if behind[one].gain - found.left <= CLEARLY_BEHIND * behind[one].error
    ]


def in_words(chosen: BaseChoice) -> str:
    """A candidate as `base_reason_` names it."""
    rule = "" if chosen.learning == "auto" else f" by {chosen.learning}"
    return f"{chosen.name or 'base'} {chosen.n_hidden}{rule}"


def is_better(gain: Gain) -> bool:
    """Whether a gain is worth another base or number of hidden units."""
    return gain.gain > max(LEAST_GAIN, gain.error)


def most_likely(
    tried: dict[BaseChoice, Trial], weight: Tensor | None
) -> tuple[BaseChoice, dict[BaseChoice, Trial]]:
    """The first of the trials, in their order, than which none is better; and pessimistic ones.

    Those are of the trials that may be the best one, or as good.
    """
    ends: dict[BaseChoice, Trial] = {}
    best: BaseChoice | None = None
    for one in sorted(tried, key=lambda one: tried[one].mean(weight), reverse=True):
        if best is not None and is_better(ends[best].gain_over(tried[one], weight)):
            break
        ends[one] = tried[one].pessimistic()
        if best is None or ends[one].mean(weight) > ends[best].mean(weight):
            best = one
    assert best is not None
    most = ends[best]
    chosen = next(
        one for one in tried if one in ends and not is_better(most.gain_over(ends[one], weight))
    )
    return chosen, ends
