"""The family of RBMs: energy, learning rule and chains, and what "auto" means."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from sklearn.base import clone
from torch import Tensor

from skebm._validation import warn
from skebm.base import (
    Binary,
    Categorical,
    ChainState,
    Clamp,
    Objective,
    Real,
    Sampler,
    TrainingWarning,
    sampling,
)
from skebm.base.domains import parts_of
from skebm.base.processes import Notice
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution, IndependentBernoulli, LatentClasses
from skebm.distributions.independent import blocks_of
from skebm.estimators.base import (
    annealing_starts,
    draw_seed,
    fraction_of_early_stopping,
    states_near,
)
from skebm.estimators.rbm.choice import (
    COMPARED_STEPS,
    N_HIDDEN,
    PLAIN,
    BaseChoice,
    Trial,
    ValidationFits,
    candidates,
    choose_base,
    is_better,
    trial_of,
)
from skebm.estimators.rbm.hidden import BinaryLayer, HiddenUnits
from skebm.estimators.rbm.safety import N_HELD_OUT, OF_SHORT_FITS, rbm_log_ratios
from skebm.estimators.recipe import Family, JointModel, Recipe
from skebm.estimators.tables.bases import (
    TREES,
    check_base_stays,
    column_means,
    fit_completed,
    redraw,
)
from skebm.estimators.tables.table import Table, fit_table_base
from skebm.objectives import CenteredObjective, Centering, ContrastiveDivergence, Penalty
from skebm.objectives.local import LOCAL_RULES
from skebm.partition import Exact
from skebm.samplers import ChainPolicy, FromData, Gibbs, Persistent, TrajectoryTempering
from skebm.training import SGD
from skebm.training.guard import (
    ENOUGH_STEPS,
    MOST_TIMES,
    MOST_WORK,
    N_ASSESSMENTS,
    copy_weights,
    n_assessments,
    not_converged,
    still_rising,
    weights_of,
)
from skebm.training.plan import TrainingPlan, asked_steps, plan_of
from skebm.training.rows import Rows
from skebm.training.selection import (
    ERROR,
    GAIN,
    WORTH_A_WARNING,
    Gain,
    LogRatioOf,
    LogRatios,
    is_worth_a_warning,
    rows_apart,
)

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Terms of an enumeration (states times units of the other layer) at every step: up to which it is
# the default, by full-batch L-BFGS and for stochastic steps, and up to which it is allowed. Beyond
# the second a step takes more than three times as long as one of PCD.
CHEAP_COST, QUICK_COST, EXACT_LEARNING_COST = 1e7, 3e4, 1e8
# With fewer chains, their weights estimate log Z poorly.
REWEIGHTED_CHAINS = 500
# Epochs at most, by default, where nothing guards against overfitting.
MOST_EPOCHS = 500
# Epochs that a fit begins with by default, at most, where held-out rows may ask for more, unless
# more of them take only so many multiplications, a few seconds. Of 400 rows of mixed columns these
# are 4,000 steps: with 2,000, what hidden units learn is 0.35 nats less, and with 8,000 no more.
FIRST_PASSES, QUICK_WORK = 1000, 1e10
# What a step takes besides, in multiplications that take as long: on independent bits, on a tree of
# bits (more for each column), on other columns, on latent classes; and how many times that where
# entries are missing, which are drawn anew. Of 100 rows, 69 bits and 64 units a step takes 0.3
# milliseconds on independent columns and 1.8 on a block tree, and of 12 mixed columns 1.5, or 4.9
# on latent classes with holes. Mixed columns count three times, for trials, log Z and bases, which
# are as slow there.
BITS_WORK, TREE_WORK, TREE_COLUMN_WORK = 6e5, 3e6, 3e4
COLUMNS_WORK, CLASSES_WORK, MISSING_WORK = 1.5e7, 2.7e7, 1.6
# The same of a term of the exact likelihood in an iteration of a line search, on independent
# columns and on trees: 16 units and 112 columns take 0.4 seconds on a block tree.
TERM_WORK, TREE_TERM_WORK = 50, 150
# Iterations of a line search of all rows from the weights of its trial, as a part of those of that.
ITERATIONS_OF_ALL_ROWS = 0.2
# Columns for each hidden unit from on which a tree may have more than hidden units on independent
# columns can learn.
COLUMNS_OF_A_UNIT = 4
# Seconds of training from on which trials, which take several times as long, choose the base.
ENOUGH_TIME = 60
# Steps at most while held-out rows gain.
MOST_STEPS = MOST_TIMES * ENOUGH_STEPS
# Multiplications that take as long as a hidden unit under a changed column, a softplus and its
# gradient: of 100 rows, 784 columns and 64 units a step takes 46 milliseconds.
LOCAL_WORK = 40
# Standard deviation of the initial weights on a base of dependent columns, and for a unit of an l1
# penalty. What a tree leaves to the hidden units is weak: from larger weights, test rows of three
# of eight DEBD sets are 0.5 to 4 nats less likely. With a penalty, the likelihood pulls at weights
# of nearly 0 by less than l1, so that they would all end at 0 though larger ones have a far better
# penalised likelihood.
SCALE_ON_TREES, SCALE_BY_L1 = 0.01, 100.0
# Rows from which on some are held out. Of fewer, each is worth more to the training than to the
# guard.
FEWEST_ROWS = 200
# Of fewer rows, halves choose the number of epochs; fewer than these say nothing. They do so for a
# line search, which overfits within a few steps, unless there are very many rows.
FEWEST_IN_HALVES, MOST_IN_HALVES = 8, 20_000
# Draws of the base that complete a held-out row with missing entries.
N_COMPLETIONS = 10
# Gibbs steps that draw missing entries anew where rows come once, in `partial_fit`.
STREAMING_STEPS = 5
GIBBS = Gibbs()
# Why the base is what it is, where it was given.
GIVEN = "as given"
# Epochs at least, by default.
FEWEST_EPOCHS = 10
# Steps of a fit for features, and rows of a batch of bits.
FEATURE_STEPS, FEATURE_BATCH = 5000, 10


@dataclass(frozen=True)
class GibbsChains:
    """Chains of a model with layers of units, in training and afterwards.

    Attributes
    ----------
    sampler : Sampler or None
        None is block Gibbs sampling.
    policy : ChainPolicy or None
        With resolved numbers of steps and chains. None of rules without chains.
    """

    sampler: Sampler | None
    policy: ChainPolicy | None

    @property
    def training_sampler(self) -> Sampler:
        """Sampler of the training chains."""
        return Gibbs() if self.sampler is None else self.sampler

    @property
    def layer_sampler(self) -> Sampler:
        """Sampler for imputation and samples: the training sampler if it draws whole layers.

        Otherwise block Gibbs, which mixes faster than any sampler that changes single bits.
        """
        sampler = self.training_sampler
        return sampler if isinstance(sampler.kernel, Gibbs) else Gibbs()

    def partition_input(self, name: str, energy: Any, net: EnergyNet, data: Tensor) -> Any:
        """Input of an estimate of log Z, of which `data` are rows near the model."""
        if name == "base":
            return energy.base
        return self.layer_sampler.kernel if name == "sampler" else annealing_starts(net, data)

    def policy_from(self, base: Distribution | None) -> ChainPolicy:
        """A copy of the policy, whose persistent chains start at draws of a base."""
        policy: ChainPolicy = clone(self.policy)
        if isinstance(policy, Persistent):
            policy.set_params(initial=base)
        return policy


@dataclass(frozen=True)
class RBMFamily(Family, JointModel):
    """RBMs of any hidden units.

    Attributes
    ----------
    units : HiddenUnits
    learning : {"exact", "pcd", "cd", "pseudo_likelihood", "ratio_matching", "probability_flow"}
    chains : GibbsChains
    centering : Centering or None
    penalty : Penalty or None
    short : bool
        Whether `n_iter` was given and makes fewer steps than are enough for small weights.
    by_halves : bool
        Whether halves of the rows choose the number of epochs, instead of some that guard the
        training. They do if it is ``"auto"`` and there are few rows, or a line search.
    streaming : bool
        Whether the settings are those of `partial_fit`.
    aim : {"density", "features"}
        What the model is for, which decides what "auto" means.
    """

    units: HiddenUnits
    learning: str
    chains: GibbsChains
    centering: Centering | None
    penalty: Penalty | None
    short: bool
    by_halves: bool
    streaming: bool
    aim: str

    @property
    def n_hidden(self) -> int:
        """Number of hidden units, as `n_components` counts them."""
        return self.units.n

    def objective(self, recipe: Any, generator: torch.Generator) -> Objective:
        dtype = recipe.plan.torch_dtype
        base = recipe.base.to(generator.device, dtype)
        scale = self.weight_scale(recipe)
        new: dict[str, Any] = {"generator": generator, "scale": scale, "dtype": dtype}
        energy = self.units.energy(recipe.table.domain, base, **new)
        if self.learning == "exact":
            exact = self.units.likelihood(energy, self.centering, self.penalty)
            assert exact is not None
            return exact
        more: dict[str, Any] = {"centering": self.centering, "penalty": self.penalty}
        if self.learning in LOCAL_RULES:
            return CenteredObjective(LOCAL_RULES[self.learning](energy), **more)
        policy = self.chains.policy_from(energy.base)
        more["judges_steps"] = self.aim == "density"
        return ContrastiveDivergence(energy, self.chains.training_sampler, policy, **more)

    def weight_scale(self, recipe: Any) -> float:
        """Standard deviation of the initial weights, that of Glorot and Bengio (2010).

        From smaller weights, units stay alike for thousands of steps, and a line search may end
        where it starts. Smaller on a base of dependent columns, but with L-BFGS; larger under an l1
        penalty, as far as fields of hidden units stay below one.
        """
        l1 = 0.0 if self.penalty is None else self.penalty.l1
        n_visible = recipe.table.domain.n_columns
        usual = math.sqrt(2 / (n_visible + self.units.n_rows))
        own = self.units.weight_scale(n_visible)
        if own is not None:
            usual = own
        elif not isinstance(recipe.base, IndependentBernoulli) and not recipe.plan.searches:
            usual = SCALE_ON_TREES
        return max(usual, min(SCALE_BY_L1 * l1, 1 / math.sqrt(n_visible)))

    @torch.no_grad()
    def initialise(self, recipe: Any, energy: Any, rows: Rows) -> None:
        """Start near the base."""
        self.units.start(energy, column_means(rows).to(energy.weight))

    def continue_trial(self, recipe: Any, net: EnergyNet) -> bool:
        trial: Trial | None = recipe.trial
        if trial is None or trial.net is None or not trial.is_start:
            return False
        copy_weights(weights_of(trial.net.module_), weights_of(net.module_))
        net.run_.state = net.module_.snapshot(trial.net.state_)
        net.trajectory_ = trial.net.copy().trajectory_
        return True

    def complete_copies(self, recipe: Any, rows: Rows, generator: torch.Generator) -> Rows:
        """Held-out rows, or copies that draws of the base complete where entries are missing."""
        if rows.known is None:
            return rows
        rows = rows.copies(N_COMPLETIONS)
        redraw(recipe.base, rows, generator)
        return rows

    def log_ratios(self, recipe: Any) -> LogRatioOf:
        if self.learning == "exact":
            return exact_log_ratios
        if recipe.n_assessments == 1:
            return functools.partial(rbm_log_ratios, runs=OF_SHORT_FITS)
        return rbm_log_ratios

    def complete(
        self, recipe: Any, energy: Any, x: Tensor, known: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Gibbs steps, which continue when the rows come again; more steps if they may not.

        Complete rows stay as they are.
        """
        rows = (~known).any(1).nonzero()[:, 0]
        if not len(rows):
            return x
        state, clamp = ChainState(x[rows]), Clamp(known[rows], x[rows])
        for _ in range(STREAMING_STEPS if self.streaming else 1):
            state, _ = GIBBS.step(energy, state, generator, clamp=clamp)
        return x.index_copy(0, rows, state.x)

    def fit_base(self, recipe: Any, rows: Rows) -> Distribution:
        return fit_named_base(recipe.base_name, rows, recipe.table)

    def set_to_base(self, recipe: Any, net: EnergyNet, rows: Rows) -> RBMFamily:
        """The initial model on its base, with weights so small that the two are equal."""
        # Not of zero, from which all units would learn the same if training went on.
        share = 0.1
        generator = torch.Generator(rows.device).manual_seed(net.seed_)
        net.replace(self.objective(recipe, generator))
        energy: Any = net.module_.energy
        with torch.no_grad():
            energy.weight.mul_(share)
        self.initialise(recipe, energy, rows)
        return self

    def best_of_trial(self, recipe: Any, net: EnergyNet, rows: Rows) -> RBMRecipe:
        """The recipe of the trial that chose it where rows that guard both say that it is better.

        The net is then set to what the trial has trained.
        """
        if recipe.guard_seed is None:  # a line search, which nothing guards
            return replace(recipe, trial=None)
        _, guards = self.rows_apart(recipe, rows)
        weight = None if guards.weight is None else guards.weight.double()
        generator = torch.Generator(rows.device).manual_seed(net.seed_)
        final = trial_of(recipe, net, guards, generator).pessimistic()
        trial: Trial = recipe.trial.of_first(len(guards))
        loss = trial.gain_over(final, weight)
        recipe = replace(recipe, trial=None)
        if trial.net is None or not is_better(loss):
            return recipe
        said = self.why_not_converged(recipe, net, rows)  # one warning of one cause
        if is_worth_a_warning(loss) and said is None:
            n_epochs = f"The model is that of the trial that chose it, of {len(trial.net.history)}"
            warn(
                f"{n_epochs} epochs: {in_words_of_loss(loss, len(net.history))}.",
                TrainingWarning,
                ("Lower n_components or n_iter, or pass a penalty.", "n_components"),
                ("Lower n_iter.", "n_iter"),
            )
        net.replace(trial.net.module_)
        net.guard_, net.trajectory_ = trial.net.guard_, trial.net.trajectory_
        return replace(recipe, base=trial.base)

    def finalise(self, recipe: Any, net: EnergyNet, rows: Rows) -> RBMFamily:
        untrained = self.by_halves and not recipe.plan.n_iter and not len(net.history)
        return self.set_to_base(recipe, net, rows) if untrained else self

    def check_trained(self, recipe: Any, net: EnergyNet, rows: Rows) -> None:
        """Warn of variances that collapsed, and where no part of the rows gained by training."""
        mixed = not isinstance(recipe.table.domain, Binary)
        narrow = self.units.narrow(net.module_.energy, recipe.table) if mixed else ""
        if narrow:
            warn(narrow, TrainingWarning, self.units.remedy_of_narrow)
        if self.by_halves and recipe.plan.n_iter == 0:
            warn(
                f"The base is left as it is (n_iter_ is 0): models of one half of the {len(rows)} "
                "rows never made the other half more likely.",
                TrainingWarning,
                ("Use more rows or fewer n_components.", "n_components"),
                ("Use more rows.",),
            )

    def why_not_converged(self, recipe: Any, net: EnergyNet, rows: Rows) -> Notice | None:
        """What held-out rows say of a training that was too short; None if it was not.

        It was if they were still becoming more likely when it ended, or had not yet begun to.
        """
        found = [row for row in net.history[net.n_before_ :] if GAIN in row]
        if not recipe.n_guards or net.note_ or not found:
            return None
        n_iter, per_epoch = net.max_epochs, math.ceil(len(rows) / recipe.plan.batch_size)
        # With a rate that decays, the end of a short fit rises little, however far it has to go.
        part = "half" if self.short else "quarter"
        rise = still_rising([row[GAIN] for row in found], 2 if self.short else 1)
        if rise is not None:
            return not_converged(n_iter, rise, part)
        if self.short and not is_gain(found[-1]):
            # Units of small weights may stay alike for thousands of steps before they differ.
            return Notice(
                f"Training has not converged: after {n_iter * per_epoch:,} steps held-out rows are "
                "no more likely than by the base alone.",
                TrainingWarning,
                ((f"Set n_iter to {math.ceil(ENOUGH_STEPS / per_epoch)} or more.", "n_iter"),),
            )
        return None

    def scoring_energy(self, recipe: Any, energy: Any) -> Any:
        return energy.with_padding()

    def proper_score(self, recipe: Any, rows: Rows, energy: Any) -> Tensor:
        return rows.map(self.units.proper_score(energy, recipe.table), energy.domain.n_columns)

    def without_effect(self, recipe: Any, asked: dict[str, Any]) -> dict[str, str]:
        found = self.units.without_effect(asked)
        if self.aim != asked.get("aim", self.aim):
            found["aim"] = f"{self.units.name} are fitted for a density alone"
        kinds = [type(part) for part in parts_of(recipe.table.domain)]
        if recipe.base_name in TREES and Binary not in kinds and Categorical not in kinds:
            found["base"] = "no column of X is binary or categorical"
        if recipe.base_name == "gaussian" and Real not in kinds:
            found["base"] = "no column of X is real"
        if self.learning == "exact" and "sampler" in asked:
            found["sampler"] = (
                'the likelihood is exact here and training has no chains (learning="pcd" has)'
            )
        if self.learning in LOCAL_RULES and "chains" in asked:
            found["chains"] = f'learning="{self.learning}" has no chains (learning="pcd" has)'
        plain = self.learning == "exact" and not self.units.centers_likelihood
        if plain and isinstance(asked.get("centering"), Centering):
            found["centering"] = 'the gradient of this exact likelihood is not (learning="pcd" is)'
        if not recipe.plan.searches:
            return found
        if isinstance(asked.get("centering"), Centering):
            found["centering"] = (
                'L-BFGS takes the plain gradient (learning="pcd" takes centred ones)'
            )
        if getattr(asked.get("optimizer"), "schedule", "auto") != "auto":
            found["schedule of optimizer"] = (
                "L-BFGS searches its steps (with a learning_rate there is a schedule)"
            )
        return found

    def partition_input(
        self, recipe: Any, name: str, energy: Any, net: EnergyNet, reference: Tensor
    ) -> Any:
        data = states_near(reference, recipe.table.domain)
        return self.chains.partition_input(name, energy, net, data)


