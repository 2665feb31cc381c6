"""The RBM of the first layer, from which a deep Boltzmann machine is trained by default."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from torch import Tensor

from skebm._validation import check_is_fitted, check_random_state
from skebm.base import Batch, sampling
from skebm.base.processes import collect_warnings
from skebm.base.torchtools import softplus
from skebm.energies.deep import HIDDEN_LOGIT, FirstLayerRows, HiddenGiven, Layers
from skebm.energies.path import SinceFirstLayer
from skebm.estimators.base import chain_rows, draw_seed
from skebm.estimators.deep.meanfield import MeanField, bound_of
from skebm.estimators.deep.rows import FIRST_MEAN
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.safety import CHEAP_COST, is_above, over_log_z
from skebm.estimators.tables.table import Table
from skebm.partition.annealed import AnnealingPlan, Schedule
from skebm.partition.exact import Exact, exact_draws, log_z_cost
from skebm.partition.importance import WeightSummary, summarise
from skebm.samplers import Gibbs
from skebm.training.rows import Rows
from skebm.training.selection import LogRatios

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Standard deviation of the weights of upper layers at the start of joint training.
SCALE = 0.01
# Rows by which their biases are set.
N_FIRST = 1000
# Draws of the first layer from which annealing starts, and Gibbs steps before each hundred.
N_DRAWS, N_STEPS = 500, 100
# Terms up to which log Z of the first layer is summed, of which all are held at a time.
MOST_STATES = 3e7
# Temperatures from the first layer to the machine, and draws of it from which chains may go on.
N_BETAS, N_KEPT = 30, 100
# Settings by which rows are read, of an RBM as of the machine.
SAME = ("visible", "categorical_features", "device", "dtype")
# Settings of an RBM that a deep machine has, too.
SHARED = (
    *SAME,
    "learning_rate",
    "batch_size",
    "n_iter",
    "chains",
    "base",
    "centering",
    "penalty",
    "optimizer",
    "sampler",
)


class FirstLayer(NamedTuple):
    """A trained RBM of the first layer.

    Attributes
    ----------
    recipe : Recipe
        Of the RBM, with the base that its rows chose.
    net : EnergyNet
    x : Tensor of shape (n, d)
        Some of its training rows.
    draws : Tensor of shape (n, d)
        Rows of the RBM.
    guard_seed : int
        Which rows guard the deep machine: those that guarded the RBM, if there are any.
    """

    recipe: Any
    net: EnergyNet
    x: Tensor
    draws: Tensor
    guard_seed: int

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended its training, so that it is the model."""
        return bool(self.net.interrupted_)


def rbm_of_first_layer(estimator: Any, n_units: int) -> RBMEstimator:
    """The estimator of the first layer: with the machine's settings, or that of `pretraining`.

    `ValueError` if the latter has other units, columns or types than the machine.
    """
    asked = estimator.pretraining
    if isinstance(asked, str):
        given = {name: getattr(estimator, name) for name in SHARED}
        # Callbacks are told of the training of the machine alone.
        net_params = (estimator.net_params or {}).items()
        given["net_params"] = {k: v for k, v in net_params if not k.startswith("callbacks")} or None
        return RBMEstimator(n_units, partition=None, **given)
    rbm = asked.estimator if isinstance(asked, FrozenEstimator) else asked
    if not isinstance(rbm, RBMEstimator) or rbm.hidden != "binary":
        raise ValueError(
            f"pretraining={asked} is no RBM with binary hidden units: pass an RBMEstimator with "
            'hidden="binary", or a FrozenEstimator of a fitted one.'
        )
    for name in (*SAME, *(() if estimator.base == "auto" else ("base",))):
        own, other = getattr(estimator, name), getattr(rbm, name)
        if own is not other and not np.array_equal(own, other):
            raise ValueError(
                f"pretraining has {name}={other!r} where the machine has {name}={own!r}: set both "
                "to the same."
            )
    if rbm is not asked:
        check_is_fitted(rbm)
        _check_number(rbm.components_.shape[0], n_units)
        return rbm
    if rbm.n_components != "auto":
        _check_number(rbm.n_components, n_units)
    found: RBMEstimator = clone(rbm).set_params(n_components=n_units, partition=None)
    return found


