"""The family of classification RBMs: energy, chains, trials, and what "auto" means."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from sklearn.base import clone
from torch import Tensor

from skebm.base import Binary, Domain, SamplingError, sampling
from skebm.base.domains import parts_of
from skebm.distributions import Distribution
from skebm.energies import ClassRBM, MixedRBM
from skebm.estimators.base import at_least_two, fraction_of_early_stopping, states_near
from skebm.estimators.classifiers import n_copies_of_labelled, with_copies_of_labelled
from skebm.estimators.rbm.family import GibbsChains
from skebm.estimators.rbm.hidden import HIDDEN_BIAS
from skebm.estimators.rbm.safety import N_HELD_OUT, USUAL, rbm_log_ratios
from skebm.estimators.recipe import Family, JointModel, Recipe
from skebm.estimators.tables.bases import column_means, mean_log_prob
from skebm.objectives import Centering, ClassLikelihood, Penalty
from skebm.objectives.joint.likelihood import UNKNOWN
from skebm.samplers import ChainPolicy, FromData, Persistent
from skebm.training import SGD
from skebm.training.plan import TrainingPlan, asked_steps, plan_of
from skebm.training.rows import Rows
from skebm.training.selection import (
    Gain,
    LogRatios,
    assess,
    gain_by_more_rows,
    is_kept,
    most_likely_epoch,
    n_held_out,
    paired_gain,
    warn_of_base,
)
from skebm.training.trials import gains_by_epoch, trial_net

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Weight of -log p(x) beside the cross-entropy where labelled rows are too few to choose it, and
# the weights that they choose among. On MNIST (10,000 rows), digits and seven tables of numbers,
# class probabilities are best at 0.01 to 0.1, and p(x) is mostly the better the larger.
WEIGHT, WEIGHTS = 0.03, (0.03, 0.1, 0.3)
# Nats of cross-entropy that a more likely p(x) may cost, labelled rows from which on they choose,
# a third of them held out, and steps of each trial at most.
MOST_PAID, FEWEST_TO_CHOOSE, N_STEPS_OF_WEIGHT = 0.01, 60, 500
# Share of rows with a label below which labels choose nothing, and the weight then, or less if the
# learning rate had to be lowered for it. The rows without a label make up for them, the longer the
# better (five labels a class of digits and five tables; with 0.15 training was rolled back).
FEW_LABELS, WEIGHT_OF_FEW = 0.2, 0.1
# Learning rates of the cross-entropy of bits alone and with real columns, whose energies grow with
# their squares; and of the likelihood of rows, as chains do not follow larger steps.
RATE, RATE_OF_REALS, RATE_OF_ROWS = 5.0, 1.0, 0.15
# Exponent of the units' variances by which the gradient is divided: with 0.5 rare pixels get steps
# that are too large at the rate that the others need (MNIST, 10,000 rows: 4.7 % error, 3.7 %).
PRECONDITION = 0.25
# Steps of a fit by default, and epochs at least.
N_STEPS, FEWEST_EPOCHS = 3000, 20
# Rows up to which trials judge p(x), and folds choose the number of epochs, of at most so many
# steps: tables of 150 rows overfit after a hundred steps or gain until thousands, depending on the
# table.
MOST_IN_TRIALS, N_STEPS_IN_FOLDS, N_FOLDS = 3000, 1000, 3
# Annealing runs by which p(x) is judged, once in a fit. With 50, whose error of log Z was 2 nats
# for a table of numbers, a gain of one nat does not count.
JUDGING_RUNS = USUAL._replace(n_chains=500)
# Rows that judge p(x) in a trial, at least, but a third of few.
FEWEST_JUDGES = 60


@dataclass(frozen=True)
class ClassFamily(Family, JointModel):
    """RBMs of rows and their class.

    Attributes
    ----------
    n_hidden, n_classes : int
    generative_weight : float
        0 of discriminative training, 1 of generative training.
    class_weight : tuple of float or None
        Weights of the classes, divided by the fraction of labelled rows.
    chains : GibbsChains
    centering : Centering or None
    penalty : Penalty or None
    p_is_base : bool
        Whether p(x) of the trained model is the base: after training without a likelihood of rows,
        and where held-out rows gain too little over it.
    """

    n_hidden: int
    n_classes: int
    generative_weight: float
    class_weight: tuple[float, ...] | None
    chains: GibbsChains
    centering: Centering | None
    penalty: Penalty | None
    p_is_base: bool = False

    def objective(self, recipe: ClassRecipe, generator: torch.Generator) -> ClassLikelihood:
        dtype = recipe.plan.torch_dtype
        base = recipe.base.to(generator.device, dtype)
        scale = math.sqrt(2 / (recipe.table.domain.n_columns + self.n_hidden))
        how: dict[str, Any] = {"generator": generator, "scale": scale}
        rbm = MixedRBM(base, self.n_hidden, dtype=dtype, **how)
        energy = ClassRBM(rbm, self.n_classes, **how)
        weight = self.class_weight
        return ClassLikelihood(
            energy,
            self.chains.training_sampler,
            self.chains.policy_from(base),
            generative_weight=self.generative_weight,
            class_weight=None if weight is None else energy.class_bias.new_tensor(weight),
            centering=self.centering,
            penalty=self.penalty,
        )

    @torch.no_grad()
    def initialise(self, recipe: ClassRecipe, energy: ClassRBM, rows: Rows) -> None:
        """Start near the base and the frequencies of the classes, with hidden units mostly off.

        The weights are those of centred units, as in an RBM without classes.
        """
        assert rows.y is not None
        rbm, counts = energy.rbm, rows.counts.to(energy.class_bias)
        known = rows.y != UNKNOWN
        of_class = torch.zeros_like(energy.class_bias)
        of_class.index_add_(0, rows.y[known], counts[known])
        shares = (of_class + of_class.mean() / 100) / (1.01 * of_class.sum())
        mean = column_means(rows).to(rbm.weight)
        off = torch.full_like(rbm.hidden_bias, HIDDEN_BIAS)
        rbm.visible_bias.sub_(off.sigmoid() @ rbm.weight)
        energy.class_bias.copy_(shares.log() - off.sigmoid() @ energy.class_weight)
        rbm.hidden_bias.copy_(off - rbm.weight @ mean - energy.class_weight @ shares)

    def deduplicate(self, recipe: ClassRecipe, rows: Rows) -> Rows:
        """Labelled rows several times where they are few."""
        return with_copies_of_labelled(rows)

    # ---------------------------------------------------------------- the trained model

    def energy(self, recipe: ClassRecipe, trained: ClassRBM) -> ClassRBM:
        """The energy of p(x)."""
        return trained.base_alone() if self.p_is_base else trained

    def scoring_energy(self, recipe: ClassRecipe, energy: ClassRBM) -> ClassRBM:
        return energy.with_padding()

    def hold_out(
        self, recipe: ClassRecipe, rows: Rows, generator: torch.Generator
    ) -> tuple[Rows, Rows | None]:
        """Leave the rows out that judge p(x) after training, which they do not guard."""
        return (rows if recipe.guard_seed is None else self.rows_apart(recipe, rows)[0]), None

    def finalise(self, recipe: ClassRecipe, net: EnergyNet, rows: Rows) -> ClassFamily:
        """The same, or p(x) is the base where held-out rows gain too little, unless trials judged.

        Training that goes on from an earlier fit keeps what it has.
        """
        judges = net.validation
        if judges is None and recipe.guard_seed is not None:
            _, judges = self.rows_apart(recipe, rows)
        if judges is None or self.p_is_base or net.streaming or net.n_before_:
            return self
        generator = torch.Generator(rows.device).manual_seed(net.seed_)
        energy, x = net.module_.energy.eval(), judges.block(0, len(judges))
        log_ratios = functools.partial(rbm_log_ratios, runs=JUDGING_RUNS)
        found = assess(log_ratios, energy, x, judges.weight, generator)
        return self.judged(Gain(found.gain, found.error))

    def judged(self, found: Gain, of_all_rows: float = 0.0) -> ClassFamily:
        """The same, or p(x) is the base where held-out rows gain too little.

        Who asks for classes is told only of rows that training made clearly less likely.
        """
        if is_kept(found, of_all_rows):
            return self
        if found.gain + found.error < 0:
            warn_of_base(found, "p(x)")
        return replace(self, p_is_base=True)

    def proper_score(self, recipe: ClassRecipe, rows: Rows, energy: ClassRBM) -> Tensor:
        return rows.map(lambda x: -energy(x), energy.domain.n_columns)

    def without_effect(self, recipe: ClassRecipe, asked: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        if not self.generative_weight:
            why = "without a likelihood of rows no chain moves"
            found |= {name: why for name in ("chains", "sampler") if name in asked}
        if "generative_weight" in asked and asked.get("objective", "hybrid") != "hybrid":
            found["generative_weight"] = f'objective="{asked["objective"]}" sets it'
        return found

    def partition_input(
        self, recipe: ClassRecipe, name: str, energy: Any, net: EnergyNet, reference: Tensor
    ) -> Any:
        data = states_near(reference, recipe.table.domain)
        if name == "x" and self.p_is_base:
            return {"data": at_least_two(data)}
        return self.chains.partition_input(name, energy, net, data)


ClassRecipe: TypeAlias = Recipe[ClassFamily]


# ------------------------------------------------------------------------------
# What "auto" means
# ------------------------------------------------------------------------------


def weight_of_rows(objective: str, asked: Any) -> float:
    """Weight of -log p(x) beside the cross-entropy: 0, 1, or that of a hybrid."""
    if objective != "hybrid":
        return 0.0 if objective == "discriminative" else 1.0
    return WEIGHT if asked == "auto" else float(asked)


def has_few_labels(rows: Rows) -> bool:
    """Whether most rows have no label."""
    assert rows.y is not None
    known = rows.counts[rows.y != UNKNOWN].sum()
    return bool(known < FEW_LABELS * rows.counts.sum())


def usual_weight(estimator: Any, rows: Rows, domain: Domain) -> float:
    """Weight of -log p(x) that no trials choose: the larger, the fewer rows have a label."""
    objective, asked = estimator.objective, estimator.generative_weight
    if objective == "hybrid" and asked == "auto" and has_few_labels(rows):
        return min(WEIGHT_OF_FEW, RATE_OF_ROWS / usual_rate(domain))
    return weight_of_rows(objective, asked)


def usual_rate(domain: Domain) -> float:
    """Learning rate of the cross-entropy."""
    all_bits = all(isinstance(part, Binary) for part in parts_of(domain))
    return RATE if all_bits else RATE_OF_REALS


def chooses_weight(estimator: Any, rows: Rows) -> bool:
    """Whether held-out rows choose the weight of -log p(x): where enough have a label."""
    assert rows.y is not None
    free = estimator.objective == "hybrid" and estimator.generative_weight == "auto"
    n_known = int((rows.y != UNKNOWN).sum())
    return free and n_known >= FEWEST_TO_CHOOSE and not has_few_labels(rows)


def takes_folds(estimator: Any, rows: Rows) -> bool:
    """Whether folds of the labelled rows choose the number of epochs: of few rows with labels."""
    assert rows.y is not None
    n_known = int((rows.y != UNKNOWN).sum())
    free = asked_steps(estimator).n_iter == "auto" and not estimator.early_stopping
    enough = n_known >= 2 * N_FOLDS and not has_few_labels(rows)
    return free and enough and len(rows) <= MOST_IN_TRIALS


def is_judged_in_fit(estimator: Any, weight: float, rows: Rows, *, streaming: bool) -> bool:
    """Whether a fit leaves rows out that judge p(x), as there are too many for trials."""
    validated = fraction_of_early_stopping(estimator.early_stopping) is not None
    return bool(weight) and len(rows) > MOST_IN_TRIALS and not (streaming or validated)


def weight_by_trials(
    recipe_of: Callable[[float], ClassRecipe], rows: Rows, seed: int, net_params: Any
) -> float:
    """Weight of -log p(x) with which held-out rows are most likely, of those that classify well.

    These are the usual weight, and others with which the cross-entropy of the held-out rows is at
    most 0.01 nats above that with the usual one, to within a standard error, after short trainings.

    Parameters
    ----------
    recipe_of : callable
        ``recipe_of(weight)``: settings of a fit with a weight.
    rows : Rows
    seed : int
        Which labelled rows are held out, and the seed of each training.
    net_params : dict or None
        Arguments of the net that users gave.
    """
    assert rows.y is not None
    generator = torch.Generator(rows.device).manual_seed(seed)
    known = (rows.y != UNKNOWN).nonzero().ravel()
    order = known[torch.randperm(len(known), generator=generator, device=known.device)]
    train, held_out = rows.without(order[: min(N_HELD_OUT, len(known) // 3)])
    assert held_out.y is not None
    log_ratios = functools.partial(class_log_ratios, held_out.y)
    of_classes: dict[float, Tensor] = {}
    gains: dict[float, float] = {}
    for weight in WEIGHTS:
        trial = recipe_of(weight)
        n_batches = math.ceil(len(train) / trial.plan.batch_size)
        net = trial_net(
            trial,
            train,
            held_out,
            log_ratios,
            torch.Generator(rows.device).manual_seed(seed),
            n_iter=min(trial.plan.n_iter, math.ceil(N_STEPS_OF_WEIGHT / n_batches)),
            n_times=5,
            net_params=net_params,
        )
        best = None if net is None else net.guard_.best
        if net is not None and best is not None and best.gains is not None:
            of_classes[weight] = best.gains
            gains[weight] = gain_of_rows(net, held_out, generator)
    usual = of_classes.get(WEIGHT)
    if usual is not None:
        gains = {
            weight: gain
            for weight, gain in gains.items()
            if weight == WEIGHT or is_cheap(usual, of_classes[weight], held_out.weight)
        }
    return max(gains, key=lambda weight: gains[weight], default=WEIGHT)


def is_cheap(usual: Tensor, other: Tensor, weight: Tensor | None) -> bool:
    """Whether labels (n,) lose little by another model, on average, to within a standard error."""
    price = paired_gain(usual, other, weight)
    return price.gain + price.error <= MOST_PAID


def gain_of_rows(net: EnergyNet, rows: Rows, generator: torch.Generator) -> float:
    """Nats that rows gain over the base by p(x) of a trained net; minus infinity if not finite."""
    energy = net.module_.energy.eval()
    try:
        x = rows.block(0, len(rows))
        return assess(rbm_log_ratios, energy, x, rows.weight, generator).gain
    except SamplingError:
        return -math.inf


def class_log_ratios(
    y: Tensor, energy: ClassRBM, x: Tensor, generator: torch.Generator
) -> LogRatios:
    """Log p(y given x) of labelled rows, exact."""
    with torch.no_grad(), sampling(energy):
        return LogRatios(energy.log_class_proba(x).double().gather(1, y[:, None])[:, 0])


def epochs_by_folds(
    recipe: ClassRecipe, rows: Rows, generator: torch.Generator, net_params: Any
) -> int:
    """Number of epochs after which the cross-entropy of left-out labelled rows is least.

    It is chosen by the mean over folds. If training diverges in one fold, the others decide.

    Parameters
    ----------
    recipe : Recipe
        Settings of a fit to all rows.
    rows : Rows
    generator : torch.Generator
        Draws the folds, and trains.
    net_params : dict or None
        Arguments of the net that users gave.
    """
    assert rows.y is not None
    known = (rows.y != UNKNOWN).nonzero().ravel()
    order = known[torch.randperm(len(known), generator=generator, device=known.device)]
    n_iter = recipe.plan.n_iter
    # Numbers of epochs that are compared.
    n_in_fold = 20
    more: dict[str, Any] = {"n_iter": n_iter, "n_times": n_in_fold, "net_params": net_params}
    curves = []
    for left_out in order.tensor_split(N_FOLDS):
        log_ratios = functools.partial(class_log_ratios, rows.y[left_out])
        net = trial_net(recipe, *rows.without(left_out), log_ratios, generator, **more)
        curves.append(gains_by_epoch(net))
    best = most_likely_epoch([curve for curve in curves if curve])
    return n_iter if best is None else best[0]


def p_by_trial(
    recipe: ClassRecipe,
    base_of: Callable[[Rows], Distribution],
    rows: Rows,
    seed: int,
    net_params: Any,
) -> ClassRecipe:
    """The recipe whose p(x) is the base where held-out rows of a trial gain too little.

    The trial is on the other rows, and so is its base; the class probabilities of the fit lose no
    rows.
    """
    # A third of few rows: by twenty, p(x) was the base or the model by chance.
    n = n_held_out(len(rows), N_HELD_OUT)
    if not n:
        return recipe
    generator = torch.Generator(rows.device).manual_seed(seed)
    train, held_out = rows.split(max(n, min(FEWEST_JUDGES, len(rows) // 3)), generator)
    trial = replace(recipe, base=base_of(train))
    net = trial_net(
        trial,
        train,
        held_out,
        functools.partial(rbm_log_ratios, runs=JUDGING_RUNS),
        torch.Generator(rows.device).manual_seed(seed),
        n_iter=recipe.plan.n_iter,
        n_times=1,
        net_params=net_params,
    )
    found = None if net is None else net.guard_.final_gain
    if found is None:
        found = Gain(-math.inf, 0.0)
    more = gain_by_more_rows(functools.partial(mean_log_prob, trial.base), train, held_out)
    return replace(recipe, family=recipe.family.judged(found, more))


def class_plan(
    estimator: Any, weight: float, rows: Rows, domain: Domain, *, streaming: bool
) -> TrainingPlan:
    """Steps of a fit: plain gradient descent on a centred and preconditioned gradient."""
    rate, size, n_iter = asked_steps(estimator)
    size = min(100, len(rows)) if size == "auto" else int(size)
    if n_iter == "auto":
        assert rows.y is not None
        n_copies = n_copies_of_labelled(rows) - 1
        n_rows = len(rows) + n_copies * int((rows.y != UNKNOWN).sum())
        n_batches = math.ceil(n_rows / size)
        n_steps = N_STEPS_IN_FOLDS if takes_folds(estimator, rows) else N_STEPS
        n_iter = max(FEWEST_EPOCHS, math.ceil(n_steps / n_batches))
    if rate == "auto":
        own = usual_rate(domain)
        rate = own if not weight else min(own, RATE_OF_ROWS / weight)
    steps: dict[str, Any] = {"n_iter": n_iter, "batch_size": size, "learning_rate": rate}
    steps["most_epochs"] = 0  # folds choose
    return plan_of(estimator, estimator.optimizer or SGD(), streaming=streaming, **steps)


def class_chains(asked: ChainPolicy | None, batch_size: int) -> ChainPolicy:
    """Persistent chains, as many as rows in a batch, unless others are given."""
    if not isinstance(asked, Persistent | FromData | None):
        raise ValueError(f"chains={asked!r}: an RBM takes Persistent (PCD) or FromData (CD).")
    chains = Persistent(n_steps=1) if asked is None else clone(asked)
    if chains.n_steps is None:
        chains.set_params(n_steps=1)
    if isinstance(chains, Persistent) and chains.n_chains is None:
        chains.set_params(n_chains=batch_size)
    return chains
