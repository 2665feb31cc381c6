"""Epochs and weight of joint energy-based models, chosen by labelled rows that trials leave out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from skebm.base import sampling
from skebm.estimators.neural.family import FEWEST_PASSES, PASSES_PER_ROW
from skebm.objectives.joint.adversarial import AdversarialContrast
from skebm.objectives.joint.likelihood import UNKNOWN
from skebm.training.rows import Rows
from skebm.training.selection import LogRatios, is_kept, paired_gain
from skebm.training.trials import trial_net

if TYPE_CHECKING:
    from skebm.estimators.neural.family import NeuralRecipe

# Labelled rows from which on they choose, and their least share: with fewer, a trial would take as
# long as a fit to all rows, and its few rows decide by chance.
FEWEST_LABELLED, LEAST_LABELLED = 30, 1 / 3
# Folds of the labelled rows. Of more rows than these one fold of a tenth decides.
N_FOLDS, MOST_IN_FOLDS, N_PARTS = 3, 2000, 10
# Numbers of epochs that are compared, each half of the next one; fewer of a costly network.
N_COMPARED, N_COMPARED_OF_COSTLY = 5, 3
# Multiplications of a fit by default: a minute of a core.
MOST_WORK = 1.3e12


@dataclass(frozen=True)
class ClassTrials:
    """Trainings on parts of the rows, and the log-probabilities of the labels that they left out.

    Attributes
    ----------
    rows : Rows
    folds : sequence of Tensor
        Numbers of the labelled rows that each training leaves out.
    seed : int
        All trainings start from the same generator, so that they differ by their settings alone.
    net_params : dict or None
        Arguments of the net that users gave.
    """

    rows: Rows
    folds: list[Tensor]
    seed: int
    net_params: dict[str, Any] | None

    def log_p(self, recipe: NeuralRecipe) -> Tensor:
        """log p(y given x) of rows that were left out, (n,); minus infinity after divergence."""
        return torch.cat([self._of_fold(recipe, fold) for fold in self.folds])

    def _of_fold(self, recipe: NeuralRecipe, left_out: Tensor) -> Tensor:
        train, judges = self.rows.without(left_out)
        generator = torch.Generator(self.rows.device).manual_seed(self.seed)
        net = trial_net(
            recipe,
            train,
            judges,
            lambda energy, x, generator: LogRatios(log_p_of(energy, x, judges.y)),
            generator,
            n_iter=recipe.plan.n_iter,
            n_times=1,
            net_params=self.net_params,
        )
        if net is None:
            return torch.full((len(judges),), -math.inf, dtype=torch.float64)
        x = judges.block(0, len(judges))
        return log_p_of(net.module_.energy.eval(), x, judges.y).cpu()

    def weight(self, recipe: NeuralRecipe) -> Tensor:
        """Weights of the rows that were left out, (n,), those of their classes included."""
        index = torch.cat(self.folds)
        assert self.rows.y is not None
        weight, rule = self.rows.counts[index].cpu(), recipe.family.rule
        of_class = getattr(rule, "class_weight", None)
        if of_class is None:
            return weight
        return weight * torch.tensor(of_class, dtype=weight.dtype)[self.rows.y[index].cpu()]


def log_p_of(energy: Any, x: Tensor, y: Tensor | None) -> Tensor:
    """log p(y given x) of rows x (n, ...) under an energy with a classifier, float64 (n,)."""
    assert y is not None
    with torch.no_grad(), sampling(energy):
        logits = energy.network.classifier(energy.as_input(x)).double()
    return logits.log_softmax(1).gather(1, y[:, None])[:, 0]


def labelled_folds(rows: Rows, generator: torch.Generator, *, together: bool) -> list[Tensor]:
    """Numbers of the labelled rows of each fold, of every class about as many.

    Rows that are alone of their class are in no fold. With `together`, equal rows are in one. There
    are no folds of few labelled rows.
    """
    assert rows.y is not None
    known = (rows.y != UNKNOWN).nonzero().ravel()
    if len(known) < max(FEWEST_LABELLED, LEAST_LABELLED * len(rows)):
        return []
    y, n = rows.y[known], len(known)
    group = torch.arange(n, device=known.device)
    if together:
        group = torch.unique(rows.take(known).flatten(1), dim=0, return_inverse=True)[1]
    n_groups = int(group.max()) + 1
    label = torch.zeros(n_groups, dtype=y.dtype, device=y.device).scatter_(0, group, y)
    order = torch.randperm(n_groups, generator=generator, device=known.device)
    order = order[label[order].argsort(stable=True)]
    n_parts = N_FOLDS if n <= MOST_IN_FOLDS else N_PARTS
    part = torch.empty_like(order)
    part[order] = torch.arange(n_groups, device=order.device) % n_parts
    several = label.bincount(minlength=len(y.unique()))[label] > 1
    part = torch.where(several, part, -1)[group]
    folds = [known[part == number] for number in range(n_parts)]
    folds = [fold for fold in folds if len(fold)]
    return folds if n <= MOST_IN_FOLDS else folds[:1]


def epochs_of_few_labels(recipe: NeuralRecipe, rows: Rows) -> int:
    """Number of epochs, of five steps for each labelled row, after which few are learnt by heart.

    With ten labels among 168 rows (vertebral, ten draws), accuracy was 0.643 with five steps for
    each, 0.617 with ten and 0.610 with twenty; on digits (four draws) 0.874 with five and 0.889
    with ten.
    """
    assert rows.y is not None
    n_rows = len(recipe.family.deduplicate(recipe, rows))
    n_steps = PASSES_PER_ROW * int((rows.y != UNKNOWN).sum())
    return max(FEWEST_PASSES, round(n_steps / math.ceil(n_rows / recipe.plan.batch_size)))


def numbers_of_epochs(most: int, n_compared: int) -> list[int]:
    """Numbers of epochs that are compared, in increasing order, the last one the largest."""
    return sorted({max(1, math.ceil(most / 2**k)) for k in range(n_compared)})


def best_epochs(
    trials: ClassTrials, recipe: NeuralRecipe, n_compared: int
) -> tuple[NeuralRecipe, Tensor]:
    """The recipe with the number of epochs by which left-out labels are likeliest; their log p.

    Larger numbers are tried until labels become clearly less likely.
    """
    weight = trials.weight(recipe)
    best: tuple[NeuralRecipe, Tensor] | None = None
    for n_iter in numbers_of_epochs(recipe.plan.n_iter, n_compared):
        tried = recipe.with_epochs(n_iter)
        log_p = trials.log_p(tried)
        if best is None:
            best = tried, log_p
            continue
        found = paired_gain(log_p, best[1], weight)
        if found.gain > 0:
            best = tried, log_p
        elif found.gain < -found.error:
            break
    assert best is not None
    return best


def choose_by_trials(
    recipe: NeuralRecipe, trials: ClassTrials, *, costly: bool, any_weight: bool
) -> NeuralRecipe:
    """The recipe with the number of epochs and the generative weight that left-out labels choose.

    Networks without chains decide, as they cost a tenth: one that is trained on noisy rows, as the
    model is, and a plain one on rows as they are. If labels are likelier under the plain one, the
    weight is 0. The density itself is not tried: on eight tables its weight changed the loss of
    left-out labels by -0.040 to 0.008 nats, -0.004 on average.

    Parameters
    ----------
    recipe : Recipe
        Of a fit with chains, for the largest number of epochs.
    trials : ClassTrials
    costly : bool
        Whether only the noisy network is tried, and the first fold alone decides.
    any_weight : bool
        Whether the weight may become 0.
    """
    rule: Any = recipe.family.rule
    n_compared = N_COMPARED_OF_COSTLY if costly else N_COMPARED
    plain = recipe.with_settings(rule=replace(rule, generative_weight=0.0))
    if not rule.generative_weight:
        return best_epochs(trials, plain, n_compared)[0]
    noisy = plain.with_settings(rule=rule.without_chains(recipe))
    by_noise, of_noisy = best_epochs(trials, noisy, n_compared)
    found = recipe.with_epochs(by_noise.plan.n_iter)
    if costly or not any_weight:
        return found
    best, of_plain = best_epochs(trials, plain, n_compared)
    return best if is_kept(paired_gain(of_plain, of_noisy, trials.weight(recipe))) else found


def work_of_a_pass(recipe: NeuralRecipe, rows: Rows, generator: torch.Generator) -> float:
    """Multiplications of an epoch in networks, chains included; backward passes count as two."""
    objective: Any = recipe.family.objective(recipe, generator)
    n_passes = 1.0 if objective.attack is None else 1.0 + objective.attack.n_steps
    if objective.generative_weight:
        n_passes += _passes_of_negatives(objective.generative, recipe, rows)
    return 3 * n_passes * work_of_a_row(objective.energy, rows) * rows.n_table


def _passes_of_negatives(generative: Any, recipe: NeuralRecipe, rows: Rows) -> float:
    """Passes over as many rows as a batch has that negatives take, the last one for the loss."""
    if isinstance(generative, AdversarialContrast):  # on average half of the steps
        return 1 + generative.n_steps / 2
    n_chains = getattr(generative.chains, "n_chains", recipe.plan.batch_size)
    share = n_chains / min(recipe.plan.batch_size, rows.n_table)
    return float(share * (1 + generative.negatives.n_steps))


def work_of_a_row(energy: Any, rows: Rows) -> float:
    """Multiplications by which a network computes logits: of linear and convolutional layers.

    At least one for each parameter, as what a network does without layers is not seen.
    """
    counts: list[float] = []
    n = 2  # layers may need more rows than one

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and isinstance(output, Tensor) and weight.ndim:
            counts.append(weight.numel() * output.numel() / (n * weight.shape[0]))

    network = energy.network.classifier
    hooks = [layer.register_forward_hook(count) for layer in network.modules()]
    x = rows.block(0, 1).expand(n, *rows.block(0, 1).shape[1:])
    try:
        with torch.no_grad(), sampling(energy):
            network(energy.as_input(x))
    finally:
        for hook in hooks:
            hook.remove()
    return float(max(sum(counts), sum(p.numel() for p in network.parameters())))