def _check_number(n: Any, n_units: int) -> None:
    """`ValueError` unless the first layer has the units that it is to have."""
    if n != n_units:
        raise ValueError(
            f"pretraining has {n} hidden units where hidden_layer_sizes has {n_units} first: set "
            "both to the same."
        )


def fit_first_layer(estimator: Any, n_units: int, table: Table, rows: Rows) -> FirstLayer:
    """The RBM of `rbm_of_first_layer`, trained on rows of the columns alone; a frozen one as it is.

    Rows that guard its training also guard that of the deep machine. If there are none, as with
    exact learning, the rows that guard the machine are among those that the RBM has seen, which
    makes it harder for the machine to be better. An interrupted RBM keeps its weights.
    """
    rbm, seed = rbm_of_first_layer(estimator, n_units), draw_seed(estimator.random_state_)
    if isinstance(estimator.pretraining, FrozenEstimator):
        recipe, net, train = rbm._recipe, rbm.net_, rows
        if not table.encodes_as(recipe.table):
            raise ValueError(
                "X has other columns, or columns of another range, than the rows of the fitted RBM "
                "of pretraining: pass the RBM unfitted, or fit it to X."
            )
    else:
        recipe, net, train = _trained(rbm, estimator.random_state, seed, table, rows)
    guard_seed = seed if recipe.guard_seed is None else recipe.guard_seed
    some = torch.arange(min(N_FIRST, len(train)), device=train.device)
    generator = torch.Generator(rows.device).manual_seed(net.seed_)
    return FirstLayer(recipe, net, train.take(some), draws_of(net, generator), guard_seed)


def _trained(
    rbm: RBMEstimator, random_state: Any, seed: int, table: Table, rows: Rows
) -> tuple[Any, EnergyNet, Rows]:
    """Recipe and net of an RBM trained on rows, and those of them that do not guard it."""
    # With a number as the seed it is the RBM that `RBMEstimator` makes of that number.
    own = random_state if rbm.random_state is None else rbm.random_state
    is_number = isinstance(own, Integral)
    rbm.random_state_ = check_random_state(own if is_number else seed)
    with collect_warnings():  # of a start, which is trained further
        net, train = rbm._start(rows, table, None, streaming=False)
        recipe = rbm._recipe
        net.completion_ = functools.partial(recipe.family.complete, recipe)
        net.partial_fit(train)
        return recipe.after_training(net, rows), net, train


@torch.no_grad()
def start_from(first: FirstLayer, net: EnergyNet) -> None:
    """Set a deep machine to its first layer, with small random weights of the other layers.

    Units are centred, (h - l)'W (k - m), so that the small weights change p(x) in second order
    only. The chains start at draws of the first layer.
    """
    energy, generator = cast(Any, net.module_.energy), net.generator
    rbm: Any = first.net.module_.energy
    energy.set_first_layer(rbm)
    weights, biases = energy.weights, energy.biases
    below = rbm.hidden(first.x).mean.mean(0)
    for weight, bias_below, bias in zip(weights[1:], biases[1:], biases[2:], strict=False):
        weight.normal_(0.0, SCALE, generator=generator)
        above = torch.full_like(bias, HIDDEN_LOGIT).sigmoid()
        bias_below.sub_(above @ weight)
        bias.sub_(weight @ below)
        below = above
    beside = first.x.new_full((len(first.x), energy.layers.n_beside), FIRST_MEAN)
    state = net.module_.start(Batch(torch.cat([first.x, beside], 1)), generator)
    draws = rows_of_pool(energy, first.draws).sample(len(first.draws), generator)
    net.run_.state = net.module_.state_with_draws(state, draws, generator, share=1.0)


def draws_of(net: EnergyNet, generator: torch.Generator) -> Tensor:
    """Rows of an RBM, (n, d): by summation where that is cheap, or of its chains as they go on."""
    energy: Any = net.module_.energy
    with torch.no_grad(), sampling(energy):
        if log_z_cost(energy) <= CHEAP_COST:
            return exact_draws(energy, N_DRAWS, generator)
        x = chain_rows(net)
        if x is None:
            ratio = energy.visible_bias.new_zeros(1)
            x = over_log_z(energy, ratio, generator).draws
        assert x is not None
        found, n = [], 0
        while n < N_DRAWS:
            x = Gibbs().run(energy, x, N_STEPS, generator)[0].x
            found.append(x)
            n += len(x)
        return torch.cat(found)[:N_DRAWS]