RBMRecipe: TypeAlias = Recipe[RBMFamily]


def in_words_of_loss(loss: Gain, n_epochs: int) -> str:
    """What held-out rows lost by training on after a trial."""
    if math.isfinite(loss.gain):
        return (
            f"after {n_epochs} held-out rows are {loss.gain:.2g} nats less likely, with a standard "
            f"error of {loss.error:.2g}"
        )
    return (
        f"log Z after {n_epochs} is not known: annealing back from held-out rows finds less than "
        "forward annealing"
    )


def exact_log_ratios(energy: Any, x: Tensor, generator: torch.Generator) -> LogRatios:
    """Log-likelihood ratios of rows x (n, d) to the base, where log Z is summed at every step."""
    with torch.no_grad(), sampling(energy):
        ratio = -energy(x).double() - energy.base.log_prob(x).double()
        return LogRatios(ratio - Exact().estimate(energy).value)


def is_gain(assessed: dict[str, float]) -> bool:
    """Whether held-out rows are more likely than by the base, by 0.1 nats and two errors."""
    return assessed[GAIN] > max(WORTH_A_WARNING, 2 * assessed[ERROR])


# ------------------------------------------------------------------------------
# What "auto" means
# ------------------------------------------------------------------------------


def design_recipe(
    estimator: Any, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
) -> RBMRecipe:
    """The recipe of a fit, whose rows choose the base, the units and the epochs where asked to.

    `before` is the net of an earlier fit that goes on, with its base.
    """
    if before is not None:
        return _going_on(estimator, rows, table, streaming=streaming)

    asked, aim = estimator._hidden.base(estimator.base), aim_of(estimator, rows)

    def base_of(name: str | None, some: Rows) -> Distribution:
        return fit_named_base(asked if name is None else name, some, table)

    of_file = rows.n_table > len(rows)
    plan = functools.partial(
        design, estimator, table, aim=aim, streaming=streaming, of_file=of_file
    )
    given = asked if isinstance(asked, str) else None
    first = choice_before_trials(estimator, given, aim)
    # Rows of a file that guard the training are none of the sample in any case.
    apart = given is not None and not of_file and aim == "density"
    guarded = functools.partial(is_guarded, estimator, table, rows, streaming=streaming)
    may_guard = apart and guarded(first._replace(learning="pcd"))
    seed = draw_seed(estimator.random_state_) if may_guard else None
    of_trials: dict[str | None, tuple[Distribution, Rows]] = {}
    fitted = functools.partial(fit_base_once, of_trials, base_of)

    def recipe_of(chosen: BaseChoice) -> RBMRecipe:
        own = seed if guarded(chosen) else None
        return plan(fit_apart(fitted, chosen.name, rows, own), chosen, rows, guard_seed=own)

    found = recipe_of(first)
    kinds, sizes = alternatives(estimator, found, rows)
    choice = len(kinds) * len(sizes) > 1
    if not found.family.by_halves and not choice:
        return found
    generator = torch.Generator(rows.device).manual_seed(draw_seed(estimator.random_state_))
    trials = ValidationFits(base_of, plan, generator, estimator.net_params, of_trials)
    if choice:
        # The rows that guard the training are among those that choose, and the first of them.
        splits = generator if seed is None else torch.Generator(rows.device).manual_seed(seed)
        chosen, trial = choose_base(kinds, sizes, trials.trial, rows, splits)
        first, found = chosen, recipe_of(chosen)
        if found.guard_seed is not None:
            return going_on_from(trial, found, own_epochs=asked_steps(estimator).n_iter != "auto")
        if found.plan.searches and trial.net is not None:
            return search_going_on_from(trial, found)
    return trials.by_halves(found, first, rows) if found.family.by_halves else found


