"""The family of neural densities: a network beside a base, rules of training, what "auto" means."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from skebm._validation import HasMethods, Interval, StrOptions, draw_seed
from skebm.base import (
    Binary,
    Domain,
    Mixed,
    Objective,
    PairwiseEnergy,
    Sampler,
    SettingWarning,
    sampling,
)
from skebm.base import Real as RealDomain
from skebm.base.domains import parts_of
from skebm.base.processes import warn
from skebm.distributions import Affine, Distribution, NormalizingFlow
from skebm.energies import (
    MLP,
    Confined,
    NetworkOf,
    NeuralEnergy,
    PairwiseCorrection,
    Spec,
    build_network,
    whitening_of,
)
from skebm.energies.factory import arguments_of
from skebm.energies.neural import network_to_state
from skebm.energies.path import unary_fields
from skebm.estimators.base import chain_rows
from skebm.estimators.recipe import Family, JointModel, Recipe
from skebm.estimators.tables.bases import (
    COLUMN_BASES,
    REAL_BASES,
    Bases,
    MixtureBase,
    check_base_kind,
    fit_discrete_base,
    fit_mixed_base,
    fit_real_bases,
    noise_level,
)
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.completions import fit_column_base_stack
from skebm.estimators.tables.table import Table, choose_domain, column_table, one_kind_table
from skebm.objectives import boundary_weight, pseudo_log_likelihood
from skebm.objectives.log_partition import LogPartitionMonitor
from skebm.samplers import (
    HMC,
    MALA,
    Blocks,
    ChainPolicy,
    FromData,
    FromNoise,
    GibbsWithGradients,
    Persistent,
    ReplayBuffer,
)
from skebm.training import AdamW, EarlyStopping
from skebm.training.plan import TrainingPlan, asked_steps, plan_of
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Optimizer steps of a fit, and the smallest and largest number of epochs.
N_STEPS = 1000
FEWEST_PASSES, MOST_PASSES = 4, 1000
# Epochs for each row: a table of a few dozen rows, of which none can be held out to stop training,
# is soon learnt by heart (benchmarks/results/few_rows.md).
PASSES_PER_ROW = 5
# Rows of a batch, fewer where they are wide: at most that many numbers, but a few rows in any case.
BATCH, MOST_NUMBERS, FEWEST_IN_BATCH = 128, 100_000, 32
# Validation rows that monitor training, and the smallest table of which they are held out.
N_HELD_OUT, FEWEST_ROWS = 100, 50
# Discrete rows are states that repeat where this fraction of all states occurs, or where a distinct
# row occurs so often on average and their effective number is below this fraction of their number.
COVERED, REPEATED, UNEVEN = 0.1, 5, 0.5
# Fraction of the rows within reach of a network that corrects a flow: draws of the flow are too
# rare near the others to constrain the network there.
REACH = 0.99
# Nats by which a trained network may make a row less likely than its base, and training rows by
# which that is known.
MOST_LOST, N_OF_CEILING = 30.0, 1000
# Rows for which the values of an untrained network are checked.
N_TRIED = 256
# Second derivatives that are computed at once.
AT_ONCE = 32

NEURAL_CONSTRAINTS: dict[str, list[Any]] = {
    "network": [HasMethods("build"), nn.Module, callable, None],
    "bounds": ["array-like", tuple, None],
    "standardize": ["boolean"],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "optimizer": [AdamW, None],
}
SIGMA = [
    Interval(Real, 0, None, closed="neither"),
    StrOptions({"auto", "bandwidth"}),
    "array-like",
    None,
]
DOMAIN = [StrOptions({"auto", "real", "binary"}), Domain]
BASE = [StrOptions({"auto", *REAL_BASES, *COLUMN_BASES}), MixtureBase, Distribution, None]


POLICIES: dict[str, type[ChainPolicy]] = {
    "persistent": Persistent,
    "replay": ReplayBuffer,
    "data": FromData,
    "noise": FromNoise,
}


def default_chain_sampler(domain: Domain) -> Sampler:
    """Adaptive MALA, Gibbs with gradients for discrete rows, or both in turn."""
    if isinstance(domain, RealDomain):
        return MALA(adapt=True, scale="auto")
    if isinstance(domain, Mixed):
        return Blocks(MALA(adapt=True, scale="auto"))
    return GibbsWithGradients()


def _mala(value: Any, names: set[str]) -> Sampler:
    """The default sampler of real rows; a step size that is set is not adapted."""
    return MALA(adapt="step_size" not in names or "adapt" in names, scale="auto")


def hmc_of(value: Any, names: set[str]) -> Sampler:
    """The same for objectives whose samples are drawn by HMC."""
    return HMC(n_leapfrog=5, adapt="step_size" not in names or "adapt" in names, scale="auto")


def _network_with_arguments(network: Any) -> Any:
    """The object whose arguments are set by ``network__<name>``; None where there is none."""
    if network is None or network is MLP:
        return MLP()
    if isinstance(network, nn.Module):
        name = type(network).__name__
        raise ValueError(
            f"network is an object of {name}, whose arguments are those that it was made with: "
            f"pass the class, network={name}, to set them by name."
        )
    return NetworkOf(network) if arguments_of(network) is not None else None


# Factories for ``<parameter>__<name>`` if the parameter is None, a string or a class.
CONFIGS: dict[str, Callable[[Any, set[str]], Any]] = {
    "network": lambda value, names: _network_with_arguments(value),
    "sampler": _mala,
    "base": lambda value, names: MixtureBase() if value in ("auto", "mixture") else None,
    "optimizer": lambda value, names: AdamW(),
    "early_stopping": lambda value, names: EarlyStopping(),
}


class Rule(abc.ABC):
    """Training method of a family: objective, network and sampler.

    Attributes
    ----------
    sampler : Sampler
        Sampler of the chains.
    holds_out : bool
        Whether training is monitored on held-out rows.
    knows_noise : bool
        Whether the model is the density of rows with the noise of training.
    levels : tuple of float or None
        Smallest and largest noise level of an energy with several.
    has_ceiling : bool
        Whether the trained network is bounded above, so that no row is as good as impossible.
    """

    sampler: Sampler
    has_ceiling: bool = False
    holds_out: bool = True
    knows_noise: bool = True
    levels: tuple[float, float] | None = None

    @abc.abstractmethod
    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> Objective:
        """Objective on rows to which noise of level `sigma`, (d,), is added."""

    def network(self, config: Any, spec: Spec) -> nn.Module:
        """The trained part of the energy."""
        return build_network(config, spec)

    def training_rows(self, rows: Rows) -> Rows:
        """Equivalent rows that are better to train on; by default the same."""
        return rows

    def model_network(self, network: nn.Module) -> nn.Module:
        """The network of the model, made from the one that was trained; by default the same."""
        return network

    def after_training(self, recipe: NeuralRecipe, net: EnergyNet, rows: Rows) -> Rule:
        """The rule with what is known after training only; by default the same."""
        return self

    def proposal(self, energy: NeuralEnergy, net: EnergyNet) -> Distribution | None:
        """A tractable distribution near the model, by default the base."""
        return energy.base

    def final_sampler(self, net: EnergyNet) -> Sampler:
        """Sampler of the trained model: a copy of that of training, with its final step size."""
        return clone(self.sampler)

    def default_sampler(self, domain: Domain) -> Sampler:
        """What samples are drawn with unless a sampler is named."""
        return default_chain_sampler(domain)

    def has_default_sampler(self, domain: Domain) -> bool:
        """Whether the sampler is the default one, by name or because none was named."""
        return repr(self.sampler) == repr(self.default_sampler(domain))

    def annealing_sampler(self, net: EnergyNet, domain: Domain) -> Sampler:
        """Sampler for annealed importance sampling."""
        return self.final_sampler(net)

    def chain_rows(self, net: EnergyNet) -> Tensor | None:
        """Rows of training chains that are draws of the model, if there are any."""
        return None

    def rows_near_model(self, net: EnergyNet) -> Tensor | None:
        """Rows near the model other than training rows, if there are any."""
        return self.chain_rows(net)

    def annealing_starts(self, net: EnergyNet, reference: Tensor) -> Any:
        """Rows near the model for estimates of log Z, by origin."""
        return reference

    def check_trained(self, net: EnergyNet, rows: Rows) -> None:
        """Warn if the training history indicates a bad fit; by default nothing."""
        return

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        """Those of the parameters `asked` for that training by this rule does not use."""
        return {}


class ChainRule(Rule):
    """A method that trains with chains, which are near the model afterwards."""

    def final_sampler(self, net: EnergyNet) -> Sampler:
        state, module = net.state_, net.module_
        return clone(self.sampler if state is None else module.kernel(state.halvings))

    def annealing_sampler(self, net: EnergyNet, domain: Domain) -> Sampler:
        """The sampler, or the default one if it is biased or keeps more than the current rows."""
        sampler = self.final_sampler(net)
        exact = sampler.exact and sampler.kernel is sampler
        return sampler if exact else default_chain_sampler(domain)

    def chain_rows(self, net: EnergyNet) -> Tensor | None:
        """Rows of the training chains, if they are persistent."""
        return persistent_rows(net)

    def rows_near_model(self, net: EnergyNet) -> Tensor | None:
        """Training chains, or the rows of a replay buffer."""
        chains, state = persistent_rows(net), net.state_
        return state.pool if chains is None and state is not None else chains

    def annealing_starts(self, net: EnergyNet, reference: Tensor) -> dict[str, Tensor]:
        starts = {"data": reference, "training chains": persistent_rows(net)}
        return {name: x.to(reference) for name, x in starts.items() if x is not None}


def persistent_rows(net: EnergyNet) -> Tensor | None:
    """Rows of the chains of a net if they are persistent: others start at rows of the data."""
    rows = chain_rows(net)
    return None if rows is None or not net.module_.persistent else rows


@dataclass(frozen=True)
class NeuralFamily(Family, JointModel):
    """Networks that correct a base.

    Attributes
    ----------
    rule : Rule
    network_config : object
        A copy of the parameter `network`.
    noise : ndarray of shape (d,) or None
        Noise level of training, in units of the energy.
    ceiling : float or None
        Largest value of the network in the trained model.
    """

    rule: Rule
    network_config: Any
    noise: np.ndarray | None
    ceiling: float | None = None
    checks_base: ClassVar[bool] = False

    # ---------------------------------------------------------------- building

    def objective(self, recipe: NeuralRecipe, generator: torch.Generator) -> Objective:
        energy = self.new_energy(recipe, generator)
        sigma = self.sigma
        like = next(energy.parameters())
        found = self.rule.objective(energy, None if sigma is None else sigma.to(like))
        if takes_noise_off(recipe):
            clean: Any = recipe.base.clean
            base = clean.to(like.device, like.dtype)
            found.clean_monitor = LogPartitionMonitor(base, energy.domain)
        return found

    def new_energy(self, recipe: NeuralRecipe, generator: torch.Generator) -> NeuralEnergy:
        """Untrained energy, whose base is that of noisy rows."""
        dtype, table, levels = recipe.plan.torch_dtype, recipe.table, self.rule.levels
        base = recipe.base.noisy
        base = None if base is None else base.to(generator.device, dtype)
        plain = levels is None and table.image_shape is None
        whitening = whitening_of(base) if plain else None
        several = levels is not None
        confining = base is None and _is_unbounded(table.domain)
        spec = Spec(table.network_shape, generator, dtype, several, whitening, confining=confining)
        network = self.rule.network(self.network_config, spec)
        kind: dict[str, Any] = {"image_shape": table.image_shape, "noise_levels": levels}
        return energy_of(network, table.domain, base, **kind)

    def deduplicate(self, recipe: NeuralRecipe, rows: Rows) -> Rows:
        return self.rule.training_rows(super().deduplicate(recipe, rows))

    def initialise(self, recipe: NeuralRecipe, energy: Any, rows: Rows) -> None:
        check_initial_values(energy, rows)

    def has_guard(self, recipe: NeuralRecipe) -> bool:
        return self.rule.holds_out

    def hold_out(
        self, recipe: NeuralRecipe, rows: Rows, generator: torch.Generator
    ) -> tuple[Rows, Rows | None]:
        """Hold out a tenth of the rows, at most a hundred, from the network but not the base.

        Equal rows stay together, so that no row is held out of which the network sees a copy. No
        rows are held out if rows recur as the states of a few columns do: a state would seem
        impossible if all of its rows were left out.
        """
        if not self.rule.holds_out or len(rows) < FEWEST_ROWS:
            return rows, None
        # Equal rows have equal projections; the generator draws nothing for small tables.
        direction = torch.randn(
            rows.n_columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        ).to(rows.device)

        def key(x: Tensor) -> Tensor:
            return x.flatten(1).double() @ direction

        some = rows.subsample(0)
        keys = some.map(key)
        distinct, member = keys.unique(return_inverse=True)
        weight = torch.zeros_like(distinct).index_add_(0, member, some.counts.to(keys))
        if len(distinct) < FEWEST_ROWS or are_states(weight, len(some), recipe.table.domain):
            return rows, None
        n = min(N_HELD_OUT, len(distinct) // 10)
        place = torch.randperm(len(distinct), generator=generator, device=generator.device)
        if rows.is_mapped:  # the same rows of the sample, and all their copies
            out = distinct[place.to(member) < n].to(rows.device)
            equal = rows.map(lambda x: torch.isin(key(x), out))
            train, held = rows.without(equal.nonzero().ravel())
            return train, held.subsample(0)
        held_out = (place.to(member) < n)[member]
        number = torch.arange(len(rows), device=rows.device)
        held_out = held_out.to(rows.device)
        return rows.subset(number[~held_out]), rows.subset(number[held_out])

    # ---------------------------------------------------------------- trained models

    def energy(self, recipe: NeuralRecipe, trained: NeuralEnergy) -> NeuralEnergy:
        """The energy of the model: of noisy rows, or of clean ones if it is deconvolved."""
        noisy = self.noisy_energy(recipe, trained)
        if not takes_noise_off(recipe):
            return noisy
        like = next(trained.parameters())
        clean = recipe.base.clean.to(like.device, like.dtype)
        return self._with_parts(recipe.table, noisy.network, clean)

    def noisy_energy(self, recipe: NeuralRecipe, trained: NeuralEnergy) -> NeuralEnergy:
        """The energy of noisy rows, with what the rule makes of the trained network."""
        network = self.rule.model_network(trained.network)
        unchanged = network is trained.network and self.ceiling is None
        return trained if unchanged else self._with_parts(recipe.table, network, trained.base)

    def _with_parts(
        self, table: Table, network: nn.Module, base: Distribution | None
    ) -> NeuralEnergy:
        """The energy of a single level with another network or base."""
        kind: dict[str, Any] = {"image_shape": table.image_shape, "ceiling": self.ceiling}
        return energy_of(network, table.domain, base, **kind).eval()

    @property
    def sigma(self) -> Tensor | None:
        """Noise level of training, (d,)."""
        return None if self.noise is None else torch.tensor(self.noise)

    def without_effect(self, recipe: NeuralRecipe, asked: dict[str, Any]) -> dict[str, str]:
        found = self.rule.without_effect(asked)
        if recipe.table.discrete and "standardize" in asked:
            found["standardize"] = f"rows of {recipe.table.domain} are taken as they are"
        if "deconvolve" in asked:
            base: Any = recipe.base.noisy
            if base is None:
                found["deconvolve"] = "without a base there is none to take the noise off"
            elif self.noise is None:
                found["deconvolve"] = "training has no single level of noise"
            elif not (base.has_convolved or takes_noise_off(recipe)):
                found["deconvolve"] = f"{type(base).__name__} has no closed form without the noise"
        settings = getattr(self.rule, "settings", None)
        if getattr(settings, "sigma_anneal", 1) != 1 and self.noise is None:
            found["sigma_anneal of objective"] = "training has no noise (sigma sets it)"
        return found

    def check_trained(self, recipe: NeuralRecipe, net: EnergyNet, rows: Rows) -> None:
        self.rule.check_trained(net, rows)

    def finalise(self, recipe: NeuralRecipe, net: EnergyNet, rows: Rows) -> NeuralFamily:
        found = replace(self, rule=self.rule.after_training(recipe, net, rows))
        return replace(found, ceiling=self._ceiling(recipe, net.module_.energy, rows))

    def _ceiling(self, recipe: NeuralRecipe, trained: Any, rows: Rows) -> float | None:
        """Value of the network that makes a row less likely than its base by `MOST_LOST` nats.

        For a row is as much more likely than by the base as the value is below minus log Z, and
        training rows are, on average, no less likely than by it. None for images, for noise of
        several levels and where no column is a number.
        """
        numbers = any(isinstance(part, RealDomain) for part in parts_of(recipe.table.domain))
        plain = recipe.table.image_shape is None and self.rule.levels is None
        if not (numbers and plain and self.rule.has_ceiling) or recipe.base.noisy is None:
            return None
        index = torch.linspace(0, len(rows) - 1, min(len(rows), N_OF_CEILING))
        with torch.no_grad(), sampling(trained):
            value = trained.parametric_energy(rows.take(index.long().to(rows.device))).double()
        return float(value.median()) + MOST_LOST

    def partition_input(
        self, recipe: NeuralRecipe, name: str, energy: Any, net: EnergyNet, reference: Tensor
    ) -> Any:
        if name == "base":
            return self.rule.proposal(energy, net)
        if name == "sampler":
            return self.rule.annealing_sampler(net, energy.domain)
        return self.rule.annealing_starts(net, reference)

    def proper_score(self, recipe: NeuralRecipe, rows: Rows, energy: NeuralEnergy) -> Tensor:
        """Minus the Hyvärinen score in units of X, or the pseudo-likelihood of discrete rows."""
        table = recipe.table
        if table.by_column:
            raise ValueError(
                "partition=None leaves no score for rows of several kinds of columns: use "
                'partition="auto".'
            )
        if table.discrete:
            return rows.map(lambda x: pseudo_log_likelihood(energy, x), energy.domain.n_columns)
        both = rows.map(lambda x: torch.stack(boundary_weight(x, table.domain), 2)).double()
        h, h_grad = both[:, :, 0].numpy(), both[:, :, 1].numpy() / table.units.scale
        grad, second = derivatives(table, rows, energy)
        return torch.as_tensor(second - ((h * grad / 2 - h_grad) * grad).sum(1))


NeuralRecipe: TypeAlias = Recipe[NeuralFamily]


def takes_noise_off(recipe: NeuralRecipe) -> bool:
    """Whether the trained model has another base than the energy in training."""
    return recipe.base.clean is not recipe.base.noisy


def derivatives(
    table: Table, rows: Rows, energy: NeuralEnergy, *, weighted: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of E, (n, d), and the sum of its second derivatives, (n,), in units of X.

    With `weighted`, second derivatives have weights that vanish at the bounds.
    """
    units: Any = table.units
    scale = torch.as_tensor(units.scale)

    def derivatives_at(x: Tensor) -> Tensor:
        h = boundary_weight(x, energy.domain)[0] if weighted else torch.ones_like(x)
        axes = (h.sqrt() / scale.to(x)).diag_embed()
        parts = [energy.second_derivatives(x, some) for some in axes.split(AT_ONCE, 1)]
        second = torch.stack([part.second_derivative for part in parts]).sum(0)
        return torch.cat([parts[0].grad / scale.to(x), second[:, None]], 1).detach()

    both = rows.map(derivatives_at, energy.domain.n_columns).double().numpy()
    table.check_finite(both, rows, "the derivatives of log p")
    return both[:, :-1], both[:, -1]


