"""Settings of a deep Boltzmann machine that are resolved before training."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm._validation import warn
from skebm.base import Objective, sampling
from skebm.base.units import Bernoulli
from skebm.distributions import Distribution, IndependentBernoulli
from skebm.energies.deep import BernoulliDBM, HiddenGiven, Layers, MixedDBM
from skebm.estimators.base import at_least_two, chain_rows
from skebm.estimators.deep.layerwise import Greedy, pretrain
from skebm.estimators.deep.meanfield import (
    MeanField,
    VariationalEnergy,
    bound_of,
    enumerates_hidden,
    means_after_steps,
    solve,
)
from skebm.estimators.deep.rows import FIRST_MEAN, HiddenEntries
from skebm.estimators.rbm.blueprint import (
    N_COMPLETIONS,
    SCALE_ON_TREES,
    RBMBlueprint,
    design,
)
from skebm.estimators.rbm.choice import BaseChoice
from skebm.estimators.rbm.hidden import BinaryLayer
from skebm.estimators.rbm.safety import over_log_z
from skebm.estimators.tables.bases import TREES, redraw
from skebm.estimators.tables.blocks import NumberBlock
from skebm.estimators.tables.table import Table
from skebm.objectives import AssessedDivergence, pseudo_log_likelihood
from skebm.samplers import FromData, Persistent
from skebm.training.rows import Rows
from skebm.training.selection import LogRatioOf, LogRatios, assess

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Mean-field steps for a batch of a stream, whose rows may not come again.
STREAMING_STEPS = 10


@dataclass(frozen=True)
class DeepBlueprint(RBMBlueprint):
    """Resolved settings of a deep Boltzmann machine: those of its bipartite energy, and more.

    Attributes
    ----------
    base : Distribution
        Of x.
    layers : Layers
    mean_field : MeanField
    pretraining : "layerwise" or None
    seed : int
        Of the greedy training.
    """

    layers: Layers
    mean_field: MeanField
    pretraining: str | None
    seed: int

    @property
    def hidden(self) -> HiddenEntries:
        """The hidden entries of training rows."""
        assert isinstance(self.table.layout, HiddenEntries)
        return self.table.layout

    @property
    def bits(self) -> Tensor:
        beside = torch.ones(self.layers.n_beside, dtype=torch.bool)
        return torch.cat([super().bits, beside])

    def objective(self, generator: torch.Generator) -> Objective:
        dtype, sizes = self.plan.torch_dtype, self.layers.sizes
        base = self.base.to(generator.device, dtype)
        new: dict[str, Any] = {"generator": generator, "dtype": dtype}
        energy: BernoulliDBM | MixedDBM
        if isinstance(base, IndependentBernoulli):
            energy = BernoulliDBM(sizes, base=base, **new)
        else:
            energy = MixedDBM(base, sizes[1:], **new)
            if self.base_name in TREES:
                rescale(energy.weights[0], SCALE_ON_TREES)
        chains = clone(self.chains)
        if isinstance(chains, Persistent):
            chains.set_params(initial=energy.base)
        more: dict[str, Any] = {"centering": self.centering, "penalty": self.penalty}
        assessed = functools.partial(assess, self.log_ratios)
        return AssessedDivergence(energy, self.chain_sampler, chains, assessed, **more)

    @torch.no_grad()
    def initialise(self, energy: Any, rows: Rows) -> None:
        """Near the base, with hidden units mostly off, or by greedy training of the layers."""
        super().initialise(energy, rows)
        if self.pretraining is None or self.plan.n_iter == 0:
            return
        # Share of the epochs that the greedy training of each layer takes.
        pretraining_share = 0.2
        settings = Greedy(
            max(1, math.ceil(pretraining_share * self.plan.n_iter)),
            self.plan.batch_size,
            self.plan.learning_rate,
        )
        generator = torch.Generator(rows.device).manual_seed(self.seed)
        base = self.base.to(rows.device, rows.dtype)
        pretrain(energy, self.layers, base, self.hidden.without(rows), settings, generator)

    def base_alone(self, net: EnergyNet, rows: Rows) -> DeepBlueprint:
        """The base, without the weights of the greedy training, which may be worse than it."""
        energy: Any = net.module_.energy
        with torch.no_grad():
            for parameter in energy.parameters():
                parameter.zero_()
        super().initialise(energy, rows)
        return self

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        found = super().without_effect(asked)
        if asked.get("pretraining") == "layerwise" and self.pretraining is None:
            found["pretraining"] = "partial_fit has no rows to train layer by layer"
        if not self.layers.n_beside and "mean_field" in asked:
            found["mean_field"] = "a single layer is independent given x"
        return found

    # ---------------------------------------------------------------- hidden entries of rows

    def complete(self, energy: Any, x: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """Mean-field steps for the hidden entries; a Gibbs step for missing columns of X."""
        steps = STREAMING_STEPS if self.streaming else self.mean_field.n_train_steps
        d = self.layers.n_visible
        if self.hidden.completes and self.layers.n_beside:
            drawn = torch.cat([x[:, :d], Bernoulli(x[:, d:]).sample(generator)], 1)
            drawn = super().complete(energy, drawn, known, generator)
            x = torch.cat([drawn[:, :d], x[:, d:]], 1)
        elif self.hidden.completes:
            x = super().complete(energy, x, known, generator)
        if not self.layers.n_beside:
            return x
        # Means outlive weights that diverged and were rolled back: they must not bring nan along.
        # Where the weights themselves are nan, so are the new means, and the guard notices.
        x = torch.where(x.isnan(), FIRST_MEAN, x)
        return torch.cat([x[:, :d], means_after_steps(energy, self.layers, x, steps)], 1)

    def complete_copies(self, rows: Rows, generator: torch.Generator) -> Rows:
        """Held-out rows, or copies that draws of the base complete where columns are missing."""
        if not self.hidden.completes:
            return rows
        found = self.hidden.without(rows).copies(N_COMPLETIONS)
        redraw(self.base, found, generator)
        self.hidden.extend(found)
        return found

    @property
    def log_ratios(self) -> LogRatioOf:
        # Importance weights of a held-out row when training is assessed, at most.
        n_assessing_draws = 20
        draws = min(self.mean_field.n_draws, n_assessing_draws)
        settings = clone(self.mean_field).set_params(n_draws=draws)
        return functools.partial(deep_log_ratios, self.layers, self.base, settings)

    # ---------------------------------------------------------------- of a trained model

    @property
    def is_exact(self) -> bool:
        """Whether the hidden layers are summed out."""
        return enumerates_hidden(self.layers)

    def scoring_energy(self, energy: Any) -> Any:
        domain = self.table.domain
        return VariationalEnergy(energy.with_padding(), self.layers, domain, self.mean_field).eval()

    def proper_score(self, rows: Rows, energy: Any) -> Tensor:
        if self.table.block(NumberBlock) is not None:
            raise ValueError(
                "score without log Z is a pseudo-likelihood of bits and categories, and X has real "
                'columns: use partition="auto".'
            )
        return self.hidden.without(rows).map(lambda x: pseudo_log_likelihood(energy, x))

    @torch.no_grad()
    def partition_input(self, name: str, energy: Any, net: EnergyNet, reference: Tensor) -> Any:
        if name != "x":
            return super().partition_input(name, energy, net, reference)
        x = reference[:, : self.layers.n_visible]
        if not self.is_mixed:
            x = (x > 0.5).to(x)
        given = HiddenGiven(energy, self.layers, x)
        found = solve(given, self.mean_field.tol, self.mean_field.max_steps)
        generator = torch.Generator(x.device).manual_seed(net.seed_)
        rows = torch.cat([x, Bernoulli(found.logit.sigmoid()).sample(generator)], 1)
        starts = {"data": at_least_two(rows)}
        chain = chain_rows(net)
        if chain is not None:
            starts["training chains"] = at_least_two(chain)
        return starts

    def check_trained(self, net: EnergyNet, rows: Rows) -> None:
        super().check_trained(net, rows)
        if not self.layers.n_beside:
            return
        x = self.hidden.without(rows).block(0, 100)
        with torch.no_grad(), sampling(net.module_.energy):
            given = HiddenGiven(net.module_.energy, self.layers, x)
            found = solve(given, self.mean_field.tol, self.mean_field.max_steps)
        warn_unless_converged(found.residual, self.mean_field)


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
            f"{settings.max_steps} steps: means still change by up to {float(residual.max()):.2g}. "
            "Bounds hold, but are less tight. Raise max_steps or tol of mean_field.",
            ConvergenceWarning,
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


def design_deep(
    estimator: Any,
    table: Table,
    layers: Layers,
    base: Distribution,
    rows: Rows,
    seed: int,
    *,
    streaming: bool,
) -> DeepBlueprint:
    """Resolve every ``"auto"`` of an estimator for the (extended) rows that it trains on.

    The rules are those of the RBM that the model forms, whose columns are the entries of a row and
    whose hidden units are h1, h3, ...
    """
    params = estimator.get_params(deep=False)
    rule = "cd" if isinstance(estimator.chains, FromData) else "pcd"
    asked = SimpleNamespace(
        **params, learning=rule, n_components=layers.n_between, _hidden=BinaryLayer()
    )
    name = estimator.base if isinstance(estimator.base, str) else None
    chosen = BaseChoice(name, layers.n_between, "as given")
    found = design(asked, table, base, chosen, rows, aim="density", streaming=streaming)
    greedy = params["pretraining"] == "layerwise" and not streaming
    own = {
        "layers": layers,
        "mean_field": MeanField() if params["mean_field"] is None else clone(params["mean_field"]),
        "pretraining": "layerwise" if greedy else None,
        "seed": seed,
    }
    return DeepBlueprint(**vars(found) | own)