def fit_base_once(
    kept: dict[str | None, tuple[Distribution, Rows]],
    fit: Callable[[str | None, Rows], Distribution],
    name: str | None,
    rows: Rows,
) -> Distribution:
    """The named base of rows, which trials may have fitted before.

    Rows that are held out are drawn alike, so that as many others are the same.
    """
    base, its_rows = kept.get(name, (None, ()))
    return base if base is not None and len(its_rows) == len(rows) else fit(name, rows)


def going_on_from(trial: Trial, recipe: RBMRecipe, *, own_epochs: bool) -> RBMRecipe:
    """The recipe with the trial that chose it, which is its start if both have the same base.

    The epochs of the trial are then among those of the fit, unless these were asked for.
    """
    if own_epochs or trial.base is not recipe.base:
        return replace(recipe, trial=trial)
    found = replace(recipe, trial=trial._replace(is_start=True))
    return found.with_epochs(max(found.plan.n_iter - trial.n_epochs, 1))


def search_going_on_from(trial: Trial, recipe: RBMRecipe) -> RBMRecipe:
    """The recipe of a line search of all rows from the weights of the trial, which had fewer."""
    found = replace(recipe, trial=trial._replace(is_start=True))
    return found.with_epochs(math.ceil(ITERATIONS_OF_ALL_ROWS * trial.n_epochs))