def check_initial_values(energy: Any, rows: Rows) -> None:
    """Raise `ValueError` for a network that is not finite at rows before training.

    It warns of batch norms.
    """
    if any(isinstance(part, _BatchNorm) and part.training for part in energy.modules()):
        warn(
            "network has batch norms: in training the energy of a row then depends on the others "
            "of its batch, samples of the model among them, and the trained model is another one, "
            "of running means.",
            SettingWarning,
            ("Use norms of each row, such as torch.nn.GroupNorm, or network=ResNet().", "network"),
        )
    x = rows.block(0, min(len(rows), N_TRIED))
    with torch.no_grad(), sampling(energy):
        value = energy.parametric_energy(x)
    bad = ~value.isfinite()
    if bad.any() and x.isfinite().all():
        raise ValueError(
            f"The network returns {float(value[bad][0])} for {int(bad.sum())} of the first "
            f"{len(x)} rows, before training: check its initial weights, and logarithms, roots "
            "and divisions for the rows that it gets, which are standardised by default."
        )


def energy_of(
    network: nn.Module, domain: Domain, base: Distribution | None, **kind: Any
) -> NeuralEnergy:
    """The energy of a network that corrects a base; pairwise where the sum of both is.

    `kind` are further arguments of :class:`skebm.energies.NeuralEnergy`.
    """
    plain = all(value is None for value in kind.values())
    if plain and stays_pairwise(network, domain, base):
        return PairwiseCorrection(network, base)  # type: ignore[arg-type]
    return NeuralEnergy(network, domain, base, **kind)


