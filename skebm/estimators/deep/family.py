"""The family of deep Boltzmann machines: layers, mean field, and what "auto" means."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from sklearn.base import clone
from torch import Tensor

from skebm._validation import warn
from skebm.base import Binary, LikelihoodWarning, Objective, sampling
from skebm.base.processes import Notice
from skebm.base.units import Bernoulli
from skebm.distributions import Distribution, IndependentBernoulli
from skebm.energies.deep import BernoulliDBM, HiddenGiven, Layers, MixedDBM
from skebm.estimators.base import annealing_starts
from skebm.estimators.deep.first_layer import (
    RatiosToFirstLayer,
    enumerated_first_layer,
    start_from,
)
from skebm.estimators.deep.layerwise import Greedy, pretrain
from skebm.estimators.deep.meanfield import (
    MeanField,
    VariationalEnergy,
    bound_of,
    means_after_steps,
    solve,
)
from skebm.estimators.deep.rows import FIRST_MEAN, HiddenEntries
from skebm.estimators.rbm.choice import PLAIN, BaseChoice
from skebm.estimators.rbm.family import (
    N_COMPLETIONS,
    SCALE_ON_TREES,
    GibbsChains,
    RBMFamily,
    design,
)
from skebm.estimators.rbm.hidden import BinaryLayer
from skebm.estimators.rbm.safety import over_log_z
from skebm.estimators.recipe import Family, JointModel, Recipe
from skebm.estimators.tables.bases import TREES, redraw
from skebm.estimators.tables.blocks import NumberBlock
from skebm.estimators.tables.table import Table
from skebm.objectives import AssessedDivergence, pseudo_log_likelihood
from skebm.samplers import FromData
from skebm.training.rows import Rows
from skebm.training.selection import THE_BASE, LogRatioOf, LogRatios, assess

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Mean-field steps for a batch of a stream, whose rows may not come again.
STREAMING_STEPS = 10
# Start of joint training at an RBM of the first layer.
FIRST_LAYER = "first-layer"
# Learning rate from there on, relative to that of the RBM, and decay of the moving average of the
# weights for each epoch. At the same rate the first epochs undo what the RBM has learned: held-out
# rows of digits lose 3 nats. The noise of the steps hides what upper layers add: on plants held-out
# rows gain 0.08 nats by the last weights and a tenth of the rate, 0.23 by averages.
RATE_AFTER_FIRST_LAYER, AVERAGING = 0.3, 0.9


@dataclass(frozen=True)
class DeepFamily(Family, JointModel):
    """Deep Boltzmann machines, whose even and odd layers are those of an RBM.

    Attributes
    ----------
    rbm : RBMFamily
        Settings of that RBM.
    layers : Layers
    mean_field : MeanField
    pretraining : "first-layer", "layerwise" or None
    seed : int
        Of the greedy training.
    """

    rbm: RBMFamily
    layers: Layers
    mean_field: MeanField
    pretraining: str | None
    seed: int

    @property
    def chains(self) -> GibbsChains:
        """Chains of the RBM."""
        return self.rbm.chains

    @property
    def has_first_layer(self) -> bool:
        """Whether training started at an RBM of the first layer, below which no model ends."""
        return self.pretraining == FIRST_LAYER

    @property
    def reference(self) -> str:
        return "the RBM of its first layer" if self.has_first_layer else THE_BASE

    def objective(self, recipe: DeepRecipe, generator: torch.Generator) -> Objective:
        dtype, sizes = recipe.plan.torch_dtype, self.layers.sizes
        base = recipe.base.to(generator.device, dtype)
        new: dict[str, Any] = {"generator": generator, "dtype": dtype}
        new["remembers"] = self.has_first_layer
        energy: BernoulliDBM | MixedDBM
        if isinstance(base, IndependentBernoulli):
            energy = BernoulliDBM(sizes, base=base, **new)
        else:
            energy = MixedDBM(base, sizes[1:], **new)
            if recipe.base_name in TREES:
                rescale(energy.weights[0], SCALE_ON_TREES)
        policy, sampler = self.chains.policy_from(energy.base), self.chains.training_sampler
        more: dict[str, Any] = {"centering": self.rbm.centering, "penalty": self.rbm.penalty}
        assessed = functools.partial(assess, self.log_ratios(recipe))
        return AssessedDivergence(energy, sampler, policy, assessed, **more)

    @torch.no_grad()
    def initialise(self, recipe: DeepRecipe, energy: Any, rows: Rows) -> None:
        """Near the base, with hidden units mostly off, or by greedy training of the layers."""
        self.rbm.initialise(recipe, energy, rows)
        if self.pretraining != "layerwise" or recipe.plan.n_iter == 0:
            return
        # Share of the epochs that the greedy training of each layer takes.
        pretraining_share = 0.2
        settings = Greedy(
            max(1, math.ceil(pretraining_share * recipe.plan.n_iter)),
            recipe.plan.batch_size,
            recipe.plan.learning_rate,
        )
        generator = torch.Generator(rows.device).manual_seed(self.seed)
        base = recipe.base.to(rows.device, rows.dtype)
        rows = hidden_entries(recipe.table).without(rows)
        pretrain(energy, self.layers, base, rows, settings, generator)

    def continue_trial(self, recipe: DeepRecipe, net: EnergyNet) -> bool:
        if recipe.trial is None:
            return False
        start_from(recipe.trial, net)
        return True

    def best_of_trial(self, recipe: DeepRecipe, net: EnergyNet, rows: Rows) -> DeepRecipe:
        if recipe.trial.interrupted:
            net.note_interruption(
                "Training was interrupted in that of the first layer, whose RBM of that moment is "
                "the model, which is usable."
            )
        return replace(recipe, trial=None)

    def mean_of_base(self, recipe: DeepRecipe, rows: Rows) -> float:
        """As of any base; 0 of a first layer, which is not fitted to more rows."""
        return 0.0 if self.has_first_layer else super().mean_of_base(recipe, rows)

    def set_to_base(self, recipe: DeepRecipe, net: EnergyNet, rows: Rows) -> DeepFamily:
        """The first layer, or the base without the weights of the greedy training.

        These may be worse than it.
        """
        energy: Any = net.module_.energy
        if self.has_first_layer:
            energy.return_to_first_layer()
            return self
        with torch.no_grad():
            for parameter in energy.parameters():
                parameter.zero_()
        self.rbm.initialise(recipe, energy, rows)
        return self

    def without_effect(self, recipe: DeepRecipe, asked: dict[str, Any]) -> dict[str, str]:
        found = self.rbm.without_effect(recipe, asked)
        start = asked.get("pretraining")
        if start not in (None, "auto") and self.pretraining is None:
            found["pretraining"] = "partial_fit has no rows to train layer by layer"
            if not self.rbm.streaming:
                found["pretraining"] = "a single layer is trained as an RBM"
        if not self.layers.n_beside and "mean_field" in asked:
            found["mean_field"] = "a single layer is independent given x"
        return found

    # ---------------------------------------------------------------- hidden entries of rows

    def complete(
        self, recipe: DeepRecipe, energy: Any, x: Tensor, known: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Mean-field steps for the hidden entries; a Gibbs step for missing columns of X."""
        steps = STREAMING_STEPS if self.rbm.streaming else self.mean_field.n_train_steps
        d, completes = self.layers.n_visible, hidden_entries(recipe.table).completes
        if completes and self.layers.n_beside:
            drawn = torch.cat([x[:, :d], Bernoulli(x[:, d:]).sample(generator)], 1)
            drawn = self.rbm.complete(recipe, energy, drawn, known, generator)
            x = torch.cat([drawn[:, :d], x[:, d:]], 1)
        elif completes:
            x = self.rbm.complete(recipe, energy, x, known, generator)
        if not self.layers.n_beside:
            return x
        # Means outlive weights that diverged and were rolled back: they must not bring nan along.
        # Where the weights themselves are nan, so are the new means, and the guard notices.
        x = torch.where(x.isnan(), FIRST_MEAN, x)
        return torch.cat([x[:, :d], means_after_steps(energy, self.layers, x, steps)], 1)

    def complete_copies(self, recipe: DeepRecipe, rows: Rows, generator: torch.Generator) -> Rows:
        """Held-out rows, or copies that draws of the base complete where columns are missing."""
        hidden = hidden_entries(recipe.table)
        if not hidden.completes:
            return rows
        found = hidden.without(rows).copies(N_COMPLETIONS)
        redraw(recipe.base, found, generator)
        hidden.extend(found)
        return found

    def log_ratios(self, recipe: DeepRecipe) -> LogRatioOf:
        # Importance weights of a held-out row when training is assessed, at most.
        n_assessing_draws = 20
        draws = min(self.mean_field.n_draws, n_assessing_draws)
        settings = clone(self.mean_field).set_params(n_draws=draws)
        if self.has_first_layer:
            x = None if recipe.trial is None else recipe.trial.draws
            return RatiosToFirstLayer(self.layers, settings, x)
        return functools.partial(deep_log_ratios, self.layers, recipe.base, settings)

    def why_not_converged(self, recipe: DeepRecipe, net: EnergyNet, rows: Rows) -> Notice | None:
        return self.rbm.why_not_converged(recipe, net, rows)

    # ---------------------------------------------------------------- of a trained model

    def scoring_energy(self, recipe: DeepRecipe, energy: Any) -> Any:
        domain = recipe.table.domain
        return VariationalEnergy(energy.with_padding(), self.layers, domain, self.mean_field).eval()

    def proper_score(self, recipe: DeepRecipe, rows: Rows, energy: Any) -> Tensor:
        if recipe.table.block(NumberBlock) is not None:
            raise ValueError(
                "score without log Z is a pseudo-likelihood of bits and categories, and X has real "
                'columns: use partition="auto".'
            )
        rows = hidden_entries(recipe.table).without(rows)
        return rows.map(lambda x: pseudo_log_likelihood(energy, x))

    @torch.no_grad()
    def partition_input(
        self, recipe: DeepRecipe, name: str, energy: Any, net: EnergyNet, reference: Tensor
    ) -> Any:
        first = name == "base" and self.has_first_layer
        if first and (exact := enumerated_first_layer(energy)) is not None:
            return exact
        if name != "x":
            return self.chains.partition_input(name, energy, net, reference)
        x = reference[:, : self.layers.n_visible]
        if isinstance(recipe.table.domain, Binary):
            x = (x > 0.5).to(x)
        given = HiddenGiven(energy, self.layers, x)
        found = solve(given, self.mean_field.tol, self.mean_field.max_steps)
        generator = torch.Generator(x.device).manual_seed(net.seed_)
        rows = torch.cat([x, Bernoulli(found.logit.sigmoid()).sample(generator)], 1)
        return annealing_starts(net, rows)

    def check_trained(self, recipe: DeepRecipe, net: EnergyNet, rows: Rows) -> None:
        self.rbm.check_trained(recipe, net, rows)
        if not self.layers.n_beside:
            return
        x = hidden_entries(recipe.table).without(rows).block(0, 100)
        with torch.no_grad(), sampling(net.module_.energy):
            given = HiddenGiven(net.module_.energy, self.layers, x)
            found = solve(given, self.mean_field.tol, self.mean_field.max_steps)
        warn_unless_converged(found.residual, self.mean_field)