def choice_before_trials(estimator: Any, base: str | None, aim: str) -> BaseChoice:
    """What is fitted if rows do not choose: independent columns where the base is ``"auto"``."""
    first = BaseChoice(base, usual_units(estimator), GIVEN)
    if base != "auto":
        return first
    reason = "by default" if aim == "density" else "fitted for features"
    return first._replace(name=PLAIN, reason=reason)


def alternatives(
    estimator: Any, first: RBMRecipe, rows: Rows
) -> tuple[list[tuple[str | None, str]], Sequence[int]]:
    """Bases with their rules, and numbers of hidden units, among which rows choose.

    One of each if they do not. Sizes are not compared where 5,000 steps would take too long, as
    trials would, too; nothing is compared in less than a minute; nor are bases where the likelihood
    is exact because columns are few, with which hidden units learn what a tree models. PCD, which
    held-out rows guard, is another rule there: the exact maximum may fit few rows too well. Few
    units under many columns learn less than a tree has: 16 on independent columns of accidents end
    4 nats below a tree without any.
    """
    name, family = first.base_name, first.family
    compares = family.aim == "density" and not family.streaming and len(rows) >= FEWEST_ROWS
    plan, searches = first.plan, first.plan.searches and not family.short
    if not compares or not steps_are_ours(estimator) or plan.max_time < ENOUGH_TIME:
        return [(name, "auto")], [family.n_hidden]
    long = searches or plan.n_batches(rows.n_table, longest=True) >= COMPARED_STEPS
    sizes = N_HIDDEN if estimator.n_components == "auto" and long else (family.n_hidden,)
    of_file, given = rows.n_table > len(rows), estimator._hidden.base(estimator.base)
    stochastic = of_file or rows.known is not None or _asks_for_steps(estimator)
    how = BaseChoice(name, sizes[0], "")
    learning, _ = _rule(estimator, first.table, how, aim="density", stochastic=stochastic)
    is_exact = learning == "exact" and not stochastic
    free = "pcd" if estimator.learning == "auto" else "auto"
    if is_exact and len(sizes) > 1:
        return [(name, rule) for rule in dict.fromkeys(("auto", free))], sizes
    if given != "auto" or is_exact and COLUMNS_OF_A_UNIT * sizes[0] >= rows.n_columns:
        return [(name, "auto")], sizes
    sampler = family.chains.training_sampler
    tempered = sampler.kernel is not sampler
    names = candidates(first.table.domain, short=family.short, tempered=tempered)
    if not is_exact:
        return [(other, "auto") for other in names], sizes
    return [(name, "auto"), *((other, free) for other in names[1:])], sizes