def rows_of_pool(energy: Any, x: Tensor) -> FirstLayerRows:
    """The first layer by its rows x (n, d), of which none recurs before all have; log Z is 0."""

    def draw(n: int, generator: torch.Generator) -> Tensor:
        order = [
            torch.randperm(len(x), generator=generator, device=generator.device)
            for _ in range(math.ceil(n / len(x)))
        ]
        return x[torch.cat(order)[:n]]

    return FirstLayerRows(energy.since_first_layer(0.0), energy.layers, draw, 0.0)


def enumerated_first_layer(energy: Any) -> FirstLayerRows | None:
    """The first layer with an exact log Z and exact draws; None where its states are too many."""
    rbm = energy.first_rbm()
    if log_z_cost(rbm) > MOST_STATES:
        return None
    draw, layers = functools.partial(exact_draws, rbm), energy.layers
    x, first = draw(1, torch.Generator(rbm.weight.device)), energy.since_first_layer(0.0)
    with torch.no_grad():
        upper = log_sum_of_independent(HiddenGiven(first, layers, x)) + rbm(x)
    log_z = Exact().estimate(rbm).value + float(upper)
    return FirstLayerRows(first, layers, draw, log_z)


@dataclass
class RatiosToFirstLayer:
    """Lower bounds on log-likelihood ratios of rows to the first layer, and draws of a machine.

    log Z of the machine over that of the RBM is annealed from draws of the RBM. Annealing from the
    base, through the RBM, may find modes that these never visit: what it finds is used instead if
    it is clearly more.

    Direction: low where the gap of the bound is; high as far as annealing misses modes.
    """

    layers: Layers
    settings: MeanField
    x: Tensor | None
    _of_first: list[LogRatios] = field(default_factory=list)

    def __call__(self, energy: Any, x: Tensor, generator: torch.Generator) -> LogRatios:
        x = x[:, : self.layers.n_visible]
        with torch.no_grad(), sampling(energy):
            first = energy.since_first_layer(0.0)
            ratio = bound_of(HiddenGiven(energy, self.layers, x), self.settings)
            ratio = ratio - log_sum_of_independent(HiddenGiven(first, self.layers, x))
            if not self._of_first:
                self._of_first.append(over_log_z(first, ratio, generator))
            before = self._of_first[0]
            after = over_log_z(energy, ratio, generator)
            assert before.log_z is not None
            assert after.log_z is not None
            if log_z_cost(energy) <= CHEAP_COST:
                return after._replace(log_z=after.log_z - before.log_z)
            drawn = before.draws if self.x is None else self.x
            assert drawn is not None
            rows = rows_of_pool(energy, drawn[:, : self.layers.n_visible])
            since = anneal_from_first_layer(rows, N_DRAWS, energy, generator)
            more = WeightSummary(
                after.log_z - before.log_z,
                math.hypot(after.log_z_error, before.log_z_error),
                math.nan,
            )
            if is_above(more, since[0]):
                return LogRatios(ratio, more.log_mean, more.std_error, after.draws)
            return LogRatios(ratio, since[0].log_mean, since[0].std_error, since[1])


def anneal_from_first_layer(
    rows: FirstLayerRows, n: int, energy: Any, generator: torch.Generator
) -> tuple[WeightSummary, Tensor]:
    """log of Z of a machine over that of its first layer, and draws of the machine."""
    schedule = Schedule(torch.linspace(0, 1, N_BETAS).tolist(), [], [])
    plan = AnnealingPlan(SinceFirstLayer(energy, rows), Gibbs(), schedule, 1.0, generator)
    x, log_weight = plan.particles(n)
    if not bool(log_weight.isfinite().all()):
        return WeightSummary(math.inf, 0.0, math.nan), x
    share = log_weight.softmax(0)
    n_kept = min(len(x), N_KEPT)
    place = torch.multinomial(share, n_kept, replacement=True, generator=generator)
    return summarise(log_weight), x[place]


def log_sum_of_independent(given: HiddenGiven) -> Tensor:
    """log sum_h exp(-E(x, h)) where the upper layers are independent of x, (n,), float64."""
    zeros = given.field.new_zeros(len(given.field), len(given.bias))
    return given.log_joint(zeros).double() + softplus(given.bias).double().sum()