def stays_pairwise(network: Any, domain: Domain, base: Distribution | None) -> bool:
    """Whether a network is a pairwise energy that stays one as the correction of a base."""
    if not isinstance(network, PairwiseEnergy) or network.domain != domain:
        return False
    return base is None or unary_fields(base) is not None


def are_states(weight: Tensor, n_rows: int, domain: Domain) -> bool:
    """Whether rows that occur several times are recurring states rather than copies.

    This is assumed if the distinct rows are a large part of all states, or if rows recur often, and
    some much more often than others. `weight` is that of each distinct row, `n_rows` the number of
    all rows.
    """
    n, log_n_states = len(weight), domain.log_n_states
    if not math.isfinite(log_n_states):
        return False
    effective = float(weight.sum().square() / weight.square().sum())
    covered = math.log(n) > log_n_states + math.log(COVERED)
    return covered or (n_rows > REPEATED * n and effective < UNEVEN * n)


def _is_unbounded(domain: Domain) -> bool:
    """Whether rows are real and may go to infinity."""
    return isinstance(domain, RealDomain) and None in (domain.lower, domain.upper)


# ------------------------------------------------------------------------------
# What "auto" means
# ------------------------------------------------------------------------------


def neural_plan(
    estimator: Any,
    n_rows: int,
    *,
    streaming: bool,
    most_passes: int = MOST_PASSES,
    n_steps: int = N_STEPS,
    most_epochs: int | None = None,
    optimizer_settings: dict[str, Any] | None = None,
) -> TrainingPlan:
    """Resolve the steps of training for a table of `n_rows`."""
    _, size, n_iter = asked_steps(estimator)
    if size == "auto":
        fitting = max(FEWEST_IN_BATCH, MOST_NUMBERS // estimator.n_features_in_)
        size = min(BATCH, fitting, n_rows)
    if n_iter == "auto":
        passes = math.ceil(n_steps / math.ceil(n_rows / size))
        n_iter = min(most_passes, PASSES_PER_ROW * n_rows, max(FEWEST_PASSES, passes))
    return plan_of(
        estimator,
        estimator.optimizer or AdamW(),
        n_iter=n_iter,
        batch_size=size,
        learning_rate=estimator.learning_rate,
        streaming=streaming,
        most_epochs=most_epochs,
        **(optimizer_settings or {}),
    )


def weight_decay_of(estimator: Any) -> float:
    """Weight decay of an estimator's optimizer."""
    return 0.0 if estimator.optimizer is None else float(estimator.optimizer.weight_decay)


def network_of(estimator: Any) -> Any:
    """A copy of the given network, or an MLP; later changes take effect at the next fit."""
    network = MLP() if estimator.network is None else estimator.network
    return network_to_state(clone(network, safe=False))


def takes_flat_rows(network: Any) -> bool:
    """Whether the parameter `network` is that of flat rows, an MLP."""
    module = network.module if isinstance(network, NetworkOf) else network
    return module is MLP or isinstance(module, MLP | None)


def sampler_of(estimator: Any, domain: Domain) -> Sampler:
    """A copy of the given sampler, or the default one."""
    return default_chain_sampler(domain) if estimator.sampler is None else clone(estimator.sampler)


def refuse_real_settings(estimator: Any, domain: Domain | str) -> None:
    """Raise `ValueError` for settings of real columns if rows are discrete."""
    for name, default in (("bounds", None), ("sigma", "auto")):
        value = getattr(estimator, name)
        if value is not None and not (isinstance(value, str) and value == default):
            raise ValueError(f"{name}={value!r} is for real columns, and X is {domain}.")


def reach_of(base: Distribution | None, rows: Rows) -> float | None:
    """Distance of most rows from the centre if the base is a flow, whose tails are heavy."""
    base = base.distribution if isinstance(base, Affine) else base
    if not isinstance(base, NormalizingFlow):
        return None
    norms = rows.map(lambda x: x.norm(dim=1)).sort().values
    far = float(norms[int(REACH * (len(norms) - 1))])
    return far if far > 0 else None


def confine(network: nn.Module, reach: float | None) -> nn.Module:
    """A network whose input is clipped to a norm of at most `reach`."""
    return network if reach is None else Confined(network, reach)


def asks_for_bits(domain: Any) -> bool:
    """Whether the parameter `domain` asks for binary rows."""
    return domain == "binary" or isinstance(domain, Binary)


def validation_options(estimator: Any, domain: Any, *, reset: bool) -> dict[str, Any]:
    """Accept images for networks that may take them, and sparse X if rows may be binary.

    `domain` is the parameter of that name.
    """
    if reset:
        sparse = domain == "auto" or asks_for_bits(domain)
    else:
        sparse = isinstance(estimator._recipe.table.domain, Binary)
    images = not takes_flat_rows(estimator.network)
    return {"allow_nd": images, "accept_sparse": "csr" if sparse else False}


def learn_column_table(
    estimator: Any, X: np.ndarray, weight: np.ndarray | None, coding: Coding | None
) -> Table:
    """Table of columns of several kinds; `ValueError` for settings of real columns."""
    refuse_real_settings(estimator, "of several kinds of columns")
    if not estimator.standardize:
        raise ValueError(
            "standardize=False is for real columns alone: beside others they are standardised."
        )
    return column_table(X, weight, coding, getattr(estimator, "feature_names_in_", None))


def learn_any_table(
    estimator: Any, X: Any, weight: np.ndarray | None, *, domain: Any, bounds: Any
) -> Table:
    """Table of the columns of X, with the type given by the parameters `domain` and `bounds`."""
    domain = choose_domain(X, domain, estimator.sampler, bounds)
    kind: dict[str, Any] = {"bounds": bounds, "standardize": estimator.standardize}
    names = getattr(estimator, "feature_names_in_", None)
    table = one_kind_table(X, weight, domain=domain, names=names, **kind)
    if table.discrete:
        refuse_real_settings(estimator, domain)
    return table


def fit_any_bases(
    estimator: Any,
    base: Any,
    rows: Rows,
    table: Table,
    *,
    adds_noise: bool = True,
    deconvolve: bool = False,
    stacks: str = "no",
) -> tuple[Bases, np.ndarray | None]:
    """Fit the base of rows of any type, and determine the noise level of training."""
    seed = draw_seed(estimator.random_state_)
    check_base_kind(base, table.domain)
    if table.by_column:
        if stacks == "all" and isinstance(base, str) and base == "auto":
            of_columns = fit_column_base_stack(rows, table.domain, seed)
        else:
            of_columns = fit_mixed_base(base, rows, table.domain)
        return Bases(of_columns, of_columns), None
    if table.discrete:
        found = fit_discrete_base(base, rows, table.domain, seed)
        return Bases(found, found), None
    noise = training_noise(estimator, rows, adds_noise=adds_noise)
    bases = fit_real_bases(
        base,
        rows,
        table.units,
        noise,
        seed,
        deconvolve=deconvolve,
        stacks=stacks,
        verbose=int(estimator.verbose),
    )
    return bases, None if noise is None else noise.cpu().numpy()


def training_noise(estimator: Any, rows: Rows, *, adds_noise: bool) -> Tensor | None:
    """Noise level given by `sigma`; raises `ValueError` if training cannot add noise."""
    sigma, bounds = estimator.sigma, estimator.bounds
    if bounds is None and adds_noise:
        return None if sigma is None else noise_level(sigma, rows)
    if sigma is None or (isinstance(sigma, str) and sigma == "auto"):
        return None
    cause = "as noise would move rows out of `bounds`"
    if bounds is None:
        cause = 'with objective="discrepancy", which adds its own noise'
    raise ValueError(f"sigma={sigma!r} is not allowed {cause}: use sigma=None.")


def policy_with_chains(chains: Any, batch_size: int, before: EnergyNet | None) -> ChainPolicy:
    """A copy of the chain policy with a resolved number of chains.

    Existing chains continue, however many rows there are now, unless their number is given.
    """
    found: Any = POLICIES[chains]() if isinstance(chains, str) else clone(chains)
    if isinstance(found, ReplayBuffer) and found.size < batch_size:
        raise ValueError(
            f"A replay buffer of {found.size} rows is smaller than a batch of {batch_size}, whose "
            "chains start at different rows of it: raise its size, or lower batch_size."
        )
    if isinstance(found, Persistent) and found.n_chains is None:
        rows = None if before is None else persistent_rows(before)
        found.set_params(n_chains=batch_size if rows is None else len(rows))
    return found


def policy_for(chains: ChainPolicy, energy: NeuralEnergy) -> ChainPolicy:
    """The policy, with chains initialised from the energy's base."""
    found = clone(chains)
    if "initial" in found.get_params() and found.initial is None:
        found.set_params(initial=energy.base)
    if getattr(found, "augmentation", None) is not None:
        found.set_params(augmentation=of_images(found.augmentation, energy.image_shape))
    return found


def of_images(augmentation: Any, shape: tuple[int, ...] | None) -> Any:
    """Adapt an augmentation of images to flat rows."""
    if augmentation is None or shape is None:
        return augmentation
    return lambda x, generator: augmentation(x.unflatten(1, shape), generator).flatten(1)