def _going_on(
    estimator: Any,
    rows: Rows,
    table: Table,
    *,
    streaming: bool,
) -> RBMRecipe:
    """The recipe of a fit that goes on from an earlier one, with its base and its guards."""
    last = estimator._recipe
    check_base_stays(estimator.base, last.base, last.base_name)
    asked = estimator.n_components
    n_hidden = last.family.n_hidden if asked == "auto" else asked
    # PCD may have been chosen where the exact likelihood is cheap.
    chose_pcd = last.family.learning == "pcd" and not last.family.streaming
    rule = "pcd" if chose_pcd and estimator.chains is None else "auto"
    chosen = BaseChoice(last.base_name, n_hidden, last.base_reason, rule)
    new = design(
        estimator,
        table,
        last.base,
        chosen,
        rows,
        aim=aim_of(estimator, rows),
        streaming=streaming,
        of_file=rows.n_table > len(rows),
        guard_seed=last.guard_seed,
    )
    by_halves = new.family.by_halves and last.family.by_halves
    return new.with_epochs(last.plan.n_iter) if by_halves else new


def fit_named_base(asked: Any, rows: Rows, table: Table) -> Distribution:
    """Fit the named base to rows of a table, or check that a given one covers them."""
    return fit_completed(lambda completed: fit_table_base(asked, completed, table), rows, asked)


