"""Estimates of log Z of one model by several methods, side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skebm._validation import check_is_fitted, draw_seed
from skebm.base import Energy, LogPartition, PartitionEstimator, Sampler
from skebm.base.processes import collect_warnings, repeat
from skebm.partition.annealed import AIS, ReverseAIS
from skebm.partition.bracket import AISBracket
from skebm.partition.bridge import BridgeSampling
from skebm.partition.checks import check_base, check_proper, rows_of, template_for
from skebm.partition.choice import in_a_line
from skebm.partition.exact import Exact
from skebm.partition.importance import ImportanceSampling
from skebm.partition.pairwise.bethe import Bethe
from skebm.partition.pairwise.perturb_and_map import PerturbAndMAP
from skebm.partition.pairwise.tree_reweighted import TreeReweighted
from skebm.partition.quadrature import Quadrature

METHODS = (
    Exact,
    Quadrature,
    Bethe,
    TreeReweighted,
    PerturbAndMAP,
    ImportanceSampling,
    BridgeSampling,
    AIS,
    ReverseAIS,
    AISBracket,
)
COLUMNS = (
    "value",
    "std_error",
    "lower",
    "upper",
    "bound_kind",
    "ess",
    "seconds",
    "reason",
    "warning",
)
NOT_APPLICABLE = "not applicable"
# Errors by which a method refuses a model.
REFUSALS = (TypeError, ValueError, FloatingPointError)


def compare(
    model: Any,
    methods: Iterable[PartitionEstimator] | Mapping[str, PartitionEstimator] | None = None,
    *,
    base: Any = None,
    sampler: Sampler | None = None,
    x: Tensor | Mapping[str, Tensor] | None = None,
    random_state: Any = None,
) -> Any:
    r"""Estimate log Z of one model by several methods, in a table with a row for each.

    Direction: that of each method, given by the columns ``lower``, ``upper`` and ``bound_kind``.
    The value of a method that bounds one side only, such as :class:`PerturbAndMAP`, is to be read
    as a bound and not as an estimate. ``std_error`` is the sampling error alone.

    Parameters
    ----------
    model : Energy or fitted estimator
        An estimator supplies the base, sampler, rows and seed with which it computes its own
        `log_partition_`. It is left unchanged.
    methods : iterable or dict of str to PartitionEstimator, default=None
        None means all methods of :mod:`skebm.partition`, each with its defaults. Methods of an
        iterable are named after their class, or after their parameters as well if a class occurs
        more than once.
    base : Distribution or None, default=None
        Base of the sampling methods, in place of the estimator's or the default one.
    sampler : Sampler or None, default=None
        Kernel of annealing and of chains, in place of the estimator's or the default one.
    x : Tensor of shape (n, ...), mapping of str to Tensor, or None, default=None
        Rows near the model, in the units of the energy's rows, in place of the estimator's. Without
        any, reverse annealing is not applicable.
    random_state : int, RandomState instance or None, default=None
        None uses the estimator's own seed, so that the row of the estimator's own method holds its
        `log_partition_`; for an energy the seed is 0. Every method gets a generator with the same
        seed, so that its row does not depend on the other methods. :class:`AIS` and
        :class:`AISBracket` therefore share their forward runs, and their agreement confirms
        nothing.

    Returns
    -------
    pandas.DataFrame
        Indexed by ``method``, with columns

        - ``value``, ``std_error``, ``lower``, ``upper``, ``bound_kind``, ``ess``, ``reason``: see
          :class:`skebm.base.LogPartition`; the first four in nats. A method that does not support
          the model, or fails, has a row of nan with ``bound_kind`` "not applicable" and its error
          message as ``reason``;
        - ``seconds``: wall-clock time;
        - ``warning``: messages of the method's `ConvergenceWarning`, which are not issued.

    Raises
    ------
    ImportError
        If pandas is not installed.
    TypeError
        If the model is not an energy or estimator, or a method, base, sampler or x has a wrong
        type.
    ValueError
        If the energy has no log Z, if rows or base do not fit it, or if methods is empty.

    See Also
    --------
    choose : The method that ``partition="auto"`` uses.
    skebm.inspection.PartitionDisplay : Plot of the table.

    Notes
    -----
    Small models take a second or two. For an RBM of 784 visible and 500 hidden units and 500 rows
    all methods take two minutes on one core: :class:`TreeReweighted` 50 s, :class:`ReverseAIS`,
    which anneals every row, 30 s, :class:`AISBracket` 20 s, and each of the others 6 s at most.

    References
    ----------
    Grosse, Ghahramani and Adams (2015), "Sandwiching the marginal likelihood using bidirectional
    Monte Carlo", arXiv:1511.02543 (bounds on both sides that check each other).

    Examples
    --------
    >>> from skebm.energies import ising_grid
    >>> from skebm.partition import Bethe, Exact, TreeReweighted, compare
    >>> energy = ising_grid(4, 4, coupling=0.3)
    >>> frame = compare(energy, [Exact(), Bethe(), TreeReweighted()])
    >>> frame[["value", "lower", "upper"]].round(2)
                    value  lower  upper
    method
    Exact           12.79  12.79  12.79
    Bethe           12.51  12.51    NaN
    TreeReweighted  13.97    NaN  13.97
    """
    pandas = _pandas()
    named = _by_name(methods)
    energy, inputs = _energy_and_inputs(model)
    given = {"base": base, "sampler": sampler, "x": x}
    inputs |= {name: value for name, value in given.items() if value is not None}
    check_proper(energy)
    inputs["x"] = _check_rows(energy, **inputs)
    device = template_for(energy, rows_of(energy, inputs["x"])).device
    generator = inputs.pop("generator", None)
    if random_state is not None:
        seed = draw_seed(random_state)
    else:
        seed = 0 if generator is None else generator.initial_seed()

    def new_generator() -> torch.Generator:
        return torch.Generator(device).manual_seed(seed)

    rows = [_measure(method, energy, inputs, new_generator) for method in named.values()]
    index = pandas.Index(list(named), name="method")
    return pandas.DataFrame(rows, index=index, columns=list(COLUMNS))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "compare returns a pandas DataFrame, and pandas is not installed: pip install pandas"
        ) from error
    return pandas


# ------------------------------------------------------------------------------
# Arguments
# ------------------------------------------------------------------------------


def _by_name(methods: Any) -> dict[str, PartitionEstimator]:
    """Checked methods by name."""
    if methods is None:
        return {cls.__name__: cls() for cls in METHODS}
    if isinstance(methods, str | type | PartitionEstimator) or not isinstance(methods, Iterable):
        raise TypeError(
            "methods must be a list or a dict of partition estimators, such as [Exact(), AIS()], "
            f"not {methods!r}."
        )
    several = list(methods.values() if isinstance(methods, Mapping) else methods)
    if not several:
        raise ValueError("methods is empty: pass None for all of them.")
    for one in several:
        if not isinstance(one, PartitionEstimator):
            hint = f": pass an instance, {one.__name__}()" if isinstance(one, type) else ""
            raise TypeError(f"methods holds {one!r}, which is no partition estimator{hint}.")
    if isinstance(methods, Mapping):
        return {str(name): one for name, one in methods.items()}
    classes = [type(one).__name__ for one in several]
    names = [
        name if classes.count(name) == 1 else in_a_line(one)
        for name, one in zip(classes, several, strict=True)
    ]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"methods holds {twice} twice: pass a dict with a name for each.")
    return dict(zip(names, several, strict=True))


def _energy_and_inputs(model: Any) -> tuple[Energy, dict[str, Any]]:
    """The energy of a model, and what its estimator computes its own log Z with."""
    defaults = {"base": None, "sampler": None, "x": None}
    if isinstance(model, Energy):
        return model, defaults
    if isinstance(model, BaseEstimator) and hasattr(model, "fit"):
        check_is_fitted(model)
    energy = getattr(model, "energy_", None)
    if not isinstance(energy, Energy):
        raise TypeError(
            f"compare takes an Energy or a fitted density estimator of skebm, not a "
            f"{type(model).__name__}. Pass the step of a pipeline, as in pipeline[-1], or the "
            "best_estimator_ of a search."
        )
    own = getattr(model, "_partition_inputs", None)
    return energy, defaults if own is None else own()


def _check_rows(energy: Energy, base: Any, sampler: Any, x: Any, generator: Any = None) -> Any:
    """Rows in the dtype of the energy; raises for inputs that no method could use."""
    rows = rows_of(energy, x)
    if base is not None:
        check_base(energy, base, x)
    if not isinstance(sampler, Sampler | None):
        raise TypeError(f"sampler must be a sampler such as Gibbs(), not {sampler!r}.")
    if rows is None:
        return None
    if isinstance(x, Mapping):
        return {name: one.to(rows) for name, one in x.items()}
    return rows


# ------------------------------------------------------------------------------
# One method
# ------------------------------------------------------------------------------


def _measure(
    method: PartitionEstimator,
    energy: Energy,
    inputs: Mapping[str, Any],
    new_generator: Callable[[], torch.Generator],
) -> dict[str, Any]:
    """The estimate of a method, its seconds and its warnings, by column."""
    nan = math.nan
    seconds = nan
    with collect_warnings() as caught:
        start = time.perf_counter()
        try:
            method.check(energy)
            result = method.estimate(energy, **inputs, generator=new_generator())
            seconds = time.perf_counter() - start
        except REFUSALS as refusal:
            result = LogPartition(nan, nan, nan, nan, NOT_APPLICABLE, nan, reason=str(refusal))
    messages = []
    for one in caught:
        if issubclass(one.category, ConvergenceWarning):
            messages.append(one.text().splitlines()[0])
        else:
            repeat([one])
    row = result._asdict() | {"seconds": seconds, "warning": " ".join(dict.fromkeys(messages))}
    return {name: row[name] for name in COLUMNS}