DeepRecipe: TypeAlias = Recipe[DeepFamily]


def hidden_entries(table: Table) -> HiddenEntries:
    """The hidden entries of training rows."""
    assert isinstance(table.layout, HiddenEntries)
    return table.layout


@torch.no_grad()
def rescale(weight: Tensor, scale: float) -> None:
    """Give the entries of a random matrix another root mean square."""
    weight.mul_(scale / weight.square().mean().sqrt())


def warn_unless_converged(residual: Tensor, settings: MeanField) -> None:
    """`ConvergenceWarning` with the residual where mean field of some rows did not converge."""
    late = int((residual > settings.tol).sum())
    if late:
        warn(
            f"Mean field of {late} of {len(residual)} rows has not converged in "
            f"{settings.max_steps} steps: means still change by up to {float(residual.max()):.2g}, "
            "and bounds on likelihoods are less tight.",
            LikelihoodWarning,
            ("Raise max_steps or tol of mean_field.", "mean_field"),
        )


def deep_log_ratios(
    layers: Layers,
    base: Distribution,
    settings: MeanField,
    energy: Any,
    x: Tensor,
    generator: torch.Generator,
) -> LogRatios:
    """Lower bounds on log-likelihood ratios to the base, and draws; see :func:`rbm_log_ratios`.

    Direction: as there, less by the gap of the bound.
    """
    with torch.no_grad(), sampling(energy):
        x = x[:, : layers.n_visible]
        bound = bound_of(HiddenGiven(energy, layers, x), settings)
        ratio = bound - base.log_prob(x)
    return over_log_z(energy, ratio, generator)