def fit_apart(
    fitted: Callable[[str | None, Rows], Distribution],
    name: str | None,
    rows: Rows,
    seed: int | None,
) -> Distribution:
    """The base of the rows that do not guard the training, or of all without a seed.

    A base of many parameters fits the rows that it has seen better than new ones. If those that
    guard were among them, the guard would not notice that hidden units make this worse.
    """
    if seed is None:
        return fitted(name, rows)
    base = fitted(name, rows_apart(rows, N_HELD_OUT, seed)[0])
    if rows.known is not None:  # the rows that were fitted are copies
        redraw(base, rows, torch.Generator(rows.device).manual_seed(seed))
    return base


def design(
    estimator: Any,
    table: Table,
    base: Distribution,
    chosen: BaseChoice,
    rows: Rows,
    *,
    aim: str,
    streaming: bool,
    of_file: bool = False,
    guard_seed: int | None = None,
) -> RBMRecipe:
    """Resolve every other ``"auto"`` of an estimator for the rows that it trains on.

    An explicit learning rate, batch size or momentum selects stochastic steps, even with exact
    learning; `partial_fit` and rows of a file always use them.
    """
    sampler = None if estimator.sampler is None else clone(estimator.sampler)
    units = estimator._hidden.units(chosen.n_hidden)
    stochastic = streaming or of_file or rows.known is not None or _asks_for_steps(estimator)
    learning, chains = _rule(estimator, table, chosen, aim=aim, stochastic=stochastic)
    if sampler is not None:
        _check_sampler(sampler, learning, chains, base)
    steps = _kind_of_steps(aim, learning, table)
    line_search = learning == "exact" and not stochastic
    guarded = aim == "density" and not streaming
    plan = _plan(
        estimator,
        learning,
        rows,
        steps,
        line_search=line_search,
        units=units,
        base=base,
        streaming=streaming,
    )
    check_units(units.n, units.n_rows, rows, plan.batch_size)
    if estimator.penalty is not None:
        estimator.penalty.check()
    asked = asked_steps(estimator).n_iter
    family = RBMFamily(
        units=units,
        learning=learning,
        chains=GibbsChains(sampler, _with_number(chains, plan.batch_size)),
        centering=_centering(estimator, learning, units, steps, plan.searches),
        penalty=None if estimator.penalty is None else clone(estimator.penalty),
        short=asked != "auto" and plan.n_batches(rows.n_table) < ENOUGH_STEPS,
        by_halves=guarded and takes_halves(estimator, rows, line_search=plan.searches),
        streaming=streaming,
        aim=aim,
    )
    return Recipe(
        table=table,
        plan=plan,
        base=base,
        family=family,
        base_name=chosen.name,
        base_reason=chosen.reason,
        n_guards=N_HELD_OUT if guarded and not line_search and len(rows) >= FEWEST_ROWS else 0,
        guard_seed=guard_seed,
        n_assessments=_times_of_assessment(estimator, rows, plan),
    )


def _kind_of_steps(aim: str, learning: str, table: Table) -> str:
    """What the steps are by default: those of a density, few for features, or few plain ones.

    Plain steps are too large for numbers, whose energies have no bounds.
    """
    if aim == "density" or learning == "exact":
        return "density"
    return "plain" if isinstance(table.domain, Binary) else "few"


def _with_number(chains: ChainPolicy | None, batch_size: int) -> ChainPolicy | None:
    """Chains with their number, by default that of the rows in a batch."""
    if isinstance(chains, Persistent) and chains.n_chains is None:
        n_chains = max(batch_size, REWEIGHTED_CHAINS) if chains.reweight else batch_size
        chains.set_params(n_chains=int(n_chains))
    return chains


def aim_of(estimator: Any, rows: Rows) -> str:
    """What a fit is for: asked for, or features by `fit_transform` of many rows, or a density.

    Of few rows, on which nothing is chosen for a density, features are those of a density.
    """
    if not isinstance(estimator._hidden, BinaryLayer):
        return "density"
    if estimator.aim == "auto":
        features = estimator._is_in_fit_transform and rows.n_table >= FEWEST_ROWS
        return "features" if features else "density"
    return str(estimator.aim)


def usual_units(estimator: Any) -> int:
    """Number of hidden units where rows do not choose."""
    n: Any = estimator.n_components
    return estimator._hidden.kind.usual if n == "auto" else int(n)


def check_units(n: int, n_weights: int, rows: Rows, batch_size: int) -> None:
    """`ValueError` for more hidden units, with rows of the weights, than the memory holds.

    Their weights, gradients and steps, and their states for the rows of a batch and as many chains.
    """
    n_rows, n_visible = min(batch_size, len(rows)), rows.n_columns
    n_numbers = n_weights * (3.0 * n_visible + 2 * n_rows)
    what = f"n_components={n} with {n_visible} columns and {n_rows} rows in a batch"
    check_memory(what, n_numbers, rows.dtype, rows.device)


def _asks_for_steps(estimator: Any) -> bool:
    """Whether a setting has a meaning for stochastic steps alone: rate, batch, momentum."""
    rate, size, _ = asked_steps(estimator)
    momentum = getattr(estimator.optimizer, "momentum", 0)
    given = any(name.startswith("optimizer") for name in estimator.net_params or {})
    return bool(rate != "auto" or size != "auto" or momentum or given)


