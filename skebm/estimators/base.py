"""Base classes of all estimators: parameters, fitting, energies, log Z and serialisation.

An estimator delegates to its components. A fit proceeds as follows::

    validated X --Table--> Rows --Recipe--> EnergyNet (training) --> net_, history_, log Z

The :class:`~skebm.estimators.tables.Table` is fitted once and converts columns into rows of the
energy. The :class:`~skebm.estimators.recipe.Recipe` holds everything that is determined before
training: the table, the base, the plan, and the settings of the family, which builds objectives and
interprets trained ones. It is stored with the model.
"""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    OutlierMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils import Bunch
from torch import Tensor

from skebm._validation import (
    DEVICE,
    DTYPE,
    Composition,
    Interval,
    StrOptions,
    check_columns,
    check_is_fitted,
    check_random_state,
    check_weight,
    distinct_pairs,
    draw_seed,
    fit_context,
    mask_as_missing,
    names_compared,
    resolve_device,
    torch_dtype_of,
    validate_data,
    warn,
    warn_of_booleans,
)
from skebm.base import (
    Binary,
    DataWarning,
    Domain,
    LikelihoodWarning,
    LogPartition,
    PartitionEstimator,
    Sampler,
    SettingWarning,
    TrainingWarning,
    torchtools,
)
from skebm.base import Real as Numbers
from skebm.base.processes import (
    Epochs,
    TasksMixin,
    begin_task,
    collect_warnings,
    lock_of,
    repeat,
)
from skebm.energies.neural import network_from_state, network_to_state
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.recipe import Recipe
from skebm.estimators.storage import pack, package_version, unpack
from skebm.estimators.tables.columns import Coding
from skebm.estimators.tables.gross import gross_rows_of
from skebm.estimators.tables.table import Table
from skebm.estimators.tables.unchanged import check_unchanged, first_parameters
from skebm.objectives import ContrastiveState
from skebm.partition import Choice, ImportanceSampling, choose
from skebm.partition.choice import in_a_line
from skebm.partition.given import ConditionalAIS
from skebm.training import DivergenceError, EarlyStopping
from skebm.training.distributed import (
    check_same_estimator,
    check_same_input,
    collective,
    map_over_ranks,
    single_process,
)
from skebm.training.mapped import MappedArray, as_mapped, is_large
from skebm.training.plan import check_net_params, stopping_of
from skebm.training.rows import Rows
from skebm.training.streams import SourceMixin, Spool, is_stream, spool

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Rows with missing entries that set the threshold of `predict`, at most: a quantile of a tenth is
# then one of 0.09 to 0.11, and 4,600 of ten thousand rows would take half as long as the training.
MOST_WITH_HOLES = 1000
# Training rows that are kept as starting points of reverse annealing.
N_REFERENCE = 500

COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "n_iter": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
    "early_stopping": ["boolean", EarlyStopping],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "device": DEVICE,
    "dtype": DTYPE,
    "net_params": [dict, None],
}
# Of models with one log Z, and of densities among them.
JOINT_CONSTRAINTS: dict[str, list[Any]] = COMMON_CONSTRAINTS | {
    "partition": [StrOptions({"auto"}), PartitionEstimator, None],
    "sampler": [Sampler, None],
}
# Of models whose conditions have a log Z each.
CONDITIONAL_CONSTRAINTS: dict[str, list[Any]] = COMMON_CONSTRAINTS | {
    "partition": [StrOptions({"auto"}), ConditionalAIS],
}
CONTAMINATION = [Interval(Real, 0, 0.5, closed="right"), StrOptions({"auto"})]
DENSITY_CONSTRAINTS: dict[str, list[Any]] = JOINT_CONSTRAINTS | {"contamination": CONTAMINATION}


# ------------------------------------------------------------------------------
# Parts
# ------------------------------------------------------------------------------


class LogZ:
    """log Z of a fitted model, computed when first needed and cached until the weights change.

    Threads that need it at the same time wait for the one that came first (`lock_of`).
    """

    def __init__(self) -> None:
        self.choice: Choice | None = None
        self.found: LogPartition | None = None


class NamedEstimators(Composition):
    """An estimator of a list `estimators` of names and estimators, by default a certain one."""

    estimators: Any
    _fitted_names: ClassVar[str]  # attribute that holds the fitted ones by name, a Bunch
    _default_estimators: Callable[[], list[tuple[str, Any]]]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters, with those of the estimators as ``<name>__<parameter>`` if `deep`."""
        if self.estimators is None:
            return dict(super(Composition, self).get_params(deep=False))
        return dict(self._get_params("estimators", deep=deep))

    def set_params(self, **params: Any) -> Any:
        """Set parameters; ``<name>__<parameter>`` sets one of an estimator."""
        if self.estimators is None and "estimators" not in params:
            nested = {name.partition("__")[0] for name in params if "__" in name}
            default = self._default_estimators()
            if nested & {name for name, _ in default}:
                self.estimators = default
        self._set_params("estimators", **params)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__().copy()
        if self._fitted_names in state:  # as a plain dictionary, which files of others may hold
            state[self._fitted_names] = dict(state[self._fitted_names])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._fitted_names in state:
            setattr(self, self._fitted_names, Bunch(**state[self._fitted_names]))


def atomic(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method build aside: on a copy of the estimator, whose attributes it takes at the end.

    Fitted attributes belong together: old weights with a new base or scaling would be another
    model, and so would new weights with an old log Z. One assignment exchanges all of them, so that
    a call that fails or is interrupted before leaves the estimator as it was, bit for bit, and one
    that is interrupted later has done all that it does. The copy is shallow: what an attribute
    holds is replaced, never changed in place (`EnergyNet.copy`). Random states, which are
    the user's, are turned back.

    It is the outermost decorator of what is not to keep an interrupted model.
    """

    @functools.wraps(method)
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        draft = object.__new__(type(self))
        vars(draft).update(vars(self))
        positions = positions_of_random_states(self)
        try:
            with torchtools.memory_errors():
                result = method(draft, *args, **kwargs)
        except BaseException:
            for random, position in positions:
                random.set_state(position)
            raise
        self.__dict__ = vars(draft)
        return self if result is draft else result

    return build