def plain_base(asked: Any) -> Any:
    """The base of a machine without a trained first layer, whose rows do not choose."""
    return PLAIN if isinstance(asked, str) and asked == "auto" else asked


def design_deep(
    estimator: Any,
    table: Table,
    layers: Layers,
    base: Distribution,
    chosen: BaseChoice,
    rows: Rows,
    seed: int,
    *,
    streaming: bool,
    pretraining: str | None,
    guard_seed: int | None = None,
) -> DeepRecipe:
    """Resolve every ``"auto"`` of an estimator for the (extended) rows that it trains on.

    The rules are those of the RBM that the model forms, whose columns are the entries of a row and
    whose hidden units are h1, h3, ... `pretraining` is how training starts, or has started.
    """
    params = estimator.get_params(deep=False)
    rule = "cd" if isinstance(estimator.chains, FromData) else "pcd"
    asked = SimpleNamespace(
        **params, learning=rule, n_components=layers.n_between, _hidden=BinaryLayer()
    )
    found = design(
        asked, table, base, chosen, rows, aim="density", streaming=streaming, guard_seed=guard_seed
    )
    family = DeepFamily(
        rbm=found.family,
        layers=layers,
        mean_field=MeanField() if params["mean_field"] is None else clone(params["mean_field"]),
        pretraining=pretraining,
        seed=seed,
    )
    if family.has_first_layer:
        plan = found.plan
        averaging = AVERAGING if estimator.optimizer is None else plan.averaging
        rate = RATE_AFTER_FIRST_LAYER * plan.learning_rate
        found = replace(found, plan=replace(plan, learning_rate=rate, averaging=averaging))
    return found.of_family(family)