def _plan(
    estimator: Any,
    learning: str,
    rows: Rows,
    steps: str,
    *,
    line_search: bool,
    units: HiddenUnits,
    base: Distribution,
    streaming: bool,
) -> TrainingPlan:
    """Optimizer, learning rate, batch size and epochs, by the kind of `steps`."""
    (rate, size, n_iter), n_rows = asked_steps(estimator), rows.n_table
    optimizer = SGD() if estimator.optimizer is None else estimator.optimizer
    given = any(name.startswith("optimizer") for name in estimator.net_params or {})
    if optimizer.momentum and given:
        raise ValueError(
            "momentum is an argument of the default optimizer; with an optimizer in net_params "
            "pass its arguments as optimizer__<name> there."
        )
    batch_size = size
    if size == "auto" and steps == "plain":
        batch_size = FEATURE_BATCH
    elif size == "auto":
        batch_size = (
            n_rows if line_search else _default_batch_size(n_rows, 0 if streaming else n_iter)
        )
    most_epochs = 0
    if n_iter == "auto":
        work = batch_size * rows.n_columns * units.n_rows
        work = work * (LOCAL_WORK if learning in LOCAL_RULES else 1) + fixed_work(base, rows)
        first, most_epochs = _numbers_of_epochs(learning, rows, steps, batch_size, work)
        n_iter = most_iterations(units, base) if line_search else first
    plan = plan_of(
        estimator,
        optimizer,
        n_iter=n_iter,
        batch_size=batch_size,
        learning_rate=units.learning_rate(base) if rate == "auto" else rate,
        streaming=streaming,
        most_epochs=0 if line_search else most_epochs,
    )
    if not line_search:
        return plan
    searched: dict[str, Any] = {"optimizer": "lbfgs", "optimizer_settings": {}}
    return replace(
        plan, learning_rate=1.0, schedule="constant", judged_by_training=True, **searched
    )


def fixed_work(base: Distribution, rows: Rows) -> float:
    """What a step takes besides products of rows with the weights, in multiplications."""
    parts = blocks_of(base)
    if any(isinstance(part, LatentClasses) for part in parts):
        work = CLASSES_WORK
    elif not isinstance(base.domain, Binary):
        work = COLUMNS_WORK
    elif isinstance(base, IndependentBernoulli):
        work = BITS_WORK
    else:
        work = TREE_WORK + TREE_COLUMN_WORK * rows.n_columns
    return work if rows.known is None else MISSING_WORK * work


def most_iterations(units: HiddenUnits, base: Distribution) -> int:
    """Iterations of a line search by default, at most: each sums all terms of the likelihood."""
    of_term = TERM_WORK if isinstance(base, IndependentBernoulli) else TREE_TERM_WORK
    return min(MOST_EPOCHS, math.ceil(MOST_WORK / (of_term * units.cost(base.domain))))


def _numbers_of_epochs(
    learning: str, rows: Rows, steps: str, batch_size: int, work: float
) -> tuple[int, int]:
    """Epochs of stochastic steps by default: at first, and at most while held-out rows gain.

    `work` is that of a step.
    """
    n_batches = math.ceil(rows.n_table / batch_size)
    if steps != "density":
        return max(FEWEST_EPOCHS, math.ceil(FEATURE_STEPS / n_batches)), 0
    affordable = MOST_WORK / work
    n_steps = ENOUGH_STEPS if learning == "exact" else min(ENOUGH_STEPS, affordable)
    wanted = max(FEWEST_EPOCHS, math.ceil(n_steps / n_batches))
    if rows.n_table >= FEWEST_ROWS:
        quick = math.ceil(QUICK_WORK / (work * n_batches))
        wanted = min(wanted, max(FIRST_PASSES, quick))
        return wanted, max(wanted, int(min(MOST_STEPS, affordable) / n_batches))
    # The exact likelihood has no chains that training could outrun.
    return wanted if learning == "exact" else min(wanted, MOST_EPOCHS), 0


def takes_halves(estimator: Any, rows: Rows, *, line_search: bool) -> bool:
    """Whether halves of the rows choose the number of epochs, which none is asked for."""
    validated = fraction_of_early_stopping(estimator.early_stopping) is not None
    if validated or asked_steps(estimator).n_iter != "auto" or len(rows) < FEWEST_IN_HALVES:
        return False
    if not line_search:
        return len(rows) < FEWEST_ROWS
    # Rows of different weights may be states with their counts: halves have none in common.
    alike = rows.weight is None or bool((rows.weight == rows.weight[0]).all())
    return len(rows) <= MOST_IN_HALVES and alike


def _times_of_assessment(estimator: Any, rows: Rows, plan: TrainingPlan) -> int:
    """How often a fit is assessed: as seldom as it is short where its steps are given."""
    if steps_are_ours(estimator):
        return N_ASSESSMENTS
    return n_assessments(rows.n_table, plan.n_iter)


def steps_are_ours(estimator: Any) -> bool:
    """Whether learning rate and batch size are ours, so that rows may choose base and units."""
    rate, size, _ = asked_steps(estimator)
    return bool(rate == size == "auto")


def is_guarded(
    estimator: Any, table: Table, rows: Rows, chosen: BaseChoice, *, streaming: bool
) -> bool:
    """Whether some rows are to guard a training that there is, by stochastic steps."""
    if len(rows) < FEWEST_ROWS or asked_steps(estimator).n_iter == 0 or streaming:
        return False
    if fraction_of_early_stopping(estimator.early_stopping) is not None:
        return False
    stochastic = rows.known is not None or _asks_for_steps(estimator)
    learning, _ = _rule(estimator, table, chosen, aim="density", stochastic=stochastic)
    return stochastic or learning != "exact"