def positions_of_random_states(
    estimator: Any,
) -> list[tuple[np.random.RandomState, dict[str, Any]]]:
    """The random states that an estimator holds, and where they are in their sequences."""
    everyone = check_random_state(None)  # NumPy's own, which is not ours to turn back
    return [
        (value, value.get_state(legacy=False))
        for value in vars(estimator).values()
        if isinstance(value, np.random.RandomState) and value is not everyone
    ]


def raises_interrupt(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Raise the Ctrl-C that ended training once `fit` has made a usable model of the weights."""

    @functools.wraps(fit)
    def raising(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = fit(self, *args, **kwargs)
        self.net_.raise_interrupt()
        return result

    return raising


def check_settings(estimator: BaseEstimator) -> None:
    """Validate the parameters of parameters, such as ``optimizer__averaging``, before any work.

    Raises `ValueError` that names the object and its parameter.
    """
    for value in estimator.get_params(deep=False).values():
        if hasattr(value, "_parameter_constraints") and not isinstance(value, type):
            value._validate_params()
            check_settings(value)


def assign_parameters(estimator: BaseEstimator, given: dict[str, Any]) -> None:
    """Keep the arguments of a constructor, all of which ``locals()`` holds there, as attributes."""
    vars(estimator).update((name, value) for name, value in given.items() if name != "self")


def set_nested_params(estimator: BaseEstimator, params: dict[str, Any]) -> None:
    """Create the objects for ``<object>__<name>`` if the parameter is None or a string.

    Raises `ValueError` for a parameter that takes no object.
    """
    known = estimator._get_param_names()
    for name in params:
        owner, _, rest = name.partition("__")
        holder = params.get(owner, getattr(estimator, owner, None))
        settable = hasattr(holder, "set_params") and not isinstance(holder, type)
        if not rest or owner not in known or settable:
            continue
        inner = {k.removeprefix(f"{owner}__") for k in params if k.startswith(f"{owner}__")}
        make = getattr(estimator, "_config_of", None)
        made = None if make is None else make(owner, holder, inner)
        if made is None:
            raise ValueError(
                f"{name} cannot be set, as {owner}={holder!r} has no parameters. "
                f"Pass an object as {owner}= first."
            )
        setattr(estimator, owner, made)


def set_by_name(
    estimator: BaseEstimator, params: dict[str, Any], set_params: Callable[..., Any]
) -> None:
    """Set parameters by ``set_params(**params)``, those of objects after the objects.

    Objects for ``<object>__<name>`` are created as by `set_nested_params`.
    """
    set_params(**{k: v for k, v in params.items() if "__" not in k})
    nested = {k: v for k, v in params.items() if "__" in k}
    set_nested_params(estimator, nested)
    set_params(**nested)


def non_default_parameters(estimator: BaseEstimator) -> dict[str, Any]:
    """Parameters of an estimator that are not the defaults of its constructor.

    Those of an `objective` that is an object are among them, as ``objective__<name>``.
    """
    known = inspect.signature(type(estimator).__init__).parameters
    found = {}
    for name, value in estimator.get_params(deep=False).items():
        default = known[name].default
        if value is not default and (type(value) is not type(default) or bool(value != default)):
            found[name] = value
    if isinstance(found.get("objective"), BaseEstimator):
        inner = non_default_parameters(found["objective"])
        found |= {f"objective__{name}": value for name, value in inner.items()}
    return found


def warn_without_effect(reasons: dict[str, str]) -> None:
    """One warning that names the parameters without effect, each with the reason."""
    if reasons:
        found = "; ".join(f"{name}, because {reason}" for name, reason in reasons.items())
        warn(f"Without effect on this fit: {found}.", SettingWarning)


def fraction_of_early_stopping(early_stopping: Any) -> float | None:
    """Fraction of the rows that early stopping holds out; None for none."""
    return stopping_of(early_stopping).validation_fraction if early_stopping else None


# ------------------------------------------------------------------------------
# Estimators
# ------------------------------------------------------------------------------


class BaseEBM(DocLinkMixin, SourceMixin, TasksMixin, BaseEstimator, abc.ABC):
    """Base class of energy-based estimators; subclasses implement the three hooks below."""

    # Factories for ``<parameter>__<name>`` if the parameter is None or a string.
    _configs: ClassVar[dict[str, Callable[[Any, set[str]], Any]]] = {}
    # Whether training reads rows of a memory map as it needs them; other estimators read it whole.
    _reads_files: ClassVar[bool] = False
    # Whether training may keep models that lead from the base to the last one.
    _keeps_trajectory: ClassVar[bool] = False
    _has_tasks = True

    net_: EnergyNet
    net_params: dict[str, Any] | None
    converged_: bool
    _recipe: Any
    _log_z: LogZ
    _first_parameters: dict[str, Any]  # parameters of the first fit that later ones keep
    _reference: np.ndarray  # training rows in the units of the energy

    # ---------------------------------------------------------------- hooks

    @abc.abstractmethod
    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        """Arguments of ``validate_data``: whether X may be sparse, or have more dimensions."""

    @abc.abstractmethod
    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        """Learn the columns of validated X, at the first fit."""

    @abc.abstractmethod
    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> Recipe[Any]:
        """Resolve all settings of training on `rows`; `before` is the net to continue from."""

    # ---------------------------------------------------------------- parameters

    def __sklearn_tags__(self) -> Any:
        # Of a fitted model they are those of its fit, whatever parameters were set since.
        reset = not self.__sklearn_is_fitted__()
        tags, accepted = super().__sklearn_tags__(), self._validation_options(reset=reset)
        tags.input_tags.sparse = bool(accepted.get("accept_sparse"))
        tags.input_tags.allow_nan = accepted.get("ensure_all_finite") == "allow-nan"
        return tags

    def _config_of(self, owner: str, value: Any, names: set[str]) -> Any:
        make = self._configs.get(owner)
        return None if make is None else make(value, names)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get the parameters; with `deep` also those of parameter objects and ``net__<name>``."""
        params = super().get_params(deep)
        net_params = params.get("net_params")
        if deep and isinstance(net_params, dict):
            params |= {f"net__{name}": value for name, value in net_params.items()}
        return params

    @atomic
    def set_params(self, **params: Any) -> Any:
        """Set parameters by name, ``net__<name>`` and ``<object>__<name>`` included.

        If a parameter that takes an object is None or a string, the object that it stands for is
        created first: ``sampler__step_size=0.1`` works without passing a sampler.
        """
        net = {name[5:]: params.pop(name) for name in list(params) if name.startswith("net__")}
        set_by_name(self, params, super().set_params)
        if net:
            check_net_params(net)
            self.net_params = {**(self.net_params or {}), **net}
        return self

    # ---------------------------------------------------------------- fitting

    @collective
    def _fit(
        self,
        X: Any,
        sample_weight: Any,
        *,
        streaming: bool,
        encode: Callable[[Any, bool], np.ndarray] | None = None,
    ) -> None:
        """Train on the rows of X; continue if `streaming` or with a warm start.

        `encode` computes the targets from validated X and whether training continues.
        """
        check_net_params(self.net_params or {})
        check_settings(self)
        check_same_estimator(self, X)
        go_on = self.__sklearn_is_fitted__() and (streaming or self.warm_start)
        given, X = X, self._validate(X, reset=not go_on, min_samples=1 if streaming else 2)
        weight = check_weight(sample_weight, X)
        y = None if encode is None else encode(X, go_on)
        check_same_input(X, weight, y, names_of_data(self))
        X, y, weight, left_out = self._without_gross_rows(*_of_positive_weight(X, y, weight))
        device = self._available_device() if go_on else resolve_device(self.device)
        if go_on:
            check_unchanged(self, vars(self).get("_first_parameters", {}))
        else:
            self._first_parameters = first_parameters(self)
        merged = (X, y, weight)
        if not streaming and isinstance(X, np.ndarray):
            merged = distinct_pairs(X, y, weight)
        table = self._recipe.table if go_on else self._learn_table(merged[0], merged[2])
        if table.copies_are_one:
            X, y, weight = merged
        if not go_on and isinstance(table.domain, Numbers):
            conditions = [j for block in table.given for j in block.columns]
            warn_of_booleans(self, given, conditions)
        rows = table.rows(X, device=device, dtype=torch_dtype_of(self.dtype), weight=weight)
        rows.y = None if y is None else torch.as_tensor(y, device=device)
        rows.left_out = left_out
        table.prepare(rows)
        if not go_on:
            self.random_state_ = self._common_random()
        net, train = (self.net_, rows) if go_on else (None, rows)
        if net is None or not (streaming and net.streaming and net.fits(rows)):
            net, train = self._start(rows, table, net, streaming=streaming)
        else:
            net = net.copy()
        net.completion_ = functools.partial(self._recipe.family.complete, self._recipe)
        try:
            epochs = self._epochs(net, rows)
            self.net_ = net.partial_fit(train, tasks=epochs)
        except DivergenceError as error:
            raise DivergenceError(f"{error} {table.divergence_advice(rows)}".rstrip()) from error
        if streaming:
            net.raise_interrupt("partial_fit was interrupted; the model is as it was before.")
        self._conclude(net, rows)

    def _epochs(self, net: EnergyNet, rows: Rows) -> Epochs | None:
        """Begin the task of this fit; its epochs if callbacks are to be told of them."""
        fit = begin_task(max(net.max_epochs, net.most_epochs))
        if fit is None or not fit.has_callbacks:
            return None
        return Epochs(fit, lambda: self._attributes_now(net, rows))

    def _attributes_now(self, net: EnergyNet, rows: Rows) -> dict[str, Any]:
        """Attributes of this estimator as if Ctrl-C had ended the training of a net now."""
        draft: Any = copy.copy(self)
        draft.net_ = net.copy()
        with collect_warnings(), single_process():  # others may not be asked
            draft._conclude(draft.net_, rows)
        return vars(draft)

    def _conclude(self, net: EnergyNet, rows: Rows) -> None:
        """Set what is known only after training, and warn of what that has come to."""
        with collect_warnings() as caught:
            net.report()
            self._finalise(rows)
            self._recipe = self._recipe.after_training(net, rows)
        self.converged_ = not any(issubclass(one.category, TrainingWarning) for one in caught)
        repeat(caught)

    def _without_gross_rows(
        self, X: Any, y: np.ndarray | None, weight: np.ndarray | None
    ) -> tuple[Any, np.ndarray | None, np.ndarray | None, float]:
        """X, targets and weights without rows that hold gross values, and the weight of those.

        Bounds say which values are possible, as units of bits do where X has no others; images and
        files are taken as they are.
        """
        if not isinstance(X, np.ndarray) or X.ndim != 2 or vars(self).get("bounds") is not None:
            return X, y, weight, 0.0
        if (
            vars(self).get("visible") in ("bernoulli", "probabilities")
            and not ((X < 0) | (X > 1)).any()
        ):
            return X, y, weight, 0.0
        gross = gross_rows_of(self, X, weight)
        if gross is None:
            return X, y, weight, 0.0
        left_out = float(gross.sum() if weight is None else weight[gross].sum())
        y = None if y is None else self._targets_without(y, gross)
        return X[~gross], y, None if weight is None else weight[~gross], left_out

    def _targets_without(self, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Targets of a fit that leaves some rows out, a mask."""
        return y[~rows]

    def _start(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> tuple[EnergyNet, Rows]:
        """New net, initialised from `before` or from the data, and the rows to train it on."""
        asked = getattr(vars(self).get("optimizer"), "trajectory", None)
        if asked is not None and not self._keeps_trajectory:
            raise ValueError(
                f"{type(self).__name__} keeps no models along training, as RBMEstimator does: "
                "pass an optimizer with trajectory=None."
            )
        # A fit that goes on holds out the same rows as the one before.
        seed = draw_seed(self.random_state_) if before is None else before.seed_
        generator = torch.Generator(rows.device).manual_seed(seed)
        train, validation = rows, None
        fraction = None if streaming else fraction_of_early_stopping(self.early_stopping)
        if fraction is not None:
            train, validation = _hold_out(rows, fraction, generator)
        # What is fitted before training, or chosen, is by a sample of the rows of a file.
        recipe = self._design(train.subsample(seed), table, before, streaming=streaming)
        warn_without_effect(recipe.without_effect(non_default_parameters(self)))
        if streaming and before is None and recipe.family.has_guard(recipe):
            warn_of_stream()
        family = recipe.family
        net = recipe.plan.net(
            family.objective(recipe, generator),
            generator,
            streaming=streaming,
            validation=validation,
            net_params=self.net_params,
        ).initialize()
        if validation is None and not streaming:
            train, held_out = family.hold_out(recipe, train, generator)
            how = family.log_ratios(recipe), recipe.n_assessments, family.reference
            net.hold_out(held_out, *how)
        elif validation is not None:
            judges = family.complete_copies(recipe, validation, generator)
            net.judge_by(judges, family.log_ratios(recipe))
        if before is None:
            if not family.continue_trial(recipe, net):
                family.initialise(recipe, net.module_.energy, train)
        else:
            net.load_state(before)
        self._recipe = recipe
        return net, family.deduplicate(recipe, train)

    def _finalise(self, rows: Rows) -> None:
        """Set the fitted attributes besides the weights."""
        self.history_, self.n_restarts_ = self.net_.history.to_list(), self.net_.n_restarts_
        self.n_iter_ = len(self.history_)
        n_reference = min(len(rows), N_REFERENCE, max(2, 1_000_000 // rows.n_columns))
        precision = torch.float64 if rows.is_mapped else torch.float32
        keep = torch.linspace(0, len(rows) - 1, n_reference, dtype=precision).long()
        self._reference = rows.take(keep.to(rows.device)).cpu().numpy()
        self._recipe.check_trained(self.net_, rows)

    def __sklearn_is_fitted__(self) -> bool:
        return "net_" in self.__dict__

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        kwargs |= {"reset": reset, "ensure_min_samples": min_samples}
        kwargs |= {"dtype": [np.float64, np.float32]} | self._validation_options(reset=reset)
        stream = spool(X) if is_stream(X) else X
        if isinstance(stream, Spool):
            with names_compared():
                found = self._check_array(stream.table, kwargs)
            if stream.header is not None:
                check_columns(self, stream.header, reset=reset)
            return found
        return self._check_array(X, kwargs)

    def _check_array(self, X: Any, kwargs: dict[str, Any]) -> Any:
        """X as scikit-learn checks it; of a large memory map a few rows, and all for nan."""
        if not (self._reads_files and is_large(X)):
            return validate_data(self, X, **kwargs)
        validate_data(self, np.array(X[:2]), **kwargs)
        table = as_mapped(X)
        if kwargs.get("ensure_all_finite") == "allow-nan" and table.has_missing():
            warn(
                "X has missing entries, so that the memory map is read whole, and needs memory in "
                "proportion to its rows: fill them in, or pass fewer rows at a time.",
                DataWarning,
            )
            return validate_data(self, np.array(X), **kwargs)
        table.check_finite()
        return table

    # ---------------------------------------------------------------- energies

    def _rows(self, X: Any) -> Rows:
        """Rows of new X, validated."""
        check_is_fitted(self)
        return self._rows_of(self._validate(X))

    def _rows_of(self, X: Any) -> Rows:
        """Rows of validated X with the device and precision of the energy."""
        like = next(self.energy_.parameters())
        found: Rows = self._recipe.table.rows(X, device=like.device, dtype=like.dtype)
        return found

    def _of_rows(self, X: Any, function: Callable[[Rows], np.ndarray]) -> np.ndarray:
        """What a function computes for each row of new X, of large X one block after the other."""
        return self._over_blocks(X, lambda block: function(self._rows(block)))

    @property
    def _energy_of_net(self) -> Any:
        """The energy that was trained, of which the recipe makes that of the model."""
        return self.net_.module_.energy.eval()

    @property
    def energy_(self) -> Any:
        """The trained energy as a torch module in ``eval`` mode, in its own units."""
        return self._recipe.family.energy(self._recipe, self._energy_of_net)

    def _scoring_energy(self, energy: Any = None) -> Any:
        """An energy, by default the model's, whose rounding depends on no other rows of a batch."""
        energy = self.energy_ if energy is None else energy
        return self._recipe.family.scoring_energy(self._recipe, energy)

    def _parameter_array(self, name: str) -> np.ndarray:
        """A parameter of the trained energy as a read-only array."""
        check_is_fitted(self)
        value: np.ndarray = getattr(self._energy_of_net, name).detach().cpu().numpy()
        value.flags.writeable = False
        return value

    def _map(self, rows: Rows, function: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """Apply ``function(energy, x)``, which treats rows independently, to all rows."""
        energy = self._scoring_energy()
        dtype = next(energy.parameters()).dtype
        return rows.map(lambda x: function(energy, x.to(dtype)), energy.domain.n_columns)

    def _energies(self, rows: Rows, *, likely: bool = False) -> np.ndarray:
        """Energies of rows in the units of the data, (n,); `likely` if used as likelihoods."""
        table: Table = self._recipe.table
        return table.energies(functools.partial(self._map, rows), likely=likely)

    def _generator(self, random_state: Any) -> torch.Generator:
        device = next(self.energy_.parameters()).device
        return torch.Generator(device).manual_seed(draw_seed(random_state))

    # ---------------------------------------------------------------- storage

    def __copy__(self) -> Any:
        # What an attribute holds is replaced, never changed in place.
        found: Any = object.__new__(type(self))
        vars(found).update(vars(self))
        return found

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__().copy()
        if "network" in state:
            state["network"] = network_to_state(state["network"])
        if "net_" in state:
            # NumPy arrays instead of live torch objects: portable between devices and to skops.
            state["net_"] = pack(state["net_"])
            state["_skebm_version"] = package_version()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state.pop("net_", None)
        stored = state.pop("_skebm_version", None)
        if "network" in state:
            state["network"] = network_from_state(state["network"])
        super().__setstate__(state)
        if packed is None:
            return
        if stored != package_version():
            warn(
                f"This model was stored by skebm {stored}; skebm {package_version()} is installed.",
                SettingWarning,
            )
        generator = torch.Generator(self._available_device())
        net = self._recipe.plan.net(
            self._recipe.family.objective(self._recipe, generator),
            generator,
            streaming=packed["streaming"],
            net_params=self.net_params,
        )
        unpack(net.initialize(), packed)
        self.net_ = net

    def _available_device(self) -> torch.device:
        """The requested device, or the CPU if a stored model's device is not available."""
        try:
            return resolve_device(self.device)
        except ValueError:
            warn(
                f"device={self.device!r} is not available here; the model is loaded on the CPU.",
                SettingWarning,
            )
            return torch.device("cpu")


def _of_positive_weight(
    X: Any, y: np.ndarray | None, weight: np.ndarray | None
) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    """Rows, targets and weights without rows of weight 0; no weights where the others are equal."""
    if weight is None:
        return X, y, None
    live = weight > 0
    X = X.subset(np.flatnonzero(live)) if isinstance(X, MappedArray) else X[live]
    weight = weight[live]
    return X, None if y is None else y[live], None if np.ptp(weight) == 0 else weight


def names_of_data(estimator: BaseEBM) -> dict[str, Any]:
    """Columns, classes and levels that an estimator knows by name, by what they are."""
    known, coding = vars(estimator), vars(estimator).get("_coding")
    levels = None if coding is None else {j: list(levels) for j, levels in coding.levels.items()}
    return {
        "the names of columns": list(known.get("feature_names_in_", ())),
        "the classes": list(known.get("classes_", ())),
        "the levels of columns": levels,
    }


def chain_rows(net: EnergyNet) -> Tensor | None:
    """Visible rows of the chains after the last batch, if the rule has chains."""
    state = net.state_
    if isinstance(state, ContrastiveState) and state.chain is not None:
        return state.chain.x
    return None


def annealing_starts(net: EnergyNet, data: Tensor) -> dict[str, Tensor]:
    """Rows near the model by origin: data, and training chains if there are any."""
    starts, chain = {"data": at_least_two(data)}, chain_rows(net)
    return starts if chain is None else starts | {"training chains": at_least_two(chain)}


def states_near(x: Tensor, domain: Domain) -> Tensor:
    """Rows whose probabilities of bits are rounded, if there are no other columns."""
    return (x > 0.5).to(x.dtype) if isinstance(domain, Binary) else x


def at_least_two(x: Tensor) -> Tensor:
    """The rows, or a single row twice: reverse annealing needs two for a standard error."""
    return x if len(x) > 1 else x.expand(2, -1)


def warn_of_stream() -> None:
    """Say, at the first rows of a stream, that none of them guard its training."""
    warn(
        "partial_fit holds out no rows, so that nothing notices when training diverges slowly or "
        "makes the model worse than its base.",
        SettingWarning,
        ("Score rows that you keep apart, or pass all rows to fit, which holds some out.",),
    )


def _hold_out(rows: Rows, fraction: float, generator: torch.Generator) -> tuple[Rows, Rows]:
    """Training rows and held-out rows, at random."""
    if len(rows) < 2:
        raise ValueError("early_stopping needs at least two rows, one of them for validation.")
    n = min(len(rows) - 1, max(1, round(fraction * len(rows))))
    return rows.split(n, generator)


def with_fewer_holes(rows: Rows) -> Rows:
    """The rows, with at most `MOST_WITH_HOLES` of missing entries, in proportion to their weight.

    The missing entries of each are summed out by annealing.
    """
    known = None if rows.is_mapped else rows.present_entries()
    holes = torch.zeros(0) if known is None else (~known.all(1)).nonzero().ravel()
    if len(holes) <= MOST_WITH_HOLES:
        return rows
    weight = rows.counts
    order = torch.randperm(len(holes), generator=torch.Generator(holes.device).manual_seed(0))
    kept, left_out = holes[order[:MOST_WITH_HOLES]], holes[order[MOST_WITH_HOLES:]]
    total = weight[holes].sum()
    weight = weight.index_fill(0, left_out, 0.0)
    weight[kept] *= total / weight[kept].sum()
    return rows.with_weights(weight).subset(weight.nonzero().ravel())


def upper_quantile(values: np.ndarray, share: float, weight: np.ndarray | None) -> float:
    """Threshold above which a fraction `share` of the weight lies, rounded to a whole row.

    It is midway between adjacent values. A row of weight 2 is equivalent to two such rows; without
    weights the values are sorted in place, in part only.
    """
    if weight is None:
        n = len(values)
        k = int(np.floor(share * n + 0.5 + 1e-9))
        if k < 1:
            return float(values.max())
        places = [n - k, max(0, n - k - 1)]
        values.partition(places)
        return float(values[places].mean())
    order = np.argsort(-values, kind="stable")
    values, reached = values[order], np.cumsum(weight[order])
    k = np.floor(share * reached[-1] + 0.5 + 1e-9)  # the sum of weights is rounded
    if k < 1:
        return float(values[0])
    around = np.searchsorted(reached, [k - 0.5, k + 0.5], side="right").clip(max=len(values) - 1)
    return float(values[around].mean())


# For type checkers the mixin is what it is mixed into.
if TYPE_CHECKING:
    OfModel = BaseEBM
else:
    OfModel = object


class CategoriesMixin(OfModel):
    """Validation of X whose columns may be categories, which become codes."""

    categorical_features: Any
    _coding: Coding | None

    def _learn_coding(self, X: Any, asked: Any) -> Coding | None:
        """The categories of the columns of X, given the parameter `categorical_features`."""
        return Coding.learn(X, asked)

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        """Validated X, with categories as codes and missing entries as nan.

        With `reset`, the categories of the columns become `_coding`. Arrays of numbers have none
        unless columns are listed.
        """
        X = mask_as_missing(X)
        of_numbers = isinstance(X, Spool) or is_stream(X) or is_large(X)
        if reset:
            asked = self.categorical_features
            numbers = of_numbers or isinstance(X, np.ndarray) and X.dtype.kind in "biuf"
            listed = not (of_numbers or asked is None or isinstance(asked, str))
            self._coding = None if numbers and not listed else self._learn_coding(X, asked)
        coding = None if of_numbers else vars(self).get("_coding")
        if coding is None:
            return super()._validate(X, reset=reset, min_samples=min_samples, **kwargs)
        check_columns(self, X, reset=reset)
        found = coding.encode(X, min_samples, type(self).__name__)
        if reset:
            coding.warn_of_identifiers(found)
        accepted = self._validation_options(reset=reset) | kwargs
        if accepted.get("ensure_all_finite") != "allow-nan" and np.isnan(found).any():
            name = coding.names[int(np.isnan(found).any(0).argmax())]
            raise ValueError(
                f"Input X contains NaN: column {name!r} has missing entries or levels unseen in "
                "fit. Fill them in by impute, or use RBMEstimator, which takes them."
            )
        return found


class FeaturesMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OfModel):
    """Features of rows, such as means of hidden units, in the precision of X."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self._recipe.family.n_hidden)


class PartitionMixin(OfModel):
    """Energies, log Z and likelihoods of a model whose rows share one log Z."""

    _log_z: LogZ
    partition: Any

    def _finalise(self, rows: Rows) -> None:
        super()._finalise(rows)
        self._log_z = LogZ()

    def energy(self, X: Any) -> np.ndarray:
        """Energy of each row, in nats: lower is more likely.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._of_rows(X, self._energies)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-likelihood of each row, log p(x) = -E(x) - log Z, in nats.

        The values are exact if log Z is. If log Z is estimated, its error is the same for all rows
        (see `log_partition_bounds_`). With ``partition=None`` the values are -E(x). To rank rows,
        use :meth:`energy`, which needs no log Z.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        energies = self._of_rows(X, functools.partial(self._energies, likely=True))
        return -energies - self.log_partition_

    def _rows_to_score(self, X: Any) -> Rows:
        """Rows of new X, of which likelihoods are asked."""
        return self._rows(X)

    def _proper_scores(self, rows: Rows) -> Tensor:
        """Proper scoring rule of rows that needs no log Z, (n,), higher is better."""
        found: Tensor = self._recipe.family.proper_score(self._recipe, rows, self._scoring_energy())
        return found

    # ---------------------------------------------------------------- log Z

    def _partition_inputs(self, names: Iterable[str] = ("base", "sampler", "x")) -> dict[str, Any]:
        """Arguments of an estimate of log Z: those in `names`, and the generator."""
        energy, recipe = self.energy_, self._recipe
        like = next(energy.parameters())
        rows = torch.as_tensor(self._reference, dtype=like.dtype, device=like.device)
        found = {
            name: recipe.family.partition_input(recipe, name, energy, self.net_, rows)
            for name in names
        }
        return found | {"generator": torch.Generator(like.device).manual_seed(self.net_.seed_)}

    def _energy_with_trajectory(self) -> Any:
        """The energy, with the models that led to it where training has kept some."""
        recorder = self.net_.trajectory_
        energy = self.energy_
        return energy if recorder is None or recorder.trail is None else recorder.energy(energy)

    def _choose_partition(self, *, importance: bool = True) -> Choice:
        """Method that ``partition="auto"`` selects for the fitted energy."""
        log_z = self._log_z
        with lock_of(log_z):
            if log_z.choice is None or not importance:
                log_z.choice = choose(
                    self.energy_,
                    base=self._partition_inputs(("base",))["base"],
                    x=lambda: self._partition_inputs(("x",))["x"],
                    importance=importance,
                )
            return log_z.choice

    def _log_partition(self) -> LogPartition:
        check_is_fitted(self)
        if self.partition is None:
            nan = float("nan")
            return LogPartition(0.0, nan, nan, nan, "heuristic", nan)
        log_z = self._log_z
        with lock_of(log_z):
            if log_z.found is None:
                auto = self.partition == "auto"
                log_z.found = (
                    self._estimate_by_choice() if auto else self._estimate(self.partition_)
                )
                if math.isnan(log_z.found.value):
                    why = log_z.found.reason
                    warn(
                        f"log Z is nan{why and f', because {why}'}.",
                        LikelihoodWarning,
                        ("Rank rows by energy, or lower learning_rate.", "learning_rate"),
                        ("Rank rows by energy.",),
                    )
            return log_z.found

    def _estimate_by_choice(self) -> LogPartition:
        """The estimate of the chosen method, or of another one where its weights are uneven."""
        choice = self._choose_partition()
        if isinstance(choice.method, ImportanceSampling):
            with collect_warnings() as caught:
                found = self._estimate(self.partition_)
            if not caught:
                return found
            choice = self._choose_partition(importance=False)
        if choice.estimate is not None:
            return choice.estimate
        method = self.partition_
        if "verbose" in method.get_params():
            method.set_params(verbose=self.verbose)
        return self._estimate(method)

    @torchtools.memory_errors()
    def _estimate(self, method: PartitionEstimator) -> LogPartition:
        inputs = self._partition_inputs([name for name in method.uses if name != "x"])
        if "x" in method.uses and not (method.x_fits_base and inputs.get("base") is not None):
            inputs |= self._partition_inputs(("x",))
        energy = self._energy_with_trajectory() if method.along_training else self.energy_
        return method.estimate(energy, **inputs)

    @property
    def partition_(self) -> Any:
        """Method that estimates log Z: the choice of ``"auto"``, or a copy of the given method."""
        check_is_fitted(self)
        if self.partition is None:
            return None
        return clone(
            self._choose_partition().method if self.partition == "auto" else self.partition
        )

    @property
    def log_partition_method_(self) -> str:
        """Method for log Z, with the reason: ``"Exact(): 2^16 hidden states x 64 columns ..."``.

        It is ``"as given: AIS(n_betas=100)"`` if a method was passed, and ``"none"`` with
        ``partition=None``.
        """
        check_is_fitted(self)
        if self.partition is None:
            return "none"
        if self.partition == "auto":
            return str(self._choose_partition())
        return f"as given: {in_a_line(self.partition)}"

    @property
    def log_partition_(self) -> float:
        """log Z in nats, computed when first needed; 0 with ``partition=None``."""
        return self._log_partition().value

    @property
    def log_partition_std_(self) -> float:
        """Standard error of `log_partition_`; 0 if exact."""
        return self._log_partition().std_error

    @property
    def log_partition_bounds_(self) -> tuple[float, float]:
        """Lower and upper bounds on log Z, or an interval that it is probably in."""
        found = self._log_partition()
        return found.lower, found.upper

    @property
    def log_partition_kind_(self) -> str:
        """Kind of the bounds: ``"exact"``, ``"certain"``, ``"probabilistic"``, ``"heuristic"``."""
        return self._log_partition().bound_kind

    @property
    def log_partition_parts_(self) -> dict[str, tuple[float, float]]:
        """Estimates from which the bounds were made, by name, each with its standard error."""
        return self._log_partition().parts


class ThresholdMixin(OutlierMixin):
    """Outliers by a threshold of scores."""

    score_samples: Any
    offset_: Any

    def decision_function(self, X: Any) -> np.ndarray:
        """`score_samples` minus `offset_`: negative for outliers.

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            Of the kinds that `fit` takes.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        found: np.ndarray = self.score_samples(X) - self.offset_
        return found

    def predict(self, X: Any) -> np.ndarray:
        """Classify rows as inliers (+1) or outliers (-1).

        Parameters
        ----------
        X : {array-like, sparse matrix, frame} of shape (n_samples, n_features)
            Of the kinds that `fit` takes.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return np.where(self.decision_function(X) >= 0, 1, -1)


class DetectionMixin(ThresholdMixin, DensityMixin, OfModel):
    """Fits of a density, and the threshold by which it detects outliers."""

    contamination: Any

    @abc.abstractmethod
    def _set_threshold(self, rows: Rows) -> None:
        """Set the threshold of `predict`, or keep what it will be computed from."""

    def _conclude(self, net: EnergyNet, rows: Rows) -> None:
        super()._conclude(net, rows)
        self._set_threshold(rows)

    @raises_interrupt
    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the model to the rows of X.

        Ctrl-C during training raises `KeyboardInterrupt` once the model trained so far is usable:
        it has the weights at the time of the interruption, with the threshold and the log Z that
        belong to them. A call that fails in any other way leaves the estimator unchanged.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; models of bits take sparse matrices, too.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows, on any scale; rows of weight 0 are ignored.

        Returns
        -------
        self : object
        """
        self._fit(X, sample_weight, streaming=False)
        return self

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Train for one epoch on the rows of X, in mini-batches, from the current state.

        The scaling of the columns, the base, chains, offsets and momentum persist between calls.
        The threshold of `predict` is computed from the rows of the last call.

        A call that fails or is interrupted leaves the estimator unchanged, bit for bit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, with the columns of the first call.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows, on any scale.

        Returns
        -------
        self : object
        """
        self._fit(X, sample_weight, streaming=True)
        return self

    def _share_of_kept(self, rows: Rows) -> float:
        """Fraction of `rows`, those a fit kept, that `predict` classifies as outliers."""
        return rows.share_of_kept(0.1 if self.contamination == "auto" else self.contamination)


class BaseDensity(DetectionMixin, PartitionMixin, BaseEBM, abc.ABC):
    """Base class of densities whose rows share one log Z."""

    @collective
    def _set_threshold(self, rows: Rows) -> None:
        some = with_fewer_holes(rows)
        energies = map_over_ranks(some, self._energies)
        weight = None if some.is_mapped and some.weight is None else some.counts.cpu().numpy()
        self.threshold_ = upper_quantile(energies, self._share_of_kept(rows), weight)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows in nats, with the largest credible log Z.

        The score is exact if log Z is. If log Z is estimated, it is pessimistic, so that a search
        does not reward slowly mixing models. It is nan, with a warning, if the method gives no
        upper bound. With ``partition=None`` it is a proper scoring rule that needs no log Z.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        float
        """
        rows = self._rows_to_score(X)
        if self.partition is None:
            return float(self._proper_scores(rows).double().mean())
        found = self._log_partition()
        if math.isnan(found.pessimistic):
            warn(
                f"score is nan, because log Z has no credible upper end: {found.reason}.",
                LikelihoodWarning,
                ('Use partition="auto", or score_samples.', "partition"),
            )
        return -float(self._energies(rows, likely=True).mean()) - found.pessimistic

    # ---------------------------------------------------------------- anomalies

    @property
    def offset_(self) -> float:
        """Threshold of `predict` in the units of `score_samples`."""
        return -self.threshold_ - self.log_partition_

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-likelihood minus the threshold, negative for outliers; log Z is not needed.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        energy = self.energy(X)  # checks that the model is fitted
        return self.threshold_ - energy


class ConditionalPartitionMixin(OfModel):
    """log Z of a model in which each condition has its own, and the base that it corrects."""

    partition: Any

    @property
    def base_(self) -> Any:
        """The fitted base of a row given its condition."""
        check_is_fitted(self)
        return self._recipe.base

    @property
    def partition_(self) -> ConditionalAIS:
        """Settings of the annealing of log Z: a copy of those given, or what ``"auto"`` is."""
        check_is_fitted(self)
        if not isinstance(self.partition, ConditionalAIS):
            default: ConditionalAIS = self._config_of("partition", self.partition, set())
            return default
        self.partition._validate_params()
        return clone(self.partition)


class BaseConditional(ConditionalPartitionMixin, DetectionMixin, BaseEBM, abc.ABC):
    """Base class of densities of rows given conditions."""

    threshold_: Any

    @property
    def offset_(self) -> float:
        """Threshold of `predict` in the units of `score_samples`."""
        return float(self.threshold_)

    @abc.abstractmethod
    def score_samples(self, X: Any) -> np.ndarray:
        """Log-likelihood of each row given its condition, in nats, (n_samples,)."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-likelihood given the condition minus the threshold: negative for outliers.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.score_samples(X) - self.threshold_