def _default_batch_size(n_rows: int, n_iter: int | str) -> int:
    """100 rows, or down to 10, as in scikit-learn, if there are few epochs.

    The aim is as many steps as by default, and ten in a call of `partial_fit`.
    """
    if n_iter == "auto":
        return 100
    wanted = n_rows // 10 if n_iter == 0 else n_rows * int(n_iter) // ENOUGH_STEPS
    return min(100, max(10, wanted))


def _rule(
    estimator: Any, table: Table, chosen: BaseChoice, *, aim: str, stochastic: bool
) -> tuple[str, ChainPolicy | None]:
    """The learning rule, of a density by default exact if that is cheap, and its chains.

    There is no exact rule for other units than bits, and none without chains for real ones.
    """
    learning, chains = estimator.learning, estimator.chains
    if learning == "auto" and not isinstance(chains, FromData):
        learning = chosen.learning
    if not isinstance(chains, Persistent | FromData | None):
        raise ValueError(f"chains={chains!r}: an RBM takes Persistent (PCD) or FromData (CD).")
    cost = math.inf
    if isinstance(table.domain, Binary):
        cost = estimator._hidden.units(chosen.n_hidden).cost(table.domain)
    elif learning == "exact":
        raise ValueError('learning="exact" is for binary columns: use learning="pcd".')
    if learning in LOCAL_RULES:
        _check_discrete(learning, table, estimator._hidden.kind.takes_bits)
        return learning, None
    if learning == "auto":
        if chains is not None:
            learning = "pcd" if isinstance(chains, Persistent) else "cd"
        else:
            cheap = cost <= (QUICK_COST if stochastic else CHEAP_COST)
            learning = "exact" if cheap and aim == "density" else "pcd"
    if learning == "exact" and chains is not None:
        raise ValueError(
            f'learning="exact" has no chains, so that chains={chains!r} has no effect. Use '
            'learning="pcd" or "cd" (with warm_start too), or chains=None.'
        )
    if learning == "exact" and cost > EXACT_LEARNING_COST:
        raise ValueError(
            f'learning="exact" would sum {cost:.2g} terms at every step, more than '
            f'{EXACT_LEARNING_COST:.0e}. Use learning="pcd", or fewer units.'
        )
    if learning == "exact":
        return learning, None
    kind = FromData if learning == "cd" else Persistent
    if chains is not None and not isinstance(chains, kind):
        raise ValueError(
            f'learning="{learning}" takes {kind.__name__} chains, not chains={chains!r}. Use '
            f'learning="auto", which follows the chains, or chains={kind.__name__}().'
        )
    n_steps = estimator._hidden.kind.n_steps
    if chains is None:
        return learning, kind(n_steps=n_steps)
    chains = clone(chains)
    return learning, chains if chains.n_steps is not None else chains.set_params(n_steps=n_steps)


def _check_discrete(learning: str, table: Table, takes_bits: bool) -> None:
    """Raise `ValueError` for real columns, which have no neighbouring states."""
    if any(isinstance(kind, Real) for kind in parts_of(table.domain)):
        bits = ', or visible="bernoulli" where they are probabilities' if takes_bits else ""
        raise ValueError(
            f'learning="{learning}" compares the states of single columns, and X has real columns: '
            f'use learning="pcd"{bits}.'
        )


def _check_sampler(
    sampler: Sampler, learning: str, chains: ChainPolicy | None, base: Distribution
) -> None:
    """Raise `ValueError` for replica exchange with rules and bases that cannot use it."""
    if isinstance(sampler, TrajectoryTempering):
        raise ValueError(
            "TrajectoryTempering needs models of a training that has ended: leave sampler=None, "
            "and pass trajectory_ of the fitted model to run(energy, x, n_steps, generator)."
        )
    if sampler.kernel is sampler:
        return
    if not base.has_powers:
        raise ValueError(
            f"{sampler} tempers the model, and powers of the base {base!r} have no closed form. "
            "Use another base, or sampler=None."
        )
    if learning == "cd":
        raise ValueError(
            f'learning="cd" restarts its chains at every batch, before the replicas of {sampler} '
            'have spread out. Use learning="pcd" (with warm_start too), or sampler=None.'
        )
    if getattr(chains, "reweight", False):
        raise ValueError(
            f"reweight=True requires independent chains, but those of {sampler} exchange rows. Use "
            "sampler=None, or reweight=False."
        )


def _centering(
    estimator: Any, learning: str, units: HiddenUnits, steps: str, line_search: bool
) -> Centering | None:
    """Centring of the gradient, except with L-BFGS, which needs the gradient of the value.

    By default preconditioned with exponent 1/2, unless the learning rate is given. There is none by
    default of plain steps: units are then on in fewer rows, which suits classifiers.
    """
    if not units.centers:
        return None
    asked = estimator.centering
    if steps == "plain" and asked == "auto":
        return None
    if isinstance(asked, Centering):
        asked.check()
        if asked.precondition and (learning == "exact"):
            raise ValueError(
                f"precondition={asked.precondition} scales the centred gradient of the "
                f'contrastive rules; here learning is "{learning}". Use learning="pcd", or '
                "precondition=0."
            )
    if asked is None or line_search or (learning == "exact" and not units.centers_likelihood):
        return None
    if isinstance(asked, Centering):
        return clone(asked)
    net = estimator.net_params or {}
    free = net.get("lr", estimator.learning_rate) == "auto"
    return Centering(precondition=0.5 if free and learning != "exact" else 0.0)
